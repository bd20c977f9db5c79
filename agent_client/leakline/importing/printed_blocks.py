"""Printed blocks of a memory profiler: snapshot, trend, growth and large objects, as programs write them by hand.

    MEMORY SNAPSHOT: Gen 1: After evaluate_population        a reading, with sizes and counts of objects
    MEMORY TREND ...                                         rows of label, size, change
    MEMORY GROWTH ANALYSIS                                   baseline, current, growth, counts old -> new (+delta)
    LARGE OBJECTS (>= 50 MB)                                 rows of type, size

Signs and arrows may be damaged: lines are known by their words and figures. A row of a trend that no snapshot has told
is a reading as well; one that has is held against it (`slips.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ..snapshot import Number
from . import slips
from .log import MAX_MEMORY_BYTES, MAX_READINGS, ImportRefused, Log, Reading, Wishes
from .numbering import Mark, Numbering, mark_of, numbering_of
from .sizes_told import NUMBER, UNIT, Told, note_of_open, open_size, told
from .text import lines_of
from .thinning import taken
from .told_counts import ToldCounts

SNAPSHOT: Final = re.compile(r"MEMORY SNAPSHOT\s*[:-]\s*(?P<label>\S.{0,200})", re.IGNORECASE)
TITLE: Final = re.compile(
    r"\b(?:MEMORY (?P<kind>TREND|GROWTH)|(?P<large>LARGE OBJECTS)|(?P<objects>Object Count Changes))\b",
    re.IGNORECASE,
)
AFTER: Final = re.compile(r"\bafter\s+(?P<phase>[A-Za-z_][\w./-]{0,120})", re.IGNORECASE)
# Held against lines whose runs of blanks are one, or each way to share out a run would be tried.
_SIZE: Final = re.compile(
    rf"\s?(?P<name>[A-Za-z][A-Za-z ]{{0,20}})(?:\([^)]{{0,40}}\))?"
    rf"\s?:\s*(?P<size>[+-]?{NUMBER})\s*(?P<unit>{UNIT})\b(?P<rest>.*)"
)
_COUNT: Final = re.compile(
    r"\s?(?P<name>[A-Za-z_][\w. \[\]<>]{0,120}):\s?(?P<count>\d[\d,]{0,14})\s?(?:<(?P<note>.*))?"
)
_CHANGED: Final = re.compile(
    r"\s?(?P<name>[A-Za-z_][\w. \[\]<>]{0,120}):\s?(?P<old>\d[\d,]{0,14})"
    r"\s\D{1,8}?(?P<new>\d[\d,]{0,14})\s?\((?P<delta>[+-]\d[\d,]{0,14})\)"
)
_ROW_SIZE: Final = re.compile(rf"(?P<size>{NUMBER})\s*(?P<unit>{UNIT})?")
_ROW_CHANGE: Final = re.compile(rf"\(?(?P<size>[+-]{NUMBER})\s*(?P<unit>{UNIT})?[!\s]*\)?.*")
_COLUMN_UNIT: Final = re.compile(rf"\((?P<unit>{UNIT})\)")
# The same in a sentence, "large objects: the top 20 from 10 MB on"; a sign may be damaged to any other.
_LIMIT_SAID: Final = re.compile(
    rf"(?:>=|>|≥|‚â•|â‰¥|\bfrom|\bat least|\bover|\babove)\s*(?P<size>{NUMBER})\s*(?P<unit>{UNIT})\b",
    re.IGNORECASE,
)
_LIMIT: Final = re.compile(rf"\((?:>=|>|≥|\D{{1,4}})\s*(?P<size>{NUMBER})\s*(?P<unit>{UNIT})\)")
_PERCENT: Final = re.compile(r"\((?P<share>[+-]\d{1,9}(?:\.(?P<decimals>\d{1,6}))?)\s?%\)")
_CELLS: Final = re.compile(r"\s{2,}")
# First word of a line of a snapshot, or of a growth.
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
MAX_CLAIMS: Final = 1_000
MAX_LARGE: Final = 64


@dataclass(slots=True)
class _Block:
    """A reading while it is being read."""

    line: int
    label: str
    mark: Mark | None
    rss: Told | None = None
    samples: dict[str, Number] = field(default_factory=dict)
    large: list[tuple[str, int]] = field(default_factory=list)

    @property
    def phase(self) -> str | None:
        found = AFTER.search(self.label)
        return found["phase"].rstrip("./-") if found else None


def is_row(text: str) -> bool:
    """Whether a line looks like "Gen 1: After evaluate_population    8.52 GB" outside of any table."""
    cells = _CELLS.split(text.strip())
    return (
        len(cells) > 1
        and AFTER.search(cells[0]) is not None
        and mark_of(0, cells[0]) is not None
        and (found := _ROW_SIZE.fullmatch(cells[1])) is not None
        and found["unit"] is not None
    )


def read_blocks(path: Path, wishes: Wishes) -> Log:
    """Raises ImportRefused."""
    reader = _Reader(path, wishes)
    claims: list[tuple[int, str]] = []
    for number, text in lines_of(path):
        reader.line(number, text)
        if len(claims) < MAX_CLAIMS and slips.claims_rate(text):
            claims.append((number, text))
    numbering = numbering_of(reader.marks)
    told_blocks = (_reading(block, numbering) for block in reader.blocks if block.samples)
    readings = taken(path, told_blocks, wishes.every)
    found = [*reader.slips.held, *reader.counts.slips(), *slips.jumps(readings)]
    measured = slips.measured_growth(readings)
    found += [slip for number, text in claims for slip in slips.rates(number, text, measured)]
    notes = (*_sizes_note(wishes), *reader.notes, *numbering.notes)
    expected = reader.expected()
    notes += tuple(
        f"{name} should be {low if low == high else f'{low} to {high}'}, as the file says beside it"
        for name, (low, high) in expected.items()
    )
    return Log(
        "blocks", readings, numbering.unit, numbering.total, notes, slips.bounded(found, reader.slips.more),
        expected=expected,
    )  # fmt: skip


def _sizes_note(wishes: Wishes) -> tuple[str, ...]:
    if wishes.binary:
        return ("GB is read as 2^30 bytes",)
    return ("GB is read as 10^9 bytes; --binary if the program that printed it divides by 1024",)


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
        self.slips = slips.Found()
        self.counts = ToldCounts()
        # About the sizes, the first alone.
        self.notes: list[str] = []
        self._section = ""
        self._by_label: dict[str, _Block] = {}
        # Of the table that is being read.
        self._rows: list[tuple[str, str | None, Told]] = []
        self._unit = ""
        self._limit: Told | None = None
        self._growth: dict[str, Told] = {}
        # Where the file first said from which size on an object is large.
        self._large_said: tuple[int, Told] | None = None
        # Type -> the counts that remarks beside it allow.
        self._should: dict[str, set[int]] = {}

    def expected(self) -> dict[str, tuple[int, int]]:
        return {name: (min(counts), max(counts)) for name, counts in self._should.items()}

    def line(self, number: int, text: str) -> None:
        self.slips.add(slips.sums(number, text))
        self.counts.line(number, text)
        if not self.notes and (size := open_size(text)) is not None:
            self.notes.append(note_of_open(number, size))
        snapshot = SNAPSHOT.search(text)
        if snapshot is not None:
            self._begin(number, snapshot["label"].strip())
            self._section = "snapshot"
            return
        title = TITLE.search(text)
        if title is not None:
            self._turn(number, text, title)
            return
        if self._row(number, text):
            return
        mark = mark_of(number, text)
        if mark is not None and self._section != "objects":
            self._mark(mark)
        self._in_section(number, text)

    def _mark(self, mark: Mark) -> None:
        """A line that names what the line before it has named says nothing new."""
        last = self.marks[-1] if self.marks else None
        if last is not None and replace(mark, line=last.line) == last:
            return
        if len(self.marks) >= MAX_MARKS:
            why = f"names generations more than {MAX_MARKS:,} times; cut out the part that tells memory"
            raise ImportRefused(self._path, why, mark.line)
        self.marks.append(mark)

    def _turn(self, number: int, text: str, title: re.Match[str]) -> None:
        kind = title["kind"] or title["large"] or title["objects"]
        self._section = {"t": "trend", "g": "growth", "l": "large", "o": "objects"}[kind[0].lower()]
        if self._section != "objects":
            self._rows, self._unit, self._growth = [], "", {}
        limit = _LIMIT.search(text)
        self._limit = self._told(limit["size"], limit["unit"]) if limit else None
        if limit and self._section == "large":
            self._unit = limit["unit"]
        if title["large"]:
            self._large_from(number, text[title.end() :])

    def _large_from(self, number: int, text: str) -> None:
        """From which size on objects are listed: the same wherever the file says it."""
        said = _LIMIT.search(text) or _LIMIT_SAID.search(text)
        limit = self._told(said["size"], said["unit"]) if said else None
        if limit is None:
            return
        if self._large_said is None:
            self._large_said = number, limit
        else:
            self.slips.add(slips.limits(number, limit, *self._large_said))

    def _in_section(self, number: int, text: str) -> None:
        if unit := _COLUMN_UNIT.search(text):
            self._unit = unit["unit"]
        if self._section == "snapshot":
            self._snapshot_line(number, text)
        elif self._section in ("growth", "objects"):
            self._growth_line(number, text)
        elif self._section == "large":
            self._large_line(number, text)
        if text.strip().startswith("...") and self._rows:
            # Rows are left out: the next change counts from one that is not there.
            self._rows = [("", None, Told(float("nan"), float("inf"), "…"))]

    # -- a snapshot --------------------------------------------------------------------------------------

    def _begin(self, number: int, label: str) -> _Block:
        if len(self.blocks) >= MAX_READINGS:
            raise ImportRefused(self._path, f"has more than {MAX_READINGS:,} readings", number)
        label = label[:200]
        block = _Block(number, label, mark_of(number, label, is_label=True))
        if block.mark is not None:
            self.marks.append(block.mark)
        self.blocks.append(block)
        self._by_label[_plain_label(label)] = block
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
            self.slips.add(slips.beside(number, name, count["note"] or "", number_of, None))
            self._expect(name, count["note"] or "")

    def _size_of(self, number: int, block: _Block, found: re.Match[str]) -> None:
        series = _SIZES.get(found["name"].split()[0].lower())
        size = self._told(found["size"], found["unit"])
        if series is None or size is None:
            return
        block.samples[series] = self._bytes(number, size)
        if series == "process.rss_bytes":
            block.rss = size
        self.slips.add(slips.beside(number, found["name"].strip(), found["rest"], None, size))

    # -- a row of a trend --------------------------------------------------------------------------------

    def _row(self, number: int, text: str) -> bool:
        cells = _CELLS.split(text.strip())
        size = _ROW_SIZE.fullmatch(cells[1]) if len(cells) > 1 else None
        in_table = self._section == "trend" and bool(self._unit)
        if size is None or not (in_table or is_row(text)):
            return False
        now = self._told(size["size"], size["unit"] or self._unit)
        if now is None:
            return False
        if not in_table and self._section not in ("trend", "rows"):
            self._section, self._rows = "rows", []
        label = cells[0][:200]
        block = self._by_label.get(_plain_label(label))
        if block is None:
            block = self._begin(number, label)
            block.rss = now
            block.samples["process.rss_bytes"] = self._bytes(number, now)
        elif block.rss is not None:
            self.slips.add(slips.twice(number, label, now, block.rss, block.line))
        self._changed(number, cells, block, now)
        self._rows.append((label, block.phase, now))
        return True

    def _changed(self, number: int, cells: list[str], block: _Block, now: Told) -> None:
        found = _ROW_CHANGE.fullmatch(cells[2]) if len(cells) > 2 else None
        if found is None or not self._rows:
            return
        printed = self._told(found["size"], found["unit"] or self._unit)
        same = next((row for row in reversed(self._rows) if row[1] == block.phase and row[1]), None)
        before = [("the line above", self._rows[-1][2])]
        if same is not None:
            before.append(("the same phase before", same[2]))
        if printed is not None and all(row[1].bytes == row[1].bytes for row in before):
            self.slips.add(slips.change(number, printed, now, before))

    # -- growth and objects ------------------------------------------------------------------------------

    def _growth_line(self, number: int, text: str) -> None:
        text = _one_blank(text)
        changed = _CHANGED.match(text)
        if changed is not None:
            self._count_changed(number, changed)
            return
        size = _SIZE.fullmatch(text)
        name = size["name"].split()[0].lower() if size else ""
        if size is None or name not in ("baseline", "current", "growth"):
            return
        amount = self._told(size["size"], size["unit"])
        if amount is None:
            return
        self._growth[name] = amount
        if name == "growth" and {"baseline", "current"} <= self._growth.keys():
            percent = _PERCENT.search(size["rest"])
            share = (float(percent["share"]), len(percent["decimals"] or "")) if percent else None
            self.slips.add(
                slips.growth(
                    number, amount, share, self._growth["baseline"], self._growth["current"]
                )
            )

    def _count_changed(self, number: int, found: re.Match[str]) -> None:
        old, new, delta = (int(found[part].replace(",", "")) for part in ("old", "new", "delta"))
        self.slips.add(slips.counted(number, found["name"].strip(), old, new, delta))
        self._expect(found["name"], found.string[found.end() :])
        if self.blocks:
            series = _series_of(found["name"])
            self.blocks[0].samples.setdefault(series, old)
            self.blocks[-1].samples.setdefault(series, new)

    def _expect(self, name: str, note: str) -> None:
        counts = slips.said_to_be(note)
        if counts and _series_of(name).startswith("type.") and len(self._should) < MAX_TYPES:
            self._should.setdefault(name.strip()[:200], set()).update(counts)

    def _large_line(self, number: int, text: str) -> None:
        cells = _CELLS.split(text.strip())
        size = _ROW_SIZE.fullmatch(cells[1]) if len(cells) > 1 else None
        amount = self._told(size["size"], size["unit"] or self._unit) if size else None
        if amount is None or not self.blocks:
            return
        self.blocks[-1].large.append((cells[0][:200], self._bytes(number, amount)))
        if self._limit is not None:
            self.slips.add(slips.below(number, cells[0], amount, self._limit))

    def _told(self, number: str, unit: str) -> Told | None:
        return told(number, unit, binary=self._wishes.binary)

    def _bytes(self, number: int, size: Told) -> int:
        if not 0 <= size.bytes <= MAX_MEMORY_BYTES:
            raise ImportRefused(
                self._path, f"{size.said[:40]} is no size that a process has", number
            )
        return round(size.bytes)


def _series_of(name: str) -> str:
    return _COUNTS.get(name.strip().lower(), f"type.{name.strip()[:200]}.count")


def _one_blank(text: str) -> str:
    return " ".join(text.split())


def _plain_label(label: str) -> str:
    return _one_blank(label.lower())


def with_offset(log: Log, offset: int) -> Log:
    """Every generation so much further on."""
    if not offset:
        return log
    moved = tuple(
        reading if reading.generation is None else replace(reading, generation=reading.generation + offset)
        for reading in log.readings
    )  # fmt: skip
    return replace(log, readings=moved)
