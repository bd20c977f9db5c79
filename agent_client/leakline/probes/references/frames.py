"""Local variables of running functions, read without keeping what they hold alive."""

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
# A function that names one of these may have the very dictionary that we would empty.
_SEES_ITS_LOCALS: Final = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "f_locals", "_getframe"}
)
# Before 3.13 `f_locals` of a function is a copy that its frame keeps, values and all, until the function ends.
_KEEPS_A_COPY: Final = sys.version_info < (3, 13)
# Before 3.12 what allocates may collect, and to ask for a frame or for its locals allocates.
_ALLOCATING_COLLECTS: Final = sys.version_info < (3, 12)


class Locals:
    """Local variables of one running function, read once at first need. Make it, use it, drop it."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._variables: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        """Names and values; empty where reading them could be noticed."""
        if self._variables is None:
            self._variables = _local_variables(self._frame)
        return self._variables


def locals_by_function(frame: FrameType | None) -> dict[str, Locals]:
    """The program's own functions that run now, ``module.function``; of a recursive one, the innermost call."""
    found: dict[str, Locals] = {}
    for _ in range(_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        # Modules and class bodies have no locals of their own kind.
        if code.co_flags & inspect.CO_OPTIMIZED and is_user_file(code.co_filename):
            found.setdefault(function_name(frame), Locals(frame))
        frame = frame.f_back
    return found


def locals_of_threads(frame: FrameType | None) -> dict[str, Locals]:
    """The program's own functions that run now, on whatever thread; those on the way to ``frame`` first.

    Other threads are left alone while something traces or profiles them: before 3.13 that goes by the very
    dictionaries that we would empty.
    """
    found = locals_by_function(frame)
    if _KEEPS_A_COPY and (threading.gettrace() is not None or threading.getprofile() is not None):
        return found
    with no_collection():
        innermost = sys._current_frames()
        # Our own frame in a local of ours would be a cycle, with all that was found in it.
        innermost.pop(threading.get_ident(), None)
        for other in innermost.values():
            for name, variables in locals_by_function(other).items():
                found.setdefault(name, variables)
    return found


@contextmanager
def no_collection() -> Iterator[None]:
    """For asking for frames of other threads, and for their locals.

    A collection runs code of the program (finalizers, callbacks), and that lets other threads run: the function whose
    frame the interpreter is just asked about returns, and the interpreter reads and writes where it was.
    """
    if not (_ALLOCATING_COLLECTS and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def function_name(frame: FrameType) -> str:
    """``module.function`` of a frame."""
    module = frame.f_globals.get("__name__")
    name = frame.f_code.co_qualname
    return f"{module}.{name}" if type(module) is str else name


def _local_variables(frame: FrameType) -> dict[str, Any]:
    if not _KEEPS_A_COPY:
        return dict(frame.f_locals)
    code = frame.f_code
    # A tracer or profiler writes back what is in the dictionary: an empty one would unbind every local.
    if sys.gettrace() is not None or sys.getprofile() is not None or frame.f_trace is not None:
        return {}
    if not _SEES_ITS_LOCALS.isdisjoint(code.co_names):
        return {}
    with no_collection():
        kept = frame.f_locals
    variables = dict(kept)
    # Two references are ours and the frame's, one is the call's: nobody else has it.
    if sys.getrefcount(kept) <= 3:
        kept.clear()
    return variables
