"""Tells those who wait for a run that it has news. What the news is, they read from the database.

`wake` may be called from any thread; waiting happens on the event loop. Nothing is queued for anybody, so a slow
reader costs nothing: it wakes once and reads what is newest then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Live:
    """Belongs to one event loop, from `start` to `close`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._open: set[asyncio.Event] = set()
        self._patient: set[asyncio.Timeout] = set()

    @property
    def closing(self) -> bool:
        return self._ended.is_set()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def wake(self, run_id: str) -> None:
        """This run has news; from any thread, never waits."""
        loop = self._loop
        if loop is not None:
            # The loop may close between the look and the call; then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake, run_id)

    def close(self) -> None:
        """The server ends, and every stream with it. May be called in a signal handler."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end)

    @contextlib.contextmanager
    def listening(self, run_id: str) -> Iterator[Listener]:
        event = asyncio.Event()
        self._waiting.setdefault(run_id, set()).add(event)
        self._open.add(event)
        try:
            yield Listener(event, self._ended)
        finally:
            self._open.discard(event)
            self._waiting[run_id].discard(event)
            if not self._waiting[run_id]:
                del self._waiting[run_id]

    @contextlib.contextmanager
    def ending(self, patience: asyncio.Timeout) -> Iterator[None]:
        """The end of the server runs this timeout out at once."""
        self._patient.add(patience)
        if self.closing:
            patience.reschedule(0)
        try:
            yield
        finally:
            self._patient.discard(patience)

    @property
    def listeners(self) -> int:
        return len(self._open)

    def _wake(self, run_id: str) -> None:
        for event in self._waiting.get(run_id, ()):
            event.set()

    def _end(self) -> None:
        self._ended.set()
        for event in self._open:
            event.set()
        for patience in self._patient:
            if not patience.expired():
                patience.reschedule(0)


class Listener:
    def __init__(self, event: asyncio.Event, ended: asyncio.Event) -> None:
        self._event, self._ended = event, ended

    async def news(self) -> bool:
        """Wait for news. False: the server ends."""
        if not self._ended.is_set():
            await self._event.wait()
        self._event.clear()
        return not self._ended.is_set()

    async def pause(self, seconds: float) -> None:
        """Let news gather for a moment, but not beyond the end of the server."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
