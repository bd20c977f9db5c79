"""Gauges: numbers other than memory that the program reports.

Gauges are compared between runs. A finding mentions the gauges that change along with memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from ...text_format import format_number
from ..comparison.comparison_results import GaugeChange
from ..results import Finding
from ..status import ACTIVE
from ..timeline import Timeline

FRAMES: Final = "js.frames_per_second"
# Numbers of two runs of the same program may differ by this many percent.
SAME_PERCENT: Final = 5.0
_MAX_GAUGES: Final = 40
_MAX_COMPANIONS: Final = 2
_LOOK: Final = 64
_MIN_POINTS: Final = 8
# Minimum rank correlation and minimum relative change for a number to be reported.
_TOGETHER: Final = 0.85
_CHANGED: Final = 0.2


def gauges_of(timeline: Timeline) -> list[str]:
    return sorted(name for name in timeline.series if name.startswith("gauge.") or name == FRAMES)


def title(series: str) -> str:
    return "frames per second" if series == FRAMES else series.removeprefix("gauge.")


def compared(
    before: Sequence[Timeline], after: Sequence[Timeline], shared: Collection[int]
) -> tuple[GaugeChange, ...]:
    """Return the change of each gauge between two runs, over the generations in ``shared``."""
    names = sorted({name for timeline in (*before, *after) for name in gauges_of(timeline)})
    return tuple(
        _change(name, _median(before, name, shared), _median(after, name, shared))
        for name in names[:_MAX_GAUGES]
    )


def _change(name: str, old: float | None, new: float | None) -> GaugeChange:
    if old is None or new is None:
        return GaugeChange(title(name), old, new, None, None)
    if old == new:
        return GaugeChange(title(name), old, new, 0.0, True)
    percent = None if old == 0 else round(100 * (new - old) / abs(old), 1)
    return GaugeChange(
        title(name), old, new, percent, percent is not None and abs(percent) < SAME_PERCENT
    )


def _median(timelines: Iterable[Timeline], name: str, shared: Collection[int]) -> float | None:
    known = [
        float(value)
        for timeline in timelines
        if timeline.has(name)
        for generation, value in zip(timeline.generations, timeline.values(name), strict=True)
        if value is not None and generation in shared
    ]
    return median(known) if known else None


def with_companions(finding: Finding, timeline: Timeline) -> Finding:
    """Add evidence about gauges that changed along with memory, which does not imply causation."""
    if finding.status not in ACTIVE:
        return finding
    lines = companions(timeline)
    return replace(finding, evidence=(*finding.evidence, *lines)) if lines else finding


def companions(timeline: Timeline) -> tuple[str, ...]:
    """Return sentences such as ``frames per second fell from 60 to 22 while memory rose (rank correlation -0.98)``."""
    found: list[tuple[float, str]] = []
    for name in gauges_of(timeline)[:_MAX_GAUGES]:
        line = _companion(timeline, name)
        if line is not None:
            found.append(line)
    found.sort(key=lambda each: (-abs(each[0]), each[1]))
    return tuple(text for _, text in found[:_MAX_COMPANIONS])


def _companion(timeline: Timeline, name: str) -> tuple[float, str] | None:
    x, values = timeline.points(name, newest=_LOOK)
    if len(values) < _MIN_POINTS or not timeline.private:
        return None
    memory = [timeline.private[timeline.position[int(generation)]] for generation in x]
    third = len(values) // 3
    early, late = median(values[:third]), median(values[-third:])
    together = rank_correlation(memory, values)
    if abs(together) < _TOGETHER or abs(late - early) < _CHANGED * max(abs(early), abs(late)):
        return None
    word = "rose" if late > early else "fell"
    trend = f"{title(name)} {word} from {format_number(early)} to {format_number(late)}"
    rose = median(memory[-third:]) > median(memory[:third])
    if not rose:
        return None
    return together, f"{trend} while memory rose (rank correlation {together:+.2f})."


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's coefficient: 1 if both rise together, -1 if they are opposed, 0 if one is constant."""
    ranks = _ranks(a), _ranks(b)
    mean = (len(a) - 1) / 2
    spread = [sum((r - mean) ** 2 for r in each) for each in ranks]
    if not all(spread):
        return 0.0
    both = sum((p - mean) * (q - mean) for p, q in zip(*ranks, strict=True))
    return float(both / (spread[0] * spread[1]) ** 0.5)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    value_of: Callable[[int], float] = values.__getitem__
    order = sorted(range(len(values)), key=value_of)
    ranks, first = [0.0] * len(values), 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2
        first = last + 1
    return ranks
