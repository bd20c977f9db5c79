"""init() and Run: what the training loop holds. Every call is guarded; after init only wrong arguments raise.

A Run without a loop does nothing: that is what `current()` gives before init, what ``mode="disabled"`` gives,
and what a run becomes when it has finished or finds itself in a forked child.
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
) -> Run:
    """Start a run; a run that is still active in this process is finished first.

    ``watch``: classes (or their names) counted exactly. ``phases``: declared phases; one that never runs is shown.
    ``total``: planned units. ``directory``: where the spool goes (``LEAKLINE_DIR``, default ``.leakline``).
    ``mode``: online, offline (spool only) or disabled. ``exact_peaks``: reset the kernel's high-water mark of this
    process after each reading, so that no peak is too short to be seen. ``log_lines``: the newest 50 lines that this
    process prints and logs go with its snapshots, for when it dies. ``log_every``: after every so many generations a
    line on stderr with memory, the counts of ``watch``, growth and the newest verdict. ``allocations``: once a leak is
    suspected, the lines that allocate what is kept are traced for a generation, which slows the program meanwhile.
    Arguments win over ``LEAKLINE_*`` variables.

    Raises BadArgument, with the name, the value and where it came from; after init only calls that declare
    something raise it.
    """
    settings = resolve(
        project=project, name=name, unit=unit, total=total, watch=watch, phases=phases, config=config,
        tags=tags, server=server, mode=mode, quiet=quiet, directory=directory, exact_peaks=exact_peaks,
        log_lines=log_lines, log_every=log_every, allocations=allocations,
    )  # fmt: skip
    # The list of classes the caller made for this call would be counted as a reference to each of them, and
    # instances are counted by references.
    del watch
    return start(settings)


def start(settings: Settings) -> Run:
    """What `init` does with settings; the callbacks of frameworks know some of theirs better."""
    global _active
    if _active is not None:
        settings = _active._make_way(settings)
    run = Run()
    if settings.mode == "disabled":
        if _active is not None:
            # Whoever has started the program wants to see it, and it calls nothing that would take time.
            return run
        # The program has said that there is to be none, so no callback may start another.
        _active = run
    elif not in_worker():
        with run._guard:
            run._start(settings)
            _active = run
    return run


def current() -> Run:
    """The active run, or a run that does nothing: library code may always call it."""
    return _active if _active is not None else _NOTHING


def observe(run: Run, settings: Settings, subject: Subject) -> None:
    """Begin a run for a program that does not call Leakline; no server hears of it before it is let go."""
    global _active
    with run._guard:
        run._start(settings, subject, held=True)
        _active = run


def active() -> Run | None:
    """The run that the program has started, also one that does nothing because it is disabled; None: it has not."""
    return None if _active is None or _active._is_of_others else _active


class Run:
    """One process's part of a run. Made by `init`."""

    # Not started by the program: it makes way for the one that is.
    _is_of_others = False
    # Whether it is informed of SIGTERM by a handler, which Python calls when it has its turn.
    _hears_signals = True

    def __init__(self) -> None:
        self._guard = Guard("measuring")
        self._chain: Chain
        self._loop: Loop | None = None
        self._settings: Settings | None = None
        self._end: tuple[str, str] | None = None
        # A SIGTERM came, and the program's own handler let it go on.
        self._goes_on = False
        # The exception that left the newest phase or generation: reported already when it ends the program.
        self._reported: int | None = None
        self._finishing = shutdown.Once()
        # This is a forked child: all of it but the names belongs to the parent.
        self._forgotten = False

    # -- what people call ----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The run's id, in its address and its spool folder; empty for a run that does nothing."""
        return "" if self._settings is None else self._settings.run_id

    @property
    def name(self) -> str:
        """The run's readable name; empty for a run that does nothing."""
        return "" if self._settings is None else self._chain.header.name

    @property
    def url(self) -> str:
        """The dashboard page of this run; empty for a run that does nothing."""
        return "" if self._settings is None else self._settings.url

    def generation(self, number: int) -> Generation:
        """Begin a generation; the one before it ends. Also ``with run.generation(g): ...``.

        A number that was there before (a notebook cell that runs again, a second loop) continues after the newest
        generation, with one warning. The number of the generation that is open changes nothing.
        """
        if (loop := self._loop) is not None:
            exit_status.forget_caught()
            with self._guard:
                loop.start_generation(number)
            self._call_back()
            self._clean_up()
        return Generation(self)

    def episode(self, number: int) -> Generation:
        """The same as `generation`."""
        return self.generation(number)

    def epoch(self, number: int) -> Generation:
        """The same as `generation`."""
        return self.generation(number)

    def step(self, number: int) -> Generation:
        """The same as `generation`."""
        return self.generation(number)

    def phase(self, name: str) -> Phase:
        """A named part of a generation: ``with run.phase("train"): ...`` or ``@run.phase("train")``.

        Phases nest. At the end of each a snapshot is taken; memory that changed meanwhile is booked to it.
        """
        return Phase(self, name)

    def snapshot(self, label: str, *, show: bool = False) -> None:
        """A snapshot now, with any label.

        ``show``: print it at once to standard error, as a report begins: memory, GPU memory and counts. What this
        snapshot has not measured is the newest known. A quiet run and all ranks but the first print nothing.
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
        """Declare how many instances of a class there should be: a number, or a range ``(low, high)``.

        ``"baseline"``: no more than there were by the end of the first generation, whose build-up stays. ``after``
        limits it to the end of that phase. Raises BadArgument for a wrong argument.
        """
        if (loop := self._loop) is not None:
            wanted, data = declarations.expectation(target, count, after)
            with self._guard:
                loop.expect(wanted, data)

    def track(self, name: str, target: Any, capacity: int | None = None) -> None:
        """Watch the length of a container, or of what a function gives. Raises BadArgument."""
        if (loop := self._loop) is not None:
            checked, limit = declarations.tracked(name, target, capacity)
            with self._guard:
                loop.track(checked, target, limit)

    def gauge(self, name: str, value: float, warn_above: float | None = None) -> None:
        """Record any number on the same axis; one above ``warn_above`` breaks an expectation. Raises BadArgument."""
        if (loop := self._loop) is not None:
            checked, number, limit = declarations.gauged(name, value, warn_above)
            with self._guard:
                loop.gauge(checked, number, limit)

    def cleanup(self, name: str) -> Cleanup:
        """Measure what a cleanup frees: ``with run.cleanup("agent"): ...``, also as a decorator."""
        return Cleanup(self, name)

    def register_cleanup(
        self,
        name: str,
        function: Callable[[], object],
        *,
        on_request: bool = True,
        when: str | tuple[str, float] | None = None,
    ) -> None:
        """Let ``function()`` be called between two phases, on the training thread, and tell what it freed.

        ``on_request``: a person may ask for it on the run's page; never while the run is quiet. ``when``: by itself,
        from a verdict on ("suspected" or "confirmed"), or while a series is above a number: ("gauge.tensors", 500).
        While that lasts it runs again 8 generations later, then 16, then 32. An exception of it is reported, and ends
        there. Once more with the same name replaces it. Raises BadArgument.
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
        """At the next phase end look for what keeps instances of a class (or of its name) alive. Raises BadArgument."""
        if self._loop is not None:
            wanted = declarations.searched(target)
            with self._guard:
                self._chain.requests.ask("find_holders", wanted)

    def census(self) -> None:
        """At the next phase end count all objects by type."""
        if self._loop is not None:
            with self._guard:
                self._chain.requests.ask("census")

    def mark(self, name: str) -> None:
        """An event on the charts."""
        self._declare("mark", name, dict)

    def note(self, text: str, link: str | None = None) -> None:
        """Text, and a link, next to the charts."""
        self._declare("note", "note", lambda: declarations.note_data(text, link))

    def band(
        self,
        series: str,
        span: tuple[int, int | None],
        low: float | str | None = None,
        high: float | str | None = None,
    ) -> None:
        """A plan: between which bounds ``series`` should be in the generations ``span``, first and last included.

        (11, None) goes on to the end. A text is a size such as "30 GiB", a number is in the unit of the series.
        """
        self._declare("band", series, lambda: declarations.band_data(span, low, high))

    def budget(
        self, phase: str, normal: float | str | None = None, leak: float | str | None = None
    ) -> None:
        """Growth that is fine up to ``normal`` and a leak from ``leak`` on.

        Of a phase in each generation, of the whole run in each ("generation"), or since it began ("run").
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
        """A fix that this run contains, and what it promises; checked on this run. Raises BadArgument.

        What it has done is reported from the generations before and after it, or against a run without it: of the
        classes whose counts it promises and the ``phase`` it names, else of the whole run. ``rejected``: what was
        thought of instead and why not, shown with the fix.

        ``promises``: ``growth_bytes_per_generation``, ``phase_growth_bytes_per_generation``, ``peak_bytes``,
        ``gpu_peak_bytes`` and ``max_jump_bytes_per_generation`` in bytes or as "500 MiB"; ``generations`` to
        complete; ``possible_generations``, as many as memory has room for; ``count:package.Class``, the most
        instances alive at the end of a generation.
        """
        if (loop := self._loop) is not None:
            data = declarations.fix_data(phase, location, promises, rejected)
            with self._guard:
                loop.note("fix", _clean(name), data)
                loop.watch(declarations.promised_classes(data))

    def on(self, event: str, callback: Callable[[Any], object]) -> None:
        """Call ``callback(verdict)`` in this process when the verdict changes so.

        ``event``: a status of the run ("suspected": that or a worse one), or an event as alerts name them:
        "incident.suspected", "incident.confirmed", "incident.recovered", "oom.risk", "contract.violated", which are
        of one finding or forecast. Once per change, at the end of a generation (mostly the one after that which
        showed it) or at `finish`, on the training thread; its exceptions are the caller's. Raises BadArgument for any
        other name.
        """
        if self._loop is not None:
            callbacks.check(event, callback)
            with self._guard:
                self._chain.follow_verdict()
                self._chain.verdicts.add(event, callback)

    def report(self) -> str:
        """Snapshot, trend, growth and large objects with the verdict, as text; empty when there is nothing."""
        if self._settings is None or self._forgotten:
            return ""
        text = ""
        with self._guard:
            if (spool := self._written_spool()) is not None:
                from .report import report_text

                text = report_text(spool)
        return text

    def _repr_html_(self) -> str | None:
        """Return the first screen of the run's page for a notebook; None where there is nothing to show."""
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
        """Return the file with all that was recorded so far; None where none could be written."""
        if self._loop is not None:
            self._chain.flush()
        return self._chain.spool_path

    def finish(self) -> None:
        """End the run: last snapshot, send what is left (at most 2 s), say the verdict. Twice is once.

        Callbacks of `on` for which the verdict has come by now are called first; one that raises ends the run as well.
        """
        end = ("finished", "") if self._goes_on or self._end is None else self._end
        try:
            if self._loop is not None:
                self._call_back(last=True)
        finally:
            self._finish(end)

    # -- what blocks and endings call ----------------------------------------------------------------

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
        """Remember an exception that leaves a phase or a generation: it may end the program."""
        self._reported = id(error)
        exit_status.note(error)

    def _call_back(self, *, last: bool = False) -> None:
        """Call the functions of `on` when the verdict has changed. Their exceptions are theirs."""
        verdicts = self._chain.verdicts
        if not verdicts.follows:
            return
        with self._guard:
            verdicts.conclude() if last else verdicts.examine()
        for callback, verdict in verdicts.due():
            callback(verdict)

    def _clean_up(self) -> None:
        """Run the registered cleanups that are due: between two phases of the training thread."""
        chain = self._chain
        if self._loop is not None and (chain.cleanups.registered or chain.requests.cleanups):
            with self._guard:
                chain.cleanups.run_due()

    def _ends_because(self, state: str, reason: str, error: BaseException | None = None) -> None:
        """The process is about to end for this reason."""
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
        """End as the exception or the signal says; else by the exit status, which our parent may know better."""
        if self._end is not None:
            self._finish(self._end)
        else:
            self._finish(exit_status.end_of(exit_status.requested()), at_exit=True)

    @property
    def _is_ending(self) -> bool:
        return self._finishing.is_mine

    def _forget(self) -> None:
        """In a forked child: do nothing, and keep nothing open that is the parent's."""
        global _active
        self._loop, self._forgotten = None, True
        if _active is self:
            _active = None
        self._chain.abandon()

    # -- life --------------------------------------------------------------------------------------

    def _make_way(self, settings: Settings) -> Settings:
        """For the run that the program starts now, with these settings."""
        self.finish()
        return settings

    def _start(
        self, settings: Settings, subject: Subject = OF_ITS_OWN, *, held: bool = False
    ) -> None:
        console.set_up()
        self._chain = chain = Chain(settings, subject)
        self._settings, self._loop = settings, chain.loop
        announce(settings.run_id, chain.process.attempt)
        shutdown.watch(self)
        chain.start(held=held)

    def _finish(self, end: tuple[str, str], *, at_exit: bool = False) -> None:
        """Once. A second thread that asks waits until the first is done: the process may end after it."""
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
        """1. last snapshot  2. record and send, within the time  3. let its objects go  4. say the verdict."""
        global _active
        loop, self._loop = self._loop, None
        take_back()
        if _active is self:
            _active = None
        with self._guard:
            if loop is not None:
                loop.finish()
        with self._guard:
            self._chain.close(end)
        with self._guard:
            self._chain.forget()
        # If it was asked to end by now, it is in a hurry.
        if shutdown.KILLED not in (end, self._end):
            with self._guard:
                self._chain.say_goodbye()

    def _declare(self, kind: str, name: str, data: Callable[[], Mapping[str, Any]]) -> None:
        if (loop := self._loop) is not None:
            with self._guard:
                loop.note(kind, _clean(name), data())


class _Block:
    """Enters and leaves once per ``with``, and once per call of what it decorates."""

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
        """Decorate a function, a coroutine function, or a generator function of either kind."""
        kind, run, name = type(self), self._run, self._name
        # Library code may decorate at import, before the program has called init.
        return _wrapped(function, lambda: kind(current() if run is _NOTHING else run, name))


class Phase(_Block):
    """``with run.phase("train"): ...`` or ``@run.phase("train")``. Closes on every way out."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self._frames: list[Frame | None] = []

    def __enter__(self) -> Phase:
        run, frame = self._run, None
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
    """Records private memory before and after what runs inside, and what that freed."""

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
    """Started when made; as a context manager it also ends, otherwise the next one ends it."""

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
                # What `yield from` does below; the language has no such expression for this kind.
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
                        # Whatever the program throws in belongs to the function's own body, as with `yield from`.
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
    """Printable and bounded: names come from user code and go to logs and pages."""
    return printable(str(text)[: 2 * NAME_LIMIT]).strip() or "unnamed"


def _phase_name(name: object) -> str:
    cleaned = _clean(name)[:NAME_LIMIT].strip("/") or "unnamed"
    return f"{cleaned}_" if cleaned in RESERVED_PHASES else cleaned
