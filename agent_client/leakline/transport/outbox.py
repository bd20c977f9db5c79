"""Where snapshots wait for the server: the spool file of this process, or memory when none can be written.

The recorder's thread appends, the sender's thread reads back and accepts; the file is `spool_file.py`'s.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from ..errors import SpoolError
from ..snapshot import Batch
from .batching import SNAPSHOTS_PER_BATCH, merge
from .spool_file import CLOSE_SECONDS, SpoolFile

MEMORY_LIMIT_SNAPSHOTS: Final = 1000


class Outbox(Protocol):
    """Where snapshots wait for the server: a file, or memory when no file can be written."""

    def append(self, batch: Batch) -> None: ...
    def append_end(self, end: Mapping[str, Any]) -> None: ...
    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]: ...
    def accept(self, mark: int, server: str) -> None: ...
    def accept_end(self, server: str) -> None: ...
    def pending(self) -> bool: ...
    def waiting(self) -> int: ...
    def lost(self) -> dict[str, int]: ...
    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None: ...


class SpoolMemory:
    """Stands in when no file can be written: the newest snapshots, bounded, lost when the process dies."""

    def __init__(self, limit: int = MEMORY_LIMIT_SNAPSHOTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._batches: deque[tuple[int, Batch]] = deque()
        self._next = 1
        self._count = 0
        # Up to here the sender is sending: not lost before it says so.
        self._offered = 0
        self._lost: dict[str, int] = {}

    def append(self, batch: Batch) -> None:
        with self._lock:
            self._batches.append((self._next, batch))
            self._next += 1
            self._count += len(batch.snapshots)
            self._drop_oldest()

    def append_end(self, end: Mapping[str, Any]) -> None:
        """Nothing to keep: the end is told to the server by the sender itself."""

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        with self._lock:
            self._offered = 0
            self._drop_oldest()
            batches: list[Batch] = []
            count = mark = 0
            for number, batch in self._batches:
                if batches and count + len(batch.snapshots) > limit:
                    break
                batches.append(batch)
                count += len(batch.snapshots)
                mark = number
            self._offered = mark
            return merge(batches), mark

    def accept(self, mark: int, server: str) -> None:
        with self._lock:
            self._offered = 0
            while self._batches and self._batches[0][0] <= mark:
                self._count -= len(self._batches.popleft()[1].snapshots)

    def accept_end(self, server: str) -> None:
        """Nothing to note."""

    def pending(self) -> bool:
        return bool(self._batches)

    def waiting(self) -> int:
        return self._count

    def lost(self) -> dict[str, int]:
        return dict(self._lost)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        return None

    def _drop_oldest(self) -> None:
        at = 0
        while self._count > self._limit and at < len(self._batches) - 1:
            number, batch = self._batches[at]
            if number <= self._offered:
                at += 1
                continue
            del self._batches[at]
            self._count -= len(batch.snapshots)
            self._lost["memory_full"] = self._lost.get("memory_full", 0) + len(batch.snapshots)


class SafeOutbox:
    """The file as long as it can be written, then memory; ``notify`` hears once why.

    What is in the file is read back all the same. ``counted``: losses that are counted elsewhere, to be told as well.
    """

    def __init__(
        self,
        file: SpoolFile | None,
        notify: Callable[[str], None],
        counted: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.file = file
        self._memory = SpoolMemory()
        self._notify, self._counted = notify, counted
        self._writable = self._readable = file is not None
        self._closed = False

    def append(self, batch: Batch) -> None:
        if self.file is not None and self._writable:
            try:
                return self.file.append(batch)
            except (OSError, SpoolError) as error:
                self._give_up_writing(error)
        return self._memory.append(batch)

    def append_end(self, end: Mapping[str, Any]) -> None:
        """Also to a file that was given up: a disk that was full may have room for so little, or again."""
        if self.file is not None:
            try:
                self.file.append_end(end)
            except OSError as error:
                self._give_up_writing(error)

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        """With all losses so far. Marks of the file are positive, marks of memory negative."""
        batches, mark = self._unsent(limit)
        lost = self.lost()
        return [replace(batch, lost={**batch.lost, **lost}) for batch in batches], mark

    def _unsent(self, limit: int) -> tuple[list[Batch], int]:
        if self.file is not None and self._readable and self.file.pending():
            try:
                return self.file.unsent(limit)
            except SpoolError as error:
                self._readable = False
                self._give_up_writing(error)
        batches, mark = self._memory.unsent(limit)
        return batches, -mark

    def accept(self, mark: int, server: str) -> None:
        if mark < 0:
            self._memory.accept(-mark, server)
        elif self.file is not None:
            self.file.accept(mark, server)

    def accept_end(self, server: str) -> None:
        if self.file is not None and self._writable:
            self.file.accept_end(server)

    def pending(self) -> bool:
        """Is there something to send that can be read?"""
        unsent = self.file is not None and self._readable and self.file.pending()
        return unsent or self._memory.pending()

    def waiting(self) -> int:
        """Snapshots that no server has accepted, those in a file that cannot be read any more as well."""
        return (0 if self.file is None else self.file.waiting()) + self._memory.waiting()

    def lost(self) -> dict[str, int]:
        in_file = {} if self.file is None else self.file.lost()
        return {**self._counted(), **in_file, **self._memory.lost()}

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        self._closed = True
        if self.file is not None:
            self.file.close(timeout_seconds)

    def _give_up_writing(self, error: OSError | SpoolError) -> None:
        told, self._writable = not self._writable, False
        if not (told or self._closed):
            self._notify(str(error))
