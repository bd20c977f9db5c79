"""Snapshots as rows: the newest for a table, and those after a revision for live pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, select

from ...limits import MAX_PROCESSES_READ
from ..downsampling.chart_points import matching
from ..runs.run_history import NoSuchRun
from ..runs.runs import BadCursor
from ..schema import batches, processes, runs, segments
from ..series.column_reader import (
    GENERATION,
    KIND,
    LABEL,
    PHASE,
    SEQUENCE,
    TIME,
    Key,
    Stretch,
    newest,
    read,
    reading,
    series_ids,
    stretches,
)

HEADLINE: Final = (
    "process.rss_bytes", "process.anon_bytes", "process.file_bytes", "process.shared_bytes",
    "process.swap_bytes", "process.peak_bytes", "children.pss_bytes", "allocator.kept_bytes",
    "cgroup.used_bytes", "cgroup.limit_bytes", "system.available_bytes", "python.objects", "tensors.count",
    "tensors.bytes", "arrays.count", "arrays.bytes", "figures.open", "cuda.0.allocated_bytes", "gpu.0.used_bytes",
)  # fmt: skip
# A page that was away for longer than this reads everything anew.
# Two blocks and what waits: a block is news as a whole in the moment when it is sealed.
MAX_NEWS_ROWS: Final = 12_000
_SHOWN: Final = (SEQUENCE, TIME, GENERATION, PHASE, KIND, LABEL)


@dataclass(frozen=True, slots=True)
class News:
    """What is newer than a revision. ``rows``: process instance -> rows in order.

    ``too_much``: the reader was away for long and should read everything anew.
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
        numbered, left_out = series_ids(connection, run_id), 0
        of_run = _processes(connection, run_id)
        if len(of_run) > MAX_PROCESSES_READ:
            left_out = len(of_run) - MAX_PROCESSES_READ
            of_run = of_run[:MAX_PROCESSES_READ]
        for number, instance in of_run:
            key = Key(run_id, number)
            stored = stretches(connection, key)
            among = newest(stored, limit + 1, before.get(str(number)))
            rows = _rows(connection, key, matching(numbered, names), among)
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
        among = _newer(connection, run_id, since)
        if sum(s.count for stretch in among.values() for s in stretch) > MAX_NEWS_ROWS:
            return News(run.revision, run.verdict_revision, {}, too_much=True)
        instances = dict(_processes(connection, run_id))
        wanted = matching(series_ids(connection, run_id), names)
        rows = {
            instances[number]: _rows(connection, Key(run_id, number), wanted, found)
            for number, found in among.items()
        }
        return News(run.revision, run.verdict_revision, rows)


def _newer(connection: Connection, run_id: str, since: int) -> dict[int, list[Stretch]]:
    found: dict[int, list[Stretch]] = {}
    s, b = segments.c, batches.c
    for number, first, last, count in connection.execute(
        select(s.process_id, s.first_sequence, s.last_sequence, s.count)
        .where(s.run_id == run_id, s.revision > since)
        .order_by(s.first_sequence)
    ):
        found.setdefault(number, []).append(Stretch(first, last, count, sealed=True))
    for number, first, count, body in connection.execute(
        select(b.process_id, b.first_sequence, b.count, b.body)
        .where(b.run_id == run_id, b.revision > since)
        .order_by(b.first_sequence)
    ):
        found.setdefault(number, []).append(Stretch(first, first + count - 1, count, False, body))
    return found


def _rows(
    connection: Connection, key: Key, wanted: Mapping[int, str], among: list[Stretch]
) -> list[dict[str, Any]]:
    block = read(connection, key, (*_SHOWN, *wanted), wanted, among)
    columns = {number: column.to_list() for number, column in block.columns.items()}
    fixed = ("sequence", "time", "generation", "phase", "kind", "label")
    return [
        {
            **{name: columns[number][i] for name, number in zip(fixed, _SHOWN, strict=True)},
            "samples": {
                name: columns[number][i]
                for number, name in wanted.items()
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
