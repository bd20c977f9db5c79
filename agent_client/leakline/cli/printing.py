"""Prints text without terminal control sequences, because names from recordings may contain any characters."""

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
    """Replace every character that is neither printable nor a newline with a space."""
    return printable(text, "\n")


@contextmanager
def plainly() -> Iterator[None]:
    """Remove control sequences from all text that is printed in this context; bytes pass through unchanged.

    Raises LeaklineError if standard output cannot be written.
    """
    out, errors = (cast(TextIO, _Plain(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(errors):
        yield
        out.flush()


def open_what_is_closed() -> None:
    """Open the null device for each closed stream (`leakline runs >&-`), which Python represents as None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open as long as the process


class _Plain:
    """Text stream that removes control sequences from everything written to it. All other methods come from the
    original stream.
    """

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
        """Ignore a closed pipe (`leakline verdict RUN --fail-on leaking | head`).

        The command has to continue, because its exit status and the files that it writes are results too.
        """
        try:
            yield
        except BrokenPipeError:
            self._give_up()
        except OSError as error:
            self._give_up()
            raise LeaklineError(
                f"cannot write to standard output ({error.strerror}); free some disk space or redirect the output"
            ) from None

    def _give_up(self) -> None:
        """Redirect the stream to the null device; otherwise the interpreter would fail at exit when it flushes the
        buffer.
        """
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
