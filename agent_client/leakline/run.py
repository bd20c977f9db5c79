"""init() and Run, the API for training loops.

Every call has an error boundary. After init, a call raises only if an argument is invalid or a callback registered
with `on` raises. A Run without a loop does nothing: `current()` returns such a run before init, ``mode="disabled"``
creates such a run, and a run loses its loop when it finishes and in a forked child.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, TypeVar

from . import console
from .actions import callbacks
from .actions.cleanups import Before
from .core import declarations, exit_status, shutdown
from .core.phase_accounting import RESERVED_PHASES, Frame
from .core.pipeline import OF_ITS_OWN, Chain, Subject
from .core.process_tree import announce, in_worker, take_back
from .core.training_loop import Loop
from .runtime.error_boundary import Guard
from .settings import NAME_LIMIT, Settings, resolve
from .text_format import printable

P = ParamSpec("P")
R = TypeVar("R")

_active: Run | None = None


def init(
    project: str | None = None,
    *,
    name: str | None = None,
    id: str | None = None,
    resume: str | bool | None = None,
    unit: str | None = None,
    total: int | None = None,
    watch: Iterable[type | str] | None = None,
    phases: Iterable[str] | None = None,
    config: Any = None,
    tags: Iterable[str] | None = None,
    server: str | None = None,
    mode: str | None = None,
    quiet: bool | None = None,
    directory: str | os.PathLike[str] | None = None,
    exact_peaks: bool | None = None,
    log_lines: bool | None = None,
    log_every: int | None = None,
    allocations: bool | None = None,
    scan_workers: bool | None = None,
) -> Run:
    """Start a run. A run that is still active in this process is finished first.

    ``id``: the run to start or resume (``LEAKLINE_RUN_ID``). ``resume``: "must" if it has to exist, "never" if it has
    to be new, otherwise "allow" (or "auto", True). If the server refuses, only the spool is written.
    ``unit``: what messages call a generation: generation, episode, epoch or step. By default, the first call decides,
    such as ``run.epoch(0)``. ``watch``: classes (or their names) whose instances are counted exactly. ``phases``: names
    of expected phases, so that one that never runs is shown as well. ``total``: planned number of generations.
    ``directory``: folder of the spool (``LEAKLINE_DIR``, default ``.leakline``). ``mode``: online, offline (spool only)
    or disabled. ``exact_peaks``: reset the kernel's high-water mark of this process after each reading, to record even
    the shortest peak. ``log_lines``: send the newest 50 lines that this process prints and logs, to explain a crash.
    ``log_every``: every N generations, log a line to stderr with memory, the counts of ``watch``, growth and the newest
    verdict. ``allocations``: once a leak is suspected, trace for one generation which source lines allocate the
    retained memory; tracing slows the program down. ``scan_workers``: name what grows in worker processes, with the
    signal SIGURG. Arguments take precedence over ``LEAKLINE_*`` variables.

    Raises BadArgument with the name, value and source of an invalid setting.
    """
    settings = resolve(
        project=project, name=name, id=id, resume=resume, unit=unit, total=total, watch=watch, phases=phases,
        config=config, tags=tags, server=server, mode=mode, quiet=quiet, directory=directory, exact_peaks=exact_peaks,
        log_lines=log_lines, log_every=log_every, allocations=allocations,
        scan_workers=scan_workers,
    )  # fmt: skip
    # Drop the caller's list: instances are counted by the references to their class, and the list holds a reference to
    # each class.
    del watch
    return start(settings)


def start(settings: Settings) -> Run:
    """Start a run with resolved settings. Framework callbacks call this function, because they adapt some settings."""
    global _active
    subject = OF_ITS_OWN
    if _active is not None:
        subject = Subject(is_announced=_active._has_announced(settings))
        settings = _active._make_way(settings)
    run = Run()
    if settings.mode == "disabled":
        if _active is not None:
            # `leakline run` started the active run, and its user wants the recording, so that run continues. The
            # program gets a run that does nothing and costs nothing.
            return run
        # The program disabled Leakline. Make this run the active run, so that callbacks do not start another run.
        _active = run
    elif not in_worker():
        with run._guard:
            run._start(settings, subject)
            _active = run
    return run


def current() -> Run:
    """Return the active run, or a run that does nothing, so that library code can always call its methods."""
    return _active if _active is not None else _NOTHING


def observe(run: Run, settings: Settings, subject: Subject) -> None:
    """Start a run for a program that does not call Leakline. Nothing is sent until the run is released."""
    global _active
    with run._guard:
        run._start(settings, subject, held=True)
        _active = run


def active() -> Run | None:
    """Return the run that the program itself started, or None. The run may be disabled."""
    return None if _active is None or _active._is_of_others else _active


class Run:
    """One process's part of a run, created by `init`."""

    # True for a run that the program did not start. Such a run gives way to a run that the program starts later.
    _is_of_others = False
    # Whether a signal handler catches SIGTERM. Python runs handlers only between bytecodes of the main thread.
    _hears_signals = True
    # Whether an environment variable announces the run to child processes.
    _announces = True

    def __init__(self) -> None:
        self._guard = Guard("measuring")
        self._chain: Chain
        self._loop: Loop | None = None
        self._settings: Settings | None = None
        self._end: tuple[str, str] | None = None
        # True if SIGTERM arrived and the program's own handler let the program continue.
        self._goes_on = False
        # The id() of the exception that left the newest phase or generation. That exception is not reported again at
        # exit.
        self._reported: int | None = None
        self._finishing = shutdown.Once()
        # True in a forked child, where the run's resources belong to the parent.
        self._forgotten = False
        # Ends the open phase that was found in the program's calls, because the program's own phases win.
        self._found_phase: Callable[[], None] | None = None

    # -- public API -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The run's id, used in its URL and its spool folder; empty for a run that does nothing."""
        return "" if self._settings is None else self._settings.run_id

    @property
    def name(self) -> str:
        """The run's readable name; empty for a run that does nothing."""
        return "" if self._settings is None else self._chain.header.name

    @property
    def url(self) -> str:
        """The URL of this run's dashboard page; empty for a run that does nothing."""
        return "" if self._settings is None else self._settings.url

    def generation(self, number: int) -> Generation:
        """Start a generation and end the previous one. Also a context manager: ``with run.generation(g): ...``.

        If the number was used before (a rerun notebook cell, a second loop), numbering continues after the newest
        generation, with a single warning. Passing the number of the current generation has no effect.
        """
        return self._begin(number)

    def episode(self, number: int) -> Generation:
        """Start a generation; same as `generation`, but messages say "episode"."""
        return self._begin(number, "episode")

    def epoch(self, number: int) -> Generation:
        """Start a generation; same as `generation`, but messages say "epoch"."""
        return self._begin(number, "epoch")

    def step(self, number: int) -> Generation:
        """Start a generation; same as `generation`, but messages say "step"."""
        return self._begin(number, "step")

    def phase(self, name: str) -> Phase:
        """Return a named part of a generation: ``with run.phase("train"): ...`` or ``@run.phase("train")``.

        Phases can be nested. A snapshot is taken at the end of each phase. Memory changes during a phase are
        attributed to that phase.
        """
        return Phase(self, name)

    def snapshot(self, label: str, *, show: bool = False) -> None:
        """Take a snapshot now, with any label.

        ``show``: also print the snapshot to standard error in the format of a report: memory, GPU memory and counts.
        For values that this snapshot did not measure, the newest known values are printed. Quiet runs and ranks other
        than 0 print nothing.
        """
        if (loop := self._loop) is not None:
            with self._guard:
                if show and self._chain.banner is not None:
                    self._chain.banner.ask()
                loop.manual(_clean(label))

    def expect(
        self,
        target: type | str,
        count: int | tuple[int, int] | Literal["baseline"],
        after: str | None = None,
    ) -> None:
        """Declare the expected number of instances of a class: a number or a range ``(low, high)``.

        ``"baseline"`` sets the maximum to the number of instances at the end of the first generation. ``after`` limits
        the check to the end of that phase. Raises BadArgument.
        """
        if (loop := self._loop) is not None:
            wanted, data = declarations.expectation(target, count, after)
            with self._guard:
                loop.expect(wanted, data)

    def track(self, name: str, target: Any, capacity: int | None = None) -> None:
        """Record the length of a container, or of the container that a function returns. Raises BadArgument."""
        if (loop := self._loop) is not None:
            checked, limit = declarations.tracked(name, target, capacity)
            with self._guard:
                loop.track(checked, target, limit)

    def gauge(self, name: str, value: float, warn_above: float | None = None) -> None:
        """Record the current value of a number other than memory. Raises BadArgument.

        A value above ``warn_above`` breaks an expectation.
        """
        if (loop := self._loop) is not None:
            checked, number, limit = declarations.gauged(name, value, warn_above)
            with self._guard:
                loop.gauge(checked, number, limit)

    def cleanup(self, name: str) -> Cleanup:
        """Measure how much memory a cleanup frees: ``with run.cleanup("agent"): ...``, or as a decorator."""
        return Cleanup(self, name)

    def register_cleanup(
        self,
        name: str,
        function: Callable[[], object],
        *,
        on_request: bool = True,
        when: str | tuple[str, float] | None = None,
    ) -> None:
        """Register a cleanup. It runs on the training thread between two phases, and the freed memory is reported.

        ``on_request``: users may trigger the cleanup from the run's page, but not while the run is quiet. ``when``:
        trigger the cleanup automatically once the verdict reaches a status ("suspected" or "confirmed"), or while a
        series is above a limit: ("gauge.tensors", 500). While the condition holds, the cleanup runs again after 8
        generations, then 16, then 32. Exceptions in the function are reported and not raised. Registering the same name
        again replaces the function. Raises BadArgument.
        """
        if (loop := self._loop) is not None:
            cleanup = declarations.registered(name, function, on_request, when)
            self._chain.cleanups.check_room(cleanup.name)
            with self._guard:
                self._chain.cleanups.register(cleanup)
                if isinstance(cleanup.when, tuple):
                    loop.watch(declarations.counted_class(cleanup.when[0]))
                elif cleanup.when is not None:
                    self._chain.follow_verdict()

    def find_holders(self, target: type | str) -> None:
        """At the next phase end, search for the names that keep instances of a class alive. Raises BadArgument."""
        if self._loop is not None:
            wanted = declarations.searched(target)
            with self._guard:
                self._chain.requests.ask("find_holders", wanted)

    def census(self) -> None:
        """Count all objects by type at the next phase end."""
        if self._loop is not None:
            with self._guard:
                self._chain.requests.ask("census")

    def mark(self, name: str) -> None:
        """Mark an event on the charts."""
        self._declare("mark", name, dict)

    def note(self, text: str, link: str | None = None) -> None:
        """Show a text next to the charts, optionally with a link."""
        self._declare("note", "note", lambda: declarations.note_data(text, link))

    def band(
        self,
        series: str,
        span: tuple[int, int | None],
        low: float | str | None = None,
        high: float | str | None = None,
    ) -> None:
        """Declare the planned range of ``series`` for the generations in ``span``, both ends included.

        ``(11, None)`` lasts until the end of the run. A bound is a number in the unit of the series, or a size such
        as "30 GiB".
        """
        self._declare("band", series, lambda: declarations.band_data(span, low, high))

    def budget(
        self, phase: str, normal: float | str | None = None, leak: float | str | None = None
    ) -> None:
        """Declare that growth up to ``normal`` is acceptable and growth of ``leak`` or more is a leak.

        ``phase`` is the name of a phase (growth per generation), "generation" (growth of the entire run per
        generation) or "run" (growth since the run began).
        """
        self._declare("budget", phase, lambda: declarations.budget_data(normal, leak))

    def fix(
        self,
        name: str,
        phase: str | None = None,
        location: str | None = None,
        promises: Mapping[str, Any] | None = None,
        rejected: str | None = None,
    ) -> None:
        """Declare a fix that this run contains and its promises, which are checked on this run. Raises BadArgument.

        The effect of the fix is measured by comparing the generations before and after the fix, or this run with a run
        without the fix. The fix covers the classes whose counts it promises and the ``phase`` it names, or the entire
        run if it names neither. ``rejected``: the rejected alternative and the reason for rejecting it, shown with the
        fix.

        ``promises``: ``growth_bytes_per_generation``, ``phase_growth_bytes_per_generation``, ``peak_bytes``,
        ``gpu_peak_bytes`` and ``max_jump_bytes_per_generation``, in bytes or as "500 MiB"; ``generations``, the number
        that the run completes; ``possible_generations``, the number that fits into memory; ``count:package.Class``, the
        maximum number of instances alive at the end of a generation.
        """
        if (loop := self._loop) is not None:
            data = declarations.fix_data(phase, location, promises, rejected)
            with self._guard:
                loop.note("fix", _clean(name), data)
                loop.watch(declarations.promised_classes(data))

    def on(self, event: str, callback: Callable[[Any], object]) -> None:
        """Call ``callback(verdict)`` in this process when the verdict changes as ``event`` describes.

        ``event``: a status of the run ("suspected" includes worse statuses), or an alert event:
        "incident.suspected", "incident.confirmed", "incident.recovered", "oom.risk" or "contract.violated", each
        about one finding or forecast. The callback runs once per change, on the training thread, at the end of a
        generation (usually the generation after the change) or in `finish`. Its exceptions propagate to the caller.
        Raises BadArgument for any other event.
        """
        if self._loop is not None:
            callbacks.check(event, callback)
            with self._guard:
                self._chain.follow_verdict()
                self._chain.verdicts.add(event, callback)

    def report(self) -> str:
        """Return the report as text: snapshot, trend, growth, large objects, verdict. Empty if nothing was recorded."""
        if self._settings is None or self._forgotten:
            return ""
        text = ""
        with self._guard:
            if (spool := self._written_spool()) is not None:
                from .report import report_text

                text = report_text(spool)
        return text

    def _repr_html_(self) -> str | None:
        """Return the first screen of the run's page for a notebook, or None if nothing was recorded."""
        if self._settings is None or self._forgotten:
            return None
        text = None
        with self._guard:
            if (spool := self._written_spool()) is not None:
                from .report import load
                from .report.html_fragment import html_fragment

                link = self.url if self._settings.mode == "online" else ""
                text = html_fragment(load([spool]), link)
        return text

    def _written_spool(self) -> Path | None:
        """Return the spool with everything recorded so far, or None if it could not be written."""
        if self._loop is not None:
            self._chain.flush()
        return self._chain.spool_path

    def finish(self) -> None:
        """End the run: take a last snapshot, send pending data (for at most 2 s) and print the verdict. Idempotent.

        Callbacks of `on` that the latest verdict triggers are called first. The run also ends if a callback raises.
        """
        end = ("finished", "") if self._goes_on or self._end is None else self._end
        try:
            if self._loop is not None:
                self._call_back(last=True)
        finally:
            self._finish(end)

    # -- called by blocks and shutdown hooks ----------------------------------------------------------

    def _begin(self, number: int, unit: str | None = None) -> Generation:
        if (loop := self._loop) is not None:
            exit_status.forget_caught()
            with self._guard:
                if unit is not None:
                    self._chain.call_generations(unit)
                loop.start_generation(number)
            self._call_back()
            self._clean_up()
        return Generation(self)

    def _end_generation(self, error: BaseException | None) -> None:
        if (loop := self._loop) is not None:
            self._reported = None
            if error is not None:
                self._note_exception(error)
            with self._guard:
                loop.end_generation(error)
            self._call_back()
            if error is None:
                self._clean_up()

    def _note_exception(self, error: BaseException) -> None:
        """Remember an exception that leaves a phase or a generation, because it may end the program."""
        self._reported = id(error)
        exit_status.note(error)

    def _call_back(self, *, last: bool = False) -> None:
        """Call the callbacks registered with `on` if the verdict has changed. Their exceptions propagate."""
        verdicts = self._chain.verdicts
        if not verdicts.follows:
            return
        with self._guard:
            verdicts.conclude() if last else verdicts.examine()
        for callback, verdict in verdicts.due():
            callback(verdict)

    def _clean_up(self) -> None:
        """Run the registered cleanups that are due, on the training thread between two phases."""
        chain = self._chain
        if self._loop is not None and (chain.cleanups.registered or chain.requests.cleanups):
            with self._guard:
                chain.cleanups.run_due()

    def _ends_because(self, state: str, reason: str, error: BaseException | None = None) -> None:
        """Record why the process is about to end."""
        self._end, self._goes_on = (state, reason), False
        if error is not None and self._loop is not None and self._chain.output is not None:
            with self._guard:
                self._chain.output.ends_with(error)
        if self._loop is None or (isinstance(error, Exception) and id(error) == self._reported):
            return
        with self._guard:
            self._loop.note("exception" if state == "failed" else "mark", reason, {"type": reason})

    def _outlived_signal(self) -> None:
        self._goes_on = True

    def _finish_at_exit(self) -> None:
        """Finish the run with the recorded exception or signal, or otherwise with the exit status.

        The parent process may correct the exit status.
        """
        if self._end is not None:
            self._finish(self._end)
        else:
            self._finish(exit_status.end_of(exit_status.requested()), at_exit=True)

    @property
    def _is_ending(self) -> bool:
        return self._finishing.is_mine

    def _forget(self) -> None:
        """Deactivate the run in a forked child and close the resources inherited from the parent."""
        global _active
        self._loop, self._forgotten = None, True
        if _active is self:
            _active = None
        self._chain.abandon()

    # -- lifecycle --------------------------------------------------------------------------------------

    def _has_announced(self, settings: Settings) -> bool:
        """Return True if a first line with the name and the place of the new run has already been printed."""
        return False

    def _make_way(self, settings: Settings) -> Settings:
        """End this run in favor of a run that the program is starting, and return the settings for the new run."""
        self.finish()
        return settings

    def _start(
        self, settings: Settings, subject: Subject = OF_ITS_OWN, *, held: bool = False
    ) -> None:
        console.set_up()
        self._chain = chain = Chain(settings, subject)
        self._settings, self._loop = settings, chain.loop
        if self._announces:
            announce(settings.run_id, chain.process.attempt)
        shutdown.watch(self)
        chain.start(held=held)

    def _finish(self, end: tuple[str, str], *, at_exit: bool = False) -> None:
        """Finish the run once.

        A second caller waits until the run is finished, because the process may end as soon as this call returns.
        """
        global _active
        if self._settings is None and _active is self:
            _active = None
        if self._settings is None or self._forgotten or not self._finishing.begin():
            return
        try:
            self._chain.at_exit = at_exit
            self._leave(end)
        finally:
            self._finishing.done()
            shutdown.unwatch(self)

    def _leave(self, end: tuple[str, str]) -> None:
        """Take the last snapshot, write and send pending data, release the program's objects, and print the verdict."""
        global _active
        loop, self._loop = self._loop, None
        if self._announces:
            take_back()
        if _active is self:
            _active = None
        with self._guard:
            if loop is not None:
                loop.finish()
        # A process that received SIGTERM has no time for the verdict.
        self._chain.is_in_haste = shutdown.KILLED in (end, self._end)
        with self._guard:
            self._chain.close(end)
        with self._guard:
            self._chain.forget()
        if not self._chain.is_in_haste:
            with self._guard:
                self._chain.say_goodbye()

    def _declare(self, kind: str, name: str, data: Callable[[], Mapping[str, Any]]) -> None:
        if (loop := self._loop) is not None:
            with self._guard:
                loop.note(kind, _clean(name), data())


