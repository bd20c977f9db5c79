"""A tree search with the collector disabled for speed; nodes reference their parents, so they are never freed."""

from __future__ import annotations

import gc

import numpy as np
from _training import Array, Network, normal, parse, start

PHASES = ("search", "train", "evaluate")
NODES = 320
STATE = 2_048
# The state, and the node with its dictionary and its list of children.
NODE_BYTES = STATE * 4 + 112 + 450
COLLECT_EVERY = 10


class SearchNode:
    def __init__(self, state: Array, parent: SearchNode | None) -> None:
        self.state = state
        self.parent = parent
        self.children: list[SearchNode] = []
        self.value = float(state[0])
        if parent is not None:
            parent.children.append(self)


def search(random: np.random.Generator) -> float:
    """Grow a tree from a random root and return the value of its best node."""
    nodes = [SearchNode(normal(random, STATE), None)]
    while len(nodes) < NODES:
        parent = nodes[int(random.integers(len(nodes)))]
        nodes.append(SearchNode(parent.state + normal(random, STATE), parent))
    return max(node.value for node in nodes)


def main() -> None:
    options = parse()
    random = options.random
    gc.disable()
    run = start(options, PHASES)
    model = Network(random)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("search"):
            run.gauge("best_value", search(random))
        with run.phase("train"):
            model.fit(random, steps=530)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
            if not options.leaking and generation and generation % COLLECT_EVERY == 0:
                gc.collect()
    run.finish()


if __name__ == "__main__":
    main()
