"""Scores of the server's verdicts against the planted leaks: pure functions of dicts and ground truths.

A leak is scored by what a page shows: the active findings in order, and the first of their suspects. A leak that was
not found counts as wrongly named in every respect, so that finding fewer leaks cannot improve a figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from tests.leaks.catalogue import GENERATIONS, Case, Planted

from leakline.analysis.status import ACTIVE
from leakline.cli.commands.drill import KEEPERS, PLACES, START_TOLERANCE, Json, rate_off

# Tolerances of the figures: a share of the growth, and of the leak's age.
RATE_WITHIN: Final = 0.10
START_WITHIN: Final = 0.10


@dataclass(frozen=True, slots=True)
class Look:
    """A verdict during the run or the last one: its number of generations and its status."""

    generations: int
    status: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything seen of one run. ``verdict`` is the last one, over all generations; ``looks`` are in order."""

    verdict: Json
    looks: tuple[Look, ...] = ()
    incidents: tuple[Json, ...] = ()

    def ever(self, statuses: Sequence[str] = ACTIVE) -> bool:
        """Return True if any status occurred, also between looks: an incident keeps the last status of its finding."""
        told = [self.verdict["status"], *(look.status for look in self.looks)]
        told += [incident["finding"]["status"] for incident in self.incidents]
        return any(status in statuses for status in told)

    @property
    def suspected_after(self) -> int | None:
        """Number of generations at the first look that found a leak; None if there was none."""
        return next((look.generations for look in self.looks if look.status in ACTIVE), None)


@dataclass(frozen=True, slots=True)
class Named:
    """Scores of the names of one planted leak. None means that there is no correct answer, as for native memory.

    ``place`` is the 1-based rank of the first suspect with an expected name. ``rate_off`` is a share of the planted
    bytes, ``start_off`` is in generations; they are None if the server gave none.
    """

    phase: bool = False
    type_first: bool | None = False
    type_in_top: bool | None = False
    holder: bool | None = False
    kind: bool = False
    place: int | None = None
    rate_off: float | None = None
    start_off: float | None = None
    start_close: bool = False

    @property
    def is_right(self) -> bool:
        """The correct kind in the correct phase, with an expected type or holder before all other names."""
        return self.phase and self.kind and self.place == 1

    @property
    def rate_close(self) -> bool:
        return self.rate_off is not None and self.rate_off <= RATE_WITHIN

    def wrong(self) -> list[str]:
        """Return the aspects that were named wrongly."""
        answers = {
            "phase": self.phase, "type": self.type_first, "holder": self.holder, "kind": self.kind,
            "rate": self.rate_close, "start": self.start_close,
        }  # fmt: skip
        return [word for word, answer in answers.items() if answer is False]


@dataclass(frozen=True, slots=True)
class LeakScore:
    """Score of the leaking variant. ``named`` has one entry per planted leak; ``told`` describes the verdict."""

    detected: bool
    status: str
    suspected_after: int | None
    named: tuple[Named, ...]
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TwinScore:
    """Score of the healthy variant: the verdict at the end, and whether it was worse before."""

    detected: bool
    status: str
    ever_suspected: bool
    ever_confirmed: bool
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Scores of both variants of a program."""

    name: str
    held_back: bool
    leak: LeakScore
    twin: TwinScore

    @property
    def is_right(self) -> bool:
        """True if the leak is found, the twin is not at the end, and the twin was never confirmed."""
        return self.leak.detected and not self.twin.detected and not self.twin.ever_confirmed

    def what_is_wrong(self) -> str:
        """Return a description of the errors; empty if the pair is right."""
        lines = []
        if not self.leak.detected:
            lines.append(f"the leak is {self.leak.status}: {'; '.join(self.leak.told)}")
        if self.twin.detected or self.twin.ever_confirmed:
            once = "" if self.twin.detected else ", and was confirmed before"
            lines.append(f"its twin is {self.twin.status}{once}: {'; '.join(self.twin.told)}")
        return "\n".join(lines)


def pair(case: Case, leak: Seen, twin: Seen) -> Pair:
    """Score both variants of a program, each over all generations."""
    return Pair(case.name, case.held_back, score_leak(case, leak), score_twin(twin))


def score_leak(case: Case, seen: Seen) -> LeakScore:
    active = [f for f in seen.verdict["findings"] if f["status"] in ACTIVE]
    status = seen.verdict["status"]
    named = _best_match(case, active)
    return LeakScore(status in ACTIVE, status, seen.suspected_after, named, describe(seen.verdict))


def score_twin(seen: Seen) -> TwinScore:
    status = seen.verdict["status"]
    return TwinScore(
        status in ACTIVE, status, seen.ever(), seen.ever(("confirmed",)), describe(seen.verdict)
    )


def _best_match(case: Case, active: Sequence[Json]) -> tuple[Named, ...]:
    """Match the first findings to the planted leaks, in the order with the best result."""
    first = [*active[: len(case.planted)]]
    findings = [*first, *[None] * (len(case.planted) - len(first))]
    matches = [
        tuple(named(case, leak, f) for leak, f in zip(case.planted, order, strict=True))
        for order in permutations(findings)
    ]
    return max(matches, key=_answers_right)


def _answers_right(match: Iterable[Named]) -> int:
    return sum(
        bool(answer)
        for each in match
        for answer in (each.phase, each.type_first, each.type_in_top, each.holder, each.start_close)
    )


def score(case: Case, finding: Json) -> Named:
    """Score a finding against the only leak of a case."""
    (leak,) = case.planted
    return named(case, leak, finding)


def named(case: Case, leak: Planted, finding: Json | None) -> Named:
    """Score a finding, or a missing one, against one planted leak of a case."""
    if finding is None:
        return Named(
            type_first=False if leak.types else None,
            type_in_top=False if leak.types else None,
            holder=None if leak.holders is None else False,
        )
    types = [leak.has_name(s) for s in finding["suspects"] if s["role"] == "type"]
    keepers = [leak.has_name(s) for s in finding["suspects"] if s["role"] in KEEPERS]
    start_off = leak.start_off(finding)
    return Named(
        phase=leak.has_phase(finding),
        type_first=any(types[:1]) if leak.types else None,
        type_in_top=any(types[:PLACES]) if leak.types else None,
        # By the first holder or container that is named.
        holder=None if leak.holders is None else any(keepers[:1]),
        kind=finding["kind"] in leak.kinds,
        place=leak.place(finding),
        rate_off=rate_off(finding, case.bytes_of(leak)),
        start_off=start_off,
        start_close=start_off is not None and start_off <= start_tolerance(leak),
    )


def start_tolerance(leak: Planted) -> float:
    """Return the allowed error of the start in generations."""
    return max(START_TOLERANCE, START_WITHIN * (GENERATIONS - leak.first[0]))


def describe(verdict: Json) -> tuple[str, ...]:
    """Return the summary of the verdict, and a line for each finding."""
    lines = [verdict["summary"]]
    for finding in verdict["findings"]:
        growth = finding["growth_bytes_per_generation"]["estimate"] / 2**20
        start = finding["started_at_generation"]
        since = "an unknown start" if start is None else f"generation {start['estimate']:g}"
        suspects = ", ".join(s["name"] for s in finding["suspects"][:4]) or "nothing with a name"
        lines.append(
            f"{finding['status']} {finding['kind']} in {finding['phase']}: {suspects}, "
            f"{growth:.2f} MiB per generation since {since}"
        )
    return tuple(lines)
