"""What comes together is recorded together, and what has waited long enough waits for nothing more."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from leakline import breathing
from leakline.batches import VALUES_AT_ONCE
from leakline.recorder import LATE_SECONDS, LINGER_SECONDS, Losses, Recorder
from leakline.snapshot import Batch, ProcessIdentity, Snapshot

pytestmark = pytest.mark.alone


class Slow:
    """An outbox whose first record takes until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.written: list[tuple[float, list[int]]] = []

    def append(self, batch: Batch) -> None:
        self.written.append((time.monotonic(), [s.sequence for s in batch.snapshots]))
        self.begun.set()
        self.let_go.wait(10)

    def append_end(self, end: Mapping[str, Any]) -> None:
        return

    def lost(self) -> dict[str, int]:
        return {}


def taken(sequence: int, series: int = 1) -> Snapshot:
    samples = {f"gauge.g{i}": i for i in range(series)}
    now = time.monotonic()
    return Snapshot(sequence, time.time(), now, 0, None, "", "sample", samples)


def recording(outbox: Slow) -> Recorder:
    recorder = Recorder(outbox, ProcessIdentity("i"), Losses())  # type: ignore[arg-type]
    recorder.start()
    return recorder


def test_what_waited_for_the_record_before_is_recorded_at_once() -> None:
    outbox = Slow()
    recorder = recording(outbox)
    recorder.put(taken(1))
    assert outbox.begun.wait(10)
    recorder.put(taken(2))
    time.sleep(LINGER_SECONDS)
    recorder.put(taken(3))
    released = time.monotonic()
    outbox.let_go.set()
    assert recorder.close({"state": "finished"}, 10)
    assert [numbers for _, numbers in outbox.written] == [[1], [2, 3]]
    assert outbox.written[1][0] - released < LINGER_SECONDS / 2


class Working(Slow):
    """An outbox that works in pieces: CPU time as a share of wall time, for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[float] = []

    def append(self, batch: Batch) -> None:
        begun, cpu = time.perf_counter(), time.thread_time()
        while time.thread_time() - cpu < 0.03:
            breathing.breathe()
        self.shares.append((time.thread_time() - cpu) / (time.perf_counter() - begun))


def test_what_is_late_is_written_with_short_rests_and_the_next_with_long_ones_again() -> None:
    outbox = Working()
    recorder = recording(outbox)
    late = taken(1)
    recorder.put(replace(late, monotonic=late.monotonic - LATE_SECONDS))
    assert recorder.flush(10)
    recorder.put(taken(2))
    assert recorder.flush(10)
    assert recorder.close({"state": "finished"}, 10)
    assert outbox.shares[0] > 0.3
    assert outbox.shares[1] < 0.2


def test_what_is_fresh_is_recorded_together() -> None:
    outbox = Slow()
    outbox.let_go.set()
    recorder = recording(outbox)
    for sequence in range(1, 6):
        recorder.put(taken(sequence))
    assert recorder.flush(10)
    assert recorder.close({"state": "finished"}, 10)
    assert [numbers for _, numbers in outbox.written] == [[1, 2, 3, 4, 5]]


def test_no_record_has_more_values_than_are_encoded_at_once() -> None:
    outbox = Slow()
    outbox.let_go.set()
    recorder = recording(outbox)
    series = VALUES_AT_ONCE // 4
    for sequence in range(1, 11):
        recorder.put(taken(sequence, series))
    assert recorder.close({"state": "finished"}, 10)
    assert [n for _, numbers in outbox.written for n in numbers] == list(range(1, 11))
    assert max(len(numbers) for _, numbers in outbox.written) <= 4
