"""The four questions somebody asks after a fix, answered from the run itself, each with its evidence.

They are those of a report on a training that died after 60 episodes: does GPU memory stay within its pattern, is the
pattern of memory consistent, does the run pass the point where it died, and do the cleanups run?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...text_format import (
    count_of,
    format_bytes,
    format_change,
    format_count,
    format_times,
    seen_of,
)
from ..assertions.declared import GENERATIONS
from ..findings.cleanup_effects import Freed, freed_by, freed_in_all
from ..generation_unit import UNITS_OF_TIME
from ..results import CheckItem, CheckOutcome, Finding, HeldAgainst, Verdict
from ..run_history import ProcessHistory, RunHistory, number_of
from ..status import ACTIVE, MIN_GENERATIONS
from ..window import Since, Told

_GPU_KINDS: Final = ("gpu", "gpu_fragmentation")
_DEVICES: Final = ("cuda.", "gpu.", "mps.")
_OF_THIS_PROCESS: Final = (
    ".allocated_bytes", ".reserved_bytes", ".process_bytes", ".driver_bytes",
)  # fmt: skip
_CLEANUPS_TOLD: Final = 3

Answer = tuple[CheckOutcome, str] | tuple[CheckOutcome, str, HeldAgainst | None]
_SOURCES: Final[dict[HeldAgainst, str]] = {"promise": "the fix promised", "plan": "were planned"}


def check_list(
    history: RunHistory, verdict: Verdict, told: Sequence[Told]
) -> tuple[CheckItem, ...]:
    """The four items, always all of them and in this order. ``verdict`` is the run's, but for this list."""
    seen = Since(history, told, 0.0)
    answers = {
        "gpu": _gpu(history, verdict, seen), "memory": _memory(verdict, seen), "passed": _passed(history, seen),
        "cleanups": _cleanups(history),
    }  # fmt: skip
    return tuple(CheckItem(name, *answer) for name, answer in answers.items())  # type: ignore[arg-type]


def _gpu(history: RunHistory, verdict: Verdict, seen: Since) -> Answer:
    tops = [top for process in history.processes for top in _tops(process)]
    if not tops:
        return "not_measured", "GPU memory was not measured: no device was seen."
    top, generation = max(tops, key=lambda found: found[0])
    if top <= 0:
        return "not_measured", "This training uses no GPU memory."
    where = "" if generation is None else f" in {seen.unit} {generation}"
    most = f"the most on one device was {format_bytes(top)}{where}"
    own = [f for f in verdict.findings if f.kind in _GPU_KINDS]
    return _judged(own, seen, "GPU memory", f"GPU memory does not keep growing; {most}.")


def _tops(process: ProcessHistory) -> Iterator[tuple[float, int | None]]:
    """(highest reading, generation of it) of each device series that was read."""
    for name, column in process.series.items():
        if name.startswith(_DEVICES) and name.endswith(_OF_THIS_PROCESS):
            # Without a look at each row: a verdict is made for every snapshot, and a run may have many.
            top = max(filter(None, column), default=None)
            if top is not None:
                yield top, process.generation[column.index(top)]
            elif any(value is not None for value in column):
                yield 0.0, None


def _memory(verdict: Verdict, seen: Since) -> Answer:
    growth = verdict.growth_bytes_per_generation
    if growth is None:
        if seen.generations >= MIN_GENERATIONS:
            return "not_measured", "Private memory was not measured."
        return _too_few(seen)
    own = [f for f in verdict.findings if f.kind not in _GPU_KINDS]
    answer = _judged(own, seen, "Memory", _steady(verdict, seen))
    if answer[0] == "done" and verdict.status == "watch" and not _of_status(own, "watch"):
        change = f"{format_change(growth.estimate)} per {seen.unit}"
        return "not_yet", f"Memory changes by {change}, too short or too unsteady to judge."
    return answer


def _steady(verdict: Verdict, seen: Since) -> str:
    growth, settled = verdict.growth_bytes_per_generation, verdict.settled_at_generation
    change = f"{format_change(growth.estimate)} per {seen.unit}" if growth else "an unknown amount"
    if verdict.status == "filling":
        return f"Memory grows only as declared containers fill; beyond them it changes by {change}."
    if settled is not None and settled.estimate > 0:
        since = f"{seen.unit} {format_count(settled.estimate)}"
        return f"Memory is flat since {since}, and nothing is suspected ({change})."
    return f"Nothing is suspected; memory changes by {change} over {seen_of(seen.generations, seen.passed, seen.unit)}."


