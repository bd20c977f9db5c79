"""Snapshot and Batch: the only form in which anything travels, and the wire format.

Everything between the training loop, the spool, the server and the analysis is one of the frozen
types below. They carry numbers and names, never values of the observed program.

The wire format, version 1 (JSON, UTF-8; the spool stores the same objects):

    {"version": 1,
     "process": {"instance": str, "rank": int, "pid": int, "host": str, "role": str, "attempt": int},
     "first_sequence": int, "count": int,
     "columns": {"time": [..], "monotonic": [..], "generation": [..], "phase": [..],
                 "label": [..], "kind": [..], "series": {name: [..]}},
     "events": [Event], "large_objects": [LargeObject], "census": [Census], "holders": [Holder],
     "lost": {reason: count}}

- Every list in ``columns`` and ``series`` has ``count`` entries; the snapshot at position *i* has the
  sequence number ``first_sequence + i``. ``null`` means that a probe gave nothing, never zero.
- ``time`` is Unix seconds by the client's clock; ``monotonic`` is seconds by a clock that only goes
  forward; durations are taken from it. ``generation`` is an integer or null before the first.
- ``phase`` is the path of the phase that just ended (``"evaluate_population/run_episode"``), or null.
- ``kind`` is one of KINDS. A sender that leaves the column out means ``phase_end`` where ``phase`` is
  given and ``manual`` elsewhere.
- Bytes and counts are integers; other samples are finite numbers. NaN and infinity are refused.
- The same batch may come as rows: ``"snapshots": [{"time": .., .., "series": {name: value}}]``
  instead of ``columns`` and ``count``.
- ``lost`` holds running totals of this process instance, by reason, so that a repeated batch
  changes nothing.
- In a spool alone, never on the wire: ``"sequences": [..]``, where the sequence numbers are not consecutive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

WIRE_VERSION: Final = 1
# Of runs that nobody named a project for.
DEFAULT_PROJECT: Final = "default"
# Exact in every language that reads the format; servers refuse larger ones.
LARGEST_INTEGER: Final = 2**53
# Of what is no integer: squares and sums of it still have digits to spare.
LARGEST_FLOAT: Final = 1e15
# Single objects that a census reports, and from which size on.
LARGE_OBJECTS: Final = 20
LARGE_OBJECTS_LIMIT: Final = 64
LARGE_OBJECTS_AT_LEAST_BYTES: Final = 10 * 2**20
SMALLEST_LARGE_OBJECT_BYTES: Final = 2**20

# What a snapshot stands for. `sample` comes from the background sampler between phases.
KINDS: Final = ("baseline", "phase_end", "generation_end", "manual", "sample", "finish")

# The holder path of objects that nothing but each other refers to: the collector alone can free them.
CYCLIC_GARBAGE: Final = "<cyclic garbage>"

# What an event can be. `expect`, `track`, `gauge`, `fix`, `band` and `budget` are declarations: they travel as
# events so that a run without a server loses none of them.
EVENT_KINDS: Final = (
    "mark", "note", "cleanup", "exception", "warning", "expect", "track", "gauge", "watch", "fix", "band",
    "budget", "collection", "register_cleanup", "log",
)  # fmt: skip

Number = int | float


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of a run. ``instance`` differs for every process ever started."""

    instance: str
    rank: int = 0
    pid: int = 0
    host: str = ""
    role: str = "main"
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at the moment of the snapshot with this sequence number.

    ``data`` holds plain JSON. By kind: ``cleanup`` {before_bytes, after_bytes, freed_bytes, seconds}, where
    torch uses devices {devices: series -> [before, after]}, and of a
    registered one {because, counts: type -> [before, after]} and where it failed {error}, the type of the exception;
    ``register_cleanup`` {on_request, when: status or [series, number]};
    ``expect`` {low, high, after}; ``track`` {capacity}; ``gauge`` {warn_above}; ``exception`` {type};
    ``note`` {text, link}; ``mark`` {}; ``fix`` {phase, location, promises: name -> number, rejected};
    ``band`` {first, last, low_bytes, high_bytes}; ``budget`` {normal_bytes, leak_bytes};
    ``collection`` {generation, freed, uncollectable, seconds}, of the interpreter's generations, in objects;
    ``log`` {lines}, of what the program printed and logged since the one before.
    """

    sequence: int
    time: float
    kind: str
    name: str
    generation: int | None = None
    phase: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LargeObject:
    """One of the largest objects at a snapshot. ``bytes`` counts each underlying buffer once."""

    sequence: int
    type: str
    bytes: int
    detail: str = ""  # shape and dtype of an array or tensor, length of a container
    holder: str = ""  # path of names when it is known


@dataclass(frozen=True, slots=True)
class Census:
    """Live objects by exact type. ``types`` rows are (name, count, bytes), largest first.

    ``mode`` is ``full`` (all that is reachable from what the collector tracks, arrays included) or
    ``tracked`` (only what the collector tracks). ``coverage`` is the share of the heap looked at;
    below 1 the counts are scaled up from a sample. ``bytes`` are shallow for ordinary objects;
    arrays and tensors count the bytes of the buffers they own, once per buffer. ``null`` bytes: unknown.
    """

    sequence: int
    mode: str
    coverage: float
    objects: int
    types: tuple[tuple[str, int, int | None], ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps objects of ``type`` alive: a path of names, never values or keys.

    ``path`` reads from a root to the object: ``train.Trainer.history[*]``. ``bytes_each`` is what one more
    object of this type adds (its own memory without what it shares with its like), if measured.
    """

    sequence: int
    type: str
    path: str
    count: int
    bytes_each: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples of one process at one moment."""

    sequence: int
    time: float
    monotonic: float
    generation: int | None
    phase: str | None
    label: str
    kind: str
    samples: Mapping[str, Number]
    events: tuple[Event, ...] = ()
    large_objects: tuple[LargeObject, ...] = ()
    census: Census | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What is known of a run when a process joins it: the body of ``POST /api/v1/runs``.

    ``project`` is empty where nobody named one, and does not travel then: it is that of the token, or DEFAULT_PROJECT.
    """

    id: str
    project: str
    name: str
    unit: str
    total: int | None
    started_at: float
    phases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    # What `environment.read_environment` reports, and exact_peaks and native.
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """Snapshots of one process; those of one that travels have consecutive sequence numbers."""

    process: ProcessIdentity
    snapshots: tuple[Snapshot, ...]
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_sequence(self) -> int:
        return self.snapshots[0].sequence if self.snapshots else 0


