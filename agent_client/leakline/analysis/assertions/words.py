"""The words for declared limits: titles, states and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from ...text_format import capital, count_of, format_bytes, format_number, short_name
from ..results import BY_READING, Assertion, AssertionState, Deviation
from ..run_history import RunHistory
from .declared import (
    GENERATIONS,
    GPU_PEAK,
    GROWTH,
    JUMP,
    KEPT_BY_GENERATION,
    KEPT_BY_PHASE,
    KEPT_BY_RUN,
    PEAK,
    PHASE_GROWTH,
    POSSIBLE,
    Amounts,
    has_run,
)

STATE_WORDS: Final = {
    "holds": "holds", "broken": "broken", "above_normal": "more than normal", "open": "still open",
    "undecided": "undecided", "not_measured": "not measured",
}  # fmt: skip


def assertion_lines(checks: Sequence[Mapping[str, Any]], unit: str) -> Iterator[str]:
    """Yield each declared limit, and indented below it its state; ``checks`` as in the JSON."""
    for check in checks:
        yield assertion_title(check, unit)
        yield f"   {STATE_WORDS[check['state']]}: {check['sentence']}"


def assertion_title(check: Mapping[str, Any], unit: str) -> str:
    """Return ``process.rss_bytes, generations 1 to 5: 30.00 GiB to 40.00 GiB``, ``budget of train``, ``Env: 2``."""
    process, metric = f" ({check['process']})" if check["process"] else "", check["metric"]
    if check["origin"] == "budget":
        whose = {KEPT_BY_GENERATION: f"each {unit}", KEPT_BY_RUN: "the whole run"}
        return f"budget of {whose.get(metric, check['name'])}{process}"
    if check["origin"] == "fix":
        place = f" ({check['location']})" if check["location"] else ""
        return f"{check['name']}{place}: {_promise_title(check, unit)}"
    if check["origin"] == "gauge":
        return f"{metric}{process}: {_bounds(check)}"
    if check["origin"] != "band":
        after = f" after {check['phase']}" if check["phase"] else ""
        return f"{check['name']}{after}{process}: {_bounds(check)}"
    first, last = check["first"], check["last"]
    span = f"{unit}s {first} to {last}"
    if last is None:
        span = f"from {unit} {first} on"
    elif last == first:
        span = f"{unit} {first}"
    return f"{metric}{process}, {span}: {_bounds(check)}"


def _promise_title(check: Mapping[str, Any], unit: str) -> str:
    metric = str(check["metric"])
    if metric.startswith("type."):
        return f"{short_name(metric.removeprefix('type.').removesuffix('.count'))} alive"
    words = {
        GROWTH: f"growth per {unit}", PHASE_GROWTH: f"growth in {check['phase'] or 'its phase'}",
        PEAK: "peak memory", GPU_PEAK: "peak GPU memory",
        JUMP: f"largest jump between {unit}s", GENERATIONS: f"{unit}s to complete",
        POSSIBLE: f"{unit}s that memory allows",
    }  # fmt: skip
    return words.get(metric, metric)


def _bounds(check: Mapping[str, Any]) -> str:
    """Return ``2``, ``16 to 17``, ``from 5.00 GiB``, or of a baseline ``up to 567 (baseline)``."""
    write, low, high = writer_of(check["metric"]), check["low"], check["high"]
    if low is None and high is None:
        return "as at the baseline"
    if low is None:
        return f"up to {write(high)}{'' if check['origin'] in BY_READING else ' (baseline)'}"
    if high is None:
        return f"from {write(low)}"
    return write(low) if low == high else f"{write(low)} to {write(high)}"


def writer_of(series: str) -> Callable[[float], str]:
    """Return the format of a series: sizes as such, all else as plain numbers."""
    sized = series.endswith(("_bytes", ".bytes", "_bytes_per_generation"))
    return format_bytes if sized else format_number


def band_sentence(
    band: Assertion, history: RunHistory, ended: int, known: int, outside: Sequence[Deviation], newest: float
) -> str:  # fmt: skip
    unit = history.unit
    if not ended:
        over = f"the run ended at {unit} {newest:.0f}" if history.ended else "not reached yet"
        if band.first is not None and newest >= band.first:
            over = "none of them was recorded"
        return capital(f"{over}.")
    said = "" if known else f"no reading in {count_of(ended, unit)}"
    if outside:
        said = f"{_ranges(band, outside, unit)}; {known - len(outside)} of {known} within"
    elif known:
        said = f"within in all {known} {unit}s" if known > 1 else f"within in its one {unit}"
    if known < ended and known:
        said += f", {count_of(ended - known, unit)} without a reading"
    return capital(f"{said}{_rest(band, history, newest)}.")


def _ranges(band: Assertion, outside: Sequence[Deviation], unit: str) -> str:
    """Return ``below in generations 1 to 5 by up to 27.64 GiB (generation 1), above in generation 9 by 2.00 GiB``."""
    write = writer_of(band.metric)
    parts = []
    for word, sign in (("below", -1), ("above", 1)):
        these = [d for d in outside if d.off_by * sign > 0]
        if not these:
            continue
        worst = max(these, key=lambda d: (abs(d.off_by), -(d.generation or 0)))
        size = write(abs(worst.off_by))
        if len(these) == 1:
            parts.append(f"{word} in {unit} {worst.generation} by {size}")
            continue
        where = _where([d.generation or 0 for d in these], unit)
        parts.append(f"{word} in {where} by up to {size} ({unit} {worst.generation})")
    return ", ".join(parts)


def _where(generations: Sequence[int], unit: str) -> str:
    first, last = generations[0], generations[-1]
    if all(b - a == 1 for a, b in pairwise(generations)):
        return f"{unit}s {first} to {last}"
    return f"{len(generations)} {unit}s between {first} and {last}"


def _rest(band: Assertion, history: RunHistory, newest: float) -> str:
    if band.last is None or newest >= band.last:
        return "" if band.last is not None or history.ended else " so far"
    left = count_of(band.last - int(newest), history.unit)
    return f"; the run ended {left} before its end" if history.ended else f"; {left} still to come"


def budget_sentence(budget: Assertion, history: RunHistory, amounts: Amounts, beyond: int) -> str:
    unit = history.unit
    if not amounts:
        if budget.metric != KEPT_BY_PHASE:
            return f"No {unit} to judge yet."
        if has_run(history, budget.name):
            return f"{budget.name} ran in one {unit}; it is judged from the second on."
        return f"{budget.name} never ran."
    generation, most = max(amounts, key=lambda each: (each[1], -each[0]))
    if budget.metric == KEPT_BY_RUN:
        newest = amounts[-1][1]
        said = f"Memory has grown by {format_bytes(newest)} since the run began"
        if budget.state_of(newest) != budget.state_of(most):
            said += f", and by {format_bytes(most)} at {unit} {generation}"
    else:
        who = "The run" if budget.metric == KEPT_BY_GENERATION else budget.name
        said = f"{who} kept at most {format_bytes(most)} in one {unit} ({unit} {generation})"
    said += f": {_against(budget, most)}"
    if beyond and budget.metric != KEPT_BY_RUN:
        said += f"; beyond in {beyond} of {len(amounts)} {unit}s"
    return f"{said}."


def _against(budget: Assertion, amount: float) -> str:
    normal, leak = (format_bytes(bound or 0.0) for bound in (budget.high, budget.leak))
    state = budget.state_of(amount)
    if state == "broken":
        return f"a leak from {leak} on"
    if state == "above_normal":
        less = "" if not budget.leak else f", less than the {leak} of a leak"
        return f"more than the {normal} that are fine{less}"
    return f"below the {leak} of a leak" if budget.high is None else f"fine up to {normal}"


def broken_budget_evidence(budget: Assertion, unit: str, kept: float) -> str:
    """Return the evidence that a broken budget gives a finding."""
    allowed = f"its budget is {format_bytes(budget.leak or 0.0)}."
    if budget.metric == KEPT_BY_RUN:
        return f"Memory has grown by {format_bytes(kept)} since the run began; {allowed}"
    who = "The run" if budget.metric == KEPT_BY_GENERATION else budget.name
    return f"{who} kept {format_bytes(kept)} in one {unit}; {allowed}"


def count_sentence(
    unit: str,
    counts: Sequence[float],
    broken: Sequence[Deviation],
    state: AssertionState,
    *,
    in_part: bool = False,
) -> str:
    """``in_part``: of a long run, of which not every generation is read."""
    if not counts:
        return "It has not been counted there yet."
    said = f"{format_number(counts[-1])} at the newest reading"
    if broken:
        first = broken[0].generation
        where = f"before the first {unit}" if first is None else f"first in {unit} {first}"
        part = f" of the {len(counts):,} that are read of this long run" if in_part else ""
        said += f"; other numbers at {count_of(len(broken), 'reading')}{part}, {where}"
    return f"{said}{'; a collection may still free them' if state == 'undecided' else ''}."
