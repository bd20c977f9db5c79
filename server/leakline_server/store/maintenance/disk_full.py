"""A full disk is met by everybody who writes, again and again, and the log may be on it, too: it is told once for all.

Trainings are what matters, so it is over when a batch is written, or a new run. What is small may find room where that
does not.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from ..engine import Engine, is_out_of_space

# Since it was told last, where it was over meanwhile. Small batches may find room where sealing does not: then it would
# be full and over every few seconds, as long as the disk is nearly full.
AGAIN_SECONDS: Final = 3_600.0
# For what is sent: the same of large batches and small ones, but those who send have lost their place.
SENT_AGAIN_SECONDS: Final = 60.0

log = logging.getLogger("leakline")


@dataclass(slots=True)
class _Disk:
    is_full: bool = False
    # Whether the log says so, of this time.
    is_told: bool = False
    # By the monotonic clock.
    told_at: float | None = None


_lock = threading.Lock()
_disks: WeakKeyDictionary[Engine, _Disk] = WeakKeyDictionary()


def is_told(engine: Engine, error: BaseException, again_seconds: float = AGAIN_SECONDS) -> bool:
    """Whether an error is the full disk, which is in the log then: from before, or from now on."""
    if not is_out_of_space(error):
        return False
    met(engine, again_seconds)
    return True


def met(engine: Engine, again_seconds: float = SENT_AGAIN_SECONDS) -> None:
    """Something found no room. Told unless it is, or was within so many seconds."""
    now = time.monotonic()
    with _lock:
        disk = _disks.setdefault(engine, _Disk())
        disk.is_full = True
        if disk.is_told or (disk.told_at is not None and now < disk.told_at + again_seconds):
            return
        disk.is_told, disk.told_at = True, now
    log.error(
        "the disk of the database is full: batches are refused until there is room, trainings keep theirs and "
        "send them then; what is stored can be read"
    )


def is_full(engine: Engine) -> bool:
    disk = _disks.get(engine)
    return disk is not None and disk.is_full


def over(engine: Engine) -> None:
    """A batch was written, or a new run."""
    # After every commit: without the lock where there is nothing to say.
    if not is_full(engine):
        return
    with _lock:
        disk = _disks[engine]
        was_told, disk.is_full, disk.is_told = disk.is_told, False, False
    if was_told:
        log.warning("there is room on the disk again: batches are written")
