"""Finds generations and phases in training loops that are written in plain PyTorch, for programs without callbacks.

`watch` replaces the functions that each training loop calls: iterating over a `DataLoader`, ``backward``,
``Optimizer.step``, ``Module.eval`` and ``torch.save``. The original functions do all of the work.

A generation is a pass over a data loader for which gradients are computed. A pass of a few seconds is divided into
PARTS generations, because a program may make too few such passes for a verdict. Each pass begins a generation, so that
an evaluation after the pass belongs to the last part. The budget does not cover a measurement after each part for long:
after FEW_EPOCHS passes, only whole passes are measured, each with the number that its last part would have.
If a pass takes longer than PASS_SECONDS, or if the program uses no data loader, a generation is a power of ten of
optimizer steps, so that two runs of a program mostly get the same generations. A program without an optimizer changes
the weights itself: its backward passes count as steps.
Phases: ``data`` (waiting for a batch), ``forward`` (from the batch to ``backward``), ``backward``, ``optimizer``,
``after_step`` (until the next batch or, without a loader, the next backward pass), ``evaluation``, ``checkpoint`` and
``logging``. In loops with steps shorter than SHORTEST_STEP_SECONDS, the first five are a single phase ``train``, which
includes what is logged during it.

A program that has not trained for STOPPED_SECONDS, and for as long as it has trained before, probably only uses its
model. Its generations are time intervals until it trains again, so that its memory is still judged.
"""

from __future__ import annotations

import functools
import inspect
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
_OF_A_STEP: Final = frozenset({"data", "forward", "backward", "optimizer", "after_step"})
# Functions besides ``torch.save`` that write a checkpoint, by module.
SAVERS: Final = {
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint": ("save",),
}
# The class ("": the module itself) and the prefix of the functions that log metrics, by module.
LOGGERS: Final = {
    "torch.utils.tensorboard.writer": ("SummaryWriter", "add_"),
    "tensorboardX.writer": ("SummaryWriter", "add_"),
    "wandb.sdk.wandb_run": ("Run", "log"),
    "mlflow.tracking.fluent": ("", "log_"),
}
# Makes a function that writes a checkpoint report this, once torch is watched.
_saving: Callable[[Any], Any] | None = None
# Reports the begin (True) and the end of a call that logs, once torch is watched.
_report_logging: Callable[[bool], None] | None = None


class Loop:
    """The training loop of this process, as far as it is known from the calls that the program has made."""

    def __init__(self, run: Callable[[bool], Run | None], clock: Callable[[], float]) -> None:
        self._run, self._clock = run, clock
        # The thread of the first backward pass. Nothing is recorded before, or on other threads.
        self._thread: int | None = None
        # An exception of one of the program's callbacks, which has to reach the program.
        self.raised: Exception | None = None
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
        # True after ``Module.eval`` until the next backward pass.
        self._evaluates = False
        # Nested calls that log, and the phase that the outermost one has interrupted.
        self._logs, self._interrupted = 0, ""
        # When the first and the newest step were taken, and whether the program has stopped training since.
        self._first_trained_at: float | None = None
        self._trained_at = 0.0
        self._has_stopped = False

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
            self._enter(run, "data" if self._trains(iterator, has_gradients) else "evaluation")

    def fetched(self, iterator: Any, has_gradients: bool) -> None:
        is_of_pass = self._pass is not None and self._pass() is iterator
        if self._thread in (None, threading.get_ident()):
            self._newest, self._reader = weakref.ref(iterator), threading.get_ident()
            self._is_read |= is_of_pass
        if (run := self._recorded()) is not None:
            if is_of_pass:
                self._count_batch(run)
            self._enter(run, "forward" if self._trains(iterator, has_gradients) else "evaluation")

    def ended_pass(self, iterator: Any) -> None:
        if self._recorded() is not None:
            self._leave()
            if self._pass is not None and self._pass() is iterator:
                self._pass = None
            self._newest = None

    def evaluates(self) -> None:
        if (run := self._recorded()) is not None:
            self._evaluates = True
            # Without a loader, only this shows where an evaluation begins. The next backward pass ends it.
            if self._newest is None and self._generations:
                self._enter(run, "evaluation")

    def goes_backward(self) -> None:
        run = self._recorded(begins=True)
        if run is None:
            return
        self._note_training()
        self._evaluates = False
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
        self._enter(run, "backward")

    def went_backward(self) -> None:
        if not self._has_optimizer:
            self.stepped()

    def makes_optimizer(self) -> None:
        self._has_optimizer = True

    def steps(self) -> None:
        self._has_optimizer = True
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
        if (run := self._recorded()) is not None and self._generations:
            self._enter(run, "checkpoint")

    def saved(self) -> None:
        if self._phase is not None and self._phase[2] == "checkpoint":
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
                self.raised = error

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
            one, many = (
                ("an optimizer step", "optimizer steps")
                if self._has_optimizer
                else ("a backward pass", "backward passes")
            )
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
        if not self._is_detailed and name in _OF_A_STEP:
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


