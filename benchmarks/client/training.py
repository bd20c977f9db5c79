"""Run one training loop with one tool in a separate process and print its cost as JSON.

Costs are measured from the first generation to the last, and again from the middle of the run: a tool that learns about
its program in the first generations does so once, and a training runs for days.

example: python -m benchmarks.client.training example leakline 16
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .timing import private_bytes

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
POPULATION: Final = int(os.environ.get("POPULATION", "16"))

Loop = Callable[[Any, int], None]


class Nothing:
    """Stands in for a run in a program that is not observed."""

    def generation(self, number: int) -> None: ...

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def gauge(self, name: str, value: float, warn_above: float | None = None) -> None: ...


class Clocked:
    """A run that records the costs of its process when the generation ``start`` begins."""

    def __init__(self, run: Any, start: int) -> None:
        self._run, self._start = run, start
        self.at_start: Costs | None = None

    def generation(self, number: int) -> None:
        self._run.generation(number)
        if number == self._start:
            self.at_start = Costs.now(self._run)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        phase: contextlib.AbstractContextManager[None] = self._run.phase(name)
        return phase

    def gauge(self, name: str, value: float, warn_above: float | None = None) -> None:
        self._run.gauge(name, value, warn_above)


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of the process, and the part that the client attributes to itself; 0 for every other tool."""

    cpu: float
    ledger: float

    @classmethod
    def now(cls, run: Any) -> Costs:
        loop = getattr(run, "_loop", None)
        told = loop.governor.ledger() if loop is not None else {}
        parts = ("client.seconds", "client.background_seconds")
        return cls(time.process_time(), float(sum(told.get(part, 0.0) for part in parts)))

    def since(self, earlier: Costs) -> Costs:
        return Costs(self.cpu - earlier.cpu, self.ledger - earlier.ledger)


def allocations(run: Any, generations: int) -> None:
    """Create and drop many objects: the worst case for an allocation profiler."""
    kept: list[Any] = []
    for number in range(generations):
        run.generation(number)
        with run.phase("collect"):
            rows: list[Any] = [{"step": i, "pair": (i, [i]), "text": str(i)} for i in range(60_000)]
        with run.phase("sort"):
            order: list[Any] = sorted(rows, key=lambda row: row["text"])
            kept.append(order[::1_000])
        with run.phase("digest"):
            sum(len(row["text"]) + row["pair"][1][0] for row in rows)
        del kept[:-10]


def network(run: Any, generations: int) -> None:
    """Train a small network with torch on one CPU thread."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.ReLU(),
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10),
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters())
    inputs, wanted = torch.randn(4_096, 128), torch.randint(0, 10, (4_096,))
    for number in range(generations):
        run.generation(number)
        with run.phase("train"):
            for first in range(0, 4_096, 32):
                loss: Any = torch.nn.functional.cross_entropy(
                    model(inputs[first : first + 32]), wanted[first : first + 32]
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        with run.phase("evaluate"), torch.no_grad():
            model(inputs).argmax(dim=1).eq(wanted).float().mean().item()


def example(run: Any, generations: int) -> None:
    """Train the repository's reinforcement learning example with a small population."""
    sys.path.insert(0, str(EXAMPLES))
    trainer: Any = import_module("erl_trading.trainer")
    leaks: Any = import_module("erl_trading.leaks")
    market: Any = import_module("erl_trading.market")
    # Every generation trains, as in a long training.
    trainer.REPLAY_READY = 1
    no_leaks = leaks.Leaks.of([])
    trainer.Trainer(run, market.make_market(0), no_leaks, POPULATION).train(generations)


# Each loop with its number of generations.
LOOPS: Final[dict[str, tuple[Loop, int]]] = {
    "allocations": (allocations, 40),
    "network": (network, 40),
    "example": (example, 24),
}


@contextlib.contextmanager
def leakline() -> Iterator[Any]:
    import leakline as client

    with tempfile.TemporaryDirectory() as folder:
        run = client.init("benchmark", mode="offline", quiet=True, directory=folder)
        yield run
        run.finish()


@contextlib.contextmanager
def traced(frames: int) -> Iterator[Any]:
    tracemalloc.start(frames)
    yield Nothing()
    tracemalloc.stop()


@contextlib.contextmanager
def memray(**options: Any) -> Iterator[Any]:
    tracker: Any = import_module("memray").Tracker

    with (
        tempfile.TemporaryDirectory() as folder,
        tracker(Path(folder) / "capture.bin", **options),
    ):
        yield Nothing()


@contextlib.contextmanager
def idle_thread() -> Iterator[Any]:
    """Run a second, idle thread: with a single thread, allocators and shared pointers need no locks."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    yield Nothing()
    over.set()
    thread.join()


TOOLS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "nothing": lambda: contextlib.nullcontext(Nothing()),
    "a thread that waits": idle_thread,
    "leakline": leakline,
    "tracemalloc, 1 frame": lambda: traced(1),
    "tracemalloc, 10 frames": lambda: traced(10),
    "memray": memray,
    "memray, Python allocators": lambda: memray(trace_python_allocators=True),
}


def main(loop: str, tool: str, generations: int) -> None:
    """Run the loop and print its costs; the first half of the generations is the start."""
    _warm(loop)
    with TOOLS[tool]() as run:
        begun = Costs.now(run)
        clocked = Clocked(run, generations // 2)
        LOOPS[loop][0](clocked, generations)
        # The end of a generation is recorded when the next one begins.
        clocked.generation(generations)
        ended = Costs.now(run)
        assert clocked.at_start is not None
        found = {
            "whole": asdict(ended.since(begun)),
            "after_start": asdict(ended.since(clocked.at_start)),
            "set_up_seconds": begun.ledger,
            "private_bytes": private_bytes(),
        }
    print(json.dumps(found))


def _warm(loop: str) -> None:
    """Import what the loop needs before any tool starts: importing is not training."""
    if loop != "allocations":
        import torch

        torch.set_num_threads(1)
        LOOPS[loop][0](Nothing(), 1)
    # The imports make a collection due in whichever run first allocates enough objects; this keeps it out of all of
    # them.
    gc.collect()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
