"""Gymnasium: ``env = LeaklineWrapper(gymnasium.make("CartPole-v1"), project="mine")``.

If no run is active, the first reset starts a run. Its generations are the episodes of this environment, and the phase
``episode`` lasts from a reset to the end of the episode. If another wrapper, a callback or the program has already
started a run, the wrapper does not record episodes. In both cases, the wrapper reports how many wrapped environments
are still in memory, and how many were never closed.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Final, Unpack

from leakline.core import declarations
from leakline.integrations.training import Training
from leakline.run import Run, active, current

from .training import Options, checked, missing

try:
    import gymnasium
except ImportError as error:
    raise missing("gymnasium", "gymnasium", "gymnasium", error) from None

ALIVE: Final = "environments.alive"
OPEN: Final = "environments.open"

_alive: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_open: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


class LeaklineWrapper(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Wrapper that observes an environment. ``expect``: how many instances of the environment's class may exist, as a
    number or a range.

    Other keywords are passed to `leakline.init`; in an existing run, they are ignored.
    """

    def __init__(
        self,
        env: Any,
        project: str | None = None,
        *,
        expect: int | tuple[int, int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, project=project, expect=expect)
        gymnasium.Wrapper.__init__(self, env)
        watch = [*(options.get("watch") or ()), type(env.unwrapped)]
        given = checked("LeaklineWrapper", {**options, "project": project, "watch": watch})
        if expect is not None:
            declarations.expectation(type(env.unwrapped), expect, None)
        self._expect, self._declared_in = expect, ""
        self._training = Training("gymnasium", given)
        # Start the run only at the first reset, because some environments are created just to query their spaces.
        self._may_begin = active() is None and not _in_worker()
        self._episodes = 0
        _alive.add(self)
        _open.add(self)

    def reset(self, **kwargs: Any) -> Any:
        self._begin()
        if self._training.is_on:
            self._training.generation(self._episodes)
            self._training.phase("episode")
            self._episodes += 1
        _tell(current())
        return super().reset(**kwargs)

    def _begin(self) -> None:
        if self._may_begin and active() is None:
            self._training.begin("episode", phases=("episode",))
        # A wrapper starts at most one run. A reset after `close`, or once another run has existed, does not start one.
        self._may_begin = False
        run = current()
        if self._expect is not None and run.id != self._declared_in:
            self._declared_in = run.id
            run.expect(type(self.env.unwrapped), self._expect)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if (result[2] or result[3]) and self._training.is_on:
            self._training.leave()
        return result

    def close(self) -> None:
        super().close()
        _open.discard(self)
        _tell(current())
        self._training.end()


def _in_worker() -> bool:
    """Return True in a worker process of a vector environment, which may start before its parent has a run."""
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _tell(run: Run) -> None:
    run.gauge(ALIVE, len(_alive))
    run.gauge(OPEN, len(_open))
