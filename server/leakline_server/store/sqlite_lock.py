"""One server for one SQLite file.

A server keeps in memory what it has written, and its live pages hear only of that: a second one on the same file would
store what is sent twice, and say so to nobody. Other programs may read and write the file beside it. On Postgres there
may be any number of servers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from sqlalchemy.engine import make_url

from .engine import make_folder

# Beside the file rather than the file: on some network file systems these locks are the very ones SQLite takes.
SUFFIX: Final = "-served"


class AlreadyServed(Exception):
    """Another server is on this file; its text is the sentence for who would start one more, ``stop_it`` for who would
    change the file.
    """

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(
            f"another server (process {process}) already serves {path}; use that one, name another file with "
            "--database-url, or run several servers on Postgres"
        )
        self.stop_it = f"a server (process {process}) is running on {path}; stop it first"


@contextlib.contextmanager
def alone_on(url: str) -> Iterator[None]:
    """Hold the database for this server. Raises AlreadyServed, and OSError where the file cannot be made."""
    path = _file_of(url)
    if path is None:
        yield
        return
    import fcntl

    make_folder(path.parent)
    with _opened_beside(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise AlreadyServed(path, file.read(20).strip() or "unknown") from error
        _sign(file.fileno())
        # The lock ends with the process, however that ends.
        yield


def _opened_beside(path: Path) -> IO[str]:
    # Never deleted: who deletes one that another has just opened leaves two of them.
    try:
        return path.with_name(path.name + SUFFIX).open("a+")
    except OSError as error:
        # People know their file, and not what lies beside it.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sign(descriptor: int) -> None:
    """Who it is, for the sentence of another. On a full disk nobody is named: the lock holds all the same."""
    os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{os.getpid()}\n".encode())


def _file_of(url: str) -> Path | None:
    """None where several servers may be on one database, or where nothing can be locked."""
    parsed = make_url(url)
    if os.name == "nt" or parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    # One file by whatever name.
    return Path(parsed.database).resolve()
