"""Stored bytes that are not what was written: told once each, counted, and left out of what is read.

A damaged chunk costs its own entries: of a series, they read as absent; where it is what every snapshot has, such as
its time, the snapshots of its stretch are left out of every read that needs it. Nothing is repaired or deleted.
"""

from __future__ import annotations

import logging
import threading
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

# In place of a name, where all of a batch is damaged.
BATCH: Final = "batch"
# Past so many, the next are neither told nor counted.
MAX_KNOWN: Final = 10_000

log = logging.getLogger("leakline")


class Damaged(NamedTuple):
    """What cannot be read of a process: ``name`` of a series or column, or BATCH."""

    run_id: str
    process_id: int
    name: str
    first_sequence: int
    last_sequence: int


_lock = threading.Lock()
_known: WeakKeyDictionary[Engine, set[Damaged]] = WeakKeyDictionary()


def found(engine: Engine, damaged: Damaged) -> None:
    with _lock:
        before = _known.setdefault(engine, set())
        if damaged in before or len(before) >= MAX_KNOWN:
            return
        before.add(damaged)
    log.error(
        "stored data of run %s is damaged: %s of snapshots %d to %d of its process %d cannot be read; a backup has it, "
        "if there is one",
        damaged.run_id, damaged.name, damaged.first_sequence, damaged.last_sequence, damaged.process_id,
    )  # fmt: skip


def known(engine: Engine) -> frozenset[Damaged]:
    """All that this process has come upon."""
    with _lock:
        return frozenset(_known.get(engine, ()))


def batches_of(engine: Engine, run_id: str, process_id: int) -> set[int]:
    """First sequence numbers of those batches of a process that were found to be damaged."""
    with _lock:
        return {
            each.first_sequence for each in _known.get(engine, ())
            if each.name == BATCH and (each.run_id, each.process_id) == (run_id, process_id)
        }  # fmt: skip


def count(engine: Engine) -> int:
    """How many damaged chunks and batches this process has come upon."""
    with _lock:
        return len(_known.get(engine, ()))
