"""Snapshot and Batch, the types that carry all measurements, and the wire format.

Everything that passes between the training loop, the spool, the server and the analysis is one of the frozen types
below. These types carry numbers and names, never values of the observed program.

The wire format, version 2, little-endian (a spool stores the same bytes, `transport/spool_format.py`):

    batch   =  magic length head numbers
    magic   =  b"LEAK"                                                                   4 bytes
    length  =  size of the head in bytes                                                 4 bytes, unsigned
    head    =  JSON, UTF-8, padded with spaces to a multiple of 8 bytes:
               {"version": 2,
                "process": {"instance": str, "rank": int, "pid": int, "host": str, "role": str, "attempt": int},
                "first_sequence": int, "count": int,
                "generation": [..], "phase": [..], "label": [..], "kind": [..], "integers": [name], "floats": [name],
                "events": [Event], "large_objects": [LargeObject], "census": [Census], "holders": [Holder],
                "lost": {reason: count}}
    numbers =  columns of ``count`` numbers, one after the other: time and monotonic as doubles, each series in
               ``integers`` as signed integers, each in ``floats`` as doubles             8 bytes a number

- Every column and every list from ``generation`` to ``kind`` has ``count`` entries; the snapshot at index *i* has the
  sequence number ``first_sequence + i``.
- A missing value is -2**63 in integer columns and NaN in double columns, never zero. Infinity is refused.
- ``time`` is Unix seconds by the client's clock. ``monotonic`` is the time of a monotonic clock in seconds, used for
  durations. ``generation`` is an integer, or null before the first generation.
- ``phase`` is the path of the phase that just ended (``"evaluate_population/run_episode"``), or null.
- ``kind`` is one of KINDS.
- Bytes and counts are integers. A series with at least one float in the batch is encoded as doubles.
- ``lost`` contains this process instance's running totals by reason, so a repeated batch changes nothing.
- Only in spools, never on the wire: ``"sequences": [..]`` if the sequence numbers are not consecutive.

Version 1 is one JSON object with the same keys. Servers and readers of spools still accept version 1, and programs that
do not use our client send it. Numbers and lists are in ``"columns": {"time": [..], "monotonic": [..], "generation":
[..], "phase": [..], "label": [..], "kind": [..], "series": {name: [..]}}``, with null for a missing value. A server
also accepts rows: ``"snapshots": [{"time": .., .., "series": {name: value}}]`` instead of ``columns`` and ``count``.
Without ``kind``, a snapshot is a ``phase_end`` if it has a ``phase`` and ``manual`` otherwise.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

WIRE_VERSION: Final = 2
JSON_VERSION: Final = 1
# Start of a version 2 batch; no JSON document starts with it.
MAGIC: Final = b"LEAK"
PREFIX: Final = struct.Struct("<4sI")
CONTENT_TYPE: Final = "application/vnd.leakline.batch"
# Marks a missing value in an integer column.
ABSENT: Final = -(2**63)
# Project of runs that do not declare a project.
DEFAULT_PROJECT: Final = "default"
# What a generation is called until the program calls it an epoch, an episode or a step.
DEFAULT_UNIT: Final = "generation"
# Every language that reads the format represents integers up to this limit exactly. Servers refuse larger integers.
LARGEST_INTEGER: Final = 2**53
# Limit for non-integers, low enough that their squares and sums do not overflow.
LARGEST_FLOAT: Final = 1e15
# Default number of individual objects that a census reports, and the default minimum size of such an object.
LARGE_OBJECTS: Final = 20
LARGE_OBJECTS_LIMIT: Final = 64
LARGE_OBJECTS_AT_LEAST_BYTES: Final = 10 * 2**20
SMALLEST_LARGE_OBJECT_BYTES: Final = 2**20

# Occasions on which a snapshot is taken. `sample` comes from the background sampler between phases.
KINDS: Final = ("baseline", "phase_end", "generation_end", "manual", "sample", "finish")

# Holder path of objects that are referenced only by each other, so that only the garbage collector can free them.
CYCLIC_GARBAGE: Final = "<cyclic garbage>"
# Type name under which the chain of autograd nodes behind a tensor is reported: the base class of all nodes.
GRAPH_NODE: Final = "torch.autograd.graph.Node"

# Kinds of events. `expect`, `track`, `gauge`, `fix`, `band` and `budget` are declarations. They are recorded as events
# so that the recording of a run without a server contains them.
EVENT_KINDS: Final = (
    "mark", "note", "cleanup", "exception", "warning", "expect", "track", "gauge", "watch", "fix", "band",
    "budget", "collection", "register_cleanup", "log",
)  # fmt: skip

Number = int | float


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of a run. ``instance`` is unique among all processes of all runs."""

    instance: str
    rank: int = 0
    pid: int = 0
    host: str = ""
    role: str = "main"
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """An event that is recorded with the snapshot of the same sequence number.

    ``data`` is plain JSON and depends on the kind:

    ``cleanup`` {before_bytes, after_bytes, freed_bytes, seconds}; {devices: series -> [before, after]} if torch uses
    devices; a registered cleanup also has {because, counts: type -> [before, after]}, and {error}, an exception type,
    if it failed;
    ``register_cleanup`` {on_request, when: status or [series, number]};
    ``expect`` {low, high, after}; ``track`` {capacity}; ``gauge`` {warn_above}; ``exception`` {type};
    ``note`` {text, link}; ``mark`` {}, or {worker, types, holder, share} for a scan of a child process, with the
    share of its growth that is explained; ``fix`` {phase, location, promises: name -> number, rejected};
    ``band`` {first, last, low_bytes, high_bytes}; ``budget`` {normal_bytes, leak_bytes};
    ``collection`` {generation, freed, uncollectable, seconds}, a run of Python's garbage collector, counted in objects;
    ``log`` {lines}, printed and logged by the program since the previous ``log`` event.
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
    """One of the largest objects at the time of a snapshot. ``bytes`` counts each underlying buffer once."""

    sequence: int
    type: str
    bytes: int
    detail: str = ""  # Shape and dtype of an array or tensor, or the length of a container.
    holder: str = ""  # Path of names that leads to the object, if known.


@dataclass(frozen=True, slots=True)
class Census:
    """Live objects by exact type. ``types`` rows are (name, count, bytes), largest first.

    ``mode`` is ``full`` (everything reachable from the objects that the garbage collector tracks, arrays included)
    or ``tracked`` (tracked objects only). ``coverage`` is the fraction of the heap that was scanned; below 1, the
    counts are scaled up from a sample. ``bytes`` are shallow sizes of ordinary objects; arrays and tensors count
    the buffers they own, once per buffer. ``bytes`` is null if the size is unknown.
    """

    sequence: int
    mode: str
    coverage: float
    objects: int
    types: tuple[tuple[str, int, int | None], ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """A path of names that keeps objects of ``type`` alive. The path never contains values or keys.

    ``path`` leads from a root to the object: ``train.Trainer.history[*]``. ``bytes_each``, if measured, is the memory
    that each additional object of this type needs, without parts that the objects share.
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
    """The data that a process sends when it joins a run: most of the body of ``POST /api/v1/runs``.

    An empty ``project`` is not sent. In that case the server uses the token's project, or otherwise DEFAULT_PROJECT.
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
    # The result of `environment.read_environment`, with the additional keys exact_peaks and native.
    environment: Mapping[str, Any] = field(default_factory=dict)
    # If "must", only an existing run is joined. If "never", only the first attempt of a run is.
    resume: str = "allow"


@dataclass(frozen=True, slots=True)
class Batch:
    """Snapshots of one process. Batches that are sent have consecutive sequence numbers; batches in a spool may not."""

    process: ProcessIdentity
    snapshots: tuple[Snapshot, ...]
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_sequence(self) -> int:
        return self.snapshots[0].sequence if self.snapshots else 0


def batch_to_bytes(batch: Batch) -> bytes:
    """Encode a batch in the wire format. A batch to be sent must have consecutive sequence numbers.

    Raises ValueError if a number is not finite, and OverflowError if an integer exceeds 64 bits.
    """
    snapshots, first = batch.snapshots, batch.first_sequence
    sequences = [snapshot.sequence for snapshot in snapshots]
    consecutive = sequences == list(range(first, first + len(sequences)))
    integers, floats, numbers = _number_columns(snapshots)
    head = {
        "version": WIRE_VERSION,
        "process": _fields(batch.process),
        "first_sequence": first,
        "count": len(snapshots),
        **({} if consecutive else {"sequences": sequences}),
        **{column: [getattr(s, column) for s in snapshots] for column in _TEXT_COLUMNS},
        "integers": integers,
        "floats": floats,
        "events": [_fields(e) for s in snapshots for e in s.events],
        "large_objects": [_fields(o) for s in snapshots for o in s.large_objects],
        "census": [_fields(s.census) for s in snapshots if s.census is not None],
        "holders": [_fields(h) for s in snapshots for h in s.holders],
        "lost": dict(batch.lost),
    }
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    columns = [_little_endian(column) for column in numbers]
    return b"".join((PREFIX.pack(MAGIC, len(text)), text, *columns))


_TEXT_COLUMNS: Final = ("generation", "phase", "label", "kind")


def _number_columns(
    snapshots: Sequence[Snapshot],
) -> tuple[list[str], list[str], tuple[array[Any], ...]]:
    """Return the names of the integer series and of the float series, and the columns (times, integers, floats)."""
    rows = [snapshot.samples for snapshot in snapshots]
    fractions = [(n, v) for row in rows for n, v in row.items() if isinstance(v, float)]
    if not all(math.isfinite(value) for _, value in fractions):
        raise ValueError("a number is not finite")
    float_names = dict(fractions)
    names = dict.fromkeys(chain.from_iterable(rows))
    integer_names = [name for name in names if name not in float_names]
    getters = [row.get for row in rows]
    times = array("d", [s.time for s in snapshots] + [s.monotonic for s in snapshots])
    integers = array("q", [get(name, ABSENT) for name in integer_names for get in getters])
    floats = array("d", [get(name, math.nan) for name in float_names for get in getters])
    return integer_names, list(float_names), (times, integers, floats)


def _little_endian(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def batch_from_bytes(data: bytes) -> Batch:
    """Decode a batch of either version. The batch must be well formed: read from a spool, or already validated."""
    if not data.startswith(MAGIC):
        wire = json.loads(data)
        columns = wire["columns"]
        series, count = columns["series"], len(columns["time"])
        rows: list[dict[str, Number]] = [
            {name: values[i] for name, values in series.items() if values[i] is not None}
            for i in range(count)
        ]
        return _batch({**wire, **columns}, columns["time"], columns["monotonic"], rows)
    start = PREFIX.size + PREFIX.unpack_from(data)[1]
    head = json.loads(data[PREFIX.size : start])
    count, names, float_names = head["count"], head["integers"], head["floats"]
    middle = start + 8 * count * (2 + len(names))
    times = _read("d", data[start : start + 16 * count])
    integers, floats = _read("q", data[start + 16 * count : middle]), _read("d", data[middle:])
    rows = [
        {name: v for name, v in zip(names, integers[i::count], strict=True) if v != ABSENT}
        # Skip missing values: NaN is not equal to itself.
        | {name: v for name, v in zip(float_names, floats[i::count], strict=True) if v == v}
        for i in range(count)
    ]
    return _batch(head, times[:count].tolist(), times[count:].tolist(), rows)


def _read(code: str, data: bytes) -> array[Any]:
    numbers = array(code, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _batch(
    wire: Mapping[str, Any],
    times: Sequence[float],
    monotonic: Sequence[float],
    samples: Sequence[Mapping[str, Number]],
) -> Batch:
    extras = {
        name: _by_sequence(make, wire.get(name, ()))
        for name, make in (
            ("events", Event), ("large_objects", LargeObject), ("census", _census), ("holders", Holder),
        )
    }  # fmt: skip
    kinds = wire.get("kind") or ["phase_end" if phase else "manual" for phase in wire["phase"]]
    first = wire["first_sequence"]
    sequences = wire.get("sequences") or range(first, first + len(samples))
    snapshots = []
    for i, sequence in enumerate(sequences):
        censuses = extras["census"].get(sequence, ())
        snapshots.append(
            Snapshot(
                sequence=sequence,
                time=times[i],
                monotonic=monotonic[i],
                generation=wire["generation"][i],
                phase=wire["phase"][i],
                label=wire["label"][i],
                kind=kinds[i],
                samples=samples[i],
                events=tuple(extras["events"].get(sequence, ())),
                large_objects=tuple(extras["large_objects"].get(sequence, ())),
                census=censuses[-1] if censuses else None,
                holders=tuple(extras["holders"].get(sequence, ())),
            )
        )
    return Batch(ProcessIdentity(**wire["process"]), tuple(snapshots), dict(wire.get("lost", {})))


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
    # Do not use dataclasses.asdict, which makes deep copies: this code runs for every batch.
    return {name: getattr(thing, name) for name in thing.__dataclass_fields__}


def _census(**row: Any) -> Census:
    row["types"] = tuple((name, count, size) for name, count, size in row["types"])
    return Census(**row)


def _by_sequence(make: Any, rows: Iterable[Mapping[str, Any]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row["sequence"], []).append(make(**row))
    return found
