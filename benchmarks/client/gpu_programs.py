"""Small trainings on one GPU, each a process of its own: `gpu.py` starts them, records them and checks what is said.

    python -m benchmarks.client.gpu_programs leak

Every program keeps a model on the device and trains it; they differ in what they keep besides.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

MIB: Final = 2**20
DEVICE: Final = "cuda:0"
GENERATIONS: Final = 32
# What a leak adds per generation, in two tensors.
LEAK_BYTES: Final = 32 * MIB
# Blocks of 10 MiB and more are segments of their own. Two of WHOLE are dropped, two of PIECE cut from them, and what is
# left of each is too small for REST: allocated stays, reserved grows by REST per generation.
WHOLE, PIECE, REST = 32 * MIB, 17 * MIB, 30 * MIB
# Seconds that a generation lasts at least: readings of once a second see several generations.
PACE: Final = 0.15
# Of the training whose cost is measured.
WARM_UP, MEASURED, STEPS = 3, 25, 400
WIDTH, BATCH = 1024, 256

Step = Callable[[int], None]


def tensor(torch: Any, size: int) -> Any:
    """Return a new tensor of this many bytes on the device."""
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


class ReplayBuffer:
    """Transitions on the device; without ``capacity`` they stay for ever."""

    def __init__(self, capacity: int | None = None) -> None:
        self.transitions: deque[Any] = deque(maxlen=capacity)

    def add(self, transition: Any) -> None:
        self.transitions.append(transition)


def leak(torch: Any) -> Step:
    """Keep two tensors more per generation."""
    return _collecting(torch, ReplayBuffer())


def bounded(torch: Any) -> Step:
    """Keep at most eight tensors: the healthy twin of ``leak``."""
    return _collecting(torch, ReplayBuffer(8))


def _collecting(torch: Any, buffer: ReplayBuffer) -> Step:
    def collect(generation: int) -> None:
        for _ in range(2):
            buffer.add(tensor(torch, LEAK_BYTES // 2))

    return collect


def cached(torch: Any) -> Step:
    """Use 256 to 512 MiB in every generation and drop them: torch's allocator keeps the memory for reuse."""

    def collect(generation: int) -> None:
        batch = [tensor(torch, 64 * MIB) for _ in range((8, 4, 6)[generation % 3])]
        batch.clear()

    return collect


def fragmented(torch: Any) -> Step:
    """Replace two tensors by three of the same total size, none of which fits into what the others leave."""
    kept = [tensor(torch, WHOLE) for _ in range(2 * GENERATIONS)]

    def collect(generation: int) -> None:
        del kept[:2]
        kept.extend(tensor(torch, size) for size in (PIECE, PIECE, REST))

    return collect


def replaced(torch: Any) -> Step:
    """Replace two tensors by two of the same size: the healthy twin of ``fragmented``."""
    kept = [tensor(torch, WHOLE) for _ in range(2 * GENERATIONS)]

    def collect(generation: int) -> None:
        del kept[:2]
        kept.extend(tensor(torch, WHOLE) for _ in range(2))

    return collect


def neighbour(torch: Any) -> Step:
    """Keep nothing; another process on the card grows at the same time."""
    return lambda generation: None


def pinned(torch: Any) -> Step:
    """Keep 16 MiB more of pinned host memory per generation."""
    kept: list[Any] = []

    def collect(generation: int) -> None:
        page_locked = torch.empty(16 * MIB, dtype=torch.uint8, pin_memory=True)
        page_locked.fill_(1)
        kept.append(page_locked)

    return collect


PROGRAMS: Final = {
    each.__name__: each for each in (leak, bounded, cached, fragmented, replaced, neighbour, pinned)
}


def trainer(torch: Any) -> Callable[[int], None]:
    """Return a function that trains a small model on the device for a number of steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(BATCH, WIDTH, device=DEVICE)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()

    return train


def run_program(name: str) -> None:
    """Train for `GENERATIONS`, recorded into the folder that the environment names."""
    import torch

    import leakline

    train, collect = trainer(torch), PROGRAMS[name](torch)
    run = leakline.init(project="gpu", name=name, total=GENERATIONS, mode="offline", quiet=True)
    for generation in range(GENERATIONS):
        ends = time.monotonic() + PACE
        with run.generation(generation):
            with run.phase("collect"):
                collect(generation)
            with run.phase("train"):
                train(2)
                torch.cuda.synchronize()
        time.sleep(max(0.0, ends - time.monotonic()))
    run.finish()


def grow() -> None:
    """Take 64 MiB of the device twice a second, up to 2 GiB; end after a minute."""
    import torch

    kept = [tensor(torch, 64 * MIB)]
    torch.cuda.synchronize()
    print("ready", flush=True)
    for _ in range(120):
        time.sleep(0.5)
        if len(kept) < 32:
            kept.append(tensor(torch, 64 * MIB))


def hold(size: int) -> None:
    """Hold this much of the device until the standard input ends."""
    import torch

    kept = tensor(torch, size)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.read()
    del kept


def measure(how: str) -> None:
    """Print the seconds that the generations of a small training took, with or without Leakline."""
    import torch

    train = trainer(torch)
    run = None
    if how == "with":
        import leakline

        run = leakline.init(project="gpu", name="overhead", mode="offline", quiet=True)
    started = 0.0
    for generation in range(WARM_UP + MEASURED):
        if generation == WARM_UP:
            torch.cuda.synchronize()
            started = time.perf_counter()
        if run is None:
            train(STEPS)
        else:
            with run.generation(generation), run.phase("train"):
                train(STEPS)
    torch.cuda.synchronize()
    print(f"seconds {time.perf_counter() - started:.6f}", flush=True)
    if run is not None:
        run.finish()


def main(arguments: list[str]) -> None:
    what, *rest = arguments
    if what == "measure":
        measure(rest[0])
    elif what == "grow":
        grow()
    elif what == "hold":
        hold(int(rest[0]))
    else:
        run_program(what)


if __name__ == "__main__":
    main(sys.argv[1:])
