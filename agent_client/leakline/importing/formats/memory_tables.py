"""Reader of tables that list memory over time: CSV with commas, semicolons, tabs or bars between the cells.

The header defines the meaning (`names_and_sizes.py`) and the unit of each column, unless the user specifies them. Rows
are read in order. A table is refused as a whole if time goes backwards or a memory cell is not a size. To avoid keeping
rows in memory, the file is read twice: first to classify the cells (`table_cells.py`), then to build
the readings.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from ...snapshot import LARGEST_FLOAT, Number
from ..imported_log import (
    BY_READING,
    BY_TIME,
    MAX_GAUGES,
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
    BY_DEVICE,
    Meaning,
    chosen_metrics,
    factor_of,
    meaning_of,
    meanings_of,
    missing,
    run_and_metric,
)
from .table_cells import SIZE, Cells, is_absent, number_in

DELIMITERS: Final = (",", ";", "\t", "|")
# Thresholds of Unix time in seconds and in milliseconds; smaller values are times since the start.
_UNIX_FROM: Final = 3e8
_UNIX_MS_FROM: Final = 3e11
MAX_COLUMNS: Final = 500
# If epochs have at least this many readings at distinct steps, the steps are used as the axis.
_SEVERAL: Final = 2
# How many column names an error message lists, and the maximum length of each name.
_LISTED, _NAME_LENGTH = 12, 60
# Header of a metric that TensorBoard exports. The metric's name is in the file name.
_TENSORBOARD: Final = ("wall time", "step", "value")
# Maps a column's index to the value that a row must have in this column to be read.
_Wanted = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Column:
    at: int
    name: str
    meaning: Meaning


@dataclass(slots=True)
class _Plan:
    """The columns to read, by role. ``memory`` contains pairs (column, bytes per unit)."""

    memory: list[tuple[Column, float]]
    time: Column | None
    generation: Column | None
    phase: Column | None
    label: Column | None
    gauges: list[Column]
    # The column with the GPU index of a row.
    device: Column | None
    # True if a comma that could also separate thousands is a decimal separator.
    decimal: bool
    # The axis column if its values have fractions; in that case the readings are counted instead.
    fractions: Column | None = None
    run: str | None = None


def delimiter_of(line: str) -> str | None:
    """Return the most frequent delimiter of a line, or None if the line has no delimiter."""
    counts = {sign: line.count(sign) for sign in DELIMITERS}
    best = max(counts, key=lambda sign: counts[sign])
    return best if counts[best] else None


def read_table(path: Path, wishes: Wishes) -> Log:
    """Read a table. Raises ImportRefused."""
    number, head = next(_rows(path), (1, ()))
    if wishes.columns:
        if len(wishes.columns) > len(head):
            why = f"has {len(head)} columns, but --columns names {len(wishes.columns)}"
            raise ImportRefused(path, why, number)
        head = wishes.columns
    elif any(number_in(cell) is not None for cell in head):
        raise ImportRefused(
            path,
            "has no header row; name its columns in order, for example --columns time,rss",
            number,
        )
    if len(head) > MAX_COLUMNS:
        raise ImportRefused(path, f"has more than {MAX_COLUMNS} columns", number)
    first = 0 if wishes.columns else 1
    meanings = meanings_of(head, binary=wishes.binary)
    wanted = _wanted(path, head, meanings, first, wishes)
    meanings = _with_value(path, head, meanings, wanted, wishes)
    cells = Cells(path, len(head))
    for line, row in _rows_of(path, first, wanted):
        cells.add(line, row)
    plan = _plan(path, number, head, meanings, cells, wishes)
    reader = _Reader(path, plan)
    readings = (reader.reading(line, row) for line, row in _rows_of(path, first, wanted))
    taken_readings = taken(path, (reading for reading in readings if reading.samples), wishes.every)
    notes = (*_plan_notes(plan), *_wanted_notes(head, wanted), *reader.notes())
    unit = plan.generation.meaning.unit if plan.generation else None
    return Log(
        "csv", taken_readings, "step" if plan.fractions else unit, notes=notes, is_clock=reader.is_clock, name=plan.run
    )  # fmt: skip


def _rows_of(path: Path, first: int, wanted: _Wanted) -> Iterator[tuple[int, Sequence[str]]]:
    for line, row in islice(_rows(path), first, None):
        if all(row[at] == value for at, value in wanted.items()):
            yield line, row


def _wanted(
    path: Path, head: Sequence[str], meanings: Sequence[Meaning], first: int, wishes: Wishes
) -> _Wanted:
    """Return {column index: value}. Only rows with these values are read.

    The values are the selected run and metric, if the table has columns for runs and metrics. Raises ImportRefused if
    the table has several runs and none is selected, or if no metric is recognized as memory.
    """
    wanted: dict[int, str] = {}
    roles = [meaning.role for meaning in meanings]
    if "run" in roles:
        at = roles.index("run")
        if runs := _distinct(path, first, at, wanted):
            wanted[at] = _one_run(path, runs, wishes)
    is_long = "metric" in roles and "value" in roles and "memory" not in roles
    if is_long and wishes.memory not in head:
        metrics = _distinct(path, first, roles.index("metric"), wanted)
        chosen = chosen_metrics(path, metrics, wishes)
        if not chosen:
            raise missing(path, metrics)
        resident = (name for name, m in chosen.items() if m.series == "process.rss_bytes")
        wanted[roles.index("metric")] = next(resident, next(iter(chosen)))
    return wanted


def _distinct(path: Path, first: int, at: int, wanted: _Wanted) -> list[str]:
    found = dict.fromkeys(row[at] for _, row in _rows_of(path, first, wanted) if row[at])
    return list(found)[:MAX_COLUMNS]


def _one_run(path: Path, runs: Sequence[str], wishes: Wishes) -> str:
    if wishes.run is not None and wishes.run in runs:
        return wishes.run
    if len(runs) == 1 and wishes.run is None:
        return runs[0]
    if wishes.run is not None:
        raise ImportRefused(path, f"has no run {wishes.run!r}; it has {_listed(runs)}")
    raise ImportRefused(
        path, f"contains {len(runs)} runs ({_listed(runs)}); choose one with --run {runs[0][:_NAME_LENGTH]}"
    )  # fmt: skip


def _with_value(
    path: Path, head: Sequence[str], meanings: list[Meaning], wanted: _Wanted, wishes: Wishes
) -> list[Meaning]:
    """Give the column "value" the meaning of the selected metric, or of the metric that the file name contains."""
    roles = [meaning.role for meaning in meanings]
    if "value" not in roles or "memory" in roles:
        return meanings
    metric = None
    if "metric" in roles:
        metric = wanted.get(roles.index("metric"))
    elif tuple(name.strip().lower() for name in head) == _TENSORBOARD:
        metric = path.stem.rpartition("tag-")[2]
    meaning = meaning_of(metric or "", binary=wishes.binary)
    if metric is not None and metric == wishes.memory:
        meaning = Meaning("memory", "process.rss_bytes", meaning.factor)
    if meaning.role != "memory":
        return meanings
    at = roles.index("value")
    return [*meanings[:at], meaning, *meanings[at + 1 :]]


def _rows(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    delimiter = ""
    width = 0
    for number, line in _table_lines(path):
        delimiter = delimiter or delimiter_of(line) or ","
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
        except csv.Error as error:
            raise ImportRefused(path, f"is not a row of a table ({error})", number) from error
        width = width or len(cells)
        if len(cells) != width:
            raise ImportRefused(
                path, f"has {len(cells)} cells, but the previous rows have {width}", number
            )
        yield number, cells


def _table_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of the table without comments and Markdown separators. Tabs are kept, because they may
    be delimiters.
    """
    for number, line in lines_of(path, tabs=True):
        if not line.lstrip().startswith("# ") and line.strip(" |:-"):
            yield number, line


