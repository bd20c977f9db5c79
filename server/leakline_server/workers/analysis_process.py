"""A separate process for examinations, so that a batch never waits for the GIL while the analysis computes.

The server starts the process for the first examination, and again after the process has died. Requests, one run at a
time, are pickled to the process's stdin, and results to its stdout. The process reads the database but does not write
to it. When its input ends, for example because the server was killed, it exits after the current examination. If it
cannot be started, or dies before its first result, examinations run in the server for a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Any, Final, Literal

from leakline import __version__
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities

from ..store.engine import (
    DATABASE_ERRORS,
    Engine,
    is_out_of_space,
    is_undecodable,
    open_engine,
    without_content,
)
from ..store.examinations import Examined
from ..store.maintenance import corruption, quarantine
from ..store.maintenance.disk_space import missing_file
from ..store.runs.run_history import NoSuchRun
from ..store.series import CorruptChunk
from .examination import CannotLook, Closed, Look, Looking, NoRoom

# Training and ingest have priority over this process.
NICE: Final = 5
# Even a long run is examined within seconds; a process that takes this long is stuck.
LONGEST_SECONDS: Final = 600.0
# The initial value of malloc's thresholds in glibc. Setting a threshold explicitly disables its automatic adjustment.
THRESHOLD_BYTES: Final = 128 * 1024
# Parameter numbers from malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_SET_BY_PEOPLE: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
# How long the server examines runs itself after the process failed to start, before it tries again.
HERE_SECONDS: Final = 600.0

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class _Given:
    """The first message sent to a process."""

    version: str
    database_url: str
    priorities: Priorities


@dataclass(frozen=True, slots=True)
class _Asked:
    run_id: str
    # Runs that have ended since the last request.
    forget: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a request. ``text`` explains a failure; for an unexpected error it is the traceback.

    ``cpu_seconds`` is the total CPU time of the process; ``damaged`` is the damage first detected by this request.
    """

    kind: Literal["looked", "gone", "full", "failed", "damaged", "sign", "bug"]
    looked: Examined | None = None
    text: str = ""
    cpu_seconds: float = 0.0
    damaged: tuple[corruption.Damaged, ...] = ()


