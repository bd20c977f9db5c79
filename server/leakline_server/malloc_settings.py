"""Settings for glibc's malloc, which keeps most freed memory by default.

The first large body raises glibc's threshold for separate mappings, and with it the trim threshold. After that, large
bodies are allocated in the heaps, between small long-lived objects, and every thread has its own heap.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

# The initial value in glibc. Setting a threshold explicitly disables its automatic adjustment.
THRESHOLD_BYTES: Final = 128 * 1024
# Parameter numbers from malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_SET_BY_PEOPLE: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def give_back() -> bool:
    """Make malloc return large freed blocks to the system.

    Return False if the C library is not glibc, or if the environment already configures malloc.
    """
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
