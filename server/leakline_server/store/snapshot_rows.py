"""Snapshots as rows: the newest rows for tables, new rows for live pages, and all rows for exports.

An export reads a few thousand snapshots at a time, in order of sequence number. Each step has a short transaction of
its own, so exporting a week of data blocks nothing, and sealing, compaction and late batches may move rows between two
steps.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, Row, select

from ..limits import MAX_PROCESSES_READ
from .columns import (
    COLUMN_NAMES,
    COLUMNS,
    GENERATION,
    KIND,
    LABEL,
    PHASE,
    SEQUENCE,
    TIME,
    Column,
    Numbers,
)
from .engine import reading
from .runs.runs import LIVED, BadCursor, row_of
from .schema import Key, NoSuchRun, processes, runs
from .series import Block, matching, read, read_newer, series_ids

HEADLINE: Final = (
    "process.rss_bytes", "process.anon_bytes", "process.file_bytes", "process.shared_bytes",
    "process.swap_bytes", "process.peak_bytes", "children.pss_bytes", "allocator.kept_bytes",
    "cgroup.used_bytes", "cgroup.limit_bytes", "system.available_bytes", "python.objects", "tensors.count",
    "tensors.bytes", "arrays.count", "arrays.bytes", "figures.open", "cuda.0.allocated_bytes", "gpu.0.used_bytes",
)  # fmt: skip
# A page that missed more rows than this reloads everything. The limit covers two blocks and the waiting batches,
# because all rows of a block count as new when it is sealed.
MAX_NEWS_ROWS: Final = 12_000
_SHOWN: Final = (SEQUENCE, TIME, GENERATION, PHASE, KIND, LABEL)


@dataclass(frozen=True, slots=True)
class News:
    """The rows newer than a revision, by process instance.

    ``too_much`` is True if there are too many new rows. The reader then reloads everything.
    """

    revision: int
    verdict_revision: int
    rows: Mapping[str, list[dict[str, Any]]]
    too_much: bool = False


def list_snapshots(
    engine: Engine, run_id: str, names: Sequence[str], limit: int, cursor: str | None
) -> dict[str, Any]:
    """Return a page of a run's snapshots, newest first.

    The result is
    {"items": [{process, sequence, time, generation, phase, kind, label, samples}], "next", "processes_left_out"}.

    If there are more than MAX_PROCESSES_READ processes, only the most recently seen processes are read.
    """
    before = {} if cursor is None else _read_cursor(cursor)
    found: list[tuple[float, int, int, dict[str, Any]]] = []
    more = False
    with reading(engine) as connection:
        wanted, left_out = matching(series_ids(connection, run_id), names), 0
        of_run = _processes(connection, run_id)
        if len(of_run) > MAX_PROCESSES_READ:
            left_out = len(of_run) - MAX_PROCESSES_READ
            of_run = of_run[:MAX_PROCESSES_READ]
        for number, instance in of_run:
            stored = read(connection, Key(run_id, number), wanted)
            newest = stored.newest(limit + 1, before.get(str(number)))
            rows = _rows(newest.read((*_SHOWN, *wanted)), wanted)
            if str(number) in before:
                rows = [row for row in rows if row["sequence"] < before[str(number)]]
            more = more or len(rows) > limit
            found += [
                (row["time"], number, row["sequence"], {"process": instance, **row})
                for row in rows[-limit - 1 :]
            ]
    found.sort(key=lambda entry: entry[:3], reverse=True)
    shown = found[:limit]
    for _, number, sequence, _ in shown:
        before[str(number)] = min(sequence, before.get(str(number), sequence))
    more = more or len(found) > limit
    return {
        "items": [row for *_, row in shown],
        "next": _write_cursor(before) if more else None,
        "processes_left_out": left_out,
    }


def news(engine: Engine, run_id: str, since: int | None, names: Sequence[str]) -> News:
    """Return the rows newer than revision ``since``, or no rows if ``since`` is None. Raises NoSuchRun.

    After sealing, an entire segment counts as new if any of its rows are new. Rows may be repeated but never missed.
    """
    with reading(engine) as connection:
        run = connection.execute(
            select(runs.c.revision, runs.c.verdict_revision).where(runs.c.id == run_id)
        ).first()
        if run is None:
            raise NoSuchRun(run_id)
        if since is None or since == run.revision:
            return News(run.revision, run.verdict_revision, {})
        if since > run.revision:
            # The revision is from a database that has been replaced, so the data that the reader has cannot be trusted.
            return News(run.revision, run.verdict_revision, {}, too_much=True)
        wanted = matching(series_ids(connection, run_id), names)
        newer = read_newer(connection, run_id, since, (*_SHOWN, *wanted), wanted, MAX_NEWS_ROWS)
        if newer is None:
            return News(run.revision, run.verdict_revision, {}, too_much=True)
        instances = dict(_processes(connection, run_id))
        rows = {instances[number]: _rows(block, wanted) for number, block in newer.items()}
        return News(run.revision, run.verdict_revision, rows)


def _rows(block: Block, names: Mapping[int, str]) -> list[dict[str, Any]]:
    columns = {number: column.to_list() for number, column in block.columns.items()}
    fixed = ("sequence", "time", "generation", "phase", "kind", "label")
    return [
        {
            **{name: columns[number][i] for name, number in zip(fixed, _SHOWN, strict=True)},
            "samples": {
                name: columns[number][i]
                for number, name in names.items()
                if columns[number][i] is not None
            },
        }
        for i in range(len(block))
    ]


def _processes(connection: Connection, run_id: str) -> list[tuple[int, str]]:
    """Return (process number, instance) of each process, most recently seen first."""
    p = processes.c
    query = select(p.id, p.instance).where(p.run_id == run_id).order_by(p.last_seen_at.desc(), p.id)
    return [(number, instance) for number, instance in connection.execute(query)]


def _write_cursor(before: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(before)).decode().rstrip("=")


def _read_cursor(cursor: str) -> dict[str, int]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(text, type=dict[str, int])
    except (binascii.Error, ValueError) as error:
        raise BadCursor(cursor) from error


# The number of snapshots to read in one step; a longer compacted segment is also read in one step.
ROWS_PER_STEP: Final = 1_024
# The columns that every snapshot has, by their names in an export.
FIXED: Final[Mapping[str, int]] = {name: number for number, name in COLUMN_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive snapshots of one process.

    ``fixed``: the columns in FIXED. ``series``: the series that have values in these snapshots.
    """

    instance: str
    rank: int
    attempt: int
    fixed: Mapping[str, Column]
    series: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.fixed["sequence"])


