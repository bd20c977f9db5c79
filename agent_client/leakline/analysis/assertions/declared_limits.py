"""The bands, gauge limits and budgets that a run declares, with their readings, titles and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from ...text_format import capital, count_of, format_bytes, format_number, short_name
from ..results import BY_READING, Assertion, AssertionState, Deviation
from ..run_history import RunHistory, Value, amount_of, number_of
from ..timeline import Timeline, lies_within
from ..timeline_analysis import TimelineAnalysis

# Budget metrics: bytes that a phase retains, that a generation adds, and that the run has gained so far.
KEPT_BY_PHASE: Final = "phase.kept_bytes"
KEPT_BY_GENERATION: Final = "generation.kept_bytes"
KEPT_BY_RUN: Final = "run.kept_bytes"
# Metrics that a fix can promise.
GROWTH: Final = "growth_bytes_per_generation"
PHASE_GROWTH: Final = "phase_growth_bytes_per_generation"
PEAK: Final = "peak_bytes"
GPU_PEAK: Final = "gpu_peak_bytes"
JUMP: Final = "max_jump_bytes_per_generation"
GENERATIONS: Final = "generations"
# Number of generations that memory has room for, including completed generations.
POSSIBLE: Final = "possible_generations"
# Prefix of metrics that count the instances of a class alive at a generation's end in any single process.
COUNT: Final = "count:"
SIZES: Final = (GROWTH, PHASE_GROWTH, PEAK, GPU_PEAK, JUMP)
NUMBERS: Final = (GENERATIONS, POSSIBLE)
NAMES: Final = (*SIZES, *NUMBERS)
# Growth of resident memory from one generation end to the next; it is computed, not read.
GENERATION_GROWTH: Final = "generation.growth_bytes"
_RESIDENT: Final = "process.rss_bytes"
# A peak covers the time since the previous snapshot, so a generation's peak is the highest peak of all its
# snapshots.
_PEAK: Final = "peak_bytes"
_GAUGE: Final = "gauge."
# Names that refer to the run or to each of its generations; a phase with the same name takes precedence.
_RUN: Final = "run"
_GENERATION: Final = "generation"
# Upper limit, because a client may send any number of events.
_MAX_OF_AN_ORIGIN: Final = 40

# (generation, amount) for each generation that has a reading
Amounts = list[tuple[int, float]]


def declared_assertions(history: RunHistory) -> tuple[Assertion, ...]:
    """Return the declared bands, gauge limits and budgets, each with its newest bounds.

    Bands are sorted by series and generation. Events without a valid limit are ignored.
    """
    if not any(history.events_of(origin) for origin in ("band", "gauge", "budget")):
        return ()
    of = (history.events, history.processes, history.phases, history.unit)
    return history.said.once(
        "assertions", of, lambda: (*_bands(history), *_gauges(history), *_budgets(history))
    )


def declared_budgets(history: RunHistory) -> tuple[Assertion, ...]:
    return tuple(each for each in declared_assertions(history) if each.origin == "budget")


def _bands(history: RunHistory) -> list[Assertion]:
    found: dict[tuple[str, int | None, int | None], Assertion] = {}
    for event in history.events_of("band"):
        band = _band(event.name, event.data)
        if band is not None:
            found[band.name, band.first, band.last] = band
    newest = list(found.values())[-_MAX_OF_AN_ORIGIN:]
    return sorted(newest, key=lambda b: (b.name, b.first, b.last or math.inf))


def _band(series: str, data: Mapping[str, Any]) -> Assertion | None:
    first, last = _whole(data.get("first")), _whole(data.get("last"))
    low, high = number_of(data.get("low_bytes")), number_of(data.get("high_bytes"))
    if first is None or (low is None and high is None):
        return None
    if last is None and data.get("last") is not None:
        return None
    return Assertion("band", series, series, None, low, high, None, first, last)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and number_of(value) is not None else None


def _gauges(history: RunHistory) -> list[Assertion]:
    found: dict[str, Assertion] = {}
    for event in history.events_of("gauge"):
        limit = number_of(event.data.get("warn_above"))
        if limit is not None:
            found[event.name] = Assertion(
                "gauge", event.name, f"{_GAUGE}{event.name}", None, None, limit
            )
    return list(found.values())[-_MAX_OF_AN_ORIGIN:]


def _budgets(history: RunHistory) -> list[Assertion]:
    found: dict[str, Assertion] = {}
    for event in history.events_of("budget"):
        normal, leak = (amount_of(event.data.get(f"{end}_bytes")) for end in ("normal", "leak"))
        if normal is not None or leak is not None:
            metric = _metric(history, event.name)
            phase = event.name if metric == KEPT_BY_PHASE else None
            found[event.name] = Assertion("budget", event.name, metric, phase, None, normal, leak)
    return list(found.values())[-_MAX_OF_AN_ORIGIN:]


def _metric(history: RunHistory, name: str) -> str:
    if name not in (_RUN, _GENERATION, history.unit) or _is_phase(history, name):
        return KEPT_BY_PHASE
    return KEPT_BY_RUN if name == _RUN else KEPT_BY_GENERATION


def _is_phase(history: RunHistory, name: str) -> bool:
    return any(lies_within(path, name) for path in history.phases) or _has_run(history, name)


def _has_run(history: RunHistory, phase: str) -> bool:
    """Return True if any process took a snapshot in the phase or in a nested phase."""
    return any(
        path and lies_within(path, phase)
        for process in history.processes
        for path in {*process.phase, *process.left_out.phases}
    )


def is_measured(timeline: Timeline, series: str) -> bool:
    source = _RESIDENT if series == GENERATION_GROWTH else series
    return any(value is not None for value in timeline.series.get(source, ()))


def readings_of(timeline: Timeline, series: str, *, highest: bool = False) -> Sequence[Value]:
    """Return one reading per generation, at its end or wherever the series is usually read.

    ``highest``: return the highest reading of each generation instead, as is always done for peaks.
    """
    if series == GENERATION_GROWTH:
        return _gained(timeline)
    if not (highest or series.endswith(_PEAK)):
        return timeline.readings(series)
    column = timeline.series[series]
    most: dict[int, float] = {}
    for generation, value in zip(timeline.generation, column, strict=True):
        if generation is not None and value is not None:
            most[generation] = max(most.get(generation, value), value)
    return [most.get(generation) for generation in timeline.generations]


def _gained(timeline: Timeline) -> Sequence[Value]:
    """Return the growth of resident memory from one generation end to the next.

    The first generation is compared with the baseline. Growth across a resume or a missing reading is None.
    """
    before: Value = None
    if timeline.baseline_row is not None:
        before = timeline.series[_RESIDENT][timeline.baseline_row]
    segment = timeline.segment[timeline.end_rows[0]] if timeline.end_rows else 0
    last = timeline.generations[0] - 1 if timeline.generations else 0
    gained: list[Value] = []
    for generation, row, now in zip(
        timeline.generations, timeline.end_rows, timeline.readings(_RESIDENT), strict=True
    ):
        follows = generation == last + 1 and timeline.segment[row] == segment
        known = follows and now is not None and before is not None
        gained.append(now - before if known and now is not None and before is not None else None)
        before, segment, last = now, timeline.segment[row], generation
    return gained


def kept_amounts(study: TimelineAnalysis, budget: Assertion, end: int) -> Amounts:
    """Return the amounts that count against a budget in the first ``end`` generations of a process."""
    return _KEPT_BY[budget.metric](study, budget.name, end)


def _kept_by_run(study: TimelineAnalysis, _name: str, end: int) -> Amounts:
    """Return the growth since the baseline or, without a baseline, since the end of the first generation."""
    timeline = study.timeline
    if not timeline.private:
        return []
    before = None if timeline.baseline_row is None else timeline.private_rows[timeline.baseline_row]
    begin = timeline.private[0] if before is None else float(before)
    levels = zip(timeline.generations[:end], timeline.private[:end], strict=False)
    return [(generation, level - begin) for generation, level in levels]


def _kept_by_generation(study: TimelineAnalysis, _name: str, end: int) -> Amounts:
    """Return the growth in each generation except the first, when the program builds up lasting state.

    Growth across a missing generation is left out, because it cannot be assigned to a single generation.
    """
    ends = list(zip(study.timeline.generations, study.timeline.private, strict=False))[:end]
    steps = [b - a for (a, _), (b, _) in pairwise(ends)]
    usual = median(steps) if steps else 0
    return [(b, after - before) for (a, before), (b, after) in pairwise(ends) if b - a <= usual]


def _kept_by_phase(study: TimelineAnalysis, name: str, end: int) -> Amounts:
    """Return the bytes that the phase keeps in each generation after its first generation.

    In its first generation, the phase builds up lasting state.
    """
    found: Amounts = []
    for generation, booked in zip(study.timeline.generations[:end], study.booked, strict=False):
        amounts = [amount for path, amount in booked.items() if lies_within(path, name)]
        if amounts:
            found.append((generation, sum(amounts)))
    return found[1:]


_KEPT_BY: Final[Mapping[str, Callable[[TimelineAnalysis, str, int], Amounts]]] = {
    KEPT_BY_RUN: _kept_by_run, KEPT_BY_GENERATION: _kept_by_generation, KEPT_BY_PHASE: _kept_by_phase,
}  # fmt: skip


def added(each: Sequence[Amounts], metric: str) -> Amounts:
    """Return the amounts summed over all processes.

    For `KEPT_BY_RUN`, an ended process still contributes its last amount. For other metrics, an ended process
    contributes nothing.
    """
    generations = sorted({g for amounts in each for g, _ in amounts})
    total = dict.fromkeys(generations, 0.0)
    for amounts in each:
        known, newest = dict(amounts), 0.0
        for generation in generations:
            newest = known.get(generation, newest if metric == KEPT_BY_RUN else 0.0)
            total[generation] += newest
    return list(total.items())


STATE_WORDS: Final = {
    "holds": "holds", "broken": "broken", "above_normal": "more than normal", "open": "still open",
    "undecided": "undecided", "not_measured": "not measured",
}  # fmt: skip


def assertion_lines(checks: Sequence[Mapping[str, Any]], unit: str) -> Iterator[str]:
    """Yield two lines per declared limit: its title and its indented state.

    ``checks``: assertion checks in their JSON form.
    """
    for check in checks:
        yield assertion_title(check, unit)
        yield f"   {STATE_WORDS[check['state']]}: {check['sentence']}"


def assertion_title(check: Mapping[str, Any], unit: str) -> str:
    """Return a title such as ``process.rss_bytes, generations 1 to 5: 30.00 GiB to 40.00 GiB`` or ``Env: 2``."""
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
        span = f"from {unit} {first} onward"
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
        POSSIBLE: f"{unit}s that fit in memory",
    }  # fmt: skip
    return words.get(metric, metric)


def _bounds(check: Mapping[str, Any]) -> str:
    """Return text such as ``2``, ``16 to 17``, ``from 5.00 GiB`` or ``up to 567 (baseline)``."""
    write, low, high = writer_of(check["metric"]), check["low"], check["high"]
    if low is None and high is None:
        return "up to the baseline"
    if low is None:
        return f"up to {write(high)}{'' if check['origin'] in BY_READING else ' (baseline)'}"
    if high is None:
        return f"from {write(low)}"
    return write(low) if low == high else f"{write(low)} to {write(high)}"


def writer_of(series: str) -> Callable[[float], str]:
    """Return the function that formats a series, either as sizes or as plain numbers."""
    sized = series.endswith(("_bytes", ".bytes", "_bytes_per_generation"))
    return format_bytes if sized else format_number


def band_sentence(
    band: Assertion, history: RunHistory, ended: int, known: int, outside: Sequence[Deviation], newest: float
) -> str:  # fmt: skip
    unit = history.unit
    if not ended:
        over = f"the run ended at {unit} {newest:.0f}" if history.ended else "not reached yet"
        if band.first is not None and newest >= band.first:
            over = f"no {unit} in this range was recorded"
        return capital(f"{over}.")
    said = "" if known else f"no reading in {count_of(ended, unit)}"
    if outside:
        said = f"{_ranges(band, outside, unit)}; {known - len(outside)} of {known} within bounds"
    elif known:
        said = (
            f"within bounds in all {known} {unit}s"
            if known > 1
            else f"within bounds in the only {unit} that was read"
        )
    if known < ended and known:
        said += f", {count_of(ended - known, unit)} without a reading"
    return capital(f"{said}{_rest(band, history, newest)}.")


def _ranges(band: Assertion, outside: Sequence[Deviation], unit: str) -> str:
    """Describe where the readings leave the band, and by how much.

    For example: ``below in generations 1 to 5 by up to 27.64 GiB (generation 1), above in generation 9 by 2.00
    GiB``.
    """
    write = writer_of(band.metric)
    parts = []
    for word, sign in (("below", -1), ("above", 1)):
        these = [d for d in outside if d.difference * sign > 0]
        if not these:
            continue
        worst = max(these, key=lambda d: (abs(d.difference), -(d.generation or 0)))
        size = write(abs(worst.difference))
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
    return (
        f"; the run ended {left} before the end of the range"
        if history.ended
        else f"; {left} still to come"
    )


def budget_sentence(budget: Assertion, history: RunHistory, amounts: Amounts, beyond: int) -> str:
    unit = history.unit
    if not amounts:
        if budget.metric != KEPT_BY_PHASE:
            return f"No {unit} can be judged yet."
        if _has_run(history, budget.name):
            return f"{budget.name} has run in only one {unit}; its budget applies from the second {unit} onwards."
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
        said += f"; exceeded in {beyond} of {len(amounts)} {unit}s"
    return f"{said}."


def _against(budget: Assertion, amount: float) -> str:
    normal, leak = (format_bytes(bound or 0.0) for bound in (budget.high, budget.leak))
    state = budget.state_of(amount)
    if state == "broken":
        return f"at least the {leak} that counts as a leak"
    if state == "above_normal":
        less = "" if not budget.leak else f", less than the {leak} that counts as a leak"
        return f"more than the normal {normal}{less}"
    return (
        f"below the {leak} that counts as a leak"
        if budget.high is None
        else f"within the normal {normal}"
    )


def broken_budget_evidence(budget: Assertion, unit: str, kept: float) -> str:
    """Return the sentence of evidence that a broken budget adds to a finding."""
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
    """Return the sentence of a count check.

    ``in_part``: True if the run is so long that only some of its generations are read.
    """
    if not counts:
        return "The type has not been counted yet."
    said = f"{format_number(counts[-1])} at the newest reading"
    if broken:
        first = broken[0].generation
        where = f"before the first {unit}" if first is None else f"first in {unit} {first}"
        part = f" of the {len(counts):,} used from this long run" if in_part else ""
        said += f"; outside the bounds at {count_of(len(broken), 'reading')}{part}, {where}"
    free = "; a garbage collection may still free some of these objects"
    return f"{said}{free if state == 'undecided' else ''}."
