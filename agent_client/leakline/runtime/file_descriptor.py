"""File descriptors that detect whether the program has closed them and reused their numbers.

A program may close descriptors that it did not open, as daemonizing code does, and the next file it
opens then gets the same number. Every operation here acts on our file or fails.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final


class Descriptor(int):
    """A file descriptor number that remembers the device and inode of its file."""

    _file: tuple[int, int]

    def __new__(cls, fd: int) -> Descriptor:
        made = super().__new__(cls, fd)
        found = None if fd < 0 else os.fstat(fd)
        made._file = (-1, -1) if found is None else (found.st_dev, found.st_ino)
        return made

    def stat(self) -> os.stat_result:
        """Return the file's status. Raises OSError if the number no longer refers to our file."""
        found = os.fstat(self)
        if (found.st_dev, found.st_ino) != self._file:
            raise OSError(errno.EBADF, "the program has closed the file and reused its descriptor")
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
        """Open the same file under a new number, and leave the old descriptor untouched.

        Raises OSError if ``path`` is now a different file.
        """
        found = opened(path, os.O_RDWR | os.O_APPEND)
        if found._file != self._file:
            found.close()
            why = "the program closed the file, and the path now leads to a different file"
            raise OSError(errno.ESTALE, why, str(path))
        return found

    def close(self) -> None:
        """Close the descriptor, unless its number now refers to another file."""
        if self.is_ours:
            with suppress(OSError):
                os.close(self)


NONE: Final = Descriptor(-1)


def opened(path: Path, flags: int) -> Descriptor:
    return Descriptor(os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o644))
