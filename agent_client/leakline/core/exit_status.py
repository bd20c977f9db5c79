"""Learn the exit status with which the program ends itself, while Python still runs.

No hook of Python gives it: SystemExit never reaches ``sys.excepthook``, and is gone when ``atexit`` calls us. So
``sys.exit``, ``exit`` and ``quit`` are wrapped. A SystemExit that the program raises by hand is seen where it leaves
one of our blocks; elsewhere only the process that started the program learns it (`leakline run`). The same applies to a
program that has run ``from sys import exit`` before ``leakline.init``.
"""

from __future__ import annotations

import builtins
import functools
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

# What a shell reports for a program that was ended by a signal, and what programs that handle one of these end with.
BY_SIGNAL: Final = 128
_REPORTED_SO: Final = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)

# The newest exit status that was asked for, and the identity of its request; empty once its SystemExit was caught.
_requested: Final[list[tuple[int, object]]] = []


class _Request:
    """Attached to a SystemExit: gone when that is."""

    def __init__(self) -> None:
        self.identity = object()

    def __del__(self) -> None:
        # Where the program catches it, one of its frames is running. The interpreter frees it without any.
        try:
            sys._getframe(1)
        except ValueError:
            return
        # An older exception may be freed after the program has asked for another status.
        if _requested and _requested[0][1] is self.identity:
            _requested.clear()


def watch() -> None:
    """Wrap what programs end themselves with. Twice is once."""
    if not hasattr(sys.exit, "_leakline"):
        sys.exit = _noting(sys.exit)
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins" and not hasattr(quitter.__call__, "_leakline"):
        quitter.__call__ = _noting(quitter.__call__)


def note(error: BaseException) -> None:
    """Remember the exit status of a SystemExit that the main thread raises."""
    if isinstance(error, SystemExit) and _is_main_thread():
        request = getattr(error, "_leakline", None) or _Request()
        error._leakline = request  # type: ignore[attr-defined]
        _requested[:] = [(_status_of(error.code), request.identity)]


def forget_caught() -> None:
    """Forget the request of a SystemExit that the program has caught but still refers to. Call it where it goes on."""
    if _requested and _is_main_thread() and sys.exc_info()[0] is None:
        _requested.clear()


def requested() -> int:
    """Return the exit status that the program ends with, as far as it is known here; 0 without any."""
    return _requested[0][0] if _requested else 0


def end_of(status: int) -> tuple[str, str]:
    """Return state and reason of a process that ended with ``status``; below zero, by that signal."""
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
    """As the interpreter does: anything but a number and None is printed, and the exit status is 1."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