def _plan(
    path: Path,
    line: int,
    head: Sequence[str],
    meanings: Sequence[Meaning],
    cells: Cells,
    wishes: Wishes,
) -> _Plan:
    columns = [Column(i, name, meanings[i]) for i, name in enumerate(head)]
    if wishes.memory is not None and not any(m.role == "metric" for m in meanings):
        if wishes.memory not in head:
            raise ImportRefused(
                path, f"has no column {wishes.memory!r}; it has {_names(columns)}", line
            )
        columns = [_chosen(column, wishes) for column in columns]
    run = _run_of(path, columns, wishes)
    if run is not None:
        columns = [c for c in columns if run_and_metric(c.name)[0] in (None, run)]
    columns = [column for column in columns if column.meaning.role != "derived"]
    memory = _best_of_each([c for c in columns if c.meaning.role == "memory"], wishes)
    if not memory:
        raise ImportRefused(
            path, f"none of its columns is recognized as memory ({_names(columns)}); choose one with --memory COLUMN",
            line,
        )  # fmt: skip
    used = {column.at for column in memory}
    generation, time, fractions = _axes(columns, cells)
    sizes = [column.at for column in (*memory, time) if column is not None]
    decimal = cells.decimal_commas(sizes, [generation.at] if generation else [], head)
    device = (
        _best(columns, "device") if any(c.meaning.series in BY_DEVICE for c in memory) else None
    )
    others = [
        c for c in columns if c.at not in used and c.meaning.role in ("other", "memory", "value")
    ]
    gauges = [c for c in others if cells.are_numbers(c.at)][:MAX_GAUGES]
    return _Plan(
        [(column, _factor(path, line, column, cells, wishes)) for column in memory],
        time, generation, _best(columns, "phase"), _best(columns, "label"), gauges, device, decimal, fractions, run,
    )  # fmt: skip


