"""One training loop under one tool, in a process of its own, and prints what it cost as JSON.

The clocks run from the first generation to the last, and once more from where the start is over: a tool that learns its
program in the first generations does that once, and a training runs for days.

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
    """The run of a program that is not observed."""

    def generation(self, number: int) -> None: ...

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def gauge(self, name: str, value: float, warn_above: float | None = None) -> None: ...


class Clocked:
    """A run that notes what its process has cost by then when the generation ``start`` begins."""

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
    """CPU seconds of the process, and what of them the client itself says were its own; 0 for every other tool."""

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
    """Little but objects made and dropped: the worst that a program can do to a profiler of allocations."""
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
    """A small network trained with torch on one CPU thread."""
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
    """The repository's reinforcement learning, with a small population."""
    sys.path.insert(0, str(EXAMPLES))
    trainer: Any = import_module("erl_trading.trainer")
    leaks: Any = import_module("erl_trading.leaks")
    market: Any = import_module("erl_trading.market")
    # Every generation trains, as those of a long training do.
    trainer.REPLAY_READY = 1
    no_leaks = leaks.Leaks.of([])
    trainer.Trainer(run, market.make_market(0), no_leaks, POPULATION).train(generations)


# Each loop, with its generations.
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
    """What a second thread costs that does nothing: with one alone, allocators and shared pointers need no locks."""
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
    """The first half of the generations is the start."""
    _warm(loop)
    with TOOLS[tool]() as run:
        begun = Costs.now(run)
        clocked = Clocked(run, generations // 2)
        LOOPS[loop][0](clocked, generations)
        # The end of a generation comes with the beginning of the next.
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
    """Load what the loop loads before any tool is started: importing is not training."""
    if loop != "allocations":
        import torch

        torch.set_num_threads(1)
        LOOPS[loop][0](Nothing(), 1)
    # One is due after so many imports, in the first run that happens to make enough objects: in neither, then.
    gc.collect()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
