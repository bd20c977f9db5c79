"""The ways in which a training program keeps objects by accident, each planted in a small program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from leakline.probes.native import why_not_native

SECONDS = 120


@dataclass(frozen=True)
class Kind:
    """A program that keeps ``Step`` objects, by what it should be named, and how it lets go of them."""

    name: str
    program: str
    path: str
    let_go: str
    needs: str = "from leakline.holders import find_holders"


KINDS = (
    Kind(
        "a list in an attribute",
        """
class DQNAgent:
    def __init__(self):
        self.losses = []
    def learn(self):
        self.losses.append(Step())
agent = DQNAgent()
for _ in range(12): agent.learn()
look()
""",
        "__main__.DQNAgent.losses[*]",
        "agent.losses.clear()",
    ),
    Kind(
        "a deque of tuples",
        """
from collections import deque
class ReplayBuffer:
    def __init__(self):
        self.storage = deque(maxlen=1000)
    def add(self, state):
        self.storage.append((state, 0.5, Step(), False))
buffer = ReplayBuffer()
for i in range(30): buffer.add([i])
look()
""",
        "__main__.ReplayBuffer.storage[*][*]",
        "buffer.storage.clear()",
    ),
    Kind(
        "dictionaries in a list in an attribute",
        """
class Trainer:
    def __init__(self):
        self.history = []
    def evaluate(self):
        self.history.append({"secret-reward": 1.0, "last_step": Step()})
erl_trainer = Trainer()
for _ in range(20): erl_trainer.evaluate()
look()
""",
        "__main__.Trainer.history[*][*]",
        "erl_trainer.history.clear()",
    ),
    Kind(
        "a dictionary that is a module global",
        """
seen = {}
for i in range(100): seen[("secret", i)] = Step()
look()
""",
        "__main__.seen[*]",
        "seen.clear()",
    ),
    Kind(
        "a class attribute",
        """
class Environment:
    episodes = []
    def reset(self):
        self.episodes.append(Step())
for _ in range(12): Environment().reset()
look()
""",
        "__main__.Environment.episodes[*]",
        "Environment.episodes.clear()",
    ),
    Kind(
        "a closure cell",
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
        "__main__.make_logger.<locals>.log.<closure>.kept[*]",
        "log.__closure__[0].cell_contents.clear()",
    ),
    Kind(
        "a local of a running function",
        """
def train():
    trajectory = []
    for _ in range(12): trajectory.append(Step())
    look()
    trajectory.clear()
train()
""",
        "__main__.train.<locals>.trajectory[*]",
        "pass",
    ),
    Kind(
        "the cache of a decorated method",
        """
from functools import lru_cache
class Policy:
    @lru_cache(maxsize=None)
    def act(self, number):
        return Step()
policy = Policy()
for i in range(40): policy.act(i)
look()
""",
        "__main__.Policy.act.<cache>[*]",
        "Policy.act.cache_clear()",
    ),
    Kind(
        "a hook of an optimizer",
        """
import torch
class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        kept = []
        def after_step(optimizer, args, kwargs):
            kept.append(Step())
        self.kept = after_step.__closure__
        self.handle = self.optimizer.register_step_post_hook(after_step)
        del self.kept
trainer = Trainer()
for _ in range(12):
    trainer.net(torch.ones(4)).sum().backward()
    trainer.optimizer.step()
look()
""",
        "__main__.Trainer.optimizer._optimizer_step_post_hooks[*].<closure>.kept[*]",
        "trainer.handle.remove()",
    ),
    Kind(
        "a traceback",
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
        "__main__.errors[*].<traceback>.rollout.<locals>.steps[*]",
        "errors.clear()",
    ),
    Kind(
        "a generator that was not finished",
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
        "__main__.batches.<locals>.window[*]",
        "loader.close()",
    ),
    Kind(
        "an argument of a thread",
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
        "threading.Thread._args[*][*]",
        "stop.set(); [t.join() for t in threading.enumerate() if t is not threading.main_thread()]",
    ),
    # Beyond the twelve.
    Kind(
        "a local of another thread",
        """
import threading
started, stop = threading.Event(), threading.Event()
def work():
    pending = [Step() for _ in range(12)]
    started.set()
    stop.wait()
thread = threading.Thread(target=work)
thread.start()
started.wait()
look()
""",
        "__main__.work.<locals>.pending[*]",
        "stop.set(); thread.join()",
    ),
    Kind(
        "a local of a waiting task",
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
        "__main__.worker.<locals>.results[*]",
        "pass",
    ),
    Kind(
        "default arguments",
        """
def collect(step, into=[]):
    into.append(step)
for _ in range(12): collect(Step())
look()
""",
        "__main__.collect.<defaults>[*][*]",
        "collect.__defaults__[0].clear()",
    ),
    Kind(
        "slots",
        """
from dataclasses import dataclass, field
@dataclass(slots=True)
class Memory:
    items: list = field(default_factory=list)
memory = Memory()
memory.items += [Step() for _ in range(12)]
look()
""",
        "__main__.Memory.items[*]",
        "memory.items.clear()",
    ),
    Kind(
        "a queue",
        """
import queue
jobs = queue.Queue()
for _ in range(12): jobs.put(Step())
look()
""",
        "__main__.jobs.queue[*]",
        "jobs.queue.clear()",
    ),
    Kind(
        "a handler of the log",
        """
import logging, logging.handlers
def set_up():
    handler = logging.handlers.MemoryHandler(1000)
    logging.getLogger("train").addHandler(handler)
set_up()
for _ in range(12): logging.getLogger("train").error("%s", Step())
look()
""",
        "logging.handlers.MemoryHandler.buffer[*].args[*]",
        "logging.getLogger('train').handlers[0].buffer.clear()",
    ),
    Kind(
        "the last exception",
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
        "sys.last_value.<traceback>.rollout.<locals>.steps[*]",
        "del sys.last_value",
    ),
    Kind(
        "cycles while the collector is off",
        """
import gc
gc.disable()
def make():
    step = Step()
    step.itself = [step]
for _ in range(30): make()
look()
""",
        "<cyclic garbage>",
        "gc.collect()",
    ),
    Kind(
        "cycles through one object while the collector is off",
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
        "<cyclic garbage>",
        "gc.collect()",
    ),
)

START = """
import weakref
{needs}

class Step:
    made = weakref.WeakSet()
    def __init__(self): self.made.add(self)

def look():
    found = find_holders([Step], 20)
    print(*(one.path for one in found), sep="|")
{program}
{let_go}
print(len(Step.made))
"""


def _run(kind: Kind, folder: Path, native: str) -> tuple[list[str], str]:
    script = folder / "train.py"
    script.write_text(
        START.format(needs=kind.needs, program=kind.program, let_go=kind.let_go), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "LEAKLINE_NATIVE": native},
    )
    assert done.returncode == 0, done.stderr
    paths, left = done.stdout.splitlines()
    assert "secret" not in paths
    return paths.split("|"), left


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_it_is_named_and_dies_when_the_program_lets_go(kind: Kind, tmp_path: Path) -> None:
    paths, left = _run(kind, tmp_path, "0")
    assert paths[0] == kind.path
    assert left == "0"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_native_module_names_the_same(kind: Kind, tmp_path: Path) -> None:
    if why_not_native() is not None:
        pytest.skip(f"no native module: {why_not_native()}")
    paths, left = _run(kind, tmp_path, "1")
    assert paths[0] == kind.path
    assert left == "0"
