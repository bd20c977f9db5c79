"""Request and response models of the JSON API, as shown in OpenAPI.

Requests are validated against these models. Responses are built from plain data and only described
by the models; a test checks that the responses match the models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from leakline.analysis.results import ContainerFill, Interval, OomForecast, TypeGrowth
from leakline.core.environment import masked

from ..limits import (
    MAX_CONFIG_BYTES,
    MAX_DECLARED_PHASES,
    MAX_ENVIRONMENT_BYTES,
    MAX_INSTANCE_LENGTH,
    MAX_INTEGER,
    MAX_LABEL_LENGTH,
    MAX_LINK_LENGTH,
    MAX_NAMES_LISTED,
    MAX_NOTE_LENGTH,
    MAX_NOTES_AT_ONCE,
    MAX_RANK,
    MAX_REASON_LENGTH,
    MAX_ROW_ID,
    MAX_RUN_ID_LENGTH,
    MAX_RUN_TAGS,
    MAX_TAG_LENGTH,
    MAX_TIME_SECONDS,
)
from ..text_cleaning import (
    SAYS_SOMETHING,
    all_without_control,
    lines_without_control,
    may_steer,
    redacted,
    without_control,
)

# Postgres cannot store NUL, and control characters in names are never intentional.
NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"
RunId = Annotated[
    str, Field(min_length=1, max_length=MAX_RUN_ID_LENGTH, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")
]
# The id of a database row, for example of a webhook, delivery or rule.
RowId = Annotated[int, Path(ge=1, le=MAX_ROW_ID)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH, pattern=NO_CONTROL)]
Phase = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)]
UnixSeconds = Annotated[float, Field(ge=0, le=MAX_TIME_SECONDS, allow_inf_nan=False)]


def _within_bytes(limit_bytes: int) -> AfterValidator:
    """Return a validator that limits the size of a JSON object and redacts its secrets."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        encoded = msgspec.json.encode(value)
        if len(encoded) > limit_bytes:
            raise ValueError(f"has more than {limit_bytes} bytes as JSON")
        shown: dict[str, Any] = redacted(
            all_without_control(value) if may_steer(encoded) else value
        )
        return shown

    return AfterValidator(check)


Config = Annotated[dict[str, Any], _within_bytes(MAX_CONFIG_BYTES)]
Environment = Annotated[dict[str, Any], _within_bytes(MAX_ENVIRONMENT_BYTES)]


class Strict(BaseModel):
    """Base model without silent conversions: "3" is not 3, and true is not 1."""

    model_config = ConfigDict(strict=True)


class JoiningProcess(Strict):
    """The process that creates or joins the run, and its attempt. The run ends when all processes of
    this attempt have ended.
    """

    instance: Annotated[
        str, Field(min_length=1, max_length=MAX_INSTANCE_LENGTH, pattern=NO_CONTROL)
    ]
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0
    pid: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0
    host: Annotated[str, Field(max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)] = ""
    role: Annotated[str, Field(max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)] = "main"
    attempt: Annotated[int, Field(ge=1, le=MAX_RANK)] = 1


class NewRun(Strict):
    """A run to create or join. All fields have defaults, so `{}` creates a run.

    `sent_at` is the time of the request according to the process's clock. The server derives
    `clock_skew_seconds` from `sent_at`. Omit `sent_at` when uploading snapshots that another process
    recorded. `resume` is `must` if only an existing run may be joined, and `never` if only the first
    attempt may be.
    """

    id: RunId | None = None
    project: Name = "default"
    name: Name | None = None
    unit: Name = "generation"
    total: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None = None
    started_at: UnixSeconds | None = None
    sent_at: UnixSeconds | None = None
    phases: list[Phase] = Field(default=[], max_length=MAX_DECLARED_PHASES)
    tags: list[Tag] = Field(default=[], max_length=MAX_RUN_TAGS)
    config: Config = Field(default={}, max_length=MAX_NAMES_LISTED)
    environment: Environment = Field(default={}, max_length=MAX_NAMES_LISTED)
    process: JoiningProcess | None = None
    resume: Literal["allow", "must", "never"] = "allow"


class JoinedRun(BaseModel):
    """A created or joined run. `created` is false if the run already existed."""

    id: str
    url: str
    created: bool
    attempt: int


def _text_of_note(text: str) -> str:
    text = lines_without_control(text)
    if not text.strip():
        raise ValueError("must not be empty")
    return text


class Note(Strict):
    text: Annotated[
        str,
        Field(
            min_length=1, max_length=MAX_NOTE_LENGTH, json_schema_extra={"pattern": SAYS_SOMETHING}
        ),
        AfterValidator(_text_of_note),
    ]
    link: Annotated[str, Field(max_length=MAX_LINK_LENGTH, pattern=r"^https?://\S+$")] | None = None
    generation: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None = None


