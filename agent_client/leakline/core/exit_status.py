"""Detects the exit status that the program requests, while the interpreter is still running.

Python has no hook for this: SystemExit never reaches ``sys.excepthook``, and the exception no
longer exists when ``atexit`` calls us. So ``sys.exit``, ``exit`` and ``quit`` are wrapped. A
SystemExit that the program raises directly is detected only if it propagates out of one of our
``with`` blocks; otherwise only the process that started the program (`leakline run`) sees the
status. If the program has run ``from sys import exit`` before ``leakline.init``, this ``exit`` is
not wrapped.
"""

from __future__ import annotations

import builtins
import functools
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

# A shell reports the status of a process killed by a signal as 128 plus the signal number. Programs
# that handle one of these signals often exit with that status themselves.
BY_SIGNAL: Final = 128
_REPORTED_SO: Final = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)

# The most recently requested exit status and the identity of its request; empty once the program
# has caught the SystemExit.
_requested: Final[list[tuple[int, object]]] = []


class _Request:
    """A marker attached to a SystemExit and freed together with it."""

    def __init__(self) -> None:
        self.identity = object()

    def __del__(self) -> None:
        # If the program caught the exception, one of the program's frames is running now. If the
        # exception was not caught, the interpreter frees it while no frame is running.
        try:
            sys._getframe(1)
        except ValueError:
            return
        # An older exception may be freed after the program has requested another status.
        if _requested and _requested[0][1] is self.identity:
            _requested.clear()


def watch() -> None:
    """Wrap the functions that programs call to exit. Later calls have no effect."""
    if not hasattr(sys.exit, "_leakline"):
        sys.exit = _noting(sys.exit)
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins" and not hasattr(quitter.__call__, "_leakline"):
        quitter.__call__ = _noting(quitter.__call__)


def note(error: BaseException) -> None:
    """Record the exit status of a SystemExit raised in the main thread."""
    if isinstance(error, SystemExit) and _is_main_thread():
        request = getattr(error, "_leakline", None) or _Request()
        error._leakline = request  # type: ignore[attr-defined]
        _requested[:] = [(_status_of(error.code), request.identity)]


def forget_caught() -> None:
    """Forget the exit status of a SystemExit that the program caught but still refers to.

    Call this where the program continues.
    """
    if _requested and _is_main_thread() and sys.exc_info()[0] is None:
        _requested.clear()


def requested() -> int:
    """Return the exit status that the program last requested, or 0 if no request was detected."""
    return _requested[0][0] if _requested else 0


def end_of(status: int) -> tuple[str, str]:
    """Return (state, reason) for the exit status of a process. A negative status is a negated signal number."""
    if status == 0:
        return "finished", ""
    if status - BY_SIGNAL in _REPORTED_SO:
        status = BY_SIGNAL - status
    return (
        ("terminated", _signal_name(-status)) if status < 0 else ("failed", f"exit status {status}")
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _noting(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        try:
            leave(*arguments, **named)
        except SystemExit as error:
            note(error)
            raise

    wrapper._leakline = True  # type: ignore[attr-defined]
    return wrapper


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _status_of(code: object) -> int:
    """Convert a SystemExit's code to an exit status as the interpreter does.

    None gives 0, and a code of any type other than int gives 1.
    """
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
