"""The verdict in one sentence, and the priority of each finding.

There are three priority classes. A finding's class depends on the growth in bytes, on its share of the memory limit and
on the time until memory runs out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from ...snapshot import GRAPH_NODE
from ...text_format import (
    count_of,
    entries_in,
    format_bytes,
    format_change,
    format_count,
    format_range,
    format_rate,
    in_brackets,
    join_processes,
    ordinal,
    seen_of,
    short_name,
)
from ..generation_axis import UNITS_OF_TIME
from ..results import Finding, Interval, Status
from .worker_growth import kept_in_child

# Number of generations that a verdict requires.
MIN_GENERATIONS: Final = 5
# A change over fewer generations means little; if the change may be zero, its interval is reported as well.
_FEW: Final = 8

_OUTSIDE: Final = {
    "native": "memory that no counted Python object explains",
    "allocator_retained": "freed memory in the C allocator",
    "children": "memory of child processes",
    "gpu": "GPU memory",
    "gpu_fragmentation": "reserved but unused GPU memory",
    "shared_memory": "shared memory",
    "external": "memory outside this process",
}

# Used for TensorFlow.js, where the objects cannot be identified.
_UNNAMED: Final = {"objects": "memory outside its tensors", "tensors": "ever larger tensors"}

# Words for the effect of a fix.
EFFECT_WORDS: Final = {
    "helped": "helped", "no_effect": "no effect", "worse": "worse", "undecided": "undecided",
}  # fmt: skip

# Questions of the checklist, and how their answers are shown: a mark for a terminal and a word.
CHECK_QUESTIONS: Final = {
    "gpu": "GPU memory does not keep growing",
    "memory": "Memory does not keep growing",
    "passed": "The run passes the point where it died before",
    "cleanups": "Cleanups run and free something",
}
CHECK_WORDS: Final = {
    "done": ("[x]", "done"), "failed": ("[!]", "failed"), "not_yet": ("[ ]", "not yet"),
    "not_measured": ("[-]", "not measured"),
}  # fmt: skip


def check_lines(checklist: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each question with its mark, followed by an indented line of evidence.

    ``checklist`` is the verdict's checklist in JSON form.
    """
    for item in checklist:
        mark, word = CHECK_WORDS[item["outcome"]]
        yield f"{mark} {check_question(item)}: {word}"
        yield f"       {item['sentence']}"


def check_question(item: Mapping[str, Any]) -> str:
    """Return the statement that a checklist item tests."""
    if item.get("against") == "plan":
        return "Every planned generation has run"
    return CHECK_QUESTIONS[item["check"]]


