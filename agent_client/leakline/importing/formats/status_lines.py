"""Reader of status lines in a training log.

Examples are "GPU allocated: 0.45 GB, reserved: 1.20 GB" and "Experience buffer size: 312". A new reading begins at a
line that names an episode (generation, epoch, step), and at a value for a series that the current reading already
contains. The words before and after a size show what was measured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ...snapshot import Number
from ..generation_alignment import COARSE_FIRST, Mark, mark_of
from ..imported_log import (
    BY_READING,
    BY_TIME,
    MAX_MEMORY_BYTES,
    ImportRefused,
    Log,
    Reading,
    Wishes,
    lines_of,
    moment_of,
    taken,
)
from ..names_and_sizes import (
    NUMBER,
    UNIT,
    meaning_of,
    note_of_open,
    open_size,
    pointed_number,
    size_in_bytes,
)

# A single letter counts as a unit only after a word for memory, because a model may have 35 M parameters.
_SIZE: Final = re.compile(rf"(?<![\w.])(?P<size>{NUMBER})\s?(?P<unit>{UNIT}|[KMGT])(?![\w/])")
# The output of psutil, in bytes: pmem(rss=101838848, vms=...), pfullmem(...).
_PSUTIL: Final = re.compile(r"\bp(?:full|ext)?mem\((?P<fields>[^()]{1,400})\)")
_PSUTIL_FIELD: Final = re.compile(r"\b(?P<name>rss|vms|shared|swap)=(?P<size>\d{1,18})\b")
# A number whose name includes the unit: rss_mb=2310, "rss (MB)": 2310, process_resident_memory_bytes 1.2e9.
_UNIT_IN_NAME: Final = re.compile(
    rf"(?P<name>[A-Za-z][A-Za-z_./ -]{{0,40}}?(?:[(\[][A-Za-z]{{1,9}}[)\]])?)"
    rf"(?:\{{[^{{}}]{{0,200}}\}})?[\"']?(?:\s{{0,2}}[:=]\s{{0,2}}[\"']?|(?<=_bytes)\s|(?<=\}})\s)"
    rf"(?P<size>{NUMBER}(?:e[+-]?\d{{1,2}})?)(?![\w.]*\d|\s?{UNIT}\b|\s?%)"
)
_COUNT: Final = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z _-]{1,60}?)\s*[:=]\s*(?P<count>\d{1,15})"
    r"(?:\s*(?:/|of)\s*(?P<capacity>\d{1,15}))?(?![\d.]*\s*(?:[KMGT]i?B\b|%|s\b|\.?\d))"
)
_SECONDS: Final = re.compile(
    r"\b(?:generation|episode|epoch|step) time\s*[:=]\s*(?P<seconds>\d{1,9}(?:\.\d{1,9})?)\s?s",
    re.IGNORECASE,
)
_MOMENT: Final = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)\]?"
)
_CLEANUP: Final = re.compile(
    r"\b(?:clean(?:ing)?[- ]?up|memory cleanup|gc\.collect|empty_cache)\b", re.IGNORECASE
)
_RESIDENT: Final = re.compile(
    r"\b(?:rss|vmrss|resident|ram|process memory|memory usage|memory used|cpu memory)\b"
)
# Matches a reported value, not a size mentioned in a sentence.
_STATES: Final = re.compile(
    r"(?:[:=]|\b(?:usage|used|rss|ram|is|(?:gpu|cuda)[ _-]?mem(?:ory)?|vram))\s*$"
)
# "mem" or "memory" alone is the process's memory, unless another word says otherwise.
_BARE: Final = re.compile(r"(?:^|[|,;({\[])\s*[\"']?mem(?:ory)?[\"']?\s*[:=]?\s*[\"']?$")
_OF_A_GPU: Final = re.compile(r"(?:\b(?:gpu|cuda)[ _-]?(?:ram|mem|memory)\b|\bvram\b)")
_OTHERS: Final = re.compile(r"\b(?:limit|total|free|freed|available|replay|buffer)\b")
_VIRTUAL: Final = re.compile(r"\b(?:vms|vmsize|virtual)\b")
# Memory of the entire machine, as psutil.virtual_memory() reports it.
_OF_THE_MACHINE: Final = re.compile(r"\bvirtual memory\b.*\bused\b")
_STORES: Final = re.compile(r"\b(?:buffer|memory|replay|queue)\b")
_LIVE: Final = re.compile(r"\b(?:live|open|active|alive)\s+(?P<what>[a-z]\w*)")
_NO_NAME: Final = frozenset(
    {"size", "length", "not", "ready", "current", "entries", "count", "fill"}
)
WORDS_BEHIND: Final = 24


@dataclass(slots=True)
class _Row:
    line: int
    mark: Mark | None
    time: float | None
    samples: dict[str, Number] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)


def has_size(text: str) -> bool:
    """Return True if a line reports memory."""
    return bool(_sizes(0, text, Wishes()))


def read_status(path: Path, wishes: Wishes) -> Log:
    """Read status lines. Raises ImportRefused."""
    unit = _unit(path)
    reader = _Reader(path, wishes, unit)
    readings = taken(path, _readings(path, reader), wishes.every)
    timed = bool(readings) and reader.timed
    if not timed:
        readings = tuple(replace(reading, time=None) for reading in readings)
    size = "2^30" if wishes.binary else "10^9"
    notes = [
        f"GB is read as {size} bytes"
        + ("" if wishes.binary else "; use --binary if the program divides by 1024")
    ]
    notes.append(
        f"readings begin at lines that name the {unit}"
        if unit
        else f"no line counts generations{f', {BY_TIME}' if timed else f' {BY_READING}'}"
    )
    return Log(
        "status", readings, unit, reader.total, (*notes, *reader.notes),
        is_clock=timed, capacities=reader.capacities,
    )  # fmt: skip


def _unit(path: Path) -> str | None:
    """Return the coarsest unit that occurs with several numbers, or otherwise the coarsest unit.

    Returns None if no line names a unit.
    """
    seen: dict[str, set[int]] = {}
    for number, text in lines_of(path):
        mark = mark_of(number, text)
        if mark is not None and len(seen.setdefault(mark.unit, set())) < 2:
            seen[mark.unit].add(mark.number)
    many = Counter({unit: len(numbers) for unit, numbers in seen.items()})
    best = [unit for unit in COARSE_FIRST if many[unit] > 1] or [u for u in COARSE_FIRST if many[u]]
    return best[0] if best else None


def _readings(path: Path, reader: _Reader) -> Iterator[Reading]:
    for number, text in lines_of(path):
        reader.line(number, text)
        yield from reader.finished()
    yield from reader.finished(ended=True)


class _Reader:
    def __init__(self, path: Path, wishes: Wishes, unit: str | None) -> None:
        self._path, self._wishes, self._unit = path, wishes, unit
        # Rows that have not been yielded yet. The last row is still being filled.
        self._rows: list[_Row] = []
        self.notes: list[str] = []
        # True as long as every reading has a time.
        self.timed = True
        self.capacities: dict[str, int] = {}
        self.total: int | None = None
        self._mark: Mark | None = None
        self._time: float | None = None

    def line(self, number: int, text: str) -> None:
        if not self.notes and (size := open_size(text)) is not None:
            self.notes.append(note_of_open(number, size))
        self._time = _moment(text) or self._time
        mark = mark_of(number, text)
        if mark is not None and mark.unit == self._unit:
            if self._mark is None or mark.number != self._mark.number:
                self._new(number, mark)
            self._mark = mark
            self.total = max(mark.total or 0, self.total or 0) or None
        samples = {**self._counts(text), **_sizes(number, text, self._wishes)}
        if any(value > MAX_MEMORY_BYTES for value in samples.values()):
            raise ImportRefused(self._path, "contains a size that no process can have", number)
        if _CLEANUP.search(text):
            self._row(number, {}).marks.append(_words(text))
        if samples:
            self._row(number, samples).samples.update(samples)

    def _row(self, number: int, samples: dict[str, Number]) -> _Row:
        if not self._rows or not samples.keys().isdisjoint(self._rows[-1].samples):
            self._new(number, self._mark)
        row = self._rows[-1]
        if not row.samples:
            row.line = number
        row.time = self._time
        return row

    def _new(self, number: int, mark: Mark | None) -> None:
        self._rows.append(_Row(number, mark, self._time))

    def finished(self, *, ended: bool = False) -> Iterator[Reading]:
        """Yield the complete rows as readings, except empty rows. If ``ended``, the last row is also complete."""
        rows = self._rows if ended else self._rows[:-1]
        for row in rows:
            if row.samples:
                self.timed = self.timed and row.time is not None
                number = row.mark.number if row.mark else None
                yield Reading(row.line, row.samples, row.time, number, marks=tuple(row.marks))
        del self._rows[: len(rows)]

    def _counts(self, text: str) -> dict[str, Number]:
        found: dict[str, Number] = {}
        seconds = _SECONDS.search(text)
        if seconds is not None:
            found["generation.seconds"] = float(seconds["seconds"])
        for count in _COUNT.finditer(text):
            name = count["name"].lower().strip(" -_")
            live = _LIVE.search(name)
            if live is not None:
                what = live["what"]
                series = "figures.open" if what == "figures" else f"type.{what}.count"
                found[series] = int(count["count"])
            elif _STORES.search(name):
                store = "_".join(
                    word for word in re.findall(r"[a-z]+", name) if word not in _NO_NAME
                )
                found[f"tracked.{store}.length"] = int(count["count"])
                if count["capacity"] and int(count["capacity"]) > 0:
                    self.capacities[store] = int(count["capacity"])
        return found


def _sizes(number: int, text: str, wishes: Wishes) -> dict[str, Number]:
    found = {**_printed_by_psutil(text), **_with_unit_in_name(text, wishes)}
    end = 0
    lower = text.lower()
    for size in _SIZE.finditer(text):
        before, behind = lower[end : size.start()], lower[size.end() : size.end() + WORDS_BEHIND]
        end = size.end()
        amount = size_in_bytes(size["size"], size["unit"], binary=wishes.binary)
        if len(size["unit"]) == 1 and size["unit"] != "B" and not _RESIDENT.search(before):
            continue
        series = _series_of(before, behind.split(",")[0], "gpu" in lower or "cuda" in lower)
        if amount is not None and series is not None:
            found.setdefault(series, round(amount))
    return found


def _printed_by_psutil(text: str) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for printed in _PSUTIL.finditer(text):
        for field_ in _PSUTIL_FIELD.finditer(printed["fields"]):
            found.setdefault(f"process.{field_['name']}_bytes", int(field_["size"]))
    return found


def _with_unit_in_name(text: str, wishes: Wishes) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for named in _UNIT_IN_NAME.finditer(text):
        words = named["name"].split()
        for first in range(len(words)):
            meaning = meaning_of(" ".join(words[first:]), binary=wishes.binary)
            if meaning.role == "memory" and meaning.factor is not None:
                number = pointed_number(named["size"])
                if number is not None and not _OTHERS.search(" ".join(words[:first]).lower()):
                    found.setdefault(meaning.series, round(number * meaning.factor))
                break
    return found


def _series_of(before: str, behind: str, gpu: bool) -> str | None:
    for words in (before, behind):
        if "freed" in words or "limit" in words or "total" in words:
            return None
        if "reserved" in words or "cached" in words:
            return "cuda.0.reserved_bytes"
        if "allocated" in words:
            return "cuda.0.allocated_bytes"
    if _OF_THE_MACHINE.search(before):
        return None
    if _BARE.search(before):
        return "process.rss_bytes"
    if not _STATES.search(before) or behind.startswith(("-", " -", "–", " to ")):
        return None
    if _OF_A_GPU.search(before):
        return "gpu.0.used_bytes"
    if _RESIDENT.search(before):
        return "process.rss_bytes"
    if _VIRTUAL.search(before):
        return "process.vms_bytes"
    return "gpu.0.used_bytes" if gpu and "gpu" in before and "memory" in before else None


def _words(text: str) -> str:
    """Return the text without the symbols before the first word, which are often damaged."""
    found = re.search(r"[A-Za-z0-9].*", text, re.ASCII)
    return found.group().strip()[:200] if found else "cleanup"


def _moment(text: str) -> float | None:
    found = _MOMENT.search(text[:60])
    return None if found is None else moment_of(found[1])