def _axes(
    columns: Sequence[Column], cells: Cells
) -> tuple[Column | None, Column | None, Column | None]:
    """Return three columns: the generations, the time, and an axis that is not used because it has fractions.

    A column "epoch" with seconds since 1970 is a time. If an epoch column has fractions, because a framework logs
    several times per epoch, the readings are counted instead.
    """
    counting = [c for c in columns if c.meaning.role == "generation"]
    time = _best(columns, "time")
    clocks = [c for c in counting if (cells.first_number(c.at) or 0.0) >= _UNIX_FROM]
    if time is None and clocks:
        time = replace(clocks[0], meaning=Meaning("time"))
    counting = [c for c in counting if c not in clocks]
    whole = [c for c in counting if cells.are_whole(c.at)]
    generation = _best(whole, "generation")
    finest = max(whole, key=lambda c: cells.steps_forward(c.at), default=None)
    if generation is not None and finest is not None and not _best(columns, "phase"):
        # If an epoch has several readings, their steps distinguish them. Steps that go backwards mean that the run was
        # resumed; in that case the generations are used.
        each = cells.steps_forward(generation.at)
        generation = finest if 0 < _SEVERAL * each <= cells.steps_forward(finest.at) else generation
    return generation, time, _best(counting, "generation") if generation is None else None


def _run_of(path: Path, columns: Sequence[Column], wishes: Wishes) -> str | None:
    """Return the run whose columns are read, or None if no column names a run.

    Raises ImportRefused if there are several runs and none is selected.
    """
    if wishes.memory is not None:
        return run_and_metric(wishes.memory)[0]
    memory = (c.name for c in columns if c.meaning.role == "memory")
    runs = dict.fromkeys(run for name in memory if (run := run_and_metric(name)[0]) is not None)
    return _one_run(path, list(runs), wishes) if runs else None


def _chosen(column: Column, wishes: Wishes) -> Column:
    """Turn the column that the user chose into resident memory. Any other resident memory column is ignored."""
    meaning = column.meaning
    if column.name == wishes.memory:
        factor = wishes.size_unit or (
            meaning.factor if meaning.role == "memory" else _unit_at_the_end(column.name, wishes)
        )
        return Column(column.at, column.name, Meaning("memory", "process.rss_bytes", factor))
    if meaning.series == "process.rss_bytes":
        return Column(column.at, column.name, Meaning("other"))
    return column


