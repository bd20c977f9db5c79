"""Reads the local variables of running functions without keeping their values alive."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from leakline.probes.references.program_code import is_user_file

_DEPTH: Final = 64
# A function that uses one of these names may itself hold the dictionary that we would clear.
_SEES_ITS_LOCALS: Final = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "f_locals", "_getframe"}
)
# Before 3.13, a function's `f_locals` is a copy that keeps the values alive until the function ends.
_KEEPS_A_COPY: Final = sys.version_info < (3, 13)
# Before 3.12, any allocation may start a collection, and reading a frame or its locals allocates memory.
_ALLOCATING_COLLECTS: Final = sys.version_info < (3, 12)


class Locals:
    """The local variables of one running function, read on first use. Drop an instance as soon as possible."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._variables: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        """Return the variables' names and values, or {} if reading them could affect the program."""
        if self._variables is None:
            self._variables = _local_variables(self._frame)
        return self._variables


def locals_by_function(frame: FrameType | None) -> dict[str, Locals]:
    """Return the program's running functions by ``module.function``.

    Only the innermost call of a recursive function is included.
    """
    found: dict[str, Locals] = {}
    for _ in range(_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        # Modules and class bodies do not have function locals.
        if code.co_flags & inspect.CO_OPTIMIZED and is_user_file(code.co_filename):
            found.setdefault(function_name(frame), Locals(frame))
        frame = frame.f_back
    return found


def locals_of_threads(frame: FrameType | None) -> dict[str, Locals]:
    """Return the program's running functions on all threads, starting with the stack of ``frame``.

    Before 3.13, other threads are skipped while a tracer or profiler is active, because the tracer or profiler uses the
    dictionaries that we would clear.
    """
    found = locals_by_function(frame)
    if _KEEPS_A_COPY and (threading.gettrace() is not None or threading.getprofile() is not None):
        return found
    with no_collection():
        innermost = sys._current_frames()
        # If a local variable held our own frame, it would create a reference cycle that keeps all found values alive.
        innermost.pop(threading.get_ident(), None)
        for other in innermost.values():
            for name, variables in locals_by_function(other).items():
                found.setdefault(name, variables)
    return found


@contextmanager
def no_collection() -> Iterator[None]:
    """Prevent garbage collections while frames of other threads and their locals are read.

    A collection runs code of the program (finalizers, callbacks), which lets other threads run. A function could then
    return while its frame is being read, and the interpreter would access invalid memory.
    """
    if not (_ALLOCATING_COLLECTS and gc.isenabled()):
        yield
        return
    try:
        # Inside the block, because a signal handler of the program may raise an exception after any step.
        gc.disable()
        yield
    finally:
        gc.enable()


def function_name(frame: FrameType) -> str:
    """Return ``module.function`` of a frame."""
    module = frame.f_globals.get("__name__")
    name = frame.f_code.co_qualname
    return f"{module}.{name}" if type(module) is str else name


def _local_variables(frame: FrameType) -> dict[str, Any]:
    if not _KEEPS_A_COPY:
        return dict(frame.f_locals)
    code = frame.f_code
    # A tracer or profiler writes the dictionary back, and an empty dictionary would unbind every local variable.
    if sys.gettrace() is not None or sys.getprofile() is not None or frame.f_trace is not None:
        return {}
    if not _SEES_ITS_LOCALS.isdisjoint(code.co_names):
        return {}
    with no_collection():
        kept = frame.f_locals
    variables = dict(kept)
    # Three references are our variable, the frame and the call's argument, so nothing else holds the dictionary.
    if sys.getrefcount(kept) <= 3:
        kept.clear()
    return variables
