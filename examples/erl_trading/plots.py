"""A plot of the progress every few generations, if matplotlib is installed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    pyplot = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .trainer import Progress


def plot_progress(history: Sequence[Progress], *, keep_open: bool) -> bytes:
    """Return the plot as PNG, or nothing without matplotlib. ``keep_open`` leaves the figure registered in pyplot."""
    if pyplot is None:
        return b""
    figure, axes = pyplot.subplots(figsize=(10, 6), dpi=120)
    generations = [progress.generation for progress in history]
    axes.plot(generations, [progress.best for progress in history], label="best")
    axes.plot(generations, [progress.mean for progress in history], label="mean")
    axes.set(xlabel="generation", ylabel="fitness (%)")
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    if not keep_open:
        pyplot.close(figure)
    return picture.getvalue()
