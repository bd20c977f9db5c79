"""Evaluation of assertions: declared limits, expected counts and promises made by fixes.

The results form the verdict's ``assertions``. A promise is checked only against readings taken after its fix was
declared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ...snapshot import LARGEST_INTEGER
from ...text_format import (
    capital,
    count_of,
    format_bytes,
    format_count,
    format_range,
    in_brackets,
    short_name,
)
from ..results import BY_READING, Assertion, AssertionCheck, AssertionState, Deviation, Interval
from ..run_history import Expectation, RunHistory, amount_of
from ..timeline import Timeline, timelines_of
from ..timeline_analysis import TimelineAnalysis
from ..window import MIN_GENERATIONS, Since, TimelineMoment
from .declared_limits import (
    COUNT,
    GENERATIONS,
    GPU_PEAK,
    GROWTH,
    JUMP,
    KEPT_BY_PHASE,
    NUMBERS,
    PEAK,
    PHASE_GROWTH,
    POSSIBLE,
    Amounts,
    added,
    band_sentence,
    budget_sentence,
    count_sentence,
    declared_assertions,
    is_measured,
    kept_amounts,
    readings_of,
)
from .expected_counts import Readings as CountReadings
from .expected_counts import applicable_readings, find_violation

# Promises are checked with this tolerance: "about 500 MiB" also covers 520 MiB.
_ABOUT: Final = 0.05
# Upper limits, because a client may send any number of events.
_MAX_FIXES: Final = 20
_MAX_CLAIMS: Final = 20
_RESIDENT: Final = ("process.rss_bytes", "process.peak_bytes")
# Per device: this process's memory as reported by the driver, or the memory that torch reserved.
_OF_A_DEVICE: Final = (".process_bytes", ".reserved_bytes", ".driver_bytes")

# (measured value, state, sentence)
Answer = tuple[Interval | None, AssertionState, str]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix that the program declared.

    ``since`` is the Unix time at which this version of the fix was first declared. Earlier readings do not count.
    """

    name: str
    phase: str | None
    location: str | None
    promises: Mapping[str, Any]
    since: float
    rejected: str | None = None


def _check_fixes(history: RunHistory, timelines: Sequence[TimelineMoment]) -> list[AssertionCheck]:
    """Return one check for each promise of each fix."""
    rows = []
    for fix in declared_fixes(history):
        seen = Since(history, timelines, fix.since)
        for claim, promised in _claims(fix):
            measured, state, sentence = _answer(seen, fix, claim, promised)
            is_least, counted = claim in NUMBERS, claim.removeprefix(COUNT)
            rows.append(
                AssertionCheck(
                    "fix", fix.name, claim if counted == claim else f"type.{counted}.count", fix.phase,
                    promised if is_least else None, None if is_least else promised,
                    location=fix.location, state=state, measured=measured, sentence=sentence,
                )
            )  # fmt: skip
    return rows


def declared_fixes(history: RunHistory) -> tuple[Fix, ...]:
    """Return the newest version of each fix.

    A repeated declaration without changes, for example by a resumed run, does not make a new version.
    """
    found: dict[str, Fix] = {}
    events = [event for event in history.events if event.kind == "fix"]
    for event in sorted(events, key=lambda event: (event.time, event.name, repr(event.data))):
        promises = event.data.get("promises")
        fix = Fix(
            event.name, _text(event.data.get("phase")), _text(event.data.get("location")),
            promises if isinstance(promises, Mapping) else {}, event.time,
            _text(event.data.get("rejected")),
        )  # fmt: skip
        known = found.get(fix.name)
        if known is None or (known.phase, known.promises) != (fix.phase, fix.promises):
            found[fix.name] = fix
    return tuple(found.values())[-_MAX_FIXES:]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _claims(fix: Fix) -> list[tuple[str, float | None]]:
    """Return at most `_MAX_CLAIMS` promises as (metric, promised amount).

    A promise of growth also applies to the phase that the fix names, if that phase has no promise of its own.
    """
    claims: dict[str, float | None] = {}
    for name, value in fix.promises.items():
        claims[str(name)] = amount_of(value)
        if name == GROWTH and fix.phase is not None and PHASE_GROWTH not in fix.promises:
            claims[PHASE_GROWTH] = amount_of(value)
    return list(claims.items())[:_MAX_CLAIMS]


