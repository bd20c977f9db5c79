"""Stable-Baselines3: ``model.learn(100_000, callback=LeaklineCallback(project="mine"))``.

Phases: ``rollout``, which collects experience, and ``train``. If rollouts have fewer than SHORTEST_ROLLOUT timesteps
(A2C, DQN, SAC), both are a single phase ``learn``. If the algorithm collects a full buffer in longer rollouts and
trains on it (PPO), a generation is one rollout with the training that follows. Otherwise, a generation is a hundredth
of the timesteps, or ``steps`` timesteps, rounded up to full rollouts. The model's buffers are tracked with their
capacity, because a buffer that is still filling is not a leak.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, Unpack

from leakline.integrations.training import Training, several

from .training import Options, bracket, calling, checked, checked_steps, missing

try:
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList
except ImportError as error:
    raise missing("sb3", "stable_baselines3", "sb3", error) from None

# Number of generations into which ``learn`` is divided. Fewer are enough to see a trend, and more would only add
# snapshots.
GENERATIONS: Final = 100
# The budget does not cover a measurement at the end of each shorter rollout. What the rollout keeps would then belong
# to no phase. Timesteps are counted instead of seconds, so that the phases are the same on each machine.
SHORTEST_ROLLOUT: Final = 100
BUFFERS: Final = ("replay_buffer", "rollout_buffer")


class LeaklineCallback(BaseCallback):
    """Callback that records ``learn``. Keywords are passed to `leakline.init`; in an existing run, they are ignored."""

    def __init__(
        self, project: str | None = None, *, steps: int | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__()
        self._steps = checked_steps(steps)
        given = checked("LeaklineCallback", {**options, "project": project})
        self._training = Training("stable-baselines3", given)
        self._last: _Last | None = None
        self._rollouts = 0
        # State of the current ``learn`` call: the timesteps per generation (None if a generation is one rollout), and
        # the first timestep.
        self._each: int | None = None
        self._began = 0
        # The phases of a rollout and of the training after it.
        self._phases = ("rollout", "train")

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Do nothing: keeping the loop's local variables would extend the lifetime of the program's objects."""

    def _on_training_start(self) -> None:
        total, self._rollouts, self._last = None, 0, None
        with self._training.guard:
            among = calling(CallbackList)
            total = self._plan()
            if among is not None:
                self._last = _Last(self._training, self._phases[1])
                self._last.init_callback(self.model)
                bracket(among, self, self._last)
        # Replace the dict instead of clearing it, because all callbacks share it.
        self.locals: dict[str, Any] = {}
        note = several(self._each, "timesteps, rounded up to full rollouts")
        self._training.begin("generation", total, tuple(dict.fromkeys(self._phases)), note=note)
        with self._training.guard:
            for name in BUFFERS:
                buffer = getattr(self.model, name, None)
                if buffer is not None:
                    self._training.run.track(name, _filling(self.model, name), buffer.buffer_size)

    def _plan(self) -> int:
        """Choose the number of timesteps per generation, and return the number of planned generations."""
        model: Any = self.model
        self._began = model.num_timesteps
        planned = max(1, int(model._total_timesteps) - self._began)
        steps = _rollout_steps(model)
        rollout = (steps or 1) * int(model.n_envs)
        is_short = steps is not None and rollout < SHORTEST_ROLLOUT
        self._phases = ("learn", "learn") if is_short else ("rollout", "train")
        is_full_buffer = getattr(model, "rollout_buffer", None) is not None
        if self._steps is None and is_full_buffer and not is_short:
            self._each = None
            return -(-planned // rollout)
        self._each = self._steps or max(rollout, planned // GENERATIONS)
        return -(-planned // self._each)

    def _on_rollout_start(self) -> None:
        if self._training.is_on:
            model: Any = self.model
            done = model.num_timesteps - self._began
            self._training.count(self._rollouts if self._each is None else done // self._each)
            self._training.phase(self._phases[0])
            self._rollouts += 1

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self._training.is_on and self._last is None:
            self._training.phase(self._phases[1])

    def _on_training_end(self) -> None:
        if self._training.is_on:
            self._training.rest()
            if self._last is None:
                self._training.end()
        # A callback that outlives ``learn`` must not keep the model alive.
        self.__dict__["model"] = None


class _Last(BaseCallback):
    """Callback that runs after the user's callbacks, so that their work at the end of a rollout is attributed to the
    rollout.
    """

    def __init__(self, training: Training, phase: str) -> None:
        super().__init__()
        self._training, self._phase = training, phase

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Do nothing, for the same reason as `LeaklineCallback.update_locals`."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self._training.is_on:
            self._training.phase(self._phase)

    def _on_training_end(self) -> None:
        self._training.end()
        self.__dict__["model"] = None


def _rollout_steps(model: Any) -> int | None:
    """Return the steps of a rollout in each environment, or None if it lasts for whole episodes."""
    if getattr(model, "rollout_buffer", None) is not None:
        return int(model.n_steps)
    every: Any = getattr(model, "train_freq", None)
    return int(every.frequency) if every is not None and every.unit.value == "step" else None


class _Filled:
    """The arrays of a buffer. ``len()`` returns the number of filled rows."""

    def __init__(self, buffer: Any) -> None:
        self._rows = buffer.buffer_size if buffer.full else buffer.pos
        self.arrays = list(_arrays(vars(buffer).values()))

    def __len__(self) -> int:
        return int(self._rows)


def _arrays(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            # A Dict observation space gives a dict of arrays.
            yield from _arrays(value.values())
        elif hasattr(value, "nbytes") and getattr(value, "shape", None):
            yield value


def _filling(model: Any, name: str) -> Callable[[], _Filled | None]:
    """Return a function that reads the model's current buffer, without keeping the model or the buffer alive."""
    found = weakref.ref(model)

    def read() -> _Filled | None:
        owner = found()
        buffer = None if owner is None else getattr(owner, name, None)
        return None if buffer is None else _Filled(buffer)

    return read
