"""What the analysis says: frozen results and their JSON, exactly as the contract names the fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

Status = Literal["learning", "ok", "filling", "watch", "suspected", "confirmed", "recovered"]
Risk = Literal["none", "low", "high", "critical"]
# Of a fix, on what it is about: bytes of the run, bytes that its phase keeps, or instances of a class, per generation.
EffectOutcome = Literal["helped", "no_effect", "worse", "undecided"]
EffectMeasure = Literal["growth", "phase_growth", "count"]
CheckName = Literal["gpu", "memory", "passed", "cleanups"]
CheckOutcome = Literal["done", "failed", "not_yet", "not_measured"]
# Where an earlier attempt ended, what a fix promised, or what was planned.
HeldAgainst = Literal["attempt", "promise", "plan"]
# Why nothing is named of growth that no counted object explains: no object was ever counted (a process that is watched,
# a log that was imported), or there were hardly any looks at the heap while it grew, and it may be of anything.
Unknown = Literal["outside", "rarely_counted"]
# Of a change of a count; unknown while there is no verdict to tell a rise by.
ChangeRating = Literal["good", "expected", "problem", "unknown"]
# What declared a limit; ``accepted``: a person, from counts that runs had kept to.
AssertionOrigin = Literal["band", "gauge", "budget", "fix", "expect", "accepted"]
# Origins whose bounds each reading has to keep.
BY_READING: Final[tuple[AssertionOrigin, ...]] = ("band", "gauge")
# ``open``: its generations are still to come; ``undecided``: what was measured is not enough to decide.
AssertionState = Literal["holds", "broken", "above_normal", "open", "undecided", "not_measured"]
Role = Literal["type", "holder", "container", "allocation_site", "process"]
Kind = Literal[
    "objects", "tensors", "graph", "arrays", "container", "cyclic_garbage", "native", "allocator_retained",
    "children", "gpu", "gpu_fragmentation", "shared_memory", "count_contract", "external",
]  # fmt: skip

# From harmless to urgent; a run has the worst status of its findings.
SEVERITY: Final[tuple[Status, ...]] = (
    "learning", "ok", "recovered", "filling", "watch", "suspected", "confirmed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the 90 % interval around it. Unit: that of the field it stands in."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Suspect:
    """A type or holder that grows with the memory. ``bytes_per_generation`` is None when unmeasured."""

    name: str
    role: Role
    count_per_generation: float | None = None
    bytes_per_generation: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One leak, or one growth that does not matter (status ``ok``/``watch``, with its evidence)."""

    fingerprint: str
    status: Status
    kind: Kind
    # Top-level phase that keeps the memory, or None when it is spread; phase_path is the nested one.
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
    process: str | None = None  # "rank 0 main", when the run has several
    unknown: Unknown | None = None
    # Of the newest fix of its phase: "training/trainer.py:281", and where that line can be read at the run's commit.
    location: str | None = None
    location_link: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessGrowth:
    """How fast the private memory of one place in the run (``process``: "rank 0 main") grows, over its attempts.

    ``instance`` is the newest process there. Growth is None where it cannot be determined. ``findings``: the
    fingerprints of those that leak, or may, and name it.
    """

    process: str
    instance: str
    growth_bytes_per_generation: Interval | None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationSpan:
    """Generations, both ends with them."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class AttemptGrowth:
    """One attempt of a resumed run by itself: the generations that it ended, and how fast private memory grew in it.

    Growth is of all its processes together, without what bounded containers gained; None where it cannot be determined.
    ``again``: of its generations those that an attempt before it had ended as well; None where it did none twice.
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
    """ISO 8601 times, UTC."""

    estimate: str
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class OomForecast:
    """When memory runs out, as far ahead as the growth that the verdict rests on leads.

    Of the memory of a device (``limit_source``), where that ends before the memory of the process.
    ``generation`` and ``at`` are None where nothing grows towards the limit. ``planned``: how many generations the run
    has declared. ``sentence`` is the forecast in the words that every page, message and command shows.
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
    """One thing a fix is about, per generation, before it and after it.

    ``subject``: the phase or class; None of the whole run. ``since``: Unix seconds of its declaration. ``rejected``:
    what was thought of instead, as people wrote it. ``difference`` is after less before with its own 90 % interval.
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
    """A reading outside the bounds: ``difference`` is below zero under them, above zero over them.

    ``generation`` is None before the first.
    """

    generation: int | None
    measured: float
    difference: float


