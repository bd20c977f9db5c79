"""Builds findings from causes and their status: ranked suspects, evidence, advice and priority."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...snapshot import GRAPH_NODE, Event
from ...text_format import (
    format_bytes,
    format_change,
    format_count,
    format_range,
    format_rate,
    format_share,
    format_times,
    in_brackets,
    ordinal,
    short_name,
)
from ..assertions.expected_counts import expected_text
from ..attribution.candidates import (
    OF_OTHERS,
    Candidate,
    born_in,
    first_position,
    grows_larger,
    is_of_the_program,
    series_of,
)
from ..attribution.causes import SMALL, Cause, brings_some, holds
from ..memory.memory_by_phase import NO_PHASE, executions_each, without_give_and_take
from ..memory.memory_kinds import (
    FILES_OF_RUN,
    FILES_OF_USER,
    SLAB,
    GrowingChildren,
    copies_pages,
    growing_children,
    growing_lines,
    part_that_grows,
)
from ..results import SEVERITY, Finding, Interval, Kind, Role, Status, Suspect, Unknown
from ..run_history import HEAP_BYTES, KEPT, RESIDENT_BYTES, TENSOR, UNRELIABLE
from ..statistics.trend import Slope
from ..status import ACTIVE, Standing
from ..timeline import Timeline, top_level
from ..timeline_analysis import Assessed, TimelineAnalysis
from .advice import advice_for
from .cleanup_effects import deeper, is_deeper
from .verdict_summary import Priorities, one_worse, priority
from .worker_growth import scans_of, suspects_in_children

_MAX_SUSPECTS: Final = 8
# A process is named in a merged finding if its growth is at least this share of the fastest-growing process's growth.
_NAMED: Final = 0.05
# This series is read at each census; two readings show what has grown between the two censuses.
_COUNTED: Final = "python.objects"
_LOOKS_THAT_TELL: Final = 2
# A phase counts as charged with growth at or above the first share, and as hardly charged below the second share.
_CHARGED: Final = 0.5
_HARDLY_CHARGED: Final = 0.1
_CONFIDENCE: Final[dict[Status, float]] = {
    "confirmed": 0.99, "suspected": 0.90, "recovered": 0.90, "watch": 0.60, "filling": 0.60,
    "ok": 0.90, "learning": 0.30,
}  # fmt: skip
_UNKNOWN: Final[dict[Unknown, str]] = {
    "outside": "The process is observed from outside, where Python objects cannot be counted, "
    "so it is not known what grows.",
    "rarely_counted": "Since the growth began, objects have been counted too rarely to identify what grows.",
}


_BEHIND: Final[dict[Kind, str]] = {
    "native": "The objects hold native memory, whose size is not visible to Python.",
    "allocator_retained": "The C allocator keeps the memory freed around retained objects, "
    "and that memory grows with their number.",
}

_OF_CHANNEL: Final = {
    FILES_OF_RUN: "Files in /dev/shm that processes of this run created or had open grow.",
    FILES_OF_USER: "Files in /dev/shm of this run's user grow; which program created them is not known.",
    SLAB: "The kernel's own memory (slab) in this container grows, and counts towards the container's limit.",
}


_MAPPINGS: Final = {
    "heap": "the heap of the C allocator",
    "anonymous": "anonymous mappings, such as large blocks and pools of libraries",
    "stacks": "thread stacks",
    "files": "modified pages of mapped files",
}


def interval(slope: Slope) -> Interval:
    return Interval(slope.estimate, slope.low, slope.high)


def build_finding(
    study: TimelineAnalysis, standing: Standing, several: bool, limits: Priorities
) -> Finding:
    """Return the finding for a cause and its status. ``several``: whether the run has several processes."""
    a = standing.assessed
    cause = a.cause
    holder = _holder(study, cause)
    children, library = _children(study, a), _library(study, a)
    kept = suspects_in_children(_scans(study, a), children.suspects)
    if kept == () and copies_pages(study.timeline, a.start and a.start[0], cause.rate.estimate):
        # The children may only read objects of this process, and stop growing once they have read all of them.
        standing = replace(standing, status=min(standing.status, "suspected", key=SEVERITY.index))
    named = (kept or children.suspects) if library is None else (library,)
    suspects = (*named, *_suspects(study, cause))[:_MAX_SUSPECTS]
    finding = Finding(
        fingerprint=standing.fingerprint,
        status=standing.status,
        kind="count_contract" if only_contract(a) else cause.kind,
        phase=cause.place.phase,
        phase_share=_rounded(cause.place.share),
        suspects=suspects,
        growth_bytes_per_generation=interval(cause.rate),
        started_at_generation=None if a.start is None else Interval(*a.start),
        confidence=_confidence(standing),
        evidence=_evidence(study, standing, children),
        advice=advice_for(
            a, holder, study.timeline, study.facts.from_outside, library.name if library else ""
        )
        if standing.status not in ("ok", "filling")
        else (),
        phase_path=cause.place.path,
        priority=priority(cause.rate.estimate, limits),
        process=a.process if several else None,
        unknown=_unknown(study, a),
    )
    if finding.status in ACTIVE and a.scale.is_material(cause.rate.estimate, a.window):
        return deeper(finding, study.history.events_of("cleanup"))
    return finding


def only_contract(a: Assessed) -> bool:
    """Return True if a count violates its expectation but does not rise along with memory."""
    owner = a.cause.owner
    if owner is None or owner.violation is None or "counts" in a.witnesses:
        return False
    return not (owner.growth.slope > 0 and a.cause.rate.estimate > 0)


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(min(1.0, share), 3)


def _holder(study: TimelineAnalysis, cause: Cause) -> str | None:
    """Return the path that holds the owner, or None if no path is known.

    If the path is in a library, prefer the program's own container that grows with the owner.
    """
    owner = cause.owner
    path = None if owner is None else study.facts.holders.get(owner.name)
    if owner is None or path is None or is_of_the_program(path):
        return path
    kept = [m.name for m in cause.members if m.role == "container" and _is_of(m, owner)]
    return next((name for name in kept if is_of_the_program(name)), path)


def _suspects(study: TimelineAnalysis, cause: Cause) -> tuple[Suspect, ...]:
    found: list[Suspect] = []
    for position, member in enumerate(of_note(cause)):
        if position and member.role == "container" and not _is_of(member, cause.members[0]):
            continue
        if any(s.name == member.name for s in found):
            continue
        found.append(
            Suspect(
                member.name,
                member.role,
                _count_rate(member),
                _rate_of_member(cause, member, position),
            )
        )
        path = study.facts.holders.get(member.name) or member.holder
        if position == 0 and path is not None:
            found.append(Suspect(path, "holder", _count_rate(member), None))
    found += _kept_in(study, cause)
    # A container is listed next to the objects that it holds, to show where they are kept.
    head, tail = found[:1], found[1:]
    tail.sort(key=_order_behind)
    return tuple((head + tail)[:_MAX_SUSPECTS])


def _is_of(container: Candidate, owner: Candidate) -> bool:
    return holds(container, owner) or brings_some(container, owner)


def _order_behind(suspect: Suspect) -> int:
    """Return the sort key of a suspect after the owner.

    The program's holders and containers come first, then holders and containers in libraries, then types.
    """
    if suspect.role == "holder":
        return 0 if is_of_the_program(suspect.name) else 2
    if suspect.role == "container":
        return 1 if is_of_the_program(suspect.name) else 3
    return 4


def _children(study: TimelineAnalysis, a: Assessed) -> GrowingChildren:
    if a.cause.kind != "children":
        return GrowingChildren()
    since = None if a.start is None else a.start[0]
    return growing_children(study.timeline, since, a.cause.rate.estimate)


def _scans(study: TimelineAnalysis, a: Assessed) -> list[Event]:
    """Return the scans of child processes since the start of the growth."""
    timeline, scans = study.timeline, scans_of(study.history)
    if a.start is not None and scans:
        first = bisect_left(timeline.generations, a.start[0], 0, len(timeline) - 1)
        since = timeline.time[timeline.end_rows[first]]
        scans = [event for event in scans if event.time >= since]
    return scans


def _library(study: TimelineAnalysis, a: Assessed) -> Suspect | None:
    """Return the library whose statistics or allocations explain growth that no counted object explains."""
    if a.cause.kind != "native":
        return None
    since, rate = None if a.start is None else a.start[0], a.cause.rate.estimate
    found = part_that_grows(study.timeline, "library", since, rate)
    found = found or part_that_grows(study.timeline, "malloc", since, rate)
    return found and Suspect(found[0], "library", None, round(found[1], 1))


def of_note(cause: Cause) -> list[Candidate]:
    """Return the members, except plain types whose measured bytes are a negligible part of the growth.

    Every program, including this client, creates numbers and strings.
    """
    least = SMALL * cause.rate.estimate
    return [
        member
        for position, member in enumerate(cause.members)
        if not position
        or member.family != "plain"
        or member.declared
        or member.violation is not None
        or member.bytes_rate is None
        or member.bytes_rate >= least
    ]


def _kept_in(study: TimelineAnalysis, cause: Cause) -> list[Suspect]:
    """Return the types found inside the owner, if the owner is a container and no growing type is known."""
    owner = cause.owner
    if owner is None or owner.role != "container" or any(m.role == "type" for m in cause.members):
        return []
    return [Suspect(name, "type") for name in study.facts.types_in(owner.name)]


def _count_rate(member: Candidate) -> float:
    return round(member.growth.slope, 3)


def _rate_of_member(cause: Cause, member: Candidate, position: int) -> float | None:
    """Return the finding's total rate for the owner, and the measured rate for any other member."""
    if position == 0 and cause.rate.estimate > 0:
        return round(cause.rate.estimate, 1)
    return None if member.bytes_rate is None else round(member.bytes_rate, 1)


