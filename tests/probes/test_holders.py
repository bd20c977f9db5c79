"""What keeps objects alive, for each way in which a program can hold them."""

from __future__ import annotations

import collections
import datetime
import gc
import json
import mmap
import re
import sqlite3
import sysconfig
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest
import torch
from tests.probes.heaps import run_alone

from leakline.probes.heap.autograd_graphs import longest_chain
from leakline.probes.heap.marginal_size import marginal_bytes
from leakline.probes.native_module import why_not_native
from leakline.probes.references import program_code
from leakline.probes.references.class_names import hides_memory
from leakline.sampling.holder_paths import (
    FoundHolder,
    find_holder_of_chain,
    find_holder_of_largest,
    find_holders,
)
from leakline.snapshot import GRAPH_NODE

HERE = __name__
SECONDS = 20.0


class Kept:
    """One class per test, so that no test sees another's objects."""


def _fresh(name: str) -> type:
    return type(name, (Kept,), {"__module__": __name__})


def _holders(cls: type) -> list[FoundHolder]:
    return find_holders([cls], SECONDS)


registry: dict[str, Any] = {}
single: Any = None


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    registry.clear()


class Trainer:
    def __init__(self) -> None:
        self.population: list[Any] = []
        self.past: list[list[Any]] = []
        self.losses: list[Any] = []


class Record:
    def __init__(self, agent: Any) -> None:
        self.agent = agent


def test_a_type_without_objects_or_names_is_left_out() -> None:
    assert _holders(_fresh("Never")) == []


def test_keys_and_values_are_never_shown() -> None:
    cls = _fresh("InDictionary")
    registry.update({f"secret-{i}": cls() for i in range(30)})
    assert _holders(cls)[0].path == f"{HERE}.registry[*]"


def test_a_global_name_is_the_path() -> None:
    global single
    cls = _fresh("Single")
    single = cls()
    found = _holders(cls)
    assert (found[0].path, found[0].count) == (f"{HERE}.single", 1)
    single = None


def test_the_holder_of_most_objects_comes_first() -> None:
    cls = _fresh("Agent")
    trainers = [Trainer()]
    trainers[0].past = [[cls() for _ in range(8)] for _ in range(8)]
    trainers[0].population = [cls() for _ in range(8)]
    found = _holders(cls)
    assert (found[0].type, found[0].path) == (f"{HERE}.Agent", f"{HERE}.Trainer.past[*][*]")
    assert found[0].count == pytest.approx(64, abs=10)
    assert [one.path for one in found[1:]] == [f"{HERE}.Trainer.population[*]"]


def test_helper_objects_are_skipped_on_the_way_to_the_holder() -> None:
    cls = _fresh("Agent")
    trainers = [Trainer()]
    trainers[0].population = [Record(cls()) for _ in range(10)]
    assert _holders(cls)[0].path == f"{HERE}.Trainer.population[*].agent"


def test_tensors_with_a_graph_are_sized_with_it() -> None:
    trainers = [Trainer()]
    net = torch.nn.Linear(32, 256)
    trainers[0].losses = [net(torch.randn(64, 32)).relu().pow(2).mean() for _ in range(40)]
    found = _holders(torch.Tensor)
    assert f"{HERE}.Trainer.losses[*]" in [one.path for one in found]


def test_the_tensor_that_holds_the_longest_chain_is_named() -> None:
    global single
    weight = torch.ones(2, requires_grad=True)
    registry["short"] = [(weight * 2).sum() for _ in range(20)]
    single = 0
    for _ in range(30):
        single = single + (weight * 2).sum()
    assert longest_chain([*registry["short"], single]) == 30 + 3
    for near_only in (True, False):
        (found,) = find_holder_of_chain(torch.Tensor, 30, SECONDS, near_only=near_only)
        assert (found.type, found.path, found.count) == (GRAPH_NODE, f"{HERE}.single", 30)
    single = None
    assert find_holder_of_chain(torch.Tensor, 30, SECONDS) == []


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


def test_the_size_of_one_more_object_excludes_shared_memory() -> None:
    trainers = [Trainer()]
    trainers[0].past = [[bytearray(4_000_000)]]
    trainers[0].population = [Weighty(trainers[0]) for _ in range(20)]
    found = _holders(Weighty)
    assert found[0].path == f"{HERE}.Trainer.population[*]"
    assert found[0].bytes_each is not None
    assert 4000 <= found[0].bytes_each < 5500


def test_a_search_keeps_nothing_alive() -> None:
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


