"""Live memory telemetry for training runs.

PYTEST_DONT_REWRITE: `leakline run` imports this package before pytest and its plugin are loaded, and the package
contains no test assertions to rewrite.
"""

from __future__ import annotations

from .errors import BadArgument, LeaklineError
from .run import Run, current, init

__version__ = "0.1.0"
__all__ = ["BadArgument", "LeaklineError", "Run", "__version__", "current", "init"]
