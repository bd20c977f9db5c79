"""What the JSON API takes and gives, as OpenAPI shows it. Bodies are checked by these models; answers are made from
plain data and only described by them, which a test holds true."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from leakline.analysis.results import ContainerFill, Interval, OomForecast, TypeGrowth
from leakline.core.environment import masked

from ..ingest.redaction import redacted
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
    without_control,
)

# Postgres cannot store a NUL, and control characters in names are never meant.
NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"
RunId = Annotated[
    str, Field(min_length=1, max_length=MAX_RUN_ID_LENGTH, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")
]
# Of a row: a webhook, a delivery, a rule.
RowId = Annotated[int, Path(ge=1, le=MAX_ROW_ID)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH, pattern=NO_CONTROL)]
Phase = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)]
UnixSeconds = Annotated[float, Field(ge=0, le=MAX_TIME_SECONDS, allow_inf_nan=False)]


def _within_bytes(limit_bytes: int) -> AfterValidator:
    """Whatever a program reports about itself, as it was read from JSON."""

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
    """No silent conversions: "3" is not 3, and true is not 1."""

    model_config = ConfigDict(strict=True)


class JoiningProcess(Strict):
    """The process that creates or joins the run. The run ends when all processes of its attempt have."""

    instance: Annotated[
        str, Field(min_length=1, max_length=MAX_INSTANCE_LENGTH, pattern=NO_CONTROL)
    ]
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0
    pid: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0
    host: Annotated[str, Field(max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)] = ""
    role: Annotated[str, Field(max_length=MAX_LABEL_LENGTH, pattern=NO_CONTROL)] = "main"
    attempt: Annotated[int, Field(ge=1, le=MAX_RANK)] = 1


class NewRun(Strict):
    """Everything has a default, so `{}` makes a run. `sent_at`: what the clock of the process says while it asks, from
    which its `clock_skew_seconds` is known however old its snapshots are; who brings those of another leaves it out."""

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


class JoinedRun(BaseModel):
    """`created` is false when the run was there and this process joins or resumes it."""

    id: str
    url: str
    created: bool
    attempt: int


def _text_of_note(text: str) -> str:
    text = lines_without_control(text)
    if not text.strip():
        raise ValueError("must say something")
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
    """`find_holders` looks for what keeps the instances of `type` alive, `census` counts all objects, `cleanup` runs
    what the program has registered and allowed to be asked for."""

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: Literal["find_holders", "census", "cleanup"]
    type: Name | None = None
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0


class WaitingRequest(BaseModel):
    """It goes with the answer to the next batch of that rank; what came of it is an event of kind `mark`."""

    id: str
    kind: str
    type: str | None
    rank: int


def _reason(text: str) -> str:
    return masked(without_control(text))


class RunChanges(Strict):
    """Only what is given changes. With `instance`, `state` ends that process, and the run with the last of them."""

    # Somebody who writes "stats" must not believe that the run has ended.
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
    # Concluded from silence; a word of the run takes it back.
    end_inferred: bool
    attempt: int
    status: str
    # Of what leaks or may leak: by its growth per generation.
    priority: Literal["critical", "major", "minor"] | None
    summary: str
    generations: int
    growth_bytes_per_generation: Interval | None
    # Of the first finding that leaks or may leak, also where that is not private memory.
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
    """`taken` snapshots by its newest number, of which `stored` are here; `lost` by reason as the process counts
    them. `log_lines`: the newest 50 lines that it printed, where it may show them; `log_lines_left_out` of them are
    not here because lines of others that ended worse fill the answer. `growth_bytes_per_generation`: of its private
    memory, as the verdict has it; null where it cannot be determined, and of a process that another has followed in
    its place, whose curve goes on there. `findings`: the fingerprints of those that leak, or may, and name it.
    `clock_skew_seconds`: by how much the server's clock was ahead of its own when it was first heard of, negative
    where it was behind; null where nobody knows, as of a recording that was uploaded later.
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
    """`accepted`: by a person; else the program declares it. `baseline`: no more than by the end of the first
    generation, which `low` and `high` then do not say."""

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
    # Those of the newest attempts, what ended badly first among them, and how many there are besides.
    processes: list[Process]
    processes_left_out: int
    # The newest, and how many there were before them.
    attempts: list[Attempt]
    attempts_left_out: int
    series: list[str]
    expectations: list[Expectation]
    # `added`: by a token that only adds, and not by a person.
    notes: list[dict[str, Any]]


class RunList(BaseModel):
    items: list[RunSummary]
    next: str | None


class SeriesItem(BaseModel):
    name: str
    process: str
    phase: str | None
    x: list[float]
    first: list[float]
    last: list[float]
    min: list[float]
    max: list[float]


class DamagedPart(BaseModel):
    """Snapshots of a process whose `name` (of a series, or what every snapshot has) cannot be read any more."""

    process: str
    name: str
    first_sequence: int
    last_sequence: int


class SeriesList(BaseModel):
    """`left_out`: items that matched beyond what one answer holds, of the processes that were read;
    `processes_left_out`: those that were not, of a run of very many. `damaged`: what is missing in it."""

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
    """As a list of series, of several runs. `units`: by run."""

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
    """`process`: also `child processes`, those of all of them together. `read_before_at`, `read_after_at`: when it was
    read, of several the earliest. A process that was over by a point has 0 bytes there; its last reading is earlier."""

    process: str
    read_before_at: float | None
    read_after_at: float | None


class ChangedPhase(BaseModel):
    phase: str
    bytes_change: float
    bytes_per_generation: float


class ChangedType(BaseModel):
    """`bytes_change`: its own bytes; where these are not measured, or a finding names the type, its number times what
    one keeps alive, if that is more. `counted_before_at`, `counted_after_at`: when it was counted, of several processes
    the earliest."""

    type: str
    count_before: float | None
    count_after: float | None
    count_change: float | None
    count_per_generation: float | None
    bytes_change: float | None
    counted_before_at: float | None
    counted_after_at: float | None


class BookedRange(BaseModel):
    """Generations `first` to `last` with both: those between the two points, which begin after the earlier one. Older
    ones of a very long run are reported together, and those that lie there only in part are not among them."""

    first: int
    last: int
    generations: int
    bytes: float


class Changes(BaseModel):
    """What gained most bytes first, what is unknown last. `before`, `after` and every `..._at`: generations, or
    seconds since the start where `axis` is `time`; `..._per_generation` is per `unit`. `total`: all `processes`
    together, unknown where one of them is or had fallen silent by then. `booked`: what `phases` are of, null where
    there are none."""

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
    # Name, count and bytes. As a tuple it has a form in JSON Schema that schemathesis cannot hold an answer against.
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
    """`processes_left_out`: how many are not looked at, of a run of very many; those that were heard of last are."""

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
