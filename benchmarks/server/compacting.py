"""Background work of a server after it has answered: sealing soon after, compaction once a run is over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy

from leakline_server.store.series import MIN_SNAPSHOTS_IDLE

from .load import Failed
from .subjects import Leakline

POLL_SECONDS: Final = 2.0
LONGEST_SEALING_SECONDS: Final = 300.0
# Both are checked every half minute, wait until a run has been idle for a minute, and use a quarter of a core.
LONGEST_SECONDS: Final = 420.0
SPACE_SECONDS: Final = 36.0

_LEFT: Final = sqlalchemy.text(
    "SELECT (SELECT count(*) FROM segments WHERE level = 0) + (SELECT count(*) FROM"
    " (SELECT run_id FROM batches GROUP BY run_id, process_id HAVING sum(count) >= :idle) AS due)"
)


def sealed(server: Leakline) -> float:
    """Return how many snapshots were sealed since the server was started."""
    return server.metric("leakline_snapshots_sealed_total") or 0.0


def until_sealed(server: Leakline, snapshots: float) -> None:
    """Wait until this many snapshots were sealed since the start. Raises Failed."""
    until = time.monotonic() + LONGEST_SEALING_SECONDS
    while (found := sealed(server)) < snapshots:
        if time.monotonic() > until:
            raise Failed(f"{server.name}: {found:,.0f} of {snapshots:,.0f} snapshots were sealed")
        time.sleep(1.0)


@dataclass(slots=True, eq=False)
class _Watched:
    """``before`` and ``began``: CPU seconds and work done before the background work started."""

    server: Leakline
    before: float
    began: float

    def look(self) -> bool:
        """Return True if nothing is left to do."""
        spent, done = _spent(self.server), _done(self.server)
        if done == self.began:
            self.before = spent
        return left(self.server) == 0


def compacted(servers: Sequence[Leakline], longest: float = LONGEST_SECONDS) -> dict[str, float]:
    """Wait until nothing of finished runs is left to seal or compact.

    Return the CPU seconds of each server since its background work began, by name, without the analysis. Raises
    Failed.
    """
    waiting = [_Watched(server, _spent(server), _done(server)) for server in servers]
    spent: dict[str, float] = {}
    until = time.monotonic() + longest
    while waiting:
        for each in [each for each in waiting if each.look()]:
            waiting.remove(each)
            each.server.settle()
            spent[each.server.name] = _spent(each.server) - each.before
        if waiting and time.monotonic() > until:
            first = waiting[0].server
            raise Failed(
                f"{first.name}: {left(first)} segments or processes are not compacted after {longest:g} s"
            )
        time.sleep(POLL_SECONDS if waiting else 0)
    return spent


def left(server: Leakline) -> int:
    """Return the number of uncompacted segments plus processes with enough data to seal."""
    engine = sqlalchemy.create_engine(server.database_url)
    try:
        with engine.connect() as connection:
            return int(connection.execute(_LEFT, {"idle": MIN_SNAPSHOTS_IDLE}).scalar_one())
    finally:
        engine.dispose()


def until_space_is_back(server: Leakline, longest: float) -> None:
    """Wait until no more database space is freed, which is also checked every half minute."""
    until, quiet_since, before = time.monotonic() + longest, time.monotonic(), None
    while time.monotonic() < until and time.monotonic() - quiet_since < SPACE_SECONDS:
        time.sleep(POLL_SECONDS)
        now = server.metric("leakline_database_free_bytes")
        if now != before:
            quiet_since, before = time.monotonic(), now


def _spent(server: Leakline) -> float:
    return server.cpu() - server.analysis_cpu()


def _done(server: Leakline) -> float:
    return sealed(server) + (server.metric("leakline_snapshots_compacted_total") or 0.0)