def test_several_types_share_the_heap_scans() -> None:
    first, second = _fresh("First"), _fresh("Second")
    registry["all"] = [first() for _ in range(5)] + [second() for _ in range(7)]
    found = find_holders([first, second], SECONDS)
    assert [(one.type.rpartition(".")[2], one.path, one.count) for one in found] == [
        ("First", f"{HERE}.registry[*][*]", 5),
        ("Second", f"{HERE}.registry[*][*]", 7),
    ]


def test_without_time_a_search_gives_no_answer() -> None:
    cls = _fresh("Hasty")
    registry["all"] = [cls() for _ in range(5)]
    ticks = iter(range(1000))
    assert find_holders([cls], 0.5, clock=lambda: float(next(ticks))) == []


def test_a_holder_is_sent_with_a_sequence_number() -> None:
    holder = FoundHolder("m.C", "m.x[*]", 3, 40).to_holder(17)
    assert (holder.sequence, holder.type, holder.path, holder.count) == (17, "m.C", "m.x[*]", 3)
    assert holder.bytes_each == 40


# -- ways in which a training program keeps objects by accident, each in its own small program

# How ``Step`` objects are kept -> (expected name, code that releases them, program).
KINDS = {
    "a deque of tuples": (
        "__main__.ReplayBuffer.storage[*][*]",
        "buffer.storage.clear()",
        """
from collections import deque
class ReplayBuffer:
    def __init__(self): self.storage = deque(maxlen=1000)
    def add(self, state): self.storage.append((state, 0.5, Step(), False))
buffer = ReplayBuffer()
for i in range(30): buffer.add([i])
look()
""",
    ),
    "a class attribute": (
        "__main__.Environment.episodes[*]",
        "Environment.episodes.clear()",
        """
class Environment:
    episodes = []
    def reset(self): self.episodes.append(Step())
for _ in range(12): Environment().reset()
look()
""",
    ),
    "a closure cell": (
        "__main__.make_logger.<locals>.log.<closure>.kept[*]",
        "log.__closure__[0].cell_contents.clear()",
        """
def make_logger():
    kept = []
    def log(step):
        kept.append(step)
        return len(kept)
    return log
log = make_logger()
for _ in range(12): log(Step())
look()
""",
    ),
    "a local of a running function": (
        "__main__.train.<locals>.trajectory[*]",
        "pass",
        """
def train():
    trajectory = []
    for _ in range(12): trajectory.append(Step())
    look()
    trajectory.clear()
train()
""",
    ),
    "the cache of a decorated method": (
        "__main__.Policy.act.<cache>[*]",
        "Policy.act.cache_clear()",
        """
from functools import lru_cache
class Policy:
    @lru_cache(maxsize=None)
    def act(self, number): return Step()
policy = Policy()
for i in range(40): policy.act(i)
look()
""",
    ),
    "a traceback": (
        "__main__.errors[*].<traceback>.rollout.<locals>.steps[*]",
        "errors.clear()",
        """
errors = []
def rollout():
    steps = [Step() for _ in range(12)]
    raise ValueError("secret")
def attempt():
    try:
        rollout()
    except ValueError as error:
        errors.append(error)
attempt()
look()
""",
    ),
    "a generator that was not finished": (
        "__main__.batches.<locals>.window[*]",
        "loader.close()",
        """
def batches():
    window = []
    while True:
        window.append(Step())
        yield len(window)
loader = batches()
for _ in range(12): next(loader)
look()
""",
    ),
    "an argument of a thread": (
        "threading.Thread._args[*][*]",
        "stop.set(); [t.join() for t in threading.enumerate() if t is not threading.main_thread()]",
        """
import threading
started, stop = threading.Event(), threading.Event()
def work(queue):
    started.set()
    del queue
    stop.wait()
def start():
    thread = threading.Thread(target=work, args=([Step() for _ in range(12)],))
    thread.start()
start()
started.wait()
look()
""",
    ),
    "a local of a waiting task": (
        "__main__.worker.<locals>.results[*]",
        "pass",
        """
import asyncio
async def worker():
    results = [Step() for _ in range(12)]
    await asyncio.Event().wait()
async def main():
    task = asyncio.ensure_future(worker())
    await asyncio.sleep(0)
    look()
    task.cancel()
    await asyncio.wait([task])
asyncio.run(main())
""",
    ),
    "default arguments": (
        "__main__.collect.<defaults>[*][*]",
        "collect.__defaults__[0].clear()",
        """
def collect(step, into=[]): into.append(step)
for _ in range(12): collect(Step())
look()
""",
    ),
    "slots": (
        "__main__.Memory.items[*]",
        "memory.items.clear()",
        """
from dataclasses import dataclass, field
@dataclass(slots=True)
class Memory:
    items: list = field(default_factory=list)
memory = Memory()
memory.items += [Step() for _ in range(12)]
look()
""",
    ),
    "a handler of the log": (
        "logging.handlers.MemoryHandler.buffer[*].args[*]",
        "logging.getLogger('train').handlers[0].buffer.clear()",
        """
import logging, logging.handlers
def set_up():
    handler = logging.handlers.MemoryHandler(1000)
    logging.getLogger("train").addHandler(handler)
set_up()
for _ in range(12): logging.getLogger("train").error("%s", Step())
look()
""",
    ),
    "the last exception": (
        "sys.last_value.<traceback>.rollout.<locals>.steps[*]",
        "del sys.last_value",
        """
import sys
def rollout():
    steps = [Step() for _ in range(12)]
    raise ValueError("secret")
try:
    rollout()
except ValueError as error:
    sys.last_value = error
look()
""",
    ),
    "cycles while the collector is off": (
        "<cyclic garbage>",
        "gc.collect()",
        """
import gc
gc.disable()
def make():
    step = Step()
    step.itself = [step]
for _ in range(30): make()
look()
""",
    ),
    "cycles through one object while the collector is off": (
        "<cyclic garbage>",
        "gc.collect()",
        """
import gc
gc.disable()
class Episode:
    def __init__(self):
        self.steps = [Step() for _ in range(30)]
        for step in self.steps: step.episode = self
Episode()
look()
""",
    ),
}

