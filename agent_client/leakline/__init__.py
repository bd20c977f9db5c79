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
    """Record each training with Transformers, Lightning, Keras or Stable-Baselines3 without callbacks in the program.

    The first training starts a run with the settings of ``LEAKLINE_*`` variables, unless the program has called
    `init`. ``LEAKLINE_AUTO=1`` has the same effect as this call.
    """
    from .integrations.automatic import install

    install(is_asked=True)


if os.environ.get("LEAKLINE_AUTO") == "1":
    auto()