def _answer(seen: Since, fix: Fix, claim: str, promised: float | None) -> Answer:
    if promised is None:
        return None, "undecided", "The promised value is not a number."
    if claim.startswith(COUNT):
        return _count(seen, claim.removeprefix(COUNT), promised)
    if claim == PHASE_GROWTH:
        return _phase_growth(seen, fix.phase, promised)
    check = _CHECKS.get(claim)
    if check is None:
        return None, "undecided", "Leakline cannot check a promise with this name."
    return check(seen, promised)


def _growth(seen: Since, promised: float) -> Answer:
    measured = seen.growth()
    if measured is None:
        return _too_few(seen)
    what = "Memory grows by" if measured.estimate > 0 else "Memory does not grow:"
    return _rate(seen, measured, promised, what)


def _phase_growth(seen: Since, phase: str | None, promised: float) -> Answer:
    if phase is None:
        return (
            None,
            "undecided",
            "The fix names no phase, so growth per phase cannot be checked.",
        )
    if seen.generations == 0:
        return _too_few(seen)
    times, measured = seen.times_run(phase), seen.phase_growth(phase)
    if times == 0:
        return None, "undecided", f"{phase} never ran, so the promise was not tested."
    if measured is None:
        said = f"{phase} ran in {count_of(times, seen.unit)}, too few to measure the memory that it keeps."
        return None, "undecided", said
    what = f"{phase} keeps" if measured.estimate > 0 else f"{phase} keeps nothing:"
    return _rate(seen, measured, promised, what)


def _rate(seen: Since, measured: Interval, promised: float, what: str) -> Answer:
    """Compare a measured rate with the promised rate.

    The promise is broken if the entire interval lies above the bound, and holds if the entire interval lies at or
    below the bound.
    """
    # A promise of no growth allows growth that is too small to matter.
    bound = promised * (1 + _ABOUT) if promised else seen.growth_that_matters()
    span = in_brackets(format_range(measured.low, measured.high))
    said = f"{what} {format_bytes(measured.estimate)} per {seen.unit}{span}"
    word = format_bytes(promised)
    if measured.low > bound:
        factor = measured.estimate / promised if promised else 0.0
        if factor >= 2:
            return measured, "broken", f"{said}, {format_count(factor)} times the {word} promised."
        return measured, "broken", f"{said}; the fix promised {word}."
    if measured.high <= bound:
        return measured, "holds", f"{said}; the fix promised {word}."
    return measured, "undecided", f"{said}, too uncertain to compare with the {word} promised."


def _too_few(seen: Since) -> Answer:
    if seen.generations == 0:
        return None, "undecided", f"No {seen.unit} has ended since the fix was declared."
    needed = f"measuring growth takes at least {count_of(MIN_GENERATIONS, seen.unit)}"
    return (
        None,
        "undecided",
        f"Only {count_of(seen.generations, seen.unit)} since the fix was declared; {needed}.",
    )


def _peak(seen: Since, promised: float) -> Answer:
    tops = seen.highest(_RESIDENT)
    if not tops:
        return (
            None,
            "undecided",
            "Resident memory has not been measured since the fix was declared.",
        )
    where = _at(seen, tops[0][1]) if len(tops) == 1 else ""
    return _at_most(seen, sum(top for top, _ in tops), promised, "memory reached {}" + where)


def _gpu_peak(seen: Since, promised: float) -> Answer:
    names = sorted(
        name
        for name in seen.names()
        if name.startswith(("gpu.", "cuda.", "mps.")) and name.endswith(_OF_A_DEVICE)
    )
    tops = seen.highest(names)
    if not tops:
        return None, "undecided", "GPU memory was not measured."
    top, generation = max(tops, key=lambda found: found[0])
    said = "the highest reading on one GPU was {}" + _at(seen, generation)
    return _at_most(seen, top, promised, said)


def _jump(seen: Since, promised: float) -> Answer:
    found = seen.largest_jump()
    if found is None:
        return _too_few(seen)
    size, before, after = found
    said = f"the largest jump was {{}}, from {seen.unit} {before} to {after}"
    return _at_most(seen, size, promised, said)


