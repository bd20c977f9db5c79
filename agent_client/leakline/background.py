"""Between two snapshots: how high memory is, every second; and every ten seconds a snapshot of its own.

It runs on the recorder's thread and reads what costs microseconds, so that a training that has no phase end for
an hour is still seen, and a peak between two ends as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from .sampler import Sampler
from .snapshot import Number

TOLD_EVERY_SECONDS: Final = 10.0


class BackgroundFold:
    """``tick``, called every ``interval_seconds``, tells a `sample` snapshot every ten seconds, or each time."""

    def __init__(
        self,
        sampler: Sampler,
        emit: Callable[[Mapping[str, Number]], None],
        interval_seconds: float = 1.0,
    ) -> None:
        self._sampler, self._emit = sampler, emit
        self._readings = max(1, round(TOLD_EVERY_SECONDS / interval_seconds))
        self._count = 0

    def tick(self) -> None:
        self._count += 1
        if self._count < self._readings:
            self._sampler.look()
            return
        self._count = 0
        self._emit(self._sampler.sample())
