"""The native census in one piece, against counting one by one and against the pure one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import brute_force, census, count_of

from leakline.probes import native as native_module
from leakline.probes import native_census
from leakline.probes.census import look_at_tensors, take_census
from leakline.probes.native import native, why_not_native
from leakline.probes.native_census import NativeCensus, array_layout

if native() is None:
    pytest.skip(f"no native module: {why_not_native()}", allow_module_level=True)


class Agent:
    pass


class Slotted:
    __slots__ = ("held",)

    held: Any


def pure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(native_module.SETTING, "0")
    native_module.forget()
    try:
        return census()
    finally:
        monkeypatch.setenv(native_module.SETTING, "1")
        native_module.forget()


def test_every_type_counts_as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    for i in range(3_000):
        slotted = Slotted()
        slotted.held = np.zeros(3)
        kept += [
            ({"a": i}, (i, float(i)), bytearray(3), {i}, np.zeros(2)), Agent(), slotted,
            deque([(i, np.ones(1))]), OrderedDict({i: bytes(9)}), defaultdict(list, {i: [(i,)]}),
            frozenset([(i, i)]),
        ]  # fmt: skip
    shared = [(i, (i, np.zeros(1))) for i in range(500)]
    kept += [[one, {"same": one}] for one in shared]
    counted, truth = census(), pure(monkeypatch)
    for cls in (
        Agent, Slotted, dict, tuple, set, frozenset, deque, OrderedDict, defaultdict, bytes,
        bytearray, np.ndarray, list,
    ):  # fmt: skip
        assert abs(counted.counts[cls] - truth.counts[cls]) <= 40, cls
    assert counted.counts[Agent] == truth.counts[Agent] == 3_000
    assert counted.arrays is not None
    assert counted.arrays.bytes == truth.arrays.bytes


def test_every_object_on_the_collectors_lists_is_counted_exactly() -> None:
    kept = [[Agent() for _ in range(1_000)], [{i: [i]} for i in range(1_000)]]
    gc.collect()
    gc.disable()
    try:
        work = NativeCensus({}, 1 << 62, in_slices=False, enters=False)
        work.run(None, [kept])
        found = {row.cls: row.count for row in work.rows(None)}
        objects = gc.get_objects()
        truth: dict[type, int] = {}
        for one in objects:
            truth[type(one)] = truth.get(type(one), 0) + 1
    finally:
        gc.enable()
    # What the two looks have made themselves.
    ours: set[type] = {list, dict, tuple, type(work), type(sys._getframe())}
    different = {cls for cls in found.keys() | truth.keys() if found.get(cls) != truth.get(cls)}
    assert {cls for cls in different if cls not in ours} <= {native_census.TypeRow}
    assert all(abs(found.get(cls, 0) - truth.get(cls, 0)) <= 8 for cls in ours - {type(work)})


@pytest.mark.parametrize("kind", [Agent, dict, tuple, np.ndarray, bytearray])
def test_it_counts_as_counting_one_by_one(kind: type) -> None:
    kept: list[Any] = [((i, (i, (i, np.ones(1)))), {"deep": {"er": (i, i)}}) for i in range(300)]
    gc.collect()
    still = brute_force(kind) - count_of(census(), kind)
    kept += [({"b": i}, (i, i), bytearray(1), np.zeros(1), Agent()) for i in range(200)]
    gc.collect()
    assert abs(brute_force(kind) - count_of(census(), kind) - still) <= 2


def test_150_000_arrays_in_tuples_and_dicts_are_150_000() -> None:
    before = census()
    buffer = deque((np.zeros(4, np.float32), i, np.zeros(4, np.float32)) for i in range(37_500))
    rows = [{"state": np.zeros(4, np.float32), "next": np.zeros(4, np.float32)} for _ in buffer]
    after = census()
    assert count_of(after, np.ndarray) - count_of(before, np.ndarray) == 150_000
    assert after.arrays is not None and before.arrays is not None
    assert after.arrays.bytes - before.arrays.bytes == 150_000 * 16
    assert len(rows) == len(buffer)


def test_10_000_views_of_one_buffer_cost_it_once() -> None:
    before = census().arrays
    views = [np.zeros((10_000, 25))[i] for i in range(1)]
    base = views[0].base
    assert base is not None
    views += [base[i] for i in range(1, 10_000)]
    del base
    after = census().arrays
    assert before is not None and after is not None
    assert after.bytes - before.bytes == 10_000 * 25 * 8
    assert after.count - before.count == len(views) + 1


def test_arrays_in_arrays_in_arrays_are_found_however_deep() -> None:
    before = census().arrays
    inner: Any = np.zeros(10)
    for _ in range(2_000):
        outer = np.empty(1, dtype=object)
        outer[0] = inner
        inner = outer
    wide = np.empty(1_000, dtype=object)
    for i in range(1_000):
        wide[i] = np.array([np.zeros(1), None], dtype=object)
    kept = [inner, wide]
    after = census().arrays
    assert before is not None and after is not None
    assert after.count - before.count == 2_001 + 1 + 2_000
    assert len(kept) == 2


def test_when_it_may_remember_little_it_estimates_and_says_so() -> None:
    shared = [(float(i), bytes(10)) for i in range(60_000)]
    gc.collect()
    kept = [shared, list(shared)]
    module: Any = native()
    facts = {}
    for name, most in (("whole", 16 << 20), ("little", 1 << 17)):
        work = module.Census(
            roles={}, picks={}, not_entered=(), elsewhere=(), array_layout=0, floor=1 << 62,
            in_slices=False, seen_bytes=most,
        )  # fmt: skip
        work.run(-1, [])
        counts = {address: count for address, count, _ in work.rows()}
        facts[name] = counts[id(tuple)], work.facts()["coverage"]
    assert facts["whole"][1] == 1.0
    assert 0 < facts["little"][1] < 1
    assert facts["little"][0] == pytest.approx(facts["whole"][0], rel=0.25)
    assert len(kept) == 2


def test_when_it_may_remember_little_tuples_of_tuples_do_not_keep_it_for_ever() -> None:
    shared = [(float(i), bytes(10)) for i in range(60_000)]
    nested: Any = (1.5,)
    for _ in range(200):
        nested = (nested, nested)
    gc.collect()
    kept = [shared, list(shared), [nested]]
    module: Any = native()
    work = module.Census(
        roles={}, picks={}, not_entered=(), elsewhere=(), array_layout=0, floor=1 << 62,
        in_slices=False, seen_bytes=1 << 16,
    )  # fmt: skip
    work.run(-1, [])
    assert work.facts()["coverage"] < 1
    assert len(kept) == 3


def test_a_deadline_leaves_a_part_out_and_says_so() -> None:
    kept = [[i] for i in range(300_000)]
    whole = census()
    part = take_census(0.0005)
    assert whole.is_exact and not part.is_exact
    assert 0 < part.coverage < 1
    assert "arrays.bytes" not in part.samples()
    assert kept


def test_references_are_the_same_after_a_census() -> None:
    agent, array, big = Agent(), np.zeros(2 << 20, np.uint8), [None] * (1 << 19)
    watched = [agent, array, big, Agent, Slotted, torch.Tensor, np.ndarray, list, type]
    before = [sys.getrefcount(watched[i]) for i in range(len(watched))]
    result = take_census(on_instances=lambda instances: None)
    objects = result.objects
    del result
    assert [sys.getrefcount(watched[i]) for i in range(len(watched))] == before
    assert objects > 1_000


def test_the_counts_are_all_that_is_left_of_a_census_on_classes() -> None:
    kept = [Agent() for _ in range(3)]
    before = sys.getrefcount(Agent)
    result = take_census(on_instances=lambda instances: None)
    assert result.counts[Agent] == len(kept)
    assert sys.getrefcount(Agent) == before + 1


def test_tensors_alone_are_told_as_by_the_census() -> None:
    kept = [torch.zeros(100) for _ in range(30)]
    told, whole = look_at_tensors(), census()
    assert whole.tensors is not None
    assert told["tensors.count"] == whole.tensors.count
    assert told["tensors.bytes"] == whole.tensors.bytes
    assert told["type.torch.Tensor.count"] == whole.counts[torch.Tensor]
    assert len(kept) == 30


def test_a_numpy_of_another_kind_is_measured_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [np.zeros(1000), np.zeros((10, 10))[2:5]]
    hidden = np.empty(20, dtype=object)
    for i in range(20):
        hidden[i] = np.zeros(100)
    known = census().arrays
    monkeypatch.setattr(native_census, "array_layout", lambda: 0)
    monkeypatch.setattr("leakline.probes.census.array_layout", lambda: 0)
    measured = census()
    assert array_layout() in (1, 2)
    assert measured.arrays is not None and known is not None
    assert (measured.arrays.count, measured.arrays.bytes) == (known.count, known.bytes)
    assert measured.counts[np.ndarray] == known.count
    assert len(kept) + len(hidden) == 22


def test_it_is_switched_off_by_a_setting() -> None:
    code = (
        "from leakline.probes.native import native, why_not_native\n"
        "print(native(), why_not_native())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LEAKLINE_NATIVE": "0"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None LEAKLINE_NATIVE=0 switches it off"
