"""Two ranks that train one model; the second keeps memory at the end of each generation."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from keeping import Keeper
from torch.nn.parallel import DistributedDataParallel

import leakline

GENERATIONS = 24


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    keeper = Keeper() if os.environ["RANK"] == "1" else None
    run = leakline.init(project="torchrun", total=GENERATIONS)
    for generation in range(GENERATIONS):
        run.generation(generation)
        with run.phase("train"):
            for _ in range(100):
                optimizer.zero_grad()
                model(torch.rand(64, 256)).square().mean().backward()
                optimizer.step()
        with run.phase("evaluate"), torch.no_grad():
            model(torch.rand(256, 256)).mean()
            if keeper is not None:
                keeper.keep()
    run.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
