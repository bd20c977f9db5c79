"""The result of every reader of an old log: plain readings and notes on what was guessed. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
# How a file without generations is told, in the note that says so.
BY_TIME: Final = "so growth is told per second up to ten minutes, and per minute beyond (--unit minute to have minutes)"
# The same of a file that has no times either.
BY_READING: Final = "and none has a time, so each reading counts as one step"
# Unix seconds.
MAX_MOMENT: Final = 1e11


class ImportRefused(LeaklineError):
    """Nothing of the file is taken. Carries the path and, where there is one, the line."""

    def __init__(self, path: object, why: str, line: int | None = None) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        # It may quote the file, and a database what is in it.
        told = f"{where}: {why}"[:MAX_MESSAGE]
        super().__init__(printable(told))
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
