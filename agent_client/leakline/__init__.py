"""Live memory telemetry for training runs.

PYTEST_DONT_REWRITE: `leakline run` imports this package before pytest and its plugin are loaded, and the package
contains no test assertions to rewrite.
"""

from __future__ import annotations

import os

from .errors import BadArgument, LeaklineError
from .run import Run, current, init

__version__ = "0.1.0"
__all__ = ["BadArgument", "LeaklineError", "Run", "__version__", "auto", "current", "init"]


def auto() -> None:
    """Record the training of Transformers, Lightning, Keras and Stable-Baselines3 without callbacks in the program.

    Settings are taken from ``LEAKLINE_*`` variables. Call this once, before training begins. ``LEAKLINE_AUTO=1`` has
    the same effect for a program that imports leakline, and `leakline run` does the same for all programs.
    """
    from .integrations.automatic import install

    install()


if os.environ.get("LEAKLINE_AUTO") == "1":
    auto()
