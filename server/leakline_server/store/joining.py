"""A process creates a run, joins it, or begins its next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, and_, insert, select, update

from leakline.snapshot import ProcessIdentity, RunHeader

from .engine import writing
from .runs import ENDED, row_of
from .tables import attempts, processes, runs


@dataclass(frozen=True, slots=True)
class Joined:
    """What a process is told when it creates or joins a run."""

    id: str
    created: bool
    attempt: int


class OtherProject(Exception):
    """The run exists, in another project."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self.project = project


class OtherProcess(Exception):
    """The instance is known with another rank or attempt."""

    def __init__(self, instance: str, field: str, stored: int, sent: int) -> None:
        super().__init__(instance, field, stored, sent)
        self.instance, self.field, self.stored, self.sent = instance, field, stored, sent


def join_run(
    engine: Engine, header: RunHeader, now: float, process: ProcessIdentity | None = None
) -> Joined:
    """Create the run, or join it: another rank, the next attempt, or a process that says hello again.

    A process that is known already changes nothing about a run that ended, so uploading a spool twice is the same as
    once; a new one makes the run running. Without ``process``, joining a run that ended begins its next attempt.
    """
    with writing(engine) as connection:
        row = row_of(connection, header.id)
        if row is None:
            attempt = 1 if process is None else process.attempt
            _create(connection, header, attempt, now)
            _introduce(connection, header.id, process, now)
            return Joined(header.id, True, attempt)
        if row.project != header.project:
            raise OtherProject(row.project)
        attempt = _attempt_of(row, process)
        known = not _introduce(connection, header.id, process, now)
        if known and row.state in ENDED:
            return Joined(header.id, False, attempt)
        is_next = attempt > row.attempt
        connection.execute(
            update(runs).where(runs.c.id == header.id).values(
                state="running", reason="", ended_at=None, attempt=max(attempt, row.attempt),
                last_seen_at=now, revision=runs.c.revision + 1,
                total=row.total if header.total is None else header.total,
                phases=_dump(_union(msgspec.json.decode(row.phases), header.phases)),
                tags=_dump(_union(msgspec.json.decode(row.tags), header.tags)),
                environment=_dump(header.environment) if is_next else row.environment,
            )
        )  # fmt: skip
        _add_attempt(connection, header, attempt, header.started_at if process else now)
        return Joined(header.id, False, attempt)


def _attempt_of(row: Row[Any], process: ProcessIdentity | None) -> int:
    if process is not None:
        return process.attempt
    return int(row.attempt) + (row.state in ENDED)


def _introduce(
    connection: Connection, run_id: str, process: ProcessIdentity | None, now: float
) -> bool:
    """Write the row of a process that joins; False when it was there. From now on, the run waits for its end."""
    if process is None:
        return True
    same = and_(processes.c.run_id == run_id, processes.c.instance == process.instance)
    there = connection.execute(select(processes.c.rank, processes.c.attempt).where(same)).first()
    if there is not None:
        for name, stored in (("rank", there.rank), ("attempt", there.attempt)):
            if getattr(process, name) != stored:
                raise OtherProcess(process.instance, name, stored, getattr(process, name))
        return False
    connection.execute(
        insert(processes).values(
            run_id=run_id, instance=process.instance, rank=process.rank, role=process.role, pid=process.pid,
            host=process.host, attempt=process.attempt, started_at=now, last_seen_at=now,
        )
    )  # fmt: skip
    return True


def _create(connection: Connection, header: RunHeader, attempt: int, now: float) -> None:
    connection.execute(
        insert(runs).values(
            id=header.id, project=header.project, name=header.name, unit=header.unit, total=header.total,
            tags=_dump(list(dict.fromkeys(header.tags))), phases=_dump(header.phases),
            config=_dump(header.config), environment=_dump(header.environment),
            state="running", started_at=header.started_at, created_at=now, last_seen_at=now, revision=1,
            attempt=attempt,
        )
    )  # fmt: skip
    _add_attempt(connection, header, attempt, header.started_at)


def _add_attempt(connection: Connection, header: RunHeader, number: int, at: float) -> None:
    """The first process of an attempt describes it."""
    there = select(attempts.c.id).where(attempts.c.run_id == header.id, attempts.c.number == number)
    if connection.execute(there).first() is None:
        environment = _dump(header.environment)
        connection.execute(
            insert(attempts).values(
                run_id=header.id, number=number, started_at=at, environment=environment
            )
        )


def _union(there: Sequence[str], more: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*there, *more)))


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()
