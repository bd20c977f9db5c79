"""Pictures of the training: where breaks were dug, and the returns so far."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np

from .collector import Experience
from .environment import ACTIONS, BLOCKS

mpl.use("Agg")
# The example shows the leak; matplotlib's own warning would only distract.
mpl.rcParams["figure.max_open_warning"] = 0

from matplotlib import pyplot  # noqa: E402


def plot_progress(
    returns: Sequence[float], experiences: Sequence[Experience], *, close_current: bool
) -> tuple[bytes, bytes]:
    """Return both pictures as PNG. With ``close_current``, only pyplot's current figure is closed (the leak)."""
    breaks = _breaks(experiences)
    curve = _curve(returns)
    pictures = _png(breaks), _png(curve)
    if close_current:
        pyplot.close()
    else:
        pyplot.close(breaks)
        pyplot.close(curve)
    return pictures


def _breaks(experiences: Sequence[Experience]) -> Any:
    figure, axes = pyplot.subplots(figsize=(10, 8))
    dug = np.bincount([each.action for each in experiences], minlength=ACTIONS)
    axes.imshow(dug.reshape(BLOCKS, BLOCKS))
    axes.set(title="breaks dug", xticks=[], yticks=[])
    return figure


def _curve(returns: Sequence[float]) -> Any:
    figure, axes = pyplot.subplots(figsize=(4, 3))
    axes.plot(returns)
    axes.set(xlabel="episode", ylabel="return")
    return figure


def _png(figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
