"""What Python's cyclic collector did. Read, never asked to run: a forced collection hides cyclic leaks."""

from __future__ import annotations

import gc
import sys
from time import perf_counter
from typing import Any

from leakline.snapshot import Number


class CollectorStatistics:
    """Running totals of the collector. The interpreter counts collections itself; we add only their time."""

    def __init__(self) -> None:
        self._started_at: float | None = None
        self._seconds = 0.0
        self._hooked = False

    def start(self) -> None:
        """Begin to time collections. Calling it twice is once."""
        if not self._hooked:
            gc.callbacks.append(self._on_collection)
            self._hooked = True

    def stop(self) -> None:
        """Take the hook away again; the totals stay readable."""
        if self._hooked:
            gc.callbacks.remove(self._on_collection)
            self._hooked = False

    def read(self) -> dict[str, Number]:
        """``python.collections``, ``.collections_full``, ``.garbage_freed``, ``.collection_seconds``, ``.blocks``."""
        generations = gc.get_stats()
        return {
            "python.collections": sum(g["collections"] for g in generations),
            "python.collections_full": generations[-1]["collections"],
            "python.garbage_freed": sum(g["collected"] for g in generations),
            "python.collection_seconds": self._seconds,
            "python.blocks": sys.getallocatedblocks(),
        }

    def _on_collection(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._started_at = perf_counter()
        elif self._started_at is not None:
            self._seconds += perf_counter() - self._started_at
            self._started_at = None
