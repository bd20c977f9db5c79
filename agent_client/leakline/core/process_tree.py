"""Identifies a process within its run's process tree, and creates readable names for runs."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..errors import SpoolError
from ..settings import Settings, start_ticks
from ..snapshot import ProcessIdentity
from ..transport.spool_format import read_header

if TYPE_CHECKING:
    from pathlib import Path

# Environment variable that announces the run to child processes: "<run id>:<attempt>:<start time of
# this process>:<pid>".
ANNOUNCED: Final = "_LEAKLINE_ANNOUNCED"
# Role of a process that another process of the run has started.
CHILD: Final = "child"
# The parent process's announcement, saved here while this process has a run of its own.
_inherited: Final[list[str]] = []


def identity(settings: Settings) -> ProcessIdentity:
    """Return the identity of this process within its run.

    A resumed run starts its next attempt. A child process belongs to the same attempt as the
    process that started it.
    """
    parent = _attempt_of_parent(settings.run_id)
    if parent is None:
        recorded = newest_attempt(settings.run_directory, settings.rank)
        role, attempt = "main", max(settings.restarts, recorded) + 1
    else:
        role, attempt = CHILD, parent
    return ProcessIdentity(
        os.urandom(8).hex(), settings.rank, os.getpid(), socket.gethostname(), role, attempt
    )


def newest_attempt(run_directory: Path, rank: int) -> int:
    """Return the number of the newest attempt that this rank recorded in the run's folder, or 0."""
    newest = 0
    for path in run_directory.glob("*.spool"):
        # If a process died before it recorded anything, it does not count as an attempt.
        with suppress(SpoolError):
            process = read_header(path)[1]
            if process.rank == rank and process.role == "main":
                newest = max(newest, process.attempt)
    return newest


def announce(run_id: str, attempt: int) -> None:
    """Announce this process's run to its child processes, in an environment variable."""
    pid = os.getpid()
    before = os.environ.get(ANNOUNCED)
    if before is not None and _announced_by() not in (0, pid):
        _inherited.append(before)
    os.environ[ANNOUNCED] = f"{run_id}:{attempt}:{start_ticks(pid)}:{pid}"


def take_back() -> None:
    """Withdraw this process's announcement and restore its parent's, because the parent's run may continue."""
    os.environ.pop(ANNOUNCED, None)
    if _inherited:
        os.environ[ANNOUNCED] = _inherited.pop()


def _announced_by() -> int:
    """Return the ID of the process that announced a run, or 0 if no run was announced."""
    pid = os.environ.get(ANNOUNCED, "").rpartition(":")[2]
    return int(pid) if pid.isdecimal() and len(pid) < 10 else 0


def _attempt_of_parent(run_id: str) -> int | None:
    """Return the attempt of the parent process that announced this run, or None if no such process is running."""
    run, _, rest = os.environ.get(ANNOUNCED, "").partition(":")
    attempt, _, rest = rest.partition(":")
    began, pid = rest.partition(":")[0], _announced_by()
    if run != run_id or not attempt.isdecimal() or pid in (0, os.getpid()):
        return None
    return int(attempt) if _is_there(pid) and start_ticks(pid) == began else None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # The process belongs to another user.
        return True
    return True


def in_worker() -> bool:
    """Return True in a multiprocessing child of a process with a run. The child must not start a
    second run.

    A child of a process without a run may start a run, for example a rank started by ``mp.spawn``.
    """
    if _announced_by() in (0, os.getpid()):
        return False
    # While a spawned child imports the main module, multiprocessing does not know the child's
    # parent yet.
    helper = any(argument.startswith("from multiprocessing.") for argument in sys.orig_argv)
    processes: Any = sys.modules.get("multiprocessing.process")
    return helper or (processes is not None and processes.parent_process() is not None)


_WORDS: Final = """
amber brave calm clear crisp deep eager early fair fleet gentle golden green keen kind late light
lively mellow misty noble plain proud quick quiet rapid ready silver sound spare steady still sunny
"""
_ANIMALS: Final = """
badger beaver bison crane dove eagle egret falcon finch fox gull hare heron ibis jay kestrel lark
lynx marten mole newt otter owl plover puffin raven robin seal shrew stoat stork swan tern thrush
"""


def readable_name(run_id: str) -> str:
    digest = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8])
    words, animals = _WORDS.split(), _ANIMALS.split()
    digest, first = divmod(digest, len(words))
    digest, second = divmod(digest, len(animals))
    return f"{words[first]}-{animals[second]}-{digest % 1000}"
