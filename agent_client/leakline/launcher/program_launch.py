"""Launches programs for `leakline run`, and watches processes from outside.

`Program` passes on signals, the exit status and the terminal. `Watch` implements `leakline watch`; `leakline run` also
uses it for programs that are not written in Python. `Inside` implements `leakline watch --inside`.
"""

from __future__ import annotations

import inspect
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ..console import set_up
from ..core.environment import command_line
from ..core.exit_status import BY_SIGNAL
from ..core.pipeline import Chain, Subject
from ..errors import BadArgument, LeaklineError
from ..probes.memory.process_memory import OtherProcess
from ..runtime.error_boundary import Guard
from ..sampling.external_process import started_as
from ..settings import Settings, start_ticks, stat_fields
from ..snapshot import Number, Snapshot
from ..transport.oom_inference import killed_for_memory, last_readings
from .observer import PLAN, Intervals, Plan, begin_inside

STARTUP: Final = Path(__file__).resolve().parent / "startup"
# The library that samples allocations.
MALLOC: Final = Path(__file__).resolve().parents[1] / "_native_malloc.so"
# Signals that are forwarded, because they are meant for the program.
FORWARDED: Final = frozenset(
    {
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    }
)  # fmt: skip
# Signals by which a user or a system shutdown asks us to end.
ENDS_US: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# An interpreter reports its presence before its program begins. A slow disk may delay this report.
SEEN_WITHIN_SECONDS: Final = 5.0
# A process that is not an interpreter may be a script that starts an interpreter in its place, as with pyenv and conda.
BECOMES_ONE_WITHIN_SECONDS: Final = 2.0
# On a busy machine a program may start late. Such a program has used little CPU time so far and is waiting for more.
STARTING_CPU_SECONDS: Final = 1.0
STARTS_WITHIN_SECONDS: Final = 60.0
LOOK_EVERY_SECONDS: Final = 0.02


class _CutShort(BaseException):
    """Raised when the time is up or a signal arrives."""


class Program:
    """Runs a program from start to end. Use it only on the main thread of a process that does nothing else."""

    def __init__(
        self, command: Sequence[str], settings: Settings, plan: Plan, *, preloads: bool = False
    ) -> None:
        self.command, self._plan = command, plan
        self._environment = _environment_for(settings, plan)
        if preloads:
            self._environment["LD_PRELOAD"] = f"{MALLOC}:{os.environ.get('LD_PRELOAD', '')}"
        self._process: subprocess.Popen[bytes] | None = None
        self._before: set[signal.Signals] = set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the program. Raises BadArgument if it cannot be started."""
        self._before = set(
            map(
                signal.Signals,
                signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD}),
            )
        )
        try:
            self._process = subprocess.Popen(
                self.command,
                env=self._environment,
                # Descriptors that the shell passes, as with <(...), are meant for the program. Our own descriptors are
                # not inheritable.
                close_fds=False,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._before),
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            raise BadArgument(
                "PROGRAM", self.command[0], _why_not(self.command[0], error)
            ) from None

    def is_seen(self) -> bool:
        """Wait for an observer to start inside the program. Return False if the program ends or takes too long."""
        began, marker = time.monotonic(), Path(self._plan.seen) / str(self.pid)
        while not marker.exists():
            passed = time.monotonic() - began
            limit = SEEN_WITHIN_SECONDS if _is_python(self.pid) else BECOMES_ONE_WITHIN_SECONDS
            if passed < STARTS_WITHIN_SECONDS and _waits_for_a_processor(self.pid):
                limit = STARTS_WITHIN_SECONDS
            if passed > limit or self._pass_on(LOOK_EVERY_SECONDS):
                break
        return marker.exists()

    def wait(self) -> int:
        """Wait for the program and return its exit status, or the negated signal number if a signal ended it."""
        assert self._process is not None
        while not self._pass_on(None):
            pass
        return self._process.wait()

    @contextmanager
    def afterwards(self, seconds: float) -> Iterator[None]:
        """Handle signals ourselves now that the program has ended. A signal or the time limit ends the block early."""
        # Discard signals that arrived earlier, because they were meant for the program.
        while signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, 0) is not None:
            pass
        ending = [each for each in ENDS_US if signal.getsignal(each) is not signal.SIG_IGN]
        for number in (*ending, signal.SIGALRM):
            signal.signal(number, _cut_short)
        with suppress(_CutShort):
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGALRM})
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _pass_on(self, timeout_seconds: float | None) -> bool:
        """Wait for a signal and forward it to the program. Return True if the program has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            return True
        waited = {*FORWARDED, signal.SIGCHLD}
        came = (
            signal.sigwaitinfo(waited)
            if timeout_seconds is None
            else signal.sigtimedwait(waited, timeout_seconds)
        )
        # A terminal signals the entire process group (si_code > 0); forwarding would deliver a Ctrl-C a second time.
        if came is not None and came.si_signo in FORWARDED and came.si_code <= 0:
            self._process.send_signal(came.si_signo)
        return self._process.poll() is not None


