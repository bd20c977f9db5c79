"""Hooks that notify a run when its process exits, fails with an exception, receives SIGTERM or forks.

Every hook is chained: the hook that was installed before it still runs.
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


# State and reason of a run ended by SIGTERM. Such a run has to end quickly, because SIGKILL follows.
KILLED: Final = ("terminated", "SIGTERM")

# Maximum time to wait while another thread finishes the run; finishing takes at most two seconds.
FINISH_SECONDS: Final = 3.0

# Module and function of the outermost frame, for a script and for a module run with ``-m``.
_OUTERMOST: Final = {("__main__", "<module>"), ("runpy", "_run_module_as_main")}

_local: Final = threading.local()
# Weak references, so that a finished run is not kept for the life of the process.
_runs: Final[weakref.WeakSet[Run]] = weakref.WeakSet()
_installed = False
# Signals that arrived while the run was ending and must be raised again afterwards.
_held_back: Final[list[int]] = []


class Once:
    """Lets only the first caller proceed; callers on other threads wait until the first caller is done."""

    def __init__(self) -> None:
        self._begun, self._over = threading.Lock(), threading.Event()
        self._by = 0

    def begin(self) -> bool:
        """Return True for the first caller. On other threads, wait until the first caller is done."""
        if self._begun.acquire(blocking=False):
            self._by = threading.get_ident()
            return True
        # A signal handler may call this on the first caller's own thread, where waiting would cause
        # a deadlock.
        if self._by != threading.get_ident():
            self._over.wait(FINISH_SECONDS)
        return False

    def done(self) -> None:
        self._over.set()

    @property
    def is_mine(self) -> bool:
        """True on the first caller's thread until `done` is called.

        A signal handler checks this to find out whether it has interrupted the first caller.
        """
        return self._by == threading.get_ident() and not self._over.is_set()


def watch(run: Run) -> None:
    """Notify ``run`` when this process ends, and on SIGTERM if the run handles signals and this is the main thread."""
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
    """Stop notifying a run that has ended. A SIGTERM that arrived while it was ending now ends the process."""
    _runs.discard(run)
    if _held_back and not any(each._is_ending for each in list(_runs)):
        _end_by(_held_back[0])


def _at_exit() -> None:
    # Ignore a second Ctrl-C: the program has already ended, and its exit status is set.
    with contextlib.suppress(KeyboardInterrupt):
        for run in list(_runs):
            run._finish_at_exit()
    with contextlib.suppress(KeyboardInterrupt):
        end_all()
    if _is_interrupted():
        # The interpreter sets a flag for an uncaught Ctrl-C and, after all cleanup, ends itself
        # with SIGINT. Executing any string clears that flag, and our own code executes a string
        # when it imports a module that defines a named tuple. Raising KeyboardInterrupt from `exec`
        # sets the flag again.
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _is_interrupted() -> bool:
    """Return True if the interpreter has reported an uncaught Ctrl-C in a script or a module run with ``-m``."""
    error = getattr(sys, "last_value", None)
    # An interactive session continues after a Ctrl-C.
    if type(error) is not KeyboardInterrupt or error.__traceback__ is None or hasattr(sys, "ps1"):
        return False
    frame = error.__traceback__.tb_frame
    # IPython also reports exceptions that it has caught; the outermost frames of such exceptions belong to IPython.
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _OUTERMOST


def _before_fork() -> None:
    # While our Python handler is installed, a SIGTERM that reaches the child before its interpreter
    # is ready would be lost. A blocked signal stays pending until the child has restored the
    # previous handler.
    if _handler_is_ours():
        _local.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    mask, _local.mask = getattr(_local, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    # The child records nothing: the queue, the spool and the connection belong to the parent.
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
    # None means that the handler was not set from Python and cannot be chained. If SIGTERM is
    # ignored, the signal does not end the process.
    if previous is None or previous is signal.SIG_IGN or _handler_is_ours():
        return
    signal.signal(signal.SIGTERM, _sigterm_handler(previous))


def _sigterm_handler(previous: Any) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        for run in list(_runs):
            run._ends_because(*KILLED)
        if callable(previous):
            # The program's handler may save a checkpoint and take minutes, so the run does not end
            # before the process.
            previous(number, frame)
            _outlived()
            return
        if signal.getsignal(number) is not handler:
            # A handler that was installed after ours has called ours as the previous handler, and
            # it decides whether the process ends. Lightning, for example, uses such a handler to
            # end a fit after running all callbacks.
            _outlived()
            return
        for run in list(_runs):
            run._finish_at_exit()
        if any(run._is_ending for run in list(_runs)):
            # The run is already ending, which takes two seconds at most. A launcher terminates all ranks as soon as one
            # rank has failed, and this process may be the rank that is reporting its failure.
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
