"""Starts a run, connects the parts that carry its snapshots, and ends it within two seconds.

`Subject` describes the observed process: a process that called `init`, a process that does not use
our API, or a process that is observed from outside. The verdict printed at the end comes from the
server. If the server does not send a verdict in time and enough of the exit time is left, the
verdict is computed here.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..actions.callbacks import VerdictWatch
from ..actions.cleanups import Cleanups
from ..console import Notices, SnapshotBanner, StatusLine
from ..errors import SpoolError
from ..probes.memory.cgroup import memory_group
from ..probes.native_module import native, why_not_native
from ..runtime.error_boundary import Guard, logger
from ..runtime.threads import OurThread
from ..sampling.background_readings import Approach, BackgroundFold
from ..sampling.overhead_budget import NATIVE_DEEP_CREDIT_SECONDS, Governor
from ..sampling.run_requests import QUIET, REFUSED, RequestBox
from ..sampling.sampler import Sampler
from ..settings import Settings
from ..snapshot import DEFAULT_UNIT, ProcessIdentity, RunHeader, Snapshot
from ..text_format import with_forecast, worded
from ..transport.http_delivery import Accepted, Delivery, Refused, one_line
from ..transport.recorder import Losses, Recorder
from ..transport.sender import Sender
from ..transport.spool_file import Outbox, SpoolFile
from ..transport.spool_format import AT_EXIT, Account, read_batches
from .environment import read_environment
from .output_tail import OutputTail
from .process_tree import identity, readable_name
from .training_loop import Loop

if TYPE_CHECKING:
    from ..sampling.allocation_tracing import Allocations


@dataclass(frozen=True, slots=True)
class Subject:
    """The process that a run observes.

    ``pid`` is the process ID of the observed process, or None for this process.
    ``is_in_background`` means that this process is observed and its program does not call our API.
    ``is_silent`` means that another process prints the lines at the start and at the end, and
    ``is_announced`` that it prints the line at the start. ``unit`` is a unit of time, for a program
    without generations.
    """

    pid: int | None = None
    is_in_background: bool = False
    is_silent: bool = False
    is_announced: bool = False
    unit: str | None = None
    # These values are added to the run's environment and override values that describe this
    # process.
    environment: Mapping[str, Any] = field(default_factory=dict)

    def sampler(self, governor: Governor, exact_peaks: bool, requests: RequestBox) -> Sampler:
        if self.pid is not None:
            # Imported here because a program that measures itself does not need the module.
            from ..sampling.external_process import OutsideSampler

            return OutsideSampler(self.pid, governor)
        sampler = Sampler(governor, exact_peaks=exact_peaks, requests=requests)
        if self.is_in_background:
            sampler.stay_in_background()
        return sampler

    def identified(self, own: ProcessIdentity) -> ProcessIdentity:
        return own if self.pid is None else replace(own, pid=self.pid)

    def described(self, header: RunHeader) -> RunHeader:
        environment = header.environment
        if self.pid is not None:
            # These keys describe our process and not the observed process.
            ours = (
                "python",
                "packages",
                "command_line",
                "commit",
                "repository",
                "dirty",
                "notebook",
            )
            environment = {k: v for k, v in environment.items() if k not in ours}
        unit = header.unit if self.unit is None else self.unit
        return replace(header, unit=unit, environment={**environment, **self.environment})

    def approach(self) -> Approach | None:
        """Return None for the default tracker.

        If another process is observed, return a tracker that never reports low memory.
        """
        return None if self.pid is None else Approach(read=lambda: None)


OF_ITS_OWN = Subject()


ASK_AGAIN_SECONDS: Final = 0.05
LINE_LIMIT: Final = 500
# The status with which a server refuses to let an ingest token read.
FORBIDDEN: Final = 403


def verdict_of_server(
    delivery: Delivery, run_id: str, generations: int, seconds: float, url: str = ""
) -> str | None:
    """Return the server's verdict on the whole run as one sentence, or None if the request fails.

    If the token may not read, the sentence names ``url`` instead. Also returns None if the server
    does not process all generations within ``seconds``. The server examines a run as soon as the run
    ends, so one of the first requests usually succeeds.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        delivery.timeout_seconds = left
        outcome = delivery.request("GET", f"/runs/{run_id}/verdict")
        if isinstance(outcome, Refused) and outcome.status == FORBIDDEN:
            return f"the verdict is at {url}; this token cannot read it"
        if not isinstance(outcome, Accepted):
            break
        seen, summary = outcome.body.get("generations"), outcome.body.get("summary")
        if not isinstance(seen, int) or not isinstance(summary, str):
            break
        if seen >= generations:
            said = worded(str(outcome.body.get("status")), str(summary))
            return one_line(with_forecast(said, outcome.body.get("oom")), LINE_LIMIT)
        time.sleep(ASK_AGAIN_SECONDS)
    return None


