"""Gymnasium: ``env = LeaklineWrapper(gymnasium.make("CartPole-v1"), project="mine")``.

Without a run its first reset starts one in which a generation is an episode of this environment, and phase ``episode``
lasts from its reset to its end. In a run that there is already (another wrapper's, a callback's, the program's own) it
only counts: environments that were made and are still in memory, and those of them that were not closed.
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
    """Watches an environment. ``expect``: how many of its class there should be, or a range.

    Other keywords are those of `leakline.init`; in a run that there is already they say nothing.
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
        # At the first reset: some are only made to be asked for their spaces.
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
        # One run each: what is reset after it was closed, or after another had a run, starts none.
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
    """A process that a vector of environments has started; it may be there before its parent has a run."""
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _tell(run: Run) -> None:
    run.gauge(ALIVE, len(_alive))
    run.gauge(OPEN, len(_open))
