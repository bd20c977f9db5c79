"""Rows of figures with their targets, and the tables printed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from benchmarks import printing

# Heading and format of each figure, in the order of the columns.
COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "cpu_ms": ("CPU ms", "{:,.3f}"),
    "ratio": ("x reference", "{:.3f}"),
    "pause_ms": ("pause ms", "{:.1f}"),
    "peak_mb": ("peak MB", "{:.1f}"),
    "arrays_found": ("arrays found", "{:,.0f}"),
    "classes_off": ("classes off", "{:.0f}"),
    "holder_named": ("holder named", "{:.0f}"),
    "cpu_ratio": ("CPU ratio", "{:.4f}"),
    "cpu_low": ("CPU from", "{:.4f}"),
    "cpu_high": ("CPU to", "{:.4f}"),
    "ledger_percent": ("ledger %", "{:.3f}"),
    "whole_ratio": ("with the start", "{:.4f}"),
    "start_seconds": ("start, ledger s", "{:.2f}"),
    "cpu_seconds": ("CPU s", "{:.2f}"),
    "client_mb": ("MB", "{:.2f}"),
    "per_snapshot_bytes": ("bytes per snapshot", "{:.0f}"),
}
NOT_BUILT: Final = "not built"
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of one table.

    ``figures`` are in the unit of their name; ``at_most`` and ``exactly`` are the targets of some of them. ``missing``
    is the reason why there are none: it fails the check like a figure that is too large. ``raw`` is for the JSON only.
    """

    table: str
    name: str
    figures: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    exactly: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""
    note: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict)

    def scaled(self) -> Row:
        return replace(
            self, at_most={key: value * printing.SCALE for key, value in self.at_most.items()}
        )

    def failures(self) -> list[str]:
        """Return a sentence for each missed target."""
        if self.missing:
            return [self.missing]
        held = {**self.at_most, **self.exactly}
        absent = [f"{_heading(key)} was not measured" for key in held if key not in self.figures]
        over = [
            f"{_heading(key)} {_text(key, self.figures[key])} is above {limit:g}"
            for key, limit in self.at_most.items()
            if key in self.figures and self.figures[key] > limit
        ]
        wrong = [
            f"{_heading(key)} {_text(key, self.figures[key])} is not {value:,.0f}"
            for key, value in self.exactly.items()
            if key in self.figures and self.figures[key] != value
        ]
        return absent + over + wrong

    @property
    def is_held(self) -> bool:
        return bool(self.at_most or self.exactly)

    def verdict(self) -> str:
        if self.missing:
            return self.missing
        if not self.is_held:
            return ""
        return "SHORT" if self.failures() else "ok"

    def target(self) -> str:
        limits = [f"{_heading(key)} <= {limit:g}" for key, limit in self.at_most.items()]
        exact = [f"{_heading(key)} = {value:,.0f}" for key, value in self.exactly.items()]
        return ", ".join(limits + exact)


def merged(rows: Iterable[Row]) -> list[Row]:
    """Merge rows of the same table and name, since several parts measure the same scan."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        known = found.get((row.table, row.name))
        if known is None:
            found[row.table, row.name] = row
            continue
        found[row.table, row.name] = replace(
            known,
            figures={**known.figures, **row.figures},
            at_most={**known.at_most, **row.at_most},
            exactly={**known.exactly, **row.exactly},
            missing=known.missing or row.missing,
            note=", ".join(filter(None, dict.fromkeys((known.note, row.note)))),
            raw={**known.raw, **row.raw},
        )
    return list(found.values())


def text_table(title: str, rows: Sequence[Row]) -> str:
    """Return one table as text, with every column that any of its rows has."""
    lines = _cells(rows)
    figures = len(lines[0]) - 4
    return printing.text_table(title, lines, [True, *[False] * figures, True, True, True])


def markdown_table(title: str, rows: Sequence[Row]) -> str:
    """Return the table as Markdown, without the targets."""
    lines = [[*line[:-3], line[-1]] for line in _cells(rows)]
    figures = len(lines[0]) - 2
    return printing.markdown_table(title, lines, [True, *[False] * figures, True])


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    keys = [key for key in COLUMNS if any(key in row.figures for row in rows)]
    lines = [["", *(COLUMNS[key][0] for key in keys), "target", "", ""]]
    for row in rows:
        cells = [_text(key, row.figures[key]) if key in row.figures else "" for key in keys]
        lines.append([row.name, *cells, row.target(), row.verdict(), row.note])
    return lines


def to_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "verdict": row.verdict(), "failures": row.failures()}


def from_json(found: Mapping[str, Any]) -> Row:
    return Row(**{key: found[key] for key in Row.__dataclass_fields__ if key in found})


def _heading(key: str) -> str:
    return COLUMNS[key][0]


def _text(key: str, value: float) -> str:
    return COLUMNS[key][1].format(value)
