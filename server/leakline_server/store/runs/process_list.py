"""The size-limited list of a run's processes in API responses, and the number of processes left out.

A run may have ten thousand processes, each with names, reasons and log lines of any content. If not all of them fit,
processes named by a finding come first, then the processes of the newest attempt. Among these, processes that
ended badly come first, because users look for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, Row, case, func, literal, select

from leakline.transport.spool_format import DROPPED, THINNED

from ...limits import (
    MAX_LINES_LISTED_BYTES,
    MAX_PAGE,
    MAX_PROCESSES_LISTED,
    MAX_PROCESSES_LISTED_BYTES,
)
from ..details import lines_of_processes
from ..schema import batches, processes, segments


def iso(seconds: float) -> str:
    """Format Unix seconds as UTC to the millisecond: 2026-01-31T12:00:00.000Z"""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


def unix(text: str) -> float:
    """Parse a time written by `iso` into Unix seconds."""
    return datetime.fromisoformat(text).timestamp()


# The order in which processes are listed: processes of one rank are adjacent, no matter when they registered.
LIVED: Final = (
    processes.c.rank, processes.c.attempt, processes.c.started_at, processes.c.id,
)  # fmt: skip
# 0 sorts processes that ended badly first.
_GOOD_END: Final = case(
    (processes.c.end_state.in_(("failed", "interrupted", "killed", "silent")), 0), else_=1
)


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The listed processes in API form, in the order LIVED, and the number of processes left out."""

    processes: list[dict[str, Any]]
    left_out: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Snapshot counts of a process.

    ``newest``: the highest sequence number, which equals the number of snapshots taken so far. ``left_out``: snapshots
    that were stored and then dropped by thinning (`retention_steps.py`).
    """

    count: int = 0
    newest: int = 0
    left_out: int = 0

    def taken(self, lost: Mapping[str, int]) -> int:
        """Return the number of snapshots taken; snapshots lost after the newest stored snapshot may not be counted."""
        gone = sum(number for reason, number in lost.items() if reason in DROPPED | THINNED)
        return max(self.newest, self.count + self.left_out + gone)


_NONE_STORED: Final = Stored()


class _Grows(msgspec.Struct):
    instance: str
    growth_bytes_per_generation: dict[str, float] | None = None
    findings: list[str] = []


class _Verdict(msgspec.Struct):
    """The processes in a verdict. Verdicts of older versions list no processes."""

    processes: list[_Grows] = []


_decode: Final = msgspec.json.Decoder(_Verdict).decode
_NOT_LISTED: Final = _Grows("")


def of_run(connection: Connection, run_id: str, verdict: str | None) -> ProcessList:
    """Return the processes to list for a run; ``verdict`` is the run's stored verdict."""
    mine = processes.c.run_id == run_id
    grows = {
        each.instance: each for each in (_decode(verdict) if verdict else _Verdict()).processes
    }
    named = [each.instance for each in grows.values() if each.findings]
    leaks_first = case((processes.c.instance.in_(named[:MAX_PAGE]), 0), else_=1)
    first = (leaks_first, processes.c.attempt.desc(), _GOOD_END, *LIVED)
    rows = connection.execute(
        select(processes).where(mine).order_by(*first).limit(MAX_PROCESSES_LISTED)
    ).all()
    count = len(rows)
    if count == MAX_PROCESSES_LISTED:
        count = connection.scalar(select(func.count()).select_from(processes).where(mine)) or 0
    stored = _stored(connection, run_id)
    listed = dict(
        _that_fit(
            (
                row,
                _process(
                    row, stored.get(row.id, _NONE_STORED), grows.get(row.instance, _NOT_LISTED)
                ),
            )
            for row in rows
        )
    )
    _add_lines(connection, run_id, {row.id: process for row, process in listed.items()})
    in_order = sorted(listed, key=lambda row: (row.rank, row.attempt, row.started_at, row.id))
    return ProcessList([listed[row] for row in in_order], count - len(listed))


def all_of(engine: Engine, run_id: str) -> list[dict[str, Any]]:
    """Return {instance, rank, role, ended_at, end_state} of every process of a run, in the order LIVED."""
    p = processes.c
    asked = (p.instance, p.rank, p.role, p.ended_at, p.end_state)
    query = select(*asked).where(p.run_id == run_id).order_by(*LIVED)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def _stored(connection: Connection, run_id: str) -> dict[int, Stored]:
    """Return snapshot counts by process id. Processes without stored snapshots are left out."""
    found: dict[int, Stored] = {}
    s, b = segments.c, batches.c
    # A thinned segment counts as complete, both here and when its snapshots are sent again.
    missing = case((s.thinned, s.last_sequence - s.first_sequence + 1 - s.count), else_=0)
    for table, newest, left_out in (
        (segments, func.max(s.last_sequence), func.sum(missing)),
        (batches, func.max(b.first_sequence + b.count - 1), literal(0)),
    ):
        query = (
            select(table.c.process_id, func.sum(table.c.count), newest, left_out)
            .where(table.c.run_id == run_id, table.c.count > 0)
            .group_by(table.c.process_id)
        )
        for process_id, count, last, out in connection.execute(query):
            before = found.get(process_id, Stored())
            together, gone = before.count + int(count), before.left_out + int(out)
            # Sequence numbers should begin at 1, but a sender may begin at 0.
            highest = max(before.newest, int(last), together + gone)
            found[process_id] = Stored(together, highest, gone)
    return found


def _that_fit(
    found: Iterator[tuple[Row[Any], dict[str, Any]]],
) -> Iterator[tuple[Row[Any], dict[str, Any]]]:
    room = MAX_PROCESSES_LISTED_BYTES
    for row, process in found:
        room -= len(msgspec.json.encode(process))
        if room < 0:
            return
        yield row, process


def _process(row: Row[Any], stored: Stored, grows: _Grows) -> dict[str, Any]:
    lost = msgspec.json.decode(row.lost)
    return {
        "instance": row.instance,
        "rank": row.rank,
        "role": row.role,
        "pid": row.pid,
        "host": row.host,
        "attempt": row.attempt,
        "started_at": iso(row.started_at),
        "last_seen_at": iso(row.last_seen_at),
        "ended_at": iso_or_none(row.ended_at),
        "end_state": row.end_state,
        "end_reason": row.end_reason,
        "end_inferred": row.end_inferred,
        "clock_skew_seconds": row.clock_skew_seconds,
        "rss_bytes": row.rss_bytes,
        "peak_bytes": row.peak_bytes,
        "growth_bytes_per_generation": grows.growth_bytes_per_generation,
        "findings": grows.findings,
        "taken": stored.taken(lost),
        "stored": stored.count,
        "left_out": stored.left_out,
        "lost": lost,
        "log_lines": [],
        "log_lines_left_out": 0,
    }


def _add_lines(connection: Connection, run_id: str, listed: dict[int, dict[str, Any]]) -> None:
    """Add log lines to the processes in order while there is room; the last process gets the newest lines that fit."""
    room = MAX_LINES_LISTED_BYTES
    for process_id, lines in lines_of_processes(connection, run_id, list(listed)):
        kept, room = _newest(lines, room)
        listed[process_id] |= {"log_lines": kept, "log_lines_left_out": len(lines) - len(kept)}


def _newest(lines: Sequence[str], room: int) -> tuple[list[str], int]:
    """Return the newest lines that fit, and the remaining room, which is 0 if a line did not fit."""
    kept: list[str] = []
    for line in reversed(lines):
        room -= len(msgspec.json.encode(line))
        if room < 0:
            return kept[::-1], 0
        kept.append(line)
    return kept[::-1], room
