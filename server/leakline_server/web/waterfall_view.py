"""The books as one sum: memory at the beginning of a generation, what each phase added, memory at its end.

Of one generation, or of the mean of all, which has no level of its own and begins at zero. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from leakline.analysis.books import NO_PHASE
from leakline.analysis.results import Books

from ..chart_parts import Chart, Line, Palette
from . import formats
from .contexts import Ask, AskField, Figure, ProcessChoice, Section, Table
from .tables import Field, code, table

MEAN: Final = "mean"
# Steps with a bar of their own; the smallest of more are joined.
MAX_STEPS: Final = 10
# Of the span of the levels: to the left of them, so that the first bar is one, and to the right.
_AIR: Final = 0.25
_EDGE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Steps:
    """``begin`` is None where no level is known: the sum then begins at zero."""

    begin: float | None
    changes: tuple[tuple[str, float], ...]

    @property
    def levels(self) -> tuple[float, ...]:
        """Before the first step, and after each."""
        found = [self.begin or 0.0]
        for _, change in self.changes:
            found.append(found[-1] + change)
        return tuple(found)


def chosen(books: Books, wanted: str) -> int | None:
    """The generation asked for, the next that has books, or the newest; None for the mean of all."""
    if wanted == MEAN or not books.generations:
        return None
    try:
        asked = int(wanted)
    except ValueError:
        return books.generations[-1]
    # What is told together stands with the last of it.
    return books.generations[min(bisect_left(books.generations, asked), len(books.generations) - 1)]


def steps_of(books: Books, generation: int, end: float | None) -> Steps:
    """``end``: private memory at its end. What the books say is taken from it, so the sum leaves nothing over."""
    at = books.generations.index(generation)
    changes = [(line.name, line.bytes[at]) for line in books.lines]
    begin = None if end is None else end - books.total[at]
    return Steps(begin, _joined(changes))


def mean_steps(books: Books) -> Steps:
    changes = [(line.name, sum(line.bytes) / books.count()) for line in books.lines]
    return Steps(None, _joined(changes))


def _joined(changes: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """In their order; of more than fit, the smallest as one, after the phases."""
    told = [(name, change) for name, change in changes if change]
    if len(told) <= MAX_STEPS:
        return tuple(told)
    large = sorted(told, key=lambda each: -abs(each[1]))[: MAX_STEPS - 1]
    kept = {name for name, _ in large}
    rest = [change for name, change in told if name not in kept]
    phases = [each for each in told if each[0] in kept and each[0] not in NO_PHASE]
    outside = [each for each in told if each[0] in kept and each[0] in NO_PHASE]
    return (*phases, (f"{len(rest):,} smaller ones", sum(rest)), *outside)


def waterfall(
    books: Books, palette: Palette, unit: str, wanted: str, end: float | None, address: Mapping[str, str]
) -> Section | None:  # fmt: skip
    """``end``: private memory at the end of the chosen generation. ``address``: what that of the page says."""
    if not books.generations:
        return None
    generation = chosen(books, wanted)
    steps = mean_steps(books) if generation is None else steps_of(books, generation, end)
    what = _what(books, generation, unit)
    how = (
        f"One {unit} as a sum, from top to bottom: the memory it began with, what each phase kept (to the right) or "
        "gave back (to the left), and the memory at its end. Nothing is left over: what no phase was open for is "
        "“between”. The axis begins where it must for the steps to be seen, not at zero."
    )
    return Section(
        "waterfall", f"One {unit} as a sum", how,
        Figure(waterfall_chart(steps, palette, unit, "waterfall"), f"What {what} added to memory, step by step."),
        steps_table(steps), note=_note(steps, unit, what), short="Sum",
        ask=_ask(books, generation, wanted, unit, address),
    )  # fmt: skip


def _what(books: Books, generation: int | None, unit: str) -> str:
    if generation is None:
        return f"the mean of {books.count():,} {unit}s"
    span = books.span(books.generations.index(generation))
    # Of very long runs, older ones are told together.
    return f"{unit} {generation:,}" if span == 1 else f"{span} {unit}s up to {generation:,}"


def _note(steps: Steps, unit: str, what: str) -> str:
    change = formats.change(steps.levels[-1] - steps.levels[0])
    if steps.begin is None:
        level = (
            ""
            if what.startswith("the mean")
            else f" The memory at the end of this {unit} was not read."
        )
        return f"{what.capitalize()}: {change}.{level}"
    begin, end = formats.size(steps.begin), formats.size(steps.levels[-1])
    return f"{what.capitalize()}: {begin} {change} = {end}."


def _ask(
    books: Books, generation: int | None, wanted: str, unit: str, address: Mapping[str, str]
) -> Ask:
    others = {name: value for name, value in address.items() if name != "g" and value}

    def link(label: str, g: str, *, is_chosen: bool = False) -> ProcessChoice:
        query = {**others, **({"g": g} if g else {})}
        return ProcessChoice(label, f"?{urlencode(query)}#waterfall", is_chosen)

    newest = books.generations[-1]
    links = [
        link("newest", "", is_chosen=generation == newest and wanted in ("", str(newest))),
        link("mean of all", MEAN, is_chosen=generation is None),
    ]
    at = books.generations.index(generation) if generation is not None else len(books.generations)
    if at > 0:
        links.append(link(f"← {books.generations[at - 1]:,}", str(books.generations[at - 1])))
    if at + 1 < len(books.generations):
        links.append(link(f"{books.generations[at + 1]:,} →", str(books.generations[at + 1])))
    field = AskField("g", unit, "" if generation is None else str(generation), "number")
    return Ask("g", tuple(links), (field,), tuple(others.items()), "Show")


def waterfall_chart(
    steps: Steps, palette: Palette, unit: str, chart_id: str,
    y_range: tuple[float, float] | None = None,
) -> Chart:  # fmt: skip
    levels, known = steps.levels, steps.begin is not None
    names = [name for name, _ in steps.changes]
    rows = [*(["begin"] if known else []), *names, "end" if known else "sum"]
    first = 1 if known else 0
    ends = Line(
        name="memory", x=[0, len(rows) - 1] if known else [len(rows) - 1],
        y=[levels[0], levels[-1]] if known else [levels[-1]], draw="bar",
    )  # fmt: skip
    bars = [
        palette.paint(
            Line(name=name, x=[first + i], y=[change], base=[levels[i]], draw="bar"), name
        )
        for i, (name, change) in enumerate(steps.changes)
    ]
    return Chart(
        id=chart_id, unit="bytes", y_title="private memory" if known else f"change per {unit}",
        x_title=unit, x_unit="step", lines=(ends, *bars), steps=tuple(rows), y_range=y_range or reach([steps]),
    )  # fmt: skip


def reach(found: Sequence[Steps]) -> tuple[float, float]:
    """Around all levels of several sums, so that they can be read on one scale."""
    levels = [level for steps in found for level in steps.levels]
    low, high = min(levels), max(levels)
    span = max(high - low, abs(high) * 0.001, 1.0)
    # From zero where that costs little room: the bars are then as long as what they stand for.
    below = 0.0 if 0 <= low <= span else low - _AIR * span
    return below, high + _EDGE * span


def steps_table(steps: Steps) -> Table:
    whole = steps.levels[-1] - steps.levels[0]
    known = steps.begin is not None
    write: Callable[[float], str] = formats.size if known else formats.change
    rows: list[list[Field]] = []
    if known:
        rows.append(["at the beginning", "", formats.size(steps.begin), ""])
    for (name, change), level in zip(steps.changes, steps.levels[1:], strict=True):
        share = formats.percent(change / whole) if whole > 0 else "–"
        rows.append([code(name), formats.change(change), write(level), share])
    sums = (
        "at the end" if known else "sum", formats.change(whole), write(steps.levels[-1]),
        "100 %" if whole > 0 else "–",
    )  # fmt: skip
    heads = (
        "step",
        "#change",
        "#memory after it" if known else "#sum so far",
        "#share of the change",
    )
    return table(heads, rows, tall=False, sums=sums)
