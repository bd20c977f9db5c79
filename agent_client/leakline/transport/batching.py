"""Splits snapshots into batches of at most 200 snapshots with consecutive sequence numbers.

A batch is posted in parts, one after the other. Each part is within the limits of `leakline_server.ingest.decode`. This
module posts only through a function that the caller passes, and has no other side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from ..runtime.threads import breathe
from ..snapshot import CONTENT_TYPE, Batch, Snapshot, batch_to_bytes
from .http_delivery import Body, Outcome, Refused, pack

SNAPSHOTS_PER_BATCH: Final = 200
# Limits chosen so that decoding or encoding this many snapshots or values holds the GIL for one or two milliseconds.
SNAPSHOTS_PER_RECORD: Final = 50
VALUES_AT_ONCE: Final = 2_000


def merge(batches: Iterable[Batch]) -> list[Batch]:
    """Merge batches into as few batches as their sequence numbers and the size limit allow.

    A batch without snapshots is kept only if no other batch can report its losses.
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
    """Yield runs of snapshots, split at missing sequence numbers and at the size limit of a batch."""
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
    """Yield runs of snapshots in order, each within the limits of values, series and events.

    The number of values is columns times rows. A single snapshot may exceed the limits.
    """
    part: list[Snapshot] = []
    names: set[str] = set()
    event_count = 0
    for snapshot in snapshots:
        together = names.union(snapshot.samples)
        event_count += len(snapshot.events)
        if part and (
            len(together) * (len(part) + 1) > values
            or (series is not None and len(together) > series)
            or (events is not None and event_count > events)
        ):
            yield tuple(part)
            part, together, event_count = [], set(snapshot.samples), len(snapshot.events)
        part.append(snapshot)
        names = together
    if part:
        yield tuple(part)


def split(snapshots: tuple[Snapshot, ...], parts: float) -> Iterator[tuple[Snapshot, ...]]:
    """Yield about ``parts`` parts of equal size, but at least two."""
    size = max(1, int(len(snapshots) / max(2.0, parts)))
    for begin in range(0, len(snapshots), size):
        yield snapshots[begin : begin + size]


def after(sequence: int, batches: list[Batch]) -> Iterator[Batch]:
    """Yield the batches, leaving out snapshots up to and including ``sequence``."""
    for batch in batches:
        if not batch.snapshots or batch.first_sequence > sequence:
            yield batch
        elif later := tuple(s for s in batch.snapshots if s.sequence > sequence):
            yield replace(batch, snapshots=later)


# Limits of a part: the size of its body as sent and uncompressed, and the numbers of series and events.
PART_LIMIT_BYTES: Final = 256 * 1024
PART_LIMIT_UNPACKED_BYTES: Final = 2 * 2**20
PART_LIMIT_SERIES: Final = 4_000
PART_LIMIT_EVENTS: Final = 2_000
TOO_LARGE: Final = 413
# Statuses that refuse only one batch. Any other refusal applies to the whole run.
BATCH_REFUSALS: Final = frozenset({400, 409, TOO_LARGE, 422})


def deliver(batch: Batch, post: Callable[[Body], Outcome]) -> Iterator[tuple[Batch, Outcome]]:
    """Post a batch in parts, and yield each part with its outcome.

    The next part is posted when the caller requests it. A part that is too large for the server is posted once more in
    halves. After any other refusal, or if a half or a single snapshot is too large, the part is not posted again,
    because the server would refuse it again.
    """
    for part in _parts(batch):
        yield from _deliver_part(part, post)


def _deliver_part(part: Batch, post: Callable[[Body], Outcome]) -> Iterator[tuple[Batch, Outcome]]:
    body = _encoded(part)
    single = len(part.snapshots) < 2
    if len(body.data) > PART_LIMIT_BYTES or body.unpacked_bytes > PART_LIMIT_UNPACKED_BYTES:
        if single:
            # Do not send a snapshot that no Leakline server accepts.
            why = f"a snapshot of {body.unpacked_bytes:,} bytes is too large"
            yield part, Refused(TOO_LARGE, "batch_too_large", why)
            return
        for half in _halves(part):
            yield from _deliver_part(half, post)
        return
    outcome = post(body)
    if single or not (isinstance(outcome, Refused) and outcome.status == TOO_LARGE):
        yield part, outcome
        return
    for half in _halves(part):
        yield half, post(_encoded(half))


def _encoded(part: Batch) -> Body:
    breathe()
    data = batch_to_bytes(part)
    breathe()
    body = pack(data, CONTENT_TYPE)
    breathe()
    return body


def _parts(batch: Batch) -> Iterator[Batch]:
    """Yield parts in order, each within the limits unless a single snapshot exceeds them."""
    if not batch.snapshots:
        # This batch only reports losses.
        yield batch
    for part in within(batch.snapshots, series=PART_LIMIT_SERIES, events=PART_LIMIT_EVENTS):
        yield replace(batch, snapshots=part)


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    middle = len(batch.snapshots) // 2
    return (
        replace(batch, snapshots=batch.snapshots[:middle]),
        replace(batch, snapshots=batch.snapshots[middle:]),
    )
