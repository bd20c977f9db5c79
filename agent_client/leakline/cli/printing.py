"""What commands print, without what would command a terminal: the names in it come from whatever was recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from ..errors import LeaklineError
from ..text_format import printable


def plain(text: str) -> str:
    """Printable characters and ends of lines; a blank for each other."""
    return printable(text, "\n")


@contextmanager
def plainly() -> Iterator[None]:
    """All text that is printed meanwhile; bytes go through as they are.

    Raises LeaklineError where standard output cannot be written.
    """
    out, errors = (cast(TextIO, _Plain(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(errors):
        yield
        out.flush()


def open_what_is_closed() -> None:
    """`leakline runs >&-`: Python gives a closed stream as None, and what is printed goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open as long as the process


class _Plain:
    """A stream of text whose writes are plain, and all else its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._as_far_as_it_is_read():
            self._stream.write(plain(text))
        return len(text)

    def flush(self) -> None:
        with self._as_far_as_it_is_read():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _as_far_as_it_is_read(self) -> Iterator[None]:
        """Of a pipe (`leakline verdict RUN --fail-on leaking | head`): who has read enough ends no command, because its
        exit status and its files are answers too.
        """
        try:
            yield
        except BrokenPipeError:
            self._give_up()
        except OSError as error:
            self._give_up()
            raise LeaklineError(
                f"standard output cannot be written ({error.strerror}); make room, or send it elsewhere"
            ) from None

    def _give_up(self) -> None:
        """What is still in the buffer goes nowhere, or the interpreter would fail on it once more at its end."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
