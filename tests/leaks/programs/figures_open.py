"""Training that plots its progress; the leaking variant opens a new figure each time and never closes one."""

from __future__ import annotations

import io

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from _training import Array, Network, normal, parse, start

PHASES = ("train", "evaluate", "plot")
FIGURES_KEPT = 10
WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 8, 6, 100
# The canvas with four bytes per pixel, plus axes, ticks, texts and the resampled image.
FIGURE_BYTES = WIDTH_INCHES * HEIGHT_INCHES * DOTS_PER_INCH**2 * 4 + 1_300_000


class ProgressPlot:
    """Draws into the oldest of ``window`` figures, or always into a new one."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.rewards: list[float] = []
        plt.rcParams["figure.figsize"] = (WIDTH_INCHES, HEIGHT_INCHES)
        plt.rcParams["figure.dpi"] = plt.rcParams["savefig.dpi"] = DOTS_PER_INCH
        plt.rcParams["figure.max_open_warning"] = 0

    def draw(self, generation: int, scores: Array) -> bytes:
        number = generation if self.window is None else generation % self.window
        figure = plt.figure(number + 1, clear=True)
        left, right = figure.subplots(1, 2)
        left.plot(self.rewards)
        right.imshow(scores, aspect="auto")
        picture = io.BytesIO()
        figure.savefig(picture, format="raw")
        return picture.getvalue()


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    plot = ProgressPlot(None if options.leaking else FIGURES_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("train"):
            plot.rewards.append(model.fit(random, steps=200))
        with run.phase("evaluate"):
            scores = model.predict(normal(random, 2_048, 64))
        with run.phase("plot"):
            run.gauge("picture_bytes", len(plot.draw(generation, scores)))
    run.finish()


if __name__ == "__main__":
    main()
