"""Tensors by storage and the memory held by autograd graphs, read only when torch does not change them."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import census, needs_native, run_alone, way
from torch import nn
from torch.overrides import TorchFunctionMode

from leakline.probes.heap.autograd_graphs import (
    longest_chain,
    on_main_thread,
    while_the_engine_rests,
)
from leakline.probes.heap.census import look_at_tensors
from leakline.probes.heap.marginal_size import marginal_bytes
from leakline.probes.heap.tensor_storages import storage_key
from leakline.probes.heap.tensors import TensorMeasure
from leakline.sampling.holder_paths import SlicedHolderSearch

__all__ = ["way"]
both_ways = pytest.mark.usefixtures("way")

KIB = 1024
# A kept loss holds the input (64 x 32) and the activation (64 x 256), which only the graph holds.
INPUT, ACTIVATION = 64 * 32 * 4, 64 * 256 * 4


def _measure() -> TensorMeasure:
    gc.collect()
    measure = census().tensors
    assert measure is not None
    return measure


def _grown(make: Callable[[], object]) -> TensorMeasure:
    """Return by how much the measure grows once this is made."""
    before = _measure()
    kept = make()
    after = _measure()
    assert kept is not None
    names = ("count", "bytes", "graph_count", "graph_bytes")
    more = {name: getattr(after, name) - getattr(before, name) for name in names}
    return TensorMeasure(**more)


def _loss(net: nn.Module) -> Any:
    return net(torch.randn(64, 32)).relu().pow(2).mean()


@both_ways
def test_tensors_sharing_a_storage_count_its_bytes_once() -> None:
    def made() -> Any:
        base = torch.zeros(1000, 100)
        taken = torch.empty(0).set_(base.untyped_storage())
        return base, taken, [base[i] for i in range(50)], base.t(), base.detach()

    grown = _grown(made)
    assert (grown.count, grown.bytes) == (54, 400_000)


@both_ways
def test_an_array_and_a_tensor_on_the_same_memory_count_once() -> None:
    first = census()
    arrays = [np.ones(25_000, np.float32)]
    tensor = torch.from_numpy(arrays[0])
    mine = torch.zeros(50_000)
    lent = [mine.numpy(), mine[10:].numpy()]
    after = census()
    assert first.tensors and after.tensors and first.arrays and after.arrays
    grown = after.tensors.bytes - first.tensors.bytes + after.arrays.bytes - first.arrays.bytes
    assert grown == 100_000 + 200_000
    assert after.arrays.count - first.arrays.count == 3
    assert len(lent) + len(arrays) == 3 and tensor is not None


@both_ways
def test_sparse_and_meta_tensors_are_counted_without_bytes() -> None:
    grown = _grown(lambda: (torch.zeros(1000, 1000, device="meta"), torch.eye(3).to_sparse()))
    assert grown.count == 2
    assert grown.bytes < KIB


@both_ways
def test_parameters_have_their_own_row() -> None:
    before = census()
    layer = nn.Linear(100, 200)
    after = census()
    assert after.counts[nn.Parameter] - before.counts.get(nn.Parameter, 0) == 2
    told = after.samples()["type.torch.nn.parameter.Parameter.bytes"]
    assert told >= (100 * 200 + 200) * 4
    assert layer.in_features == 100


@both_ways
def test_losses_without_a_graph_are_not_counted_as_graphs() -> None:
    net = nn.Linear(32, 256)
    grown = _grown(lambda: [_loss(net).detach() for _ in range(100)])
    assert (grown.count, grown.graph_count, grown.graph_bytes) == (100, 0, 0)


@both_ways
def test_kept_losses_include_the_memory_of_their_graphs() -> None:
    net = nn.Linear(32, 256)
    grown = _grown(lambda: [_loss(net) for _ in range(100)])
    # The losses, and the activations that were once Python tensors.
    assert 100 <= grown.graph_count <= 300
    assert grown.graph_bytes == pytest.approx(100 * (INPUT + ACTIVATION), rel=0.02)
    assert grown.bytes == 100 * 4


def _sums(net: nn.Module, state: Any) -> Any:
    loss = _loss(net)
    loss.backward()
    return state + loss


def _carries(net: nn.Module, state: Any) -> Any:
    return net(torch.randn(64, 32)).sum(1) + state


@pytest.mark.parametrize(
    ("step", "more"),
    [
        (_sums, 30), (lambda net, state: state + _loss(net).item(), 0), (_carries, 30),
        (lambda net, state: _carries(net, state).detach(), 0),
        (lambda net, _: nn.Sequential(*[net] * 30)(torch.randn(4, 32)), 0),
    ],
    ids=["running loss", "loss.item()", "hidden state", "detached state", "deep network"],
)  # fmt: skip
def test_a_chain_grows_by_the_steps_that_are_not_detached(
    step: Callable[[nn.Module, Any], Any], more: int
) -> None:
    net = nn.Linear(32, 32)
    state: Any = torch.zeros(())
    read = []
    for _ in range(4):
        for _ in range(30):
            state = step(net, state)
        gc.collect()
        read.append(look_at_tensors()["tensors.graph_depth"])
    assert [after - before for before, after in pairwise(read)] == [more] * 3


def test_backpropagation_through_a_window_keeps_chains_short() -> None:
    net = nn.Linear(32, 32)
    state: Any = torch.zeros(())
    read = []
    for number in range(300):
        state = _carries(net, state)
        if number % 50 == 49:
            read.append(longest_chain([state]))
            state = state.detach()
    assert len(set(read)) == 1


def test_a_walk_that_is_cut_short_proves_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakline.probes.heap.autograd_graphs._LINKS_WALKED", 300)
    monkeypatch.setattr("leakline.probes.heap.autograd_graphs._known_chains", {})
    weight = torch.ones((), requires_grad=True)
    state = weight * 2
    read = []
    # A walk is whole if it reaches the node that the walk before began with.
    for steps in (200, 200, 200, 1000, 1000):
        for _ in range(steps):
            state = state + 1
        read.append(longest_chain([state]))
    assert read == [202, 402, 602, None, None]
    assert longest_chain([weight * 2]) == 2


@both_ways
def test_memory_also_held_by_the_program_is_not_counted_for_graphs() -> None:
    net = nn.Linear(32, 256)

    def made() -> Any:
        inputs = [torch.randn(64, 32) for _ in range(10)]
        return inputs, [net(one).relu().pow(2).mean() for one in inputs]

    grown = _grown(made)
    assert (grown.graph_bytes, grown.bytes) == (10 * ACTIVATION, 10 * (INPUT + 4))


@both_ways
def test_backward_frees_graph_memory_and_gradients_are_not_graph_memory() -> None:
    net = nn.Linear(32, 256)

    def made() -> Any:
        losses = [_loss(net) for _ in range(20)]
        for loss in losses:
            loss.backward()
        return losses, [parameter.grad for parameter in net.parameters()]

    grown = _grown(made)
    assert grown.bytes == (32 * 256 + 256) * 4 + 20 * 4
    assert grown.graph_count >= 20
    assert grown.graph_bytes < 100 * KIB


@both_ways
def test_more_graphs_than_one_scan_visits_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(32, 64)
    losses = [_loss(net) for _ in range(400)]
    seen = []
    for visited in (1000, 40):
        monkeypatch.setattr("leakline.probes.heap.autograd_graphs._GRAPHS_VISITED", visited)
        seen.append(_measure().graph_bytes)
    assert seen[0] == pytest.approx(400 * (INPUT + 64 * 64 * 4), rel=0.05)
    assert seen[1] == pytest.approx(seen[0], rel=0.1)
    assert len(losses) == 400


@both_ways
def test_graphs_that_share_their_memory_are_not_multiplied() -> None:
    shared = torch.randn(256, 256, requires_grad=True).exp()
    grown = _grown(lambda: [(shared * float(i)).sum() for i in range(300)])
    assert grown.graph_count == 300
    assert grown.graph_bytes < 600 * KIB


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Any) -> Any:
        ctx.save_for_backward(given * 3)
        return given * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


@both_ways
def test_custom_autograd_functions_are_visited() -> None:
    given = torch.zeros(1000, requires_grad=True)
    assert _grown(lambda: Doubled.apply(given)).graph_bytes == 4000  # type: ignore[no-untyped-call]


@both_ways
def test_hooks_on_saved_tensors_and_modes_of_the_program_are_never_run() -> None:
    ran: list[Any] = []

    class Spy(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            ran.append(func)
            return func(*args, **(kwargs or {}))

    given = torch.zeros(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor,), ran.append):
        kept = (given * given).sin()
    with Spy():
        measure = _measure()
    assert ran == []
    assert measure.count >= 2 and kept is not None


# -- while the engine runs

SECONDS = 10.0


class Step:
    """A step that keeps its loss and with it the graph."""

    def __init__(self) -> None:
        self.loss = torch.rand(128, 128, requires_grad=True).square()


history: list[Step] = []


@contextlib.contextmanager
def in_the_engine() -> Iterator[None]:
    """Keep another thread in the middle of a backward pass."""
    entered, leave = threading.Event(), threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            entered.set()
            assert leave.wait(SECONDS)
            return gradients[0]

    x = torch.ones(3, requires_grad=True)
    thread = threading.Thread(target=Waits.apply(x).sum().backward)  # type: ignore[no-untyped-call]
    thread.start()
    try:
        assert entered.wait(SECONDS)
        yield
    finally:
        leave.set()
        thread.join(SECONDS)


def on_a_thread_of_ours(call: Any) -> Any:
    """Return the result of a call on one of our threads while the main thread continues."""
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


def test_graphs_are_not_read_while_the_engine_runs() -> None:
    with in_the_engine():
        assert while_the_engine_rests(lambda: 1) is None
    assert while_the_engine_rests(lambda: 1) == 1
    found: list[Any] = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: found.append(while_the_engine_rests(lambda: 1)))
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert found == [None]


def test_graph_memory_is_unknown_while_the_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Allow enough time on a busy machine.
    monkeypatch.setattr("leakline.probes.heap.marginal_size._GRAPHS_SECONDS", 10.0)
    kept = [(torch.rand(64, 64, requires_grad=True) * 2).square() for _ in range(10)]
    with in_the_engine():
        busy = look_at_tensors()
        assert not {"tensors.graph_bytes", "tensors.graph_depth"} & set(busy)
        assert marginal_bytes(kept) is None
    assert look_at_tensors()["tensors.graph_bytes"] > 10 * 64 * 64 * 4
    assert (marginal_bytes(kept) or 0) > 2 * 64 * 64 * 4


@needs_native
def test_our_threads_read_graphs_on_the_main_thread() -> None:
    where = on_a_thread_of_ours(lambda: while_the_engine_rests(threading.current_thread))
    assert where is threading.main_thread()


def test_a_call_that_the_main_thread_does_not_reach_is_cancelled() -> None:
    called: list[int] = []
    asked, waited = threading.Lock(), threading.Event()
    asked.acquire()

    def ask() -> None:
        # Wait until the main thread is inside a C call.
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
def test_errors_on_the_main_thread_reach_only_the_requesting_thread() -> None:
    # The innermost function is one of ours.
    error = on_a_thread_of_ours(lambda: on_main_thread(lambda: storage_key(3), 5.0))
    assert isinstance(error, AttributeError)


@needs_native
def test_exceptions_of_signal_handlers_reach_the_program() -> None:
    signum, raises = signal.SIGTERM, SystemExit(143)

    def handle(signum: int, frame: object) -> None:
        raise raises

    before = signal.signal(signum, handle)
    try:
        with pytest.raises(type(raises)) as raised:
            # The signal arrives while the main thread works for us, or one instruction later.
            on_a_thread_of_ours(lambda: on_main_thread(lambda: signal.raise_signal(signum), 5.0))
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends:
                pass
        assert raised.value is raises
    finally:
        signal.signal(signum, before)


@needs_native
def test_a_sliced_search_measures_objects_with_graphs_at_the_end() -> None:
    history.extend(Step() for _ in range(20))
    search = SlicedHolderSearch([Step], 10.0)
    on_a_thread_of_ours(lambda: any(iter(lambda: search.step(0.002), True)))
    found = search.result()
    assert found
    assert all((one.bytes_each or 0) >= 128 * 128 * 4 for one in found)
    history.clear()


# One of our threads scans repeatedly while the main thread trains.
TRAINS_BESIDE_LOOKS = """
import sys, threading, time
import torch
from leakline.sampling.holder_paths import SlicedHolderSearch
from leakline.probes.heap.census import SlicedCensus, look_at_tensors

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
        if way == "tensors":
            look_at_tensors()
        else:
            work = SlicedCensus() if way == "census" else SlicedHolderSearch([Kept], 10.0)
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


@pytest.mark.long
@needs_native
@pytest.mark.parametrize("way", ["census", "holders", "tensors"])
def test_a_training_survives_concurrent_scans(way: str, tmp_path: Path) -> None:
    assert int(run_alone(tmp_path, TRAINS_BESIDE_LOOKS, way, "2").split()[-1]) >= 2
