"""Leaks and similar harmless behaviour as reported in public threads: facts only, no text or code from them.

`public_cases.json` is a list of objects:

    id          name of the family
    cause       as stated in the threads; ``settled`` is false where they end without one
    references  `repository#number` or `repository PR #number`
    sees        what an observer sees
    series      names of the series that change or must not change; `*` for parts that differ between runs
    signal      what distinguishes it from harmless growth, or from a leak
    status      acceptable statuses of a verdict at the end of such a run
    kinds       acceptable kinds of its finding, if it is suspected or confirmed
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
        """Return the programs of the suite with the same behaviour."""
        return [case for case in CASES if set(case.references) & set(self.references)]


def public_cases() -> list[PublicCase]:
    """Return all cases. Raises TypeError for an entry with unknown or missing fields."""
    return [PublicCase(**_frozen(entry)) for entry in json.loads(FILE.read_text())]


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
