"""One training of a framework as a run: what every callback calls, whatever the framework's hooks are named.

A training that has no run starts one and finishes it. In a run of the program it numbers the generations, unless the
program does, and never finishes it. Phases follow each other: the next one ends the one before, because frameworks
say when something begins and seldom when it is over.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from leakline.core.context_managers import Generation, Phase
from leakline.run import Run, active, start
from leakline.runtime.error_boundary import Guard
from leakline.settings import resolve

# framework -> its training that has begun and not said that it is over.
_open: Final[dict[str, Training]] = {}
# Runs of which a training has numbered the generations, so that the next training may go on.
_numbered: Final[weakref.WeakSet[Run]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Place:
    """Which of several processes this one is, as the framework says; ``launch`` is what all of them share, if known."""

    rank: int = 0
    world_size: int = 1
    launch: str | None = None

    def environment(self) -> dict[str, str]:
        """The environment with what launchers other than torchrun leave out of it; what it says itself holds."""
        said = dict(os.environ)
        if self.world_size > 1:
            said.setdefault("RANK", str(self.rank))
            said.setdefault("WORLD_SIZE", str(self.world_size))
        if self.launch is not None and not {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"} & set(said):
            said.setdefault("LEAKLINE_RUN_ID", self.launch)
        return said


ALONE: Final = Place()


class Training:
    """Made with the callback, ``begin`` and ``end`` with each training. ``options`` are those of `leakline.init`."""

    def __init__(self, framework: str, options: dict[str, Any]) -> None:
        # For what asks the framework. Not around calls of the run: what the program's functions raise there is its own.
        self.guard = Guard(f"the callback for {framework}")
        self.run = Run()
        self._framework, self._options = framework, options
        self._thread = 0
        self._owns = self._numbers = False
        self._ahead: int | None = None
        self._counted: int | None = None
        self._generation: Generation | None = None
        self._phase: Phase | None = None
        self._phase_name = ""

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, here or in another process: one that has not begun. The run stays where it is."""
        return {"framework": self._framework, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Training.__init__(self, state["framework"], state["options"])

    @property
    def is_on(self) -> bool:
        """Whether it has begun and not ended."""
        return _open.get(self._framework) is self

    def begin(
        self,
        unit: str,
        total: int | None = None,
        phases: Sequence[str] = (),
        place: Place = ALONE,
        note: str | None = None,
    ) -> None:
        """``total``: planned generations; ``note``: what one is. A training that never said its end is over now."""
        before = _open.get(self._framework)
        if before is not None and before is not self and before._thread == threading.get_ident():
            before._was_left()
        self._rest()
        if active() is None or not (self._owns and self.run is active()):
            self._join(unit, total, phases, place)
        self._numbers = self._may_number()
        self._ahead = self._counted = None
        self._thread = threading.get_ident()
        if self._numbers:
            _numbered.add(self.run)
            if note is not None:
                self.run.note(note)
        if before is None or not before.is_on:
            _open[self._framework] = self

    def generation(self, number: int) -> None:
        """The framework's next unit begins; in a run that has had trainings before, after the last one of theirs."""
        self._leave()
        if self._numbers:
            if self._ahead is None:
                newest = _newest_generation(self.run)
                self._ahead = 0 if newest is None else max(0, math.floor(newest) + 1 - number)
            self._generation = self.run.generation(number + self._ahead)

    def count(self, number: int) -> None:
        """The same for units that are counted step by step: a new one begins when the number is another."""
        if number != self._counted:
            self._counted = number
            self.generation(number)

    def phase(self, name: str) -> None:
        """From here on; again and again is once."""
        if name != self._phase_name:
            self._leave()
            self._phase, self._phase_name = self.run.phase(name).__enter__(), name

    def leave(self) -> None:
        """The phase is over, and what comes next is of none."""
        self._leave()

    def rest(self) -> None:
        """The last unit is over; the training may still have something to say."""
        self._rest()

    def end(self, error: BaseException | None = None) -> None:
        """It is over, as ``error`` says or well. Twice is once."""
        if not self.is_on:
            return
        _open.pop(self._framework, None)
        self._rest(error)
        if self._owns:
            if error is not None:
                interrupted = isinstance(error, KeyboardInterrupt)
                state = "terminated" if interrupted else "failed"
                self.run._ends_because(state, type(error).__name__, error)
            self.run.finish()
        self.run, self._owns = Run(), False

    def _join(self, unit: str, total: int | None, phases: Sequence[str], place: Place) -> None:
        running = active()
        self._owns = running is None
        self.run = Run() if running is None else running
        if running is None:
            with self.guard:
                settings = resolve(
                    place.environment(), unit=unit, total=total, phases=phases, **self._options
                )
                self.run = start(settings)

    def _may_number(self) -> bool:
        """Not where the program counts itself, and not within another training."""
        within = any(each is not self and each.run is self.run for each in _open.values())
        counted = _newest_generation(self.run) is not None
        return not within and (self.run in _numbered or not counted)

    def _was_left(self) -> None:
        """The framework called no closing hook: an exception, which the program has caught."""
        _open.pop(self._framework, None)
        self._rest()
        if self._owns:
            self.run._ends_because("failed", "the training ended without a word")
            self.run.finish()
        self.run, self._owns = Run(), False

    def _rest(self, error: BaseException | None = None) -> None:
        self._leave(error)
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.__exit__(None if error is None else type(error), error, None)

    def _leave(self, error: BaseException | None = None) -> None:
        phase, self._phase, self._phase_name = self._phase, None, ""
        if phase is not None:
            phase.__exit__(None if error is None else type(error), error, None)


def several(steps: int | None, what: str) -> str | None:
    """The note where a generation is more than one step."""
    return None if steps is None or steps < 2 else f"a generation is {steps:,} {what}"


def _newest_generation(run: Run) -> float | None:
    return None if run._loop is None else run._loop.highest_number
