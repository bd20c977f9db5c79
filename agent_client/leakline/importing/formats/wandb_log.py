"""A W&B run as it lies on the disk (`run-*.wandb`), offline or not: memory of its system metrics and of its history.

The package `wandb` does not replace this reader: 0.31 has no Python reader of its files (`wandb.sdk.internal.datastore`
is gone), and installs 56 MB and a dozen other packages. The framing and the numbers of the protobuf fields are stable
(`wandb_framing.py`, `protobuf.py`), and a test reads what the package writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...snapshot import LARGEST_INTEGER, Number
from ..column_names import Meaning, meaning_of
from ..imported_log import (
    BY_TIME,
    MAX_FILE_BYTES,
    MAX_MEMORY_BYTES,
    MAX_MOMENT,
    ImportRefused,
    Log,
    Reading,
    Wishes,
)
from ..reading_thinning import taken
from ..text_lines import plain
from .protobuf import NotProtobuf, Value, fields_of, signed, text
from .tracker_metrics import chosen_metrics, note_of
from .wandb_framing import records_of

# Fields of a Record, and of what it holds.
_HISTORY, _STATS, _RUN = 2, 7, 17
_ITEM, _STATS_TIME = 3, 2
_KEY, _NESTED, _INTEGER, _DOUBLE, _JSON = 1, 2, 5, 6, 16
_RUN_PROJECT, _RUN_NAME, _RUN_START = 3, 8, 17
# What its own monitor calls things, which it counts in units of 2^20 bytes.
_SYSTEM: Final = {
    "proc.memory.rssMB": ("process.rss_bytes", 2**20),
    "proc.memory.availableMB": ("system.available_bytes", 2**20),
    "proc.cpu.threads": ("process.threads", 1),
}
_GPU: Final = re.compile(r"gpu\.(process\.)?(\d{1,3})\.memoryAllocatedBytes")
_STEP: Final = "_step"
_AXES: Final = ("generation", "episode", "epoch")
MAX_NAMES: Final = 5_000


@dataclass(slots=True)
class _Found:
    """What the records have told so far."""

    axis: str | None = None
    history_memory: bool = False
    generation: int | None = None
    project: str | None = None
    name: str | None = None
    notes: dict[str, None] = field(default_factory=dict)


def read_wandb(path: Path, wishes: Wishes) -> Log:
    """Raises ImportRefused."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ImportRefused(path, f"has more than {MAX_FILE_BYTES // 2**20} MiB")
    names = _names_logged(path, wishes)
    metrics = chosen_metrics(path, names, wishes)
    found = _Found(axis=next((axis for axis in _AXES if axis in names), None))
    if found.axis is None and metrics:
        found.axis = _STEP
    every_reading = (
        reading
        for number, record in enumerate(_records(path), 1)
        for reading in _take(path, number, record, metrics, found)
    )
    readings = taken(path, every_reading, wishes.every)
    notes = [*found.notes, *(note_of(name, meaning) for name, meaning in metrics.items())]
    notes.append(_told_axis(found.axis))
    unit = "step" if found.axis == _STEP else found.axis
    return Log(
        "wandb", readings, unit, notes=tuple(notes), is_clock=True, project=found.project, name=found.name
    )  # fmt: skip


def _told_axis(axis: str | None) -> str:
    if axis is None:
        return f"nothing logged counts generations, {BY_TIME}"
    return f"the generations are those of {axis!r} in the history"


def _records(path: Path) -> Iterator[dict[int, Value]]:
    for number, record in enumerate(records_of(path), 1):
        try:
            yield dict(fields_of(record))
        except NotProtobuf as error:
            raise ImportRefused(path, f"is no record of W&B ({error})", number) from error


def _names_logged(path: Path, wishes: Wishes) -> list[str]:
    """Return the names in the history, in the order in which they were first logged; of very many those that may
    matter. Without an axis that has fractions, such as 0.25 epochs: W&B's own steps tell its readings apart.
    """
    names: dict[str, None] = {}
    fractions: set[str] = set()
    for number, record in enumerate(_records(path), 1):
        if isinstance(history := record.get(_HISTORY), bytes):
            for name, value in _items(path, number, history, 1).items():
                if name in _AXES and not value.is_integer():
                    fractions.add(name)
                if len(names) < MAX_NAMES or (
                    len(names) < 2 * MAX_NAMES and _matters(name, wishes)
                ):
                    names[name] = None
    return [name for name in names if name not in fractions]


def _matters(name: str, wishes: Wishes) -> bool:
    return name in (*_AXES, _STEP, wishes.memory) or meaning_of(name).role == "memory"


def _take(
    path: Path,
    number: int,
    record: Mapping[int, Value],
    metrics: Mapping[str, Meaning],
    found: _Found,
) -> Iterator[Reading]:
    if isinstance(run := record.get(_RUN), bytes):
        told = dict(_fields(path, number, run))
        found.project = found.project or plain(text(told.get(_RUN_PROJECT, b""))).strip() or None
        found.name = found.name or plain(text(told.get(_RUN_NAME, b""))).strip() or None
    elif isinstance(stats := record.get(_STATS), bytes):
        samples = _system_samples(path, number, stats)
        moment = dict(_fields(path, number, stats)).get(_STATS_TIME)
        if "process.rss_bytes" in samples and isinstance(moment, bytes):
            found.notes["W&B calls 2^20 bytes MB: read as MiB"] = None
            yield Reading(number, samples, _seconds(path, number, moment), found.generation)
    elif isinstance(history := record.get(_HISTORY), bytes):
        yield from _take_history(path, number, _items(path, number, history, 1), metrics, found)


def _take_history(
    path: Path,
    number: int,
    items: Mapping[str, float],
    metrics: Mapping[str, Meaning],
    found: _Found,
) -> Iterator[Reading]:
    if found.axis is not None and found.axis in items:
        found.generation = _generation(path, number, found.axis, items[found.axis])
    samples: dict[str, Number] = {
        meaning.series: _size(path, number, name, items[name] * (meaning.factor or 1.0))
        for name, meaning in metrics.items()
        if name in items
    }
    if samples:
        time = items.get("_timestamp")
        if time is not None and not 0 <= time < MAX_MOMENT:
            raise ImportRefused(path, f"record {number}: a _timestamp of {time:g} is no time")
        yield Reading(number, samples, time, found.generation)


def _generation(path: Path, number: int, axis: str, value: float) -> int:
    if abs(value) > LARGEST_INTEGER:
        raise ImportRefused(path, f"record {number}: {value:g} is no number of the {axis[:60]}")
    return int(value)


def _system_samples(path: Path, number: int, stats: bytes) -> dict[str, Number]:
    samples: dict[str, Number] = {}
    for name, value in _items(path, number, stats, _ITEM).items():
        if name in _SYSTEM:
            series, factor = _SYSTEM[name]
            samples[series] = _size(path, number, name, value * factor)
        elif gpu := _GPU.fullmatch(name):
            kind = "process_bytes" if gpu[1] else "used_bytes"
            samples[f"gpu.{int(gpu[2])}.{kind}"] = _size(path, number, name, value)
    return samples


def _items(path: Path, number: int, message: bytes, item_field: int) -> dict[str, float]:
    """Name -> number, of the items of a record that are numbers."""
    found: dict[str, float] = {}
    for field_number, value in _fields(path, number, message):
        if field_number == item_field and isinstance(value, bytes):
            parts = list(_fields(path, number, value))
            keys = [text(part) for at, part in parts if at in (_KEY, _NESTED) and part != b""]
            told = dict(parts)
            amount = _amount(told)
            if keys and amount is not None and math.isfinite(amount):
                found[plain("/".join(keys))[:200]] = amount
    return found


def _amount(told: Mapping[int, Value]) -> float | None:
    if _INTEGER in told:
        return float(signed(told[_INTEGER]))
    if isinstance(number := told.get(_DOUBLE), float):
        return number
    try:
        value = json.loads(text(told.get(_JSON, b"null"))[:400])
    except (ValueError, RecursionError):
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None


def _fields(path: Path, number: int, message: bytes) -> Iterator[tuple[int, Value]]:
    try:
        yield from fields_of(message)
    except NotProtobuf as error:
        raise ImportRefused(path, f"record {number} is not what W&B writes ({error})") from error


def _seconds(path: Path, number: int, moment: bytes) -> float:
    told = dict(_fields(path, number, moment))
    time = signed(told.get(1, 0)) + signed(told.get(2, 0)) / 1e9
    if not 0 <= time < MAX_MOMENT:
        raise ImportRefused(path, f"record {number}: {time:g} is no time")
    return time


def _size(path: Path, number: int, name: str, value: float) -> int:
    if not 0 <= value <= MAX_MEMORY_BYTES:
        raise ImportRefused(
            path, f"record {number}: {name[:60]} of {value:g} bytes is no size that a process has"
        )
    return round(value)
