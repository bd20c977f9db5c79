"""Numbers of summaries that were read lately, so that the next look at a chart does not read and check them again.

What a compacted segment tells of a column does not change while the segment is there; one that is made anew, or
thinned, has other sequence numbers or fewer of them. So a column of certain stretches of a process is remembered by
these, and by the name that the process instance gave itself: the same id may be another run tomorrow.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from sqlalchemy import Engine

from .codec import Array

# Of one database: a hundred columns of a million snapshots each.
MAX_BYTES: Final = 8 * 2**20


class Remembered:
    """Columns of records, the longest unused going first; for any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._found: OrderedDict[Hashable, Array] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Array | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: Hashable, records: Array) -> None:
        records.flags.writeable = False
        with self._lock:
            if key not in self._found and records.nbytes <= self._max_bytes // 8:
                self._found[key] = records
                self._bytes += records.nbytes
            while self._bytes > self._max_bytes:
                self._bytes -= self._found.popitem(last=False)[1].nbytes


_OF: Final[weakref.WeakKeyDictionary[Engine, Remembered]] = weakref.WeakKeyDictionary()
_MAKING: Final = threading.Lock()


def of(engine: Engine) -> Remembered:
    with _MAKING:
        return _OF.setdefault(engine, Remembered())