def _at_most(seen: Since, measured: float, promised: float, what: str) -> Answer:
    """Compare a measured maximum with the promised maximum.

    ``what`` begins with a lower-case letter and contains a placeholder for the size.
    """
    exact = Interval(measured, measured, measured)
    said = what.format(format_bytes(measured))
    if measured > promised:
        return exact, *_broken(said, format_bytes(promised))
    return exact, *_kept_so_far(seen, said, format_bytes(promised))


def _count(seen: Since, declared: str, promised: float) -> Answer:
    name, word = short_name(declared), format_count(promised)
    found = seen.most_alive(declared, math.floor(promised))
    if found is None:
        return None, "undecided", f"{name} has not been counted since the fix was declared."
    most, generation, stays = found
    exact = Interval(most, most, most)
    said = f"{count_of(most, f'{name} object')} existed at the end of"
    if most <= promised:
        return exact, *_kept_so_far(seen, f"at most {said} a {seen.unit}", word)
    said += f" {seen.unit} {generation}"
    if stays:
        return exact, *_broken(said, word)
    return (
        exact,
        "undecided",
        f"{said}, but a garbage collection may still free some; the fix promised at most {word}.",
    )


def _broken(said: str, word: str) -> tuple[AssertionState, str]:
    return "broken", f"{capital(said)}; the fix promised at most {word}."


def _kept_so_far(seen: Since, said: str, word: str) -> tuple[AssertionState, str]:
    """Return "holds", or "undecided" if too few generations have ended to rely on a maximum."""
    if not seen.long_enough:
        return (
            "undecided",
            f"{capital(said)}, but this covers only {count_of(seen.generations, seen.unit)}.",
        )
    sentence = capital(said) if seen.ended else f"So far {said}"
    return "holds", f"{sentence}; the fix promised at most {word}."


def _generations(seen: Since, promised: float) -> Answer:
    done = seen.complete
    exact, wanted = Interval(done, done, done), f"the fix promised {format_count(promised)}."
    if done >= promised:
        return exact, "holds", f"Completed {count_of(done, seen.unit)}; {wanted}"
    if seen.ended:
        return exact, "broken", f"The run ended after {count_of(done, seen.unit)}; {wanted}"
    return exact, "undecided", f"Completed {count_of(done, seen.unit)} so far; {wanted}"


def _possible(seen: Since, promised: float) -> Answer:
    """Check whether memory has room for the promised number of generations.

    The promise holds if even the fastest likely growth leaves enough room. It is broken if even the slowest likely
    growth leaves too little room.
    """
    growth = seen.growth_under_limit()
    ends = None if growth is None else seen.memory_lasts(growth)
    if growth is None or ends is None:
        return _room_unknown(seen, promised, has_growth=growth is not None)
    expected, low, high = (_in_all(seen, end) for end in ends)
    what = "Memory grows by" if growth.estimate > 0 else "Memory does not grow:"
    said, word = f"{what} {format_bytes(growth.estimate)} per {seen.unit}", format_count(promised)
    if low is None:
        return None, "holds", f"{said}, so it does not run out; the fix promised {word}."
    measured, room = None, f"at least {count_of(low, seen.unit)}"
    # JSON cannot represent infinity, so there is no interval if the limit may never be reached.
    if expected is not None and high is not None:
        measured = Interval(expected, low, high)
        span = in_brackets(format_range(low, high, format_count))
        room = f"{count_of(expected, seen.unit)} in all{span}"
    said += f", which leaves room for {room}"
    if low < promised and (high is None or high >= promised):
        return measured, "undecided", f"{said}, too uncertain to compare with the {word} promised."
    return measured, "holds" if low >= promised else "broken", f"{said}; the fix promised {word}."


def _room_unknown(seen: Since, promised: float, *, has_growth: bool) -> Answer:
    if seen.complete >= promised:
        wanted = f"the fix promised {format_count(promised)}."
        return None, "holds", f"Completed {count_of(seen.complete, seen.unit)}; {wanted}"
    if not has_growth:
        return _too_few(seen)
    said = f"The memory limit is unknown, so the number of {seen.unit}s that fit in memory is unknown too."
    return None, "undecided", said


