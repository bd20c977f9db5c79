"""A spool on disk -> server: what the server has not got. Twice is the same as once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .delivery import Body, Delivery, Outcome, Refused, accepted_body
from .errors import SpoolError
from .sender import BATCH_REFUSALS, announcement, deliver
from .snapshot import Batch
from .spool import END, read_ack, read_header, read_records, unsent_batches, write_ack


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What one upload did. ``whole`` is False when the process was killed or still runs: no end was recorded."""

    run: str
    name: str
    sent: int = 0
    refused: int = 0
    whole: bool = False


def upload(path: Path, delivery: Delivery, *, again: bool = False) -> Uploaded:
    """Send what ``path`` holds beyond its mark (``again``: everything).

    Raises SpoolError, ServerUnreachable, or ServerRefused when the server refuses the whole run.
    """
    header, process = read_header(path)
    offset = 0 if again else read_ack(path, delivery.server)
    done = Uploaded(header.id, header.name)
    end = next((record for record in read_records(path) if record.kind == END), None)
    if next(read_records(path, offset), None) is None:
        return replace(done, whole=end is not None)
    _accepted(delivery, "POST", "/runs", announcement(header, process))
    while True:
        batches, mark = unsent_batches(path, offset)
        if mark <= offset:
            break
        for batch in batches:
            sent, refused = _send(batch, header.id, delivery)
            done = replace(done, sent=done.sent + sent, refused=done.refused + refused)
        offset = mark
        _note(path, offset, delivery.server)
    if end is not None:
        left = {**end.payload(), "instance": process.instance}
        _accepted(delivery, "PATCH", f"/runs/{header.id}", left)
        _note(path, end.end, delivery.server)
    return replace(done, whole=end is not None)


def _send(batch: Batch, run: str, delivery: Delivery) -> tuple[int, int]:
    """(snapshots accepted, snapshots refused)."""

    def post(body: Body) -> Outcome:
        return delivery.request("POST", f"/runs/{run}/batches", body)

    sent = refused = 0
    for part, outcome in deliver(batch, post):
        if isinstance(outcome, Refused) and outcome.status in BATCH_REFUSALS:
            refused += len(part.snapshots)
            continue
        accepted_body(outcome, delivery.server)
        sent += len(part.snapshots)
    return sent, refused


def _accepted(delivery: Delivery, method: str, path: str, body: Mapping[str, Any]) -> None:
    accepted_body(delivery.request(method, path, body), delivery.server)


def _note(path: Path, offset: int, server: str) -> None:
    try:
        write_ack(path, offset, server)
    except OSError as error:
        raise SpoolError(
            path, f"was sent, but that cannot be noted beside it ({error.strerror})"
        ) from error