def _confidence(standing: Standing) -> float:
    base = _CONFIDENCE[standing.status]
    if standing.status == "suspected":
        base = min(0.98, 0.85 + 0.03 * len(standing.assessed.witnesses))
    return round(base, 2)


def _evidence(
    study: TimelineAnalysis, standing: Standing, children: GrowingChildren
) -> tuple[str, ...]:
    a, unit = standing.assessed, study.history.unit
    lines = [a.note] if a.note else []
    if a.waiting is not None:
        lines.append(a.waiting.sentence(unit))
    lines += [*_contract_lines(a), *_count_lines(study, a)]
    lines += [*_memory_lines(a, standing.confirmations, unit), *_explained_lines(study, a, unit)]
    lines += _mapping_lines(study, a, unit)
    lines += [*growing_lines(children, unit), *_phase_lines(a), *_charged_lines(study, a)]
    lines += _upper_bound_lines(study, a)
    if standing.status == "ok" and a.cause.members:
        lines.append(_harmless(a, unit))
    if standing.status == "recovered":
        lines.append("The growth has stopped.")
    if standing.status == "filling":
        lines.append(f"The growth slows down: {ceiling_sentence(a, unit)}.")
    return tuple(lines)


def ceiling_sentence(a: Assessed, unit: str) -> str:
    """Return text such as ``app.Memory.seen holds 9,196 of about 12,300, level at about generation 20``."""
    owner, ceiling = a.cause.owner, a.ceiling
    assert owner is not None and ceiling is not None
    now, level = format_count(ceiling.count), format_count(float(f"{ceiling.level:.3g}"))
    amount = f"{now} of about {level}"
    if owner.role == "container":
        what = f"{owner.name} holds {amount}"
    else:
        what = f"{amount} {short_name(owner.name)} objects exist"
    return f"{what}, level at about {unit} {round(ceiling.generation)}"


