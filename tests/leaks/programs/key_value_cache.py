"""Keys and values of a decoder are concatenated with those of each new prompt and never truncated."""

from __future__ import annotations

import torch
from _training import Network, parse, start
from torch import Tensor

PHASES = ("generate", "train", "evaluate")
LAYERS, HEADS, TOKENS, WIDTH = 4, 8, 128, 96
TOKENS_KEPT = 10 * TOKENS


class KeyValueCache:
    """One tensor of keys and one of values for each layer, limited to ``window`` tokens."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.keys = [torch.zeros(HEADS, 0, WIDTH) for _ in range(LAYERS)]
        self.values = [torch.zeros(HEADS, 0, WIDTH) for _ in range(LAYERS)]

    def update(self, layer: int, keys: Tensor, values: Tensor) -> Tensor:
        self.keys[layer] = self._joined(self.keys[layer], keys)
        self.values[layer] = self._joined(self.values[layer], values)
        return self.values[layer]

    def _joined(self, before: Tensor, more: Tensor) -> Tensor:
        joined = torch.cat([before, more], dim=1)
        return joined if self.window is None else joined[:, -self.window :].clone()


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    cache = KeyValueCache(None if options.leaking else TOKENS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("generate"):
            for layer in range(LAYERS):
                new = torch.randn(2, HEADS, TOKENS, WIDTH)
                run.gauge("attended", float(cache.update(layer, new[0], new[1])[:, -1].mean()))
        with run.phase("train"):
            model.fit(random, steps=400)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(random.random((512, 64), "float32")).mean()))
    run.finish()


if __name__ == "__main__":
    main()