def _not_ready(project: str, name: str, url: str) -> str:
    """Return a hint on how to see the verdict later, for example ``; in a few seconds, run leakline
    verdict mine/before or open http://...``
    """
    command = f"run leakline verdict {shlex.quote(f'{project}/{name}')} or " if project else ""
    return f"; in a few seconds, {command}open {url}"


def _verdict_within(path: Path, seconds: float) -> str | None:
    """Compute the verdict as one sentence. Return None if this takes longer than ``seconds``.

    The computing thread may then run until the process ends.
    """
    lines: list[str] = []

    def work_out() -> None:
        from ..report import closing_line

        with Guard("computing the closing verdict"):
            lines.append(closing_line(path))

    thread = OurThread("goodbye", work_out)
    try:
        thread.start()
    except RuntimeError:
        # The interpreter is shutting down and cannot start threads.
        return None
    thread.join(max(0.0, seconds))
    return lines[0] if lines else None


# Time limit for the end of a run, slightly below the promised two seconds.
EXIT_SECONDS: Final = 1.8
# Time limit if the server has not responded recently, because waiting longer at exit would not
# help.
EXIT_SECONDS_UNREACHABLE: Final = 0.5
FLUSH_SECONDS: Final = 1.0
# Minimum time for each step at the end of a run, however long the previous steps took.
LEAST_SECONDS: Final = 0.1
# How often the counts are read if snapshots move between queues during the count, and the pause after each attempt.
ACCOUNT_TRIES, ACCOUNT_PAUSE_SECONDS = 100, 0.001