def _upper_bound_lines(study: TimelineAnalysis, a: Assessed) -> list[str]:
    owner = a.cause.owner
    if owner is None or owner.name != TENSOR:
        return []
    # Events record changes only, so any event means that a part of the run is unreliable.
    changes = [
        e for e in study.history.events_of("mark") if isinstance(e.data.get(UNRELIABLE), bool)
    ]
    if changes:
        when = "For part of this run,"
    elif study.history.environment.get(UNRELIABLE) is True:
        when = "On this backend,"
    else:
        return []
    return [
        f"{when} TensorFlow.js reports only an upper bound of its memory: "
        "the collector may already have freed some of that memory."
    ]


def _contract_lines(a: Assessed) -> list[str]:
    found = []
    for member in a.cause.members:
        v = member.violation
        if v is not None:
            lasting = v.proven and a.cause.kind != "cyclic_garbage"
            outlived = "; the surplus outlived a collection or was seen again" if lasting else ""
            how = "accepted as" if v.expectation.accepted else "declared"
            bound = f"{how} {expected_text(v.expectation)}"
            found.append(
                f"{short_name(v.type)} count is {format_count(v.count)}, {bound}{outlived}."
            )
    return found


def _count_lines(study: TimelineAnalysis, a: Assessed) -> list[str]:
    found, unit = [], study.history.unit
    for member in of_note(a.cause)[:3]:
        g = member.growth
        if grows_larger(member):
            found.append(
                f"The number of {short_name(member.name)} objects does not grow, but the objects grow larger."
            )
            continue
        named = _named(member, a.cause.members)
        what = f"{named} grows by {format_rate(g.slope, unit)}"
        if g.pattern == "constant":
            each = _per_execution(study.timeline, member)
            found.append(f"{what}, the same in each of the last {g.rises} {unit}s{each}.")
        elif g.pattern == "periodic":
            beat = f"every {ordinal(g.period or 0)} {unit}, seen {format_times(g.rises)}"
            found.append(f"{named} grows by {format_count(g.each)} {beat}.")
        elif g.pattern == "irregular" and g.rises >= 3:
            found.append(f"{what} on average: {g.rises} rises, never reversed.")
        elif g.pattern == "noisy":
            found.append(f"{what}, despite noise.")
        elif g.rises == 1 and g.slope > 0:
            found.append(f"{named} rose by {format_count(g.each)}.")
    return found


