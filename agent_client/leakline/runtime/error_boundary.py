"""The error boundary, which keeps exceptions raised by our own code out of the training loop.

The boundary swallows and counts these exceptions and warns once; in tests, an automatic fixture
raises them again. It covers both calls on the training thread and our own threads. Four other
modules of the client catch all exceptions: `run.py` and `integrations/plain_loop.py`, which pass
the error on, `probes/heap/autograd_graphs.py`, which runs on a thread of the program where no guard
can be installed, and `launcher/observer.py`, whose first code in a running program has no guard yet.
"""

from __future__ import annotations

import logging
import traceback as tracebacks
from collections import deque
from types import TracebackType
from typing import Final

logger = logging.getLogger("leakline")

TEXT_LIMIT: Final = 500
# The newest swallowed errors; the length is bounded so that a broken probe cannot make the deque
# grow. They are stored as (type, text) because an exception object, its arguments and its frames
# would keep the program's objects alive. Only tests store the exceptions themselves.
swallowed: Final[deque[Exception | tuple[str, str]]] = deque(maxlen=20)


class Guard:
    """Context manager that swallows every Exception; KeyboardInterrupt and SystemExit propagate."""

    def __init__(self, what: str) -> None:
        self.what, self.count = what, 0
        # Failures since the last success.
        self.count_in_a_row = 0
        # Type name of the newest failure.
        self.newest = ""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            self.count_in_a_row = 0
        if not isinstance(error, Exception):
            return False
        self.count += 1
        self.count_in_a_row += 1
        self.newest = type(error).__name__
        text = _text(error)
        if self.count == 1:
            logger.warning(
                "leakline: %s failed (%s); the program continues, and further failures are counted but not logged",
                self.what, text,
            )  # fmt: skip
        swallowed.append(error if _KEEP_EXCEPTIONS else (type(error).__name__, text))
        return True


def _text(error: Exception) -> str:
    """Return ``Type: text`` without calling str() on the error, because that call may itself raise."""
    return tracebacks.format_exception_only(error)[0].strip()[:TEXT_LIMIT]


# Tests set this to True, to show where an error was raised.
_KEEP_EXCEPTIONS = False
