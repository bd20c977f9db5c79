"""Live updates: new data of a run is read once, and all viewers of the run receive the same bytes.

A `Channel` serves all viewers of a run who watch the same samples. It reads the database once per change, at most four
times a second, and keeps the newest messages; for a viewer that has fallen further behind, it reads from that viewer's
revision. So nothing is queued per viewer, and a slow viewer costs nothing.

`wake`, `wake_behind`, `close` and `watched` may be used from any thread; everything else happens on the event loop.

`Watcher` polls for changes by other servers on the same database: new batches of runs that have viewers here, and
requests to processes. With SQLite there is no other server, and `Watcher` is woken only to record which requests were
answered. It still checks the runs occasionally, because a command may have removed a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .run_requests import Requests
from .store.engine import DATABASE_ERRORS, Engine, without_content
from .store.leases import has_other_servers, revisions
from .store.maintenance import quarantine

COALESCE_SECONDS: Final = 0.25
# The heartbeat interval, short enough to keep proxies from closing a quiet stream.
BEAT_SECONDS: Final = 15.0
MAX_KEPT_MESSAGES: Final = 8
MAX_KEPT_BYTES: Final = 2**20

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Update:
    """An encoded message that takes a viewer from revision ``since`` to ``revision``.

    For a new viewer, ``since`` is None.
    """

    since: int | None
    revision: int
    data: bytes


Read = Callable[[int | None], Awaitable[Update]]


class Live:
    """Manages the live streams of one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        # Run id -> key of the watched samples -> channel.
        self._channels: dict[str, dict[Hashable, Channel]] = {}
        self._patient: set[asyncio.Timeout] = set()

    @property
    def closing(self) -> bool:
        return self._ended.is_set()

    @property
    def listeners(self) -> int:
        """The number of open streams."""
        return sum(len(c.viewers) for of_run in self._channels.values() for c in of_run.values())

    @property
    def watched(self) -> list[str]:
        """Ids of the runs with viewers; may be read from any thread."""
        return list(self._channels)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def wake(self, run_id: str) -> None:
        """Notify a run's viewers of new data. May be called from any thread; never blocks."""
        self._on_loop(self._wake, {run_id: None})

    def wake_behind(self, revisions: Mapping[str, int | None]) -> None:
        """Notify the viewers of each run whose revision differs from the given revision.

        The revision None means that the run no longer exists. May be called from any thread.
        """
        self._on_loop(self._wake, revisions)

    def close(self) -> None:
        """End all streams when the server stops. May be called in a signal handler."""
        self._on_loop(self._end)

    @contextlib.contextmanager
    def viewing(self, run_id: str, what: Hashable, read: Read) -> Iterator[Viewer]:
        """Register a viewer of a run. ``read`` loads updates.

        Viewers with an equal key ``what`` share the first viewer's ``read``.
        """
        channel = self._channels.setdefault(run_id, {}).get(what)
        if channel is None:
            channel = self._channels[run_id][what] = Channel(read, self._ended)
        viewer = Viewer(channel)
        channel.viewers.add(viewer)
        try:
            yield viewer
        finally:
            channel.viewers.discard(viewer)
            if not channel.viewers:
                channel.close()
                del self._channels[run_id][what]
                if not self._channels[run_id]:
                    del self._channels[run_id]

    @contextlib.contextmanager
    def ending(self, patience: asyncio.Timeout) -> Iterator[None]:
        """Let the timeout expire immediately when the server stops."""
        self._patient.add(patience)
        if self.closing:
            patience.reschedule(0)
        try:
            yield
        finally:
            self._patient.discard(patience)

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None:
            # The loop may close between the check and the call; then no viewer is left.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call, *arguments)

    def _wake(self, revisions: Mapping[str, int | None]) -> None:
        for run_id, revision in revisions.items():
            for channel in self._channels.get(run_id, {}).values():
                if revision is None or revision != channel.revision:
                    channel.news.set()

    def _end(self) -> None:
        self._ended.set()
        for of_run in self._channels.values():
            for channel in of_run.values():
                channel.news.set()
                channel.wake_viewers()
        for patience in self._patient:
            if not patience.expired():
                patience.reschedule(0)