class Chain:
    """Carries a process's snapshots from the training loop to the server: loop -> recorder -> spool
    -> sender. A chain is started only once.
    """

    def __init__(self, settings: Settings, subject: Subject = OF_ITS_OWN) -> None:
        self._settings = settings
        self.process = process = subject.identified(identity(settings))
        # Only the main process of rank 0 prints.
        self._quiet = settings.quiet or settings.rank > 0 or process.role != "main"
        self._notices = Notices(self._quiet)
        # If the subject is silent, the process that started the program prints the first and the
        # last line.
        self._is_silent = self._quiet or subject.is_silent
        self._is_announced = subject.is_announced
        losses = Losses()
        governor = Governor(
            settings.max_overhead,
            max_pause_seconds=settings.max_pause_seconds,
            deep_credit_seconds=None if native() is None else NATIVE_DEEP_CREDIT_SECONDS,
        )
        self.requests = RequestBox(refuse=_refusal(settings))
        sampler = subject.sampler(governor, settings.exact_peaks, self.requests)
        sampler.tell_large(settings.large_objects, settings.large_from_bytes)
        self.header = subject.described(_header(settings, sampler))
        self.spool_path: Path | None = None
        self.is_held, self._letting_go = True, threading.Lock()
        # Reentrant, because a signal handler of the program may request the verdict as well.
        self._following = threading.RLock()
        # A failing part of the chain must not prevent the other parts from starting or ending.
        self._guard = Guard("recording")
        self._exit_until = 0.0
        # True if the run ends because the process exits, in which case the exit status is not known
        # for certain.
        self.at_exit = False
        # True once the server has received all data.
        self._arrived = False
        # The server's verdict at the end of the run.
        self._verdict: str | None = None
        # True if the process has to end at once and cannot wait for the verdict.
        self.is_in_haste = False
        self.outbox = Outbox(self._open_spool(process), self._lost_spool, counted=losses.totals)
        self.sender = self._make_sender(process, losses, governor)
        self.recorder = Recorder(
            self.outbox, process, losses,
            news=self.sender.wake if self.sender is not None else lambda: None,
            tick=(lambda: fold.tick()) if settings.sample_seconds else None,
            tick_seconds=settings.sample_seconds, thread_seconds=governor.thread_seconds,
        )  # fmt: skip
        self.loop = Loop(settings.unit, sampler, governor, losses, self.recorder.put)
        self.loop.warn = self._notices.say
        self.verdicts = VerdictWatch(self.header, process, governor)
        self.cleanups = Cleanups(
            self.loop, self.requests, lambda: self.verdicts.status, quiet=settings.quiet
        )
        self._traced: Allocations | None = None
        if settings.allocations:
            from ..sampling.allocation_tracing import Allocations

            self._traced = Allocations(
                self.loop.note, lambda: self.verdicts.status, thread_seconds=governor.thread_seconds
            )
            self.loop.listeners.append(self._traced.see)
        self.banner: SnapshotBanner | None = None
        if not self._quiet:
            self.banner = SnapshotBanner(self._notices, f"run {self.header.name}")
            self.loop.listeners.append(self.banner.see)
        # Only the status lines need the verdict during the run, so it is not computed unless they
        # are enabled.
        self._says_lines = settings.log_every > 0 and not self._quiet
        if self._says_lines:
            line = StatusLine(
                self._notices, settings.log_every, settings.watch, lambda: self.verdicts.newest
            )
            self.loop.listeners.append(line.see)
        self.output = OutputTail() if settings.log_lines else None
        self.loop.output = self.output
        if settings.sample_seconds:
            fold = BackgroundFold(
                sampler, self.loop.background, settings.sample_seconds, self.loop.has_output,
                subject.approach(),
            )  # fmt: skip
        self.loop.watch(settings.watch)

    def start(self, *, held: bool = False) -> None:
        """Print the start line, start the threads and take the baseline, in this order.

        If ``held``, nothing is sent to a server before `let_go` is called.
        """
        if not (self._is_silent or self._is_announced):
            self._say_hello()
        if self.output is not None:
            self.output.start()
        if self._traced is not None or self._says_lines:
            with self._guard:
                self.follow_verdict()
        with self._guard:
            _stop_answering()
            if self._settings.scan_workers and sys.platform == "linux" and self.spool_path:
                self.loop.sampler.scan_workers(self.spool_path.with_suffix(""))
        with self._guard:
            self.loop.sampler.start()
        with self._guard:
            self.recorder.start()
        if not held:
            with self._guard:
                self.let_go()
        with self._guard:
            self.loop.baseline()

    def let_go(self) -> None:
        """Start sending to the server. This may be called repeatedly and from any thread."""
        with self._letting_go:
            was_held, self.is_held = self.is_held, False
        if was_held and self.sender is not None:
            self.sender.start()

    def call_generations(self, unit: str) -> None:
        """Call the generations of this run ``unit`` from the first one on, if they have no other name yet."""
        if self.header.unit != DEFAULT_UNIT or self.loop.generation is not None:
            return
        self.header = header = replace(self.header, unit=unit)
        self.loop.unit = unit
        self.verdicts.describe(header)
        # The threads that write and send do the rest, before the snapshots of the first generation.
        self.outbox.next_header = header
        if self.sender is not None:
            self.sender.describe(header)

    def discard(self) -> None:
        """Stop a held run and delete everything it recorded."""
        self.stop_listening()
        with self._guard:
            self.loop.sampler.stop()
        with self._guard:
            self.recorder.close({}, EXIT_SECONDS / 2)
        with self._guard:
            self.outbox.close(LEAST_SECONDS)
        if self.spool_path is not None:
            with self._guard:
                self.spool_path.unlink(missing_ok=True)
        self.forget()

    def flush(self) -> None:
        """Wait a short time for the snapshots taken so far to be recorded."""
        self.recorder.flush(FLUSH_SECONDS)

    def follow_verdict(self) -> None:
        """Keep the verdict up to date from now on, beginning with the snapshots already recorded."""
        with self._following:
            if not self.verdicts.follows:
                self.verdicts.follow(self._recorded())
                self.loop.listeners.append(self.verdicts.see)

    def _recorded(self) -> list[Snapshot]:
        """Return the recorded snapshots, or [] if the spool is unreadable; the verdict then covers
        only later snapshots.
        """
        if self.spool_path is None or not self.recorder.taken:
            return []
        self.flush()
        try:
            batches = list(read_batches(self.spool_path))
        except SpoolError:
            return []
        return [snapshot for batch in batches for snapshot in batch.snapshots]

    def close(self, end: tuple[str, str]) -> None:
        """Record the end of the run, send the remaining data and wait for the verdict within the
        time limit.
        """
        deadline = self._exit_until = time.monotonic() + EXIT_SECONDS
        self.stop_listening()
        with self._letting_go:
            # The spool of a held run is uploaded by the process that started the program; otherwise
            # each short program in a shell script would wait for a server that does not respond.
            stays = self.is_held and self.spool_path is not None
            was_held, self.is_held = self.is_held, False
        if was_held and not stays and self.sender is not None:
            with self._guard:
                self.sender.start()
        state, reason = end
        left = {"state": state, "ended_at": time.time(), "reason": reason}
        with self._guard:
            self.loop.sampler.stop()
        with self._guard:
            self.recorder.close({**left, AT_EXIT: True} if self.at_exit else left, EXIT_SECONDS / 2)
        if self.sender is not None and not stays:
            with self._guard:
                self._close_sender(self.sender, left, deadline)
        with self._guard:
            self.outbox.close(max(LEAST_SECONDS, deadline - time.monotonic()))

    def _close_sender(self, sender: Sender, left: Mapping[str, Any], deadline: float) -> None:
        reachable = sender.failures == 0
        seconds = deadline - time.monotonic() if reachable else EXIT_SECONDS_UNREACHABLE
        self._arrived = sender.close(left, max(LEAST_SECONDS, seconds))
        if not (self._arrived or self._is_silent) and self.spool_path is not None:
            where = self.spool_path.parent
            self._notices.say(f"some data was not sent; upload it with: leakline sync {where}")

    def _ask_for_verdict(self, delivery: Delivery) -> None:
        """Request the server's verdict; called on the sender's thread once the server has received
        the end of the run.
        """
        if not (self._is_silent or self.is_in_haste):
            # The end of the run has been sent, and the thread that waits for it needs time to go on.
            seconds = self._exit_until - time.monotonic() - LEAST_SECONDS
            self._verdict = verdict_of_server(
                delivery,
                self.header.id,
                self.loop.generations_ended,
                seconds,
                self._settings.url,
            )

    def stop_listening(self) -> None:
        """Stop capturing the program's output and allocations."""
        if self.output is not None:
            with self._guard:
                self.output.stop()
        if self._traced is not None:
            with self._guard:
                self._traced.stop()

    def abandon(self) -> None:
        """Release inherited resources in a forked child, without taking locks: another thread may
        have held them at the fork.
        """
        with self._guard:
            self.loop.sampler.abandon()
        self.stop_listening()
        if self.sender is not None:
            with self._guard:
                self.sender.abandon()

    def account(self) -> Account:
        """Return the numbers of sent, pending and lost snapshots. Count again if snapshots moved between queues during
        the count.
        """
        for _ in range(ACCOUNT_TRIES):
            account = self._read_account()
            if account.closes:
                break
            # Release the GIL, which the thread that moves the snapshots needs.
            time.sleep(ACCOUNT_PAUSE_SECONDS)
        return account

    def _read_account(self) -> Account:
        return Account(
            taken=self.recorder.taken,
            sent=0 if self.sender is None else self.sender.sent,
            pending=self.recorder.waiting() + self.outbox.waiting(),
            lost=self.outbox.lost(),
        )

    def forget(self) -> None:
        """Release references to the program's objects."""
        self.loop.sampler.forget()
        self.verdicts.forget()
        self.cleanups.forget()

    def say_goodbye(self) -> None:
        if self._is_silent or self.spool_path is None:
            return
        verdict = self._verdict
        where = f"; compute it with: leakline report {self.spool_path.parent}"
        if self._arrived:
            # The server computes the verdict, so the process waits no longer at exit.
            where = _not_ready(self._settings.project, self.header.name, self._settings.url)
        elif verdict is None:
            verdict = _verdict_within(self.spool_path, self._exit_until - time.monotonic())
        self._notices.say(verdict or f"the verdict is not ready yet{where}")

    def _say_hello(self) -> None:
        settings = self._settings
        if settings.mode == "online":
            attempt = self.process.attempt
            again = f" (attempt {attempt})" if attempt > 1 else ""
            self._notices.say(f"run {self.header.name} -> {settings.url}{again}")
        else:
            where = settings.run_directory
            self._notices.say(
                f"run {self.header.name} records to {where}; upload it with: leakline sync {where}"
            )

    def _open_spool(self, process: ProcessIdentity) -> SpoolFile | None:
        self.spool_path = self._settings.run_directory / f"{process.instance}.spool"
        origin = self._settings.server if self._settings.mode == "online" else None
        try:
            return SpoolFile(
                self.spool_path, self.header, process, self._settings.spool_limit_bytes,
                server=origin, memory_group=memory_group(),
            )  # fmt: skip
        except OSError as error:
            self._lost_spool(str(error))
            return None

    def _lost_spool(self, why: str) -> None:
        self.spool_path = None
        logger.warning(
            "leakline: cannot record to disk (%s); keeping only the newest snapshots in memory", why
        )

    def _make_sender(
        self, process: ProcessIdentity, losses: Losses, governor: Governor
    ) -> Sender | None:
        settings = self._settings
        if settings.mode != "online":
            return None
        _load_network()
        where = f" in {settings.run_directory}; upload it later with: leakline sync {settings.run_directory}"
        by = (
            f"the argument project={settings.project!r} takes precedence over LEAKLINE_PROJECT"
            if settings.project_is_argument
            else f"the project is set with LEAKLINE_PROJECT={settings.project} or leakline run --project"
        )
        in_other_project = (
            f"; {by}; recording continues in {settings.run_directory}; upload it later with a token of project "
            f"{settings.project!r} in LEAKLINE_TOKEN: leakline sync {settings.run_directory}"
        )
        from ..transport.orphan_recovery import Leftovers

        delivery = Delivery(settings.server, settings.token, ca_file=settings.ca_file)
        leftovers = Leftovers(
            settings.directory, self.spool_path, delivery, lambda line: self._notices.say(line)
        )
        return Sender(
            self.outbox, delivery, self.header, process, losses, self._notices, where, in_other_project,
            requested=self.requests.put, idle=leftovers.send, let_go=leftovers.close,
            ended=lambda: self._ask_for_verdict(delivery),
            thread_seconds=governor.thread_seconds,
        )  # fmt: skip


