"""The promises of fixes: each is an assertion that is measured from the declaration of its fix on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...text_format import (
    capital,
    count_of,
    format_bytes,
    format_count,
    format_range,
    in_brackets,
    short_name,
)
from ..results import AssertionCheck, AssertionState, Interval
from ..run_history import RunHistory, amount_of
from ..window import MIN_GENERATIONS, Since, Told
from .declared import (
    COUNT,
    GENERATIONS,
    GPU_PEAK,
    GROWTH,
    JUMP,
    NUMBERS,
    PEAK,
    PHASE_GROWTH,
    POSSIBLE,
)

# "About 500 MiB" is kept by 520: no promise is made to the last twentieth.
_ABOUT: Final = 0.05
# Whoever sends events decides how many there are.
_MAX_FIXES: Final = 20
_MAX_CLAIMS: Final = 20
_RESIDENT: Final = ("process.rss_bytes", "process.peak_bytes")
# What the driver says of this process, and what torch took from it, device by device.
_OF_A_DEVICE: Final = (".process_bytes", ".reserved_bytes", ".driver_bytes")

# (what was measured, state, sentence)
Answer = tuple[Interval | None, AssertionState, str]


@dataclass(frozen=True, slots=True)
class Fix:
    """``since``: Unix seconds of its first declaration in this form; what was measured before is not its doing."""

    name: str
    phase: str | None
    location: str | None
    promises: Mapping[str, Any]
    since: float
    rejected: str | None = None


def check_fixes(history: RunHistory, told: Sequence[Told]) -> list[AssertionCheck]:
    """Return every promise of every fix with what was measured. ``told``: each process place at its newest moment."""
    rows = []
    for fix in declared_fixes(history):
        seen = Since(history, told, fix.since)
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
    """The newest form of each fix by name; a resume that declares it again as it was changes nothing."""
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
    """A promised growth is also claimed of the phase the fix names, unless that has a promise of its own."""
    claims: dict[str, float | None] = {}
    for name, value in fix.promises.items():
        claims[str(name)] = amount_of(value)
        if name == GROWTH and fix.phase is not None and PHASE_GROWTH not in fix.promises:
            claims[PHASE_GROWTH] = amount_of(value)
    return list(claims.items())[:_MAX_CLAIMS]


def _answer(seen: Since, fix: Fix, claim: str, promised: float | None) -> Answer:
    if promised is None:
        return None, "undecided", "What is promised is no number."
    if claim.startswith(COUNT):
        return _count(seen, claim.removeprefix(COUNT), promised)
    if claim == PHASE_GROWTH:
        return _phase_growth(seen, fix.phase, promised)
    check = _CHECKS.get(claim)
    if check is None:
        return None, "undecided", "No promise of this name is known."
    return check(seen, promised)


def _growth(seen: Since, promised: float) -> Answer:
    measured = seen.growth()
    if measured is None:
        return _too_few(seen)
    what = "Memory grows by" if measured.estimate > 0 else "Memory does not grow:"
    return _rate(seen, measured, promised, what)


def _phase_growth(seen: Since, phase: str | None, promised: float) -> Answer:
    if phase is None:
        return None, "undecided", "The fix names no phase, so there is none to measure."
    if seen.generations == 0:
        return _too_few(seen)
    times, measured = seen.times_run(phase), seen.phase_growth(phase)
    if times == 0:
        return None, "undecided", f"{phase} never ran: the claim was never tested."
    if measured is None:
        said = f"{phase} ran in {count_of(times, seen.unit)}, too few to tell what it keeps."
        return None, "undecided", said
    what = f"{phase} keeps" if measured.estimate > 0 else f"{phase} keeps nothing:"
    return _rate(seen, measured, promised, what)


def _rate(seen: Since, measured: Interval, promised: float, what: str) -> Answer:
    """Broken where even the low end is clearly above the promise, kept where the high end is not."""
    # A promise of no growth at all means: none that matters.
    bound = promised * (1 + _ABOUT) if promised else seen.growth_that_matters()
    span = in_brackets(format_range(measured.low, measured.high))
    said = f"{what} {format_bytes(measured.estimate)} per {seen.unit}{span}"
    word = format_bytes(promised)
    if measured.low > bound:
        factor = measured.estimate / promised if promised else 0.0
        if factor >= 2:
            return measured, "broken", f"{said}, {format_count(factor)} times the {word} promised."
        return measured, "broken", f"{said}; {word} were promised."
    if measured.high <= bound:
        return measured, "holds", f"{said}; {word} were promised."
    return measured, "undecided", f"{said}, too wide to tell from the {word} promised."


def _too_few(seen: Since) -> Answer:
    if seen.generations == 0:
        return None, "undecided", f"No {seen.unit} has ended with the fix yet."
    needed = f"growth is told from {count_of(MIN_GENERATIONS, seen.unit)} on"
    return (
        None,
        "undecided",
        f"{count_of(seen.generations, seen.unit)} with the fix so far; {needed}.",
    )


def _peak(seen: Since, promised: float) -> Answer:
    tops = seen.highest(_RESIDENT)
    if not tops:
        return None, "undecided", "Resident memory has not been measured with the fix yet."
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
    said = "the most on one GPU was {}" + _at(seen, generation)
    return _at_most(seen, top, promised, said)


def _jump(seen: Since, promised: float) -> Answer:
    found = seen.largest_jump()
    if found is None:
        return _too_few(seen)
    size, before, after = found
    said = f"the largest jump was {{}}, from {seen.unit} {before} to {after}"
    return _at_most(seen, size, promised, said)


def _at_most(seen: Since, measured: float, promised: float, what: str) -> Answer:
    """``what`` begins small and has a place for the size."""
    exact = Interval(measured, measured, measured)
    said = what.format(format_bytes(measured))
    if measured > promised:
        return exact, *_broken(said, format_bytes(promised))
    return exact, *_kept_so_far(seen, said, format_bytes(promised))


def _count(seen: Since, declared: str, promised: float) -> Answer:
    name, word = short_name(declared), format_count(promised)
    found = seen.most_alive(declared, math.floor(promised))
    if found is None:
        return None, "undecided", f"{name} has not been counted with the fix yet."
    most, generation, stays = found
    exact = Interval(most, most, most)
    said = f"{format_count(most)} {name} alive at the end of"
    if most <= promised:
        return exact, *_kept_so_far(seen, f"at most {said} a {seen.unit}", word)
    said += f" {seen.unit} {generation}"
    if stays:
        return exact, *_broken(said, word)
    return exact, "undecided", f"{said}, which a collection may still free; {word} were promised."


def _broken(said: str, word: str) -> tuple[AssertionState, str]:
    return "broken", f"{capital(said)}; {word} at most were promised."


def _kept_so_far(seen: Since, said: str, word: str) -> tuple[AssertionState, str]:
    """A maximum stands for the run that has ended, or for enough of it."""
    if not seen.long_enough:
        return (
            "undecided",
            f"{capital(said)}, but only {count_of(seen.generations, seen.unit)} ended yet.",
        )
    told = capital(said) if seen.ended else f"So far {said}"
    return "holds", f"{told}; {word} at most were promised."


def _generations(seen: Since, promised: float) -> Answer:
    done = seen.complete
    exact, wanted = Interval(done, done, done), f"{format_count(promised)} were promised."
    if done >= promised:
        return exact, "holds", f"{count_of(done, seen.unit)} complete; {wanted}"
    if seen.ended:
        return exact, "broken", f"The run ended after {count_of(done, seen.unit)}; {wanted}"
    return exact, "undecided", f"{count_of(done, seen.unit)} complete so far; {wanted}"


def _possible(seen: Since, promised: float) -> Answer:
    """Kept where memory lasts so long even at the high end of its growth, broken where not even at the low end."""
    growth = seen.growth_under_limit()
    ends = None if growth is None else seen.memory_lasts(growth)
    if growth is None or ends is None:
        return _room_unknown(seen, promised, has_growth=growth is not None)
    expected, low, high = (_in_all(seen, end) for end in ends)
    what = "Memory grows by" if growth.estimate > 0 else "Memory does not grow:"
    said, word = f"{what} {format_bytes(growth.estimate)} per {seen.unit}", format_count(promised)
    if low is None:
        return None, "holds", f"{said} and does not run out; {word} were promised."
    measured, room = None, f"at least {count_of(low, seen.unit)}"
    # JSON has no number for an end that never comes.
    if expected is not None and high is not None:
        measured = Interval(expected, low, high)
        span = in_brackets(format_range(low, high, format_count))
        room = f"{count_of(expected, seen.unit)} in all{span}"
    said += f", which leaves room for {room}"
    if low < promised and (high is None or high >= promised):
        return measured, "undecided", f"{said}, too wide to tell from the {word} promised."
    return measured, "holds" if low >= promised else "broken", f"{said}; {word} were promised."


def _room_unknown(seen: Since, promised: float, *, has_growth: bool) -> Answer:
    if seen.complete >= promised:
        wanted = f"{format_count(promised)} were promised."
        return None, "holds", f"{count_of(seen.complete, seen.unit)} complete; {wanted}"
    if not has_growth:
        return _too_few(seen)
    said = f"No limit of memory is known, so nothing tells how many {seen.unit}s it allows."
    return None, "undecided", said


def _in_all(seen: Since, left: float | None) -> float | None:
    """Whole generations: one that is not finished does not count."""
    return None if left is None or math.isinf(left) else seen.complete + math.floor(left)


def _at(seen: Since, generation: int | None) -> str:
    return "" if generation is None else f" in {seen.unit} {generation}"


_CHECKS: Final[Mapping[str, Callable[[Since, float], Answer]]] = {
    GROWTH: _growth, PEAK: _peak, GPU_PEAK: _gpu_peak, JUMP: _jump, GENERATIONS: _generations,
    POSSIBLE: _possible,
}  # fmt: skip
