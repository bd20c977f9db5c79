"""Converts a log's readings into a run with one process: the header, the snapshots and the spool.

Ids are derived from the content and the import options, so importing the same file twice gives the same run, which a
server stores only once. For a file without timestamps, readings are one second apart and end at ``ended_at``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..analysis.generation_axis import UNITS_OF_TIME
from ..core.process_tree import readable_name
from ..errors import SpoolError
from ..snapshot import Batch, Event, LargeObject, ProcessIdentity, RunHeader, Snapshot
from ..transport.batching import within
from ..transport.spool_format import (
    END,
    MAGIC,
    encode_batch,
    encode_header,
    encode_record,
    read_header,
)
from .imported_log import Log, Reading, Wishes

SPACING_SECONDS: Final = 1.0
_ID_LENGTH: Final = 20
MAX_LABEL: Final = 256
MAX_TAG: Final = 64


@dataclass(frozen=True, slots=True)
class Imported:
    """A run made from a log. ``ended_at`` is the time of its last snapshot."""

    header: RunHeader
    process: ProcessIdentity
    snapshots: tuple[Snapshot, ...]

    @property
    def ended_at(self) -> float:
        return self.snapshots[-1].time

    def batches(self) -> Iterator[Batch]:
        for part in within(self.snapshots):
            yield Batch(self.process, part)


def digest_of(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def run_id_of(digest: str, project: str, name: str | None, unit: str | None, wishes: Wishes) -> str:
    """Return an id derived from the content and the options.

    Importing the same file with other options gives another run.
    """
    said = repr((digest, project, name, unit, wishes))
    return f"import-{hashlib.sha256(said.encode()).hexdigest()[:_ID_LENGTH]}"


def recorded(
    log: Log,
    digest: str,
    run_id: str,
    project: str,
    name: str | None,
    unit: str | None,
    ended_at: float,
) -> Imported:
    """Convert a log into a run. ``ended_at``: Unix time at the end of a log without absolute times."""
    log = _counted(log, unit)
    snapshots = tuple(_snapshots(log, ended_at))
    header = RunHeader(
        id=run_id,
        project=project,
        name=name or log.name or readable_name(run_id),
        unit=unit or log.unit or _unit_of(log),
        total=log.total,
        started_at=snapshots[0].time,
        phases=tuple(dict.fromkeys(s.phase for s in snapshots if s.phase))[:256],
        tags=("imported", log.form),
        config={"import": {"form": log.form, "notes": [note[:400] for note in log.notes[:32]]}},
    )
    process = ProcessIdentity(instance=f"import-{digest[:_ID_LENGTH]}")
    return Imported(header, process, snapshots)


def _counted(log: Log, unit: str | None) -> Log:
    """Number the readings as generations if the log counts no generations and its times are not used instead.

    The times are used if ``unit`` is a unit of time, or if ``unit`` is None and the log has times.
    """
    if any(reading.generation is not None for reading in log.readings):
        return log
    has_times = any(reading.time is not None for reading in log.readings)
    if unit in UNITS_OF_TIME or (unit is None and has_times):
        return log
    readings = tuple(replace(reading, generation=i) for i, reading in enumerate(log.readings))
    return replace(log, readings=readings, unit=log.unit or "step")


def _unit_of(log: Log) -> str:
    """Return "generation" if a reading has a generation, otherwise "second"."""
    counted = any(reading.generation is not None for reading in log.readings)
    return "generation" if counted else "second"


def _snapshots(log: Log, ended_at: float) -> Iterator[Snapshot]:
    times = _times(log, ended_at)
    last_of = {r.generation: i for i, r in enumerate(log.readings) if r.phase is None}
    monotonic = 0.0
    for i, (reading, time) in enumerate(zip(log.readings, times, strict=True)):
        monotonic = max(monotonic, time - times[0])
        kind = _kind(i, reading, last_of.get(reading.generation) == i)
        yield Snapshot(
            i + 1, time, monotonic, reading.generation, reading.phase, _label(reading, log.unit), kind, reading.samples,
            _events(log, i, time, reading),
            tuple(LargeObject(i + 1, name, size) for name, size in reading.large),
        )  # fmt: skip


def _kind(i: int, reading: Reading, ends_generation: bool) -> str:
    if reading.phase is not None:
        return "phase_end"
    if reading.generation is not None:
        return "generation_end" if ends_generation else "sample"
    return "baseline" if i == 0 else "sample"


def _label(reading: Reading, unit: str | None) -> str:
    if reading.label:
        return reading.label[:MAX_LABEL]
    if reading.generation is None or unit is None:
        return f"line {reading.line}"
    where = f"after {reading.phase}" if reading.phase else f"line {reading.line}"
    return f"{unit} {reading.generation}: {where}"[:MAX_LABEL]


def _events(log: Log, i: int, time: float, reading: Reading) -> tuple[Event, ...]:
    events = [
        Event(i + 1, time, "mark", mark[:200], reading.generation, reading.phase) for mark in reading.marks
    ]  # fmt: skip
    if i == 0:
        events += [
            Event(1, time, "track", name, data={"capacity": capacity})
            for name, capacity in log.capacities.items()
        ]
        events += [
            Event(1, time, "expect", name, data={"low": low, "high": high, "after": None})
            for name, (low, high) in log.expected.items()
        ]
    return tuple(events)


def _times(log: Log, ended_at: float) -> Sequence[float]:
    """Return the Unix seconds of each reading; a reading without a time gets the time of the previous reading."""
    known = [reading.time for reading in log.readings]
    if all(time is None for time in known):
        start = ended_at - SPACING_SECONDS * (len(known) - 1)
        return [max(0.0, start) + SPACING_SECONDS * i for i in range(len(known))]
    filled: list[float] = []
    before = next(time for time in known if time is not None)
    for time in known:
        before = before if time is None else time
        filled.append(before)
    if log.is_clock:
        return filled
    start = max(0.0, ended_at - filled[-1] + filled[0])
    return [start + time - filled[0] for time in filled]


def write_spool(path: Path, imported: Imported) -> None:
    """Write the spool that the process would have recorded.

    Raises SpoolError if the file cannot be written or belongs to another run.
    """
    if path.exists() and read_header(path)[0].id != imported.header.id:
        raise SpoolError(path, "is the spool of another run; choose another file name")
    ended = {"state": "finished", "ended_at": imported.ended_at, "reason": ""}
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            file.write(MAGIC + encode_header(imported.header, imported.process))
            for batch in imported.batches():
                file.write(encode_batch(batch))
            file.write(encode_record(END, ended))
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SpoolError(path, f"cannot be written ({error.strerror})") from error


def moved_to(imported: Imported, started_at: float) -> Imported:
    """Return the run with another start time, so that a file without times keeps the start time of an earlier
    import.
    """
    by = started_at - imported.snapshots[0].time
    snapshots = tuple(
        replace(s, time=s.time + by, events=tuple(replace(e, time=e.time + by) for e in s.events))
        for s in imported.snapshots
    )
    return replace(
        imported, header=replace(imported.header, started_at=started_at), snapshots=snapshots
    )
