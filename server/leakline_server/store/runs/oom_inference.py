"""Why a process vanished, as far as its last readings and those of the others beside it tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from leakline.transport.oom_inference import (
    EVIDENCE,
    FRESH_SECONDS,
    killed_for_memory,
    last_readings,
)

from ..ingest.snapshot_reads import heads, read_between
from ..schema import processes
from ..series.column_reader import TIME, Key, Stretch, newest, series_ids

_KILLS: Final = "cgroup.kills"
# Of the newest snapshots of a process, so many are read; then so many times as many, until they reach back far enough.
_ROWS: Final = 200
_FACTOR: Final = 8
_MOST_ROWS: Final = _ROWS * _FACTOR**3

# (Unix seconds by the clock of the process, samples)
_Moment = tuple[float, dict[str, Any]]


def why_killed(connection: Connection, process: Row[Any]) -> str | None:
    """The reason as it is told, or None without evidence. ``process``: its row."""
    moments = _readings(connection, process)
    if not moments:
        return None
    return killed_for_memory(
        last_readings(moments), _kills_since(connection, process, moments[-1][0])
    )


def _kills_since(connection: Connection, process: Row[Any], died_at: float) -> int:
    """How many more kills the other processes of the run on the same machine have seen since, each in its own group."""
    query = select(processes).where(
        processes.c.run_id == process.run_id,
        processes.c.host == process.host,
        processes.c.id != process.id,
        processes.c.last_seen_at >= process.last_seen_at,
    )
    others = connection.execute(query).all()
    seen = (_risen(_readings(connection, other, died_at), died_at) for other in others)
    return max(seen, default=0)


def _risen(moments: Iterable[tuple[float, Mapping[str, Any]]], died_at: float) -> int:
    counted = [(at, samples[_KILLS]) for at, samples in moments if _KILLS in samples]
    before = [kills for at, kills in counted if at <= died_at]
    return int(counted[-1][1] - before[-1]) if before else 0


def _readings(
    connection: Connection, process: Row[Any], since: float | None = None
) -> list[_Moment]:
    """Of its snapshots, in order, from a minute before ``since`` or before the newest, where those are not too many.

    A minute, because not every snapshot has every series.
    """
    numbered = series_ids(connection, process.run_id)
    names = {numbered[name]: name for name in EVIDENCE if name in numbered}
    stored = heads(connection, Key(process.run_id, process.id))
    rows = _ROWS
    while True:
        among = newest(stored, rows, None)
        moments = _moments(connection, process, names, among)
        if len(among) == len(stored) or rows >= _MOST_ROWS:
            return moments
        newest_at = moments[-1][0] if moments else 0.0
        if moments and moments[0][0] <= min(newest_at, since or newest_at) - FRESH_SECONDS:
            return moments
        rows *= _FACTOR


def _moments(
    connection: Connection,
    process: Row[Any],
    names: Mapping[int, str],
    among: Sequence[Stretch],
) -> list[_Moment]:
    if not among:
        return []
    key = Key(process.run_id, process.id)
    low, high = min(s.first for s in among), max(s.last for s in among)
    block = read_between(connection, key, (TIME, *names), names, low, high)
    columns = {name: block.numbers(number).to_list() for number, name in names.items()}
    return [
        (at, {name: values[i] for name, values in columns.items() if values[i] is not None})
        for i, at in enumerate(block.numbers(TIME).to_list())
        if at is not None
    ]
