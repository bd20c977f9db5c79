"""Shortens a full spool: chooses which snapshots to remove, and writes a copy without them.

1. Phase ends and samples: of every four neighbors of the same phase, the two between the lowest and the highest RSS are
   removed. Snapshots that the server has go first, then unsent snapshots, oldest first, in as many rounds as needed.
2. Generation ends are thinned in the same way, beginning where they are densest, so that the entire run stays visible.
   The first generation end is never removed in this step.
3. The oldest snapshots of any kind.

The first snapshot and the newest snapshot are always kept. Snapshots with a new declaration are removed only when
nothing else is left, oldest first, because the size limit is strict. Manual snapshots, the last snapshot of a run, and
snapshots with holders, a census or events (other than collections and log lines) are kept until step 3.
"""

from __future__ import annotations

import errno
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..runtime.file_descriptor import Descriptor
from ..snapshot import Batch, Snapshot
from .batching import SNAPSHOTS_PER_RECORD
from .spool_format import BATCH, MAGIC, Record, encode_batch, is_live, read_open

STAYS, THINNED, DROPPED = 0, 1, 2
FREQUENT, GENERATION, LASTING, FIXED = 0, 1, 2, 3
_STANDING: Final = {"phase_end": FREQUENT, "sample": FREQUENT, "generation_end": GENERATION}
# Declarations, which the analysis and the pages require. Each declaration is reported only once, in the next snapshot.
DECLARATIONS: Final = frozenset(
    {"expect", "track", "gauge", "watch", "fix", "band", "budget", "register_cleanup"}
)
# Events that are recorded automatically; in some programs, every snapshot contains some.
ROUTINE: Final = frozenset({"collection", "log"})
NEIGHBOURS: Final = 4
WRITE_BYTES: Final = 256 * 1024
# Snapshots are merged into one record only if the size of their original records adds up to no more than this.
MERGED_BYTES: Final = 64 * 1024
# One in this many groups of records is encoded as a single record to measure its size.
TRIED_STRETCHES: Final = 8
# Choosing among this many snapshots takes about a millisecond.
STEP_SNAPSHOTS: Final = 5000
GROUPS_LIMIT: Final = 1000
# A file younger than this may belong to another process that is about to lock it.
LEFTOVER_SECONDS: Final = 60.0