def watch(is_asked: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
    """Replace the functions of torch, which has been imported.

    ``is_asked`` returns True if the program itself has asked for this. Generations are then also found in a run that
    the program has started, and without a run the first backward pass starts one.
    """
    started = False

    def run(begins: bool) -> Run | None:
        nonlocal started
        own = active()
        if is_recording() or (own is not None and not is_asked()):
            return None
        found = current()
        if own is None and found._loop is None and begins and is_asked() and not started:
            started, found = True, start(resolve(unit="generation"))
        return found if found._loop is not None else None

    guard = Guard("finding generations in PyTorch")
    with guard:
        _replace(Loop(run, clock), guard)


def watch_saving(module: str) -> None:
    """Replace the functions of SAVERS in this module, which has been imported."""
    with Guard("finding checkpoints"):
        if _saving is not None:
            for name in SAVERS[module]:
                _set(sys.modules[module], name, _saving)


def watch_logging(module: str) -> None:
    """Replace the functions of LOGGERS in this module, which has been imported, perhaps before torch."""
    with Guard("finding what is logged"):
        owner, prefix = LOGGERS[module]
        holder = getattr(sys.modules[module], owner) if owner else sys.modules[module]
        for name, function in list(vars(holder).items()):
            if name.startswith(prefix) and inspect.isfunction(function):
                _set(holder, name, _logging)


def _logging(function: Any) -> Any:
    @functools.wraps(function)
    def reported(*args: Any, **kwargs: Any) -> Any:
        report = _report_logging
        if report is None:
            return function(*args, **kwargs)
        report(True)
        try:
            return function(*args, **kwargs)
        finally:
            report(False)

    return reported


def _set(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replace a function where it is used, and where it is defined, because pickle looks there.

    A package may offer a function of one of its modules as its own.
    """
    before = getattr(owner, name)
    after = around(before)
    home, _, _ = before.__module__.partition(".")
    for holder in (owner, sys.modules.get(before.__module__), sys.modules.get(home)):
        if getattr(holder, name, None) is before:
            setattr(holder, name, after)


def _replace(loop: Loop, guard: Guard) -> None:
    global _saving, _report_logging
    torch: Any = sys.modules["torch"]
    loaders: Any = sys.modules["torch.utils.data.dataloader"]
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    compiling: Callable[[], bool] = torch.compiler.is_compiling
    has_gradients: Callable[[], bool] = torch.is_grad_enabled

    def report(call: Callable[..., None], *arguments: Any) -> None:
        with guard:
            call(*arguments)
        if loop.raised is not None:
            error, loop.raised = loop.raised, None
            raise error

    def begins(method: Any) -> Any:
        @functools.wraps(method)
        def begins_pass(self: Any) -> Any:
            report(loop.begins_pass, self)
            iterator = method(self)
            report(loop.began_pass, self, iterator)
            return iterator

        return begins_pass

    def makes(method: Any) -> Any:
        # A loader of another package may not call the ``__iter__`` of torch.
        @functools.wraps(method)
        def makes_iterator(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            report(loop.begins_pass, loader)
            method(self, loader, *args, **kwargs)
            report(loop.began_pass, loader, self)

        return makes_iterator

    def fetches(method: Any) -> Any:
        @functools.wraps(method)
        def fetches_batch(self: Any) -> Any:
            report(loop.fetches, self, has_gradients())
            try:
                batch = method(self)
            except StopIteration:
                report(loop.ended_pass, self)
                raise
            report(loop.fetched, self, has_gradients())
            return batch

        return fetches_batch

    def first(before: Callable[[], None], after: Callable[[], None] | None = None) -> Any:
        def around(function: Any) -> Any:
            @functools.wraps(function)
            def reported(*args: Any, **kwargs: Any) -> Any:
                # The compiler inlines this function, and must find nothing of ours in it.
                if compiling():
                    return function(*args, **kwargs)
                report(before)
                try:
                    return function(*args, **kwargs)
                finally:
                    if after is not None:
                        report(after)

            return reported

        return around

    def before_step(*_: Any) -> None:
        if not compiling():
            report(loop.steps)

    def after_step(*_: Any) -> None:
        if not compiling():
            report(loop.stepped)

    def logging(begins: bool) -> None:
        if not compiling():
            report(loop.logs if begins else loop.logged)

    _saving, _report_logging = first(loop.saves, loop.saved), logging
    for owner, name, around in (
        (loaders.DataLoader, "__iter__", begins),
        (loaders._BaseDataLoaderIter, "__init__", makes),
        (loaders._BaseDataLoaderIter, "__next__", fetches),
        (torch.autograd, "backward", first(loop.goes_backward, loop.went_backward)),
        (optimizers.Optimizer, "__init__", first(loop.makes_optimizer)),
        (torch.nn.Module, "eval", first(loop.evaluates)),
        (torch, "save", _saving),
    ):
        _set(owner, name, around)
    optimizers.register_optimizer_step_pre_hook(before_step)
    optimizers.register_optimizer_step_post_hook(after_step)
