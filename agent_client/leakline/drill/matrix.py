"""What was planted against what it was called: the confusion matrix of drills, as text, JSON and a page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..markup import table
from .kinds import HEALTHY, LEAKING, Kind
from .telling import Drilled

NOTHING: Final = "nothing"
# Accused for a while, and of nothing in the end.
ONCE: Final = "accused once"
# A training or a server that failed says nothing of the analysis.
FAILED: Final = "no run"
_LAST: Final = (ONCE, FAILED, NOTHING)

_HEAD: Final = (
    "# What was planted, and what it was called",
    "",
    "`leakline drill --all --results FILE` writes this page: it plants every kind there is in a training of its own,",
    "through client, server and webhook, and asks what it is called. A row is what was planted ([what each",
    "is](drill.md)), a column the kind of finding that was told of it, `nothing` where the run was never accused; a",
    "mark, `1!`, stands at what is wrong.",
    "",
)

Matrix = Mapping[str, Mapping[str, int]]


def told_of(drilled: Drilled) -> str:
    """The kind of finding that it was called: of what was planted where that was found, else the first raised."""
    answers = {answer.question: answer for answer in drilled.answers}
    if "what" in answers:
        return str(answers["what"].figures["kind"])
    first = drilled.answers[0]
    if "kinds" not in first.figures:
        return FAILED
    kinds = first.figures["kinds"]
    raised = first.figures["generations"] is not None
    return str(kinds[0]) if kinds else ONCE if raised else NOTHING


def matrix(drills: Sequence[Drilled]) -> Matrix:
    """Planted -> called -> how often, in the order of the drills."""
    found: dict[str, dict[str, int]] = {}
    for drilled in drills:
        row = found.setdefault(drilled.kind.name, {})
        told = told_of(drilled)
        row[told] = row.get(told, 0) + 1
    return found


def columns(found: Matrix) -> list[str]:
    """All that something was called, in the order of the alphabet; those that are no kind last."""
    told = {name for row in found.values() for name in row}
    kinds = sorted(told - set(_LAST))
    return [*kinds, *(name for name in _LAST if name in told)]


def matrix_lines(drills: Sequence[Drilled]) -> Iterator[str]:
    """A table for a terminal, with a mark at what is wrong."""
    found = matrix(drills)
    heads = columns(found)
    width = max(len("planted"), *map(len, found))
    yield "  ".join(["planted".ljust(width), *heads])
    for name, row in found.items():
        cells = [_cell(name, told, row).rjust(len(told)) for told in heads]
        yield "  ".join([name.ljust(width), *cells]).rstrip()


def _cell(planted: str, told: str, row: Mapping[str, int]) -> str:
    count = row.get(told, 0)
    if not count:
        return "."
    return f"{count}" if is_right(planted, told) else f"{count}!"


def is_right(planted: str, told: str) -> bool:
    """Whether this may be said where that was planted."""
    leak = LEAKING.get(planted)
    return told == NOTHING if leak is None else told in leak.answers


def results_page(
    drills: Sequence[Drilled], skipped: Sequence[Kind], about: Mapping[str, str]
) -> str:
    """``docs/drill-results.md``. ``about``: what it was measured on, as words for people."""
    found = matrix(drills)
    wrong = sum(
        count
        for name, row in found.items()
        for told, count in row.items()
        if not is_right(name, told)
    )
    count = "1 drill" if len(drills) == 1 else f"{len(drills)} drills"
    measured_on = ", ".join(f"{name} {value}" for name, value in about.items())
    lines = [*_HEAD, f"{count}, {wrong} called wrongly; {measured_on}.", ""]
    for title, kinds in (("Leaking", LEAKING), ("Healthy", HEALTHY)):
        some = {name: row for name, row in found.items() if name in kinds}
        if some:
            lines += [f"## {title}", "", *_table(some)]
    if skipped:
        names = ", ".join(f"`{kind.name}` (needs {' and '.join(kind.missing)})" for kind in skipped)
        lines += [f"Not drilled: {names}.", ""]
    lines += ["## How right the rest was", "", *_answers(drills)]
    return "\n".join(lines).rstrip() + "\n"


def _table(found: Matrix) -> Iterator[str]:
    heads = columns(found)
    rows = [
        [
            f"`{name}`",
            *(_cell(name, told, row).replace(".", "") for told in heads),
            _right_words(name),
        ]
        for name, row in found.items()
    ]
    return table(["planted", *(f"#{told.replace('_', ' ')}" for told in heads), "right is"], rows)


def _right_words(planted: str) -> str:
    leak = LEAKING.get(planted)
    return NOTHING if leak is None else " or ".join(leak.answers).replace("_", " ")


def _answers(drills: Sequence[Drilled]) -> Iterator[str]:
    rows = []
    for drilled in drills:
        answers = {answer.question: answer for answer in drilled.answers}
        when, much = answers.get("when"), answers.get("how much")
        rows.append([
            f"`{drilled.kind.name}`", "passed" if drilled.passed else "failed", _of(when, "suspected_after"),
            _of(when, "confirmed_after"), f"{abs(much.figures['off']):.1%}" if much else "–",
            f"{drilled.seconds:.0f} s",
        ])  # fmt: skip
    heads = (
        "planted", "all answers", "#suspected after", "#confirmed after", "#rate off by", "#took",
    )  # fmt: skip
    return table(heads, rows)


def _of(answer: Any, name: str) -> str:
    """Generations seen by then."""
    found = None if answer is None else answer.figures[name]
    return "–" if found is None else f"{found}"