class Gone(Exception):
    """Raised when the run was removed during the export; the text is the run's id."""


def names(engine: Engine, run_id: str) -> list[str]:
    """Return the sorted series names of the run. Raises NoSuchRun."""
    with engine.connect() as connection:
        if row_of(connection, run_id) is None:
            raise NoSuchRun(run_id)
        return sorted(series_ids(connection, run_id))


def parts(engine: Engine, run_id: str, wanted: list[str]) -> Iterator[Part]:
    """Yield all snapshots with the requested series, process by process. Raises Gone and CorruptChunk."""
    query = select(processes).where(processes.c.run_id == run_id).order_by(*LIVED)
    with engine.connect() as connection:
        found = connection.execute(query).all()
    for process in found:
        after = -1
        while (step := _step(engine, process, wanted, after)) is not None:
            after, part = step
            if len(part):
                yield part


def _step(
    engine: Engine, process: Row[tuple[object, ...]], wanted: list[str], after: int
) -> tuple[int, Part] | None:
    """Return (last sequence number, snapshots) of the next step of an export, or None at the end."""
    key = Key(process.run_id, process.id)
    with reading(engine) as connection:
        if row_of(connection, key.run_id) is None:
            raise Gone(key.run_id)
        numbered = series_ids(connection, key.run_id)
        ids = {numbered[n]: n for n in wanted if n in numbered}
        stored = next(read(connection, key, ids, after + 1).groups(ROWS_PER_STEP), None)
        if stored is None:
            return None
        measured = stored.series()
        if measured is not None:
            ids = {number: name for number, name in ids.items() if number in measured}
        block = stored.read((*COLUMNS, *ids))
    is_new = block.numbers(SEQUENCE).values > after
    if not bool(is_new.all()):
        block = block.take(is_new)
    fixed = {name: block.columns[number] for name, number in FIXED.items()}
    series = {name: block.numbers(number) for number, name in ids.items()}
    some = {n: c for n, c in series.items() if c.present is None or bool(c.present.any())}
    return max(s.last for s in stored.stretches), Part(
        process.instance, process.rank, process.attempt, fixed, some
    )