class Channel:
    """A stream that several viewers share. ``revision`` is the newest published revision, or None before the first
    read.
    """

    def __init__(self, read: Read, ended: asyncio.Event) -> None:
        self._read, self._ended = read, ended
        self._kept: deque[Update] = deque(maxlen=MAX_KEPT_MESSAGES)
        self._reading: dict[int | None, asyncio.Task[Update]] = {}
        self._follower: asyncio.Task[None] | None = None
        self.viewers: set[Viewer] = set()
        self.news = asyncio.Event()
        self.revision: int | None = None
        self.over = False

    def follow(self, revision: int) -> None:
        """Start following the run from this revision; later calls have no effect."""
        if self._follower is None:
            self.revision = revision
            self._follower = asyncio.create_task(self._follow())
            self._follower.add_done_callback(self._end_with)

    @property
    def closing(self) -> bool:
        return self._ended.is_set()

    def close(self) -> None:
        self.over = True
        if self._follower is not None:
            self._follower.cancel()

    def since(self, revision: int) -> list[Update] | None:
        """Return the updates since a revision, or None if some of them are no longer kept."""
        newest = self.revision
        if newest is None or revision >= newest:
            return []
        found: list[Update] = []
        for update in reversed(self._kept):
            found.append(update)
            if update.since is not None and update.since <= revision:
                return found[::-1]
        return None

    async def read(self, revision: int | None) -> Update:
        """Read the update since a revision; concurrent calls for the same revision share one read."""
        return await asyncio.shield(self._reading.get(revision) or self._begin_to_read(revision))

    def wake_viewers(self) -> None:
        for viewer in self.viewers:
            viewer.event.set()

    def _begin_to_read(self, revision: int | None) -> asyncio.Task[Update]:
        task = asyncio.ensure_future(self._read(revision))
        self._reading[revision] = task
        task.add_done_callback(lambda done: self._has_read(revision, done))
        return task

    def _has_read(self, revision: int | None, done: asyncio.Task[Update]) -> None:
        if self._reading.get(revision) is done:
            del self._reading[revision]
        if not done.cancelled():
            # Retrieve the exception, so that asyncio does not report it as never retrieved when all viewers have left.
            done.exception()

    def _end_with(self, follower: asyncio.Task[None]) -> None:
        error = None if follower.cancelled() else follower.exception()
        if error is not None:
            # The database failed or the run is gone: every stream ends, and clients learn the cause when they
            # reconnect.
            log.warning("the live streams of a run ended: %s", without_content(error))
        self.over = True
        self.wake_viewers()

    async def _follow(self) -> None:
        while not self._ended.is_set():
            await self._look()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                await self.news.wait()
        except TimeoutError:
            self.wake_viewers()
            return
        self.news.clear()
        # A read in progress is not reused: it may have queried the database before the new data was committed.
        update = await asyncio.shield(self._begin_to_read(self.revision))
        assert self.revision is not None
        if update.revision < self.revision:
            raise LookupError("a run started again under the same id")
        if update.revision > self.revision:
            self._publish(update)
            await self._pause()

    def _publish(self, update: Update) -> None:
        self._kept.append(update)
        while len(self._kept) > 1 and sum(len(kept.data) for kept in self._kept) > MAX_KEPT_BYTES:
            self._kept.popleft()
        self.revision = update.revision
        self.wake_viewers()

    async def _pause(self) -> None:
        """Wait a moment to coalesce updates, but no longer than until the server stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COALESCE_SECONDS):
                await self._ended.wait()


class Viewer:
    """One viewer's stream. ``event`` is set when the viewer may have something to send, or when the stream must end."""

    __slots__ = ("_channel", "_revision", "event", "gone")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._revision: int | None = None
        self.event = asyncio.Event()
        # Whether the client has disconnected.
        self.gone = False

    async def begin(self, known: int | None) -> bytes:
        """Return the first message for a client at revision ``known``; it is empty if there is no new data."""
        update = await self._channel.read(known)
        self._revision = update.revision
        self._channel.follow(update.revision)
        return update.data

    async def news(self) -> bytes | None:
        """Wait for the next message; return an empty message as a heartbeat, and None when the stream ends."""
        self.event.clear()
        found = await self._newer()
        if not found and not self._over:
            await self.event.wait()
            self.event.clear()
            found = await self._newer()
        return None if self._over else found

    @property
    def _over(self) -> bool:
        return self.gone or self._channel.over or self._channel.closing

    async def _newer(self) -> bytes:
        assert self._revision is not None
        found = self._channel.since(self._revision)
        if found is None:
            # The viewer has fallen further behind than the oldest kept message.
            found = [await self._channel.read(self._revision)]
        if not found:
            return b""
        self._revision = found[-1].revision
        return found[0].data if len(found) == 1 else b"".join(update.data for update in found)


# Polling intervals: how late a page may show data that another server received, and how late a process may receive a
# request made on another server.
RUNS_SECONDS: Final = 0.25
REQUESTS_SECONDS: Final = 1.0
ALONE_SECONDS: Final = 60.0
BACK_OFF_SECONDS: Final = 1.0


class Watcher:
    """Polls the database for changes by other servers; its thread repeats `once`. ``clock`` is monotonic."""

    def __init__(
        self,
        engine: Engine,
        live: Live,
        requests: Requests,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._live, self._requests, self._clock = engine, live, requests, clock
        self._several = has_other_servers(engine)
        self._next_requests = clock()
        self._failed = False

    def news(self) -> None:
        """Schedule a refresh because a batch has answered a request; call this before waking the thread."""
        self._next_requests = self._clock()

    def once(self) -> float:
        """Poll once. Return the seconds until the next poll."""
        try:
            self._look()
        except DATABASE_ERRORS as error:
            if not quarantine.after(self._engine, error) and not self._failed:
                log.warning("cannot read the changes of other servers: %s", without_content(error))
            self._failed = True
            return BACK_OFF_SECONDS
        self._failed = False
        return RUNS_SECONDS if self._several else ALONE_SECONDS

    def _look(self) -> None:
        if self._clock() >= self._next_requests:
            self._next_requests = self._clock() + (
                REQUESTS_SECONDS if self._several else ALONE_SECONDS
            )
            self._requests.refresh()
        watched = self._live.watched
        if watched:
            found = revisions(self._engine, watched)
            # Deleted runs are included (None), so that their streams end.
            self._live.wake_behind({run_id: found.get(run_id) for run_id in watched})
