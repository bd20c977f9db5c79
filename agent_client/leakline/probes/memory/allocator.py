"""What the C allocator has handed out, and what it keeps although nobody uses it.

A process whose resident memory grows while ``allocator.in_use_bytes`` stands still leaks nothing: the allocator
does not give pages back. Read through ``mallinfo2`` of glibc (2.33 and newer), else through psutil.

``mallinfo2`` adds up the arenas of all threads (its manual page says otherwise) and the blocks mapped on their own.
What it cannot see: Python's own arenas for objects up to 512 bytes, which are mapped past malloc; blocks that wait in
a thread's cache (at most 7 of each small size), which count as in use; and an allocator put in front of glibc, such as
jemalloc or tcmalloc, which leaves glibc's own figures at nearly nothing. It visits every free block, 0.2 microseconds
each, without the interpreter lock: tens of milliseconds where hundreds of thousands are free. Then the caller asks
by budget.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from leakline.probes.memory.process_memory import psutil_or_none
from leakline.snapshot import Number


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def read_allocator(find: Callable[[], Any] | None = None) -> dict[str, Number]:
    """``allocator.in_use_bytes`` and ``.kept_bytes``; empty where the C library does not tell.

    ``find`` returns the C function, or None: the seam for tests.
    """
    mallinfo2 = (find or _mallinfo2)()
    if mallinfo2 is None:
        return _by_psutil() if find is None else {}
    info = mallinfo2()
    # hblkhd: large blocks that have a mapping of their own and go back to the system when freed.
    return {
        "allocator.in_use_bytes": info.uordblks + info.hblkhd,
        "allocator.kept_bytes": info.fordblks,
    }


@lru_cache(maxsize=1)
def _mallinfo2() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = _Mallinfo2
    return function


def _by_psutil() -> dict[str, Number]:
    heap_info = getattr(psutil_or_none(), "heap_info", None)
    if heap_info is None:
        return {}
    try:
        info = heap_info()
    except (OSError, RuntimeError):
        return {}
    return {"allocator.in_use_bytes": info.heap_used + info.mmap_used}