def _per_execution(timeline: Timeline, member: Candidate) -> str:
    """Return text about the growth per execution of the member's phase.

    Return an empty string if the number of executions per generation varies or is below two.
    """
    path, growth = member.place.path or member.place.phase, member.growth
    times = None if path is None else executions_each(timeline, path, growth.start, len(timeline))
    if times is None or times < 2:
        return ""
    each = format_count(growth.slope / times)
    return f": {each} per execution of {path}, which ran {format_times(times)} in each"


def _named(member: Candidate, members: Sequence[Candidate]) -> str:
    if member.role == "container":
        return f"The length of {member.name}"
    if member.name == GRAPH_NODE:
        held = f", which {member.holder} holds," if member.holder else ""
        return f"The length of the longest chain of autograd nodes{held}"
    graph = ""
    if member.family == "graph":
        graph = " with a graph"
    elif any(m.family == "graph" and m.name == member.name for m in members):
        graph = " without a graph"
    return f"The number of {short_name(member.name)}{graph}"


def _memory_lines(a: Assessed, in_a_row: int, unit: str) -> list[str]:
    rate = a.cause.rate
    if a.garbage is not None:
        return [
            f"The collector frees {format_count(a.garbage)} objects in reference cycles per {unit}, "
            "and memory swings with these collections."
        ]
    if rate.points < 2 or rate.estimate <= 0:
        return []
    spread = format_range(rate.low, rate.high)
    spread = in_brackets(f"{spread}, 90 %" if spread else "")
    found = [f"Memory grows by {format_change(rate.estimate)} per {unit}{spread}."]
    if a.rise.window:
        times = ", seen once" if in_a_row == 1 else f", seen {format_times(in_a_row)} in a row"
        # Without confirmations the growth has only just been detected and has not been seen again.
        found.append(
            f"The rise holds over {a.rise.generations} {unit}s{times if in_a_row else ''}."
        )
    return found


def _explained_lines(study: TimelineAnalysis, a: Assessed, unit: str) -> list[str]:
    cause = a.cause
    if cause.kind == "native":
        unknown, library = _unknown(study, a), _library(study, a)
        if library is not None:
            size = library.bytes_per_generation or 0.0
            share = min(1.0, size / cause.rate.estimate)
            what = f"The memory in use that {library.name} reports grows by {format_bytes(size)} per {unit}"
            if study.timeline.has(f"malloc.{library.name}.bytes"):
                what = f"{library.name} keeps {format_bytes(size)} more per {unit}, allocated with malloc"
            return [f"{what}: {format_share(share)} of the growth."]
        return [_UNKNOWN[unknown] if unknown else "No counted Python object explains the growth."]
    if cause.kind == "tensors" and cause.owner is None:
        return ["The number of tensors does not grow with memory, but the tensors grow larger."]
    if a.channel == HEAP_BYTES:
        return ["The JavaScript heap grows: it holds objects that are not tensors."]
    if a.channel == KEPT:
        return [
            "The memory that V8 keeps after a collection grows: it holds objects and buffers that are not tensors."
        ]
    if a.channel == RESIDENT_BYTES:
        return ["Resident memory grows even if tensors are subtracted."]
    if cause.kind == "allocator_retained":
        return ["The C allocator keeps freed memory: its unused memory grows at the same rate."]
    if a.channel == FILES_OF_USER and cause.kind == "shared_memory":
        return [f"Files in /dev/shm grow only while {cause.place.phase} runs."]
    if a.channel in _OF_CHANNEL:
        return [_OF_CHANNEL[a.channel]]
    if cause.kind == "gpu_fragmentation":
        return ["Reserved device memory grows, but live tensors do not."]
    if a.channel.startswith("gpu.") and a.channel.endswith(".outside_bytes"):
        return [
            "The driver counts this memory but torch's allocator does not: "
            "it belongs to contexts, NCCL or other libraries."
        ]
    behind = [_BEHIND[cause.behind]] if cause.behind is not None else []
    if cause.measured is None or cause.rate.estimate <= 0:
        return behind
    share = min(1.0, cause.measured / cause.rate.estimate)
    return [
        *behind,
        f"Measured objects explain {format_share(share)} of the growth: {format_bytes(cause.measured)} per {unit}.",
    ]