def _in_all(seen: Since, left: float | None) -> float | None:
    """Return the total number of generations that fit in memory, or None if unlimited or unknown."""
    return None if left is None or math.isinf(left) else seen.complete + math.floor(left)


def _at(seen: Since, generation: int | None) -> str:
    return "" if generation is None else f" in {seen.unit} {generation}"


_CHECKS: Final[Mapping[str, Callable[[Since, float], Answer]]] = {
    GROWTH: _growth, PEAK: _peak, GPU_PEAK: _gpu_peak, JUMP: _jump, GENERATIONS: _generations,
    POSSIBLE: _possible,
}  # fmt: skip


# Maximum number of rows per origin; each process has its own row.
_MAX_OF_AN_ORIGIN: Final = 80
_MAX_DEVIATIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Readings:
    """The amounts to compare with an assertion, from one process or summed over all processes.

    ``ended`` is the number of ended generations in the assertion's range. ``newest`` is the newest generation, even
    outside that range. ``process`` is None if the run has only one process, or if the amounts are sums.
    """

    amounts: Amounts
    ended: int
    newest: float = -math.inf
    process: str | None = None
    is_measured: bool = True


def check_assertions(
    history: RunHistory, timelines: Sequence[TimelineMoment]
) -> tuple[AssertionCheck, ...]:
    """Return the checks of all assertions.

    Bands, gauges and budgets come first, then the promises of fixes, and then counts. Broken counts precede other
    counts.
    """
    studies = [study for study, _ in timelines]
    found: dict[str, list[AssertionCheck]] = {"band": [], "gauge": [], "budget": []}
    for assertion in declared_assertions(history):
        rows = found[assertion.origin]
        if len(rows) < _MAX_OF_AN_ORIGIN:
            readings = band_readings if assertion.origin in BY_READING else _budget_readings
            rows += [check(history, assertion, each) for each in readings(assertion, studies)]
    found["fix"] = _check_fixes(history, timelines)
    found["count"] = _in_order(check_counts(history, [study.timeline for study in studies]))
    return tuple(
        row
        for origin, rows in found.items()
        for row in (rows if origin == "fix" else rows[:_MAX_OF_AN_ORIGIN])
    )


def _in_order(counts: Sequence[AssertionCheck]) -> list[AssertionCheck]:
    """Put broken checks first, and alternate between classes among checks of equal rank.

    Cutting the list then drops as few classes as possible.
    """
    before = Counter[tuple[bool, str, str]]()
    ranked = []
    for each in counts:
        which = each.state != "broken", each.origin, each.name
        ranked.append((which[0], before[which], each))
        before[which] += 1
    return [each for _, _, each in sorted(ranked, key=lambda found: found[:2])]


def _checked(assertion: Assertion, **found: Any) -> AssertionCheck:
    return AssertionCheck(**asdict(assertion), **found)


def _exactly(value: float | None) -> Interval | None:
    return None if value is None else Interval(value, value, value)


def band_readings(band: Assertion, studies: Sequence[TimelineAnalysis]) -> list[Readings]:
    measuring = [study.timeline for study in studies if is_measured(study.timeline, band.metric)]
    found = []
    for timeline in measuring:
        each = readings_of(timeline, band.metric, highest=band.origin == "gauge")
        values = dict(zip(timeline.generations, each, strict=True))
        ended = [g for g in timeline.generations if band.covers(g)]
        known = [(g, float(v)) for g in ended if (v := values[g]) is not None]
        newest = timeline.generations[-1] if timeline.generations else -math.inf
        found.append(
            Readings(known, len(ended), newest, timeline.name if len(measuring) > 1 else None)
        )
    return found or [Readings([], 0, is_measured=False)]


def _budget_readings(budget: Assertion, studies: Sequence[TimelineAnalysis]) -> list[Readings]:
    """Return one entry per process that ran the phase.

    For other budgets, return one entry for the entire run.
    """
    each = [(s.timeline.name, kept_amounts(s, budget, len(s.timeline))) for s in studies]
    if budget.metric != KEPT_BY_PHASE:
        amounts = added([amounts for _, amounts in each], budget.metric)
        return [Readings(amounts, len(amounts))]
    ran = [(name, amounts) for name, amounts in each if amounts] or each[:1]
    return [Readings(a, len(a), process=name if len(ran) > 1 else None) for name, a in ran]