def _unit_at_the_end(name: str, wishes: Wishes) -> float | None:
    """Return the bytes per unit for a name that ends with a unit, such as "heap_mb", or None for any other name."""
    tail = re.split(r"[^A-Za-z0-9]+", name.strip(" )]"))[-1]
    return meaning_of(f"rss ({tail})", binary=wishes.binary).factor


def _best(columns: Sequence[Column], role: str) -> Column | None:
    return min(
        (c for c in columns if c.meaning.role == role), key=lambda c: c.meaning.rank, default=None
    )


def _best_of_each(columns: Sequence[Column], wishes: Wishes) -> list[Column]:
    """Return one column for each series: the column that the user chose, or the column with the lowest rank."""
    best: dict[str, Column] = {}
    for column in sorted(columns, key=lambda c: (c.name != wishes.memory, c.meaning.rank)):
        best.setdefault(column.meaning.series, column)
    return sorted(best.values(), key=lambda c: c.at)


def _factor(path: Path, line: int, column: Column, cells: Cells, wishes: Wishes) -> float:
    if column.meaning.factor is not None:
        return column.meaning.factor
    if wishes.size_unit is not None:
        return wishes.size_unit
    if cells.are_sizes(column.at):
        return 1.0
    raise ImportRefused(
        path, f"column {column.name!r} has no unit; specify it with --size-unit B, KiB, MB, MiB, GB or GiB",
        line,
    )  # fmt: skip


class _Reader:
    """Converts rows to readings, in order. Times must not go backwards, and all times must have the same format."""

    def __init__(self, path: Path, plan: _Plan) -> None:
        self._path, self._plan = path, plan
        self._last: float | None = None
        self._said: str | None = None
        self._scale = 1.0
        self._counted = 0
        self.is_clock = False

    def notes(self) -> Iterator[str]:
        if self._said is not None:
            yield self._said

    def reading(self, line: int, cells: Sequence[str]) -> Reading:
        plan = self._plan
        samples: dict[str, Number] = {}
        for column, factor in plan.memory:
            size = self._size(line, column, cells[column.at], factor)
            if size is not None:
                samples[self._series(line, column, cells)] = size
        for column in plan.gauges:
            number = self._number(cells[column.at])
            if number is not None and samples:
                samples[f"gauge.{column.name[:100]}"] = max(
                    -LARGEST_FLOAT, min(number, LARGEST_FLOAT)
                )
        return Reading(
            line, samples, self._time(line, cells),
            self._generation(line, cells, has_memory=bool(samples)),
            cells[plan.phase.at][:200] or None if plan.phase else None,
            cells[plan.label.at][:200] if plan.label else "",
        )  # fmt: skip

    def _number(self, cell: str) -> float | None:
        return number_in(cell, decimal=self._plan.decimal)

    def _series(self, line: int, column: Column, cells: Sequence[str]) -> str:
        device, series = self._plan.device, column.meaning.series
        if device is None or series not in BY_DEVICE:
            return series
        cell = cells[device.at]
        if not re.fullmatch(r"[0-9]{1,3}", cell):
            raise ImportRefused(
                self._path,
                f"{cell[:40]!r} in column {device.name!r} is not a valid GPU index",
                line,
            )
        return series.replace(".0.", f".{int(cell)}.")

    def _size(self, line: int, column: Column, cell: str, factor: float) -> int | None:
        if is_absent(cell):
            return None
        sized = SIZE.fullmatch(cell)
        number = self._number(sized[1] if sized else cell)
        unit = (factor_of(sized[2]) or 1) if sized else factor
        found = None if number is None else number * unit
        if found is None or not 0 <= found <= MAX_MEMORY_BYTES:
            why = "is not a size" if found is None else "is not a size that a process can have"
            raise ImportRefused(self._path, f"{cell[:40]!r} in column {column.name!r} {why}", line)
        return round(found)

    def _time(self, line: int, cells: Sequence[str]) -> float | None:
        column = self._plan.time
        if column is None:
            return None
        time = self._moment(line, column, cells[column.at])
        if self._last is not None and time < self._last:
            raise ImportRefused(
                self._path,
                f"time goes backwards, from {self._last:.10g} to {time:.10g}; split the log into one file per attempt",
                line,
            )  # fmt: skip
        self._last = time
        return time

    def _moment(self, line: int, column: Column, cell: str) -> float:
        number = self._number(cell)
        if self._said is None:
            self._decide(column, number)
        found = number * self._scale if number is not None else _date(cell)
        if found is None or not 0 <= found < 1e11:
            raise ImportRefused(
                self._path,
                f"{cell[:40]!r} in column {column.name!r} is not a time; use 2026-01-31T12:00:00 or seconds",
                line,
            )  # fmt: skip
        return found

    def _decide(self, column: Column, number: float | None) -> None:
        factor = column.meaning.factor
        if number is None:
            self.is_clock, how = True, "dates (UTC if they have no time zone)"
        elif factor is None and number >= _UNIX_FROM:
            milliseconds = number >= _UNIX_MS_FROM
            self._scale = 1e-3 if milliseconds else 1.0
            self.is_clock, how = True, f"Unix {'milliseconds' if milliseconds else 'seconds'}"
        else:
            self._scale = factor or 1.0
            self.is_clock = number * self._scale >= _UNIX_FROM
            how = "seconds" if self._scale == 1.0 else f"units of {self._scale:g} seconds"
            how += "" if self.is_clock else " since the start"
        self._said = f"column {column.name!r} is the time, in {how}"

    def _generation(self, line: int, cells: Sequence[str], *, has_memory: bool) -> int | None:
        if self._plan.fractions is not None:
            self._counted += has_memory
            return self._counted - 1 if has_memory else None
        column = self._plan.generation
        if column is None or is_absent(cells[column.at]):
            return None
        number = self._number(cells[column.at])
        if number is None or not number.is_integer() or abs(number) > 2**52:
            raise ImportRefused(
                self._path, f"{cells[column.at][:40]!r} in column {column.name!r} is not a whole number",
                line,
            )  # fmt: skip
        return int(number)


