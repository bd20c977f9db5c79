"""The training loop of this process, known from the calls that the program makes, and its generations and phases.

`plain_torch`, `compiled_functions` and `savers_and_loggers` replace functions that the program calls. They report to
the `Loop` of the process, which begins and ends generations and phases.

A generation is a pass over a data loader in which the program trains. A pass of a few seconds is divided into
PARTS generations, because a program may make too few such passes for a verdict. Each pass begins a generation, so that
an evaluation after the pass belongs to the last part. The budget does not cover a measurement after each part for long:
after FEW_EPOCHS passes, only whole passes are measured, each with the number that its last part would have.
If a pass takes longer than PASS_SECONDS, or if the program uses no data loader, a generation is a power of ten of
training steps, so that two runs of a program mostly get the same generations. A training step is a step of an
optimizer, a backward pass of a program that changes the weights itself, or a call of a compiled function that computes
gradients.
Phases: ``data`` (waiting for a batch), ``forward`` (from the batch to ``backward``), ``backward``, ``optimizer``,
``after_step`` (until the next batch or, without a loader, the next backward pass), ``evaluation``, ``checkpoint`` and
``logging``. In loops with steps shorter than SHORTEST_STEP_SECONDS, the first five are a single phase ``train``, which
includes what is logged during it.

A program that has not trained for STOPPED_SECONDS, and for as long as it has trained before, probably only uses its
model. Its generations are time intervals until it trains again, so that its memory is still judged.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from ..run import Phase, Run, active, current, start
from ..runtime.error_boundary import Guard
from ..settings import resolve
from .training import FEW_EPOCHS, PARTS, is_recording, next_number

# Passes that are expected to take longer are divided by optimizer steps; shorter ones into parts of SHORTEST_SECONDS.
PASS_SECONDS: Final = 20.0
# Steps are timed for this long before a pass is divided.
TIMED_SECONDS: Final = 2.0
# A pass after the first generation is divided if it has already taken so many times PASS_SECONDS.
MUCH_LONGER: Final = 3.0
# A generation of several steps takes at least this long.
SHORTEST_SECONDS: Final = 0.5
# The first steps take longer, because they allocate memory and compile; they are not timed.
UNTIMED_STEPS: Final = 3
# In shorter steps, the budget does not cover a measurement at the end of each phase. What one phase keeps would then be
# found at the end of another one.
SHORTEST_STEP_SECONDS: Final = 0.5
# The median of so many steps counts, because single steps wait for a heap scan or for an evaluation.
TIMED_STEPS: Final = 20
# A program that has not trained for so long may have stopped training, and has stopped after so long.
STOPPED_SECONDS: Final = 1_800.0
SURELY_STOPPED_SECONDS: Final = 6 * 3_600.0
OF_A_STEP: Final = frozenset({"data", "forward", "backward", "optimizer", "after_step"})


class Loop:
    """The training loop of this process, as far as it is known from the calls that the program has made."""

    def __init__(
        self, is_asked: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``is_asked`` returns True if the program itself has asked for this. Generations are then also found in a run
        that the program has started, and without a run the first training step starts one.
        """
        self._is_asked, self._clock = is_asked, clock
        self._guard = Guard("finding generations in the program's calls")
        self._has_started = False
        # True while torch compiles the functions that it calls.
        self.is_compiling: Callable[[], bool] = lambda: False
        # The thread of the first backward pass. Nothing is recorded before, or on other threads.
        self._thread: int | None = None
        # An exception of one of the program's callbacks, which has to reach the program.
        self._raised: Exception | None = None
        self._phase: tuple[Run, Phase, str] | None = None
        self._is_detailed = False
        # The number of generations so far, and of the newest one's optimizer steps; steps per generation, once they are
        # known to be several.
        self._generations = 0
        self._steps_in_generation, self._began = 0, 0.0
        self._each: int | None = None
        # Batches per generation, once the passes are divided into parts. Batches of the newest generation and of the
        # newest pass, and passes so far.
        self._part: int | None = None
        self._batches, self._batches_of_pass, self._passes = 0, 0, 0
        self._steps = 0
        self._has_optimizer = False
        # What a step is: one, and several.
        self._step = ("a backward pass", "backward passes")
        # When the first timed steps ended.
        self._ends: list[float] = []
        # The loader of each iterator, and the loaders whose batches were used for a backward pass.
        self._loaders: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        # The iterator of the pass that the generation is about, and whether it was read since another pass began.
        self._pass: weakref.ref[Any] | None = None
        self._is_read = False
        # The iterator of the newest batch, and the thread that has read it.
        self._newest: weakref.ref[Any] | None = None
        self._reader: int | None = None
        # The phase of what the program computes without training: after ``Module.eval`` or a call of a function that
        # does not train, until it trains again.
        self._evaluates = ""
        # Nested calls that save, nested calls that log, and the phase that the outermost one of these has interrupted.
        self._saves, self._logs, self._interrupted = 0, 0, ""
        # When the first and the newest step were taken, and whether the program has stopped training since.
        self._first_trained_at: float | None = None
        self._trained_at = 0.0
        self._has_stopped = False

    def report(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call one of the methods below. Raise only what one of the program's own callbacks has raised."""
        with self._guard:
            call(*arguments)
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error

    def around(
        self, before: Callable[[], None], after: Callable[[], None] | None = None
    ) -> Callable[[Any], Any]:
        """Return a function that wraps another function, whose calls then report when they begin and have ended."""

        def replaced(function: Any) -> Any:
            @functools.wraps(function)
            def reported(*args: Any, **kwargs: Any) -> Any:
                if self.is_compiling():
                    return function(*args, **kwargs)
                try:
                    self.report(before)
                    return function(*args, **kwargs)
                finally:
                    if after is not None:
                        self.report(after)

            return reported

        return replaced

    def begins_pass(self, loader: Any) -> None:
        if (run := self._recorded()) is not None and loader in self._trained:
            self._begin_pass(run, loader)
            self._enter(run, "data")

    def began_pass(self, loader: Any, iterator: Any) -> None:
        self._loaders[iterator] = weakref.ref(loader)
        if self._pass is None and loader in self._trained:
            self._pass = weakref.ref(iterator)

    def fetches(self, iterator: Any, has_gradients: bool) -> None:
        if (run := self._recorded()) is not None:
            trains = self._trains(iterator, has_gradients)
            self._enter(run, "data" if trains else self._evaluates or "evaluation")

    def fetched(self, iterator: Any, has_gradients: bool) -> None:
        is_of_pass = self._pass is not None and self._pass() is iterator
        if self._thread in (None, threading.get_ident()):
            self._newest, self._reader = weakref.ref(iterator), threading.get_ident()
            self._is_read |= is_of_pass
        if (run := self._recorded()) is not None:
            if is_of_pass:
                self._count_batch(run)
            trains = self._trains(iterator, has_gradients)
            self._enter(run, "forward" if trains else self._evaluates or "evaluation")

    def ended_pass(self, iterator: Any) -> None:
        if self._recorded() is not None:
            self._leave()
            if self._pass is not None and self._pass() is iterator:
                self._pass = None
            self._newest = None

    def evaluates(self) -> None:
        if (run := self._recorded()) is not None:
            self._evaluates = "evaluation"
            # Without a loader, only this shows where an evaluation begins. The next backward pass ends it.
            if self._newest is None and self._generations:
                self._enter(run, "evaluation")

    def is_in(self, phase: str) -> bool:
        current = self._phase
        return current is not None and current[2] == phase

    def computes(self, phase: str) -> None:
        """Note a call of a function that does not train, which takes long enough to be a phase."""
        if (run := self._recorded()) is not None and self._generations:
            self._evaluates = phase
            self._enter(run, phase)

    def begins_step(self) -> None:
        """Note a call of a function that computes gradients, and may change the weights as well."""
        self._step = ("a training step", "training steps")
        self.goes_backward("train")

    def goes_backward(self, phase: str = "backward") -> None:
        run = self._recorded(begins=True)
        if run is None:
            return
        self._note_training()
        self._evaluates = ""
        if self._reader != self._thread:
            self._newest = None
        iterator = None if self._newest is None else self._newest()
        loader = self._loader_of(iterator)
        if loader is not None and loader not in self._trained:
            self._trained.add(loader)
            self._begin_pass(run, loader)
            self._pass = self._pass or self._newest
        elif not self._generations:
            self._begin(run)
        self._enter(run, phase)

    def went_backward(self) -> None:
        if not self._has_optimizer:
            self.stepped()

    def makes_optimizer(self) -> None:
        self._has_optimizer, self._step = True, ("an optimizer step", "optimizer steps")

    def steps(self) -> None:
        self.makes_optimizer()
        if (run := self._recorded()) is not None:
            self._enter(run, "optimizer")

    def stepped(self) -> None:
        run = self._recorded()
        if run is None:
            return
        # A captured graph takes steps without backward passes.
        self._note_training()
        self._steps += 1
        self._steps_in_generation += 1
        self._time_steps(run)
        if self._each is not None and self._steps_in_generation >= self._each:
            self._begin(run)
        self._enter(run, "after_step")

    def saves(self) -> None:
        if self._thread != threading.get_ident():
            return
        self._saves += 1
        run = self._recorded()
        if self._saves == 1 and run is not None and self._generations:
            self._enter(run, "checkpoint")

    def saved(self) -> None:
        if self._thread != threading.get_ident() or not self._saves:
            return
        self._saves -= 1
        if not self._saves and self._phase is not None and self._phase[2] == "checkpoint":
            self._leave()

    def logs(self) -> None:
        if self._thread != threading.get_ident():
            return
        self._logs += 1
        run = self._recorded()
        if self._logs > 1 or run is None or not self._generations:
            return
        # In loops with short steps, a line that is logged does not end a phase, because each step may log one.
        if self._phase is None or self._is_detailed:
            self._interrupted = "" if self._phase is None else self._phase[2]
            self._enter(run, "logging")

    def logged(self) -> None:
        if self._thread != threading.get_ident() or not self._logs:
            return
        self._logs -= 1
        if self._logs or self._phase is None or self._phase[2] != "logging":
            return
        run = self._phase[0]
        self._leave()
        if self._interrupted:
            self._enter(run, self._interrupted)

    def _run(self, begins: bool) -> Run | None:
        """Return the run whose generations are found here, if there is one. ``begins``: start one if asked."""
        own = active()
        if is_recording() or (own is not None and not self._is_asked()):
            return None
        found = current()
        is_missing = own is None and found._loop is None
        if is_missing and begins and self._is_asked() and not self._has_started:
            self._has_started, found = True, start(resolve(unit="generation"))
        return found if found._loop is not None else None

    def _recorded(self, *, begins: bool = False) -> Run | None:
        """Return the run, or None on other threads than the one that trains. ``begins``: this thread trains."""
        thread = threading.get_ident()
        if self._thread != thread and not (begins and self._thread is None):
            return None
        run = self._run(begins)
        if run is not None:
            self._thread = thread
        elif self._phase is not None:
            self._leave()
        return run

    def _note_training(self) -> None:
        self._trained_at = self._clock()
        if self._first_trained_at is None:
            self._first_trained_at = self._trained_at
        if self._has_stopped:
            # Time the steps again, because the pause is not part of any step.
            self._has_stopped, self._steps, self._began = False, 0, self._trained_at
            self._ends.clear()

    def _stopped(self, run: weakref.ref[Run]) -> bool:
        """Return True if the program has stopped training. Called on another thread."""
        trained = self._trained_at - (self._first_trained_at or 0.0)
        seconds = min(max(trained, STOPPED_SECONDS), SURELY_STOPPED_SECONDS)
        # An evaluation keeps its results until it has read all batches.
        is_reading = self._newest is not None and self._newest() is not None
        if self._clock() - self._trained_at < seconds or is_reading:
            return False
        if self._has_stopped:
            self._leave()
        elif (found := run()) is not None:
            self._has_stopped = True
            found.note(
                f"the program has not trained for {seconds / 60:.0f} minutes; until it does, a generation is a minute"
            )
        return True

    def _trains(self, iterator: Any, has_gradients: bool) -> bool:
        loader = self._loader_of(iterator)
        is_known = loader is not None and loader in self._trained
        return has_gradients and (is_known or not self._evaluates)

    def _loader_of(self, iterator: Any) -> Any:
        found = None if iterator is None else self._loaders.get(iterator)
        return None if found is None else found()

    def _begin_pass(self, run: Run, loader: Any) -> None:
        """Begin a generation, unless another loader is being read (as with ``zip``) or the generation has no step."""
        before = None if self._pass is None else self._loader_of(self._pass())
        if before is not None and before is not loader and self._is_read:
            # The other pass may have been left without its end; then it will not be read again.
            self._is_read = False
            return
        self._pass = None
        if not self._generations:
            self._begin(run)
        elif self._each is None and self._steps_in_generation:
            if self._generations == 1 and self._part is None:
                run.note("a generation is a pass over a data loader, found in the program's calls")
            self._passes += 1
            # A pass may be shorter than its loader, so the parts of the pass before are expected.
            parts = math.ceil(self._batches_of_pass / self._part) if self._part else 1
            self._begin(run, max(1, parts) if self._is_whole() else 1)
            self._batches_of_pass = 0

    def _is_whole(self) -> bool:
        """Return True if passes were divided, but are measured as a whole from now on."""
        return self._part is not None and self._passes >= FEW_EPOCHS

    def _count_batch(self, run: Run) -> None:
        """Count a batch of the pass, and begin the next part of the pass with it if the newest part is complete."""
        is_complete = self._part is not None and self._batches >= self._part
        if is_complete and self._steps_in_generation and not self._is_whole():
            self._begin(run)
        self._batches += 1
        self._batches_of_pass += 1

    def _begin(self, run: Run, parts: int = 1) -> None:
        """Begin a generation, unless the program numbers its generations itself. It has the number of its last part."""
        self._leave()
        self._generations += 1
        self._steps_in_generation, self._batches, self._began = 0, 0, self._clock()
        number = next_number(run)
        if number is not None:
            if run._loop is not None:
                run._loop.has_stopped = functools.partial(self._stopped, weakref.ref(run))
            try:
                run.generation(number + parts - 1)
            except Exception as error:  # noqa: BLE001 - raised to the program outside of our error boundary
                self._raised = error

    def _time_steps(self, run: Run) -> None:
        """Decide, after the first steps, whether phases are recorded in detail and how many steps are a generation."""
        timed = self._steps - UNTIMED_STEPS
        if 0 <= timed <= TIMED_STEPS:
            self._ends.append(self._clock())
        if timed == TIMED_STEPS:
            step = statistics.median(b - a for a, b in pairwise(self._ends))
            self._is_detailed = step >= SHORTEST_STEP_SECONDS
        if timed == 0:
            # From here on, the batches are timed as well.
            self._batches = 0
        if timed < 1 or self._each is not None:
            return
        if self._generations > 1:
            timed, seconds = self._steps_in_generation, self._clock() - self._began
            is_long = seconds > MUCH_LONGER * PASS_SECONDS
        else:
            seconds = self._clock() - self._ends[0]
            if seconds <= TIMED_SECONDS or self._part is not None:
                return
            length = self._pass_length()
            expected = length * seconds / max(1, self._batches)
            is_long = expected > PASS_SECONDS
            if not is_long and length >= PARTS and expected >= PARTS * SHORTEST_SECONDS:
                self._part = math.ceil(length / PARTS)
                parts = math.ceil(length / self._part)
                run.note(
                    f"a generation is 1/{parts} of a pass over a data loader, found in the program's calls; after"
                    f" {FEW_EPOCHS} passes, only whole passes are measured"
                )
        if is_long:
            self._part = None
            each = max(0, math.ceil(math.log10(SHORTEST_SECONDS * timed / seconds)))
            self._each = 10**each
            one, many = self._step
            what = f"{self._each:,} {many}" if each else one
            run.note(f"a generation is {what}, found in the program's calls")

    def _pass_length(self) -> float:
        """Return the batches of the pass, or infinity if the program uses no loader or one of unknown length."""
        if self._pass is None and self._trained:
            # The program has read the last batch ahead, as Accelerate does.
            return 0.0
        try:
            return len(self._loader_of(None if self._pass is None else self._pass()))
        except TypeError:
            return math.inf

    def _enter(self, run: Run, name: str) -> None:
        """Begin a phase. The program's own phases win: none begins inside them."""
        if not self._is_detailed and name in OF_A_STEP:
            name = "train"
        if self._phase is not None and self._phase[2] == name and self._phase[0] is run:
            return
        self._leave()
        if run._loop is not None and run._loop.phase is None:
            self._phase = run, run.phase(name).__enter__(), name
            run._found_phase = self._leave

    def _leave(self) -> None:
        before, self._phase = self._phase, None
        if before is not None:
            before[0]._found_phase = None
            before[1].__exit__(None, None, None)


def replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replace a function where it is used, and where it is defined, because pickle looks there.

    A package may offer a function of one of its modules as its own.
    """
    before = getattr(owner, name)
    after = around(before)
    home, _, _ = before.__module__.partition(".")
    for holder in (owner, sys.modules.get(before.__module__), sys.modules.get(home)):
        if getattr(holder, name, None) is before:
            setattr(holder, name, after)
