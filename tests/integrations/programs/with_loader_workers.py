"""Two DataLoader workers read a list of Python objects: each page they read is copied once (copy-on-write)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

import leakline

SAMPLES = 48_000
GENERATIONS = 36
# After this many generations both workers have read all samples.
FIRST_READ = 12


class Samples(Dataset):
    def __init__(self) -> None:
        self.samples = [bytes([i % 256]) * 1000 for i in range(SAMPLES)]

    def __getitem__(self, index: int) -> int:
        return self.samples[index][0]

    def __len__(self) -> int:
        return SAMPLES


class Part(Sampler):
    """Batches that alternate between the workers, each batch twice, so that both read it."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[list[int]]:
        each = SAMPLES // FIRST_READ
        first = self.number % FIRST_READ * each
        for at in range(first, first + each, 500):
            batch = list(range(at, min(at + 500, first + each)))
            yield batch
            yield batch

    def __len__(self) -> int:
        return 2 * (SAMPLES // FIRST_READ // 500)


def main() -> None:
    run = leakline.init(project="loader", total=GENERATIONS)
    part = Part()
    loader = DataLoader(
        Samples(), batch_sampler=part, num_workers=2, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    layer = torch.nn.Linear(1, 1)
    # The result is preallocated: 2 MiB made and freed 40 times would fragment the parent's heap by up to 20 MB.
    left, right, product = torch.rand(3, 512, 512)
    for generation in range(GENERATIONS):
        run.generation(generation)
        part.number = generation
        with run.phase("train"):
            for batch in loader:
                layer(batch.float()[:, None]).mean().backward()
            for _ in range(40):
                torch.mm(left, right, out=product)
    run.finish()


if __name__ == "__main__":
    main()