def _cut_short(number: int, frame: FrameType | None) -> None:
    raise _CutShort


def _environment_for(settings: Settings, plan: Plan) -> dict[str, str]:
    """Return our environment with the run's settings and the plan added, and with our folder first on PYTHONPATH."""
    given = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        PLAN: plan.to_environment(),
        "PYTHONPATH": str(STARTUP) if not given else f"{STARTUP}{os.pathsep}{given}",
        "LEAKLINE_RUN_ID": settings.run_id,
        "LEAKLINE_SERVER": settings.server,
        "LEAKLINE_MODE": settings.mode,
        # Make the path absolute, because the program may start processes in other folders.
        "LEAKLINE_DIR": str(settings.directory.absolute()),
    }
    if settings.project:
        environment["LEAKLINE_PROJECT"] = settings.project
    if settings.name is not None:
        environment["LEAKLINE_RUN_NAME"] = settings.name
    if settings.quiet:
        environment["LEAKLINE_QUIET"] = "1"
    return environment


def why_not_malloc() -> str | None:
    """Return the reason why allocations cannot be sampled, or None."""
    if not sys.platform.startswith("linux"):
        return "only Linux is supported"
    if not MALLOC.is_file():
        return f"{MALLOC.name} was not built; install gcc on a system with glibc, and reinstall leakline"
    if re.search(r"lib[atmul]+san|libclang_rt", os.environ.get("LD_PRELOAD", "")):
        return "a sanitizer is preloaded, which must come first"
    # The dynamic loader separates names by both.
    if set(": ") & set(str(MALLOC)):
        return f"the path {MALLOC} contains a space or a colon"
    return None


def plan_for(
    unit: str, tags: Sequence[str], *, children: bool, log_lines: bool, is_automatic: bool
) -> Plan:
    """Return a plan. Its ``seen`` is a new folder, which the caller has to remove."""
    return Plan(
        os.getpid(), str(STARTUP), tempfile.mkdtemp(prefix="leakline-"), os.environ.get("PYTHONPATH"),
        unit, tuple(tags), children, log_lines, is_automatic,
    )  # fmt: skip


def leave_as(status: int) -> int:
    """If a signal ended the program, end this process by the same signal. Otherwise return the exit status to use."""
    if status >= 0:
        return status
    _without_core()
    number = -status
    # Ignore the error for SIGKILL, which cannot have a handler.
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return BY_SIGNAL + number


