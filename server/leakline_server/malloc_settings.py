"""What the C library does with memory that was given back to it: left to itself, it keeps most of it.

The first large body raises the size from which memory is mapped by itself, and with it what may lie free at the end of
each heap. From then on large bodies come from the heaps, between small things that stay; every thread has a heap.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

# What glibc begins with. Naming it keeps it from moving.
THRESHOLD_BYTES: Final = 128 * 1024
# Of malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_SET_BY_PEOPLE: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def give_back() -> bool:
    """What is large goes back to the system when it is freed. False where that is not glibc, or people have set it."""
    try:
        is_glibc = bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError, OSError):
        return False
    if not is_glibc or any(name in os.environ for name in _SET_BY_PEOPLE):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, THRESHOLD_BYTES)) and bool(
        mallopt(_MMAP_THRESHOLD, THRESHOLD_BYTES)
    )
