"""Figures that pyplot keeps open until somebody closes them."""

from __future__ import annotations

import sys
from typing import Any

from leakline.snapshot import Number


def read_figures() -> dict[str, Number]:
    """``figures.open``: how many figures pyplot holds; empty unless the program has loaded matplotlib itself."""
    registry: Any = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
    figures = getattr(registry, "figs", None)
    return {} if figures is None else {"figures.open": len(figures)}
