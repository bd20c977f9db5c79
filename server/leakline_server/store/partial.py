"""Files that are being written, beside the one that they become. A process that is killed meanwhile leaves its own:
who writes the next into the folder removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

# What SQLite keeps beside a file.
BESIDE: Final = ("-wal", "-shm", "-journal")
# Of one whose process cannot be asked after: of another machine, or where a process of now has its number.
LONG_SECONDS: Final = 86_400.0
_NAME: Final = re.compile(
    r".+\.(?P<host>[\w-]+)\.(?P<pid>\d+)\.\w{8}\.(?:part|restoring)", re.ASCII
)


def begin(path: Path, suffix: str) -> Path:
    """An empty file beside ``path`` that nobody else uses and nobody else may read. ``suffix``: part or restoring."""
    _remove_left(path.parent)
    prefix = f"{path.name}.{_host()}.{os.getpid()}."
    number, name = tempfile.mkstemp(f".{suffix}", prefix, path.parent)
    os.close(number)
    return Path(name)


def remove(path: Path) -> None:
    for name in ("", *BESIDE):
        path.with_name(path.name + name).unlink(missing_ok=True)


def _remove_left(folder: Path) -> None:
    for path in folder.glob("*.*.*.*.*"):
        found = _NAME.fullmatch(path.name)
        # What may not be removed is in nobody's way.
        with contextlib.suppress(OSError):
            if found is not None and _is_left(path, found["host"], int(found["pid"])):
                remove(path)


def _is_left(path: Path, host: str, pid: int) -> bool:
    if host == _host() and not _lives(pid):
        return True
    return path.stat().st_mtime < time.time() - LONG_SECONDS


def _lives(pid: int) -> bool:
    if os.name == "nt":
        # There this would end it.
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    return re.sub(r"[^\w-]", "-", socket.gethostname(), flags=re.ASCII) or "-"
