"""Stores snapshots until the server has them: in this process's spool file, or in memory if no file can be written.

The recorder's thread appends snapshots; the sender's thread reads unaccepted snapshots.

Reading uses the descriptor that also writes the file, so that a deleted or unwritable file is still sent. Near its size
limit, the file is shortened (`spool_trimming.py`) in steps between two records.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ..errors import SpoolError
from ..runtime import file_descriptor, threads
from ..settings import DEFAULT_SPOOL_LIMIT_BYTES
from ..snapshot import Batch, ProcessIdentity, RunHeader
from .batching import SNAPSHOTS_PER_BATCH, after, merge, split
from .spool_format import (
    END,
    MAGIC,
    RECORD_LIMIT_BYTES,
    ack_path,
    collect,
    encode_batch,
    encode_header,
    encode_record,
    lock,
    read_open,
    write_ack,
)
from .spool_trimming import DROPPED, THINNED, Choice, Contents, ShorterFile, sweep

# Shortening starts when the file reaches the first share of the size limit, and reduces it to the second share.
FULL, ROOM = 3 / 4, 1 / 2
# With each appended record, the shortening advances far enough to finish when this share of the free space is used.
PACE: Final = 3 / 4
# A step of choosing snapshots takes as long as reading this many bytes.
CHOICE_BYTES: Final = 4096
# Maximum time spent shortening the file for a record that does not fit. After that, the record is dropped.
FULL_SECONDS: Final = 0.5
# A batch that is too large for one record is split into parts that should fill this share of a record. Full parts would
# often be too large, and each retry costs another encoding.
SPLIT_SHARE: Final = 0.9
# Maximum number of attempts to choose what to remove. A new attempt is made if the copy is larger than expected.
TRIES: Final = 4
# Maximum wait for the lock at the end of a process. The thread that holds the lock may be blocked by a slow disk.
CLOSE_SECONDS: Final = 1.0
MEMORY_LIMIT_SNAPSHOTS: Final = 1000
REASONS: Final = {"spool_thinned": THINNED, "spool_full": DROPPED}


@dataclass(slots=True)
class _Offer:
    """The batches last given to the sender.

    Snapshots of these batches may be removed from the file in the meantime. They count as lost only once the sender
    returns without having sent them.
    """

    mark: int
    end: int
    last_sequence: int
    count: int
    removed: dict[str, int] = field(default_factory=dict)
    # True if the file was shortened in the meantime.
    moved: bool = False


class SpoolFile:
    """This process's spool file.

    Methods raise OSError if the file cannot be written, and SpoolError if it cannot be read.
    """

    def __init__(
        self,
        path: Path,
        header: RunHeader,
        process: ProcessIdentity,
        limit_bytes: int = DEFAULT_SPOOL_LIMIT_BYTES,
        server: str | None = None,
        memory_group: str | None = None,
    ) -> None:
        self.path, self._limit, self._instance = path, limit_bytes, process.instance
        self._described_by = process, server, memory_group
        self._largest = min(limit_bytes // 4, RECORD_LIMIT_BYTES)
        self._full = int(limit_bytes * FULL)
        self._lock = threading.Lock()
        self._lost: dict[str, int] = {}
        self._rewriting: Iterator[int] | None = None
        # Bytes of shortening work for each byte that is appended.
        self._pace = 0.0
        self._fresh_fd = file_descriptor.NONE
        path.parent.mkdir(parents=True, exist_ok=True)
        # Open the file exclusively, so that two processes can never write to the same file.
        self._fd = file_descriptor.opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._locked = lock(self._fd)
        _close_in_children(self)
        sweep(path.parent)
        self._size = 0
        try:
            self._write(MAGIC + encode_header(header, process, server, memory_group))
        except OSError:
            self.close()
            # Without a header the file can never be read.
            with suppress(OSError):
                path.unlink()
            raise
        self._sent = self._snapshots_end = self._size
        self._sent_sequence = self._waiting = 0
        # A record after the mark may contain snapshots up to this sequence number, which the server already has.
        self._already = 0
        self._offer: _Offer | None = None
        self._offers = 0
        self._server = ""

    def append(self, batch: Batch) -> None:
        """Append a batch. A batch without snapshots only reports losses."""
        record = encode_batch(batch)
        if len(record) > self._largest and len(batch.snapshots) > 1:
            for part in split(batch.snapshots, len(record) / (SPLIT_SHARE * self._largest)):
                self.append(replace(batch, snapshots=part))
            return
        if len(record) <= self._largest:
            self._make_room(len(record))
        with self._lock:
            if self._hold().st_nlink == 0:
                raise OSError(errno.ENOENT, "the spool was deleted", str(self.path))
            if self._locked is False:
                self._locked = lock(self._fd)
            if len(record) > self._largest or self._size + len(record) > self._limit:
                self._count("spool_full", len(batch.snapshots))
                return
            self._write(record)
            self._waiting += len(batch.snapshots)
            self._snapshots_end = self._size

    def append_header(self, header: RunHeader) -> None:
        with self._lock:
            self._hold()
            self._write(encode_header(header, *self._described_by))

    def append_end(self, end: Mapping[str, Any]) -> None:
        with self._lock:
            self._hold()
            self._write(encode_record(END, end))

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        """Return merged batches with about ``limit`` unaccepted snapshots, and a mark.

        Pass the mark to `accept` once the batches are sent.
        """
        with self._lock:
            self._take_back_offer()
            if self._sent >= self._snapshots_end:
                return [], 0
            batches, end = self._read(limit)
            if end <= self._sent:
                # The file was truncated or overwritten by someone else.
                self._sent = self._snapshots_end
                return [], 0
            self._offers += 1
            self._offer = _Offer(
                self._offers,
                max(end, self._sent),
                max(
                    [
                        self._sent_sequence,
                        *(b.snapshots[-1].sequence for b in batches if b.snapshots),
                    ]
                ),
                sum(len(b.snapshots) for b in batches),
            )
            return batches, self._offer.mark

    def accept(self, mark: int, server: str) -> None:
        """Record that ``server`` has accepted the batches returned with ``mark``."""
        with self._lock:
            offer, self._offer = self._offer, None
            if offer is None or offer.mark != mark:
                return
            self._waiting -= offer.count
            self._sent = offer.end
            self._sent_sequence = max(self._sent_sequence, offer.last_sequence)
            if offer.moved:
                self._already = self._sent_sequence
            self._note(server)

    def accept_end(self, server: str) -> None:
        with self._lock:
            self._sent = self._size
            self._note(server)

    def pending(self) -> bool:
        return self._sent < self._snapshots_end

    def waiting(self) -> int:
        """Return the number of snapshots that no server has accepted."""
        return self._waiting

    def lost(self) -> dict[str, int]:
        return dict(self._lost)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Close the file, or leave it open if another thread is still writing at the end of the timeout."""
        if self._lock.acquire(timeout=max(0.0, timeout_seconds)):
            try:
                self._stop_rewriting()
                self.let_go()
            finally:
                self._lock.release()

    def let_go(self) -> None:
        """Close our descriptors without taking the lock.

        In a forked child, the files and the locks on them belong to the parent.
        """
        held = self._fd, self._fresh_fd
        self._fd = self._fresh_fd = file_descriptor.NONE
        for fd in held:
            fd.close()

    def _hold(self) -> os.stat_result:
        """Reopen the file if the program has closed it. Call this method before reading or writing. Raises OSError."""
        try:
            return self._fd.stat()
        except OSError:
            # A negative number means that the descriptor was released on purpose, for example in a forked child, where
            # the file belongs to the parent.
            if self._fd < 0:
                raise
        self._stop_rewriting()
        self._fd = self._fd.anew(self.path)
        self._locked = lock(self._fd)
        found = self._fd.stat()
        # Another process may have found the file unlocked and appended an end record.
        self._size = found.st_size
        return found

    def _read(self, limit: int) -> tuple[list[Batch], int]:
        """Return the batches that no server has accepted, and the offset after them. Raises SpoolError."""
        for again in (True, False):
            try:
                self._hold()
            except OSError as error:
                raise SpoolError(self.path, f"cannot be read ({error.strerror})") from error
            held = self._fd
            try:
                records = read_open(held, self._sent, self.path)
                batches, end = collect(records, self._sent, limit, self._instance)
                batches = list(after(self._already, batches))
            except SpoolError:
                if held.is_ours or not again:
                    raise
            else:
                # If the file was closed in the meantime, the descriptor may have referred to a file
                # of the program.
                if held.is_ours:
                    return batches, end
        raise SpoolError(self.path, "cannot be read (the program keeps closing it)")

    def _write(self, data: bytes) -> None:
        """Write with one system call; remove a record that was only partially written."""
        try:
            if self._written(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # If this fails as well, a torn record remains at the end of the file. Readers skip it.
            with suppress(OSError):
                self._fd.stat()
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _written(self, data: bytes) -> int:
        """Write the data, and return the number of bytes written. Raises OSError."""
        try:
            return os.write(self._fd, data)
        except OSError:
            if self._fd.is_ours:
                raise
            # The program has closed the descriptor since `_hold`.
            self._hold()
            return os.write(self._fd, data)

    def _note(self, server: str) -> None:
        self._server = server
        # Without the mark, `leakline sync` sends the same data again, which is harmless.
        with suppress(OSError):
            write_ack(self.path, self._sent, server)

    def _take_back_offer(self) -> None:
        """Withdraw an offer that was not accepted.

        Offered snapshots that were removed from the file in the meantime count as lost.
        """
        offer, self._offer = self._offer, None
        for reason, number in ({} if offer is None else offer.removed).items():
            self._count(reason, number)
            self._waiting -= number

    def _count(self, reason: str, number: int) -> None:
        if number:
            self._lost[reason] = self._lost.get(reason, 0) + number

    # -- size limit -------------------------------------------------------------------------------------

    def _make_room(self, size: int) -> None:
        """Continue to shorten a nearly full file, holding the lock for only one step at a time.

        The work stops if another thread is waiting for this thread to end. Records that do not fit are then dropped.
        """
        until = time.monotonic() + FULL_SECONDS
        credit: float | None = None
        while not threads.hurried():
            with self._lock:
                if self._rewriting is None and self._size + size <= self._full:
                    return
                full = self._size + size > self._limit
                try:
                    done = self._step()
                except (OSError, SpoolError):
                    self._stop_rewriting()
                    # Try again only when the file is completely full, not at every record before that.
                    self._full = self._limit
                    if full:
                        raise
                    return
            credit = (size * self._pace if credit is None else credit) - done
            if time.monotonic() > until if full else credit <= 0:
                return
            threads.breathe()

    def _step(self) -> int:
        """Do one step of shortening, and return the amount of work in bytes of the file."""
        self._hold()
        if self._rewriting is None:
            self._stop_rewriting()
            free = max(self._limit - self._size, self._limit // 100)
            # Count the file twice: it is read once to choose snapshots, and a second time to copy the remaining
            # snapshots.
            self._pace = 2 * self._size / (PACE * free)
            self._rewriting = self._rewrite()
        done = next(self._rewriting, None)
        if done is None:
            self._rewriting = None
        return done or 0

    def _rewrite(self) -> Iterator[int]:
        """Shorten the file in steps.

        Read it, choose the snapshots to remove, copy the others and all later records, and replace the file.
        """
        contents = Contents()
        for record in read_open(self._fd, 0, self.path):
            contents.add(record, sent=record.end <= self._sent)
            yield record.end - record.start
        fresh = self.path.with_suffix(".rewrite")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._fresh_fd = file_descriptor.opened(fresh, flags)
        locked = lock(self._fresh_fd)
        room = wanted = int(self._limit * ROOM)
        for _ in range(TRIES):
            choice = Choice(contents, room)
            for _ in choice.steps():
                yield CHOICE_BYTES
            self._fresh_fd.stat()
            os.ftruncate(self._fresh_fd, 0)
            shorter = ShorterFile(fresh, self._fresh_fd)
            yield from shorter.copy(self._fd, contents, choice.fates)
            if shorter.written() <= (wanted + self._limit * FULL) / 2:
                break
            room = room * wanted // shorter.written()
        else:
            raise SpoolError(self.path, "cannot be shortened to fit its size limit")
        at, moved = contents.end, shorter.written() - contents.end
        while at < self._size:
            begin, at = at, shorter.copy_piece(self._fd, at, self._size)
            if at < self._size:
                yield at - begin
        shorter.flush()
        self._replace(shorter, locked, contents.end, moved)
        self._settle(contents, choice.fates)

    def _replace(self, shorter: ShorterFile, locked: bool | None, rest: int, moved: int) -> None:
        """Replace the file with its shorter copy.

        ``rest`` is the offset in the old file of data appended in the meantime, and ``moved`` is the difference between
        the data's offsets in the new and the old file.
        """
        sent = shorter.behind(self._sent_sequence, max(self._sent, rest) + moved)
        if not os.path.samestat(self.path.stat(), os.fstat(self._fd)):
            raise OSError(errno.ESTALE, "the spool was moved", str(self.path))
        # Delete the mark first: without a mark some data is sent again, but the old mark would make unsent data be
        # skipped.
        ack_path(self.path).unlink(missing_ok=True)
        shorter.path.replace(self.path)
        # Forget the descriptor before closing it: in a child forked between these two steps, its number may be reused
        # for another file.
        old, self._fd, self._fresh_fd = self._fd, shorter.fd, file_descriptor.NONE
        self._locked = locked
        old.close()
        self._size = self._snapshots_end = shorter.size
        self._full = max(int(self._limit * FULL), (self._size + self._limit) // 2)
        self._sent, self._already = sent, self._sent_sequence
        if self._offer is not None:
            offer = self._offer
            offer.end = shorter.behind(offer.last_sequence, max(offer.end, rest) + moved)
            offer.moved = True
        if self._server:
            self._note(self._server)

    def _settle(self, contents: Contents, fates: bytearray) -> None:
        """Count removed snapshots as lost, unless a server has them or the sender is sending them."""
        sent = bisect_right(contents.sequences, self._sent_sequence)
        offer = self._offer
        offered = sent if offer is None else bisect_right(contents.sequences, offer.last_sequence)
        for reason, fate in REASONS.items():
            if offer is not None and (flying := fates[sent:offered].count(fate)):
                offer.removed[reason] = offer.removed.get(reason, 0) + flying
            lost = fates[max(sent, offered) :].count(fate)
            self._count(reason, lost)
            self._waiting -= lost

    def _stop_rewriting(self) -> None:
        self._rewriting = None
        if self._fresh_fd >= 0:
            fresh, self._fresh_fd = self._fresh_fd, file_descriptor.NONE
            fresh.close()
            with suppress(OSError):
                self.path.with_suffix(".rewrite").unlink()


_open_files: Final[weakref.WeakSet[SpoolFile]] = weakref.WeakSet()
_registered_at_fork = False


def _close_in_children(file: SpoolFile) -> None:
    """Register the file to be closed in forked children.

    Otherwise, a child that outlives us would keep our lock, and a killed run would look alive.
    """
    global _registered_at_fork
    _open_files.add(file)
    if not _registered_at_fork and hasattr(os, "register_at_fork"):
        _registered_at_fork = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for file in list(_open_files):
        file.let_go()
    _open_files.clear()


class SpoolMemory:
    """An in-memory replacement for a spool file that cannot be written.

    It holds a limited number of the newest snapshots, which are lost when the process dies.
    """

    def __init__(self, limit: int = MEMORY_LIMIT_SNAPSHOTS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._batches: deque[tuple[int, Batch]] = deque()
        self._next = 1
        self._count = 0
        # The sender is sending batches up to this number, which are not dropped before the sender has finished.
        self._offered = 0
        self._lost: dict[str, int] = {}

    def append(self, batch: Batch) -> None:
        with self._lock:
            self._batches.append((self._next, batch))
            self._next += 1
            self._count += len(batch.snapshots)
            self._drop_oldest()

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

    def pending(self) -> bool:
        return bool(self._batches)

    def waiting(self) -> int:
        return self._count

    def lost(self) -> dict[str, int]:
        return dict(self._lost)

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


class Outbox:
    """A store for snapshots: the file while it can be written, then memory.

    ``notify`` is called once, with the reason for the change. Snapshots in the file can still be read. ``counted``
    returns losses counted elsewhere, which are also reported.
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
        # A header to write before the next batch.
        self.next_header: RunHeader | None = None

    def append(self, batch: Batch) -> None:
        header, self.next_header = self.next_header, None
        if self.file is not None and self._writable:
            try:
                if header is not None:
                    self.file.append_header(header)
                return self.file.append(batch)
            except (OSError, SpoolError) as error:
                self._give_up_writing(error)
        return self._memory.append(batch)

    def append_end(self, end: Mapping[str, Any]) -> None:
        """Append the end, even to a file that could no longer be written.

        A full disk may have room for a record this small, or space may have been freed.
        """
        if self.file is not None:
            try:
                self.file.append_end(end)
            except OSError as error:
                self._give_up_writing(error)

    def unsent(self, limit: int = SNAPSHOTS_PER_BATCH) -> tuple[list[Batch], int]:
        """Return unsent batches with all losses so far, and a mark.

        Marks of the file are positive, and marks of the memory are negative.
        """
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
        """Return True if readable unsent data remains."""
        unsent = self.file is not None and self._readable and self.file.pending()
        return unsent or self._memory.pending()

    def waiting(self) -> int:
        """Return the number of unaccepted snapshots, including snapshots in an unreadable file."""
        return (0 if self.file is None else self.file.waiting()) + self._memory.waiting()

    def lost(self) -> dict[str, int]:
        in_file = {} if self.file is None else self.file.lost()
        return {**self._counted(), **in_file, **self._memory.lost()}

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        self._closed = True
        if self.file is not None:
            self.file.close(timeout_seconds)

    def _give_up_writing(self, error: OSError | SpoolError) -> None:
        before, self._writable = not self._writable, False
        if not (before or self._closed):
            self._notify(str(error))
