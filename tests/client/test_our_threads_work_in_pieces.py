"""Our threads rest after each millisecond of work, other threads never, and nobody when the process ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from leakline import breathing

pytestmark = pytest.mark.alone


def on_a_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        breathing.breathe()


def shares(hurry: threading.Event | None) -> float:
    """CPU time as a share of wall time, of work in one go."""
    if hurry is not None:
        breathing.begin(hurry)
    begun, cpu = time.perf_counter(), time.thread_time()
    compute(0.05)
    return (time.thread_time() - cpu) / (time.perf_counter() - begun)


def test_a_thread_of_ours_takes_a_small_part_of_each_moment() -> None:
    assert on_a_thread(lambda: shares(threading.Event())) < 0.2


def share_when_late() -> float:
    breathing.late(True)
    return shares(threading.Event())


def test_a_thread_that_is_late_rests_no_longer_than_it_works() -> None:
    assert on_a_thread(share_when_late) > 0.3


def rest_after(work_seconds: float, waited_seconds: float, **how: float) -> float:
    """Seconds that a thread of ours rests after one piece and a wait."""
    breathing.begin(threading.Event(), **how)
    until = time.thread_time() + work_seconds
    while time.thread_time() < until:
        pass
    breathing.rested(waited_seconds)
    begun = time.perf_counter()
    breathing.breathe()
    return time.perf_counter() - begun


def test_the_longer_a_piece_the_longer_the_rest_up_to_a_bound() -> None:
    assert on_a_thread(lambda: rest_after(0.0005, 0)) < breathing.REST_SECONDS
    assert on_a_thread(lambda: rest_after(0.003, 0)) >= breathing.LONGEST_REST_SECONDS
    short = on_a_thread(lambda: rest_after(0.003, 0, longest_rest=breathing.REST_SECONDS))
    assert breathing.REST_SECONDS <= short < breathing.LONGEST_REST_SECONDS


def test_waiting_for_the_interpreter_is_no_rest() -> None:
    assert on_a_thread(lambda: rest_after(0.003, 0.005)) >= breathing.LONGEST_REST_SECONDS
    assert on_a_thread(lambda: rest_after(0.003, 0.02)) < breathing.REST_SECONDS


def test_a_thread_of_the_program_is_never_made_to_rest() -> None:
    waited: list[float] = []

    def work() -> None:
        for _ in range(1000):
            begun = time.thread_time()
            breathing.breathe()
            waited.append(time.thread_time() - begun)

    on_a_thread(work)
    # Asking costs nothing worth mentioning either.
    assert sorted(waited)[500] < 20e-6
    assert not hasattr(breathing._local, "hurry")


@pytest.mark.alone
def test_nobody_rests_when_the_process_ends() -> None:
    ends = threading.Event()
    ends.set()
    begun = time.perf_counter()
    cpu = on_a_thread(lambda: (shares(ends), time.thread_time())[1])
    # No rest of ten milliseconds for each of fifty pieces; other programs may have had the processor.
    assert time.perf_counter() - begun < cpu + 0.4
