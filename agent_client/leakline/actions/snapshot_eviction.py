"""What goes when the snapshots that the verdict is worked out from are too many, and what stays of those. Pure.

Every second phase end goes; where generation ends alone are too many, every second of all. What the program declared,
what its cleanups freed and who holds what stays: without those a later verdict would be about another program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ..snapshot import Event, Holder, Snapshot

FREQUENT: Final = ("phase_end", "sample")
# Fewer than may be kept by this factor, so that it is not all done again with the next snapshot.
ROOM: Final = 3 / 4
DECLARING: Final = frozenset(
    {"expect", "track", "gauge", "watch", "fix", "band", "budget", "register_cleanup"}
)
# Of the snapshots that went, the newest: times that one cleanup ran, events of one kind, holders.
TIMES_KEPT: Final = 32
EVENTS_KEPT: Final = 256
HOLDERS_KEPT: Final = 256


def thinned(snapshots: Sequence[Snapshot], limit: int) -> list[Snapshot]:
    """About half of them, with the first and the newest. What stays of the others goes with the first."""
    frequent = 0
    kept = []
    for snapshot in snapshots:
        frequent += snapshot.kind in FREQUENT
        if snapshot is snapshots[-1] or snapshot.kind not in FREQUENT or frequent % 2:
            kept.append(snapshot)
    if len(kept) > limit * ROOM:
        # Counted from the newest, which the verdict is about.
        kept = [kept[0], *kept[1:][::-2][::-1]]
    there = {snapshot.sequence for snapshot in kept[1:]}
    gone = [snapshot for snapshot in snapshots if snapshot.sequence not in there]
    first = replace(
        kept[0],
        events=lasting_events(event for snapshot in gone for event in snapshot.events),
        holders=lasting_holders(holder for snapshot in gone for holder in snapshot.holders),
    )
    return [first, *kept[1:]]


def lasting_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Of each declaration the first time and the newest, as loops declare in every generation; and cleanups."""
    found: dict[tuple[str, str, str], list[Event]] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.kind == "cleanup":
            same = found.setdefault((event.kind, event.name, ""), [])
            same.append(event)
            del same[:-TIMES_KEPT]
        elif event.kind in DECLARING:
            same = found.setdefault((event.kind, event.name, repr(event.data)), [])
            same[1:] = [event]
    by_kind: dict[str, list[Event]] = {}
    for event in sorted(
        (each for same in found.values() for each in same), key=lambda event: event.time
    ):
        by_kind.setdefault(event.kind, []).append(event)
    return tuple(event for same in by_kind.values() for event in same[-EVENTS_KEPT:])


def lasting_holders(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """What was found last on each path."""
    found: dict[tuple[str, str], Holder] = {}
    for holder in holders:
        found.pop((holder.type, holder.path), None)
        found[holder.type, holder.path] = holder
    return tuple(list(found.values())[-HOLDERS_KEPT:])
