"""The figures with targets for the analysis, computed from the outcomes of all runs. Shares are between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from .baselines import BASELINES
from .evaluate import SOON, Outcome
from .figure import Figure, at_least, at_most, written
from .generators import FAMILIES
from .shares import Share, quantile

_MATTERS: Final = 0.005  # smallest slope that counts, share of the baseline per generation
_LONG_ENOUGH: Final = 36  # generations after the start
_RATE_WITHIN: Final = 0.10
_TIMES_LESS: Final = 10.0


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    healthy = [o for o in outcomes if not o.leaks]
    leaking = [o for o in outcomes if o.leaks]
    known = [o for o in healthy if FAMILIES[o.family].bound_known]
    return [
        *_false_alarms(healthy, known),
        *_undeclared_fills(healthy),
        *_recall(leaking),
        *_comparisons(known, leaking),
        *_accuracy(leaking),
        *_forecasts(leaking),
    ]


def _false_alarms(healthy: Sequence[Outcome], known: Sequence[Outcome]) -> list[Figure]:
    """Return A1. Undeclared fills are counted separately: nobody can know that they stop before they do."""
    found = []
    for level, position, most in (("suspected", 0, 0.05), ("confirmed", 1, 0.01)):
        name = f"healthy runs ever {level}, bounds declared where the code has them"
        found.append(at_most("A1", name, _ever(known, level), most))
        name = f"healthy runs ever {level}, with fills that nobody declared"
        found.append(at_most("A1", name, _ever(healthy, level)))
        bare = Share.of(o.undeclared[position] is not None for o in healthy)
        found.append(
            at_most("A1", f"healthy runs ever {level}, when nobody declares anything", bare)
        )
    return found


def _undeclared_fills(healthy: Sequence[Outcome]) -> list[Figure]:
    """Return A1 for stores whose capacity nobody has declared, readable or not."""
    fills = [
        o for o in healthy if not FAMILIES[o.family].bound_known or o.family == "readable fill"
    ]
    return [
        at_most("A1", f"undeclared fills ever {level}", _ever(fills, level), most)
        for level, most in (("suspected", 0.10), ("confirmed", 0.02))
    ]


def _recall(leaking: Sequence[Outcome]) -> list[Figure]:
    old = [o for o in leaking if _is_plain(o)]
    fast = [o for o in leaking if o.is_fast]
    witnessed = [o for o in fast if o.has_witness]
    soon = Share.of(o.was_soon(o.suspected) for o in fast)
    beside = Share.of(o.was_soon(o.with_witness) for o in witnessed)
    within = f"within {SOON} generations"
    return [
        at_least("A2", "leaks of >= 0.5 %/generation confirmed that went on for >= 36 generations",
               _ever(old, "confirmed"), 0.98),
        at_least("A2", f"leaks of >= 2 %/generation suspected {within}, from memory alone", soon, 0.60),
        at_least("A2", f"leaks of >= 2 %/generation suspected {within}, with a second witness", beside, 0.95),
        at_least("A2", "leaks ever suspected, of all", _ever(leaking, "suspected")),
        at_least("A2", "leaks ever confirmed, of all", _ever(leaking, "confirmed")),
        _delay(leaking, "suspected"),
        _delay(leaking, "confirmed"),
        at_most("A2", "leaking runs suspected before their leak began", Share.of(o.early for o in leaking)),
    ]  # fmt: skip


def _comparisons(healthy: Sequence[Outcome], leaking: Sequence[Outcome]) -> list[Figure]:
    """Return A3: the target covers all leaks; a second row covers those of A2, which are old and large enough."""
    old = [o for o in leaking if _is_plain(o)]
    name = "times fewer false alarms than {}, no fewer leaks found"
    held = [_comparison(name.format(b), b, healthy, leaking, _TIMES_LESS) for b in BASELINES]
    name = "times fewer false alarms than {}, no fewer leaks found of those of >= 36 generations"
    held += [_comparison(name.format(b), b, healthy, old) for b in BASELINES]
    return held + [_at_equal_recall(b, healthy, leaking) for b in BASELINES]


def _at_equal_recall(
    baseline: str, healthy: Sequence[Outcome], leaking: Sequence[Outcome]
) -> Figure:
    """Compare with the same detector, made so strict that it finds as many leaks as we do."""
    name = f"times fewer false alarms than {baseline}, made so strict that it finds as many leaks"
    runs, ratios, said = len(healthy) + len(leaking), [], []
    if not healthy or not leaking:
        return Figure("A3", name, None, "x", _TIMES_LESS, runs=runs)
    sure = sorted((o.strongest[baseline] for o in leaking), reverse=True)
    for level in ("suspected", "confirmed"):
        ours, found = _ever(healthy, level), _ever(leaking, level)
        if found.hits:
            critical = sure[found.hits - 1]
            theirs = Share.of(o.strongest[baseline] >= critical for o in healthy)
            ratios.append(_times_less(ours, theirs))
            said.append(f"{level} {_rates(ours, found)}, theirs {_rates(theirs, found)}")
    return Figure(
        "A3", name, max(ratios, default=0.0), "x", _TIMES_LESS, runs=runs, note="; ".join(said)
    )


def _comparison(
    name: str,
    baseline: str,
    healthy: Sequence[Outcome],
    leaking: Sequence[Outcome],
    least: float | None = None,
) -> Figure:
    """Compare at the better of our two levels, among those whose recall is no worse."""
    false = Share.of(o.baselines[baseline] is not None for o in healthy)
    found = Share.of(o.baselines[baseline] is not None for o in leaking)
    runs, said = len(healthy) + len(leaking), [f"theirs {_rates(false, found)}"]
    if not healthy or not leaking:
        return Figure("A3", name, None, "x", least, runs=runs)
    ratios = {}
    for level in ("suspected", "confirmed"):
        ours = _ever(healthy, level), _ever(leaking, level)
        ratio, as_good = _times_less(ours[0], false), ours[1].hits >= found.hits
        ratios[level] = (as_good, ratio)
        said.append(f"{level} {_rates(*ours)}")
    as_good, best = max(ratios.values())
    short = "" if as_good else "they find more leaks than either of our levels"
    note = "; ".join([short, *said] if short else said)
    return Figure("A3", name, best, "x", least, runs=runs, note=note, short=short)


def _rates(false: Share, found: Share) -> str:
    return f"{written(false.value, '%')} false {written(found.value, '%')} found"


def _times_less(ours: Share, theirs: Share) -> float:
    if not theirs.value:
        return math.inf if not ours.hits else 0.0
    return theirs.value / ours.value if ours.value else math.inf


def _accuracy(leaking: Sequence[Outcome]) -> list[Figure]:
    """Return A7: at the end of each run whose leak is active then, from memory alone."""
    starts = Share.of(o.start_ok for o in leaking if o.start_ok is not None)
    rates = [o.rate_off for o in leaking if o.rate_off is not None]
    close = Share.of(rate <= _RATE_WITHIN for rate in rates)
    return [
        at_least("A7", "starts named within 2 generations or 10 % of the leak's age", starts, 0.90),
        at_least("A7", "growth per generation within 10 % of the truth", close, 0.90),
        Figure("A7", "error of the growth per generation, median", quantile(rates, 0.5), most=0.03,
               runs=len(rates)),
    ]  # fmt: skip


def _forecasts(leaking: Sequence[Outcome]) -> list[Figure]:
    """Return A8, half-way from the start of the leak to out of memory. No forecast is an infinite error."""
    asked = [o.forecast for o in leaking if o.forecast is not None]
    errors = [math.inf if f.error is None else f.error for f in asked]
    given = [f for f in asked if f.covered is not None]
    covered = Share.of(bool(f.covered) for f in given)
    return [
        Figure("A8", "error of the time to out of memory at half of what is left, median",
               quantile(errors, 0.5), most=0.10, runs=len(errors)),
        Figure("A8", "the same, 90th percentile", quantile(errors, 0.9), most=0.35, runs=len(errors)),
        Figure("A8", "runs whose end lies in the 90 % interval, where one was given", covered.value,
               least=0.85, most=0.95, runs=covered.runs),
        at_least("A8", "forecasts given at half of what is left", Share(len(given), len(asked))),
        at_least("A8", "runs that run out and were warned with >= 20 % of their life ahead",
               Share.of(bool(o.warned) for o in leaking)),
    ]  # fmt: skip


def _ever(outcomes: Iterable[Outcome], level: str) -> Share:
    return Share.of(getattr(o, level) is not None for o in outcomes)


def _is_plain(outcome: Outcome) -> bool:
    """Return True if a leak is so large and so old that it must be confirmed."""
    return outcome.age >= _LONG_ENOUGH and outcome.slope >= _MATTERS


def _delay(leaking: Sequence[Outcome], level: str) -> Figure:
    delays = [
        float(at - o.start)
        for o in leaking
        if o.start is not None and (at := getattr(o, level)) is not None
    ]
    name = f"from the start of a leak until it is {level}, median"
    return Figure("A2", name, quantile(delays, 0.5), "generations", runs=len(delays))
