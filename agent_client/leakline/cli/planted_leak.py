"""The right answer about a planted leak, and how far a finding is off: for the drill and the tests of planted leaks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# How far off a right answer may be: share of the growth, generations of the start, place of the right name.
RATE_TOLERANCE: Final = 0.25
START_TOLERANCE: Final = 2
PLACES: Final = 3
KEEPERS: Final = ("holder", "container")
_ITEMS: Final = re.compile(r"\[[^\]]*\]")
# `<locals>`, `<cache>` and `<closure>` describe how a name holds an object; they are not names.
_MARKS: Final = re.compile(r"<[^>]*>")

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PlantedLeak:
    """The right answer about one leak. Any of several names is right; the first is the one its author would give.

    ``phases``: None stands for the time between the phases. ``types``: the types that accumulate, by the last part of
    their names; empty where Python has no type for it. ``holders``: paths that a finding's path has to contain, None
    where nothing in Python holds it. ``kinds``: of a finding. ``first``: the earliest and the latest generation that
    may be called the first one that leaks; they differ where a store fills rightly before it passes its bound.
    """

    phases: tuple[str | None, ...]
    types: tuple[str, ...]
    holders: tuple[str, ...] | None
    kinds: tuple[str, ...] = ()
    first: tuple[int, int] = (0, 0)

    def has_phase(self, finding: Json) -> bool:
        """Return True if the phase or its nested path is right; the time between phases has no phase at all."""
        path = finding["phase_path"] or finding["phase"]
        return not {finding["phase"], path}.isdisjoint(self.phases)

    def has_name(self, suspect: Json) -> bool:
        """Return True if the suspect is one of the types or holders."""
        name, role = suspect["name"], suspect["role"]
        if role == "type":
            return name.rpartition(".")[2] in self.types
        return role in KEEPERS and any(leads_through(name, path) for path in self.holders or ())

    def place(self, finding: Json) -> int | None:
        """Return the place of the first suspect with a right name, from 1."""
        places = enumerate(finding["suspects"], 1)
        return next((place for place, suspect in places if self.has_name(suspect)), None)

    def start_off(self, finding: Json) -> float | None:
        """Return how many generations the start is off; None if the finding has none."""
        start = finding["started_at_generation"]
        if start is None:
            return None
        earliest, latest = self.first
        return float(max(earliest - start["estimate"], start["estimate"] - latest, 0.0))


def rate_off(finding: Json, planted: float) -> float:
    """Return how far the growth is off, as a share of the planted bytes per generation."""
    rate: float = finding["growth_bytes_per_generation"]["estimate"]
    return abs(rate - planted) / planted


def leads_through(path: str, holder: str) -> bool:
    """Return True if the names of ``holder`` occur in ``path``, whole and in a row.

    The module before them and the way from the holder to the object after them do not matter, nor do marks of items,
    ``[*]``, and of how a name holds, ``<locals>``. The class without its attribute is not enough, nor the reverse.
    """
    names, wanted = _names(path), _names(holder)
    return any(names[i : i + len(wanted)] == wanted for i in range(len(names)))


def _names(path: str) -> list[str]:
    return [name for name in _MARKS.sub("", _ITEMS.sub("", path)).split(".") if name]
