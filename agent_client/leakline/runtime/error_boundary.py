"""The outer guard: whatever goes wrong in our own code stays out of the training loop.

It swallows, counts and warns once; the tests' automatic fixture raises what was swallowed. It is shared by the training
thread's calls and our own threads. Two more places of the client catch broadly: `run.py`, which hands an error on, and
`probes/heap/autograd_graphs.py`, on a thread of the program's where no guard can be.
"""

from __future__ import annotations

import logging
import traceback as tracebacks
from collections import deque
from types import TracebackType
from typing import Final

logger = logging.getLogger("leakline")

TEXT_LIMIT: Final = 500
# The newest ones; a bound, so that a broken probe cannot grow it. As (type, text): an exception, its arguments and
# the frames it came through would keep the program's objects alive. Only tests keep the exceptions.
swallowed: Final[deque[Exception | tuple[str, str]]] = deque(maxlen=20)


class Guard:
    """``with guard: ...`` never lets an Exception out. KeyboardInterrupt and SystemExit pass."""

    def __init__(self, what: str) -> None:
        self.what, self.count = what, 0
        # Since it last went well.
        self.count_in_a_row = 0
        # The type of the newest failure, by name.
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
                "leakline: %s failed (%s); the program goes on, further failures are only counted",
                self.what, text,
            )  # fmt: skip
        swallowed.append(error if _KEEP_EXCEPTIONS else (type(error).__name__, text))
        return True


def _text(error: Exception) -> str:
    """``Type: text``. Not by str(): the text of an exception of the program's may itself raise."""
    return tracebacks.format_exception_only(error)[0].strip()[:TEXT_LIMIT]


# Tests keep them, to show where it failed.
_KEEP_EXCEPTIONS = False
