"""The printed tables: one line per family and one per figure, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks import printing

from .baselines import BASELINES
from .evaluate import SOON, Outcome
from .figure import Figure, written
from .shares import Share, quantile

Table = list[list[str]]

HEALTHY_TITLE: Final = (
    "healthy runs: share that ever alarmed, with its 95 % upper bound where it is ours"
)
LEAKING_TITLE: Final = "leaking runs: share found, with its 95 % lower bound where it is ours"
ACCURACY_TITLE: Final = "leaking runs: how soon, how close"
FIGURES_TITLE: Final = "figures"
SOAK_TITLE: Final = "one long run, examined after each generation"
RECORDED_TITLE: Final = "memory of real machines"


def by_family(outcomes: Sequence[Outcome]) -> list[tuple[str, Table]]:
    healthy = [o for o in outcomes if not o.leaks]
    leaking = [o for o in outcomes if o.leaks]
    tables = []
    if healthy:
        tables.append((HEALTHY_TITLE, _alarms(healthy, upper=True)))
    if leaking:
        tables.append((LEAKING_TITLE, _alarms(leaking, upper=False)))
        tables.append((ACCURACY_TITLE, _closeness(leaking)))
    return tables


def _alarms(outcomes: Sequence[Outcome], *, upper: bool) -> Table:
    head = ["", "runs", "suspected", "bound", "confirmed", "bound", *BASELINES]
    return [head, *([name, *_alarm_cells(mine, upper)] for name, mine in _groups(outcomes))]


def _alarm_cells(outcomes: Sequence[Outcome], upper: bool) -> list[str]:
    cells = [str(len(outcomes))]
    for level in ("suspected", "confirmed"):
        share = Share.of(getattr(o, level) is not None for o in outcomes)
        bound = share.upper() if upper else share.lower()
        cells += [written(share.value, "%"), written(bound, "%")]
    for name in BASELINES:
        cells.append(_percent(o.baselines[name] is not None for o in outcomes))
    return cells


def _closeness(outcomes: Sequence[Outcome]) -> Table:
    head = [
        "", "until suspected", "until confirmed", f"fast ones in {SOON}", "with witness", "start close",
        "rate off", "forecast off", "90th pct", "covered", "warned",
    ]  # fmt: skip
    return [head, *([name, *_closeness_cells(mine)] for name, mine in _groups(outcomes))]


def _closeness_cells(outcomes: Sequence[Outcome]) -> list[str]:
    fast = [o for o in outcomes if o.is_fast]
    asked = [o.forecast for o in outcomes if o.forecast is not None]
    errors = [float("inf") if f.error is None else f.error for f in asked]
    return [
        _median_delay(outcomes, lambda o: o.suspected),
        _median_delay(outcomes, lambda o: o.confirmed),
        _percent(o.was_soon(o.suspected) for o in fast),
        _percent(o.was_soon(o.with_witness) for o in fast if o.has_witness),
        _percent(o.start_ok for o in outcomes if o.start_ok is not None),
        written(quantile([o.rate_off for o in outcomes if o.rate_off is not None], 0.5), "%"),
        written(quantile(errors, 0.5), "%"),
        written(quantile(errors, 0.9), "%"),
        _percent(f.covered for f in asked if f.covered is not None),
        _percent(bool(o.warned) for o in outcomes),
    ]


def _median_delay(outcomes: Sequence[Outcome], at: Callable[[Outcome], int | None]) -> str:
    found = [(at(o), o.start) for o in outcomes]
    delays = [float(a - s) for a, s in found if a is not None and s is not None]
    middle = quantile(delays, 0.5)
    return "-" if middle is None else f"{middle:g}"


def _percent(found: Iterable[bool]) -> str:
    return written(Share.of(found).value, "%")


def _groups(outcomes: Sequence[Outcome]) -> Iterable[tuple[str, list[Outcome]]]:
    for family in dict.fromkeys(o.family for o in outcomes):
        yield family, [o for o in outcomes if o.family == family]
    yield "all", list(outcomes)


def figure_table(figures: Sequence[Figure], other: Sequence[Figure] = ()) -> Table:
    """Return one line per figure. ``other`` has the same figures for fresh seeds; the difference is in points."""
    head = ["", "", "figure", "95 % bound", "runs", "target", "", ""]
    lines = [
        [
            f.code, f.name, f.text(), written(f.bound, "%"), str(f.runs), f.target(),
            ("SHORT" if f.failure() else "ok") if f.is_held else "", f.note,
        ]
        for f in figures
    ]  # fmt: skip
    if not other:
        return [head, *lines]
    fresh = [[b.text(), _difference(a, b)] for a, b in zip(figures, other, strict=True)]
    whole = [[*line[:3], *more, *line[3:]] for line, more in zip(lines, fresh, strict=True)]
    return [[*head[:3], "fresh seeds", "difference", *head[3:]], *whole]


def _difference(a: Figure, b: Figure) -> str:
    if a.value is None or b.value is None or float("inf") in (a.value, b.value):
        return "-"
    change = b.value - a.value
    return f"{100 * change:+.1f} points" if a.unit == "%" else f"{change:+.1f}"


def text_table(title: str, table: Table) -> str:
    """Return a text table with words left-aligned and figures right-aligned."""
    columns = range(len(table[0]))
    left = [any(c.isalpha() for line in table[1:] for c in line[i][:1]) for i in columns]
    return printing.text_table(title, table, left)


def markdown_table(title: str, table: Table) -> str:
    return printing.markdown_table(title, table, [True, *[False] * (len(table[0]) - 1)])
