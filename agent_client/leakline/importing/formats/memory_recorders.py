"""Readers of `psrecord --log` and `mprof run`: memory over time in units of 2^20 bytes, which both tools call MB."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ...snapshot import Number
from ..imported_log import (
    BY_TIME,
    MAX_MEMORY_BYTES,
    ImportRefused,
    Log,
    Reading,
    Wishes,
    lines_of,
    taken,
)

MIB: Final = 2**20
PSRECORD_HEAD: Final = re.compile(r"\s*#\s*Elapsed time\s+CPU \(%\)\s+Real \(MB\)\s+Virtual \(MB\)")
MPROF_LINE: Final = re.compile(r"(?:CMDLINE|MEM|FUNC|CHLD)\s")
# The function's name is followed by four numbers and an optional fifth number.
_FUNCTION: Final = re.compile(r"FUNC (\S+) ([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+)(?: \d+)?\s*")

# Limit of the rows in memory: mprof does not write rows in chronological order, so all are sorted before they are
# merged.
MAX_MPROF_LINES: Final = 1_000_000
# (time, line, bytes, phase)
_Row = tuple[float, int, int, str | None]


def read_psrecord(path: Path, wishes: Wishes) -> Log:
    """Read a psrecord log. Raises ImportRefused."""
    notes = ("psrecord writes MB for 2^20 bytes, so its sizes are read as MiB", *_PER_MINUTE)
    return Log("psrecord", taken(path, _psrecord_readings(path), wishes.every), notes=notes)


def _psrecord_readings(path: Path) -> Iterator[Reading]:
    for number, line in lines_of(path):
        if line.lstrip().startswith("#"):
            continue
        cells = line.split()
        if len(cells) < 4:
            raise ImportRefused(path, f"has {len(cells)} numbers, but psrecord writes four", number)
        elapsed, _, real, virtual = (_number(path, number, cell) for cell in cells[:4])
        samples: dict[str, Number] = {
            "process.rss_bytes": _size(path, number, real),
            "process.vms_bytes": _size(path, number, virtual),
        }
        yield Reading(number, samples, elapsed)


def read_mprof(path: Path, wishes: Wishes) -> Log:
    """Read an mprof log, with the functions that mprof profiled as phases. Raises ImportRefused."""
    rows: list[_Row] = []
    children, name = 0, None
    for number, line in lines_of(path):
        kind, _, rest = line.partition(" ")
        if kind == "CMDLINE":
            name = name or rest.strip()
        elif kind == "CHLD":
            children += 1
        elif kind in ("MEM", "FUNC"):
            if len(rows) >= MAX_MPROF_LINES:
                why = f"has more than {MAX_MPROF_LINES:,} memory readings; record fewer with mprof run --interval 1"
                raise ImportRefused(path, why, number)
            rows.append(_mprof_row(path, number, line))
        else:
            raise ImportRefused(
                path, f"{kind[:40]!r} does not begin a line of an mprof log", number
            )
    rows.sort(key=lambda row: row[0])
    notes = ["mprof counts in units of 2^20 bytes, so its sizes are read as MiB", *_PER_MINUTE]
    if children:
        notes.append(
            f"{children} lines of child processes are ignored: pages shared with the main process would count twice"
        )
    readings = taken(path, _printed_once(rows), wishes.every)
    return Log("mprof", readings, notes=tuple(notes), is_clock=True, name=_short(name))


_PER_MINUTE: Final = (f"the file does not record generations, {BY_TIME}",)


def _mprof_row(path: Path, number: int, line: str) -> _Row:
    if line.startswith("FUNC"):
        found = _FUNCTION.fullmatch(line)
        if found is None:
            raise ImportRefused(path, "is not a FUNC line that mprof writes", number)
        size = _size(path, number, _number(path, number, found[4]))
        return _number(path, number, found[5]), number, size, sys.intern(found[1][:200])
    cells = line.split()
    if len(cells) != 3:
        raise ImportRefused(path, "is not a MEM line that mprof writes", number)
    size = _size(path, number, _number(path, number, cells[1]))
    return _number(path, number, cells[2]), number, size, None


def _printed_once(rows: Sequence[_Row]) -> Iterator[Reading]:
    """Yield the readings without repetitions, which occur if a function is called several times between two
    readings.
    """
    last: tuple[float, int, str | None] | None = None
    for time, line, size, phase in rows:
        if (time, size, phase) != last:
            yield Reading(line, {"process.rss_bytes": size}, time, phase=phase)
        last = time, size, phase


def _number(path: Path, line: int, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e11:
        raise ImportRefused(path, f"{cell[:40]!r} is not a valid number here", line)
    return number


def _size(path: Path, line: int, mib: float) -> int:
    if mib * MIB > MAX_MEMORY_BYTES:
        raise ImportRefused(path, f"{mib:g} MiB is more memory than a process can have", line)
    return round(mib * MIB)


def _short(name: str | None) -> str | None:
    """Return the program's name from a command line, without the interpreter and the folder."""
    words = (name or "").split()
    scripts = [word for word in words if word.endswith(".py")] or words[:1]
    return scripts[0].rpartition("/")[2][:128] or None if scripts else None
