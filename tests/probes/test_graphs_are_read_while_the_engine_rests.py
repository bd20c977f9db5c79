"""Graphs and gradients are read where and when torch does not change them: anything else takes a training down."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from leakline.holders import SlicedHolderSearch
from leakline.probes.census import look_at_tensors
from leakline.probes.deep import marginal_bytes
from leakline.probes.graphs import while_the_engine_rests
from leakline.probes.main_thread import on_main_thread
from leakline.probes.native import native
from leakline.probes.storages import storage_key

torch = pytest.importorskip("torch")
needs_native = pytest.mark.skipif(native() is None, reason="needs the native module")

SECONDS = 10.0


class Step:
    """Keeps its loss, and with it the graph."""

    def __init__(self) -> None:
        self.loss = torch.rand(128, 128, requires_grad=True).square()


history: list[Step] = []

# Looks as our threads do, one after the other, while the main thread trains.
TRAINS_BESIDE_LOOKS = """
import sys, threading, time
import torch
from leakline.holders import SlicedHolderSearch
from leakline.probes.census import SlicedCensus, look_at_tensors

way = sys.argv[1]
sys.setswitchinterval(1e-5)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)])
optimizer = torch.optim.Adam(model.parameters())
over, looks = threading.Event(), 0

class Kept:
    def __init__(self, loss):
        self.loss = loss

kept = []

def look():
    global looks
    while not over.is_set():
        if way == "census":
            work = SlicedCensus()
        elif way == "holders":
            work = SlicedHolderSearch([Kept], 10.0)
        else:
            look_at_tensors()
            looks += 1
            continue
        while not work.step(0.002):
            pass
        work.result()
        looks += 1

thread = threading.Thread(target=look, name="leakline-look")
thread.start()
ends = time.monotonic() + float(sys.argv[2])
while time.monotonic() < ends or looks < 2:
    loss = model(torch.rand(64, 64)).square().mean()
    kept[:] = [Kept(loss), *kept[:30]]
    optimizer.zero_grad()
    loss.backward(retain_graph=len(kept) % 2 == 0)
    optimizer.step()
over.set()
thread.join()
print("looks", looks)
"""


@contextlib.contextmanager
def in_the_engine() -> Iterator[None]:
    """Another thread is in the middle of a backward pass."""
    entered, leave = threading.Event(), threading.Event()

    class Waits(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            entered.set()
            assert leave.wait(SECONDS)
            return gradient

    x = torch.ones(3, requires_grad=True)
    thread = threading.Thread(target=Waits.apply(x).sum().backward)
    thread.start()
    try:
        assert entered.wait(SECONDS)
        yield
    finally:
        leave.set()
        thread.join(SECONDS)


def on_a_thread_of_ours(call: Any) -> Any:
    """What it gives; the main thread runs on meanwhile."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run, name="leakline-test")
    thread.start()
    ends = time.monotonic() + SECONDS
    while thread.is_alive():
        assert time.monotonic() < ends
    return found[0]


def test_they_are_not_read_while_another_thread_is_in_the_engine() -> None:
    with in_the_engine():
        assert while_the_engine_rests(lambda: 1) is None
    assert while_the_engine_rests(lambda: 1) == 1


def test_they_are_not_read_by_a_hook_in_the_engine() -> None:
    found: list[Any] = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: found.append(while_the_engine_rests(lambda: 1)))
    y.sum().backward()
    assert found == [None]


def test_what_graphs_hold_is_unknown_then_and_no_zero() -> None:
    kept = [(torch.rand(64, 64, requires_grad=True) * 2).square() for _ in range(10)]
    with in_the_engine():
        assert "tensors.graph_bytes" not in look_at_tensors()
        assert marginal_bytes(kept) is None
    assert look_at_tensors()["tensors.graph_bytes"] > 10 * 64 * 64 * 4
    assert (marginal_bytes(kept) or 0) > 2 * 64 * 64 * 4


@needs_native
def test_a_thread_of_ours_has_them_read_on_the_main_thread() -> None:
    where = on_a_thread_of_ours(lambda: while_the_engine_rests(threading.current_thread))
    assert where is threading.main_thread()


def test_a_main_thread_that_does_not_come_to_it_is_not_waited_for_and_never_comes_to_it() -> None:
    called: list[int] = []
    asked, waited = threading.Lock(), threading.Event()
    asked.acquire()

    def ask() -> None:
        # Until the main thread is in a call of C.
        waited.wait(0.1)
        on_main_thread(lambda: called.append(1), 0.05)
        asked.release()

    thread = threading.Thread(target=ask, name="leakline-test")
    thread.start()
    assert asked.acquire(timeout=SECONDS)
    thread.join()
    for _ in range(1_000):
        pass
    assert called == []


@needs_native
def test_what_goes_wrong_there_is_of_who_asked_and_not_of_the_program() -> None:
    # Where one of our own functions is the last to be called.
    error = on_a_thread_of_ours(lambda: on_main_thread(lambda: storage_key(3), 5.0))
    assert isinstance(error, AttributeError)


def raised_in_the_middle_of_ours(signum: signal.Signals) -> None:
    """Raises what the program's handler raises: the signal comes while the main thread does something for us."""
    on_a_thread_of_ours(lambda: on_main_thread(lambda: signal.raise_signal(signum), 5.0))
    # It may come an instruction later.
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:
        pass


@needs_native
def test_what_a_handler_of_the_program_raises_meanwhile_is_the_programs() -> None:
    def too_late(signum: int, frame: object) -> None:
        raise TimeoutError("too late", signum)

    before = signal.signal(signal.SIGALRM, too_late)
    try:
        with pytest.raises(TimeoutError) as raised:
            raised_in_the_middle_of_ours(signal.SIGALRM)
        assert raised.value.args == ("too late", signal.SIGALRM)
        with pytest.raises(KeyboardInterrupt):
            raised_in_the_middle_of_ours(signal.SIGINT)
    finally:
        signal.signal(signal.SIGALRM, before)


@needs_native
def test_a_handler_of_the_program_that_ends_it_ends_it_with_its_status() -> None:
    def end(signum: int, frame: object) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit) as raised:
            raised_in_the_middle_of_ours(signal.SIGTERM)
        assert raised.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, before)


@needs_native
def test_a_search_in_slices_tells_the_size_of_what_has_graphs_in_the_end() -> None:
    history.extend(Step() for _ in range(20))
    search = SlicedHolderSearch([Step], 10.0)
    on_a_thread_of_ours(lambda: any(iter(lambda: search.step(0.002), True)))
    found = search.result()
    assert found
    assert all((one.bytes_each or 0) >= 128 * 128 * 4 for one in found)
    history.clear()


@pytest.mark.long
@needs_native
@pytest.mark.parametrize("way", ["census", "holders", "tensors"])
def test_a_training_lives_through_looks_beside_it(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", TRAINS_BESIDE_LOOKS, way, "6"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert int(done.stdout.split()[-1]) >= 2