class NewRequest(Strict):
    """A request to a running program. `find_holders` searches for the objects that keep instances of
    `type` alive, `census` counts all objects, and `cleanup` runs the program's registered cleanups.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: Literal["find_holders", "census", "cleanup"]
    type: Name | None = None
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0


class WaitingRequest(BaseModel):
    """A request that is sent with the response to the next batch from `rank`. The process reports
    the result as an event of kind `mark`.
    """

    id: str
    kind: str
    type: str | None
    rank: int


def _reason(text: str) -> str:
    return masked(without_control(text))


class RunChanges(Strict):
    """Changes to a run; omitted fields keep their values. If `instance` is given, `state` ends only
    that process; the run ends when its last process has ended.
    """

    # A misspelled field such as "stats" must be rejected; otherwise its sender would believe that
    # the run has ended.
    model_config = ConfigDict(strict=True, extra="forbid")

    state: (
        Literal["running", "finished", "failed", "interrupted", "terminated", "killed", "silent"]
        | None
    ) = None
    ended_at: UnixSeconds | None = None
    reason: Annotated[str, Field(max_length=MAX_REASON_LENGTH), AfterValidator(_reason)] = ""
    instance: Annotated[str, Field(max_length=MAX_INSTANCE_LENGTH, pattern=NO_CONTROL)] | None = (
        None
    )
    name: Name | None = None
    tags: list[Tag] | None = Field(default=None, max_length=MAX_RUN_TAGS)
    notes: list[Note] = Field(default=[], max_length=MAX_NOTES_AT_ONCE)


class RunSummary(BaseModel):
    id: str
    project: str
    name: str
    unit: str
    total: int | None
    tags: list[str]
    state: Literal["running", "finished", "failed", "interrupted", "killed", "silent"]
    reason: str
    # True if the end was inferred from silence; the end is withdrawn when the run reports again.
    end_inferred: bool
    attempt: int
    status: str
    # The highest priority of the leaks and possible leaks, based on their growth per generation.
    priority: Literal["critical", "major", "minor"] | None
    summary: str
    generations: int
    growth_bytes_per_generation: Interval | None
    # The growth of the first leak or possible leak, even if it is outside private memory.
    leading_growth_bytes_per_generation: Interval | None
    oom: OomForecast
    started_at: str
    last_seen_at: str
    ended_at: str | None
    rss_bytes: int | None
    peak_bytes: int | None
    sparkline: list[int]
    revision: int
    url: str


class Process(BaseModel):
    """A process of the run. `taken` is the number of snapshots taken so far, according to the newest
    sequence number, and `stored` is the number of snapshots stored. `lost` counts lost snapshots by
    the reason that the process reported. `log_lines` contains up to 50 of the newest lines that the
    process printed, if sending lines is enabled. `log_lines_left_out` counts the lines that were
    omitted because lines of processes that ended badly take precedence.

    `growth_bytes_per_generation` is the growth of private memory according to the verdict. The
    growth is null if unknown or if another process replaced this process. `findings` lists
    the fingerprints of leaks and possible leaks that name this process. `clock_skew_seconds`
    is how far the server's clock was ahead of the process's clock at first contact; negative values
    mean behind. The skew is null if unknown, for example for a recording that was uploaded later.
    """

    instance: str
    rank: int
    role: str
    pid: int
    host: str
    attempt: int
    started_at: str
    last_seen_at: str
    ended_at: str | None
    end_state: str | None
    end_reason: str
    end_inferred: bool
    clock_skew_seconds: float | None
    rss_bytes: int | None
    peak_bytes: int | None
    growth_bytes_per_generation: Interval | None
    findings: list[str]
    taken: int
    stored: int
    left_out: int
    lost: dict[str, int]
    log_lines: list[str]
    log_lines_left_out: int


class Attempt(BaseModel):
    number: int
    started_at: str
    environment: dict[str, Any]


class Expectation(BaseModel):
    """The expected number of a type's objects. `accepted` is true if a person accepted the number,
    and false if the program declares it. If `baseline` is true, the upper limit is the count at the
    end of the first generation, and `low` and `high` do not apply.
    """

    type: str
    low: int
    high: int
    after: str | None
    accepted: bool
    baseline: bool


class Run(RunSummary):
    config: dict[str, Any]
    environment: dict[str, Any]
    phases: list[str]
    phases_seen: list[str]
    # The processes of the newest attempts, starting with processes that ended badly, and the number
    # of processes that are not listed.
    processes: list[Process]
    processes_left_out: int
    # The newest attempts, and the number of earlier attempts that are not listed.
    attempts: list[Attempt]
    attempts_left_out: int
    series: list[str]
    expectations: list[Expectation]
    # False while the server has data of the run that its verdict does not cover yet.
    verdict_is_current: bool
    # `added` is true if the note came from an ingest token rather than from a person.
    notes: list[dict[str, Any]]


class RunList(BaseModel):
    items: list[RunSummary]
    next: str | None


class SeriesItem(BaseModel):
    """A series of one process. Each point begins at its `x`; the last point ends at `end`."""

    name: str
    process: str
    phase: str | None
    x: list[float]
    end: float
    first: list[float]
    last: list[float]
    min: list[float]
    max: list[float]


class DamagedPart(BaseModel):
    """A range of a process's snapshots with an unreadable series or field `name`."""

    process: str
    name: str
    first_sequence: int
    last_sequence: int