def _without_core() -> None:
    """Disable our core dump; the program has already written one if core dumps are enabled."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _is_python(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


def _waits_for_a_processor(pid: int) -> bool:
    """Return True if a process is runnable or waiting for a disk, and has used less than STARTING_CPU_SECONDS so
    far.
    """
    fields = stat_fields(pid)
    if not fields or fields[0] not in ("R", "D"):
        return False
    ticks = int(fields[11]) + int(fields[12])
    return ticks < STARTING_CPU_SECONDS * os.sysconf("SC_CLK_TCK")


def _why_not(program: str, error: OSError) -> str:
    if program.endswith(".py"):
        return f"cannot be started; use: leakline run -- python {program}"
    return f"cannot be started ({error.strerror})"


# Polling interval for kernels without process file descriptors.
LOOK_WITHOUT_HANDLE_SECONDS: Final = 0.2
# Timeout for waiting on the process file descriptor, which wakes us when the process ends.
HANDLE_SECONDS: Final = 60.0
# Number of last readings kept, which may show that the process was killed for memory.
READINGS_KEPT: Final = 12


class Watch:
    """Watches one process from outside, between `begin` and `end`. Raises LeaklineError if the process cannot be
    watched.
    """

    def __init__(
        self, settings: Settings, pid: int, unit: str = "second", *, is_silent: bool = False
    ) -> None:
        self.pid = pid
        check(pid)
        environment = {"command_line": command_line(started_as(pid)), "watched_from_outside": True}
        subject = Subject(pid, is_silent=is_silent, unit=unit, environment=environment)
        # Turn off settings that only work from inside the process.
        plain = replace(
            settings, log_lines=False, exact_peaks=False, allocations=False, scan_workers=False
        )
        self.chain = Chain(plain, subject)
        self._readings: list[tuple[float, dict[str, Number]]] = []
        self.chain.loop.listeners.append(self._remember)
        self._intervals = Intervals(unit, self.chain.loop.end_interval)

    def begin(self) -> None:
        set_up()
        self.chain.start()
        self._intervals.start()

    def end(self, state: str, reason: str) -> None:
        """Record that the process has ended or is no longer watched."""
        self._intervals.stop()
        for step in (self.chain.loop.finish, lambda: self.chain.close((state, reason))):
            with Guard("watching"):
                step()

    def killed(self) -> str | None:
        """Return evidence from the last readings that the process was killed for memory, or None."""
        return killed_for_memory(last_readings(self._readings))

    def _remember(self, snapshot: Snapshot) -> None:
        if "process.rss_bytes" in snapshot.samples:
            self._readings.append((snapshot.time, dict(snapshot.samples)))
            del self._readings[:-READINGS_KEPT]


# The first version of Python in which one process can have another process run a script.
INSIDE_SINCE: Final = (3, 14)
# Module `sys` of older versions lacks this function.
REMOTE_EXEC: Final[Any] = getattr(sys, "remote_exec", None)
# Variables that contain paths, which may be relative to our working directory.
PATHS: Final = ("LEAKLINE_CA_FILE", "LEAKLINE_TOKEN_FILE")
MAPPED_PYTHON: Final = re.compile(r"/(?:lib)?python(\d+)\.(\d+)")
FROM_OUTSIDE: Final = "leave out --inside to watch it from outside"


class Inside:
    """Starts an observer inside a running Python program. The observer stays until the program ends."""

    def __init__(self, settings: Settings, pid: int, plan: Plan) -> None:
        self.pid = pid
        self._answer, self._script = (Path(plan.seen) / name for name in ("answer", "begin.py"))
        given = {
            name: str(Path(text).absolute()) if name in PATHS else text
            for name, text in _environment_for(settings, plan).items()
            if name.startswith("LEAKLINE_") or name == PLAN
        }
        package = str(Path(__file__).resolve().parents[1])
        call = ", ".join(map(ascii, (package, given, str(self._answer))))
        # The variables may contain a token.
        self._script.touch(0o600)
        self._script.write_text(f"{inspect.getsource(begin_inside)}\n\nbegin_inside({call})\n")

    def start(self) -> None:
        """Ask the program to run the script. Raises LeaklineError."""
        try:
            is_visible = self._script.samefile(f"/proc/{self.pid}/root{self._script}")
        except OSError:
            is_visible = False
        if not is_visible:
            raise LeaklineError(
                f"process {self.pid} cannot read {self._script.parent}; run leakline watch in its container"
            )
        try:
            REMOTE_EXEC(self.pid, str(self._script))
        except PermissionError:
            raise LeaklineError(
                f"the kernel does not allow access to process {self.pid}; allow it with: "
                f"sudo sysctl kernel.yama.ptrace_scope=0; or {FROM_OUTSIDE}"
            ) from None
        except (OSError, RuntimeError, ValueError) as error:
            why = str(error)
            if "not enabled" in why:
                why = "it runs with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug"
            raise self._refused(why) from None

    def has_begun(self, seconds: float) -> bool:
        """Wait for the observer to start. Return False if the time is up or the process has ended.

        Raises LeaklineError if the observer was refused.
        """
        until = time.monotonic() + seconds
        while not self._answer.exists():
            if time.monotonic() > until or _is_dead(self.pid):
                return False
            time.sleep(LOOK_EVERY_SECONDS)
        self._script.unlink(missing_ok=True)
        why = self._answer.read_text(errors="replace")
        if why:
            raise self._refused(why)
        return True

    def withdraw(self) -> None:
        """Replace a script that the program has not run yet by an empty one."""
        with suppress(OSError, RuntimeError):
            REMOTE_EXEC(self.pid, os.devnull)

    def _refused(self, why: str) -> LeaklineError:
        return LeaklineError(
            f"process {self.pid} cannot be observed from inside: {why}; {FROM_OUTSIDE}"
        )


def check_inside(pid: int) -> None:
    """Raise LeaklineError unless this interpreter may start an observer inside the process."""
    check(pid)
    try:
        is_ours = Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
        mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace") if is_ours else ""
    except PermissionError:
        is_ours = False
    except OSError:
        raise LeaklineError(f"process {pid} has just ended") from None
    if not is_ours:
        raise LeaklineError(
            f"process {pid} belongs to another user; run leakline watch --inside as its owner"
        )
    found = MAPPED_PYTHON.search(mapped)
    if found is None:
        raise LeaklineError(f"process {pid} is not a Python program; {FROM_OUTSIDE}")
    theirs, ours = (int(found[1]), int(found[2])), sys.version_info[:2]
    if theirs < INSIDE_SINCE:
        raise LeaklineError(
            f"--inside requires Python 3.14 or newer, but process {pid} runs Python {_dotted(theirs)}; {FROM_OUTSIDE}"
        )
    if theirs != ours:
        raise LeaklineError(
            f"process {pid} runs Python {_dotted(theirs)}, but this command runs Python {_dotted(ours)}; "
            f"install leakline for Python {_dotted(theirs)} and use that, or {FROM_OUTSIDE}"
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check(pid: int) -> None:
    """Raise LeaklineError unless the process exists, is readable and has memory of its own."""
    folder = Path(f"/proc/{pid}")
    if pid <= 0 or not folder.exists():
        raise LeaklineError(f"process {pid} does not exist; list your processes with: ps -u $USER")
    if not OtherProcess(pid).read():
        try:
            (folder / "status").read_bytes()
        except PermissionError:
            raise LeaklineError(
                f"process {pid} belongs to another user and cannot be read; run leakline watch as its owner"
            ) from None
        except OSError:
            raise LeaklineError(f"process {pid} has just ended") from None
        raise LeaklineError(
            f"process {pid} has no memory of its own: it has already ended or is a kernel thread"
        )


def wait_for_end(pid: int) -> None:
    """Wait until the process has ended. A reused process id counts as another process."""
    ticks = start_ticks(pid)
    handle = _handle(pid)
    try:
        while start_ticks(pid) == ticks and not _is_dead(pid):
            if handle is None:
                time.sleep(LOOK_WITHOUT_HANDLE_SECONDS)
            else:
                select.select([handle], [], [], HANDLE_SECONDS)
    finally:
        if handle is not None:
            os.close(handle)


def _handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _is_dead(pid: int) -> bool:
    """Return True if a process is gone or is a zombie."""
    fields = stat_fields(pid)
    return not fields or fields[0] in ("Z", "X")
