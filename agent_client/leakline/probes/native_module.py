"""Loads the compiled module `leakline._native` and uses it only if it passes its self-tests.

If `native()` returns None, callers do the same work in Python. Most results are the same, but take longer and stop the
program for longer.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from functools import lru_cache
from typing import Any, Final

SETTING: Final = "LEAKLINE_NATIVE"
# This must equal the constant of the same name in `module.c`.
INTERFACE: Final = 3
# Lists with more objects than this are not counted in the check; counting this many objects takes about a millisecond.
_COUNTED: Final = 10_000
# Tolerated difference between the counts: the check itself creates some objects (a tuple, a list, a frame).
_TOLERATED: Final = 16


def native() -> Any | None:
    """Return the native module, or None if it is not available. The result is cached for the process."""
    return _loaded()[0]


def why_not_native() -> str | None:
    """Return the reason why the native module is unavailable, in one line, or None if it is available."""
    return _loaded()[1]


def forget() -> None:
    """Clear the cached result, for tests and after a change of environment variables."""
    _loaded.cache_clear()


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any | None, str | None]:
    if os.environ.get(SETTING, "1").strip() == "0":
        return None, f"{SETTING}=0 disables the native module"
    if sys.implementation.name != "cpython":
        return None, f"the native module needs CPython, but this is {sys.implementation.name}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "the native module does not support free-threaded Python"
    try:
        module = importlib.import_module("leakline._native")
    except ImportError as error:
        if getattr(error, "name", None) == "leakline._native" and error.path is None:
            return None, "the native module was not built for this interpreter"
        return None, f"the native module cannot be loaded: {error}"
    if getattr(module, "interface", None) != INTERFACE:
        return None, "the native module is from another version of leakline; reinstall leakline"
    if not _walks(module):
        return None, "the native module does not support this interpreter's garbage collector"
    return module, None


def _walks(module: Any) -> bool:
    """Return True if the module counts the same objects as ``gc``; long lists are not checked."""
    # A collection or another thread may change the lists between the two counts, so there are three attempts.
    return module.layout_is_known() and any(_same_sizes(module) for _ in range(3))


def _same_sizes(module: Any) -> bool:
    sizes = {
        number: size
        for number, size in enumerate(module.list_sizes(_COUNTED))
        if size < _COUNTED and _is_a_list_of_its_own(number)
    }
    # The counts are taken in one expression, so that no list of unfinished objects exists while another thread runs.
    shown = list(map(len, map(gc.get_objects, sizes)))
    return all(
        abs(one - size) <= _TOLERATED for one, size in zip(shown, sizes.values(), strict=True)
    )


def _is_a_list_of_its_own(number: int) -> bool:
    # Some 3.14 releases have an incremental collector, whose two old lists ``gc`` returns as one.
    return number == 0 or sys.version_info < (3, 14)