class _Block:
    """Base class of context managers that also work as decorators."""

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, a coroutine function, or a sync or async generator function."""
        kind, run, name = type(self), self._run, self._name
        # Look up the run at each call: library code may apply the decorator at import, before the program calls init.
        return _wrapped(function, lambda: kind(current() if run is _NOTHING else run, name))


class Phase(_Block):
    """Context manager and decorator for a phase: ``with run.phase("train"): ...`` or ``@run.phase("train")``."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self._frames: list[Frame | None] = []

    def __enter__(self) -> Phase:
        run, frame = self._run, None
        if run._found_phase is not None:
            run._found_phase()
        if (loop := run._loop) is not None:
            run._reported = None
            with run._guard:
                frame = loop.enter_phase(_phase_name(self._name))
        self._frames.append(frame)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        run, frame = self._run, self._frames.pop()
        if frame is None or (loop := run._loop) is None:
            return
        run._reported = None
        if error is not None:
            run._note_exception(error)
        with run._guard:
            loop.exit_phase(frame, error)
        if error is None and not frame.foreign and loop.phase is None:
            run._clean_up()


class Cleanup(_Block):
    """Context manager and decorator that records how much private memory its block frees."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self._before: list[Before | None] = []

    def __enter__(self) -> Cleanup:
        run, before = self._run, None
        if run._loop is not None:
            with run._guard:
                before = run._chain.cleanups.begin()
        self._before.append(before)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        run, before = self._run, self._before.pop()
        if run._loop is not None and before is not None:
            with run._guard:
                run._chain.cleanups.end(_clean(self._name), before)


class Generation:
    """A generation that has already started. It ends when the context is left or, without a context, when the next
    generation starts.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run._end_generation(error)


def _wrapped(function: Callable[P, R], block: Callable[[], _Block]) -> Callable[P, R]:
    wrapper: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            inner: Any = function(*args, **kwargs)
            with block():
                # This loop does the same as `yield from` below, which async generators do not support.
                step = inner.asend(None)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001
                        # Pass any exception that the program throws into the generator on to the function's body, as
                        # `yield from` does.
                        step = inner.athrow(error)
                    else:
                        step = inner.asend(sent)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return function(*args, **kwargs)

    return wrapper  # type: ignore[no-any-return]


_NOTHING: Final = Run()


def _clean(text: object) -> str:
    """Make a string printable and limit its length, because names come from user code and appear in logs and pages."""
    return printable(str(text)[: 2 * NAME_LIMIT]).strip() or "unnamed"


def _phase_name(name: object) -> str:
    cleaned = _clean(name)[:NAME_LIMIT].strip("/") or "unnamed"
    return f"{cleaned}_" if cleaned in RESERVED_PHASES else cleaned
