"""Results of the analysis as frozen dataclasses, whose field names are the keys of the JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

Status = Literal["learning", "ok", "filling", "watch", "suspected", "confirmed", "recovered"]
Risk = Literal["none", "low", "high", "critical"]
# The outcome of a fix, and what is measured per generation: bytes that the run grows by, bytes that its phase
# keeps, or instances of a class.
EffectOutcome = Literal["helped", "no_effect", "worse", "undecided"]
EffectMeasure = Literal["growth", "phase_growth", "count"]
CheckName = Literal["gpu", "memory", "passed", "cleanups"]
CheckOutcome = Literal["done", "failed", "not_yet", "not_measured"]
# What the check ``passed`` compares the run with: the end of an earlier attempt, a fix's promise, or the plan.
HeldAgainst = Literal["attempt", "promise", "plan"]
# Why unexplained growth has no suspect: either no object was ever counted (an attached process, an imported log), or
# there were hardly any heap scans while memory grew, so anything may have grown.
Unknown = Literal["outside", "rarely_counted"]
# The rating of a change in a count; unknown as long as there is no verdict by which to judge a rise.
ChangeRating = Literal["good", "expected", "problem", "unknown"]
# The origin of a limit; ``accepted``: a person accepted a count that was stable in earlier runs.
AssertionOrigin = Literal["band", "gauge", "budget", "fix", "expect", "accepted"]
# Origins whose bounds apply to every reading.
BY_READING: Final[tuple[AssertionOrigin, ...]] = ("band", "gauge")
# ``open``: the generations that the assertion covers are still to come; ``undecided``: there are too few
# measurements to decide.
AssertionState = Literal["holds", "broken", "above_normal", "open", "undecided", "not_measured"]
Role = Literal["type", "holder", "container", "allocation_site", "process", "library"]
Kind = Literal[
    "objects", "tensors", "graph", "arrays", "container", "cyclic_garbage", "native", "allocator_retained",
    "children", "gpu", "gpu_fragmentation", "shared_memory", "count_contract", "external",
]  # fmt: skip

# Ordered from harmless to urgent; a run has the worst status of its findings.
SEVERITY: Final[tuple[Status, ...]] = (
    "learning", "ok", "recovered", "filling", "watch", "suspected", "confirmed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 90 % interval, in the unit of the field that contains it."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Suspect:
    """A type, holder or library that grows with the memory. ``bytes_per_generation`` is None if it was not measured."""

    name: str
    role: Role
    count_per_generation: float | None = None
    bytes_per_generation: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One leak, or growth that does not count as a leak (status ``ok`` or ``watch``), with the evidence."""

    fingerprint: str
    status: Status
    kind: Kind
    # Top-level phase that keeps the memory, None if several phases keep it; ``phase_path`` is the nested phase.
    phase: str | None
    phase_share: float | None
    suspects: tuple[Suspect, ...]
    growth_bytes_per_generation: Interval
    started_at_generation: Interval | None
    confidence: float
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    phase_path: str | None = None
    priority: Literal["critical", "major", "minor"] = "minor"
    process: str | None = None  # such as "rank 0 main", if the run has several processes
    unknown: Unknown | None = None
    # Location of the newest fix of its phase ("training/trainer.py:281"), and a link to it at the run's commit.
    location: str | None = None
    location_link: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessGrowth:
    """Growth of private memory at one place in the run, over all attempts.

    ``process`` is the place, such as "rank 0 main", and ``instance`` is the newest process at this place. Growth is
    None if it cannot be determined. ``findings``: fingerprints of the certain or possible leaks at this place.
    """

    process: str
    instance: str
    growth_bytes_per_generation: Interval | None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationSpan:
    """A range of generations, including both ends."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class AttemptGrowth:
    """One attempt of a resumed run: its completed generations and its growth of private memory.

    Growth is the sum over all processes of the attempt, without bounded containers, or None if it cannot be
    determined. ``again``: the generations that an earlier attempt had already completed, or None if no generation
    was repeated.
    """

    attempt: int
    generations: GenerationSpan
    growth_bytes_per_generation: Interval | None
    again: GenerationSpan | None


@dataclass(frozen=True, slots=True)
class RuledOut:
    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class Moment:
    """An estimated time with its interval, as ISO 8601 strings in UTC."""

    estimate: str
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class OomForecast:
    """The forecast of when memory runs out if the growth in the verdict continues.

    It describes the memory of a device (see ``limit_source``) if that memory runs out before the memory of the
    processes. ``generation`` and ``at`` are None if nothing grows towards the limit. ``planned``: number of
    generations that the run has declared. ``sentence``: the forecast as every page, message and command shows it.
    """

    risk: Risk = "none"
    limit_bytes: int | None = None
    limit_source: Literal["cgroup", "system", "user", "device"] | None = None
    generation: Interval | None = None
    at: Moment | None = None
    planned: int | None = None
    sentence: str = "not known yet"


@dataclass(frozen=True, slots=True)
class FixEffect:
    """One quantity per generation that a fix should change, measured before and after the fix.

    ``subject``: the phase or class; None for the entire run. ``since``: Unix time at which the fix was declared.
    ``rejected``: the rejected alternatives, as the user wrote them. ``difference``: after minus before, with its
    own 90 % interval.
    """

    fix: str
    phase: str | None
    location: str | None
    rejected: str | None
    since: float
    measure: EffectMeasure
    subject: str | None
    before: Interval | None
    after: Interval | None
    change_percent: float | None
    difference: Interval | None
    outcome: EffectOutcome
    sentence: str


@dataclass(frozen=True, slots=True)
class Deviation:
    """A reading outside the bounds: ``difference`` is negative below the lower and positive above the upper bound.

    ``generation`` is None for a reading before the first generation.
    """

    generation: int | None
    measured: float
    difference: float


@dataclass(frozen=True, slots=True)
class Assertion:
    """A declared limit: a metric and its bounds, in a phase and a range of generations.

    ``name``: the series of a band, the gauge, the phase of a budget, the fix, or the counted class. ``phase`` is
    None if the metric describes the entire run. Amounts from ``low`` to ``high`` are allowed, and ``leak`` or more
    is a leak. ``first`` is None if all generations count, ``last`` if the range has no end.
    """

    origin: AssertionOrigin
    name: str
    metric: str
    phase: str | None = None
    low: float | None = None
    high: float | None = None
    leak: float | None = None
    first: int | None = None
    last: int | None = None

    def difference(self, value: float) -> float:
        """Return the distance from the bounds: 0 within the bounds, negative below ``low``, positive above ``high``."""
        if self.low is not None and value < self.low:
            return value - self.low
        if self.high is not None and value > self.high:
            return value - self.high
        return 0.0

    def state_of(self, value: float) -> AssertionState:
        if self.leak is not None and value >= self.leak:
            return "broken"
        if self.difference(value) == 0:
            return "holds"
        return "above_normal" if self.origin == "budget" else "broken"

    def covers(self, generation: int) -> bool:
        begun = self.first is None or generation >= self.first
        return begun and (self.last is None or generation <= self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionCheck(Assertion):
    """An assertion with its measurements, in the unit of its metric.

    ``measured`` is an estimate, or the newest reading as an interval of zero width. ``worst`` is a single reading
    (for a band, a reading outside its bounds). ``violations`` is how many of the ``checked`` generations or
    readings break a bound; ``deviations`` lists the first violations.
    """

    process: str | None = None  # such as "rank 0 main", if the run has several processes
    location: str | None = None  # file and line that a fix names
    state: AssertionState
    measured: Interval | None = None
    worst: float | None = None
    worst_generation: int | None = None
    violations: int = 0
    checked: int = 0
    deviations: tuple[Deviation, ...] = ()
    sentence: str


@dataclass(frozen=True, slots=True)
class PastForecast:
    """Memory in bytes that the growth at ``made_at`` predicted for ``generation``, and the actual reading."""

    made_at: int
    generation: int
    forecast: Interval
    actual: float


@dataclass(frozen=True, slots=True)
class LeadError:
    """Accuracy of the forecasts made ``lead_from`` to ``lead_to`` generations ahead, including both ends."""

    lead_from: int
    lead_to: int
    forecasts: int
    median_error: float
    within: int
    past: tuple[PastForecast, ...]


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """Accuracy of earlier forecasts of this run. ``median_error`` is a share of the actual memory.

    Forecasts look ahead by a quarter, half or all of the generations seen at the time. ``past``: the forecasts that
    look ahead by half of those generations. ``by_lead``: all forecasts by lead time; each range begins at twice the
    start of the previous range.
    """

    forecasts: int
    median_error: float
    within: int  # forecasts whose interval contains the actual memory
    past: tuple[PastForecast, ...]
    sentence: str
    by_lead: tuple[LeadError, ...] = ()


@dataclass(frozen=True, slots=True)
class RunDuration:
    """Seconds for one of the newest generations, for all remaining generations, and for the entire run."""

    seconds_per_generation: Interval
    seconds_left: Interval
    seconds: Interval
    sentence: str


@dataclass(frozen=True, slots=True)
class CheckItem:
    """One question of the checklist after a fix, with its answer and a sentence of evidence.

    ``against``: what the run was compared with in the question ``passed``; None if unknown, and for other
    questions.
    """

    check: CheckName
    outcome: CheckOutcome
    sentence: str
    against: HeldAgainst | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    run: str
    unit: str
    generations: int
    status: Status
    summary: str
    growth_bytes_per_generation: Interval | None
    explained_share: float | None
    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    oom: OomForecast = field(default_factory=OomForecast)
    # Declared limits, accepted counts and promises of fixes.
    assertions: tuple[AssertionCheck, ...] = ()
    # The first generation since which memory is flat; None while it is not flat.
    settled_at_generation: Interval | None = None
    forecast_score: ForecastScore | None = None
    checklist: tuple[CheckItem, ...] = ()
    # The processes whose growth adds up to that of the run.
    processes: tuple[ProcessGrowth, ...] = ()
    # None unless the run continues and has declared its number of generations.
    duration: RunDuration | None = None
    # The effect of each fix on this run, measured before and after the fix.
    effects: tuple[FixEffect, ...] = ()
    # The attempts of a resumed run, each considered alone.
    attempts: tuple[AttemptGrowth, ...] = ()
    # Number of units of the axis from the first unit to the newest, if many units were not read
    # (`generation_axis.passed`).
    generations_passed: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseAccount:
    """Bytes charged to one line in each generation: a phase path, ``other_threads``, ``between`` or ``leakline``."""

    name: str
    bytes: tuple[float, ...]
    seconds: tuple[float | None, ...]
    executions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PhaseAccounts:
    """Every byte gained between two generation ends. In each generation the lines add up to ``total``.

    Memory gained while no phase was open is on the line ``between``, and the memory that Leakline itself needs for
    measuring is on ``leakline``. In very long runs older generations are grouped: each group ends with one of
    ``generations``, and ``spans`` contains the sizes of the groups, or is empty if no generations are grouped.
    ``seconds`` covers only the named generation itself.
    """

    generations: tuple[int, ...]
    lines: tuple[PhaseAccount, ...]
    total: tuple[float, ...]
    spans: tuple[int, ...] = ()

    def count(self) -> int:
        """Return the number of generations that these accounts cover."""
        return sum(self.spans) if self.spans else len(self.generations)

    def span(self, position: int) -> int:
        return self.spans[position] if self.spans else 1


@dataclass(frozen=True, slots=True)
class TypeGrowth:
    """Change in the number of live instances of one type over the run; ``last_count`` is the newest count.

    ``created_at_least`` and ``freed_at_least`` count the instances of a watched class since it was first watched;
    they miss instances that are created and freed between two readings. They are None for other types.
    """

    name: str
    first_count: int
    last_count: int
    count_per_generation: Interval | None
    bytes: int | None
    bytes_per_generation: float | None
    holder: str | None
    phase: str | None
    expected: str | None  # "2", "16 to 17"
    rating: Literal["steady", "expected", "grows", "problem"]
    # The rating of the newest count compared with the first count, given the run's verdict.
    change_rating: ChangeRating = "unknown"
    difference: int | None = None
    readings: int = 0  # readings of the type's count, in the process with the fewest readings
    # The generation at whose end the type was last counted, since not every generation has a census.
    last_generation: int | None = None
    created_at_least: int | None = None
    freed_at_least: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerFill:
    """The fill level of a tracked container.

    ``bytes`` is the sum of ``host_bytes`` and ``device_bytes``, which are None if they are not distinguished.
    """

    name: str
    length: int
    capacity: int | None
    bytes: int | None
    ceiling_bytes: int | None
    full_at_generation: float | None
    state: Literal["filling", "full", "over", "unbounded", "steady"]
    host_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StableCount:
    """A type whose count was the same in each of the last ``generations`` generations.

    ``after``: the phase at whose end the count is the same; None for every reading. ``replaces``: the accepted
    count that this count would replace.
    """

    type: str
    count: int
    after: str | None
    generations: int
    replaces: str | None = None


def to_json(thing: Any) -> Any:
    """Convert a result to plain lists, dicts, numbers and strings, with the field names above as keys."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return {f.name: to_json(getattr(thing, f.name)) for f in fields(thing)}
    if isinstance(thing, dict):
        return {key: to_json(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [to_json(value) for value in thing]
    return thing
