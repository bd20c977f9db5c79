"""What the server said of a program against what its author knows: pure, dicts and truths in, scores out.

A leak is scored by what a page shows of it: the active findings in their order, the first of their suspects. What was
not found is named wrongly in every respect, so that finding little cannot make a figure better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from tests.leaks.catalogue import GENERATIONS, Case, Planted

from leakline.analysis.status import ACTIVE
from leakline.cli.commands.drill import KEEPERS, PLACES, START_TOLERANCE, Json, rate_off

# What the figures count as close: a share of the growth, and of the leak's age.
RATE_WITHIN: Final = 0.10
START_WITHIN: Final = 0.10


@dataclass(frozen=True, slots=True)
class Look:
    """A verdict while the program ran, or its last one: after how many generations, and its status."""

    generations: int
    status: str


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was seen of one run. ``verdict`` is the last one, over all generations; ``looks`` in order."""

    verdict: Json
    looks: tuple[Look, ...] = ()
    incidents: tuple[Json, ...] = ()

    def ever(self, statuses: Sequence[str] = ACTIVE) -> bool:
        """Also what no look met: an incident keeps the status that its finding had last."""
        told = [self.verdict["status"], *(look.status for look in self.looks)]
        told += [incident["finding"]["status"] for incident in self.incidents]
        return any(status in statuses for status in told)

    @property
    def suspected_after(self) -> int | None:
        """Generations seen by the first look that found a leak; None when no look did."""
        return next((look.generations for look in self.looks if look.status in ACTIVE), None)


@dataclass(frozen=True, slots=True)
class Named:
    """How right one planted leak was named. None: there is no right answer, as for the type of native memory.

    ``place``: of the first suspect with a right name, from 1. ``rate_off``: a share of the planted bytes;
    ``start_off``: generations. They are None when nothing was said.
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
        """The right kind in the right phase, and a right type or holder before all other names."""
        return self.phase and self.kind and self.place == 1

    @property
    def rate_close(self) -> bool:
        return self.rate_off is not None and self.rate_off <= RATE_WITHIN

    def wrong(self) -> list[str]:
        """What was named wrongly, in words."""
        answers = {
            "phase": self.phase, "type": self.type_first, "holder": self.holder, "kind": self.kind,
            "rate": self.rate_close, "start": self.start_close,
        }  # fmt: skip
        return [word for word, answer in answers.items() if answer is False]


@dataclass(frozen=True, slots=True)
class LeakScore:
    """The leaking variant. ``named`` has one entry per planted leak; ``told`` is what was said, in one line each."""

    detected: bool
    status: str
    suspected_after: int | None
    named: tuple[Named, ...]
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TwinScore:
    """The healthy variant: what was said at the end, and at any time before."""

    detected: bool
    status: str
    ever_suspected: bool
    ever_confirmed: bool
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A program's two variants, told apart or not."""

    name: str
    held_back: bool
    leak: LeakScore
    twin: TwinScore

    @property
    def is_right(self) -> bool:
        """The leak is found, its twin is not at the end, and nobody was ever told that the twin surely leaks."""
        return self.leak.detected and not self.twin.detected and not self.twin.ever_confirmed

    def what_is_wrong(self) -> str:
        """What was said instead, for people; empty when the pair is right."""
        lines = []
        if not self.leak.detected:
            lines.append(f"the leak is {self.leak.status}: {'; '.join(self.leak.told)}")
        if self.twin.detected or self.twin.ever_confirmed:
            once = "" if self.twin.detected else ", and was confirmed before"
            lines.append(f"its twin is {self.twin.status}{once}: {'; '.join(self.twin.told)}")
        return "\n".join(lines)


def pair(case: Case, leak: Seen, twin: Seen) -> Pair:
    """Both variants of a program, each over all generations."""
    return Pair(case.name, case.held_back, score_leak(case, leak), score_twin(twin))


def score_leak(case: Case, seen: Seen) -> LeakScore:
    active = [f for f in seen.verdict["findings"] if f["status"] in ACTIVE]
    status = seen.verdict["status"]
    named = _best_match(case, active)
    return LeakScore(status in ACTIVE, status, seen.suspected_after, named, told(seen.verdict))


def score_twin(seen: Seen) -> TwinScore:
    status = seen.verdict["status"]
    return TwinScore(
        status in ACTIVE, status, seen.ever(), seen.ever(("confirmed",)), told(seen.verdict)
    )


def _best_match(case: Case, active: Sequence[Json]) -> tuple[Named, ...]:
    """As many findings as there are leaks, from the first on; several leaks may come in any order."""
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
    """A finding against the one leak of a case."""
    (leak,) = case.planted
    return named(case, leak, finding)


def named(case: Case, leak: Planted, finding: Json | None) -> Named:
    """One finding, or none, against one planted leak of a case."""
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
    """Generations that the start may be off."""
    return max(START_TOLERANCE, START_WITHIN * (GENERATIONS - leak.first[0]))


def told(verdict: Json) -> tuple[str, ...]:
    """The verdict's sentence, and a line for each finding."""
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
