"""Finds the libraries whose malloc memory grows, with the library that `leakline run --native` preloads.

Allocations are sampled only after memory has risen, and until it has been flat for a while. Each library is then
recorded with the bytes that it has allocated since and not freed.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Final

from ..snapshot import Number
from .overhead_budget import RisingMemory

# Sampling stops after this many generation ends without a lasting rise of memory.
_ENDS: Final = 64
# A library is recorded once it has this many bytes, which are several samples.
_LEAST_BYTES: Final = 2**20
_LIBRARIES_LIMIT: Final = 16


class _Library(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_int64), ("name", ctypes.c_char * 64)]


class NativeAllocations:
    """Sampled allocations of this process. ``is_possible`` is False without the preloaded library."""

    def __init__(self) -> None:
        self._library = _preloaded()
        self.is_possible = self._library is not None
        self._memory = RisingMemory()
        self._is_armed = False
        # The memory that sampling itself uses.
        self.bytes = 0
        # Number of generation ends since the newest rise.
        self._ends = 0
        # The names of the libraries that are recorded.
        self._names: set[str] = set()

    def at_generation_end(self, private_bytes: Number) -> dict[str, Number]:
        """Decide whether to sample from now on, and return ``malloc.<library>.bytes`` if sampling goes on."""
        self._ends += 1
        rises = self._memory.note(private_bytes)
        if rises:
            # The next rise is measured from here; slower rises add up.
            self._memory.counted()
        if rises or self._ends >= _ENDS:
            self._ends = 0
            if not rises:
                self.stop()
        if self._is_armed:
            return self._read()
        if rises:
            self._is_armed = True
            self._names.clear()
            self.bytes = self._library.leakline_malloc_arm(1)
        return {}

    def stop(self) -> None:
        """Stop sampling, also in a forked child."""
        if self._is_armed:
            self._library.leakline_malloc_arm(0)
        self._is_armed = False

    def _read(self) -> dict[str, Number]:
        found = (_Library * 256)()
        count = self._library.leakline_malloc_outstanding(found, len(found))
        sizes: dict[str, int] = {}
        for one in found[:count]:
            name = one.name.decode(errors="replace")
            sizes[name] = sizes.get(name, 0) + one.bytes
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            if sizes[name] >= _LEAST_BYTES and len(self._names) < _LIBRARIES_LIMIT:
                self._names.add(name)
        return {f"malloc.{name}.bytes": sizes.get(name, 0) for name in sorted(self._names)}


@lru_cache(maxsize=1)
def _preloaded() -> Any:
    try:
        library = ctypes.PyDLL(None)
    except (OSError, TypeError):
        return None
    if not hasattr(library, "leakline_malloc_arm"):
        return None
    ctypes.CDLL(None).leakline_malloc_look_up()
    return library
