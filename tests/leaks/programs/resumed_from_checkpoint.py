"""Training that returns to its last checkpoint twice: numbers repeat, and the rejected batches that it logs stay."""

from __future__ import annotations

from _training import Array, Network, normal, parse, start

PHASES = ("train", "checkpoint")
CHECKPOINT_EVERY = 6
# The generations at which the training diverges and returns to its checkpoint.
DIVERGES_AT = (9, 14)
REJECTED, ROWS, INPUTS = 5, 2_048, 96
KEPT = 50


class Guard:
    """Keeps at most ``kept`` rejected batches."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.rejected: dict[tuple[int, int], Array] = {}
        self.seen = 0

    def reject(self, generation: int, batch: Array) -> None:
        self.rejected[generation, self.seen] = batch
        self.seen += 1
        if self.kept is not None and len(self.rejected) > self.kept:
            del self.rejected[next(iter(self.rejected))]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    network = Network(random, INPUTS)
    guard = Guard(None if options.leaking else KEPT)
    generation, saved, diverging = 0, 0, list(DIVERGES_AT)
    for _ in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            for _ in range(REJECTED):
                batch = normal(random, ROWS, INPUTS)
                network.step(batch, normal(random, ROWS, 8))
                guard.reject(generation, batch)
            network.fit(random, steps=140)
        with run.phase("checkpoint"):
            if generation % CHECKPOINT_EVERY == 0:
                saved, copies = generation, (network.first.copy(), network.second.copy())
            run.gauge("weights", sum(each.size for each in copies))
        generation += 1
        if diverging and generation == diverging[0]:
            generation = saved
            del diverging[0]
    run.finish()


if __name__ == "__main__":
    main()
