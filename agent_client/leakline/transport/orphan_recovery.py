"""Recovers spools of dead processes: records how the processes ended, and sends data missing on the server.

A process that the kernel kills for memory cannot report its end. The next process that starts, or `leakline sync`,
finds a spool without an end and without a lock, and infers from the last readings how its process ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ..errors import ServerRefused, ServerUnreachable, SpoolError
from ..probes.memory.cgroup import memory_group, read_cgroup
from ..runtime import file_descriptor
from ..runtime.file_descriptor import Descriptor
from ..runtime.threads import breathe
from ..snapshot import Snapshot
from .http_delivery import Delivery
from .oom_inference import FRESH_SECONDS, killed_for_memory, last_readings
from .sender import CATCH_UP_SHARE, LONGEST_PAUSE_SECONDS, LONGEST_RETRY_AFTER_SECONDS
from .spool_format import (
    AT_EXIT,
    BATCH,
    END,
    Holdings,
    Record,
    encode_record,
    is_in_place,
    lock,
    read_ack,
    read_end,
    read_header,
    read_memory_group,
    read_open_end,
    read_origin,
    read_records,
)
from .spool_upload import Uploaded, uploading

# Maximum number of spools for our server that are sent, newest first. All other spools are left for `leakline sync`.
SPOOLS_LIMIT: Final = 32
# Maximum number of spools that are checked, newest first, including spools for other servers.
LOOKS_LIMIT: Final = 1000
# A small number, because reading snapshots back takes time away from the training script.
SNAPSHOTS_AT_ONCE: Final = 50
# The first value exceeds the number of records that a process writes in its last minute. The second value is the size
# of the file's tail that is searched for these records first.
LAST_RECORDS: Final = 200
LAST_BYTES: Final = 2 * 2**20
QUIET_SECONDS: Final = 120.0


class _Claim:
    """A descriptor that forked children close. Otherwise, a living child would make the spool look alive."""

    def __init__(self) -> None:
        self.fd = file_descriptor.NONE
        _claims.add(self)

    def let_go(self) -> None:
        # Clear the field first: once the descriptor is closed, its number may be reused for the next file that is
        # opened.
        fd, self.fd = self.fd, file_descriptor.NONE
        _claims.discard(self)
        fd.close()


_claims: Final[set[_Claim]] = set()


def _in_child() -> None:
    for claim in list(_claims):
        claim.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@contextmanager
def claimed(path: Path) -> Iterator[Descriptor | None]:
    """Open and lock the spool, and yield its descriptor, or None if a process may still be writing the spool.

    All ranks of a job start simultaneously in the same folder. Because of the lock, only one rank sends the unsent
    data. Raises SpoolError.
    """
    claim = _Claim()
    try:
        # Skip a file that cannot be opened for writing, because no end could be recorded in it.
        with suppress(OSError):
            claim.fd = file_descriptor.opened(path, os.O_RDWR | os.O_APPEND)
        ours = claim.fd >= 0 and lock(claim.fd) is True
        # Skip a file that its live process replaced with a shorter copy before we had the lock.
        yield claim.fd if ours and is_in_place(claim.fd, path) and _is_abandoned(path) else None
    finally:
        claim.let_go()


def _is_abandoned(path: Path) -> bool:
    if read_header(path)[1].host == socket.gethostname():
        return True
    # On some shared file systems, other machines' locks are not visible. But a live process writes every few seconds.
    return time.time() - _stat(path).st_mtime > QUIET_SECONDS


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise SpoolError(path, f"cannot be read ({error.strerror})") from error


def settle(path: Path, known: tuple[str, str] | None = None) -> None:
    """Record how a dead process ended, unless the process recorded its end itself. Raises SpoolError.

    ``known`` is (state, reason) as the parent process knows them. The process's last readings show whether it was
    killed for memory. If the process recorded its end while it exited, the parent's knowledge takes precedence: the
    process may not have known its final exit status, or may have caught the exception that requested the exit.
    """
    with claimed(path) as fd:
        if fd is not None:
            _note_end(path, fd, known)


def _note_end(path: Path, fd: Descriptor, known: tuple[str, str] | None = None) -> None:
    said = read_open_end(fd, path)
    end = _end_of(path) if said is None else said.payload()
    at_exit = end.pop(AT_EXIT, False)
    is_wrong = at_exit and known is not None and known != (end["state"], end["reason"])
    if said is not None and not is_wrong:
        return
    if known is not None and (is_wrong or end["state"] == "silent"):
        end = {**end, "state": known[0], "reason": known[1]}
    # If nothing can be written, the spool remains without an end.
    with suppress(OSError):
        fd.write(encode_record(END, end))


def _end_of(path: Path) -> dict[str, Any]:
    snapshots = _last_snapshots(path)
    if not snapshots:
        return {"state": "silent", "ended_at": _stat(path).st_mtime, "reason": ""}
    last = last_readings((snapshot.time, snapshot.samples) for snapshot in snapshots)
    reason = killed_for_memory(last, _kills_since(path, last.get("cgroup.kills")))
    state = "silent" if reason is None else "killed"
    return {"state": state, "ended_at": snapshots[-1].time, "reason": reason or ""}


def _last_snapshots(path: Path) -> list[Snapshot]:
    """Return the snapshots of about the last minute, oldest first."""
    tail = max(0, _stat(path).st_size - LAST_BYTES)
    records = _last_batches(path, tail) or _last_batches(path, 0)
    found: list[Snapshot] = []
    while records and not (found and found[0].time < found[-1].time - FRESH_SECONDS):
        found[:0] = records.pop().batch().snapshots
        breathe()
    return found


def _last_batches(path: Path, offset: int) -> deque[Record]:
    records: deque[Record] = deque(maxlen=LAST_RECORDS)
    for record in read_records(path, offset):
        breathe()
        if record.kind == BATCH:
            records.append(record)
    return records


def _kills_since(path: Path, before: float | None) -> int:
    """Return the kills that the kernel has counted in the spool's memory group beyond ``before``.

    The result is 0 if the group is not our own.
    """
    group = read_memory_group(path)
    if before is None or group is None or group != memory_group():
        return 0
    return int(read_cgroup().get("cgroup.kills", before) - before)


class Leftovers:
    """Unsent spools of earlier runs in this folder for our server.

    ``send`` is called by the sender's thread when it is idle.
    """

    def __init__(
        self,
        directory: Path,
        own: Path | None,
        delivery: Delivery,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._own, self._delivery, self._say = directory, own, delivery, say
        self._clock = clock
        self._steps = self._send_all()
        self._not_before, self._failures, self._more = 0.0, 0, True

    def send(self) -> bool:
        """Send one piece if the pause after the previous piece is over. Return True if more may remain.

        If the server has responded "not now", sending continues after a pause, together with our
        own next snapshots.
        """
        if self._clock() < self._not_before:
            return self._more
        started = time.thread_time()
        try:
            self._more = next(self._steps, None) is not None
            self._failures = 0
            pause = (time.thread_time() - started) / CATCH_UP_SHARE
        except ServerUnreachable as error:
            self._steps, self._more = self._send_all(), False
            pause = LONGEST_PAUSE_SECONDS * 2 ** min(self._failures, 10)
            pause = max(pause, error.after_seconds or 0.0)
            self._failures += 1
        self._not_before = self._clock() + min(pause, LONGEST_RETRY_AFTER_SECONDS)
        return self._more

    def close(self) -> None:
        """Stop sending. The next process will send the remaining spools, including the current spool."""
        self._steps.close()

    def _send_all(self) -> Generator[Uploaded]:
        brought = 0
        for path in self._spools():
            breathe()
            # Skip damaged or refused spools; `leakline sync` shows the reason.
            with suppress(SpoolError, ServerRefused):
                if self._is_wanted(path):
                    with claimed(path) as fd:
                        if fd is not None:
                            brought += 1
                            yield from self._send_of(path, fd)
            if brought == SPOOLS_LIMIT:
                return

    def _send_of(self, path: Path, fd: Descriptor) -> Iterator[Uploaded]:
        _note_end(path, fd)
        for done in uploading(path, self._delivery, limit=SNAPSHOTS_AT_ONCE):
            if done.complete and done.sent:
                self._say(f"the earlier run {done.name} left unsent data: {upload_sentence(done)}")
            yield done

    def _spools(self) -> list[Path]:
        found: list[tuple[float, Path]] = []
        # A folder may be deleted while it is scanned.
        with suppress(OSError):
            for path in self._directory.glob("*/*.spool"):
                breathe()
                with suppress(SpoolError):
                    found.append((_stat(path).st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)[:LOOKS_LIMIT]]

    def _is_wanted(self, path: Path) -> bool:
        """Return True for a spool with unsent data from a run that reported to this server.

        Spools of offline runs are left for their users to upload.
        """
        if path == self._own:
            return False
        server = self._delivery.server
        # A spool without an end still has an end to report, even if all its snapshots have arrived.
        arrived = read_ack(path, server) == _stat(path).st_size and read_end(path) is not None
        return not arrived and read_origin(path) == server


def upload_sentence(done: Uploaded) -> str:
    """Describe the result of an upload in words."""
    parts = [f"{done.sent} snapshots sent" if done.sent else "nothing new to send"]
    if done.refused:
        parts.append(f"{done.refused} refused")
    if done.held is not None:
        parts += _damage_reported(done.held)
    if done.state == "killed":
        parts.append(f"killed ({done.reason})")
    elif done.state == "silent":
        parts.append("the process ended without reporting how")
    elif not done.state:
        parts.append("no end recorded (the process may still be running)")
    return ", ".join(parts)


def _damage_reported(held: Holdings) -> list[str]:
    """Describe the losses in a spool, in words."""
    parts = []
    if held.damaged_bytes:
        lost = f"{held.missing} snapshots lost" if held.missing else "damaged"
        parts.append(f"{lost} ({held.damaged_bytes:,} bytes of the file cannot be read)")
    if held.foreign_bytes:
        parts.append(
            f"another recording in the same file was not sent ({held.foreign_bytes:,} bytes)"
        )
    return parts
