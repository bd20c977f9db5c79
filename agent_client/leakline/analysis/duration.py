"""How long a run takes in all: the generations that have ended, and those to come as long as the newest took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Final

from ..text_format import format_estimated_seconds, format_interval
from .history import RunHistory
from .results import Interval, RunDuration
from .series import Lane

_SECONDS: Final = "generation.seconds"
# Readings before anything is said; and the newest that say how long the next ones take.
_FIRST: Final = 3
_RECENT: Final = 16


def duration_of(history: RunHistory, lanes: Sequence[Lane]) -> RunDuration | None:
    """None of a run that has ended, or come to its end, or says no ``total``, and before three generations were timed.

    Of several processes the slowest counts: the others wait for it, or will.
    """
    if history.ended or not history.total:
        return None
    each = [found for lane in lanes if (found := _of_lane(lane, history.total)) is not None]
    if not each:
        return None
    if max(whole.estimate for _, _, whole in each) < 1:
        # "All 8 take about 0 s" tells nobody anything.
        return None
    of_one, left, whole = max(each, key=lambda found: found[2].estimate)
    return RunDuration(of_one, left, whole, _told(left, whole, history))


def _of_lane(lane: Lane, total: int) -> tuple[Interval, Interval, Interval] | None:
    """Seconds of a generation, of all to come, and of the whole run."""
    read = (
        [float(v) for v in lane.readings(_SECONDS) if v is not None] if lane.has(_SECONDS) else []
    )
    done = len(lane.generations) + len(lane.left_out.generations)
    if len(read) < _FIRST or done >= total:
        return None
    newest = read[-_RECENT:]
    usual = median(newest)
    # Nine in ten generations lie between; so does the mean of those to come, be it that all are fast or all slow.
    cuts = quantiles(newest, n=20, method="inclusive")
    of_one = Interval(usual, min(cuts[0], usual), max(cuts[-1], usual))
    # A generation without a reading took as long as usual, for all that is known.
    passed, to_come = sum(read) + median(read) * (done - len(read)), total - done
    ends = (of_one.estimate, of_one.low, of_one.high)
    left = Interval(*(to_come * seconds for seconds in ends))
    return of_one, left, Interval(*(passed + to_come * seconds for seconds in ends))


def _told(left: Interval, whole: Interval, history: RunHistory) -> str:
    write = format_estimated_seconds
    whole_time = format_interval(whole.estimate, whole.low, whole.high, write)
    return f"All {history.total:,} {history.unit}s take about {whole_time}, {write(left.estimate)} of them to come."
