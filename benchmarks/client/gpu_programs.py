"""Small training programs for one GPU: `gpu.py` runs each in its own process, records it and checks the verdict.

    python -m benchmarks.client.gpu_programs leak

Every program trains a model on the device; they differ in the additional memory that they keep.
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
# Growth of a leak per generation, in two tensors.
LEAK_BYTES: Final = 32 * MIB
# Blocks of 10 MiB or more are separate segments. Each generation drops two of WHOLE and cuts two of PIECE from them;
# the remainders are too small for REST. Allocated memory stays the same and reserved memory grows by REST.
WHOLE, PIECE, REST = 32 * MIB, 17 * MIB, 30 * MIB
# Minimum duration of a generation in seconds, so that readings once a second cover several generations.
PACE: Final = 0.15
# Sizes of the training for the overhead measurement.
WARM_UP, MEASURED, STEPS = 3, 25, 400
WIDTH, BATCH = 1024, 256

Step = Callable[[int], None]


def tensor(torch: Any, size: int) -> Any:
    """Return a new tensor of this many bytes on the device."""
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


class ReplayBuffer:
    """Transitions on the device, kept forever unless ``capacity`` is given."""

    def __init__(self, capacity: int | None = None) -> None:
        self.transitions: deque[Any] = deque(maxlen=capacity)

    def add(self, transition: Any) -> None:
        self.transitions.append(transition)


def leak(torch: Any) -> Step:
    """Keep two more tensors per generation."""
    return _collecting(torch, ReplayBuffer())


def bounded(torch: Any) -> Step:
    """Keep at most eight tensors: the healthy counterpart of ``leak``."""
    return _collecting(torch, ReplayBuffer(8))


def _collecting(torch: Any, buffer: ReplayBuffer) -> Step:
    def collect(generation: int) -> None:
        for _ in range(2):
            buffer.add(tensor(torch, LEAK_BYTES // 2))

    return collect


def cached(torch: Any) -> Step:
    """Allocate 256 to 512 MiB in every generation and drop it: torch's allocator keeps the memory for reuse."""

    def collect(generation: int) -> None:
        batch = [tensor(torch, 64 * MIB) for _ in range((8, 4, 6)[generation % 3])]
        batch.clear()

    return collect


def fragmented(torch: Any) -> Step:
    """Replace two tensors with three of the same total size, the last of which does not fit into freed blocks."""
    kept = [tensor(torch, WHOLE) for _ in range(2 * GENERATIONS)]

    def collect(generation: int) -> None:
        del kept[:2]
        kept.extend(tensor(torch, size) for size in (PIECE, PIECE, REST))

    return collect


def replaced(torch: Any) -> Step:
    """Replace two tensors with two of the same size: the healthy counterpart of ``fragmented``."""
    kept = [tensor(torch, WHOLE) for _ in range(2 * GENERATIONS)]

    def collect(generation: int) -> None:
        del kept[:2]
        kept.extend(tensor(torch, WHOLE) for _ in range(2))

    return collect


def neighbour(torch: Any) -> Step:
    """Keep nothing, while another process on the GPU grows."""
    return lambda generation: None


def pinned(torch: Any) -> Step:
    """Keep 16 MiB more pinned host memory per generation."""
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
    """Train for `GENERATIONS` and record into the folder from the environment."""
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
    """Allocate 64 MiB on the device twice a second, up to 2 GiB; exit after a minute."""
    import torch

    kept = [tensor(torch, 64 * MIB)]
    torch.cuda.synchronize()
    print("ready", flush=True)
    for _ in range(120):
        time.sleep(0.5)
        if len(kept) < 32:
            kept.append(tensor(torch, 64 * MIB))


def hold(size: int) -> None:
    """Hold this many bytes on the device until standard input is closed."""
    import torch

    kept = tensor(torch, size)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.read()
    del kept


def measure(how: str) -> None:
    """Print the seconds that a small training took, with or without Leakline."""
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
