"""Memory series recorded on real machines without a known leak: each window of one is a healthy run.

Series are read from files that users provide, because the public ones carry licences of their own: one CSV file per
series, the newest reading last, its value in the last column; lines without a number there are skipped. The unit does
not matter, since values are scaled so that the median of a window is 8 GiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from .cases import GIB, LONGEST, Case
from .evaluate import Outcome, healthy
from .figure import Figure, at_most
from .shares import Share

# This many readings become one run: with one reading per five minutes, half a day.
STRETCH: Final = LONGEST
_MEDIAN: Final = 8 * GIB
_HEADROOM: Final = 2.0
_MOST: Final = 0.01


class NoReadings(ValueError):
    """A file without a single number in its last column."""


def recorded_runs(folder: Path) -> Iterator[Outcome]:
    """Yield every complete window of every series as a healthy run. Raises NoReadings, OSError."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise NoReadings(f"{folder} holds no .csv file")
    for file in files:
        values = readings_of(file.read_text(encoding="utf-8", errors="replace").splitlines())
        if not values:
            raise NoReadings(f"{file} has no number in its last column")
        for number, (first, last) in enumerate(pairwise(range(0, len(values) + 1, STRETCH))):
            yield healthy(case_of(file.stem, values[first:last]), number)


def readings_of(lines: Iterable[str]) -> list[float]:
    """Return the numbers above zero: a memory reading of zero is a failed reading."""
    found = (_number(line.rsplit(",", 1)[-1]) for line in lines)
    return [value for value in found if value is not None and value > 0]


def case_of(name: str, values: Sequence[float]) -> Case:
    scaled = tuple(_MEDIAN * value / median(values) for value in values)
    n = len(scaled)
    return Case(
        name, scaled[0], scaled, scaled, _HEADROOM * max(scaled),
        generation=tuple(range(n)), attempt=(1,) * n,
    )  # fmt: skip


def recorded_figures(found: Sequence[Outcome]) -> list[Figure]:
    """Return A4: the share of windows ever suspected, and of those ever confirmed, which would alert somebody."""
    suspected = Share.of(one.suspected is not None for one in found)
    confirmed = Share.of(one.confirmed is not None for one in found)
    of = f"stretches of {STRETCH} readings of real machines"
    return [
        at_most("A4", f"{of} ever suspected", suspected, _MOST),
        at_most("A4", f"{of} ever confirmed", confirmed, _MOST),
        *(_of_baseline(name, found, of) for name in sorted(found[0].baselines)),
    ]


def _of_baseline(name: str, found: Sequence[Outcome], of: str) -> Figure:
    share = Share.of(one.baselines[name] is not None for one in found)
    return at_most("A4", f"{of} alarmed by {name}", share)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
