"""Planned bands against what was measured: each generation of a band is below it, within it or above it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ..text_format import capital, count_of, format_bytes, format_number
from .history import RunHistory, Value, number_of
from .results import BandCheck, BandDeviation, BandState
from .series import Lane

# Whoever sends events decides how many there are.
_MAX_BANDS: Final = 40
_MAX_CHECKS: Final = 80
_MAX_DEVIATIONS: Final = 50
# What memory gained from the end of one generation to that of the next, worked out where nothing of that name is read.
GROWTH: Final = "generation.growth_bytes"
_RESIDENT: Final = "process.rss_bytes"
# A peak belongs to the stretch since the snapshot before: that of a generation is the highest of all its snapshots.
_PEAK: Final = "peak_bytes"


@dataclass(frozen=True, slots=True)
class Band:
    series: str
    first: int
    last: int | None
    low: float | None
    high: float | None

    def off_by(self, value: float) -> float:
        """0 within, the bounds included; below zero under the band, above zero over it."""
        if self.low is not None and value < self.low:
            return value - self.low
        if self.high is not None and value > self.high:
            return value - self.high
        return 0.0

    def holds(self, generation: int) -> bool:
        return generation >= self.first and (self.last is None or generation <= self.last)


def check_bands(history: RunHistory, lanes: Sequence[Lane]) -> tuple[BandCheck, ...]:
    """Every declared band, for each process that measures its series, in the order of their generations."""
    found: list[BandCheck] = []
    for band in declared_bands(history):
        measured = _RESIDENT if band.series == GROWTH else band.series
        measuring = [
            lane for lane in lanes if any(v is not None for v in lane.series.get(measured, ()))
        ]
        if not measuring:
            found.append(_unmeasured(band, history))
        several = len(measuring) > 1
        found += [_checked(band, lane, history, several) for lane in measuring]
    return tuple(found[:_MAX_CHECKS])


def declared_bands(history: RunHistory) -> tuple[Band, ...]:
    """The newest bounds of each (series, first, last); what is no band is passed over."""
    found: dict[tuple[str, int, int | None], Band] = {}
    for event in history.events:
        band = _band(event.name, event.data) if event.kind == "band" else None
        if band is not None:
            found[band.series, band.first, band.last] = band
    newest = list(found.values())[-_MAX_BANDS:]
    return tuple(sorted(newest, key=lambda b: (b.series, b.first, b.last or math.inf)))


def _band(series: str, data: Mapping[str, Any]) -> Band | None:
    first, last = _whole(data.get("first")), _whole(data.get("last"))
    low, high = number_of(data.get("low_bytes")), number_of(data.get("high_bytes"))
    if first is None or (low is None and high is None):
        return None
    if last is None and data.get("last") is not None:
        return None
    return Band(series, first, last, low, high)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and number_of(value) is not None else None


def _checked(band: Band, lane: Lane, history: RunHistory, several: bool) -> BandCheck:
    readings = dict(zip(lane.generations, readings_of(lane, band.series), strict=True))
    ended = [g for g in lane.generations if band.holds(g)]
    known = [(g, float(v)) for g in ended if (v := readings[g]) is not None]
    outside = [BandDeviation(g, v, band.off_by(v)) for g, v in known if band.off_by(v) != 0]
    newest = lane.generations[-1] if lane.generations else -math.inf
    still_open = not history.ended and (band.last is None or newest < band.last)
    state: BandState = "outside" if outside else "within"
    if not known:
        state = "not_measured" if ended else "open"
    elif not outside and still_open:
        state = "open"
    above = sum(d.off_by > 0 for d in outside)
    return BandCheck(
        band.series, band.first, band.last, band.low, band.high, lane.name if several else None, state,
        len(known) - len(outside), len(outside) - above, above, len(ended) - len(known), still_open,
        tuple(outside[:_MAX_DEVIATIONS]), _told(band, history, ended, len(known), outside, newest),
    )  # fmt: skip


def readings_of(lane: Lane, series: str) -> Sequence[Value]:
    """One reading per generation, as read: at its end, or where this series is read most."""
    if series == GROWTH:
        return _gained(lane)
    if not series.endswith(_PEAK):
        return lane.readings(series)
    column = lane.series[series]
    highest: dict[int, float] = {}
    for generation, value in zip(lane.generation, column, strict=True):
        if generation is not None and value is not None:
            highest[generation] = max(highest.get(generation, value), value)
    return [highest.get(generation) for generation in lane.generations]


def _gained(lane: Lane) -> Sequence[Value]:
    """From the end before, of the first from the baseline; unknown over a resume and over what was not read."""
    before: Value = None
    if lane.baseline_row is not None:
        before = lane.series[_RESIDENT][lane.baseline_row]
    segment = lane.segment[lane.end_rows[0]] if lane.end_rows else 0
    last = lane.generations[0] - 1 if lane.generations else 0
    gained: list[Value] = []
    for generation, row, now in zip(
        lane.generations, lane.end_rows, lane.readings(_RESIDENT), strict=True
    ):
        follows = generation == last + 1 and lane.segment[row] == segment
        known = follows and now is not None and before is not None
        gained.append(now - before if known and now is not None and before is not None else None)
        before, segment, last = now, lane.segment[row], generation
    return gained


def _unmeasured(band: Band, history: RunHistory) -> BandCheck:
    return BandCheck(
        band.series, band.first, band.last, band.low, band.high, None, "not_measured", 0, 0, 0, 0,
        not history.ended, (), f"{band.series} is not measured in this run.",
    )  # fmt: skip


def _told(
    band: Band, history: RunHistory, ended: Sequence[int], known: int,
    outside: Sequence[BandDeviation], newest: float,
) -> str:  # fmt: skip
    unit = history.unit
    if not ended:
        over = f"the run ended at {unit} {newest:.0f}" if history.ended else "not reached yet"
        if newest >= band.first:
            over = "none of them was recorded"
        return capital(f"{over}.")
    said = "" if known else f"no reading in {count_of(len(ended), unit)}"
    if outside:
        said = f"{_stretches(band, outside, unit)}; {known - len(outside)} of {known} within"
    elif known:
        said = f"within in all {known} {unit}s" if known > 1 else f"within in its one {unit}"
    if known < len(ended) and known:
        said += f", {count_of(len(ended) - known, unit)} without a reading"
    return capital(f"{said}{_rest(band, history, newest)}.")


def _stretches(band: Band, outside: Sequence[BandDeviation], unit: str) -> str:
    """``below in generations 1 to 5 by up to 27.64 GiB (generation 1), above in generation 9 by 2.00 GiB``."""
    write = writer_of(band.series)
    parts = []
    for word, sign in (("below", -1), ("above", 1)):
        these = [d for d in outside if d.off_by * sign > 0]
        if not these:
            continue
        worst = max(these, key=lambda d: (abs(d.off_by), -d.generation))
        size = write(abs(worst.off_by))
        if len(these) == 1:
            parts.append(f"{word} in {unit} {worst.generation} by {size}")
            continue
        where = _where([d.generation for d in these], unit)
        parts.append(f"{word} in {where} by up to {size} ({unit} {worst.generation})")
    return ", ".join(parts)


def _where(generations: Sequence[int], unit: str) -> str:
    first, last = generations[0], generations[-1]
    if all(b - a == 1 for a, b in pairwise(generations)):
        return f"{unit}s {first} to {last}"
    return f"{len(generations)} {unit}s between {first} and {last}"


def _rest(band: Band, history: RunHistory, newest: float) -> str:
    if band.last is None or newest >= band.last:
        return "" if band.last is not None or history.ended else " so far"
    left = count_of(band.last - int(newest), history.unit)
    return f"; the run ended {left} before its end" if history.ended else f"; {left} still to come"


def writer_of(series: str) -> Any:
    """How values of a series are written: sizes as such, all else as plain numbers."""
    return format_bytes if series.endswith(("_bytes", ".bytes")) else format_number


def band_title(check: Mapping[str, Any], unit: str) -> str:
    """``process.rss_bytes, generations 1 to 5: 30.00 GiB to 40.00 GiB``; ``check`` as in the JSON."""
    write = writer_of(check["series"])
    first, last = check["first"], check["last"]
    span = f"{unit}s {first} to {last}"
    if last is None:
        span = f"from {unit} {first} on"
    elif last == first:
        span = f"{unit} {first}"
    low, high = check["low"], check["high"]
    if low is None:
        bounds = f"up to {write(high)}"
    else:
        bounds = f"from {write(low)}" if high is None else f"{write(low)} to {write(high)}"
    whose = f" ({check['process']})" if check["process"] else ""
    return f"{check['series']}{whose}, {span}: {bounds}"