def check(history: RunHistory, assertion: Assertion, readings: Readings) -> AssertionCheck:
    amounts, is_band = readings.amounts, assertion.origin in BY_READING
    states = [assertion.state_of(amount) for _, amount in amounts]
    beyond = [each for each, state in zip(amounts, states, strict=True) if state != "holds"]
    outside = [Deviation(g, v, assertion.difference(v)) for g, v in beyond] if is_band else []
    worst_at, worst = max(
        beyond if is_band else amounts,
        key=lambda each: (abs(assertion.difference(each[1])) if is_band else each[1], -each[0]),
        default=(None, None),
    )
    is_open = assertion.origin == "band" and not history.ended
    is_open = is_open and (assertion.last is None or readings.newest < assertion.last)
    state: AssertionState = "holds" if worst is None else assertion.state_of(worst)
    if not amounts:
        is_early = is_band and readings.is_measured and not readings.ended
        state = "open" if is_early else "not_measured"
    elif is_open and state == "holds":
        state = "open"
    if not readings.is_measured:
        sentence = f"{assertion.metric} is not measured in this run."
    elif is_band:
        sentence = band_sentence(
            assertion, history, readings.ended, len(amounts), outside, readings.newest
        )
    else:
        sentence = budget_sentence(assertion, history, amounts, len(beyond))
    return _checked(
        assertion, process=readings.process, state=state,
        measured=_exactly(amounts[-1][1] if amounts else None), worst=worst, worst_generation=worst_at,
        violations=len(beyond), checked=len(amounts), deviations=tuple(outside[:_MAX_DEVIATIONS]),
        sentence=sentence,
    )  # fmt: skip


def check_counts(
    history: RunHistory, timelines: Sequence[Timeline] | None = None
) -> tuple[AssertionCheck, ...]:
    """Return a check of each declared or accepted count, for each matching type in each process.

    A count without a matching type gets one check with the state ``not_measured``.
    """
    timelines = timelines_of(history) if timelines is None else timelines
    rows: list[AssertionCheck] = []
    matched = set()
    for timeline in timelines:
        for readings in applicable_readings(timeline, history.expectations):
            matched.add((readings.expectation.type, readings.expectation.after))
            process = timeline.name if len(timelines) > 1 else None
            rows.append(_check_count(history, timeline, readings, process))
    sentence = count_sentence(history.unit, (), (), "not_measured")
    never = [e for e in history.expectations if (e.type, e.after) not in matched]
    rows += [_checked(_counted(e, e.type), state="not_measured", sentence=sentence) for e in never]
    return tuple(rows)


def _counted(expected: Expectation, name: str) -> Assertion:
    is_unread = expected.baseline and expected.high >= LARGEST_INTEGER
    return Assertion(
        "accepted" if expected.accepted else "expect", name, f"type.{name}.count", expected.after,
        None if expected.baseline else expected.low, None if is_unread else expected.high,
    )  # fmt: skip


def _check_count(
    history: RunHistory, timeline: Timeline, readings: CountReadings, process: str | None
) -> AssertionCheck:
    assertion = _counted(readings.expectation, readings.type)
    broken = [
        Deviation(timeline.generation[row], count, off)
        for row, count in zip(readings.rows, readings.counts, strict=True)
        if (off := assertion.difference(count))
    ]
    violation = find_violation(timeline, readings, len(timeline.kind) - 1)
    state: AssertionState = "holds" if readings.counts else "not_measured"
    if violation is not None:
        state = "broken" if violation.proven or not violation.above else "undecided"
    return _checked(
        assertion, process=process, state=state,
        measured=_exactly(readings.counts[-1] if readings.counts else None),
        violations=len(broken), checked=len(readings.counts), deviations=tuple(broken[:_MAX_DEVIATIONS]),
        sentence=count_sentence(
            history.unit, readings.counts, broken, state, in_part=bool(timeline.whole_from)
        ),
    )  # fmt: skip
