"""Uploads a spool on disk by sending data that the server does not have. Repeating an upload is harmless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import SpoolError
from ..snapshot import Batch, ProcessIdentity, RunHeader
from .batching import BATCH_REFUSALS, SNAPSHOTS_PER_BATCH, deliver
from .http_delivery import Body, Delivery, Outcome, Refused, accepted_body
from .sender import announcement
from .spool_format import (
    AT_EXIT,
    DAMAGED,
    Holdings,
    Record,
    collect,
    examine,
    is_in_place,
    read_ack,
    read_header,
    read_open,
    read_open_end,
    write_ack,
)


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The progress of an upload. ``complete`` is True once all data is sent.

    ``state`` is how the process ended, or empty if no end is recorded, because the process may still be running.
    ``held`` describes losses in the spool itself, or is None if all data was already sent.
    """

    run: str
    name: str
    sent: int = 0
    refused: int = 0
    state: str = ""
    reason: str = ""
    complete: bool = False
    held: Holdings | None = None


def upload(path: Path, delivery: Delivery, *, again: bool = False) -> Uploaded:
    """Send the data after the mark in ``path``, or all data if ``again`` is True.

    Raises SpoolError, ServerUnreachable, or ServerRefused if the server refuses the whole run.
    """
    return list(uploading(path, delivery, again=again))[-1]


def uploading(
    path: Path, delivery: Delivery, *, again: bool = False, limit: int = SNAPSHOTS_PER_BATCH
) -> Iterator[Uploaded]:
    """Upload in steps of at most ``limit`` snapshots, and yield the progress after each step."""
    header, process = read_header(path)
    # Keep the same file open until the end, because a process that is still running may replace it with a shorter file
    # in the meantime.
    with path.open("rb") as file:
        yield from _uploading(_Spool(path, file.fileno()), header, process, delivery, again, limit)


@dataclass(frozen=True, slots=True)
class _Spool:
    path: Path
    fd: int

    def records(self, offset: int = 0) -> Iterator[Record]:
        return read_open(self.fd, offset, self.path)

    def accepted(self, server: str) -> int:
        offset = read_ack(self.path, server)
        return offset if is_in_place(self.fd, self.path) else 0

    def note(self, offset: int, server: str) -> None:
        # Do not record the offset if the file was replaced: in the new file it would skip unsent data.
        if not is_in_place(self.fd, self.path):
            return
        try:
            write_ack(self.path, offset, server)
        except OSError as error:
            raise SpoolError(
                self.path, f"was sent, but its .ack file cannot be written ({error.strerror})"
            ) from error


def _uploading(
    spool: _Spool,
    header: RunHeader,
    process: ProcessIdentity,
    delivery: Delivery,
    again: bool,
    limit: int,
) -> Iterator[Uploaded]:
    offset = 0 if again else spool.accepted(delivery.server)
    held = None
    if next(spool.records(offset), None) is None:
        end = read_open_end(spool.fd, spool.path)
    else:
        held = examine(spool.fd, spool.path)
        end = held.end
    done = _ended(Uploaded(header.id, header.name, held=held), end)
    if held is None:
        yield replace(done, complete=True)
        return
    # `--again` also uploads what the server has refused because of `resume`.
    joining = replace(header, resume="allow") if again else header
    _accepted(delivery, "POST", "/runs", announcement(joining, process))
    damaged = {DAMAGED: held.missing} if held.missing else {}
    while True:
        records = spool.records(offset)
        if held.foreign_bytes:
            records = (each for each in records if each.end <= held.size_bytes)
        batches, mark = collect(records, offset, limit, process.instance)
        if mark <= offset:
            if end is not None or held.foreign_bytes:
                break
            # If the process has ended in the meantime, first send the data that it wrote before its end.
            end = read_open_end(spool.fd, spool.path)
            if end is None:
                break
            done = _ended(done, end)
            continue
        for batch in batches:
            reported_losses = replace(batch, lost={**batch.lost, **damaged})
            sent, refused = _send(reported_losses, header.id, delivery)
            done = replace(done, sent=done.sent + sent, refused=done.refused + refused)
        offset = mark
        spool.note(offset, delivery.server)
        yield done
    if end is not None:
        body = {**end.payload(), "instance": process.instance}
        body.pop(AT_EXIT, None)
        _accepted(delivery, "PATCH", f"/runs/{header.id}", body)
        spool.note(end.end, delivery.server)
    yield replace(done, complete=True)


def _ended(done: Uploaded, end: Record | None) -> Uploaded:
    ending = {} if end is None else end.payload()
    state, reason = (str(ending.get(name, "")) for name in ("state", "reason"))
    return replace(done, state=state, reason=reason)


def _send(batch: Batch, run: str, delivery: Delivery) -> tuple[int, int]:
    """Send a batch, and return the numbers of accepted and refused snapshots."""

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
