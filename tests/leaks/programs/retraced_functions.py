"""A step function is compiled per learning rate: a schedule that never repeats a rate compiles forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _training import Network, normal, parse, start

PHASES = ("trace", "train", "evaluate")
OPERATIONS = 4_000
# The function, its code and their names: tracemalloc's count per generation, divided by the operations.
OPERATION_BYTES = 516
RATES = 10


class Tracer:
    """Functions by learning rate, which is a constant in their code."""

    def __init__(self) -> None:
        self.traced: dict[float, list[Callable[[float], float]]] = {}

    def step_function(self, rate: float) -> list[Callable[[float], float]]:
        if rate not in self.traced:
            source = "\n".join(
                f"def operation_{number}(x):\n    return x * {rate!r} + {number}.5"
                for number in range(OPERATIONS)
            )
            namespace: dict[str, Any] = {}
            exec(compile(source, f"<traced at {rate!r}>", "exec"), namespace)
            self.traced[rate] = [namespace[f"operation_{n}"] for n in range(OPERATIONS)]
        return self.traced[rate]


def scheduled_rate(generation: int, cyclic: bool) -> float:
    """Return the rate: cosine restarts repeat the same rates, a decay does not."""
    return 1e-2 * 0.97 ** (generation % RATES if cyclic else generation)


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    tracer = Tracer()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("trace"):
            operations = tracer.step_function(scheduled_rate(generation, not options.leaking))
        with run.phase("train"):
            loss = model.fit(random, steps=350)
            run.gauge("scaled_loss", sum(operation(loss) for operation in operations))
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