def effect_lines(effects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each fix with its location, then the rejected alternatives and the effects.

    ``effects`` is the verdict's list of fix effects in JSON form.
    """
    titled = None
    for effect in effects:
        if effect["fix"] != titled:
            yield fix_title(effect)
            if effect["rejected"]:
                yield f"   rejected: {' '.join(effect['rejected'].split())}"
        titled = effect["fix"]
        yield f"   {EFFECT_WORDS[effect['outcome']]}: {effect['sentence']}"


def fix_title(effect: Mapping[str, Any]) -> str:
    """Return the name of a fix with its phase and location."""
    places = [effect[name] for name in ("phase", "location") if effect[name]]
    return f"{effect['fix']} ({', '.join(places)})" if places else str(effect["fix"])


def course_lines(verdict: Mapping[str, Any], unit: str) -> Iterator[str]:
    """Yield sentences about the duration, the time since memory became flat, and forecast accuracy, if known.

    ``verdict`` is in JSON form. A verdict from an older server has fewer fields.
    """
    course = (verdict.get(name) for name in ("duration", "settled_at_generation", "forecast_score"))
    duration, settled, score = course
    if duration is not None:
        yield str(duration["sentence"])
    if settled is not None:
        low, high = round(settled["low"]), round(settled["high"])
        between = "" if low == high else f" (between {low} and {high})"
        yield f"Memory has been flat since {unit} {round(settled['estimate'])}{between}."
    if score is not None:
        yield str(score["sentence"])


def finding_sentence(finding: Finding, unit: str, period: int | None = None) -> str:
    """Return text such as ``train keeps 16 Env per generation: 7.10 GiB per generation since generation 1``."""
    rate = finding.growth_bytes_per_generation.estimate
    size = f"{format_bytes(max(rate, 0.0))} per {unit}"
    since = _since(finding, unit)
    where = finding.phase_path.split("/")[0] if finding.phase_path else finding.phase
    if finding.kind == "count_contract":
        what = short_name(finding.suspects[0].name) if finding.suspects else "a count"
        broken = (
            finding.evidence[0].rstrip(".").split(";")[0]
            if finding.evidence
            else f"{what} broke its bound"
        )
        return f"{broken}{f', after {where}' if where and ' after ' not in broken else ''}{since}"
    if finding.kind == "cyclic_garbage" and rate <= 0:
        return "Reference cycles wait for the collector, and memory swings with them"
    subject = where or "The run"
    if finding.kind == "cyclic_garbage":
        of = f" of {short_name(finding.suspects[0].name)}" if finding.suspects else ""
        return (
            f"{subject} leaves reference cycles{of} that only the collector can free: {size}{since}"
        )
    if finding.unknown == "outside":
        grows = "Memory" if subject == "The run" else f"Memory of {subject}"
        return f"{grows} has grown by {size}{since}; the cause cannot be determined from outside the process"
    if finding.unknown == "rarely_counted":
        keeps = "keeps" if finding.phase else "gains"
        return f"{subject} {keeps} memory that has not been identified yet: {size}{since}"
    if finding.kind in _OUTSIDE or not finding.suspects:
        what = _OUTSIDE.get(finding.kind) or _UNNAMED.get(finding.kind, "memory")
        keeps = "keeps" if finding.phase else "gains"
        who = ", ".join(s.name for s in finding.suspects if s.role == "process")
        if who:
            what = f"{what} ({who})"
        if (kept := kept_in_child(finding)) is not None:
            name, holder, who = kept
            held = f", held by {holder}" if holder else ""
            what = f"{what}, namely {short_name(name)} in {who}{held}"
        library = next((s.name for s in finding.suspects if s.role == "library"), None)
        if library is not None:
            what = f"memory of {library}"
        return f"{subject} {keeps} {what}: {size}{since}"
    return f"{subject} keeps {_amount(finding, unit, period)}: {size}{since}"


def _amount(finding: Finding, unit: str, period: int | None) -> str:
    first = finding.suspects[0]
    count = first.count_per_generation or 0.0
    if first.role == "container":
        return entries_in(count, first.name, unit)
    name = "autograd nodes" if first.name == GRAPH_NODE else short_name(first.name)
    if finding.kind == "graph" and first.name != GRAPH_NODE:
        name += " with their graphs"
    if count <= 0 and finding.kind != "graph":
        return f"{name} objects that grow larger"
    if period is not None:
        return f"{format_count(count * period)} {name} every {ordinal(period)} {unit}"
    return format_rate(count, unit, f"more {name}" if count < 0.95 else name)


def _since(finding: Finding, unit: str) -> str:
    start = finding.started_at_generation
    return "" if start is None else f" since {unit} {round(start.estimate)}"


def summary_sentence(
    status: Status,
    findings: Sequence[Finding],
    *,
    unit: str,
    generations: int,
    growth: Interval | None,
    filling: Sequence[str],
    visible: bool,
    periods: dict[str, int],
    passed: int | None = None,
    ended: bool = False,
) -> str:
    """Return the summary of the entire run.

    ``passed`` is the verdict's ``generations_passed``. ``ended`` means that no more data will arrive.
    """
    active = [f for f in findings if f.status in ("suspected", "confirmed")]
    if active:
        more = len(active) - 1
        tail = f"; and {count_of(more, 'more finding')}" if more else ""
        return _of_whom(active[0], unit, periods) + tail
    change = "" if growth is None else f"{format_change(growth.estimate)} per {unit}"
    seen = seen_of(generations, passed, unit)
    # The only minute so far is still running, or the end of the run cut it short.
    if status == "learning" and unit in UNITS_OF_TIME and generations < 2:
        return nothing_yet(unit, ended=ended)
    if status == "learning" and ended:
        return f"Not judged: the run ended after {seen}, but a verdict needs {count_of(MIN_GENERATIONS, unit)}"
    if status == "learning":
        return f"Learning: {seen}{' seen' if passed is None else ''}, too few to judge"
    if status == "recovered":
        stopped = next(f for f in findings if f.status == "recovered")
        return f"Recovered: the growth has stopped ({_of_whom(stopped, unit, {})})"
    if status == "filling":
        return f"Filling, not leaking: {'; '.join(filling)}"
    if status == "watch":
        watched = next((f for f in findings if f.status == "watch"), None)
        if watched is not None:
            return f"Worth watching: {_of_whom(watched, unit, periods)}"
        return f"Memory grows by {change}, but not long or steadily enough to call it a leak"
    note = _harmless_note(findings, unit)
    if growth is not None and generations < _FEW and growth.low <= 0 < growth.high:
        between = in_brackets(format_range(growth.low, growth.high, format_change))
        so_far = "seen" if ended else "so far"
        return f"No leak {so_far}: memory changes by {change}{between} over only {seen}{note}"
    detail = f": memory changes by {change} over {seen}" if change else ""
    return f"No leak{detail}{note}"


def ended_summary(
    summary: str,
    status: str,
    how: str,
    detail: str = "",
    *,
    for_memory: bool,
    seen: str,
    unit: str,
    growth: float | None,
    is_named: bool,
) -> str:
    """Return the summary of a run that did not finish, including how the run ended.

    A definite ``summary`` is returned unchanged if memory did not end the run. ``how`` is text such as "Killed for
    memory" or "Failed (ValueError)". ``seen`` is text such as "4 generations", or empty if no generation has ended.
    ``is_named`` is True if a finding names what grows.
    """
    ended = f"{how} after {seen}" if seen else f"{how} before the first {unit} ended"
    if detail:
        ended += f" ({detail})"
    change = None if growth is None else f"{format_change(growth)} per {unit}"
    if status == "learning" or (status == "watch" and not is_named):
        if change is not None:
            return f"{ended}; until then memory changed by {change}"
        return f"{ended}, before growth per {unit} could be measured" if seen else ended
    if not for_memory:
        return summary
    if status == "ok" and change is not None:
        return (
            f"{ended}. Memory changed by only {change}: look for code that fills memory within one {unit}, "
            "or for another process that uses memory"
        )
    return f"{ended}. {summary}"


def nothing_yet(unit: str, *, ended: bool = False) -> str:
    """Return the summary of a run in which no generation has ended."""
    if ended:
        return f"No verdict: the run ended before its first {unit} was complete"
    return f"No verdict yet: no {unit} has ended"


def _of_whom(finding: Finding, unit: str, periods: Mapping[str, int]) -> str:
    """Return the sentence about a finding, followed by the process name if the run has several processes."""
    sentence = finding_sentence(finding, unit, periods.get(finding.fingerprint))
    return f"{sentence} ({join_processes(finding.process)})" if finding.process else sentence


def _harmless_note(findings: Sequence[Finding], unit: str) -> str:
    small = next((f for f in findings if f.suspects), None)
    if small is None:
        return ""
    first = small.suspects[0]
    name = first.name if first.role == "container" else short_name(first.name)
    size = format_bytes(max(0.0, small.growth_bytes_per_generation.estimate))
    return f"; {name} grows by {size} per {unit}, which does not matter"


Priority = Literal["critical", "major", "minor"]

# Kinds of findings about device memory, which has its own limit.
OF_DEVICES: Final = ("gpu", "gpu_fragmentation")


@dataclass(frozen=True, slots=True)
class Priorities:
    """Thresholds of the priority classes.

    A finding with at least ``major_bytes`` or ``critical_bytes`` per generation is major or critical regardless of
    the limit. A smaller finding that takes ``share`` of the limit by the planned end is major, and critical if memory
    runs out before that end. Without a plan, the end is assumed to be ``hours`` away.
    """

    major_bytes: float = 1e9
    critical_bytes: float = 5e9
    share: float = 0.10
    hours: float = 24.0


DEFAULTS: Final = Priorities()


@dataclass(frozen=True, slots=True)
class Ahead:
    """The remaining part of a run: up to its planned end or, without a plan, for a fixed number of hours.

    ``generations`` is the number of generations after ``now``. ``left`` is the number of generations until memory runs
    out, or None if memory does not run out.
    """

    limit_bytes: float
    now: float
    generations: float
    left: float | None


def priority(rate: float, limits: Priorities = DEFAULTS) -> Priority:
    """Return the priority class for ``rate``, in bytes per generation."""
    if rate >= limits.critical_bytes:
        return "critical"
    return "major" if rate >= limits.major_bytes else "minor"


def one_worse(grade: Priority) -> Priority:
    return "major" if grade == "minor" else "critical"


def raised(
    findings: Sequence[Finding],
    ahead: Ahead | None,
    on_device: Ahead | None = None,
    limits: Priorities = DEFAULTS,
) -> list[Finding]:
    """Return the findings, with their priorities raised according to the memory limits.

    ``ahead`` applies to the memory of processes, ``on_device`` to the memory of devices.
    """
    order = get_args(Priority)
    found = []
    for each in findings:
        until = on_device if each.kind in OF_DEVICES else ahead
        if until is not None:
            grade = min(each.priority, _by_limit(each, until, limits), key=order.index)
            each = replace(each, priority=grade)
        found.append(each)
    return found


def _by_limit(finding: Finding, ahead: Ahead, limits: Priorities = DEFAULTS) -> Priority:
    """Return the priority class by the share of the limit that the finding will have taken by the end."""
    if finding.status not in ("watch", "suspected", "confirmed"):
        return "minor"
    start: Interval | None = finding.started_at_generation
    since = max(0.0, ahead.now - start.estimate) if start else 0.0
    rate = finding.growth_bytes_per_generation.estimate
    if rate * (since + ahead.generations) < limits.share * ahead.limit_bytes:
        return "minor"
    runs_out = ahead.left is not None and ahead.left <= ahead.generations
    # Growth that is only watched may still stop.
    return "critical" if runs_out and finding.status != "watch" else "major"
