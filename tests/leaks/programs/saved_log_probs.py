"""The policy saves the log probability of each action for its update, and the list is never cleared."""

from __future__ import annotations

import torch
from _training import descend, parse, start
from torch import Tensor, nn

PHASES = ("rollout", "update", "evaluate")
STEPS, BATCH, OBSERVATION, HIDDEN, ACTIONS = 300, 8, 32, 64, 4
# Rest of a graph after backward: its nodes and the Python objects around them.
GRAPH_BYTES = 7_500
SAVED = 10 * STEPS


class Policy(nn.Module):
    """Keeps at most ``saved`` log probabilities."""

    def __init__(self, saved: int | None) -> None:
        super().__init__()
        self.hidden, self.actions = nn.Linear(OBSERVATION, HIDDEN), nn.Linear(HIDDEN, ACTIONS)
        self.saved = saved
        self.saved_log_probs: list[Tensor] = []

    def act(self, observation: Tensor) -> Tensor:
        logits = self.actions(torch.relu(self.hidden(observation)))
        logs = torch.log_softmax(logits, dim=-1)
        chosen = torch.multinomial(logs.detach().exp(), 1)
        self.saved_log_probs.append(logs.gather(1, chosen).sum())
        if self.saved is not None:
            del self.saved_log_probs[: -self.saved]
        return chosen

    def loss(self) -> Tensor:
        return -torch.stack(self.saved_log_probs[-STEPS:]).mean()


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    run = start(options, PHASES)
    policy = Policy(None if options.leaking else SAVED)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("rollout"):
            for _ in range(STEPS):
                policy.act(torch.randn(BATCH, OBSERVATION))
        with run.phase("update"):
            policy.loss().backward()
            descend(policy.parameters())
        with run.phase("evaluate"), torch.no_grad():
            for _ in range(100):
                scores = torch.relu(policy.hidden(torch.randn(512, OBSERVATION)))
            run.gauge("score", float(scores.mean()))
    run.finish()


if __name__ == "__main__":
    main()