def _header(settings: Settings, sampler: Sampler) -> RunHeader:
    return RunHeader(
        id=settings.run_id,
        project=settings.project,
        name=settings.name or readable_name(settings.run_id),
        unit=settings.unit,
        total=settings.total,
        started_at=time.time(),
        phases=settings.phases,
        tags=settings.tags,
        config=settings.config,
        resume=settings.resume,
        environment={
            **read_environment(),
            "exact_peaks": sampler.exact_peaks,
            # True if the native module does the heap scans, otherwise the reason why it does not.
            "native": why_not_native() or True,
        },
    )


def _refusal(settings: Settings) -> str | None:
    """Return the reply that refuses the server's requests, or None if the run serves these requests."""
    if not settings.requests:
        return REFUSED
    return QUIET if settings.quiet else None


def _stop_answering() -> None:
    """Stop answering scan requests of a parent process, because this process begins a run of its own."""
    handler: Any = signal.getsignal(signal.SIGURG) if hasattr(signal, "SIGURG") else None
    if hasattr(handler, "answers_leakline"):
        handler.answers_leakline = False
        # Only the main thread may change handlers.
        with suppress(ValueError):
            signal.signal(signal.SIGURG, signal.SIG_DFL)


def _load_network() -> None:
    """Import the sender's modules now: if a child is forked while another thread imports a module,
    the child can never import that module.
    """
    names = ["leakline.transport.http_connection", "encodings.ascii", "encodings.idna"]
    if any(variable.lower().endswith("_proxy") for variable in os.environ):
        names.append("urllib.request")
    for name in names:
        import_module(name)
