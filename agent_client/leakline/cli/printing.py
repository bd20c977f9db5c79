"""What commands print, without what would command a terminal: the names in it come from whatever was recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast


def plain(text: str) -> str:
    """Printable characters and ends of lines; a blank for each other."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


@contextmanager
def plainly() -> Iterator[None]:
    """All text that is printed meanwhile; bytes go through as they are."""
    out, errors = (cast(TextIO, _Plain(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(errors):
        yield


class _Plain:
    """A stream of text whose writes are plain, and all else its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(plain(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
