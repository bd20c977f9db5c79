"""Captures the newest lines that the program prints and logs, if ``log_lines`` is set.

If a run dies, these lines show its last output.

Each piece of output costs the program one more call and one entry in a bounded queue. The entries
are turned into lines later, on one of our threads or at a phase end. The program's calls never wait
for a lock, so a signal handler or a fork may interrupt them at any point.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from .environment import masked

LINES_KEPT: Final = 50
LINE_LIMIT: Final = 400
# A program calls `write` about twice for each printed line, and up to eight times for each line of
# a traceback.
PIECES_KEPT: Final = 512
PIECE_LIMIT: Final = 4_000
# Minimum time between two events. This is less than the second between background readings, so that
# every reading may carry lines.
EVENT_SECONDS: Final = 0.5
# Size limit of one event as JSON, so that a batch of 200 snapshots stays below the size that a
# server accepts.
EVENT_BYTES: Final = 8_000
TRACEBACK_FRAMES: Final = 16
# The pseudo stream of log records; 0 and 1 are stdout and stderr.
_LOGGED: Final = 2
# Cursor movements and colors, as written by progress bars and loggers.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_OURS: Final = "leakline: "

# Stream number and text.
_Piece = tuple[int, str]
_Write = Callable[..., Any]


class OutputTail:
    """Captures output from `start` to `stop`; `take` returns the lines captured since its last call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._on = False
        self._pieces: deque[_Piece] = deque(maxlen=PIECES_KEPT)
        # Stream -> the text of its unterminated line.
        self._begun: dict[int, str] = {}
        # Complete lines that have not been reported yet.
        self._fresh: deque[str] = deque(maxlen=LINES_KEPT)
        self._making = threading.Lock()
        self._lines_kept: deque[str] = deque(maxlen=LINES_KEPT)
        self._reported_at = clock() - EVENT_SECONDS
        self._ending: list[str] = []
        self._streams: list[tuple[Any, _Write, _Write | None]] = []
        self._handed_on: tuple[Any, Any] | None = None

    def start(self, *streams: Any) -> None:
        """Capture stdout and stderr (or ``streams``) and log records."""
        self._on = True
        for number, stream in enumerate(streams or (sys.stdout, sys.stderr)):
            if stream is not None and all(stream is not known for known, _, _ in self._streams):
                self._listen(number, stream)
        self._listen_to_logging()

    def stop(self) -> None:
        """Restore the original functions. If the program has wrapped one of our functions, ours
        stays in place and only forwards calls.
        """
        self._on = False
        for stream, ours, before in self._streams:
            if vars(stream).get("write") is ours:
                with suppress(AttributeError):
                    delattr(stream, "write") if before is None else setattr(stream, "write", before)
        self._streams.clear()
        if self._handed_on is not None and logging.Logger.callHandlers is self._handed_on[0]:
            logging.Logger.callHandlers = self._handed_on[1]  # type: ignore[method-assign]
        self._handed_on = None
        self._pieces.clear()
        self._begun.clear()
        self._fresh.clear()
        self._lines_kept.clear()
        self._ending.clear()

    def waits(self) -> bool:
        """Return True if there are lines to report and the last report was at least EVENT_SECONDS ago."""
        if self._clock() - self._reported_at < EVENT_SECONDS:
            return False
        self._make_lines()
        return bool(self._fresh)

    def ends_with(self, error: BaseException) -> None:
        """Remember the traceback of the exception that ends the program, as text without references to objects."""
        text = "".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES))
        self._ending = _clean(text[-PIECE_LIMIT:].split("\n"))

    def take(self, *, last: bool = False) -> list[str]:
        """Return up to LINES_KEPT new lines, shortened, without control characters and with secrets masked.

        If ``last``, also return unterminated lines, and the traceback if the program has not
        printed it.
        """
        if not (last or self.waits()):
            return []
        if last:
            self._make_lines(wait_seconds=0.05)
            self._fresh.extend(self._begun.values())
            self._begun.clear()
        raw = list(self._fresh)
        self._fresh.clear()
        lines = _clean(raw)
        if last and self._ending and self._ending[-1] not in (*self._lines_kept, *lines):
            lines += self._ending
        lines = _newest(lines)
        if lines:
            self._lines_kept.extend(lines)
            self._reported_at = self._clock()
        return lines

    def _make_lines(self, wait_seconds: float = 0.0) -> None:
        """Turn captured pieces into lines. Only one thread at a time may do this, so that the
        pieces of a line stay together. A thread that cannot get the lock returns.
        """
        if not self._making.acquire(timeout=wait_seconds):
            return
        came: list[_Piece] = []
        try:
            came.extend(self._pieces.popleft() for _ in range(len(self._pieces)))
        except IndexError:
            # Another thread has called `stop`, which cleared the queue.
            return
        else:
            for stream, pieces in groupby(came, key=itemgetter(0)):
                # Drop lines that are never reported, so that they do not displace lines that are.
                self._fresh.extend(line for line in self._lines_of(stream, pieces) if _says(line))
        finally:
            self._making.release()

    def _lines_of(self, stream: int, pieces: Iterable[_Piece]) -> list[str]:
        """Add the pieces to the stream's unterminated line and return the lines that are now complete."""
        begun = self._begun.pop(stream, "")
        *whole, rest = "".join((begun, *(text for _, text in pieces))).split("\n")
        if rest:
            self._begun[stream] = _without_overwritten(rest)[:PIECE_LIMIT]
        return whole

    def _listen(self, number: int, stream: Any) -> None:
        """Wrap ``write`` on the stream object itself, so that its identity, name and buffer stay unchanged."""
        try:
            write, before = stream.write, vars(stream).get("write")
            ours = stream.write = _listen(self, number, write)
        except (AttributeError, TypeError):
            # The stream's ``write`` cannot be replaced, so the stream is not captured.
            return
        self._streams.append((stream, ours, before))

    def _listen_to_logging(self) -> None:
        """Wrap Logger.callHandlers. A handler on the root logger would disable the program's ``basicConfig``."""
        before = logging.Logger.callHandlers

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            before(logger, record)
            if self._on:
                with suppress(AttributeError, IndexError, MemoryError, TypeError):
                    self._hear(record)

        self._handed_on = (call_handlers, before)
        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment, method-assign]

    def _hear(self, record: logging.LogRecord) -> None:
        """Capture a formatted log record. Skip a record that its handler has just written to a
        captured stream.
        """
        message = record.__dict__.get("message")
        if type(message) is not str or record.name == "leakline":
            return
        newest = [self._pieces[-1 - i] for i in range(min(2, len(self._pieces)))]
        if not any(message[:LINE_LIMIT] in text for _, text in newest):
            line = f"{record.levelname} {record.name}: {message[:PIECE_LIMIT]}\n"
            self._pieces.append((_LOGGED, line))