def _mapping_lines(study: TimelineAnalysis, a: Assessed, unit: str) -> list[str]:
    if "native" not in (a.cause.kind, a.cause.behind):
        return []
    since, rate = None if a.start is None else a.start[0], a.cause.rate.estimate
    lines = []
    if a.cause.behind and (found := part_that_grows(study.timeline, "malloc", since, rate)):
        lines = [
            f"{found[0]} keeps {format_bytes(found[1])} more per {unit}, allocated with malloc."
        ]
    found = part_that_grows(study.timeline, "mapping", since, rate)
    if found is None:
        return lines
    part, own = found
    lines += [f"The growth is in {_MAPPINGS.get(part, part)} ({format_change(own)} per {unit})."]
    return lines


def _unknown(study: TimelineAnalysis, a: Assessed) -> Unknown | None:
    if a.cause.kind != "native" or _library(study, a) is not None:
        return None
    if study.facts.from_outside:
        return "outside"
    return "rarely_counted" if _counted_too_rarely(study.timeline, a) else None


def _counted_too_rarely(timeline: Timeline, a: Assessed) -> bool:
    """Return True if the heap is scanned, but fewer than two scans have seen the growth."""
    if not timeline.has(_COUNTED):
        return False
    at, _ = timeline.points(_COUNTED)
    return sum(a.start is None or x >= a.start[0] - 1 for x in at) < _LOOKS_THAT_TELL


def _phase_lines(a: Assessed) -> list[str]:
    place = a.cause.place
    if place.phase is None:
        return []
    if place.share is None:
        return [f"The growth comes from {place.phase}."]
    return [f"{format_share(place.share)} of the growth comes from {place.phase}."]


def _charged_lines(study: TimelineAnalysis, a: Assessed) -> list[str]:
    """Explain why memory is charged to a phase other than the phase that creates the objects.

    Return an empty list if no explanation is needed.
    """
    owner, phase, end = a.cause.owner, a.cause.place.phase, len(study.timeline)
    if owner is None or phase is None or a.channel != "private" or a.cause.rate.estimate <= 0:
        return []
    first = max(0, min(first_position(study.timeline, owner.growth.start), end - 2))
    slopes = study.phase_slopes(first, end)
    booked = without_give_and_take({name: slope.estimate for name, slope in slopes.items()})
    charged = {name: size for name, size in booked.items() if size > 0}
    most = max(charged, key=lambda name: (charged[name], name), default=phase)
    mostly = charged.get(most, 0.0) >= _CHARGED * sum(charged.values())
    elsewhere = most not in {phase, top_level(phase), *NO_PHASE}
    series = series_of(study.facts, owner)
    born = born_in(study.timeline, series, owner.growth.start, end)
    # If both phases make such objects, a phase that is charged almost nothing still needs an explanation.
    free = charged.get(phase, 0.0) < _HARDLY_CHARGED * a.cause.rate.estimate
    if not (elsewhere and mostly) or (most in born and not free):
        return []
    if a.cause.behind == "native":
        return [f"Created in {phase}; the memory that the objects keep is charged to {most}."]
    return [f"Created in {phase}; memory is charged to {most} because freed memory was reused."]


def _harmless(a: Assessed, unit: str) -> str:
    size = a.cause.measured if a.cause.measured is not None else max(a.cause.rate.estimate, 0.0)
    share = a.scale.share(size, a.window)
    return (
        f"The growth does not matter: {format_bytes(size)} per {unit}, {share:.2%} of memory within "
        f"the next {round(a.scale.horizon(a.window))} {unit}s."
    )


