"""A data loader with a persistent worker, whose copy of the dataset remembers the samples that it has drawn."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PHASES = ("train", "evaluate", "report")
SAMPLES, BATCH = 128, 16
FEATURES = 4_096
# For the mean and deviation of the data; ten generations suffice.
SAMPLES_SEEN = 10 * SAMPLES


class DrawnSamples(Dataset[Tensor]):
    """Draws samples, and keeps them for statistics of the data, at most ``limit``."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.seen: list[Tensor] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        sample = torch.randn(FEATURES)
        if self.limit is None or len(self.seen) < self.limit:
            self.seen.append(sample)
        return sample


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    network = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 8))
    loader = DataLoader(
        DrawnSamples(None if options.leaking else SAMPLES_SEEN),
        batch_size=BATCH,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for batch in loader:
                for _ in range(3):
                    loss = network(batch).square().mean()
                    loss.backward()
                    descend(network.parameters())
        with run.phase("evaluate"), torch.no_grad():
            for _ in range(10):
                score = float(network(torch.randn(64, FEATURES)).mean())
        with run.phase("report"):
            run.gauge("loss", loss.item())
            run.gauge("score", score)
    run.finish()


if __name__ == "__main__":
    main()
