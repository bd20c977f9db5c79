"""Where snapshots wait for the server: the spool file of this process, or memory when none can be written.

The recorder's thread appends, the sender's thread reads back and accepts; the format is `spool.py`'s.
The file is bounded: over the bound it is thinned before anything is dropped, and both are counted.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from .errors import SpoolError
from .snapshot import Batch, ProcessIdentity, RunHeader
from .spool import (
    BATCH,
    END,
    MAGIC,
    SNAPSHOTS_PER_BATCH,
    ack_path,
    consecutive,
    encode_batch,
    encode_header,
    encode_record,
    merge,
    read_records,
    unsent_batches,
    write_ack,
)

SPOOL_LIMIT_BYTES: Final = 256 * 2**20
MEMORY_LIMIT_SNAPSHOTS: Final = 1000
# Thinning leaves these alone: trends and verdicts stand on them.
KEPT_KINDS: Final = frozenset({"baseline", "generation_end", "manual", "finish"})


class Outbox(Protocol):
    """Where snapshots wait for the server: a file, or memory when no file can be written."""

    def append(self, batch: Batch) -> None: ...
    def append_end(self, end: Mapping[str, Any]) -> None: ...
    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]: ...
    def accept(self, mark: int, server: str) -> None: ...
    def accept_end(self, server: str) -> None: ...
    def pending(self) -> bool: ...
    def lost(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class SpoolFile:
    """The spool of this process: appended by one thread, read back by another. Raises OSError."""

    def __init__(
        self,
        path: Path,
        header: RunHeader,
        process: ProcessIdentity,
        limit_bytes: int = SPOOL_LIMIT_BYTES,
    ) -> None:
        self.path, self._limit = path, limit_bytes
        self._lock = threading.Lock()
        self._lost: dict[str, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Exclusively, so that two processes can never write into one file.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._size = 0
        self._write(MAGIC + encode_header(header, process))
        self._sent = self._snapshots_end = self._size

    def append(self, batch: Batch) -> None:
        record = encode_batch(batch)
        with self._lock:
            if os.fstat(self._fd).st_nlink == 0:
                raise OSError(errno.ENOENT, "the spool was deleted", str(self.path))
            if self._size + len(record) > self._limit:
                self._thin((self._limit - len(record)) * 3 // 4)
            self._write(record)
            self._snapshots_end = self._size

    def append_end(self, end: Mapping[str, Any]) -> None:
        with self._lock:
            self._write(encode_record(END, end))

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        """Up to ``limit`` snapshots not accepted yet, merged, and the mark to ``accept`` them with."""
        with self._lock:
            return unsent_batches(self.path, self._sent, limit)

    def accept(self, mark: int, server: str) -> None:
        with self._lock:
            self._sent = max(self._sent, mark)
            write_ack(self.path, self._sent, server)

    def accept_end(self, server: str) -> None:
        with self._lock:
            self._sent = self._size
            write_ack(self.path, self._sent, server)

    def pending(self) -> bool:
        return self._sent < self._snapshots_end

    def lost(self) -> dict[str, int]:
        return dict(self._lost)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, data: bytes) -> None:
        """One write to the operating system; a half-written record is taken back."""
        try:
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _thin(self, room: int) -> None:
        """Rewrite the file to at most ``room`` bytes.

        1. Write all but every second snapshot of the frequent kinds into a new file.
        2. If that is not enough, leave out the oldest as well.
        3. Put the new file in the place of the old one; what was sent stays sent.
        """
        fresh = self.path.with_suffix(".rewrite")
        index = self._write_halved(fresh)
        cut = self._count_oldest(index, room)
        sent = sum(size for size, _, was_sent in index[cut:] if was_sent)
        header_bytes = len(MAGIC) + index[0][0]
        if cut > 1:
            fresh = _without(fresh, header_bytes, sum(size for size, _, _ in index[1:cut]))
            sent += index[0][0]
        fd = os.open(fresh, os.O_WRONLY | os.O_APPEND)
        fresh.replace(self.path)
        os.close(self._fd)
        self._fd, self._size, self._sent = fd, os.fstat(fd).st_size, len(MAGIC) + sent
        # Offsets noted for the old file mean nothing in the new one.
        ack_path(self.path).unlink(missing_ok=True)

    def _write_halved(self, fresh: Path) -> list[tuple[int, int, bool]]:
        """(bytes, snapshots, was it sent) of each record written."""
        index: list[tuple[int, int, bool]] = []
        frequent = 0
        with fresh.open("wb") as file:
            file.write(MAGIC)
            for record in read_records(self.path):
                sent = record.end <= self._sent
                if record.kind != BATCH:
                    data = encode_record(record.kind, record.payload())
                    index.append((file.write(data), 0, sent))
                    continue
                batch, staying = record.batch(), []
                for snapshot in batch.snapshots:
                    frequent += snapshot.kind not in KEPT_KINDS
                    if snapshot.kind in KEPT_KINDS or frequent % 2:
                        staying.append(snapshot)
                if not sent:
                    self._count("spool_thinned", len(batch.snapshots) - len(staying))
                for run in consecutive(staying):
                    size = file.write(encode_batch(replace(batch, snapshots=run)))
                    index.append((size, len(run), sent))
        return index

    def _count_oldest(self, index: list[tuple[int, int, bool]], room: int) -> int:
        """From which record on everything fits into ``room``; 1 when nothing has to go."""
        total = len(MAGIC) + sum(size for size, _, _ in index)
        cut = 1
        while total > room and cut < len(index):
            size, count, sent = index[cut]
            total, cut = total - size, cut + 1
            if not sent:
                self._count("spool_full", count)
        return cut

    def _count(self, reason: str, number: int) -> None:
        if number:
            self._lost[reason] = self._lost.get(reason, 0) + number


def _without(path: Path, start: int, length: int) -> Path:
    """A copy of the file without ``length`` bytes from ``start``; the original goes."""
    shorter = path.with_suffix(".shorter")
    with path.open("rb") as source, shorter.open("wb") as target:
        target.write(source.read(start))
        source.seek(start + length)
        shutil.copyfileobj(source, target)
    path.unlink()
    return shorter


class SpoolMemory:
    """Stands in when no file can be written: the newest snapshots, bounded, lost when the process dies."""

    def __init__(self, limit: int = MEMORY_LIMIT_SNAPSHOTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Batch]] = deque()
        self._next = 1
        self._count = 0
        self._lost: dict[str, int] = {}

    def append(self, batch: Batch) -> None:
        with self._lock:
            self._waiting.append((self._next, batch))
            self._next += 1
            self._count += len(batch.snapshots)
            while self._count > self._limit and len(self._waiting) > 1:
                _, oldest = self._waiting.popleft()
                self._count -= len(oldest.snapshots)
                self._lost["memory_full"] = self._lost.get("memory_full", 0) + len(oldest.snapshots)

    def append_end(self, end: Mapping[str, Any]) -> None:
        """Nothing to keep: the end is told to the server by the sender itself."""

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        with self._lock:
            batches: list[Batch] = []
            count = mark = 0
            for number, batch in self._waiting:
                if batches and count + len(batch.snapshots) > limit:
                    break
                batches.append(batch)
                count += len(batch.snapshots)
                mark = number
            return merge(batches), mark

    def accept(self, mark: int, server: str) -> None:
        with self._lock:
            while self._waiting and self._waiting[0][0] <= mark:
                self._count -= len(self._waiting.popleft()[1].snapshots)

    def accept_end(self, server: str) -> None:
        """Nothing to note."""

    def pending(self) -> bool:
        return bool(self._waiting)

    def lost(self) -> dict[str, int]:
        return dict(self._lost)

    def close(self) -> None:
        return None


class SafeOutbox:
    """The file as long as it can be used, then memory; ``notify`` hears once why."""

    def __init__(self, file: SpoolFile | None, notify: Callable[[str], None]) -> None:
        self.file = file
        self._memory = SpoolMemory()
        self._notify = notify

    def append(self, batch: Batch) -> None:
        if self.file is not None:
            try:
                return self.file.append(batch)
            except (OSError, SpoolError) as error:
                self._give_up_file(error)
        return self._memory.append(batch)

    def append_end(self, end: Mapping[str, Any]) -> None:
        if self.file is not None:
            try:
                self.file.append_end(end)
            except OSError as error:
                self._give_up_file(error)

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        """Marks of the file are positive, marks of memory negative."""
        if self.file is not None and self.file.pending():
            try:
                return self.file.unsent(limit)
            except SpoolError as error:
                self._give_up_file(error)
        batches, mark = self._memory.unsent(limit)
        return batches, -mark

    def accept(self, mark: int, server: str) -> None:
        if mark < 0:
            self._memory.accept(-mark, server)
        elif self.file is not None:
            try:
                self.file.accept(mark, server)
            except OSError as error:
                self._give_up_file(error)

    def accept_end(self, server: str) -> None:
        if self.file is not None:
            try:
                self.file.accept_end(server)
            except OSError as error:
                self._give_up_file(error)

    def pending(self) -> bool:
        return (self.file is not None and self.file.pending()) or self._memory.pending()

    def lost(self) -> dict[str, int]:
        return {**self._memory.lost(), **(self.file.lost() if self.file is not None else {})}

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _give_up_file(self, error: OSError | SpoolError) -> None:
        file, self.file = self.file, None
        if file is not None:
            self._notify(str(error))
