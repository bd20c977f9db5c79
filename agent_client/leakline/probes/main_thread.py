"""Something short, done on the main thread between two steps of its program, for a thread of ours that waits for it.

As a signal handler is: the interpreter calls it where it would call one. While the main thread is in a call of C it is
not done, and who waits goes on without it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

Found = TypeVar("Found")

# What the interpreter calls, for as long as it may: made once, never freed.
_CALL: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Errand:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._found: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        # Who gave it up holds the lock for ever.
        if not self._turn.acquire(blocking=False):
            return
        call, self._call = self._call, None
        try:
            self._found = call() if call is not None else None
        except BaseException as error:  # noqa: BLE001
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


_waiting: Final[deque[_Errand]] = deque()


def _run_next(_: object) -> int:
    if _waiting:
        _waiting.popleft().run()
    return 0


_run_next_in_c: Final = _CALL(_run_next)


def on_main_thread(call: Callable[[], Found], wait_seconds: float) -> Found | None:
    """What ``call`` gives; None where the main thread does not come to it in time, or this interpreter cannot ask it.

    To be called on another thread, which must hold nothing that the main thread may wait for.
    """
    if sys.implementation.name != "cpython":
        return None
    errand = _Errand(call)
    _waiting.append(errand)
    if ctypes.pythonapi.Py_AddPendingCall(_run_next_in_c, None) != 0:
        # As many wait as may; one of their calls runs ours, or finds it given up.
        return errand.wait(0)  # type: ignore[no-any-return]
    return errand.wait(wait_seconds)  # type: ignore[no-any-return]
