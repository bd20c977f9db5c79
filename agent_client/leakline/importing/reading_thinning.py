"""Readings, counted and joined as they are read, so that what is kept of a file of any length is bounded.

Knows no form of a file, and nothing of what is in a reading beyond its generation, its phase and its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from . import imported_log
from .imported_log import ImportRefused, Reading

MEMORY: Final = "process.rss_bytes"


def taken(path: Path, readings: Iterable[Reading], every: int) -> tuple[Reading, ...]:
    """All of them, ``every`` so many joined. Raises ImportRefused where there are too many, and says what helps."""
    kept: list[Reading] = []
    count = stretches = 0
    where: tuple[int | None, str | None] | None = None
    for reading in _thinned(readings, every) if every > 1 else readings:
        count += 1
        here = (reading.generation, reading.phase)
        stretches += here != where
        where = here
        if count <= imported_log.MAX_READINGS:
            kept.append(reading)
        else:
            kept.clear()
    if count > imported_log.MAX_READINGS:
        raise ImportRefused(path, _too_many(count, stretches, every))
    return tuple(kept)


def _too_many(count: int, stretches: int, every: int) -> str:
    limit = imported_log.MAX_READINGS
    if stretches > limit:
        return f"has {count:,} readings of {stretches:,} generations, {limit:,} are taken; cut it into parts"
    times = every * -(-count // limit)
    return f"has {count:,} readings, {limit:,} are taken; join them with --every {times}"


def _thinned(readings: Iterable[Reading], every: int) -> Iterator[Reading]:
    """The last of so many, with the highest memory of them all as its peak; never across generations or phases."""
    together: list[Reading] = []
    for reading in readings:
        last = together[-1] if together else reading
        if len(together) >= every or (last.generation, last.phase) != (
            reading.generation,
            reading.phase,
        ):
            yield _joined(together)
            together = []
        together.append(reading)
    if together:
        yield _joined(together)


def _joined(together: Sequence[Reading]) -> Reading:
    highs = [reading.samples[MEMORY] for reading in together if MEMORY in reading.samples]
    last = together[-1]
    if len(highs) < 2:
        return last
    return replace(last, samples={**last.samples, "process.peak_bytes": max(highs)})
