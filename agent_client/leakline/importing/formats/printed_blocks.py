"""Reader of the blocks that hand-written memory profilers print: snapshot, trend, growth and large objects.

    MEMORY SNAPSHOT: Gen 1: After evaluate_population        a reading, with sizes and counts of objects
    MEMORY TREND ...                                         rows of label and size
    MEMORY GROWTH ANALYSIS                                   counts old -> new (+delta)
    LARGE OBJECTS (>= 50 MB)                                 rows of type, size

Symbols and arrows may be damaged, so lines are recognized by their words and numbers. A row of a trend is a reading
unless a snapshot has the same label.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ...snapshot import LARGEST_INTEGER, Number
from ..generation_alignment import Mark, Numbering, mark_of, numbering_of
from ..imported_log import (
    MAX_MEMORY_BYTES,
    MAX_READINGS,
    ImportRefused,
    Log,
    Reading,
    Wishes,
    lines_of,
    taken,
)
from ..names_and_sizes import NUMBER, UNIT, note_of_open, open_size, size_in_bytes

SNAPSHOT: Final = re.compile(r"MEMORY SNAPSHOT\s*[:-]\s*(?P<label>\S.{0,200})", re.IGNORECASE)
TITLE: Final = re.compile(
    r"\b(?:MEMORY (?P<kind>TREND|GROWTH)|(?P<large>LARGE OBJECTS)|(?P<objects>Object Count Changes))\b",
    re.IGNORECASE,
)
AFTER: Final = re.compile(r"\bafter\s+(?P<phase>[A-Za-z_][\w./-]{0,120})", re.IGNORECASE)
# Match only lines in which blanks are collapsed. Otherwise backtracking would try every way to split a sequence of
# blanks.
_SIZE: Final = re.compile(
    rf"\s?(?P<name>[A-Za-z][A-Za-z ]{{0,20}})(?:\([^)]{{0,40}}\))?"
    rf"\s?:\s*(?P<size>[+-]?{NUMBER})\s*(?P<unit>{UNIT})\b.*"
)
_COUNT: Final = re.compile(
    r"\s?(?P<name>[A-Za-z_][\w. \[\]<>]{0,120}):\s?(?P<count>\d[\d,]{0,14})\s?(?:<(?P<note>.*))?"
)
_CHANGED: Final = re.compile(
    r"\s?(?P<name>[A-Za-z_][\w. \[\]<>]{0,120}):\s?(?P<old>\d[\d,]{0,14})"
    r"\s\D{1,8}?(?P<new>\d[\d,]{0,14})\s?\([+-]\d[\d,]{0,14}\)"
)
_ROW_SIZE: Final = re.compile(rf"(?P<size>{NUMBER})\s*(?P<unit>{UNIT})?")
_COLUMN_UNIT: Final = re.compile(rf"\((?P<unit>{UNIT})\)")
_LIMIT: Final = re.compile(rf"\((?:>=|>|≥|\D{{1,4}})\s*{NUMBER}\s*(?P<unit>{UNIT})\)")
# Remarks that follow a count, for example "should be 2" or "must stay at 1 to 4".
_SHOULD: Final = re.compile(
    r"\b(?:should|must)\s+(?:always\s+|still\s+|now\s+)?(?:be|stay|remain)\s+"
    r"(?:at\s+|exactly\s+|always\s+|about\s+|around\s+|[~≈]\s?)*"
    rf"(?P<low>{NUMBER})(?:\s*(?:-|–|to)\s*(?P<high>{NUMBER}))?\s*(?P<unit>{UNIT})?",
    re.IGNORECASE,
)
_NOW: Final = re.compile(r"\bnow\s+(?P<count>\d[\d,]{0,15})\b(?!\s*[KMGT]i?B)", re.IGNORECASE)
_CELLS: Final = re.compile(r"\s{2,}")
# Maps the first word of a snapshot line to a series.
_SIZES: Final = {
    "rss": "process.rss_bytes", "vms": "process.vms_bytes", "allocated": "cuda.0.allocated_bytes",
    "reserved": "cuda.0.reserved_bytes", "swap": "process.swap_bytes", "peak": "process.peak_bytes",
}  # fmt: skip
_COUNTS: Final = {
    "lists": "type.list.count", "dicts": "type.dict.count", "tuples": "type.tuple.count",
    "numpy arrays": "arrays.count", "ndarray": "arrays.count", "numpy.ndarray": "arrays.count",
    "pytorch tensors": "tensors.count", "tensors": "tensors.count", "tensor": "tensors.count",
    "torch.tensor": "tensors.count",
}  # fmt: skip
MAX_TYPES: Final = 500
MAX_MARKS: Final = 500_000
MAX_LARGE: Final = 64


@dataclass(slots=True)
class _Block:
    """A reading that is not complete yet."""

    line: int
    label: str
    mark: Mark | None
    samples: dict[str, Number] = field(default_factory=dict)
    large: list[tuple[str, int]] = field(default_factory=list)

    @property
    def phase(self) -> str | None:
        found = AFTER.search(self.label)
        return found["phase"].rstrip("./-") if found else None


def is_row(text: str) -> bool:
    """Return True if a line outside a table looks like "Gen 1: After evaluate_population    8.52 GB"."""
    cells = _CELLS.split(text.strip())
    return (
        len(cells) > 1
        and AFTER.search(cells[0]) is not None
        and mark_of(0, cells[0]) is not None
        and (found := _ROW_SIZE.fullmatch(cells[1])) is not None
        and found["unit"] is not None
    )


def read_blocks(path: Path, wishes: Wishes) -> Log:
    """Read printed blocks. Raises ImportRefused."""
    reader = _Reader(path, wishes)
    for number, text in lines_of(path):
        reader.line(number, text)
    numbering = numbering_of(reader.marks)
    of_blocks = (_reading(block, numbering) for block in reader.blocks if block.samples)
    readings = taken(path, of_blocks, wishes.every)
    notes = (*_sizes_note(wishes), *reader.notes, *numbering.notes)
    expected = reader.expected()
    notes += tuple(
        f"{name} should be {low if low == high else f'{low} to {high}'}, according to a remark in the file"
        for name, (low, high) in expected.items()
    )
    return Log("blocks", readings, numbering.unit, numbering.total, notes, expected=expected)


def _sizes_note(wishes: Wishes) -> tuple[str, ...]:
    if wishes.binary:
        return ("GB is read as 2^30 bytes",)
    return ("GB is read as 10^9 bytes; use --binary if the program divides by 1024",)


def _reading(block: _Block, numbering: Numbering) -> Reading:
    return Reading(
        block.line, block.samples, None, numbering.number_of(block.mark), block.phase, block.label,
        tuple(sorted(block.large, key=lambda row: -row[1])[:MAX_LARGE]),
    )  # fmt: skip


class _Reader:
    def __init__(self, path: Path, wishes: Wishes) -> None:
        self._path, self._wishes = path, wishes
        self.blocks: list[_Block] = []
        self.marks: list[Mark] = []
        # Holds at most one note, about the first ambiguous size.
        self.notes: list[str] = []
        self._section = ""
        self._labels: set[str] = set()
        # Unit of the current table.
        self._unit = ""
        # Maps each type to the counts that the remarks about the type allow.
        self._should: dict[str, set[int]] = {}

    def expected(self) -> dict[str, tuple[int, int]]:
        return {name: (min(counts), max(counts)) for name, counts in self._should.items()}

    def line(self, number: int, text: str) -> None:
        if not self.notes and (size := open_size(text)) is not None:
            self.notes.append(note_of_open(number, size))
        snapshot = SNAPSHOT.search(text)
        if snapshot is not None:
            self._begin(number, snapshot["label"].strip())
            self._section = "snapshot"
            return
        title = TITLE.search(text)
        if title is not None:
            self._turn(text, title)
            return
        if self._row(number, text):
            return
        mark = mark_of(number, text)
        if mark is not None and self._section != "objects":
            self._mark(mark)
        self._in_section(number, text)

    def _mark(self, mark: Mark) -> None:
        """Add a mark if it differs from the previous mark."""
        last = self.marks[-1] if self.marks else None
        if last is not None and replace(mark, line=last.line) == last:
            return
        if len(self.marks) >= MAX_MARKS:
            why = f"names generations more than {MAX_MARKS:,} times; extract the part that contains the memory readings"
            raise ImportRefused(self._path, why, mark.line)
        self.marks.append(mark)

    def _turn(self, text: str, title: re.Match[str]) -> None:
        kind = title["kind"] or title["large"] or title["objects"]
        self._section = {"t": "trend", "g": "growth", "l": "large", "o": "objects"}[kind[0].lower()]
        if self._section != "objects":
            self._unit = ""
        limit = _LIMIT.search(text)
        if limit and self._section == "large":
            self._unit = limit["unit"]

    def _in_section(self, number: int, text: str) -> None:
        if unit := _COLUMN_UNIT.search(text):
            self._unit = unit["unit"]
        if self._section == "snapshot":
            self._snapshot_line(number, text)
        elif self._section in ("growth", "objects"):
            self._growth_line(text)
        elif self._section == "large":
            self._large_line(number, text)

    # -- a snapshot --------------------------------------------------------------------------------------

    def _begin(self, number: int, label: str) -> _Block:
        if len(self.blocks) >= MAX_READINGS:
            raise ImportRefused(self._path, f"has more than {MAX_READINGS:,} readings", number)
        label = label[:200]
        block = _Block(number, label, mark_of(number, label, is_label=True))
        if block.mark is not None:
            self.marks.append(block.mark)
        self.blocks.append(block)
        self._labels.add(_plain_label(label))
        return block

    def _snapshot_line(self, number: int, text: str) -> None:
        block = self.blocks[-1]
        text = _one_blank(text)
        size = _SIZE.fullmatch(text)
        if size is not None:
            self._size_of(number, block, size)
            return
        count = _COUNT.fullmatch(text)
        if count is not None and len(block.samples) < MAX_TYPES:
            name, number_of = count["name"].strip(), int(count["count"].replace(",", ""))
            block.samples[_series_of(name)] = number_of
            self._expect(name, count["note"] or "")

    def _size_of(self, number: int, block: _Block, found: re.Match[str]) -> None:
        series = _SIZES.get(found["name"].split()[0].lower())
        size = self._size(found["size"], found["unit"])
        if series is not None and size is not None:
            block.samples[series] = self._checked(number, size)

    # -- a row of a trend --------------------------------------------------------------------------------

    def _row(self, number: int, text: str) -> bool:
        cells = _CELLS.split(text.strip())
        size = _ROW_SIZE.fullmatch(cells[1]) if len(cells) > 1 else None
        in_table = self._section == "trend" and bool(self._unit)
        if size is None or not (in_table or is_row(text)):
            return False
        now = self._size(size["size"], size["unit"] or self._unit)
        if now is None:
            return False
        if not in_table and self._section not in ("trend", "rows"):
            self._section = "rows"
        label = cells[0][:200]
        if _plain_label(label) not in self._labels:
            self._begin(number, label).samples["process.rss_bytes"] = self._checked(number, now)
        return True

    # -- growth and objects ------------------------------------------------------------------------------

    def _growth_line(self, text: str) -> None:
        found = _CHANGED.match(_one_blank(text))
        if found is None:
            return
        self._expect(found["name"], found.string[found.end() :])
        if self.blocks:
            series = _series_of(found["name"])
            for block, end in ((self.blocks[0], "old"), (self.blocks[-1], "new")):
                block.samples.setdefault(series, int(found[end].replace(",", "")))

    def _expect(self, name: str, note: str) -> None:
        counts = _allowed_counts(note)
        if counts and _series_of(name).startswith("type.") and len(self._should) < MAX_TYPES:
            self._should.setdefault(name.strip()[:200], set()).update(counts)

    def _large_line(self, number: int, text: str) -> None:
        cells = _CELLS.split(text.strip())
        size = _ROW_SIZE.fullmatch(cells[1]) if len(cells) > 1 else None
        amount = self._size(size["size"], size["unit"] or self._unit) if size else None
        if amount is not None and self.blocks:
            self.blocks[-1].large.append((cells[0][:200], self._checked(number, amount)))

    def _size(self, number: str, unit: str) -> float | None:
        return size_in_bytes(number, unit, binary=self._wishes.binary)

    def _checked(self, line: int, size: float) -> int:
        if not 0 <= size <= MAX_MEMORY_BYTES:
            raise ImportRefused(
                self._path, f"{size:.3g} bytes is not a size that a process can have", line
            )
        return round(size)


def _allowed_counts(note: str) -> list[int]:
    """Return the counts that a remark allows, for example [2] for "should be 2"."""
    found = _SHOULD.search(note)
    digits = [found["low"], found["high"]] if found is not None and not found["unit"] else []
    now = _NOW.search(note)
    digits += [now["count"]] if now is not None else []
    counts = (int(float(each.replace(",", ""))) for each in digits if each)
    return [count for count in counts if count <= LARGEST_INTEGER]


def _series_of(name: str) -> str:
    return _COUNTS.get(name.strip().lower(), f"type.{name.strip()[:200]}.count")


def _one_blank(text: str) -> str:
    return " ".join(text.split())


def _plain_label(label: str) -> str:
    return _one_blank(label.lower())


def with_offset(log: Log, offset: int) -> Log:
    """Return the log with ``offset`` added to every generation number."""
    if not offset:
        return log
    moved = tuple(
        reading if reading.generation is None else replace(reading, generation=reading.generation + offset)
        for reading in log.readings
    )  # fmt: skip
    return replace(log, readings=moved)
