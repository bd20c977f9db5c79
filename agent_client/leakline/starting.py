"""Starting a run: who we are, where its snapshots go, what carries them; and ending it within two seconds."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from .background import BackgroundFold
from .budget import NATIVE_DEEP_CREDIT_SECONDS, Governor
from .callbacks import VerdictWatch
from .cleanups import Cleanups
from .delivery import Delivery
from .environment import read_environment
from .guard import logger
from .loop import Loop
from .names import readable_name
from .notices import Notices
from .outbox import SafeOutbox, SpoolFile
from .probes.native import native, why_not_native
from .recorder import Losses, Recorder
from .requests import RequestBox
from .sampler import Sampler
from .sender import Sender
from .settings import Settings
from .snapshot import ProcessIdentity, RunHeader, Snapshot
from .spool import count_attempts, read_batches

if TYPE_CHECKING:
    from pathlib import Path

EXIT_SECONDS: Final = 2.0
# When the server has not answered lately, waiting longer at exit would not change that.
EXIT_SECONDS_UNREACHABLE: Final = 0.5
FLUSH_SECONDS: Final = 1.0
# Tells the children of this process that a run is already announced: "<run id>:<pid>".
ANNOUNCED: Final = "_LEAKLINE_ANNOUNCED"


class Chain:
    """One process's way from the loop to the server: loop -> recorder -> spool -> sender. Made once, started once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._quiet = settings.quiet or settings.rank > 0
        self._notices = Notices(self._quiet)
        process = _identity(settings)
        losses = Losses()
        governor = Governor(
            settings.max_overhead,
            max_pause_seconds=settings.max_pause_seconds,
            deep_credit_seconds=None if native() is None else NATIVE_DEEP_CREDIT_SECONDS,
        )
        self.requests = RequestBox(refuse=not settings.requests)
        sampler = Sampler(governor, exact_peaks=settings.exact_peaks, requests=self.requests)
        self.header = _header(settings, sampler)
        self.spool_path: Path | None = None
        self.outbox = SafeOutbox(self._open_spool(process), self._lost_spool)
        self.sender = self._make_sender(process, losses, governor)
        self.recorder = Recorder(
            self.outbox, process, losses,
            news=self.sender.wake if self.sender is not None else lambda: None,
            tick=(lambda: fold.tick()) if settings.sample_seconds else None,
            tick_seconds=settings.sample_seconds, note_cpu=governor.note_thread,
        )  # fmt: skip
        self.loop = Loop(settings.unit, sampler, governor, losses, self.recorder.put)
        self.verdicts = VerdictWatch(self.header, process, governor)
        self.cleanups = Cleanups(
            self.loop, self.requests, lambda: self.verdicts.status, quiet=settings.quiet
        )
        self.loop.listeners += [self.verdicts.see, self.cleanups.see]
        if settings.sample_seconds:
            fold = BackgroundFold(sampler, self.loop.background, settings.sample_seconds)
        self.loop.watch(settings.watch)

    def start(self) -> None:
        """1. say so  2. threads  3. the baseline."""
        self._say_hello()
        self.loop.sampler.start()
        self.recorder.start()
        if self.sender is not None:
            self.sender.start()
        self.loop.baseline()

    def flush(self) -> None:
        """Wait, not for long, until what was taken is recorded."""
        self.recorder.flush(FLUSH_SECONDS)

    def recorded(self) -> list[Snapshot]:
        """What this process has recorded so far, for a callback that comes late."""
        if self.spool_path is None:
            return []
        self.flush()
        return [snapshot for batch in read_batches(self.spool_path) for snapshot in batch.snapshots]

    def close(self, end: tuple[str, str]) -> None:
        """Record the end and send what is left, within the time."""
        deadline = time.monotonic() + EXIT_SECONDS
        state, reason = end
        left = {"state": state, "ended_at": time.time(), "reason": reason}
        self.loop.sampler.stop()
        self.recorder.close(left, EXIT_SECONDS / 2)
        if self.sender is not None:
            reachable = self.sender.failures == 0
            seconds = deadline - time.monotonic() if reachable else EXIT_SECONDS_UNREACHABLE
            if not self.sender.close(left, max(0.1, seconds)) and self.spool_path is not None:
                where = self.spool_path.parent
                self._notices.say(f"not everything was sent; upload it with: leakline sync {where}")
        self.outbox.close()

    def forget(self) -> None:
        """Let go of what the program gave."""
        self.loop.sampler.forget()
        self.verdicts.forget()
        self.cleanups.forget()

    def say_goodbye(self) -> None:
        if self._quiet or self.spool_path is None:
            return
        from .report import closing_line

        self._notices.say(closing_line(self.spool_path))

    def _say_hello(self) -> None:
        settings = self._settings
        if settings.mode == "online":
            self._notices.say(f"run {self.header.name} -> {settings.url}")
        else:
            where = settings.run_directory
            self._notices.say(
                f"run {self.header.name} records to {where}; upload with: leakline sync {where}"
            )

    def _open_spool(self, process: ProcessIdentity) -> SpoolFile | None:
        self.spool_path = self._settings.run_directory / f"{process.instance}.spool"
        try:
            return SpoolFile(self.spool_path, self.header, process)
        except OSError as error:
            self._lost_spool(str(error))
            return None

    def _lost_spool(self, why: str) -> None:
        self.spool_path = None
        logger.warning("leakline: cannot record to disk (%s); only memory is left", why)

    def _make_sender(
        self, process: ProcessIdentity, losses: Losses, governor: Governor
    ) -> Sender | None:
        settings = self._settings
        if settings.mode != "online":
            return None
        where = f" to {settings.run_directory}; upload later with: leakline sync {settings.run_directory}"
        return Sender(
            self.outbox, Delivery(settings.server, settings.token), self.header, process, losses,
            self._notices, where, requested=self.requests.put,
            note_cpu=governor.note_thread,
        )  # fmt: skip


def _identity(settings: Settings) -> ProcessIdentity:
    recorded = count_attempts(settings.run_directory, settings.rank)
    attempt = max(settings.restarts + 1, recorded + 1)
    return ProcessIdentity(
        os.urandom(8).hex(), settings.rank, os.getpid(), socket.gethostname(), attempt=attempt
    )


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
        environment={
            **read_environment(),
            "exact_peaks": sampler.exact_peaks,
            # Whether the native module does the looks at the heap, or why not.
            "native": why_not_native() or True,
        },
    )


def announce(run_id: str) -> None:
    """Tell the children of this process that it has a run."""
    os.environ[ANNOUNCED] = f"{run_id}:{os.getpid()}"


def take_back() -> None:
    """The run of this process is over."""
    os.environ.pop(ANNOUNCED, None)


def in_worker() -> bool:
    """Is this a multiprocessing child of a process that measures already? It must not start a second run.

    A child of a process without a run (a rank started by ``mp.spawn``) may start one.
    """
    announced = os.environ.get(ANNOUNCED, "").rpartition(":")[2]
    if announced in ("", str(os.getpid())):
        return False
    # While a spawned child imports the main module, multiprocessing does not know its parent yet.
    helper = any(argument.startswith("from multiprocessing.") for argument in sys.orig_argv)
    processes: Any = sys.modules.get("multiprocessing.process")
    return helper or (processes is not None and processes.parent_process() is not None)