def _date(cell: str) -> float | None:
    return moment_of(cell.replace("/", "-").replace(" UTC", "Z"))


def _plan_notes(plan: _Plan) -> Iterator[str]:
    for column, factor in plan.memory:
        yield f"column {column.name!r} is {column.meaning.series}, in units of {_unit(factor)}"
    if plan.generation is not None:
        yield f"column {plan.generation.name!r} counts the {plan.generation.meaning.unit}s"
    elif plan.fractions is not None:
        yield f"column {plan.fractions.name!r} has fractions, so each reading counts as one step"
    else:
        yield f"no column counts generations{f', {BY_TIME}' if plan.time else f' {BY_READING}'}"
    if plan.device is not None:
        yield f"column {plan.device.name!r} is the GPU index"
    if plan.time is None and (plan.generation or plan.fractions):
        yield "no column is a time, so rows are placed one second apart"
    for named, word in ((plan.phase, "phase"), (plan.label, "label")):
        if named is not None:
            yield f"column {named.name!r} is the {word}"


def _unit(factor: float) -> str:
    powers: Mapping[float, str] = {
        1.0: "bytes", 1e3: "kB (1,000 bytes)", 1e6: "MB (1,000,000 bytes)", 1e9: "GB (1,000,000,000 bytes)",
        2.0**10: "KiB", 2.0**20: "MiB", 2.0**30: "GiB",
    }  # fmt: skip
    return powers.get(factor, f"{factor:g} bytes")


def _wanted_notes(head: Sequence[str], wanted: _Wanted) -> Iterator[str]:
    for at, value in wanted.items():
        yield f"only rows with {value!r} in column {head[at]!r} are read"


def _names(columns: Sequence[Column]) -> str:
    return _listed([column.name for column in columns if column.meaning.role != "derived"])


def _listed(names: Sequence[str]) -> str:
    """List the first distinct names. Long names are shortened in the middle, where metric names differ least."""
    half = _NAME_LENGTH // 2
    shown = dict.fromkeys(
        name if len(name) <= _NAME_LENGTH else f"{name[:half]}…{name[-half:]}" for name in names
    )
    return ", ".join(list(shown)[:_LISTED]) + (", …" if len(shown) > _LISTED else "")
