"""Something short, done on the main thread between two steps of its program, for a thread of ours that waits for it.

As a signal handler is: the interpreter calls it where it would call one. While the main thread is in a call of C it is
not done, and who waits goes on without it. What handlers of the program raise in the middle of it is the program's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from leakline.probes.native_module import native

Found = TypeVar("Found")

_PACKAGE: Final = str(Path(__file__).parents[2])


class _Errand:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._found: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        # Who gave it up holds the lock for ever.
        if not self._turn.acquire(blocking=False):
            return
        call, self._call = self._call, None
        try:
            self._found = call() if call is not None else None
        except Exception as error:
            if not _is_ours(error):
                raise
            # Whoever waits raises it; the program must not.
            self._error = error
        finally:
            self._over.set()

    def wait(self, seconds: float) -> Any:
        if not self._over.wait(seconds) and self._turn.acquire(blocking=False):
            self._call = None
            return None
        # Begun by now, it is let finish.
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._found


def on_main_thread(call: Callable[[], Found], wait_seconds: float) -> Found | None:
    """What ``call`` gives; None where the main thread does not come to it in time, and without the native module.

    To be called on another thread, which must hold nothing that the main thread may wait for.
    """
    module = native()
    if module is None:
        return None
    errand = _Errand(call)
    if not module.call_on_main_thread(errand.run):
        return None
    return errand.wait(wait_seconds)  # type: ignore[no-any-return]


def _is_ours(error: Exception) -> bool:
    """And not of a signal handler of the program that ran meanwhile."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is None or innermost.tb_frame.f_code.co_filename.startswith(_PACKAGE)
