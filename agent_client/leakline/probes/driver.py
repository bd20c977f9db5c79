"""NVML, opened once per process. A question it does not answer is answered with None, never with a zero."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final

# The program may close NVML more often than it opened it; opening costs milliseconds, so not for ever.
_OPENINGS_LIMIT: Final = 3
_LIBRARY: Final = "libnvidia-ml.so.1"


class Driver:
    """The binding and its library. Absent where either is missing, too old, or not for us."""

    def __init__(self) -> None:
        self._pid, self._openings = -1, 0
        self._nvml: Any = None

    def open(self) -> bool:
        """Is there a driver to ask? Never closed: in a forked child that would close what its parent still uses."""
        if self._pid != os.getpid():
            self._pid, self._openings = os.getpid(), 0
            self._reopen()
        return self._nvml is not None

    @property
    def opened(self) -> tuple[int, int]:
        """Another value than before: handles from before are void."""
        return self._pid, self._openings

    def ask(self, question: str, *arguments: Any) -> Any | None:
        """What the driver answers; None when it cannot or will not, or the binding does not know the question."""
        try:
            return self._ask(question, *arguments)
        except self._mismatch():
            # A binding newer than the driver: the versioned function is the one that both know.
            return self.ask(question + "_v2", *arguments)

    def _ask(self, question: str, *arguments: Any) -> Any | None:
        call = getattr(self._nvml, question, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            # Lost, not supported, no permission, another version: each is "unknown", now and for this question.
            if error.value == self._nvml.NVML_ERROR_UNINITIALIZED:
                self._reopen()
            return None

    def _mismatch(self) -> tuple[type[Exception], ...]:
        mismatch = getattr(self._nvml, "NVMLLibraryMismatchError", None)
        return () if mismatch is None else (mismatch,)

    def _reopen(self) -> None:
        self._openings += 1
        self._nvml = _opened() if self._openings <= _OPENINGS_LIMIT else None


def _opened() -> Any | None:
    if not _may_be_there():
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _may_be_there() -> bool:
    """The binding takes 50 ms and 3 MB to load; most machines without a driver say so in 50 microseconds."""
    if "pynvml" in sys.modules or sys.platform != "linux":
        return True
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True