class Contents:
    """The data that decides which snapshots are kept, in file order, at about 16 bytes per snapshot."""

    def __init__(self) -> None:
        self.standings = bytearray()
        # `sizes`: the expected bytes of each snapshot in the copy.
        self.sequences, self.sizes = array("I"), array("I")
        self.resident = array("f")
        self.groups = array("H")
        # Number of snapshots in each record of the file, and the offset after the last record.
        self.records = array("H")
        self.end = 0
        # How many snapshots, counted from the oldest, the server already has.
        self.sent = 0
        self._phases: dict[str | None, int] = {}
        self._declared: set[int] = set()
        self._trial = _Trial()

    def add(self, record: Record, *, sent: bool) -> None:
        self.end = record.end
        if record.kind != BATCH:
            self.records.append(0)
            return
        batch = record.batch()
        count = len(batch.snapshots)
        self.records.append(count)
        if not count:
            return
        for snapshot in batch.snapshots:
            standing = self._standing(snapshot)
            self.standings.append(standing if self.standings else FIXED)
            self.sequences.append(snapshot.sequence)
            self.sizes.append((record.end - record.start) // count)
            self.resident.append(snapshot.samples.get("process.rss_bytes", 0))
            self.groups.append(self._group(snapshot.phase))
        self.sent += count if sent else 0
        self._trial.add(batch, record.end - record.start, self.sizes)

    def _group(self, phase: str | None) -> int:
        if phase not in self._phases and len(self._phases) >= GROUPS_LIMIT:
            return 0
        return self._phases.setdefault(phase, len(self._phases))

    def _standing(self, snapshot: Snapshot) -> int:
        found = _STANDING.get(snapshot.kind, LASTING)
        if snapshot.holders or snapshot.census is not None:
            found = LASTING
        for event in snapshot.events:
            if event.kind in DECLARATIONS:
                key = hash((event.kind, event.name, repr(event.data)))
                # Loops tend to repeat the same declarations in every generation.
                if key not in self._declared:
                    self._declared.add(key)
                    found = FIXED
            elif event.kind not in ROUTINE and found != FIXED:
                found = LASTING
        return found


class _Trial:
    """A correction of the expected sizes.

    One in eight groups of records is encoded as a single record, as in the copy.
    """

    def __init__(self) -> None:
        self._stretches = self._stored = self._begin = 0
        self._ratio = 1.0
        self._batches: list[Batch] = []

    def add(self, batch: Batch, stored: int, sizes: array[int]) -> None:
        self._stored += stored
        if self._stretches % TRIED_STRETCHES == 0:
            self._batches.append(batch)
        if len(sizes) - self._begin < SNAPSHOTS_PER_RECORD and self._stored < MERGED_BYTES:
            return
        if self._batches:
            together = tuple(s for each in self._batches for s in each.snapshots)
            encoded = encode_batch(replace(self._batches[-1], snapshots=together))
            self._ratio = min(1.0, len(encoded) / self._stored)
            self._batches.clear()
        for i in range(self._begin, len(sizes)):
            sizes[i] = max(1, int(sizes[i] * self._ratio))
        self._stretches, self._stored, self._begin = self._stretches + 1, 0, len(sizes)


def choose(contents: Contents, room: int) -> bytearray:
    """Return STAYS, THINNED or DROPPED for each snapshot.

    If possible, the remaining snapshots fit into ``room`` bytes.
    """
    choice = Choice(contents, room)
    for _ in choice.steps():
        pass
    return choice.fates


class Choice:
    """A choice of the snapshots to remove.

    After all ``steps``, ``fates`` contains STAYS, THINNED or DROPPED for each snapshot.
    """

    def __init__(self, contents: Contents, room: int) -> None:
        self._contents = contents
        self.fates = bytearray(len(contents.standings))
        self.too_much = sum(contents.sizes) - room
        # True if the last round removed a snapshot.
        self._took = False

    def steps(self) -> Iterator[None]:
        """Choose the snapshots to remove, in steps of at most STEP_SNAPSHOTS snapshots."""
        count = len(self.fates)
        for end in (self._contents.sent, count):
            self._took = True
            while self.too_much > 0 and self._took:
                yield from self._thin(FREQUENT, range(end))
        if self.too_much > 0:
            standings = self._contents.standings
            ends = array("I", (i for i in range(count) if standings[i] == GENERATION))
            yield from self._thin_densest(ends[1:])
        yield from self._drop()

    def _thin_densest(self, ends: array[int]) -> Iterator[None]:
        """Thin the four closest neighbors first and then wider groups, so that no part of the run disappears."""
        numbers = self._contents.sequences
        if len(ends) < NEIGHBOURS:
            return
        span = min(numbers[ends[i + 3]] - numbers[ends[i]] for i in range(len(ends) - 3))
        while self.too_much > 0:
            yield from self._thin(GENERATION, ends, span)
            if not self._took:
                if span > numbers[ends[-1]] - numbers[ends[0]]:
                    return
                span = span * 3 // 2 + 1

    def _thin(
        self, standing: int, stretch: Iterable[int], span: int | None = None
    ) -> Iterator[None]:
        """Run one round of thinning, until the remaining snapshots fit.

        Neighbors are thinned only if they are at most ``span`` sequence numbers apart.
        """
        contents, groups = self._contents, dict[int, list[int]]()
        newest = len(self.fates) - 1
        self._took = False
        for looked, i in enumerate(stretch, 1):
            if self.too_much <= 0:
                return
            if looked % STEP_SNAPSHOTS == 0:
                yield
            if self.fates[i] == STAYS and contents.standings[i] == standing and i != newest:
                group = groups.setdefault(contents.groups[i], [])
                group.append(i)
                if len(group) < NEIGHBOURS:
                    continue
                if span is not None and contents.sequences[i] - contents.sequences[group[0]] > span:
                    del group[0]
                    continue
                for each in _between(group, contents.resident):
                    self._take(each, THINNED)
                group.clear()
                self._took = True

    def _drop(self) -> Iterator[None]:
        """Drop the oldest snapshots until the remaining snapshots fit."""
        for highest in (LASTING, FIXED):
            for i in range(1, len(self.fates) - 1):
                if self.too_much <= 0:
                    return
                if i % STEP_SNAPSHOTS == 0:
                    yield
                if self.fates[i] == STAYS and self._contents.standings[i] <= highest:
                    self._take(i, DROPPED)

    def _take(self, i: int, fate: int) -> None:
        self.fates[i] = fate
        self.too_much -= self._contents.sizes[i]


def _between(group: list[int], resident: array[float]) -> list[int]:
    """Return all snapshots except the two with the lowest and the highest RSS.

    If all have the same RSS, the first and the third are left out.
    """
    low, high = min(group, key=resident.__getitem__), max(group, key=resident.__getitem__)
    if low == high:
        low, high = group[0], group[2]
    return [i for i in group if i not in (low, high)]


class ShorterFile:
    """A copy without the removed snapshots, made step by step while the original is still being written.

    The remaining snapshots of neighboring records are merged into records of the usual size. In separate records, they
    would repeat every name, and the copy of a thinned file could be larger than the original.
    """

    def __init__(self, path: Path, fd: Descriptor) -> None:
        self.path, self.fd, self.size = path, fd, 0
        self._waiting = bytearray(MAGIC)
        self._together: list[Snapshot] = []
        self._newest: Batch | None = None
        self._stored = 0
        # The offset of each written record, and the newest sequence number up to the end of that record.
        self._starts, self._numbers = array("Q"), array("I")

    def copy(self, source: int, contents: Contents, fates: bytearray) -> Iterator[int]:
        """Copy the records that ``contents`` describes.

        Each step copies one record and yields its size in the old file.
        """
        at = 0
        records = read_open(source, 0, self.path)
        for record, count in zip(records, contents.records, strict=False):
            at += count
            self._copy(record, fates[at - count : at], contents.sequences[at - 1] if at else 0)
            yield record.end - record.start
        self._write_together()

    def _copy(self, record: Record, fates: bytearray, newest: int) -> None:
        stays, size = fates.count(STAYS), record.end - record.start
        whole = stays == len(fates) and (not stays or stays >= SNAPSHOTS_PER_RECORD // 2)
        if whole or self._stored + size > MERGED_BYTES:
            self._write_together()
        if whole:
            self._note(newest)
            self._put(record.encoded())
        elif stays:
            self._newest = batch = record.batch()
            kept = (s for s, fate in zip(batch.snapshots, fates, strict=True) if fate == STAYS)
            self._together += kept
            self._stored += size
            if len(self._together) >= SNAPSHOTS_PER_RECORD:
                self._write_together()

    def _write_together(self) -> None:
        if self._newest is not None:
            self._note(self._together[-1].sequence)
            self._put(encode_batch(replace(self._newest, snapshots=tuple(self._together))))
        self._newest, self._stored = None, 0
        self._together.clear()

    def _note(self, newest: int) -> None:
        self._starts.append(self.size + len(self._waiting))
        self._numbers.append(max(newest, self._numbers[-1] if self._numbers else 0))

    def copy_piece(self, source: int, start: int, end: int) -> int:
        """Copy a piece of the later data unchanged, and return the offset after it."""
        chunk = os.pread(source, min(WRITE_BYTES, end - start), start)
        if not chunk:
            raise OSError(errno.EIO, "the spool was truncated")
        self._put(chunk)
        return start + len(chunk)

    def written(self) -> int:
        """Return the length of the file including buffered data."""
        return self.size + len(self._waiting)

    def behind(self, sequence: int, otherwise: int) -> int:
        """Return the offset of the first record with a snapshot after ``sequence``.

        If `copy` wrote no such record, the result is ``otherwise``.
        """
        number = bisect_right(self._numbers, sequence)
        return self._starts[number] if number < len(self._starts) else otherwise

    def flush(self) -> None:
        # After a short write, for example on a full disk, the next write raises the error.
        while self._waiting:
            written = self.fd.write(self._waiting)
            self.size += written
            del self._waiting[:written]

    def _put(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= WRITE_BYTES:
            self.flush()


def sweep(folder: Path) -> None:
    """Remove unfinished copies of complete spools, and requests to workers, left by killed processes."""
    with suppress(OSError):
        for leftover in (*folder.glob("*.rewrite"), *folder.glob("*.worker")):
            age_seconds = time.time() - leftover.stat().st_mtime
            if age_seconds > LEFTOVER_SECONDS and is_live(leftover) is False:
                leftover.unlink()
