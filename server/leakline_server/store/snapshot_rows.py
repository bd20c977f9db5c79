"""Snapshots as rows: the newest for a table, those after a revision for live pages, and all of a run for an export.

An export reads a few thousand at a time, in the order of their numbers. Each step is one short query, so an export of a
week blocks nothing: no transaction stays open over it, and sealing, compaction and late batches may move rows between
two steps.
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
# A page that was away for longer than this reads everything again.
# Two blocks and what waits: a block is news as a whole in the moment when it is sealed.
MAX_NEWS_ROWS: Final = 12_000
_SHOWN: Final = (SEQUENCE, TIME, GENERATION, PHASE, KIND, LABEL)


@dataclass(frozen=True, slots=True)
class News:
    """What is newer than a revision. ``rows``: process instance -> rows in order.

    ``too_much``: the reader was away for long and should read everything again.
    """

    revision: int
    verdict_revision: int
    rows: Mapping[str, list[dict[str, Any]]]
    too_much: bool = False


def list_snapshots(
    engine: Engine, run_id: str, names: Sequence[str], limit: int, cursor: str | None
) -> dict[str, Any]:
    """{"items": [{process, sequence, time, generation, phase, kind, label, samples}], "next",
    "processes_left_out"}, newest first.

    Of a run of more than MAX_PROCESSES_READ processes, those of which was heard last.
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
    """What is newer than revision ``since``; no rows without one. Raises NoSuchRun.

    After sealing, a whole segment counts as new when a part of it is: rows may come twice, and never not at all.
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
            # The id of a database that is gone: nothing the reader has can be trusted.
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
    """(number, instance), those first of which was heard last."""
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


# Of one step, if stretches are short; a compacted stretch is read as a whole.
ROWS_PER_STEP: Final = 1_024
# What every snapshot has, by its name in an export.
FIXED: Final[Mapping[str, int]] = {name: number for number, name in COLUMN_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """Snapshots of one process. ``fixed``: as FIXED; ``series``: those of which something is measured here."""

    instance: str
    rank: int
    attempt: int
    fixed: Mapping[str, Column]
    series: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.fixed["sequence"])


class Gone(Exception):
    """The run was removed while it was exported; its text is the id."""


def names(engine: Engine, run_id: str) -> list[str]:
    """The series of the run in order of their names. Raises NoSuchRun."""
    with engine.connect() as connection:
        if row_of(connection, run_id) is None:
            raise NoSuchRun(run_id)
        return sorted(series_ids(connection, run_id))


def parts(engine: Engine, run_id: str, wanted: list[str]) -> Iterator[Part]:
    """Everything there is of the wanted series, process after process. Raises Gone, and CorruptChunk."""
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
    """The next snapshots, and the number of the last of them; None at the end."""
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
