"""What grows in child processes, from the scans that these processes have reported in marks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ...snapshot import Event
from ..results import Finding, Suspect
from ..run_history import RunHistory


def scans_of(history: RunHistory) -> list[Event]:
    """Return the scans of child processes."""
    return [event for event in history.events_of("mark") if "worker" in event.data]


def suspects_in_children(
    scans: Sequence[Event], growing: Sequence[Suspect]
) -> tuple[Suspect, ...] | None:
    """Return these children with the types and holders that explain their growth, or None if none was scanned.

    Types follow the children that keep them. The first type of a child has the bytes that the child's newest scan
    explains. If the scans found no type, the result is empty.
    """
    newest = {child: e.data for e in scans if isinstance(child := e.data.get("worker"), str)}
    if not any(child.name in newest for child in growing):
        return None
    # The children that keep the same types in the same holder, and the bytes that this explains.
    groups: dict[tuple[str, ...], tuple[list[Suspect], float]] = {}
    for child in growing:
        data = newest.get(child.name, {})
        types, holder, share = (data.get(name) for name in ("types", "holder", "share"))
        if isinstance(types, list) and types and isinstance(share, int | float):
            key = (holder if isinstance(holder, str) else "", *map(str, types))
            children, size = groups.get(key, ([], 0.0))
            size += min(1.0, share) * (child.bytes_per_generation or 0.0)
            groups[key] = [*children, child], size
    found: dict[str, Suspect] = {}
    for (holder, first, *types), (children, size) in sorted(
        groups.items(), key=lambda group: group[1][1], reverse=True
    ):
        found.update({child.name: child for child in children})
        found.setdefault(first, Suspect(first, "type", None, round(size, 1)))
        if holder:
            found.setdefault(holder, Suspect(holder, "holder"))
        for name in types:
            found.setdefault(name, Suspect(name, "type"))
    others = {child.name: child for child in growing if child.name not in found}
    return (*found.values(), *others.values()) if found else ()


def kept_in_child(finding: Finding) -> tuple[str, str, str] | None:
    """Return the first type of `suspects_in_children`, its holder (or "") and its children.

    Return None if no type is known. Only these types have bytes without a count; objects of the parent are counted.
    """
    suspects = finding.suspects if finding.kind == "children" else ()
    processes = list(takewhile(lambda s: s.role == "process", suspects))
    rest = suspects[len(processes) :]
    if not (rest and rest[0].role == "type" and rest[0].bytes_per_generation):
        return None
    if rest[0].count_per_generation is not None:
        return None
    held = "".join(s.name for s in rest[1:2] if s.role == "holder")
    return rest[0].name, held, ", ".join(s.name for s in processes)
