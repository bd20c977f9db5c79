"""A few at a time, and a few who wait: for what is dear and anybody may ask for. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ...errors import TooBusy


class Turnstile:
    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._waiting, self._most_waiting = 0, most_waiting

    @contextlib.asynccontextmanager
    async def through(self) -> AsyncIterator[None]:
        """Raises TooBusy where as many wait as may."""
        if self._waiting >= self._most_waiting:
            raise TooBusy(
                "too_busy",
                "too many are asked who they are at this moment; try again in a second",
                retry_after_seconds=1,
            )
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
