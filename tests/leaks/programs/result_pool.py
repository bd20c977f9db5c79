"""A pool keeps results up to its max_size; the leaking variant forgets to drop the oldest."""

from __future__ import annotations

from dataclasses import dataclass

from _training import Array, Network, normal, parse, start

PHASES = ("evaluate", "train")
RESULTS = 40
SCORES = 10_000
MOST = 1_000
FEW = 400
RESULT_BYTES = SCORES * 4 + 112


@dataclass
class Result:
    scores: Array


class Pool:
    def __init__(self, max_size: int, drops: bool) -> None:
        self.max_size, self.drops = max_size, drops
        self.results: list[Result] = []

    def add(self, result: Result) -> None:
        if self.drops and len(self.results) == self.max_size:
            del self.results[0]
        self.results.append(result)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random, 256)
    pool = Pool(FEW if options.leaking else MOST, drops=not options.leaking)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("evaluate"):
            for _ in range(RESULTS):
                pool.add(Result(normal(random, SCORES)))
        with run.phase("train"):
            model.fit(random, steps=150)
    run.finish()


if __name__ == "__main__":
    main()
