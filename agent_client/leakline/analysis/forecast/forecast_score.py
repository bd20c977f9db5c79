"""Accuracy of a run's earlier memory forecasts.

A forecast is made at each moment at which memory rose or a declared container was filling. It looks ahead by half
of the generations completed at that moment. The newest forecasts whose target generation has been reached are
scored: the predicted memory is compared with the actual memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from ...text_format import count_of, format_share
from ..results import ForecastScore, Interval, LeadError, PastForecast
from ..statistics.trend import Z_90
from ..timeline_analysis import TimelineAnalysis
from .memory_outlook import Outlook, level_of, outlook_of
from .oom_forecast import widened

MAX_FORECASTS: Final = 8
# Number of generations before the first scored forecast, and number of forecasts per doubling of the generations.
_FIRST: Final = 8
_IN_A_DOUBLING: Final = 4
_AHEAD: Final = 0.5
# The other lead times show how the error grows with the lead time.
_LEADS: Final = (0.25, _AHEAD, 1.0)


def score_of(studies: Sequence[TimelineAnalysis], unit: str) -> ForecastScore | None:
    """Return the score of earlier forecasts, or None if no forecast has reached its target generation."""
    known = [s for s in studies if s.timeline.private]
    if not known:
        return None
    longest = max(known, key=lambda s: len(s.timeline))
    generations = longest.timeline.generations
    past: list[PastForecast] = []
    others: list[PastForecast] = []
    for end, target in reversed(list(grid(len(longest.timeline)))):
        made = _forecast(known, generations[end - 1], generations[target - 1])
        if made is None:
            continue
        past.append(made)
        targets = (end + int(share * end) for share in _LEADS if share != _AHEAD)
        there = (
            _forecast(known, generations[end - 1], generations[at - 1])
            for at in targets
            if at <= len(generations)
        )
        others += [each for each in there if each is not None]
        if len(past) == MAX_FORECASTS:
            break
    return _score(tuple(reversed(past)), (*past, *others), unit) if past else None


def grid(generations: int) -> Iterator[tuple[int, int]]:
    """Yield (generations seen, target generations) for each forecast; a longer run only adds pairs."""
    start = _FIRST
    while start < generations:
        for quarter in range(_IN_A_DOUBLING):
            end = start + quarter * start // _IN_A_DOUBLING
            target = end + int(_AHEAD * end)
            if target <= generations:
                yield end, target
        start *= 2


def _forecast(
    studies: Sequence[TimelineAnalysis], made_at: int, generation: int
) -> PastForecast | None:
    """Return the forecast for ``generation``, as made at ``made_at``, or None if no growth was expected.

    The forecast covers the processes that reached both generations.
    """
    there = [
        (s, s.timeline.position[made_at] + 1, s.timeline.position[generation] + 1)
        for s in studies
        if made_at in s.timeline.position and generation in s.timeline.position
    ]
    rising = any((rise := s.rise(end)).window or rise.visible for s, end, _ in there)
    filling = any(b.is_filling(end) for s, end, _ in there for b in s.facts.bounded)
    if not rising and not filling:
        return None
    span = float(generation - made_at)
    low = estimate = high = came = 0.0
    for study, end, target in there:
        level = level_of(study, end) + _filled(study, end, span)
        outlook = outlook_of(study, end)
        ends = _ahead(outlook if rising else Outlook(spread=outlook.spread), span)
        low, estimate, high = (
            level + low + ends[0],
            level + estimate + ends[1],
            level + high + ends[2],
        )
        came += level_of(study, target)
    return (
        PastForecast(made_at, generation, Interval(estimate, low, high), came) if came > 0 else None
    )


def _ahead(outlook: Outlook, span: float) -> tuple[float, float, float]:
    """Return (low, estimate, high) of the memory growth over ``span`` generations."""
    rate, gains, scatter = outlook.rate, outlook.gains * span * span / 2, Z_90 * outlook.spread
    low, high = widened(rate)
    return low * span - scatter, rate.estimate * span + gains, high * span + gains + scatter


def _filled(study: TimelineAnalysis, end: int, span: float) -> float:
    """Return the bytes that bounded containers will gain at their recent rate, but not beyond their capacity."""
    return sum(
        min(each.remaining_bytes(end), span * each.fill_rate(end)) for each in study.facts.bounded
    )


def _score(
    past: tuple[PastForecast, ...], every: Sequence[PastForecast], unit: str
) -> ForecastScore:
    # These are the forecasts of the table, so that its rows add up to the numbers in the sentence.
    error, within = _right(every)
    sentence = _score_sentence(every, error, within, unit)
    return ForecastScore(len(every), error, within, past, sentence, tuple(_by_lead(every)))


def _right(past: Sequence[PastForecast]) -> tuple[float, int]:
    """Return (median error as a share of the actual memory, number of intervals that contain the actual memory)."""
    return round(median(map(error_of, past)), 4), sum(map(came_within, past))


def error_of(one: PastForecast) -> float:
    return abs(one.forecast.estimate - one.actual) / one.actual


def came_within(one: PastForecast) -> bool:
    return one.forecast.low <= one.actual <= one.forecast.high


def _by_lead(every: Sequence[PastForecast]) -> Iterator[LeadError]:
    """Yield the accuracy for each range of lead times, shortest first."""
    by_doubling: dict[int, list[PastForecast]] = {}
    for each in every:
        by_doubling.setdefault((each.generation - each.made_at).bit_length(), []).append(each)
    for bits, those in sorted(by_doubling.items()):
        error, within = _right(those)
        looked_at = tuple(sorted(those, key=lambda one: (one.made_at, one.generation)))
        yield LeadError(2 ** (bits - 1), 2**bits - 1, len(looked_at), error, within, looked_at)


def _score_sentence(past: Sequence[PastForecast], error: float, within: int, unit: str) -> str:
    size = "less than 1 %" if error < 0.01 else format_share(error)
    if len(past) == 1:
        one = past[0]
        inside = "inside" if within else "outside"
        return (
            f"The only forecast that could be checked, made at {unit} {one.made_at} for "
            f"{unit} {one.generation}, was off by {size}, {inside} its interval."
        )
    return (
        f"{len(past)} forecasts could be checked: typically off by {size}; "
        f"{'all ' if within == len(past) else ''}{count_of(within, 'interval')} contained the actual memory"
    )
