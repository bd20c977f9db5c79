"""Recurrent replay, declared: a ring of sequences of tensors; the leak is hidden states that nobody removes."""

from __future__ import annotations

import torch
from _training import parse, start
from torch import Tensor, nn

PHASES = ("act", "learn")
CAPACITY, SEQUENCES = 200, 16
WIDTH = 96
HIDDEN_ROWS, HIDDEN = 160, 128


class SequenceReplay:
    """Overwrites the oldest sequence once it is full."""

    def __init__(self) -> None:
        self.sequences: list[dict[str, Tensor | dict[str, Tensor]]] = []
        self.position = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: dict[str, Tensor | dict[str, Tensor]]) -> None:
        if len(self.sequences) < CAPACITY:
            self.sequences.append(sequence)
        else:
            self.sequences[self.position] = sequence
        self.position = (self.position + 1) % CAPACITY


class Actor:
    def __init__(self) -> None:
        self.hidden_of: dict[int, Tensor] = {}


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    random = options.random
    run = start(options, PHASES)
    replay, actor = SequenceReplay(), Actor()
    run.track("replay", replay, capacity=CAPACITY)
    network = nn.Linear(WIDTH, WIDTH)
    played = 0
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("act"), torch.no_grad():
            for _ in range(SEQUENCES):
                length = int(random.integers(40, 400))
                observed = network(torch.randn(length, WIDTH))
                replay.add(
                    {
                        "observed": observed,
                        "extra": {"reward": torch.randn(length), "done": torch.zeros(length)},
                    }
                )
                actor.hidden_of[played] = torch.randn(HIDDEN_ROWS, HIDDEN)
                if not options.leaking:
                    del actor.hidden_of[played]
                played += 1
        with run.phase("learn"):
            for _ in range(30):
                chosen = replay.sequences[int(random.integers(len(replay)))]["observed"]
                assert isinstance(chosen, Tensor)
                network(chosen[:64]).square().mean().backward()
                for parameter in network.parameters():
                    parameter.grad = None
    run.finish()


if __name__ == "__main__":
    main()
