"""Perplexity of a language model on streams of text, whose recurrent state goes on from generation to generation."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("train", "read_streams", "evaluate")
STEPS = 16
STREAMS, INPUTS, HIDDEN = 32, 64, 128
# Kept of each step: four gates, the cell and its tanh, the output; an eighth for nodes and freed blocks between them.
STATES = 8
DETACH_FROM = 10


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(INPUTS, HIDDEN)
        self.head = nn.Linear(HIDDEN, INPUTS)


class Streams:
    """The state of the model at the current position of each stream."""

    def __init__(self) -> None:
        self.state = {"output": torch.zeros(STREAMS, HIDDEN), "cell": torch.zeros(STREAMS, HIDDEN)}

    def read(self, model: LanguageModel, text: Tensor) -> float:
        """Return the mean error of the next steps."""
        errors: list[float] = []
        for token in text:
            output, cell = model.cell(token, (self.state["output"], self.state["cell"]))
            self.state = {"output": output, "cell": cell}
            errors.append(model.head(output.detach()).square().mean().item())
        return sum(errors) / len(errors)

    def detach(self) -> None:
        self.state = {name: tensor.detach() for name, tensor in self.state.items()}


def train(model: LanguageModel, steps: int) -> None:
    """Train on separate short texts that begin without a state."""
    for _ in range(steps):
        state = torch.zeros(STREAMS, HIDDEN), torch.zeros(STREAMS, HIDDEN)
        for token in torch.randn(6, STREAMS, INPUTS):
            state = model.cell(token, state)
        model.head(state[0]).square().mean().backward()
        descend(model.parameters())


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    model, streams = LanguageModel(), Streams()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            train(model, steps=35)
        with run.phase("read_streams"):
            if not options.leaking and generation >= DETACH_FROM:
                streams.detach()
            run.gauge("error", streams.read(model, torch.randn(STEPS, STREAMS, INPUTS)))
        with run.phase("evaluate"), torch.no_grad():
            run.gauge("score", float(model.head(torch.randn(512, HIDDEN)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
