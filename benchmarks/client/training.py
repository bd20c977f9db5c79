"""One training loop under one tool, in a process of its own, and prints what it cost as JSON.

The clocks run from the first generation to the last: what a tool needs to start and to end is told apart.

example: python -m benchmarks.client.training example leakline
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .timing import private_bytes

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
# The leanest that still trains: a quarter of the example's own population, and so four times its phases per second.
POPULATION: Final = int(os.environ.get("POPULATION", "4"))
SCALE: Final = float(os.environ.get("LOOPS", "1"))

Loop = Callable[[Any, int], None]


class Nothing:
    """The run of a program that is not observed."""

    def generation(self, number: int) -> None: ...

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def gauge(self, name: str, value: float) -> None: ...


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


# Each loop, with generations for two to ten seconds of CPU.
LOOPS: Final[dict[str, tuple[Loop, int]]] = {
    "allocations": (allocations, 10),
    "network": (network, 20),
    "example": (example, 4),
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


TOOLS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "nothing": lambda: contextlib.nullcontext(Nothing()),
    "leakline": leakline,
    "tracemalloc, 1 frame": lambda: traced(1),
    "tracemalloc, 10 frames": lambda: traced(10),
    "memray": memray,
    "memray, Python allocators": lambda: memray(trace_python_allocators=True),
}


def main(loop: str, tool: str) -> None:
    train, generations = LOOPS[loop]
    _warm(loop)
    with TOOLS[tool]() as run:
        before = _ledger(run)
        cpu, wall = time.process_time(), time.perf_counter()
        train(run, max(1, round(generations * SCALE)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        found = {
            "cpu_seconds": cpu,
            "wall_seconds": wall,
            "ledger_seconds": _ledger(run) - before,
            "private_bytes": private_bytes(),
        }
    print(json.dumps(found))


def _warm(loop: str) -> None:
    """Load what the loop loads before any tool is started: importing is not training."""
    if loop == "allocations":
        return
    import torch

    torch.set_num_threads(1)
    LOOPS[loop][0](Nothing(), 1)


def _ledger(run: Any) -> float:
    """What the client itself says it has cost so far, set-up included; 0 for every other tool."""
    loop = getattr(run, "_loop", None)
    return float(loop.governor.ledger()["client.seconds"]) if loop is not None else 0.0


if __name__ == "__main__":
    main(*sys.argv[1:3])
