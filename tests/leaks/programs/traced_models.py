"""An exported model per evaluation, traced by torch and kept with its weights in a list of candidates."""

from __future__ import annotations

import gc
from typing import Any

import torch
from _training import Network, parse, start
from torch import nn

PHASES = ("train", "export", "evaluate")
INPUTS, HIDDEN, OUTPUTS = 128, 2_048, 256
WEIGHTS = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS
# The traced graph of torch, in C++.
TRACED_BYTES = 500_000
CANDIDATES_KEPT = 10


class Exporter:
    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.candidates: list[Any] = []

    def export(self) -> Any:
        model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
        self.candidates.append(torch.jit.trace(model.eval(), torch.zeros(1, INPUTS)))
        if self.kept is not None:
            del self.candidates[: -self.kept]
        # Tracing leaves cycles, which Python would free only after hundreds of generations; a run of seconds has no
        # time to find out whether anything holds them.
        gc.collect()
        return self.candidates[-1]


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    exporter = Exporter(None if options.leaking else CANDIDATES_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            model.fit(random, steps=400)
        with run.phase("export"):
            exported = exporter.export()
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(exported(torch.randn(64, INPUTS)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
