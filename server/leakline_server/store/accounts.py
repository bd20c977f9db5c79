"""What of each process's snapshots is stored, so that people can see what is missing and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, case, func, literal, select

from leakline.accounts import DROPPED, THINNED

from .tables import batches, segments


@dataclass(frozen=True, slots=True)
class Stored:
    """``newest``: the highest sequence number, which is how many snapshots were taken until then. ``left_out``: were
    stored, until they were thinned (`thinning.py`)."""

    count: int = 0
    newest: int = 0
    left_out: int = 0

    def taken(self, lost: Mapping[str, int]) -> int:
        """As far as is known here. What was lost after the newest one has a number as well, which nobody tells."""
        gone = sum(number for reason, number in lost.items() if reason in DROPPED | THINNED)
        return max(self.newest, self.count + self.left_out + gone)


def of_run(connection: Connection, run_id: str) -> dict[int, Stored]:
    """By process id; of processes that have sent snapshots."""
    found: dict[int, Stored] = {}
    s, b = segments.c, batches.c
    # A thinned stretch counts as whole, as it does for what is sent again.
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
            # Numbers begin at 1, but who sends may begin at 0.
            highest = max(before.newest, int(last), together + gone)
            found[process_id] = Stored(together, highest, gone)
    return found
