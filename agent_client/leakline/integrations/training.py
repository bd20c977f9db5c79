"""One training of a framework as a run: what every callback calls, whatever the framework's hooks are named.

A training that has no run starts one and finishes it. In a run of the program it numbers the generations, unless the
program does, and never finishes it. Phases follow each other: the next one ends the one before, because frameworks
say when something begins and rarely when it is over.

Where a callback stands among those of the user.

Frameworks call their callbacks one after the other, and memory that one of them keeps is booked to the phase that is
open at that moment. So ours comes first, and what the others do at a hook belongs to the phase that the hook begins;
where a hook ends a phase (a rollout, the step before a save), a second one of ours comes last, and what they do still
belongs to it.

What every callback takes, checked where the script makes it, and what is said when its framework is missing.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar

from leakline.errors import BadArgument, MissingPackage
from leakline.run import Run, active, start
from leakline.runtime.error_boundary import Guard
from leakline.settings import resolve

from ..run import Generation, Phase

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


T = TypeVar("T")

# A hook is called by the list, directly or through the callback's own base class.
_CALLERS: Final = 4


def calling(kind: type[T]) -> T | None:
    """The object of this class whose method is calling this hook: the framework gives its callbacks no way to it."""
    frame: Any = sys._getframe(1)
    for _ in range(_CALLERS):
        frame = frame.f_back
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if isinstance(caller, kind):
            return caller
    return None


def bracket(holder: Any, first: Any, last: Any = None) -> None:
    """Put ``first`` before and ``last`` after all other callbacks.

    A new list is made: the framework may be going through the one it has, and that may be the user's. What stood
    last in an earlier training goes: it would end the next one before callbacks that the user has added since.
    """
    others = [e for e in holder.callbacks if e is not first and not _is_replaced(e, last)]
    holder.callbacks = [first, *others] if last is None else [first, *others, last]


def _is_replaced(each: Any, last: Any) -> bool:
    if each is last or type(each) is not type(last):
        return each is last
    training = getattr(last, "_training", None)
    return training is not None and each._training is training


class Options(TypedDict, total=False):
    """What goes on to `leakline.init`; the units and phases come from the framework."""

    name: str | None
    watch: Iterable[type | str] | None
    config: Any
    tags: Iterable[str] | None
    server: str | None
    mode: str | None
    quiet: bool | None
    directory: str | os.PathLike[str] | None
    exact_peaks: bool | None
    log_lines: bool | None
    log_every: int | None
    allocations: bool | None


_NAMES: Final = frozenset({"project", *Options.__annotations__})


def checked(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """The same, classes as their names: whoever holds a class counts as a reference to it.

    Raises TypeError for an argument that does not exist, and BadArgument for a value that cannot be used.
    """
    for name in options:
        if name not in _NAMES:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}")
    return {**options, "watch": resolve(**options).watch}


def checked_steps(steps: object) -> int | None:
    """How many steps are one generation; None: the framework's own unit. Raises BadArgument."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise BadArgument("steps", steps, "must be a whole number above zero")
    return steps


def missing(module: str, package: str, extra: str, error: ImportError) -> ImportError:
    """What an import of this module ends with: the command that brings the package, unless something else failed."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] != package:
        return error
    return MissingPackage(f"leakline.integrations.{module}", package, f"leakline[{extra}]")