class Apart:
    """Examines runs in a separate process. One thread must call all methods except `close` and `pid`."""

    def __init__(self, engine: Engine, priorities: Priorities = DEFAULTS) -> None:
        self._engine, self._priorities = engine, priorities
        self._version = __version__
        self._process: subprocess.Popen[bytes] | None = None
        # The replacement used while the process cannot be started, and the monotonic time at which the replacement
        # ends.
        self._here: Look | None = None
        self._here_until = 0.0
        self._forget: list[str] = []
        # The process's CPU time that is already accounted for.
        self._cpu_seconds = 0.0
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, run_id: str) -> Examined:
        if self._here is not None and time.monotonic() < self._here_until:
            return self._here(run_id)
        process = self._process or self._started()
        if process is not None:
            self._here = None
            return self._ask(process, run_id)
        self._here = Looking(self._engine, priorities=self._priorities)
        self._here_until = time.monotonic() + HERE_SECONDS
        return self._here(run_id)

    def forget(self, run_id: str) -> None:
        if self._here is not None:
            self._here.forget(run_id)
        elif self._process is not None:
            self._forget.append(run_id)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def close(self) -> None:
        """End the process. An examination in progress raises Closed."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _started(self) -> subprocess.Popen[bytes] | None:
        """Start the process; return None if it cannot be started. Raises Closed after `close`."""
        with self._lock:
            if self._closed:
                raise Closed
            try:
                self._process = process = _start()
            except OSError as error:
                log.warning("the analysis runs in the server process: %s", error)
                return None
        self._forget.clear()
        self._cpu_seconds = 0.0
        url = self._engine.url.render_as_string(hide_password=False)
        try:
            # The settings are sent on stdin, because the URL may contain a password and arguments are visible to all
            # users.
            said = self._exchange(process, _Given(self._version, url, self._priorities))
        except CannotLook:
            said = f"the analysis process exited immediately (exit status {process.poll()})"
        if said:
            log.warning("the analysis runs in the server process: %s", said)
            self._drop(process)
            return None
        return process

    def _ask(self, process: subprocess.Popen[bytes], run_id: str) -> Examined:
        asked = _Asked(run_id, tuple(self._forget))
        self._forget.clear()
        answer: _Answer = self._exchange(process, asked)
        for each in answer.damaged:
            corruption.found(self._engine, each)
        looked = _looked(answer, run_id)
        # The process's CPU time includes its startup and failed examinations.
        used, self._cpu_seconds = answer.cpu_seconds - self._cpu_seconds, answer.cpu_seconds
        return replace(looked, cpu_seconds=used)

    def _exchange(self, process: subprocess.Popen[bytes], what: object) -> Any:
        """Send a request and return the result. End the process after any error.

        Raises CannotLook if the process has ended or its result cannot be read, and Closed after `close`.
        """
        assert process.stdin is not None and process.stdout is not None
        stuck = threading.Timer(LONGEST_SECONDS, process.kill)
        stuck.daemon = True
        stuck.start()
        answered = False
        try:
            pickle.dump(what, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
            answered = True
        except (
            OSError, EOFError, ValueError, pickle.UnpicklingError,
            AttributeError, ImportError, IndexError, MemoryError,
        ) as error:  # fmt: skip
            # ValueError means that `close` has closed the pipes. Pickle raises the other errors for a truncated result,
            # or for a result that refers to names that an upgrade of the installed package has moved.
            self._drop(process, error)
            raise CannotLook(
                f"the analysis process has exited (exit status {process.poll()})"
            ) from error
        finally:
            stuck.cancel()
            if not answered and self._process is process:
                # The next request must not read the rest of this result.
                self._drop(process)
        return answer

    def _drop(self, process: subprocess.Popen[bytes], error: Exception | None = None) -> None:
        """End the process. Raises Closed if `close` has already ended the process."""
        with self._lock:
            if self._closed:
                raise Closed from error
            self._process = None
        _end(process)


def _looked(answer: _Answer, run_id: str) -> Examined:
    if answer.looked is not None:
        return answer.looked
    if answer.kind == "gone":
        raise NoSuchRun(run_id)
    if answer.kind == "full":
        raise NoRoom(answer.text)
    if answer.kind == "failed":
        raise CannotLook(answer.text)
    if answer.kind == "damaged":
        raise CorruptChunk(answer.text)
    # A ValueError may be caused by damaged values, see `quarantine.SIGNS`.
    kind = ValueError if answer.kind == "sign" else RuntimeError
    raise kind(f"error in the analysis process:\n{answer.text}")


def _start() -> subprocess.Popen[bytes]:
    """Start the process with the server's import path; by default, it would import from the current directory."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-I" if sys.flags.isolated else "-P", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        # Keep Ctrl-C away from this process; the server ends it.
        start_new_session=True,
    )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, which is safe at any time because the process writes nothing to the database.

    Close the pipes only afterwards, because a thread may be waiting for a result until the process ends.
    """
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def return_freed_memory() -> bool:
    """Make malloc return large freed blocks to the system; the server calls this as well.

    By default, the first large body raises glibc's threshold for separate mappings, and with it the trim threshold.
    After that, large bodies are allocated in the heaps, between small long-lived objects, and every thread has its own
    heap. Return False if the C library is not glibc, or if the environment already configures malloc.
    """
    try:
        is_glibc = bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError, OSError):
        return False
    if not is_glibc or any(name in os.environ for name in _SET_BY_PEOPLE):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, THRESHOLD_BYTES)) and bool(
        mallopt(_MMAP_THRESHOLD, THRESHOLD_BYTES)
    )


def main() -> None:
    """Answer requests until the input ends."""
    # A SIGTERM to the entire process group is left to the server, which then ends this process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    # Keep printed output out of the results; messages for people are returned with the results.
    sys.stdout = sys.stderr
    log.disabled = True
    return_freed_memory()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICE)
    with contextlib.suppress(EOFError, BrokenPipeError):
        given: _Given = pickle.load(asked)
        wrong = ""
        if __version__ != given.version:
            wrong = f"leakline {__version__} has been installed since this server started; restart the server"
        elif missing_file(given.database_url):
            # Opening the database would create an empty file, and SQLite would then delete the write-ahead log of the
            # original.
            wrong = "the database file is missing"
        _tell(answers, wrong)
        if wrong:
            return
        engine = open_engine(given.database_url)
        looking = Looking(engine, priorities=given.priorities)
        gc.freeze()
        while True:
            _answer(engine, looking, asked, answers)


def _answer(engine: Engine, looking: Look, asked: IO[bytes], answers: IO[bytes]) -> None:
    wanted: _Asked = pickle.load(asked)
    before = corruption.known(engine)
    for run_id in wanted.forget:
        looking.forget(run_id)
    answer = _look(looking, wanted.run_id)
    damaged = tuple(corruption.known(engine) - before)
    _tell(answers, replace(answer, cpu_seconds=time.process_time(), damaged=damaged))


def _tell(answers: IO[bytes], what: object) -> None:
    pickle.dump(what, answers)
    answers.flush()


def _look(looking: Callable[[str], Any], run_id: str) -> _Answer:
    try:
        return _Answer("looked", looking(run_id))
    except NoSuchRun:
        return _Answer("gone")
    except CorruptChunk as error:
        return _Answer("damaged", text=str(error))
    except DATABASE_ERRORS as error:
        if is_undecodable(error):
            return _Answer("damaged", text=without_content(error))
        return _Answer("full" if is_out_of_space(error) else "failed", text=without_content(error))
    except quarantine.SIGNS:
        return _Answer("sign", text=traceback.format_exc())
    except Exception:  # noqa: BLE001
        # An error in one run must not stop the examinations of other runs. The server raises the error.
        return _Answer("bug", text=traceback.format_exc())