def worth_reporting(standing: Standing) -> bool:
    """Return True if a finding is worth reporting.

    Counts of plain and library types vary by hundreds, so they prove nothing if bytes do not grow. Growth that does
    not matter is reported only for containers, figures and classes of the program, and for tensors of TensorFlow.js.
    """
    if standing.status == "watch" and _is_idle(standing.assessed):
        return False
    if standing.status != "ok":
        return True
    owner = standing.assessed.cause.owner
    if owner is None:
        return False
    # In a page, only the program can free a tensor; until it does, the tensor's texture and entry remain, however
    # small the tensor is.
    if owner.name != TENSOR and owner.family not in ("container", "object", "figure"):
        return False
    return (standing.assessed.cause.measured or 0.0) >= 1024 or owner.growth.slope >= 16


def _is_idle(a: Assessed) -> bool:
    """Return True if only counts of undeclared plain or library types rise, and memory does not rise."""
    members = a.cause.members
    return (
        bool(members)
        and a.garbage is None
        and round(a.cause.rate.estimate) <= 0
        and all(
            m.role == "type" and m.family in OF_OTHERS and not m.declared and m.violation is None
            for m in members
        )
    )


def rank_key(finding: Finding) -> tuple[bool, bool, float, str]:
    """Return a sort key: active findings first, then by growth in bytes."""
    return (
        finding.status not in ACTIVE, finding.status in ("ok", "filling", "recovered"),
        -finding.growth_bytes_per_generation.estimate, finding.fingerprint,
    )  # fmt: skip


def merge_alike(findings: Sequence[Finding], limits: Priorities) -> list[Finding]:
    """Merge the findings of processes that have the same leak, adding up their numbers."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.fingerprint, []).append(finding)
    return sorted((_merge(found, limits) for found in groups.values()), key=rank_key)


def _merge(found: Sequence[Finding], limits: Priorities) -> Finding:
    """Merge findings with the same fingerprint. All numbers are sums over the processes that the result names."""
    if len(found) == 1:
        return found[0]
    worst = max(found, key=lambda f: SEVERITY.index(f.status))
    least = _NAMED * max(f.growth_bytes_per_generation.estimate for f in found)
    growing = [f for f in found if f.growth_bytes_per_generation.estimate >= least] or list(found)
    lead = max(
        growing, key=lambda f: (f.status == worst.status, f.growth_bytes_per_generation.estimate)
    )
    growths = [f.growth_bytes_per_generation for f in growing]
    total = Interval(
        sum(g.estimate for g in growths), sum(g.low for g in growths), sum(g.high for g in growths)
    )
    if lead.kind == "external":
        # All processes read the same memory.
        total = lead.growth_bytes_per_generation
    grade = priority(total.estimate, limits)
    if any(is_deeper(f, limits) for f in growing):
        grade = one_worse(grade)
    evidence = lead.evidence
    if len(growing) > 1:
        evidence = tuple(f"{lead.process}: {line}" for line in evidence)
    return replace(
        lead,
        status=worst.status,
        confidence=worst.confidence,
        suspects=_added_up(lead, growing),
        growth_bytes_per_generation=total,
        evidence=evidence,
        priority=grade,
        process=", ".join(f.process for f in growing if f.process) or None,
    )


def _added_up(lead: Finding, findings: Sequence[Finding]) -> tuple[Suspect, ...]:
    """Return the suspects of all findings with their rates added up, the suspects of ``lead`` first."""
    counts: dict[tuple[str, Role], list[float]] = {}
    sizes: dict[tuple[str, Role], list[float]] = {}
    order = [s for f in (lead, *findings) for s in f.suspects]
    for suspect in (s for f in findings for s in f.suspects):
        key = suspect.name, suspect.role
        if suspect.count_per_generation is not None:
            counts.setdefault(key, []).append(suspect.count_per_generation)
        if suspect.bytes_per_generation is not None:
            sizes.setdefault(key, []).append(suspect.bytes_per_generation)
    return tuple(
        Suspect(*key, _sum(counts.get(key), 3), _sum(sizes.get(key), 1))
        for key in dict.fromkeys((s.name, s.role) for s in order)
    )[:_MAX_SUSPECTS]


def _sum(rates: Sequence[float] | None, digits: int) -> float | None:
    return None if rates is None else round(sum(rates), digits)
