"""A full disk is met by everybody who writes, again and again, and the log may be on it, too: it is told once for all.

Batches are what matters, so it is over when one is written. Who else meets it says nothing within an hour of the
telling.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final
from weakref import WeakKeyDictionary

from .engine import Engine, is_out_of_space

AGAIN_SECONDS: Final = 3_600.0
# Small batches may find room where larger ones do not: then it would be full and over many times a second.
BATCHES_AGAIN_SECONDS: Final = 60.0

log = logging.getLogger("leakline")

_lock = threading.Lock()
# When it was told last, by the monotonic clock, and those of which nobody has said that it is over.
_told_at: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()
_lasting: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()


def is_told(engine: Engine, error: BaseException) -> bool:
    """Whether an error is the full disk, which is in the log then: from before, or from now on."""
    if not is_out_of_space(error):
        return False
    tell(engine, AGAIN_SECONDS)
    return True


def tell(engine: Engine, again_seconds: float = BATCHES_AGAIN_SECONDS) -> None:
    """Unless it was within so many seconds."""
    now = time.monotonic()
    with _lock:
        if engine in _told_at and now < _told_at[engine] + again_seconds:
            return
        _told_at[engine], _lasting[engine] = now, True
    log.error(
        "the disk of the database is full: batches are refused until there is room, trainings keep theirs and "
        "send them then; what is stored can be read"
    )


def over(engine: Engine) -> None:
    """A batch was written, where none was before."""
    with _lock:
        lasted = _lasting.pop(engine, False)
    if lasted:
        log.warning("there is room on the disk again: batches are written")