def _judged(findings: Sequence[Finding], seen: Since, what: str, steady: str) -> Answer:
    """By the worst of the findings that are about ``what``; ``steady`` is the sentence where there is none."""
    worst = _of_status(findings, *ACTIVE) or _of_status(findings, "watch")
    if worst is not None:
        rate = format_bytes(max(0.0, worst.growth_bytes_per_generation.estimate))
        where = f" in {worst.phase}" if worst.phase else ""
        name = f" ({worst.suspects[0].name})" if worst.suspects else ""
        said = f"{what} grows by {rate} per {seen.unit}{where}{name}: {worst.status}."
        return ("failed" if worst.status in ACTIVE else "not_yet"), said
    if seen.generations < MIN_GENERATIONS:
        return _too_few(seen)
    return "done", steady


def _of_status(findings: Sequence[Finding], *statuses: str) -> Finding | None:
    return next((finding for finding in findings if finding.status in statuses), None)


def _too_few(seen: Since) -> Answer:
    if seen.ended:
        ran = seen_of(seen.generations, seen.passed, seen.unit)
        return "not_measured", f"The run ended after {ran}; {MIN_GENERATIONS} are needed to tell."
    if seen.unit in UNITS_OF_TIME and seen.generations < 2:
        return "not_yet", f"No {seen.unit} has ended yet."
    return (
        "not_yet",
        f"{seen_of(seen.generations, seen.passed, seen.unit)} so far, too few to tell.",
    )


def _passed(history: RunHistory, seen: Since) -> Answer:
    """Beyond where an earlier attempt of this run ended; else as far as a fix promised; else as far as planned.

    Runs before this one are not known here, so the sentence says what it was held against.
    """
    died = _end_of_earlier_attempts(history)
    if died is not None:
        attempt, end, newest = died
        against = f"where attempt {attempt} ended"
        said = (
            f"reached {seen.unit} {newest}; {against} was {seen.unit} {end}"
            if newest is not None
            else against
        )
        if newest is not None and newest > end:
            return "done", f"The run {said}.", "attempt"
        return (
            _short_of(seen),
            f"The run {said}." if newest is not None else f"Nothing has run beyond {against} yet.",
            "attempt",
        )
    goal, source = _goal(history)
    if goal is None:
        return (
            "not_measured",
            "Not known where it died before: promise generations with a fix, or plan a total, to have it checked.",
        )
    against = f"held against the {format_count(goal)} that {_SOURCES[source]}"
    outcome = "done" if seen.complete >= goal else _short_of(seen)
    return outcome, f"{count_of(seen.complete, seen.unit)} complete, {against}.", source


def _short_of(seen: Since) -> CheckOutcome:
    return "failed" if seen.ended else "not_yet"


def _end_of_earlier_attempts(history: RunHistory) -> tuple[int, int, int | None] | None:
    """(attempt that came furthest before the newest, its last generation, the last one of the newest attempt)."""
    ends: dict[int, int] = {}
    for process in history.processes:
        known = [generation for generation in process.generation if generation is not None]
        if known:
            ends[process.attempt] = max(max(known), ends.get(process.attempt, 0))
    newest = max((process.attempt for process in history.processes), default=0)
    earlier = {attempt: end for attempt, end in ends.items() if attempt < newest}
    if not earlier:
        return None
    furthest = max(earlier, key=lambda attempt: (earlier[attempt], attempt))
    return furthest, earlier[furthest], ends.get(newest)


def _goal(history: RunHistory) -> tuple[float | None, HeldAgainst]:
    promised = [
        value
        for event in history.events
        if event.kind == "fix" and isinstance(event.data.get("promises"), Mapping)
        if (value := number_of(event.data["promises"].get(GENERATIONS))) is not None
    ]
    if promised:
        return promised[-1], "promise"
    return history.total, "plan"


def _cleanups(history: RunHistory) -> Answer:
    freed: dict[str, list[Freed]] = {}
    for event in history.events:
        if event.kind == "cleanup" and (size := freed_by(event.data)).known:
            freed.setdefault(event.name, []).append(size)
    if not freed:
        return "not_measured", "No cleanup was recorded: wrap yours in run.cleanup(name)."
    # Those that free nothing first: they are what is to be looked at.
    ranked = sorted(freed, key=lambda name: (_is_useful(freed[name]), -len(freed[name]), name))
    told = "; ".join(_cleanup(name, freed[name]) for name in ranked[:_CLEANUPS_TOLD])
    more = len(ranked) - _CLEANUPS_TOLD
    useful = any(_is_useful(sizes) for sizes in freed.values())
    return ("done" if useful else "failed"), f"{told}{f'; and {more} more' if more > 0 else ''}."


def _is_useful(freed: Sequence[Freed]) -> bool:
    return any(each.something for each in freed)


def _cleanup(name: str, freed: Sequence[Freed]) -> str:
    times = format_times(len(freed))
    vain = sum(not each.something for each in freed)
    total = freed_in_all(freed).words
    sometimes = f", nothing {format_times(vain)}" if 0 < vain < len(freed) else ""
    return f"{name} ran {times} and freed {total}{sometimes}"
