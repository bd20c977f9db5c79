"""The newest lines that the program printed and logged, where people allow it: the last words of a run that died.

What a program does for a line is one more call and one entry of a bounded queue; lines are made of it on our thread,
or at a phase end, once a second. Nobody waits for a lock, so that a signal handler and a fork may come at any moment.
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
# A program calls `write` about twice for a line that it prints, and up to eight times for one of a traceback.
PIECES_KEPT: Final = 512
PIECE_LIMIT: Final = 4_000
# Between two events. Less than the second between two readings in the background, so that each of them may carry lines.
EVENT_SECONDS: Final = 0.5
# Of one event as JSON, so that a batch of 200 snapshots stays below what a server takes.
EVENT_BYTES: Final = 8_000
TRACEBACK_FRAMES: Final = 16
# After stdout and stderr.
_LOGGED: Final = 2
# Moving the cursor and colours, of progress bars and of loggers.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_OURS: Final = "leakline: "

# A stream's number and a text.
_Piece = tuple[int, str]
_Write = Callable[..., Any]


class OutputTail:
    """Listens from `start` to `stop`; `take` gives the lines that came since it was asked last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._on = False
        self._pieces: deque[_Piece] = deque(maxlen=PIECES_KEPT)
        # Stream -> what was written of a line that has no end yet.
        self._begun: dict[int, str] = {}
        # Lines that have their end, not reported yet.
        self._fresh: deque[str] = deque(maxlen=LINES_KEPT)
        self._making = threading.Lock()
        self._lines_kept: deque[str] = deque(maxlen=LINES_KEPT)
        self._reported_at = clock() - EVENT_SECONDS
        self._ending: list[str] = []
        self._streams: list[tuple[Any, _Write, _Write | None]] = []
        self._handed_on: tuple[Any, Any] | None = None

    def start(self, *streams: Any) -> None:
        """Listen to stdout and stderr (or to ``streams``) and to logging."""
        self._on = True
        for number, stream in enumerate(streams or (sys.stdout, sys.stderr)):
            if stream is not None and all(stream is not known for known, _, _ in self._streams):
                self._listen(number, stream)
        self._listen_to_logging()

    def stop(self) -> None:
        """Put everything back. Where somebody has wrapped it again since, our part only passes on."""
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
        """Whether there are lines to tell, and long enough since the last time."""
        if self._clock() - self._reported_at < EVENT_SECONDS:
            return False
        self._make_lines()
        return bool(self._fresh)

    def ends_with(self, error: BaseException) -> None:
        """The exception that ends the program. Its traceback as text: nothing of it is kept."""
        text = "".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES))
        self._ending = _clean(text[-PIECE_LIMIT:].split("\n"))

    def take(self, *, last: bool = False) -> list[str]:
        """New lines, at most LINES_KEPT, bounded, without control characters, secrets masked as well as we can.

        ``last``: what has no end yet as well, and the traceback unless the program has printed it by now.
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
        """By one thread at a time, so that the pieces of a line stay together; who finds another at it leaves it."""
        if not self._making.acquire(timeout=wait_seconds):
            return
        came: list[_Piece] = []
        try:
            came.extend(self._pieces.popleft() for _ in range(len(self._pieces)))
        except IndexError:
            # Stopped meanwhile.
            return
        else:
            for stream, pieces in groupby(came, key=itemgetter(0)):
                # What is reported of no line takes no room of those that are.
                self._fresh.extend(line for line in self._lines_of(stream, pieces) if _says(line))
        finally:
            self._making.release()

    def _lines_of(self, stream: int, pieces: Iterable[_Piece]) -> list[str]:
        """The lines that end with these pieces of one stream."""
        begun = self._begun.pop(stream, "")
        *whole, rest = "".join((begun, *(text for _, text in pieces))).split("\n")
        if rest:
            self._begun[stream] = _without_overwritten(rest)[:PIECE_LIMIT]
        return whole

    def _listen(self, number: int, stream: Any) -> None:
        """Wrap ``write`` of this very object, so that its name, its buffer and whoever holds it stay what they are."""
        try:
            write, before = stream.write, vars(stream).get("write")
            ours = stream.write = _listen(self, number, write)
        except (AttributeError, TypeError):
            # A stream of its own kind: its lines are not seen.
            return
        self._streams.append((stream, ours, before))

    def _listen_to_logging(self) -> None:
        """Not by a handler at the root: with one there, ``basicConfig`` of the program would do nothing any more."""
        before = logging.Logger.callHandlers

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            before(logger, record)
            if self._on:
                with suppress(AttributeError, IndexError, MemoryError, TypeError):
                    self._hear(record)

        self._handed_on = (call_handlers, before)
        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment, method-assign]

    def _hear(self, record: logging.LogRecord) -> None:
        """A record that a handler of the program wrote somewhere, unless that was a stream we listen to."""
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
    """Return a function that notes the text and passes on whatever ``write`` takes."""
    note = tail._pieces.append

    def pass_on(*given: Any, **named: Any) -> Any:
        written = write(*given, **named)
        try:
            # A class of the program's may raise from len(), and pretend to be a text.
            if tail._on and given:
                text = given[0]
                if type(text) is str and len(text) <= PIECE_LIMIT:
                    note((number, text))
                elif issubclass(type(text), str):
                    note((number, _cut(text)))
        except MemoryError:
            # It is the program's to hear of, at its own next object.
            return written
        return written

    return pass_on


def _cut(text: str) -> str:
    """A plain text: of several lines the last ones, of a single one its beginning."""
    if str.__len__(text) <= PIECE_LIMIT:
        return str.__getitem__(text, slice(None))
    if str.find(text, "\n", 0, -1) >= 0:
        return str.__getitem__(text, slice(-PIECE_LIMIT, None))
    begin, end = str.__getitem__(text, slice(PIECE_LIMIT)), str.__getitem__(text, slice(-1, None))
    return begin + end


def _without_overwritten(line: str) -> str:
    """What can be seen of a line after its carriage returns, so that a progress bar is one line."""
    if "\r" not in line:
        return line
    seen = next((part for part in reversed(line.split("\r")) if part), "")
    return f"{seen}\r" if line.endswith("\r") else seen


def _clean(lines: Iterable[str]) -> list[str]:
    """Lines as people saw them: without what was overwritten, colours, control characters and our own lines."""
    seen = (_ESCAPES.sub("", _without_overwritten(line)).replace("\t", "    ") for line in lines)
    plain = (masked(_CONTROL.sub("", line)[:LINE_LIMIT].rstrip()) for line in seen)
    return [line for line in plain if line and not line.startswith(_OURS)]


def _newest(lines: list[str]) -> list[str]:
    """The last ones that fit into one event."""
    room, first = EVENT_BYTES, len(lines)
    while first > max(0, len(lines) - LINES_KEPT):
        # JSON writes what is not ASCII in six bytes or twelve.
        room -= 3 + len(lines[first - 1]) * (1 if lines[first - 1].isascii() else 6)
        if room < 0:
            break
        first -= 1
    return lines[first:]
