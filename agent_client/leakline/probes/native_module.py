"""The compiled part, `leakline._native`: there when it was built for this interpreter and proves to work in it.

Whoever uses it asks `native()` first and does the same in Python where it is None. Nothing but speed and the length
of a pause may depend on it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from functools import lru_cache
from typing import Any, Final

SETTING: Final = "LEAKLINE_NATIVE"
# The constant of the same name in `module.c`.
INTERFACE: Final = 3
# Lists longer than this are not counted one by one to see whether we walk them right: about a millisecond.
_COUNTED: Final = 10_000
# What our own look makes meanwhile: a tuple, a list, a frame.
_TOLERATED: Final = 16


def native() -> Any | None:
    """The module, or None where there is none; says so once and for all of a process."""
    return _loaded()[0]


def why_not_native() -> str | None:
    """One line on why ``native()`` is None; None when it is not."""
    return _loaded()[1]


def forget() -> None:
    """Look again at the next question; for tests, and after a change of the environment."""
    _loaded.cache_clear()


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any | None, str | None]:
    if os.environ.get(SETTING, "1").strip() == "0":
        return None, f"{SETTING}=0 switches it off"
    if sys.implementation.name != "cpython":
        return None, f"it is made for CPython, this is {sys.implementation.name}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "this interpreter runs without its lock"
    try:
        module = importlib.import_module("leakline._native")
    except ImportError as error:
        if getattr(error, "name", None) == "leakline._native" and error.path is None:
            return None, "it was not built for this interpreter"
        return None, f"it does not load: {error}"
    if getattr(module, "interface", None) != INTERFACE:
        return None, "it was built from other sources: install leakline again"
    if not _walks(module):
        return None, "its walk over the collector's lists does not fit this interpreter"
    return module, None


def _walks(module: Any) -> bool:
    """Whether the module sees the collector's lists as ``gc`` does; long ones are not counted."""
    # A collection between the two looks, or another thread, makes them differ: then once again.
    return module.layout_is_known() and any(_same_sizes(module) for _ in range(3))


def _same_sizes(module: Any) -> bool:
    sizes = {
        number: size
        for number, size in enumerate(module.list_sizes(_COUNTED))
        if size < _COUNTED and _is_a_list_of_its_own(number)
    }
    # In one call: no list of objects, some of them half built, waits while another thread runs.
    shown = list(map(len, map(gc.get_objects, sizes)))
    return all(
        abs(one - size) <= _TOLERATED for one, size in zip(shown, sizes.values(), strict=True)
    )


def _is_a_list_of_its_own(number: int) -> bool:
    # The incremental collector of the first 3.14 shows its two old lists as one.
    return number == 0 or sys.version_info < (3, 14)
