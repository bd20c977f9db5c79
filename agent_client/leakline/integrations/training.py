"""Records a framework's training as a Leakline run; shared by all callbacks.

If no run is active, `Training` starts a run and finishes it. If the program has a run, `Training` never finishes that
run, and numbers its generations unless the program does. Each phase ends the previous phase, because frameworks report
when something begins but rarely when it ends.

The position of our callback among the user's callbacks matters. Frameworks call callbacks one after the other, and
memory that a callback allocates is attributed to the phase that is open at that moment. Our callback therefore comes
first, so that the work of the other callbacks at a hook belongs to the phase that the hook begins. If a hook ends a
phase (a rollout, the step before a save), a second callback of ours comes last, so that the other callbacks' work still
belongs to that phase.

The module also validates the callbacks' arguments in the constructor, and creates the error for a missing framework.
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
from leakline.run import Run, active, current, start
from leakline.runtime.error_boundary import Guard
from leakline.settings import resolve

from ..run import Generation, Phase

# With few epochs, each is divided into so many generations. With more parts, an evaluation after each epoch would occur
# in fewer generations.
PARTS: Final = 5
# So many epochs are enough generations for a verdict; fewer are divided.
FEW_EPOCHS: Final = 16
# Fewer batches than this in a part take too little time for a measurement at its end.
FEW_BATCHES: Final = 4
OF_AN_EPOCH: Final = f"a generation is 1/{PARTS} of an epoch"
# Maps each framework to the `Training` that has begun and not ended yet.
_open: Final[dict[str, Training]] = {}
# Runs whose generations were numbered by a `Training`. The next `Training` may continue the numbering.
_numbered: Final[weakref.WeakSet[Run]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of this process as the framework reports it. ``launch`` is an id that all ranks share, if known."""

    rank: int = 0
    world_size: int = 1
    launch: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables, with RANK, WORLD_SIZE and LEAKLINE_RUN_ID added if known and not set."""
        said = dict(os.environ)
        if self.world_size > 1:
            said.setdefault("RANK", str(self.rank))
            said.setdefault("WORLD_SIZE", str(self.world_size))
        if self.launch is not None and not {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"} & set(said):
            said.setdefault("LEAKLINE_RUN_ID", self.launch)
        return said


ALONE: Final = Place()


class Training:
    """Records a framework's training. It is created together with the callback. ``options`` are arguments of
    `leakline.init`.
    """

    def __init__(self, framework: str, options: dict[str, Any]) -> None:
        # Guards only calls into the framework. Calls of the run's methods have their own error boundary, and exceptions
        # of the program's own functions have to propagate.
        self.guard = Guard(f"the callback for {framework}")
        self.run = Run()
        self._framework, self._options = framework, options
        self._thread = 0
        self._owns = self._numbers = False
        # True for a callback that the program has not created. The run then lasts as long as the program.
        self.leaves_run_open = False
        self._ahead: int | None = None
        self._counted: int | None = None
        self._generation: Generation | None = None
        self._phase: Phase | None = None
        self._phase_name = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return only the state that a copy needs: the copy has not begun and has no run."""
        return {
            "framework": self._framework,
            "options": self._options,
            "leaves_run_open": self.leaves_run_open,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Training.__init__(self, state["framework"], state["options"])
        self.leaves_run_open = state["leaves_run_open"]

    @property
    def is_on(self) -> bool:
        """True between `begin` and `end`."""
        return _open.get(self._framework) is self

    def begin(
        self,
        unit: str,
        total: int | None = None,
        phases: Sequence[str] = (),
        place: Place = ALONE,
        note: str | None = None,
    ) -> None:
        """Begin to record training. ``total``: number of planned generations; ``note``: what a generation is.

        Earlier training with the same framework on this thread is ended first if it never reported its end.
        """
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

    def expect(self) -> None:
        """Note that the training begins later. Until then, generations are not found in other ways."""
        _open.setdefault(self._framework, self)

    def batches_of_a_part(self, epochs: float | None, batches: float | None) -> int | None:
        """Return the batches in each part of an epoch, or None if a generation is an epoch.

        Epochs are divided into PARTS if the program has not added the callback itself, because then it does not expect
        epochs, and only in its first training, because a program that trains for each epoch has enough of them.
        """
        if not self.leaves_run_open or epochs is None or batches is None:
            return None
        is_first = _newest_generation(current()) is None
        is_divided = (
            is_first and 1 < epochs < FEW_EPOCHS and PARTS * FEW_BATCHES <= batches < math.inf
        )
        return math.ceil(batches / PARTS) if is_divided else None

    def generation(self, number: int) -> None:
        """Begin the next generation. Numbers continue after the generations of earlier training in the run."""
        self._leave()
        if self._numbers:
            if self._ahead is None:
                newest = _newest_generation(self.run)
                self._ahead = 0 if newest is None else max(0, math.floor(newest) + 1 - number)
            self._generation = self.run.generation(number + self._ahead)

    def count(self, number: int) -> None:
        """Begin a generation if the number has changed; for callers that compute the number at every step."""
        if number != self._counted:
            self._counted = number
            self.generation(number)

    def phase(self, name: str) -> None:
        """Begin a phase, unless this phase is already open."""
        if name != self._phase_name:
            self._leave()
            self._phase, self._phase_name = self.run.phase(name).__enter__(), name

    def leave(self) -> None:
        """End the current phase without beginning another phase."""
        self._leave()

    def rest(self) -> None:
        """End the current generation, but not the training itself."""
        self._rest()

    def end(self, error: BaseException | None = None) -> None:
        """End the training. ``error``: the exception that ended it, if any. Later calls have no effect."""
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
        self._owns = running is None and not self.leaves_run_open
        self.run = Run() if running is None else running
        if running is None:
            with self.guard:
                settings = resolve(
                    place.environment(), unit=unit, total=total, phases=phases, **self._options
                )
                self.run = start(settings)

    def _may_number(self) -> bool:
        """Return False if other training in this run has not ended, or if the program numbers the generations
        itself.
        """
        within = any(each is not self and each.run is self.run for each in _open.values())
        counted = _newest_generation(self.run) is not None
        return not within and (is_ours(self.run) or not counted)

    def _was_left(self) -> None:
        """End training whose closing hook was never called, because the program caught an exception."""
        _open.pop(self._framework, None)
        self._rest()
        if self._owns:
            self.run._ends_because("failed", "the training ended without notifying its callbacks")
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


def next_number(run: Run) -> int | None:
    """Return the number of the next generation that we find, or None if the program numbers its generations itself."""
    newest = _newest_generation(run)
    if newest is not None and not is_ours(run):
        return None
    _numbered.add(run)
    return 0 if newest is None else math.floor(newest) + 1


def is_recording() -> bool:
    """Return True while a callback records the training of its framework."""
    return bool(_open)


def is_ours(run: Run) -> bool:
    """Return True if a `Training` has numbered the generations of a run."""
    return run in _numbered


def several(steps: int | None, what: str) -> str | None:
    """Return a note that states the size of a generation, or None if a generation is a single step."""
    return None if steps is None or steps < 2 else f"a generation is {steps:,} {what}"


def _newest_generation(run: Run) -> float | None:
    return None if run._loop is None else run._loop.highest_number


T = TypeVar("T")

# Number of stack frames to search: the callback list calls a hook either directly or through the callback's base class.
_CALLERS: Final = 4


def calling(kind: type[T]) -> T | None:
    """Return the object of class ``kind`` that called the current hook, or None.

    Frameworks do not pass this object to callbacks, so the call stack is searched.
    """
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

    The list is replaced: the framework may be iterating over the old list, and the list may belong to the user. A last
    callback from earlier training is removed, because it would end this training before the user's newer callbacks have
    run.
    """
    others = [e for e in holder.callbacks if e is not first and not _is_replaced(e, last)]
    holder.callbacks = [first, *others] if last is None else [first, *others, last]


def _is_replaced(each: Any, last: Any) -> bool:
    if each is last or type(each) is not type(last):
        return each is last
    training = getattr(last, "_training", None)
    return training is not None and each._training is training


class Options(TypedDict, total=False):
    """Options that callbacks pass on to `leakline.init`. Units and phases are determined by the framework."""

    name: str | None
    id: str | None
    resume: str | bool | None
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
    scan_workers: bool | None


_NAMES: Final = frozenset({"project", *Options.__annotations__})


def checked(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """Check the options and replace the classes in ``watch`` by their names, so that no class is kept alive.

    Raises TypeError for an unknown argument and BadArgument for an invalid value.
    """
    for name in options:
        if name not in _NAMES:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}")
    return {**options, "watch": resolve(**options).watch}


def checked_steps(steps: object) -> int | None:
    """Return the number of steps per generation, or None for the framework's own unit. Raises BadArgument."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise BadArgument("steps", steps, "must be a whole number above zero")
    return steps


def missing(module: str, package: str, extra: str, error: ImportError) -> ImportError:
    """Return an error with the command that installs the framework, or ``error`` itself if another import failed."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] != package:
        return error
    return MissingPackage(f"leakline.integrations.{module}", package, f"leakline[{extra}]")