# Each program runs in a child of a process with everything imported: starting an interpreter for each would take
# longer than the programs themselves.
EACH = """
import json, os, sys
from leakline.sampling.holder_paths import find_holders

def look():
    found = find_holders([Step], 20)
    print(*(one.path for one in found), sep="|")

for program in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        exec(compile(program, __file__, "exec"))
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, program
"""
STEP = """
import weakref
class Step:
    made = weakref.WeakSet()
    def __init__(self): self.made.add(self)
"""


@pytest.fixture(
    scope="module", params=[pytest.param("0", marks=pytest.mark.long), "1"], ids=["in Python", "natively"]
)  # fmt: skip
def found_of_kinds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[str, str]]:
    """Return kind -> (paths found, number of objects left after the program released them)."""
    if request.param == "1" and why_not_native() is not None:
        pytest.skip(f"no native module: {why_not_native()}")
    programs = [
        f"{STEP}{program}{let_go}\nprint(len(Step.made))\n" for _, let_go, program in KINDS.values()
    ]
    said = run_alone(
        tmp_path_factory.mktemp("kinds"), EACH, given=json.dumps(programs), LEAKLINE_NATIVE=request.param
    ).splitlines()  # fmt: skip
    return dict(zip(KINDS, zip(said[::2], said[1::2], strict=True), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_holder_is_named_and_the_objects_die_when_released(
    kind: str, found_of_kinds: Mapping[str, tuple[str, str]]
) -> None:
    paths, left = found_of_kinds[kind]
    assert paths.split("|")[0] == KINDS[kind][0]
    assert "secret" not in paths
    assert left == "0"


# -- the largest object, and memory hidden behind handles of C libraries


class Plain:
    pass


class Slotted:
    __slots__ = ("a", "b")


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Database(sqlite3.Connection):
    pass


class Session:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")


HIDE = [sqlite3.Connection, Database, type(zlib.compressobj()), mmap.mmap]
HIDE_NOTHING = [
    Plain, Slotted, Pair, dict, str, ValueError, collections.deque, datetime.datetime, re.Pattern, threading.Thread,
    type(threading.Lock()), np.ndarray, np.float64,
]  # fmt: skip


@pytest.mark.parametrize("kind", [*HIDE, *HIDE_NOTHING])
def test_only_handles_of_c_libraries_hide_memory(kind: type) -> None:
    assert hides_memory(kind) == (kind in HIDE)


def test_a_thin_wrapper_around_a_handle_has_no_size() -> None:
    sessions = [Session() for _ in range(4)]
    assert marginal_bytes(sessions) is None
    for session in sessions:
        session.connection.close()


def test_a_shared_handle_does_not_hide_the_size_of_each_object() -> None:
    shared = sqlite3.connect(":memory:")
    plain = [Plain() for _ in range(6)]
    for one in plain:
        one.connection = shared  # type: ignore[attr-defined]
    size = marginal_bytes(plain)
    assert size is not None and size < 4_096
    shared.close()


LOG = bytearray(4 << 20)


class Table:
    def __init__(self) -> None:
        self.rows = {"state": np.zeros(1 << 19), "reward": np.zeros(8)}


def test_the_holder_of_the_largest_array_is_named() -> None:
    table = Table()
    found = find_holder_of_largest(np.ndarray, 5.0)
    paths = [(one.type, one.count, one.bytes_each) for one in found if "Table.rows" in one.path]
    assert paths == [("numpy.ndarray", 1, None)]
    assert len(table.rows) == 2


def test_a_large_object_near_the_roots_is_named_without_a_heap_scan() -> None:
    (found,) = find_holder_of_largest(bytearray, 5.0, near_only=True)
    assert found.path == f"{HERE}.LOG"
    assert len(LOG) == 4 << 20


def test_the_search_for_the_largest_object_stays_within_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With long containers nearby. It took seconds when each item was measured; the limit allows slow machines."""
    texts = [f"text {i}" for i in range(300_000)]
    monkeypatch.setitem(globals(), "TEXTS", texts)
    monkeypatch.setitem(globals(), "TABLE", dict.fromkeys(texts[:200_000]))
    monkeypatch.setitem(globals(), "LONG", "x" * (4 << 20))
    budget = 0.05
    for near_only in (True, False):
        started = thread_time()
        find_holder_of_largest(str, budget, near_only=near_only)
        assert thread_time() - started < 12 * budget
    found = find_holder_of_largest(str, 10.0, near_only=True)
    assert [one.path.rpartition(".")[2] for one in found] == ["LONG"]


def test_nothing_is_named_if_no_object_is_large() -> None:
    assert find_holder_of_largest(collections.deque, 5.0) == []


# -- locals of running functions, and which code belongs to the program


# An interpreter that collects while creating a frame must not crash.
BUSY = """
import gc, random, sys, threading, time
from leakline.probes.references import frames

# Functions of many sizes, so that reading a freed frame would give other data.
source = ""
for size in range(1, 24):
    names = ", ".join(f"v{i}" for i in range(size))
    source += f'''
def f{size}(n):
    {names}, = ([n] for _ in range({size}))
    return [v0] if n <= 0 else ALL[(n * 7 + {size}) % 23](n - 1) + [v0]
'''
space = {}
exec(compile(source, __file__, "exec"), space)
ALL = space["ALL"] = [space[f"f{i}"] for i in range(1, 24)]
over = threading.Event()

def busy():
    while not over.is_set():
        ALL[random.randrange(23)](random.randrange(1, 30))

# Every collection lets other threads run, as a finalizer of the program could.
gc.callbacks.append(lambda phase, info: time.sleep(0))
gc.set_threshold(1, 1000, 1000)
sys.setswitchinterval(1e-6)
thread = threading.Thread(target=busy)
thread.start()
seen = 0
while seen < 3_000:
    for found in frames.locals_of_threads(sys._getframe()).values():
        seen += len(found.read())
over.set()
thread.join()
assert gc.isenabled()
"""


def test_reading_locals_of_a_busy_thread_never_breaks_the_program(tmp_path: Path) -> None:
    run_alone(tmp_path, BUSY)


WAITING = """
import sys, threading, time, weakref
from leakline.sampling.holder_paths import find_holders

class Step: pass

made = weakref.WeakSet()
started, stop = threading.Event(), threading.Event()

def work():
    pending = [Step() for _ in range(12)]
    made.update(pending)
    started.set()
    stop.wait()
    print(len(pending))
    del pending
    print(len(made))
    # An extra line, so that a tracer can write the locals back.
    last = 1
    print(last)

if len(sys.argv) > 1:
    def hook(frame, event, arg): return hook
    getattr(threading, sys.argv[1])(hook)
thread = threading.Thread(target=work)
thread.start()
started.wait()
paths = [one.path for _ in range(2) for one in find_holders([Step], 20)]
stop.set()
thread.join()
print("__main__.work.<locals>.pending[*]" in paths)
"""


@pytest.mark.parametrize("hook", [None, "settrace", "setprofile"])
def test_locals_of_other_threads_are_named_and_die_when_released(
    tmp_path: Path, hook: str | None
) -> None:
    kept, left, last, named = run_alone(tmp_path, WAITING, *filter(None, [hook])).splitlines()
    assert (kept, last) == ("12", "1")
    if hook is None:
        assert (left, named) == ("0", "True")


@pytest.mark.parametrize("folder", ["stdlib", "platstdlib", "purelib", "platlib"])
def test_installed_packages_are_not_program_code(folder: str) -> None:
    assert not program_code.is_user_file(
        str(Path(sysconfig.get_path(folder)) / "some" / "module.py")
    )
    assert program_code.is_user_file(__file__)


def test_install_folders_are_known_during_concurrent_sysconfig_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_filled(*_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(sysconfig, "get_config_vars", half_filled)
    with pytest.raises(RuntimeError):
        sysconfig.get_paths()
    program_code._library_folders.cache_clear()
    assert str(Path(pytest.__file__).parent.parent) + "/" in program_code._library_folders()
