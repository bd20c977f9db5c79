"""What came of drills, for people and for programs. Pure: text and plain JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .kinds import HEALTHY, LEAKING, REPRESENTATIVE, Kind
from .scoring import Answer, passed

_MARKS: Final = {True: "right", False: "WRONG", None: ""}
_JUDGED: Final = ("where", "what", "how much", "since when", "webhook", "told once")


@dataclass(frozen=True, slots=True)
class Drilled:
    """One drill. ``seconds`` is what it took."""

    kind: Kind
    answers: tuple[Answer, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return passed(self.answers)

    @property
    def raised(self) -> bool:
        """Whether the run was accused, of the right thing or of none that was planted."""
        first = self.answers[0]
        return (first.question, first.right) in (("found", True), ("quiet", False))


def listing() -> Iterator[str]:
    """All kinds, and what a drill without a kind does."""
    for title, kinds in (("leaking", LEAKING), ("healthy", HEALTHY)):
        yield f"{title}:"
        for kind in kinds.values():
            needs = f" (needs {' and '.join(kind.needs)})" if kind.needs else ""
            yield f"  {kind.name:<17} {kind.summary}{needs}"
    yield f"without a kind: {', '.join(REPRESENTATIVE)}"


def kinds_as_json() -> list[dict[str, Any]]:
    """All kinds in the order of the list. ``missing``: packages that have to be installed first."""
    return [
        {
            "kind": kind.name,
            "summary": kind.summary,
            "leaks": kind.leaks,
            "needs": list(kind.needs),
            "missing": list(kind.missing),
            "without_a_kind": kind.name in REPRESENTATIVE,
        }
        for kind in (*LEAKING.values(), *HEALTHY.values())
    ]


def lines(drilled: Drilled) -> Iterator[str]:
    """One line for each question."""
    yield f"{drilled.kind.name}: {drilled.kind.summary}"
    for answer in drilled.answers:
        yield f"  {answer.question + '?':<12} {_MARKS[answer.right]:<6} {answer.told}"
    yield f"  {'passed' if drilled.passed else 'FAILED'} after {drilled.seconds:.0f} s"


def summary(drills: Sequence[Drilled]) -> Iterator[str]:
    """Leaking and healthy against found and quiet, and how often each answer was right."""
    leaking, healthy = _sides(drills)
    if leaking:
        yield f"{_raised(leaking)} of {len(leaking)} leaks found"
        for question in _JUDGED:
            asked = _answers(leaking, question)
            if asked:
                yield f"  {question:<11} right in {sum(bool(a.right) for a in asked)} of {len(asked)}"
        yield from _naming(leaking)
    if healthy:
        yield f"{_raised(healthy)} of {len(healthy)} healthy trainings accused"
    failed = [drilled.kind.name for drilled in drills if not drilled.passed]
    yield f"failed: {', '.join(failed)}" if failed else f"all {len(drills)} drills passed"


def _naming(leaking: Sequence[Drilled]) -> Iterator[str]:
    """Of the leaks that something in Python holds and that were found."""
    places = [
        (answer.figures["place"], answer.figures["holder_place"])
        for drilled in leaking
        if drilled.kind.names
        for answer in _answers([drilled], "what")
    ]
    if places:
        first = sum(place == 1 for place, _ in places)
        holders = sum(holder is not None for _, holder in places)
        yield f"  named in first place in {first} of {len(places)}, the holder named in {holders}"


def as_json(drills: Sequence[Drilled], skipped: Sequence[Kind]) -> dict[str, Any]:
    """Bytes, generations and seconds."""
    leaking, healthy = _sides(drills)
    return {
        "passed": all(drilled.passed for drilled in drills),
        "drills": [_one_as_json(drilled) for drilled in drills],
        "skipped": [{"kind": kind.name, "missing": list(kind.missing)} for kind in skipped],
        "confusion": {
            side: {"raised": _raised(some), "quiet": len(some) - _raised(some)}
            for side, some in (("leaking", leaking), ("healthy", healthy))
        },
    }


def _one_as_json(drilled: Drilled) -> dict[str, Any]:
    return {
        "kind": drilled.kind.name,
        "leaks": drilled.kind.leaks,
        "passed": drilled.passed,
        "seconds": round(drilled.seconds, 1),
        "answers": [
            {"question": a.question, "right": a.right, "told": a.told, **a.figures}
            for a in drilled.answers
        ],
    }


def _sides(drills: Sequence[Drilled]) -> tuple[list[Drilled], list[Drilled]]:
    leaking = [drilled for drilled in drills if drilled.kind.leaks]
    return leaking, [drilled for drilled in drills if not drilled.kind.leaks]


def _raised(drills: Sequence[Drilled]) -> int:
    return sum(drilled.raised for drilled in drills)


def _answers(drills: Sequence[Drilled], question: str) -> list[Answer]:
    return [
        answer for drilled in drills for answer in drilled.answers if answer.question == question
    ]
