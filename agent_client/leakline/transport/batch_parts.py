"""A batch -> parts that a server takes, posted one after the other. Knows the limits of
`leakline_server.ingest.decode`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ..runtime.gil_yield import breathe
from ..snapshot import Batch, batch_to_wire
from .batching import within
from .http_delivery import Body, Outcome, Refused, encode

# As it travels, and unpacked.
PART_LIMIT_BYTES: Final = 256 * 1024
PART_LIMIT_UNPACKED_BYTES: Final = 2 * 2**20
PART_LIMIT_SERIES: Final = 4_000
PART_LIMIT_EVENTS: Final = 2_000
TOO_LARGE: Final = 413
# These refuse one batch; every other refusal is about the run or the server.
BATCH_REFUSALS: Final = frozenset({400, 409, TOO_LARGE, 422})


def deliver(batch: Batch, post: Callable[[Body], Outcome]) -> Iterator[tuple[Batch, Outcome]]:
    """Post a batch in parts. One pair for each part that has its answer; the next is posted when it is asked for.

    What is too large for the server goes once more in halves. A half that still is, and a single snapshot, have had
    their answer, as has what is refused for another reason: the same would be refused again.
    """
    for part in _parts(batch):
        yield from _deliver_part(part, post)


def _deliver_part(part: Batch, post: Callable[[Body], Outcome]) -> Iterator[tuple[Batch, Outcome]]:
    body = _encoded(part)
    single = len(part.snapshots) < 2
    if len(body.data) > PART_LIMIT_BYTES or body.unpacked_bytes > PART_LIMIT_UNPACKED_BYTES:
        if single:
            # No server of ours takes it, so none is asked.
            why = f"a snapshot of {body.unpacked_bytes} bytes"
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
    wire = batch_to_wire(part)
    breathe()
    body = encode(wire)
    breathe()
    return body


def _parts(batch: Batch) -> Iterator[Batch]:
    """In order, each within the limits as far as single snapshots are."""
    if not batch.snapshots:
        # It tells of losses alone.
        yield batch
    for part in within(batch.snapshots, series=PART_LIMIT_SERIES, events=PART_LIMIT_EVENTS):
        yield replace(batch, snapshots=part)


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    middle = len(batch.snapshots) // 2
    return (
        replace(batch, snapshots=batch.snapshots[:middle]),
        replace(batch, snapshots=batch.snapshots[middle:]),
    )