class SeriesList(BaseModel):
    """The series of a run. `left_out` is the number of matching items omitted because of the
    response's size limit. `processes_left_out` is the number of processes that were not read because
    the run has too many. `damaged` lists the parts that are missing because they are unreadable.
    """

    items: list[SeriesItem]
    unit: str
    left_out: int
    processes_left_out: int
    damaged: list[DamagedPart]


class OverlayItem(SeriesItem):
    run: str


class OverlayDamage(DamagedPart):
    run: str


class Overlay(BaseModel):
    """Series of several runs; `units` maps each run's id to its unit."""

    items: list[OverlayItem]
    units: dict[str, str]
    left_out: int
    processes_left_out: int
    damaged: list[OverlayDamage]


class MemoryChange(BaseModel):
    bytes_before: float | None
    bytes_after: float | None
    bytes_change: float | None
    bytes_per_generation: float | None


class ChangedProcess(MemoryChange):
    """The change in a process's memory. `process` may also be `child processes`, which covers all
    child processes together. `read_before_at` and `read_after_at` are the times of the readings, or
    of the earliest of several readings. A process that ended before a point has 0 bytes at that
    point, and its last reading is earlier.
    """

    process: str
    read_before_at: float | None
    read_after_at: float | None


class ChangedPhase(BaseModel):
    phase: str
    bytes_change: float
    bytes_per_generation: float


class ChangedType(BaseModel):
    """The change in a type's objects. `bytes_change` is the change in the objects' own bytes. If
    these bytes were not measured, `bytes_change` is estimated: the change in count times the bytes
    that one object keeps alive. If a finding names the type, the larger value is used.
    `counted_before_at` and `counted_after_at` are the times of the counts, or of the earliest count
    of several processes.
    """

    type: str
    count_before: float | None
    count_after: float | None
    count_change: float | None
    count_per_generation: float | None
    bytes_change: float | None
    counted_before_at: float | None
    counted_after_at: float | None


class BookedRange(BaseModel):
    """The generations between the two points, from `first` to `last` inclusive; `first` begins
    after the earlier point. Old generations of a very long run are reported in groups; groups that
    are partly outside the range are left out.
    """

    first: int
    last: int
    generations: int
    bytes: float


class Changes(BaseModel):
    """The changes between two points of a run. Rows are sorted by bytes gained, with unknown values
    last. `before`, `after` and every `..._at` are generations, or seconds since the start if `axis`
    is `time`; `..._per_generation` is per `unit`. `total` is the sum over all processes; its values are null
    if any process is unknown, silent or left out. `booked` is the range that `phases` covers, or
    null without phases.
    """

    unit: str
    axis: Literal["generation", "time"]
    before: float
    after: float
    total: MemoryChange
    types: list[ChangedType]
    booked: BookedRange | None
    phases: list[ChangedPhase]
    processes: list[ChangedProcess]
    processes_left_out: int


class Event(BaseModel):
    process: str
    sequence: int
    time: float
    kind: str
    name: str
    generation: int | None
    phase: str | None
    data: dict[str, Any]


class LargeObject(BaseModel):
    process: str
    sequence: int
    type: str
    bytes: int
    detail: str
    holder: str


class Holder(BaseModel):
    process: str
    sequence: int
    type: str
    path: str
    count: int
    bytes_each: int | None


class Census(BaseModel):
    process: str
    generation: int | None
    sequence: int
    mode: str
    coverage: float
    objects: int
    # Name, count and bytes. This is not a tuple, because schemathesis cannot validate responses
    # against the JSON Schema of a tuple.
    types: list[Annotated[list[str | int | None], Field(min_length=3, max_length=3)]]


class SnapshotRow(BaseModel):
    process: str
    sequence: int
    time: float
    generation: int | None
    phase: str | None
    kind: str
    label: str | None
    samples: dict[str, float]


class Incident(BaseModel):
    id: str
    run: str
    fingerprint: str
    status: str
    kind: str
    phase: str | None
    summary: str
    first_seen_at: str
    changed_at: str
    finding: dict[str, Any]


class Events(BaseModel):
    items: list[Event]
    next: None = None


class LargeObjects(BaseModel):
    items: list[LargeObject]
    next: None = None


class Holders(BaseModel):
    items: list[Holder]
    next: None = None


class Snapshots(BaseModel):
    """A page of snapshots. `processes_left_out` counts the processes that were not read because the
    run has too many; the most recently seen processes are read.
    """

    items: list[SnapshotRow]
    next: str | None
    processes_left_out: int


class Incidents(BaseModel):
    items: list[Incident]
    next: None = None


class Types(BaseModel):
    items: list[TypeGrowth]
    next: None = None


class Containers(BaseModel):
    items: list[ContainerFill]
    next: None = None


class ErrorBody(BaseModel):
    code: str
    message: str
    details: dict[str, Any]


class Error(BaseModel):
    error: ErrorBody


class Health(BaseModel):
    status: Literal["ok"]
