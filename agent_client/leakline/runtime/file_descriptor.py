"""A file of ours by its number, which may become another's: a program closes numbers that it does not know (as one does
that becomes a daemon), and what it opens next has them. Whatever is done to a number is done to our file or not at all.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final


class Descriptor(int):
    """The number, and the file that it was opened for."""

    _file: tuple[int, int]

    def __new__(cls, fd: int) -> Descriptor:
        made = super().__new__(cls, fd)
        found = None if fd < 0 else os.fstat(fd)
        made._file = (-1, -1) if found is None else (found.st_dev, found.st_ino)
        return made

    def stat(self) -> os.stat_result:
        """Raises OSError where it is not our file's any more."""
        found = os.fstat(self)
        if (found.st_dev, found.st_ino) != self._file:
            raise OSError(errno.EBADF, "the program has closed the file and opened one of its own")
        return found

    @property
    def is_ours(self) -> bool:
        try:
            self.stat()
        except OSError:
            return False
        return True

    def write(self, data: bytes | bytearray) -> int:
        self.stat()
        return os.write(self, data)

    def anew(self, path: Path) -> Descriptor:
        """The same file under another number; the old one is not touched. Raises OSError where ``path`` is another."""
        found = opened(path, os.O_RDWR | os.O_APPEND)
        if found._file != self._file:
            found.close()
            raise OSError(errno.ESTALE, "the program has closed the file", str(path))
        return found

    def close(self) -> None:
        """Not what is the program's by now."""
        if self.is_ours:
            with suppress(OSError):
                os.close(self)


NONE: Final = Descriptor(-1)


def opened(path: Path, flags: int) -> Descriptor:
    return Descriptor(os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o644))
