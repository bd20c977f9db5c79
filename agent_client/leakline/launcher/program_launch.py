"""Starting a program for `leakline run`, and passing everything through: its signals, its exit status, its terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from ..core.exit_status import BY_SIGNAL
from ..errors import BadArgument
from ..settings import Settings
from .observer import PLAN, Plan

STARTUP: Final = Path(__file__).resolve().parent / "startup"
# What is sent to us is for the program.
FORWARDED: Final = frozenset(
    {
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    }
)  # fmt: skip
# With which a person, or a machine that goes down, asks us to end.
ENDS_US: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# An interpreter says that it is there before its program begins; one on a slow disk later than others.
SEEN_WITHIN_SECONDS: Final = 5.0
# What is no interpreter may be a script that becomes one, as those of pyenv and conda.
BECOMES_ONE_WITHIN_SECONDS: Final = 2.0
LOOK_EVERY_SECONDS: Final = 0.02


class _CutShort(BaseException):
    """The time is over, or a signal came."""


class Program:
    """The program, from its start to its end. Only for the main thread of a process that does nothing else."""

    def __init__(self, command: Sequence[str], settings: Settings, plan: Plan) -> None:
        self.command, self._plan = command, plan
        self._environment = environment_for(settings, plan)
        self._process: subprocess.Popen[bytes] | None = None
        self._before: set[signal.Signals] = set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Raises BadArgument when there is no such program."""
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
                # What a shell hands on, as with <(...), is for the program; what we open ourselves is not inherited.
                close_fds=False,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._before),
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            raise BadArgument(
                "PROGRAM", self.command[0], _why_not(self.command[0], error)
            ) from None

    def is_seen(self) -> bool:
        """Whether it is an interpreter that observes itself. Waits until that is known, or the program has ended."""
        began, marker = time.monotonic(), Path(self._plan.seen) / str(self.pid)
        while not marker.exists():
            passed = time.monotonic() - began
            limit = SEEN_WITHIN_SECONDS if _is_python(self.pid) else BECOMES_ONE_WITHIN_SECONDS
            if passed > limit or self._pass_on(LOOK_EVERY_SECONDS):
                break
        return marker.exists()

    def wait(self) -> int:
        """Its exit status; below zero, the signal that ended it."""
        assert self._process is not None
        while not self._pass_on(None):
            pass
        return self._process.wait()

    @contextmanager
    def afterwards(self, seconds: float) -> Iterator[None]:
        """The program has ended: signals are for us, and one of them ends what is done here, as does the time."""
        # What came before was for the program.
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
        """Pass one signal on, if one comes in this time. Whether the program has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            return True
        waited = {*FORWARDED, signal.SIGCHLD}
        came = (
            signal.sigwaitinfo(waited)
            if timeout_seconds is None
            else signal.sigtimedwait(waited, timeout_seconds)
        )
        # What a terminal sends it sends to the whole group; a second Ctrl-C would be another one.
        if came is not None and came.si_signo in FORWARDED and came.si_code <= 0:
            self._process.send_signal(came.si_signo)
        return self._process.poll() is not None


def _cut_short(number: int, frame: FrameType | None) -> None:
    raise _CutShort


def environment_for(settings: Settings, plan: Plan) -> dict[str, str]:
    """What the program is started with: the run, the plan, and our folder before all others that Python looks in."""
    given = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        PLAN: plan.to_environment(),
        "PYTHONPATH": str(STARTUP) if not given else f"{STARTUP}{os.pathsep}{given}",
        "LEAKLINE_RUN_ID": settings.run_id,
        "LEAKLINE_SERVER": settings.server,
        "LEAKLINE_MODE": settings.mode,
        # Also for what the program starts in another folder.
        "LEAKLINE_DIR": str(settings.directory.absolute()),
    }
    if settings.project:
        environment["LEAKLINE_PROJECT"] = settings.project
    if settings.name is not None:
        environment["LEAKLINE_RUN_NAME"] = settings.name
    if settings.quiet:
        environment["LEAKLINE_QUIET"] = "1"
    return environment


def plan_for(unit: str, tags: Sequence[str], *, children: bool, log_lines: bool) -> Plan:
    """``seen`` is a new folder, to be removed by the caller."""
    return Plan(
        os.getpid(), str(STARTUP), tempfile.mkdtemp(prefix="leakline-"), os.environ.get("PYTHONPATH"),
        unit, tuple(tags), children, log_lines,
    )  # fmt: skip


def leave_as(status: int) -> int:
    """End this process by the signal that ended the program; else the status to end with."""
    if status >= 0:
        return status
    _without_core()
    number = -status
    # SIGKILL has no handler to set.
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return BY_SIGNAL + number


def _without_core() -> None:
    """The program has left one, where any is wanted."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _is_python(pid: int) -> bool:
    """Whether it runs an interpreter now."""
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


def _why_not(program: str, error: OSError) -> str:
    if program.endswith(".py"):
        return f"cannot be started; write: leakline run -- python {program}"
    return f"cannot be started ({error.strerror})"
