"""The result of every reader of an old log: plain readings and notes on what was guessed; and its lines of text.

Lines are numbered and bounded, without control characters. Readings are counted and joined while they are read, so that
a file of any length takes bounded memory.
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

# A file of text, and of anything else, is not larger.
MAX_TEXT_BYTES: Final = 64 * 2**20
MAX_FILE_BYTES: Final = 1024 * 2**20
MAX_READINGS: Final = 100_000
MAX_GAUGES: Final = 32
MAX_MESSAGE: Final = 1_000
# No process has more; what is larger was read in the wrong unit.
MAX_MEMORY_BYTES: Final = 64 * 2**40
# How the growth of a file without generations is reported, in the note that says so.
BY_TIME: Final = (
    "so growth is given per second up to ten minutes, and per minute beyond "
    "(--unit minute to have minutes)"
)
# The same of a file that has no times either.
BY_READING: Final = "and none has a time, so each reading counts as one step"
# Unix seconds.
MAX_MOMENT: Final = 1e11


class ImportRefused(LeaklineError):
    """Nothing of the file is taken. Carries the path and, where there is one, the line."""

    def __init__(self, path: object, why: str, line: int | None = None) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        # It may quote the file, and a database what is in it.
        message = f"{where}: {why}"[:MAX_MESSAGE]
        super().__init__(printable(message))
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at one moment. ``time`` is in seconds, of whatever clock the file has; None where it has none."""

    line: int
    samples: Mapping[str, Number]
    time: float | None = None
    generation: int | None = None
    phase: str | None = None
    label: str = ""
    # (type, bytes), largest first
    large: tuple[tuple[str, int], ...] = ()
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Log:
    """The content of a file. ``notes`` say what was guessed.

    ``unit`` is what the generations are in the file's own words, None where it has none. ``is_clock``: times are
    Unix seconds, else seconds since the start.
    """

    form: str
    readings: tuple[Reading, ...]
    unit: str | None = None
    total: int | None = None
    notes: tuple[str, ...] = ()
    is_clock: bool = False
    # Tracked container -> what it may hold.
    capacities: Mapping[str, int] = field(default_factory=dict)
    # Type -> how many there should be, from and to.
    expected: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    project: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person has said about the file; None is to be found out."""

    form: str | None = None
    # The unit of sizes that stand without one, in bytes.
    size_unit: int | None = None
    # MB and GB as 2^20 and 2^30 bytes.
    binary: bool = False
    # The column or metric that is the memory.
    memory: str | None = None
    # Names of the columns of a table that has none.
    columns: tuple[str, ...] = ()
    # Added to the number of each generation.
    offset: int = 0
    # Of a file that holds several runs.
    run: str | None = None
    every: int = 1
    # Type, from, to.
    expected: tuple[tuple[str, int, int], ...] = ()


MEMORY: Final = "process.rss_bytes"


def taken(path: Path, readings: Iterable[Reading], every: int) -> tuple[Reading, ...]:
    """All of them, ``every`` so many joined. Raises ImportRefused where there are too many, and says what helps."""
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
        return f"has {count:,} readings of {stretches:,} generations, {limit:,} are taken; cut it into parts"
    times = every * -(-count // limit)
    return f"has {count:,} readings, {limit:,} are taken; join them with --every {times}"


def _thinned(readings: Iterable[Reading], every: int) -> Iterator[Reading]:
    """The last of so many, with the highest memory of them all as its peak; never across generations or phases."""
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
# What is read of a line before it is cut: progress bars write theirs over and over.
_MAX_RAW: Final = 1 << 20
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def moment_of(iso: str) -> float | None:
    """Return the Unix seconds of a time as logs print it, without a zone in UTC; None for what is none."""
    try:
        moment = datetime.fromisoformat(iso.replace(",", "."))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def lines_of(path: Path, *, tabs: bool = False) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of every line that is not empty. Raises ImportRefused.

    A line that was written over with carriage returns, as progress bars do, is one line for each time. What is no
    UTF-8 becomes a sign that stands for it, because logs come damaged and their figures do not. ``tabs``: they are
    kept, else they are spaces.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ImportRefused(
                path,
                f"has more than {MAX_TEXT_BYTES // 2**20} MiB; cut out the part with memory",
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
                    raise ImportRefused(path, "is longer than a line of a log can be", number)
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error


def _encoding_of(start: bytes) -> str:
    found = next((name for bom, name in _BOMS if start.startswith(bom)), None)
    return "utf-8-sig" if found in (None, "utf-8") else found or "utf-8"


def plain(text: str, *, tabs: bool = False) -> str:
    """Without anything that moves a cursor or hides text, and no longer than a line."""
    cut = text[:MAX_LINE_LENGTH] if tabs else text[:MAX_LINE_LENGTH].replace("\t", "    ")
    return printable(cut, "\t" if tabs else "")