@dataclass(frozen=True, slots=True)
class Assertion:
    """A declared limit: a metric and its bounds, in a phase and a range of generations.

    ``name``: the series of a band, the gauge, the phase of a budget, the fix, or the class that is counted.
    ``phase`` is None where the metric is that of the run. ``low`` and ``high`` are allowed; from ``leak`` on the amount
    is a leak. ``first`` is None where all generations count, ``last`` where the range has no end.
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
        """Return 0 within the bounds, the distance below ``low`` as a negative number, or that above ``high``."""
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
    """An assertion with what was measured, in the unit of its metric.

    ``measured`` is an estimate, or the newest reading with both ends at it. ``worst`` is a reading (of a band outside
    its bounds). ``violations`` of the ``checked`` generations or readings break a bound; ``deviations`` are the first.
    """

    process: str | None = None  # "rank 0 main", when the run has several
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
    """Memory in bytes that the growth of ``made_at`` foretold for ``generation``, and what was read there."""

    made_at: int
    generation: int
    forecast: Interval
    actual: float


@dataclass(frozen=True, slots=True)
class LeadError:
    """How right forecasts for so many generations ahead were, both ends included."""

    lead_from: int
    lead_to: int
    forecasts: int
    median_error: float
    within: int
    past: tuple[PastForecast, ...]


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """How right earlier forecasts of this run were. ``median_error`` is a share of the memory that came.

    They looked a quarter, half and just as far ahead as had been seen. ``past``: those for half as far ahead.
    ``by_lead``: all of them by how far ahead they looked; each begins at twice the one before.
    """

    forecasts: int
    median_error: float
    within: int  # how many came between their low and their high end
    past: tuple[PastForecast, ...]
    sentence: str
    by_lead: tuple[LeadError, ...] = ()


@dataclass(frozen=True, slots=True)
class RunDuration:
    """Seconds that one of the newest generations takes, that those to come take, and the whole run: all ``total``."""

    seconds_per_generation: Interval
    seconds_left: Interval
    seconds: Interval
    sentence: str


@dataclass(frozen=True, slots=True)
class CheckItem:
    """One question of the checklist after a fix, with its answer and the evidence for it in a sentence.

    ``against``: what ``passed`` was held against; None where nothing was known, and for the other questions.
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
    # The first generation from which memory is flat; None while it is not.
    settled_at_generation: Interval | None = None
    forecast_score: ForecastScore | None = None
    checklist: tuple[CheckItem, ...] = ()
    # Of a run whose growth is their sum.
    processes: tuple[ProcessGrowth, ...] = ()
    # Of a run that goes on and has said how many generations it takes.
    duration: RunDuration | None = None
    # What each fix has done to this run: before and after it.
    effects: tuple[FixEffect, ...] = ()
    # Of a run that was resumed: each attempt by itself.
    attempts: tuple[AttemptGrowth, ...] = ()
    # Of a run by the second or minute that was not read in each: how many went by from the first to the newest.
    generations_passed: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseAccount:
    """Bytes booked to one line in each generation: a phase path, ``between`` or ``leakline``."""

    name: str
    bytes: tuple[float, ...]
    seconds: tuple[float | None, ...]
    executions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PhaseAccounts:
    """Every byte between two generation ends. Per generation, the lines sum to ``total``.

    What no phase was open for is on ``between``; what Leakline's own measuring cost is on ``leakline``. Of very long
    runs older generations are reported together: ``spans`` says how many end with each of ``generations``; empty: one
    each. ``seconds`` are those of the generation that is named.
    """

    generations: tuple[int, ...]
    lines: tuple[PhaseAccount, ...]
    total: tuple[float, ...]
    spans: tuple[int, ...] = ()

    def count(self) -> int:
        """How many generations these are the phase accounts of."""
        return sum(self.spans) if self.spans else len(self.generations)

    def span(self, position: int) -> int:
        return self.spans[position] if self.spans else 1


@dataclass(frozen=True, slots=True)
class TypeGrowth:
    """How the number of live instances of one type moved over the run. ``last_count`` are alive.

    ``created_at_least`` and ``freed_at_least`` are of watched classes, since they are watched: what is born and dies
    between two looks is not seen. None of others.
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
    # Of what is there now next to what was at first, in the light of the run's verdict.
    change_rating: ChangeRating = "unknown"
    difference: int | None = None
    readings: int = 0  # of its count; of several processes the fewest
    # At whose end it was counted last: a census is not taken at each.
    last_generation: int | None = None
    created_at_least: int | None = None
    freed_at_least: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerFill:
    """A tracked container against its capacity.

    ``bytes`` is the sum of ``host_bytes`` and ``device_bytes``, which are None where nobody distinguishes them.
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
    """A type of which as many lived in each of the last ``generations``, at every reading or at the end of a phase.

    ``replaces``: what was accepted of it before, and would be replaced.
    """

    type: str
    count: int
    after: str | None
    generations: int
    replaces: str | None = None


def to_json(thing: Any) -> Any:
    """Plain lists, dicts, numbers and strings; field names as they stand above."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return {f.name: to_json(getattr(thing, f.name)) for f in fields(thing)}
    if isinstance(thing, dict):
        return {key: to_json(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [to_json(value) for value in thing]
    return thing
