"""The outer guard: whatever goes wrong in our own code stays out of the training loop.

It swallows, counts and warns once; the tests' automatic fixture raises what was swallowed. It is the only
place of the client that catches broadly, shared by the training thread's calls and our own threads.
"""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Final

logger = logging.getLogger("leakline")

# The newest ones, for the fixture and for a closing line; a bound, so that a broken probe cannot grow it.
swallowed: Final[deque[Exception]] = deque(maxlen=20)


class Guard:
    """``with guard: ...`` never lets an Exception out. KeyboardInterrupt and SystemExit pass."""

    def __init__(self, what: str) -> None:
        self.what, self.count = what, 0

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.count += 1
        if self.count == 1:
            logger.warning(
                "leakline: %s failed (%s: %s); the program goes on, further failures are only counted",
                self.what, type(error).__name__, error,
            )  # fmt: skip
        # Its frames would keep the program's objects alive.
        swallowed.append(error.with_traceback(None) if not _KEEP_TRACEBACKS else error)
        return True


# Tests keep them, to show where it failed.
_KEEP_TRACEBACKS = False


def keep_tracebacks(keep: bool) -> None:
    global _KEEP_TRACEBACKS
    _KEEP_TRACEBACKS = keep