def batch_to_wire(batch: Batch) -> dict[str, Any]:
    """The JSON object of a batch. To travel, its snapshots must have consecutive sequence numbers."""
    snapshots, first = batch.snapshots, batch.first_sequence
    sequences = [snapshot.sequence for snapshot in snapshots]
    consecutive = sequences == list(range(first, first + len(sequences)))
    return {
        "version": WIRE_VERSION,
        "process": _fields(batch.process),
        "first_sequence": first,
        "count": len(snapshots),
        **({} if consecutive else {"sequences": sequences}),
        "columns": {
            **{
                column: [getattr(s, column) for s in snapshots]
                for column in ("time", "monotonic", "generation", "phase", "label", "kind")
            },
            "series": _series_columns(snapshots),
        },
        "events": [_fields(e) for s in snapshots for e in s.events],
        "large_objects": [_fields(o) for s in snapshots for o in s.large_objects],
        "census": [_fields(s.census) for s in snapshots if s.census is not None],
        "holders": [_fields(h) for s in snapshots for h in s.holders],
        "lost": dict(batch.lost),
    }


def _series_columns(snapshots: Sequence[Snapshot]) -> dict[str, list[Number | None]]:
    if len(snapshots) == 1:
        # Most batches that a process records, on a thread that takes its time from the training.
        return {name: [value] for name, value in snapshots[0].samples.items()}
    names: dict[str, None] = {}
    for snapshot in snapshots:
        names.update(dict.fromkeys(snapshot.samples))
    return {name: [s.samples.get(name) for s in snapshots] for name in names}


def batch_from_wire(wire: Mapping[str, Any]) -> Batch:
    """The batch of a wire object that is already known to be well formed (our own spool, or checked input)."""
    columns = wire["columns"]
    extras = {
        name: _by_sequence(make, wire.get(name, ()))
        for name, make in (
            ("events", Event), ("large_objects", LargeObject), ("census", _census), ("holders", Holder),
        )
    }  # fmt: skip
    kinds: Sequence[str] = columns.get("kind") or [
        "phase_end" if phase else "manual" for phase in columns["phase"]
    ]
    snapshots = []
    for i, sequence in enumerate(sequences_of(wire)):
        censuses = extras["census"].get(sequence, ())
        snapshots.append(
            Snapshot(
                sequence=sequence,
                time=columns["time"][i],
                monotonic=columns["monotonic"][i],
                generation=columns["generation"][i],
                phase=columns["phase"][i],
                label=columns["label"][i],
                kind=kinds[i],
                samples={
                    name: values[i]
                    for name, values in columns["series"].items()
                    if values[i] is not None
                },
                events=tuple(extras["events"].get(sequence, ())),
                large_objects=tuple(extras["large_objects"].get(sequence, ())),
                census=censuses[-1] if censuses else None,
                holders=tuple(extras["holders"].get(sequence, ())),
            )
        )
    return Batch(ProcessIdentity(**wire["process"]), tuple(snapshots), dict(wire.get("lost", {})))


def sequences_of(wire: Mapping[str, Any]) -> Sequence[int]:
    """The sequence numbers of a wire object that is already known to be well formed."""
    first, count = int(wire["first_sequence"]), int(wire["count"])
    return wire.get("sequences") or range(first, first + count)


def header_to_wire(header: RunHeader) -> dict[str, Any]:
    wire = _fields(header)
    if not header.project:
        del wire["project"]
    return wire


def header_from_wire(wire: Mapping[str, Any]) -> RunHeader:
    known = {name: wire[name] for name in RunHeader.__dataclass_fields__ if name in wire}
    known.setdefault("project", "")
    known["phases"] = tuple(known.get("phases", ()))
    known["tags"] = tuple(known.get("tags", ()))
    return RunHeader(**known)


def _fields(thing: Any) -> dict[str, Any]:
    # Not dataclasses.asdict: it deep-copies, and this runs for every batch.
    return {name: getattr(thing, name) for name in thing.__dataclass_fields__}


def _census(**row: Any) -> Census:
    row["types"] = tuple((name, count, size) for name, count, size in row["types"])
    return Census(**row)


def _by_sequence(make: Any, rows: Iterable[Mapping[str, Any]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row["sequence"], []).append(make(**row))
    return found
