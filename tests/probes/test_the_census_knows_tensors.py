"""Tensors by storage, and what autograd graphs keep, on real torch objects."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import census, way
from torch import nn
from torch.overrides import TorchFunctionMode

from leakline.probes.tensors import TensorMeasure

__all__ = ["way"]
pytestmark = pytest.mark.usefixtures("way")

KIB = 1024


def _measure() -> TensorMeasure:
    gc.collect()
    measure = census().tensors
    assert measure is not None
    return measure


def test_tensors_that_share_a_storage_count_its_bytes_once() -> None:
    before = _measure()
    base = torch.zeros(1000, 100)
    views = [base[i] for i in range(50)] + [base.t(), base.detach()]
    taken = torch.empty(0).set_(base.untyped_storage())
    after = _measure()
    assert after.count - before.count == 1 + len(views) + 1
    assert after.bytes - before.bytes == 400_000
    assert taken.numel() == 100_000


def test_an_array_and_a_tensor_on_the_same_memory_count_once() -> None:
    first, first_arrays = census(), census().arrays
    arrays = [np.ones(25_000, np.float32)]
    tensor = torch.from_numpy(arrays[0])
    mine = torch.zeros(50_000)
    lent = [mine.numpy(), mine[10:].numpy()]
    after = census()
    assert first.tensors and after.tensors and first_arrays and after.arrays
    grown = after.tensors.bytes - first.tensors.bytes + after.arrays.bytes - first_arrays.bytes
    assert grown == 100_000 + 200_000
    assert after.arrays.count - first_arrays.count == 3
    assert len(lent) + len(arrays) == 3 and tensor is not None


def test_sparse_and_meta_tensors_are_counted_without_bytes() -> None:
    before = _measure()
    kept = torch.zeros(1000, 1000, device="meta"), torch.eye(3).to_sparse()
    after = _measure()
    assert after.count - before.count == len(kept)
    assert after.bytes - before.bytes < KIB


def test_parameters_have_their_own_row() -> None:
    before = census()
    layer = nn.Linear(100, 200)
    after = census()
    name = "type.torch.nn.parameter.Parameter"
    assert after.counts[nn.Parameter] - before.counts.get(nn.Parameter, 0) == 2
    assert after.samples()[f"{name}.bytes"] >= (100 * 200 + 200) * 4
    assert layer.in_features == 100


def _loss(net: nn.Module) -> torch.Tensor:
    out: torch.Tensor = net(torch.randn(64, 32)).relu().pow(2).mean()
    return out


def test_losses_without_a_graph_are_no_graphs() -> None:
    net = nn.Linear(32, 256)
    before = _measure()
    losses = [_loss(net).detach() for _ in range(100)]
    after = _measure()
    assert after.graph_count == before.graph_count
    assert after.graph_bytes == before.graph_bytes
    assert len(losses) == 100


def test_kept_losses_show_with_the_memory_that_their_graphs_hold() -> None:
    net = nn.Linear(32, 256)
    before = _measure()
    losses = [_loss(net) for _ in range(100)]
    after = _measure()
    # The losses, and the activations that were tensors of Python once.
    assert 100 <= after.graph_count - before.graph_count <= 300
    # Of each: the input (64 x 32) and the activation (64 x 256), which nothing but the graph holds.
    each = 64 * 32 * 4 + 64 * 256 * 4
    assert after.graph_bytes - before.graph_bytes == pytest.approx(100 * each, rel=0.02)
    assert after.bytes - before.bytes == 100 * 4
    assert len(losses) == 100
    losses.clear()
    assert _measure().graph_bytes == before.graph_bytes


def test_what_the_program_also_holds_is_not_the_graphs() -> None:
    net = nn.Linear(32, 256)
    before = _measure()
    inputs = [torch.randn(64, 32) for _ in range(10)]
    losses = [net(one).relu().pow(2).mean() for one in inputs]
    after = _measure()
    assert after.graph_bytes - before.graph_bytes == 10 * 64 * 256 * 4
    assert after.bytes - before.bytes == 10 * (64 * 32 * 4 + 4)
    assert len(losses) == 10


def test_gradients_are_the_programs_own() -> None:
    net = nn.Linear(32, 256)
    before = _measure()
    _loss(net).backward()  # type: ignore[no-untyped-call]
    seen = [parameter.grad is not None for parameter in net.parameters()]
    after = _measure()
    assert after.bytes - before.bytes == (32 * 256 + 256) * 4
    assert after.graph_bytes == before.graph_bytes
    assert all(seen)


def test_backward_frees_what_the_graph_held() -> None:
    net = nn.Linear(32, 256)
    before = _measure()
    losses = [_loss(net) for _ in range(20)]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    after = _measure()
    assert after.graph_count - before.graph_count >= 20
    assert after.graph_bytes - before.graph_bytes < 100 * KIB


def test_more_graphs_than_one_look_visits_are_scaled(monkeypatch: Any) -> None:
    net = nn.Linear(32, 64)
    losses = [_loss(net) for _ in range(400)]
    monkeypatch.setattr("leakline.probes.graphs._GRAPHS_VISITED", 1000)
    whole = _measure()
    monkeypatch.setattr("leakline.probes.graphs._GRAPHS_VISITED", 40)
    part = _measure()
    assert whole.graph_bytes == pytest.approx(400 * (64 * 32 * 4 + 64 * 64 * 4), rel=0.05)
    assert abs(part.graph_bytes - whole.graph_bytes) < whole.graph_bytes * 0.1
    assert len(losses) == 400


def test_graphs_that_share_their_memory_are_not_multiplied() -> None:
    shared = torch.randn(256, 256, requires_grad=True).exp()
    before = _measure()
    heads = [(shared * float(i)).sum() for i in range(300)]
    after = _measure()
    assert after.graph_count - before.graph_count == 300
    assert after.graph_bytes - before.graph_bytes < 600 * KIB
    assert len(heads) == 300


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given * 3)
        return given * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def test_functions_of_the_program_are_looked_through() -> None:
    given = torch.zeros(1000, requires_grad=True)
    before = _measure()
    kept = Doubled.apply(given)  # type: ignore[no-untyped-call]
    after = _measure()
    assert after.graph_bytes - before.graph_bytes == 4000
    assert kept is not None


def test_hooks_on_saved_tensors_are_never_run() -> None:
    unpacked: list[str] = []

    def unpack(packed: Any) -> Any:
        unpacked.append("unpacked")
        return packed[0]

    given = torch.zeros(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor,), unpack):
        kept = (given * given).sin()
    _measure()
    assert unpacked == []
    assert kept is not None


def test_modes_of_the_program_are_never_run() -> None:
    seen: list[Any] = []

    class Spy(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    kept = [torch.zeros(4) for _ in range(3)]
    with Spy():
        measure = _measure()
    assert seen == []
    assert measure.count >= len(kept)


def test_a_look_leaves_no_trace_on_tensors() -> None:
    loss = _loss(nn.Linear(32, 8))
    _measure()
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
