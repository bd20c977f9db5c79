"""How a run hears that its process ends: at exit, by an exception, by SIGTERM; and that it was forked.

Every hook is chained: what was there before runs as if we were not there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from ..runtime.threads import end_all
from . import exit_status

if TYPE_CHECKING:
    from ..run import Run


# How a run ends that was asked to: in a hurry, as the next signal is SIGKILL.
KILLED: Final = ("terminated", "SIGTERM")

# As long as an end may take, and a little more.
FINISH_SECONDS: Final = 3.0

# The module and the function in which Python begins with a program.
_OUTERMOST: Final = {("__main__", "<module>"), ("runpy", "_run_module_as_main")}

_local: Final = threading.local()
# Weakly, so that a finished run is not kept for the life of the process.
_runs: Final[weakref.WeakSet[Run]] = weakref.WeakSet()
_installed = False
# Signals to end by, once the run has ended.
_held_back: Final[list[int]] = []


class Once:
    """Lets the first through; whoever comes while it is at work waits until it is done."""

    def __init__(self) -> None:
        self._begun, self._over = threading.Lock(), threading.Event()
        self._by = 0

    def begin(self) -> bool:
        """Whether the caller is the first."""
        if self._begun.acquire(blocking=False):
            self._by = threading.get_ident()
            return True
        # A signal handler may ask in the middle of what its own thread has begun.
        if self._by != threading.get_ident():
            self._over.wait(FINISH_SECONDS)
        return False

    def done(self) -> None:
        self._over.set()

    @property
    def is_mine(self) -> bool:
        """Whether this very thread is at work on it, interrupted by a signal."""
        return self._by == threading.get_ident() and not self._over.is_set()


def watch(run: Run) -> None:
    """Tell ``run`` about the end of this process. In the main thread only, SIGTERM as well, if it hears of signals."""
    global _installed
    _runs.add(run)
    if not _installed:
        _installed = True
        atexit.register(_at_exit)
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child
        )
    _chain_excepthook()
    exit_status.watch()
    if run._hears_signals:
        _chain_sigterm()


def unwatch(run: Run) -> None:
    """It has ended. A SIGTERM that came meanwhile ends the process now."""
    _runs.discard(run)
    if _held_back and not any(each._is_ending for each in list(_runs)):
        _end_by(_held_back[0])


def _at_exit() -> None:
    # A second Ctrl-C: the program has ended already, and by the exit status that it has.
    with contextlib.suppress(KeyboardInterrupt):
        for run in list(_runs):
            run._finish_at_exit()
    with contextlib.suppress(KeyboardInterrupt):
        end_all()
    if _is_interrupted():
        # The interpreter notes a Ctrl-C that nobody caught, and ends by SIGINT for it once all is done. Whatever has
        # executed a string since has cleared that note: our work did where it imported a module with a named tuple.
        # One that raises the same sets it again.
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _is_interrupted() -> bool:
    """Return True if the interpreter itself has reported a Ctrl-C, of a script or of ``python -m``."""
    error = getattr(sys, "last_value", None)
    # Where somebody types, Python goes on.
    if type(error) is not KeyboardInterrupt or error.__traceback__ is None or hasattr(sys, "ps1"):
        return False
    frame = error.__traceback__.tb_frame
    # Also IPython reports what it has caught: below that, there are other frames.
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _OUTERMOST


def _before_fork() -> None:
    # A SIGTERM that reaches a child before Python has set it up is lost when its handler is Python's: ours.
    # Blocked, it waits until the child has the handler back that was there before.
    if _handler_is_ours():
        _local.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    mask, _local.mask = getattr(_local, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    # Silent from here on: the queue, the spool and the connection belong to the parent.
    for run in list(_runs):
        run._forget()
    _runs.clear()
    _held_back.clear()
    handler = signal.getsignal(signal.SIGTERM)
    if _handler_is_ours():
        signal.signal(signal.SIGTERM, handler._leakline_previous)  # type: ignore[union-attr]
    _after_fork()


def _handler_is_ours() -> bool:
    return hasattr(signal.getsignal(signal.SIGTERM), "_leakline_previous")


def _chain_excepthook() -> None:
    previous = sys.excepthook
    if getattr(previous, "_leakline", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        state = "terminated" if issubclass(kind, KeyboardInterrupt) else "failed"
        for run in list(_runs):
            run._ends_because(state, kind.__name__, error)
        previous(kind, error, traceback)

    hook._leakline = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _chain_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(signal.SIGTERM)
    # None: a handler that was not set from Python cannot be chained. Ignored: the program will not end.
    if previous is None or previous is signal.SIG_IGN or _handler_is_ours():
        return
    signal.signal(signal.SIGTERM, _sigterm_handler(previous))


def _sigterm_handler(previous: Any) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        for run in list(_runs):
            run._ends_because(*KILLED)
        if callable(previous):
            # It may save a checkpoint and go on for minutes; the run ends when the process does.
            previous(number, frame)
            _outlived()
            return
        if signal.getsignal(number) is not handler:
            # Called by one that has taken our place since, and took us for the program's: whether the process ends is
            # for that one to say. Lightning ends a fit so, with all its callbacks.
            _outlived()
            return
        for run in list(_runs):
            run._finish_at_exit()
        if any(run._is_ending for run in list(_runs)):
            # In the middle of an end that takes two seconds at most. A launcher ends all ranks as soon as one
            # has failed, and that one is just saying so.
            _held_back.append(number)
            return
        _end_by(number)

    handler._leakline_previous = previous  # type: ignore[attr-defined]
    return handler


def _outlived() -> None:
    for run in list(_runs):
        run._outlived_signal()


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
