"""Live memory telemetry for training runs.

PYTEST_DONT_REWRITE: under `leakline run` it is loaded before pytest and its plugin, and holds no assertions of tests.
"""

from __future__ import annotations

from .errors import BadArgument, LeaklineError
from .run import Run, current, init

__version__ = "0.1.0"
__all__ = ["BadArgument", "LeaklineError", "Run", "__version__", "current", "init"]
