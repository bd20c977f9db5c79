"""What keeps objects alive, for each way a program keeps them."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from leakline.holders import FoundHolder, find_holders

HERE = __name__
SECONDS = 20.0


class Kept:
    """A class for each test, so that none sees another's objects."""


def _fresh(name: str) -> type:
    return type(name, (Kept,), {"__module__": __name__})


def _holders(cls: type) -> list[FoundHolder]:
    return find_holders([cls], SECONDS)


def _path(cls: type) -> str:
    found = _holders(cls)
    assert found, "no holder found"
    return found[0].path.removeprefix(f"{HERE}.")


registry: dict[str, Any] = {}
grid: list[list[Any]] = []
single: Any = None


class Trainer:
    shared: ClassVar[deque[Any]] = deque()

    def __init__(self) -> None:
        self.population: list[Any] = []
        self.past: list[list[Any]] = []
        self.by_name: dict[str, list[Any]] = {"secret-key": []}
        self.losses: list[Any] = []


class Record:
    def __init__(self, agent: Any) -> None:
        self.agent = agent


def test_a_type_without_objects_or_names_is_left_out() -> None:
    assert _holders(_fresh("Never")) == []


def test_keys_and_values_never_show() -> None:
    cls = _fresh("InDictionary")
    registry.update({f"secret-{i}": cls() for i in range(30)})
    assert _path(cls) == "registry[*]"
    registry.clear()


def test_a_global_name_is_the_path() -> None:
    global single
    cls = _fresh("Single")
    single = cls()
    found = _holders(cls)
    assert (found[0].path, found[0].count) == (f"{HERE}.single", 1)
    single = None


def test_lists_in_lists_have_a_star_each() -> None:
    cls = _fresh("InGrid")
    grid.extend([cls()] for _ in range(10))
    assert _path(cls) == "grid[*][*]"
    grid.clear()


def test_an_attribute_is_named_by_its_class() -> None:
    cls = _fresh("Agent")
    trainers = [Trainer()]
    trainers[0].population = [cls() for _ in range(12)]
    found = _holders(cls)
    assert found[0].path == f"{HERE}.Trainer.population[*]"
    assert found[0].count == 12
    assert found[0].type == f"{HERE}.Agent"


def test_the_place_with_most_of_them_comes_first_and_the_others_after() -> None:
    cls = _fresh("Agent")
    trainers = [Trainer()]
    trainers[0].past = [[cls() for _ in range(8)] for _ in range(8)]
    trainers[0].population = [cls() for _ in range(8)]
    found = _holders(cls)
    assert found[0].path == f"{HERE}.Trainer.past[*][*]"
    assert found[0].count == pytest.approx(64, abs=10)
    assert [one.path for one in found[1:]] == [f"{HERE}.Trainer.population[*]"]


def test_a_dictionary_of_lists_in_an_attribute_shows_no_key() -> None:
    cls = _fresh("Metric")
    trainers = [Trainer()]
    trainers[0].by_name["secret-key"] = [cls() for _ in range(9)]
    assert _path(cls) == "Trainer.by_name[*][*]"


def test_a_class_attribute_is_named() -> None:
    cls = _fresh("Shared")
    Trainer.shared.extend(cls() for _ in range(9))
    assert _path(cls) == "Trainer.shared[*]"
    Trainer.shared.clear()


def test_a_helper_of_each_object_is_passed_on_the_way_up() -> None:
    cls = _fresh("Agent")
    trainers = [Trainer()]
    trainers[0].population = [Record(cls()) for _ in range(10)]
    assert _path(cls) == "Trainer.population[*].agent"


def _make_logger() -> Callable[[Any], None]:
    history: list[Any] = []
    return lambda one: history.append(one)


log = _make_logger()


def test_a_closure_is_named_with_its_variable() -> None:
    cls = _fresh("Logged")
    for _ in range(10):
        log(cls())
    assert _path(cls) == "_make_logger.<locals>.<lambda>.<closure>.history[*]"


made: list[type] = []


@functools.cache
def _cached(number: int) -> Any:
    return made[-1]()


def test_a_cache_is_named_by_its_function() -> None:
    cls = _fresh("Cached")
    made.append(cls)
    for number in range(15):
        _cached(number)
    assert _path(cls) == "_cached.<cache>[*]"
    _cached.cache_clear()


def test_tensors_with_a_graph_are_named_and_sized_with_it() -> None:
    trainers = [Trainer()]
    net = torch.nn.Linear(32, 256)
    trainers[0].losses = [net(torch.randn(64, 32)).relu().pow(2).mean() for _ in range(40)]
    found = _holders(torch.Tensor)
    assert f"{HERE}.Trainer.losses[*]" in [one.path for one in found]


def test_arrays_are_named_though_the_collector_does_not_list_them() -> None:
    trainers = [Trainer()]
    trainers[0].population = [np.zeros(100) for _ in range(500)]
    found = [one for one in _holders(np.ndarray) if "Trainer" in one.path]
    assert found[0].path == f"{HERE}.Trainer.population[*]"


class Weighty:
    common = np.zeros(500_000)

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.own = np.zeros(1000, np.float32)
        self.shared = Weighty.common


def test_bytes_of_one_more_leave_out_what_all_share() -> None:
    trainers = [Trainer()]
    trainers[0].past = [[bytearray(4_000_000)]]
    trainers[0].population = [Weighty(trainers[0]) for _ in range(20)]
    found = _holders(Weighty)
    assert found[0].path == f"{HERE}.Trainer.population[*]"
    assert found[0].bytes_each is not None
    assert 4000 <= found[0].bytes_each < 5500


def test_nothing_is_kept_alive_by_a_search() -> None:
    cls = _fresh("Passing")
    registry["x"] = cls()
    gone = weakref.ref(registry["x"])
    before = [g["collections"] for g in gc.get_stats()]
    gc.disable()
    try:
        _holders(cls)
        assert [g["collections"] for g in gc.get_stats()] == before
        del registry["x"]
        assert gone() is None
    finally:
        gc.enable()


def test_several_types_share_the_looks_through_the_heap() -> None:
    first, second = _fresh("First"), _fresh("Second")
    registry["all"] = [first() for _ in range(5)] + [second() for _ in range(7)]
    found = find_holders([first, second], SECONDS)
    assert [(one.type.rpartition(".")[2], one.path, one.count) for one in found] == [
        ("First", f"{HERE}.registry[*][*]", 5),
        ("Second", f"{HERE}.registry[*][*]", 7),
    ]
    registry.clear()


def test_no_time_gives_no_answer_rather_than_a_wrong_one() -> None:
    cls = _fresh("Hasty")
    registry["all"] = [cls() for _ in range(5)]
    ticks = iter(range(1000))
    assert find_holders([cls], 0.5, clock=lambda: float(next(ticks))) == []
    registry.clear()


def test_a_holder_travels_with_a_sequence_number() -> None:
    holder = FoundHolder("m.C", "m.x[*]", 3, 40).to_holder(17)
    assert (holder.sequence, holder.type, holder.path, holder.count) == (17, "m.C", "m.x[*]", 3)
    assert holder.bytes_each == 40


PROGRAM = """
from leakline.holders import find_holders

class Step: pass

def train():
    episode = [Step() for _ in range(10)]
    print(find_holders([Step], 20)[0].path)

train()
"""


def test_a_local_of_a_running_function_is_named(tmp_path: Path) -> None:
    # In a process of its own: pytest rewrites asserting functions so that they ask for their own locals.
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "__main__.train.<locals>.episode[*]\n"
