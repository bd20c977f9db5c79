"""Common result of all log readers (readings and notes on assumptions), and the lines of a text file.

Lines are numbered, limited in length and free of control characters. Readings are counted and merged while a file is
read, so memory use does not depend on the length of the file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ..errors import LeaklineError
from ..snapshot import Number
from ..text_format import printable

# Maximum size of a text file, and of any other kind of file.
MAX_TEXT_BYTES: Final = 64 * 2**20
MAX_FILE_BYTES: Final = 1024 * 2**20
MAX_READINGS: Final = 100_000
MAX_GAUGES: Final = 32
MAX_MESSAGE: Final = 1_000
# No process has more memory than this; larger values must have been read in the wrong unit.
MAX_MEMORY_BYTES: Final = 64 * 2**40
# The end of a note about a log without generations: how growth is reported.
BY_TIME: Final = (
    "so growth is given per second for runs of up to ten minutes, and per minute for longer runs "
    "(always per minute with --unit minute)"
)
# The end of the same note for a file without timestamps.
BY_READING: Final = "and none has a time, so each reading counts as one step"
# Limit of valid times, in Unix seconds.
MAX_MOMENT: Final = 1e11


class ImportRefused(LeaklineError):
    """Raised if a file is refused as a whole. Contains the path and, if known, the line."""

    def __init__(self, path: object, why: str, line: int | None = None) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        # Remove unprintable characters, because the reason may quote the file or a database error.
        message = f"{where}: {why}"[:MAX_MESSAGE]
        super().__init__(printable(message))
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at one moment. ``time`` is in seconds by the file's own clock, or None if the reading has no time."""

    line: int
    samples: Mapping[str, Number]
    time: float | None = None
    generation: int | None = None
    phase: str | None = None
    label: str = ""
    # (type, bytes), largest first.
    large: tuple[tuple[str, int], ...] = ()
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Log:
    """The content of a file. ``notes`` describe the assumptions made.

    ``unit`` is the file's own word for its generations, or None if the file has no generations. ``is_clock`` is True if
    times are Unix seconds, and False if they are seconds since the start.
    """

    form: str
    readings: tuple[Reading, ...]
    unit: str | None = None
    total: int | None = None
    notes: tuple[str, ...] = ()
    is_clock: bool = False
    # Maps each tracked container to its capacity.
    capacities: Mapping[str, int] = field(default_factory=dict)
    # Maps each type to its expected minimum and maximum count.
    expected: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    project: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """Properties of the file that the user has specified. None means that the value has to be detected."""

    form: str | None = None
    # Bytes per unit for sizes without a unit.
    size_unit: int | None = None
    # Read MB and GB as 2^20 and 2^30 bytes.
    binary: bool = False
    # Name of the column or metric that contains the memory.
    memory: str | None = None
    # Column names of a table without a header.
    columns: tuple[str, ...] = ()
    # Offset that is added to each generation number.
    offset: int = 0
    # The run to read from a file with several runs.
    run: str | None = None
    every: int = 1
    # (type, minimum, maximum).
    expected: tuple[tuple[str, int, int], ...] = ()


MEMORY: Final = "process.rss_bytes"


def taken(path: Path, readings: Iterable[Reading], every: int) -> tuple[Reading, ...]:
    """Return the readings, merged in groups of ``every``. Raises ImportRefused if too many readings remain."""
    kept: list[Reading] = []
    count = stretches = 0
    where: tuple[int | None, str | None] | None = None
    for reading in _thinned(readings, every) if every > 1 else readings:
        count += 1
        here = (reading.generation, reading.phase)
        stretches += here != where
        where = here
        if count <= MAX_READINGS:
            kept.append(reading)
        else:
            kept.clear()
    if count > MAX_READINGS:
        raise ImportRefused(path, _too_many(count, stretches, every))
    return tuple(kept)


def _too_many(count: int, stretches: int, every: int) -> str:
    limit = MAX_READINGS
    if stretches > limit:
        return f"has {count:,} readings of {stretches:,} generations, but at most {limit:,} are read; split the file"
    times = every * -(-count // limit)
    return (
        f"has {count:,} readings, but at most {limit:,} are read; merge them with --every {times}"
    )


def _thinned(readings: Iterable[Reading], every: int) -> Iterator[Reading]:
    """Merge up to ``every`` successive readings from the same phase and generation, with their maximum as the peak."""
    together: list[Reading] = []
    for reading in readings:
        last = together[-1] if together else reading
        if len(together) >= every or (last.generation, last.phase) != (
            reading.generation,
            reading.phase,
        ):
            yield _joined(together)
            together = []
        together.append(reading)
    if together:
        yield _joined(together)


def _joined(together: Sequence[Reading]) -> Reading:
    highs = [reading.samples[MEMORY] for reading in together if MEMORY in reading.samples]
    last = together[-1]
    if len(highs) < 2:
        return last
    return replace(last, samples={**last.samples, "process.peak_bytes": max(highs)})


MAX_LINE_LENGTH: Final = 2_000
# Number of characters after which a line is refused as too long. It is large because progress bars overwrite one line
# many times.
_MAX_RAW: Final = 1 << 20
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def moment_of(iso: str) -> float | None:
    """Convert a log's timestamp to Unix seconds, or return None if it is invalid. The default time zone is UTC."""
    try:
        moment = datetime.fromisoformat(iso.replace(",", "."))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def lines_of(path: Path, *, tabs: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) for every line that is not empty; numbers start at 1. Raises ImportRefused.

    If a progress bar overwrites a line with carriage returns, each version of the line is yielded. Invalid UTF-8 is
    replaced instead of refused, because the figures in a damaged log are usually intact. ``tabs``: keep tabs instead of
    replacing them with spaces.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ImportRefused(
                path,
                f"is larger than {MAX_TEXT_BYTES // 2**20} MiB; extract the part that contains the memory readings",
            )
        with path.open("rb") as file:
            start = file.read(4)
        with path.open(encoding=_encoding_of(start), errors="replace", newline="\n") as file:
            number = 0
            while line := file.readline(_MAX_RAW):
                number += 1
                if line.endswith("\n") or len(line) < _MAX_RAW:
                    for written in line.rstrip("\r\n").split("\r"):
                        text = plain(written, tabs=tabs)
                        if text.strip():
                            yield number, text
                else:
                    raise ImportRefused(path, f"is longer than {_MAX_RAW:,} characters", number)
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error


def _encoding_of(start: bytes) -> str:
    found = next((name for bom, name in _BOMS if start.startswith(bom)), None)
    return "utf-8-sig" if found in (None, "utf-8") else found or "utf-8"


def plain(text: str, *, tabs: bool = False) -> str:
    """Return the text without terminal control characters, cut to the maximum line length."""
    cut = text[:MAX_LINE_LENGTH] if tabs else text[:MAX_LINE_LENGTH].replace("\t", "    ")
    return printable(cut, "\t" if tabs else "")