def _says(line: str) -> bool:
    return not line.startswith(_OURS) and not line.isspace() and line != ""


def _listen(tail: OutputTail, number: int, write: _Write) -> _Write:
    """Return a function that passes its arguments to ``write`` and captures the text."""
    note = tail._pieces.append

    def pass_on(*given: Any, **named: Any) -> Any:
        written = write(*given, **named)
        try:
            # A str subclass of the program may raise in len() or pretend to be another type.
            if tail._on and given:
                text = given[0]
                if type(text) is str and len(text) <= PIECE_LIMIT:
                    note((number, text))
                elif issubclass(type(text), str):
                    note((number, _cut(text)))
        except MemoryError:
            # The program will get its own MemoryError at its next allocation.
            return written
        return written

    return pass_on


def _cut(text: str) -> str:
    """Return a plain str of limited length: the end if ``text`` has several lines, otherwise the beginning."""
    if str.__len__(text) <= PIECE_LIMIT:
        return str.__getitem__(text, slice(None))
    if str.find(text, "\n", 0, -1) >= 0:
        return str.__getitem__(text, slice(-PIECE_LIMIT, None))
    begin, end = str.__getitem__(text, slice(PIECE_LIMIT)), str.__getitem__(text, slice(-1, None))
    return begin + end


def _without_overwritten(line: str) -> str:
    """Return the part of a line that stays visible after its carriage returns.

    A progress bar, which overwrites its line many times, yields one line.
    """
    if "\r" not in line:
        return line
    seen = next((part for part in reversed(line.split("\r")) if part), "")
    return f"{seen}\r" if line.endswith("\r") else seen


def _clean(lines: Iterable[str]) -> list[str]:
    """Remove overwritten text, colors and control characters, mask secrets, and drop empty lines and our own lines."""
    seen = (_ESCAPES.sub("", _without_overwritten(line)).replace("\t", "    ") for line in lines)
    plain = (masked(_CONTROL.sub("", line)[:LINE_LIMIT].rstrip()) for line in seen)
    return [line for line in plain if line and not line.startswith(_OURS)]


def _newest(lines: list[str]) -> list[str]:
    """Return the last lines that fit into one event."""
    room, first = EVENT_BYTES, len(lines)
    while first > max(0, len(lines) - LINES_KEPT):
        # JSON escapes a non-ASCII character as six or twelve bytes; six per character are assumed.
        room -= 3 + len(lines[first - 1]) * (1 if lines[first - 1].isascii() else 6)
        if room < 0:
            break
        first -= 1
    return lines[first:]
