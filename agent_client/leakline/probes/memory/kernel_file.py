"""Small kernel files, read repeatedly through one descriptor: 1 microsecond per reading instead of 12.

A descriptor of a file below ``/proc/self`` refers to the process that opened the file, so a forked child opens its own.
A program may close all descriptors, including ours, and then get their numbers for its own files; we never close the
program's files. Any thread may read, because a descriptor is closed only after its last use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

# The maximum size of these files; only the status of a user who belongs to thousands of groups is larger.
SIZE: Final = 8192
WHOLE: Final = 1 << 20


class KeptFile:
    """A kernel file that each process opens at its first reading."""

    __slots__ = ("_kept", "_path", "_size")

    def __init__(self, path: str, size: int = SIZE) -> None:
        self._path, self._size = path, size
        # Replaced as one object, so that no thread mistakes another process's descriptor for its own.
        self._kept: tuple[int, _Descriptor | None] = (-1, None)

    def read(self) -> bytes | None:
        """Return up to ``size`` bytes of the current content, or None if the file does not exist."""
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
        """Reopen the file and return its entire content, after a wrong or incomplete result from the old descriptor."""
        descriptor = _open(self._path)
        self._kept = (os.getpid(), descriptor)
        if descriptor is None:
            return None
        try:
            return os.pread(descriptor.number, WHOLE, 0)
        except OSError:
            return None


class _Descriptor:
    """A descriptor that is closed when the object is freed, unless its number now refers to another file."""

    __slots__ = ("_file", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        status = os.fstat(number)
        self._file = (status.st_dev, status.st_ino)

    # The functions are bound as defaults, because interpreter exit clears the module's names before it frees the last
    # descriptor.
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
