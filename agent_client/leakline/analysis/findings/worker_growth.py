"""What grows in child processes, from the scans that these processes have reported in marks."""

from __future__ import annotations

from collections.abc import Sequence

from ...snapshot import Event
from ..results import Finding, Suspect


def suspects_in_children(
    marks: Sequence[Event], growing: Sequence[Suspect]
) -> tuple[Suspect, ...] | None:
    """Return the types and holders that explain the growth of these children, or None if none was scanned.

    The first type of each child has the bytes that the child's newest scan explains.
    """
    newest = {child: e.data for e in marks if isinstance(child := e.data.get("worker"), str)}
    scanned = [(child, newest[child.name]) for child in growing if child.name in newest]
    found: dict[str, Suspect] = {}
    for child, data in scanned:
        types, holder, share = (data.get(name) for name in ("types", "holder", "share"))
        if not (isinstance(types, list) and types and isinstance(share, int | float)):
            continue
        size = round(min(1.0, share) * (child.bytes_per_generation or 0.0), 1)
        found.setdefault(str(types[0]), Suspect(str(types[0]), "type", None, size))
        if isinstance(holder, str) and holder:
            found.setdefault(holder, Suspect(holder, "holder"))
        for name in map(str, types[1:]):
            found.setdefault(name, Suspect(name, "type"))
    return tuple(found.values()) if scanned else None


def kept_in_child(finding: Finding) -> tuple[str, str] | None:
    """Return the first type of `suspects_in_children` and its holder (or ""), or None if no type is known.

    Only these types have bytes without a count; objects of the parent are counted.
    """
    for i, s in enumerate(finding.suspects if finding.kind == "children" else ()):
        if s.role == "type" and s.count_per_generation is None and s.bytes_per_generation:
            after = finding.suspects[i + 1 : i + 2]
            return s.name, "".join(each.name for each in after if each.role == "holder")
    return None
