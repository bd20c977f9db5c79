"""Leaks and their harmless likenesses as people reported them: facts from public threads, no text or code of theirs.

`public_cases.json` is a list of objects:

    id          name of the family
    cause       as stated in the threads; ``settled`` is false where they end without one
    references  `repository#number` or `repository PR #number`
    sees        what an observer sees
    series      names of the series that move or that must not, `*` for what differs from run to run
    signal      what tells it from harmless growth, or from a leak
    status      of a verdict that is right at the end of such a run; any of them
    kinds       of its finding where it is suspected or confirmed; any of them
    oom_risk    whether memory may run out although nothing leaks
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.leaks.catalogue import CASES, Case

FILE: Final = Path(__file__).with_name("public_cases.json")


@dataclass(frozen=True, slots=True)
class PublicCase:
    """One family of reports with the same cause."""

    id: str
    cause: str
    settled: bool
    references: tuple[str, ...]
    sees: str
    series: tuple[str, ...]
    signal: str
    status: tuple[str, ...]
    kinds: tuple[str, ...]
    oom_risk: bool

    @property
    def programs(self) -> list[Case]:
        """Programs of the suite that do the same."""
        return [case for case in CASES if set(case.references) & set(self.references)]


def public_cases() -> list[PublicCase]:
    """All of them. Raises TypeError for an entry with another field, or without one of them."""
    return [PublicCase(**_frozen(entry)) for entry in json.loads(FILE.read_text())]


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
