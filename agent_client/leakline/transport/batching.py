"""Snapshots in batches: sequence numbers of a batch are consecutive, and it has at most 200 of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ..snapshot import Batch, Snapshot

SNAPSHOTS_PER_BATCH: Final = 200
# What is read or encoded at once holds the interpreter meanwhile: a millisecond or two for so many snapshots or values.
SNAPSHOTS_PER_RECORD: Final = 50
VALUES_AT_ONCE: Final = 2_000


def merge(batches: Iterable[Batch]) -> list[Batch]:
    """The same snapshots in as few batches as their sequence numbers and the limit of a batch allow.

    A batch without snapshots stays only where there is no other to tell its losses.
    """
    merged: list[Batch] = []
    for batch in batches:
        if not batch.snapshots and merged:
            merged[-1] = replace(merged[-1], lost=batch.lost)
            continue
        if merged and not merged[-1].snapshots:
            merged.pop()
        for run in consecutive(batch.snapshots):
            _join(merged, replace(batch, snapshots=run))
        if not batch.snapshots:
            merged.append(batch)
    return merged


def _join(merged: list[Batch], batch: Batch) -> None:
    last = merged[-1] if merged else None
    if last is not None and _follows(last, batch.snapshots):
        merged[-1] = replace(last, snapshots=last.snapshots + batch.snapshots, lost=batch.lost)
    else:
        merged.append(batch)


def _follows(last: Batch, run: tuple[Snapshot, ...]) -> bool:
    return (
        last.snapshots[-1].sequence + 1 == run[0].sequence
        and len(last.snapshots) + len(run) <= SNAPSHOTS_PER_BATCH
    )


def consecutive(
    snapshots: Iterable[Snapshot], limit: int = SNAPSHOTS_PER_BATCH
) -> Iterator[tuple[Snapshot, ...]]:
    """Split where a sequence number is missing or a batch would grow too long."""
    run: list[Snapshot] = []
    for snapshot in snapshots:
        if run and (snapshot.sequence != run[-1].sequence + 1 or len(run) >= limit):
            yield tuple(run)
            run = []
        run.append(snapshot)
    if run:
        yield tuple(run)


def within(
    snapshots: Iterable[Snapshot],
    values: int = VALUES_AT_ONCE,
    series: int | None = None,
    events: int | None = None,
) -> Iterator[tuple[Snapshot, ...]]:
    """In order, as many at a time as have no more than so many values (a column has one for each), series and events.

    A single one may have more.
    """
    part: list[Snapshot] = []
    names: set[str] = set()
    told = 0
    for snapshot in snapshots:
        together = names.union(snapshot.samples)
        told += len(snapshot.events)
        if part and (
            len(together) * (len(part) + 1) > values
            or (series is not None and len(together) > series)
            or (events is not None and told > events)
        ):
            yield tuple(part)
            part, together, told = [], set(snapshot.samples), len(snapshot.events)
        part.append(snapshot)
        names = together
    if part:
        yield tuple(part)


def split(snapshots: tuple[Snapshot, ...], parts: float) -> Iterator[tuple[Snapshot, ...]]:
    """In so many parts, two at least."""
    size = max(1, int(len(snapshots) / max(2.0, parts)))
    for begin in range(0, len(snapshots), size):
        yield snapshots[begin : begin + size]


def after(sequence: int, batches: list[Batch]) -> Iterator[Batch]:
    """Without the snapshots up to this number."""
    for batch in batches:
        if not batch.snapshots or batch.first_sequence > sequence:
            yield batch
        elif later := tuple(s for s in batch.snapshots if s.sequence > sequence):
            yield replace(batch, snapshots=later)
