"""A small file of the kernel's that is read again and again, through one descriptor: 1 microsecond instead of 12.

A descriptor on a file below ``/proc/self`` names the process that opened it, so a forked child opens its own. A
program may close all descriptors, ours among them, and get their numbers for files of its own: these we never close.
Any thread may read: a descriptor is closed only when nobody reads through it any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

# What one of these files has at most, but for the status of a user in thousands of groups.
SIZE: Final = 8192
WHOLE: Final = 1 << 20


class KeptFile:
    """Opened at the first reading in each process."""

    __slots__ = ("_kept", "_path", "_size")

    def __init__(self, path: str, size: int = SIZE) -> None:
        self._path, self._size = path, size
        # One object, replaced as one: another thread never sees the descriptor of another process as its own.
        self._kept: tuple[int, _Descriptor | None] = (-1, None)

    def read(self) -> bytes | None:
        """What is in it now, up to ``size`` bytes; None where there is no such file."""
        pid, descriptor = self._kept
        if pid != os.getpid():
            return self.read_anew()
        if descriptor is None:
            return None
        try:
            return os.pread(descriptor.number, self._size, 0)
        except OSError:
            return self.read_anew()

    def read_anew(self) -> bytes | None:
        """The whole file through a new descriptor: what came through the old one was not it, or not all of it."""
        descriptor = _open(self._path)
        self._kept = (os.getpid(), descriptor)
        if descriptor is None:
            return None
        try:
            return os.pread(descriptor.number, WHOLE, 0)
        except OSError:
            return None


class _Descriptor:
    """Closes its file when let go, unless the number has come to mean another one."""

    __slots__ = ("_file", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        status = os.fstat(number)
        self._file = (status.st_dev, status.st_ino)

    # Bound here: as the interpreter ends, the module's names are gone before the last descriptor.
    def __del__(
        self,
        fstat: Callable[[int], os.stat_result] = os.fstat,
        close: Callable[[int], None] = os.close,
    ) -> None:
        try:
            status = fstat(self.number)
            if (status.st_dev, status.st_ino) == self._file:
                close(self.number)
        except OSError:
            pass


def _open(path: str) -> _Descriptor | None:
    try:
        return _Descriptor(os.open(path, os.O_RDONLY))
    except OSError:
        return None
