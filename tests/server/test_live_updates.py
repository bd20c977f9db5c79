"""The live stream of a run: each message once, none lost after a reconnect, and one read for all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import re
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import delete, func
from tests.server.conftest import DATABASES, copies_of
from tests.server.stored import Client, count_of, listening

from leakline.snapshot import RunHeader
from leakline_server import live_updates as live_module
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.live_updates import MAX_KEPT_MESSAGES, Live, Update, Viewer, Watcher
from leakline_server.run_requests import Requests
from leakline_server.store.engine import Engine, writing
from leakline_server.store.runs import run_history
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import runs, segments


class Stream:
    """Reads server-sent events from a real connection."""

    def __init__(
        self, port: int, query: str = "", headers: dict[str, str] | None = None,
        path: str = "/api/v1/runs/r1/live",
    ) -> None:  # fmt: skip
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", path + query, headers=headers or {})
        self.answer = self._connection.getresponse()
        self.last_id: str | None = None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        event: dict[str, str] = {}
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value
            elif not line and "event" in event:
                self.last_id = event.get("id", self.last_id)
                yield event["event"], json.loads(event["data"])
                event = {}

    def until(self, kind: str) -> tuple[list[tuple[str, Any]], Any]:
        """Return the messages before the first message of this kind, and that message."""
        before = []
        for name, data in self:
            if name == kind:
                return before, data
            before.append((name, data))
        raise AssertionError(f"the stream ended before a {kind}")

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows_until(self, sequence: int) -> list[int]:
        """Return the sequence numbers of all rows up to this one."""
        seen: list[int] = []
        while sequence not in seen:
            _, data = self.until("snapshots")
            seen += [row["sequence"] for row in data["rows"]]
        return seen

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module", params=DATABASES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Yield a server in this process that listens on a port; each test has its own run."""
    with (
        copies_of(request).new(tmp_path_factory.mktemp("live")) as url,
        listening(create_app(Config(database_url=url))) as client,
    ):
        yield client


@dataclass
class Watched:
    """A run on the server, and its viewers."""

    server: Client
    run: Any

    def send(self, first: int, count: int, size: int = 200) -> None:
        for at in range(first, first + count, size):
            body = self.run.wire(at, min(size, first + count - at))
            path = f"/api/v1/runs/{self.run.id}/batches"
            assert self.server.post(path, body)["accepted"] == min(size, first + count - at)

    def stream(self, query: str = "", headers: dict[str, str] | None = None) -> Stream:
        return Stream(self.server.port, query, headers, f"/api/v1/runs/{self.run.id}/live")


@pytest.fixture
def watched(server: Client, make_run: Any, request: pytest.FixtureRequest) -> Watched:
    name = re.sub(r"\W", "-", request.node.name)
    run = make_run(id=name, instance=name, leak_bytes=300 * 2**20)
    server.post("/api/v1/runs", run.header)
    return Watched(server, run)


def test_a_stream_begins_with_the_run_and_is_not_compressed(watched: Watched) -> None:
    watched.send(0, 6)
    with watched.stream(headers={"accept-encoding": "gzip, deflate, br, zstd"}) as stream:
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        assert stream.answer.getheader("content-encoding") is None
        before, run = stream.until("run")
        assert [kind for kind, _ in before] == ["verdict"]
        assert (run["id"], run["state"]) == (watched.run.id, "running")
        assert stream.last_id == str(run["revision"])


def test_new_snapshots_come_with_the_samples_asked_for(watched: Watched) -> None:
    with watched.stream("?name=type.*.count&name=process.rss_bytes") as stream:
        stream.until("run")
        watched.send(0, 3)
        _, data = stream.until("snapshots")
    assert data["process"] == watched.run.instance
    expected = watched.run.snapshot(2)
    assert data["rows"][2] == {
        "sequence": 2, "time": expected.time, "generation": 0, "phase": None, "kind": "generation_end",
        "label": expected.label,
        "samples": {name: expected.samples[name] for name in ("type.app.Env.count", "process.rss_bytes")},
    }  # fmt: skip


def test_a_verdict_comes_when_it_changes(watched: Watched) -> None:
    with watched.stream() as stream:
        stream.until("run")
        watched.send(0, 60)
        while (verdict := stream.until("verdict")[1])["status"] not in ("suspected", "confirmed"):
            continue
    assert verdict["run"] == watched.run.id


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_reconnect_with_the_last_id_misses_nothing(how: str, watched: Watched) -> None:
    with watched.stream() as stream:
        stream.until("run")
        watched.send(0, 5)
        assert stream.rows_until(4) == [0, 1, 2, 3, 4]
        stream.until("run")
    watched.send(5, 5)
    watched.send(10, 5)
    known = str(stream.last_id)
    told = {"query": f"?since={known}"} if how == "query" else {"headers": {"Last-Event-ID": known}}
    with watched.stream(**told) as again:  # type: ignore[arg-type]
        assert again.rows_until(14) == list(range(5, 15))


def test_a_reconnect_after_sealing_misses_nothing(watched: Watched, eventually: Any) -> None:
    with watched.stream() as stream:
        stream.until("run")
        watched.send(0, 100)
        stream.rows_until(99)
        stream.until("run")
    watched.send(100, 4_000)
    engine = watched.server.services.engine
    of_run = segments.c.run_id == watched.run.id
    eventually(lambda: count_of(engine, func.sum(segments.c.count), of_run) == 4_096, 60.0)
    with watched.stream(headers={"Last-Event-ID": str(stream.last_id)}) as again:
        assert set(again.rows_until(4_099)) >= set(range(100, 4_100))


@pytest.mark.parametrize("last", ["99999", "hello", "-1", "9" * 30])
def test_an_unknown_id_is_answered_with_the_current_run(last: str, watched: Watched) -> None:
    with watched.stream(headers={"Last-Event-ID": last}) as stream:
        before, run = stream.until("run")
    assert run["id"] == watched.run.id
    assert {kind for kind, _ in before} <= {"reload", "verdict"}


def test_a_reader_that_was_away_for_too_long_reloads(watched: Watched, patch: Any) -> None:
    patch("store.snapshot_rows.MAX_NEWS_ROWS", 100)
    revision = watched.server.get(f"/api/v1/runs/{watched.run.id}")["revision"]
    watched.send(0, 120)
    with watched.stream(f"?since={revision}") as stream:
        kinds = [kind for kind, _ in stream.until("run")[0]]
    assert "reload" in kinds and "snapshots" not in kinds


def test_many_batches_at_once_become_few_messages(watched: Watched) -> None:
    messages, rows = 0, 0
    with watched.stream() as stream:
        stream.until("run")
        sender = threading.Thread(target=watched.send, args=(0, 60, 1))
        sender.start()
        while rows < 60:
            _, data = stream.until("snapshots")
            messages, rows = messages + 1, rows + len(data["rows"])
        sender.join()
    assert rows == 60
    assert messages < 30


@pytest.mark.flow
@pytest.mark.parametrize(
    ("how", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.long)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_ends_the_server_its_streams_and_its_uploads(
    how: signal.Signals, status: int, serve: Any, make_run: Any
) -> None:
    server, run = serve(), make_run()
    assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
    assert server.request("POST", "/api/v1/runs/r1/batches", run.wire(0, 30))[0] == 200
    streams = [Stream(server.port) for _ in range(3)]
    for stream in streams:
        stream.until("run")
    with contextlib.ExitStack() as held:
        for path in ("/api/v1/runs/r1/batches", "/api/v1/runs"):
            upload = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            upload.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            # The server has asked for the body and is waiting for it.
            assert b"100" in upload.recv(100)
            upload.sendall(b"{")
        seconds, said = server.interrupt(how)
    assert seconds < 2.0
    assert server.process.returncode == status
    assert not re.search("traceback|error|cancel", said.lower()), said
    for stream in streams:
        # The stream ended normally, not as a broken connection.
        assert all(kind in ("verdict", "run", "snapshots") for kind, _ in stream)
        stream.close()


class Run:
    """A run in a database: its revision, and how often it was read."""

    def __init__(self) -> None:
        self.revision = 0
        self.reads: list[int | None] = []
        self.failure: Exception | None = None

    async def read(self, since: int | None) -> Update:
        self.reads.append(since)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        data = b"" if since == self.revision else b"<%d>" % self.revision
        return Update(since, self.revision, data)


@pytest.fixture
def enter() -> Iterator[Callable[..., Any]]:
    """Return a function that enters a context until the end of the test, after the test's event loop has ended."""
    kept: list[Any] = []

    def into(context: Any) -> Any:
        kept.append(context)
        return context.__enter__()

    yield into
    kept.clear()


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    """Return live updates without a pause between messages."""
    monkeypatch.setattr(live_module, "COALESCE_SECONDS", 0.0)
    return Live()


@pytest.fixture
def run() -> Run:
    return Run()


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test with its fixtures on its own event loop."""

    @functools.wraps(test)
    def run_test(live: Live, **given: Any) -> None:
        async def within() -> None:
            live.start()
            async with asyncio.timeout(20):
                await test(live=live, **given)

        asyncio.run(within())

    return run_test


async def next_of(viewers: list[Viewer]) -> list[bytes | None]:
    return await asyncio.gather(*(viewer.news() for viewer in viewers))


async def begin_two(live: Live, run: Run, enter: Any) -> tuple[Viewer, Viewer]:
    first, second = (enter(live.viewing("r1", "names", run.read)) for _ in range(2))
    await asyncio.gather(first.begin(None), second.begin(None))
    return first, second


@on_a_loop
async def test_one_read_serves_all_viewers(live: Live, run: Run, enter: Any) -> None:
    viewers = [enter(live.viewing("r1", "names", run.read)) for _ in range(50)]
    run.revision = 4
    assert set(await asyncio.gather(*(v.begin(None) for v in viewers))) == {b"<4>"}
    assert run.reads == [None]
    for revision in (5, 6, 9):
        run.revision = revision
        live.wake("r1")
        assert set(await next_of(viewers)) == {b"<%d>" % revision}
    assert run.reads == [None, 4, 5, 6]
    assert live.listeners == 50


@on_a_loop
async def test_changes_during_another_read_are_sent(live: Live, run: Run, enter: Any) -> None:
    """The other read has already queried the database and does not see them."""
    may_answer = asyncio.Event()
    may_answer.set()

    async def read(since: int | None) -> Update:
        found = await run.read(since)
        await may_answer.wait()
        return found

    first, second = (enter(live.viewing("r1", "names", read)) for _ in range(2))
    run.revision = 5
    await first.begin(5)
    told = asyncio.create_task(first.news())
    may_answer.clear()
    looks = len(run.reads)
    beginning = asyncio.create_task(second.begin(5))
    while len(run.reads) == looks:
        await asyncio.sleep(0)
    # It has queried when control returns to the loop, and it answers later.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    run.revision = 6
    live.wake("r1")
    for _ in range(5):
        await asyncio.sleep(0)
    may_answer.set()
    assert await beginning == b""
    assert await told == b"<6>"
    assert await second.news() == b"<6>"


@on_a_loop
async def test_other_names_are_read_separately(live: Live, run: Run, enter: Any) -> None:
    other = Run()
    one = enter(live.viewing("r1", ("a",), run.read))
    two = enter(live.viewing("r1", ("b",), other.read))
    await asyncio.gather(one.begin(None), two.begin(None))
    run.revision = 1
    other.revision = 2
    live.wake("r1")
    assert await next_of([one, two]) == [b"<1>", b"<2>"]


@on_a_loop
async def test_a_slow_viewer_gets_all_messages_together(live: Live, run: Run, enter: Any) -> None:
    quick, slow = await begin_two(live, run, enter)
    for revision in (1, 2, 3):
        run.revision = revision
        live.wake("r1")
        assert await quick.news() == b"<%d>" % revision
    assert await slow.news() == b"<1><2><3>"


@on_a_loop
async def test_a_viewer_that_was_away_too_long_gets_a_new_read(
    live: Live, run: Run, enter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_read_for(last: int) -> None:
        quick, slow = await begin_two(live, run, enter)
        begun, reads = run.revision, len(run.reads)
        for revision in range(begun + 1, last + 1):
            run.revision = revision
            live.wake("r1")
            await quick.news()
        assert run.reads[reads:].count(begun) == 1
        assert await slow.news() == b"<%d>" % last
        assert run.reads[reads:].count(begun) == 2

    await is_read_for(MAX_KEPT_MESSAGES + 1)
    # Messages are also limited by their bytes: two of them exceed this limit.
    monkeypatch.setattr(live_module, "MAX_KEPT_BYTES", 4)
    await is_read_for(MAX_KEPT_MESSAGES + 3)


@on_a_loop
async def test_a_later_viewer_joins_the_others(live: Live, run: Run, enter: Any) -> None:
    first = enter(live.viewing("r1", "names", run.read))
    await first.begin(None)
    run.revision = 5
    # It has not been sent yet: the new viewer has read more than the others received.
    later = enter(live.viewing("r1", "names", run.read))
    assert await later.begin(None) == b"<5>"
    live.wake("r1")
    assert await first.news() == b"<5>"
    run.revision = 6
    live.wake("r1")
    assert await next_of([first, later]) == [b"<6>", b"<6>"]


@on_a_loop
async def test_a_wake_up_without_changes_sends_nothing(live: Live, run: Run, enter: Any) -> None:
    viewer = enter(live.viewing("r1", "names", run.read))
    run.revision = 3
    await viewer.begin(None)
    # Changes of another run send nothing either.
    live.wake("r2")
    live.wake_behind({"r1": 3, "r2": 7})
    await asyncio.sleep(0.01)
    assert run.reads == [None]
    assert live.watched == ["r1"]
    live.wake("r1")
    run.revision = 4
    live.wake_behind({"r1": 4})
    assert await viewer.news() == b"<4>"


@on_a_loop
async def test_a_quiet_stream_sends_signs_of_life(
    live: Live, run: Run, enter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "BEAT_SECONDS", 0.01)
    viewers = [enter(live.viewing("r1", "names", run.read)) for _ in range(3)]
    await asyncio.gather(*(v.begin(None) for v in viewers))
    assert await next_of(viewers) == [b"", b"", b""]
    run.revision = 1
    live.wake("r1")
    while (found := await viewers[0].news()) == b"":
        pass
    assert found == b"<1>"


@on_a_loop
async def test_a_failing_database_ends_the_streams(live: Live, run: Run, enter: Any) -> None:
    viewers = [enter(live.viewing("r1", "names", run.read)) for _ in range(2)]
    await asyncio.gather(*(v.begin(None) for v in viewers))
    run.failure = OSError("the database went away")
    live.wake("r1")
    assert await next_of(viewers) == [None, None]


@on_a_loop
async def test_a_recreated_run_ends_the_streams(live: Live, run: Run, enter: Any) -> None:
    run.revision = 9
    viewer = enter(live.viewing("r1", "names", run.read))
    await viewer.begin(None)
    run.revision = 1
    live.wake_behind({"r1": 1})
    assert await viewer.news() is None


@on_a_loop
async def test_pages_of_a_run_that_another_server_removed_end(
    live: Live, run: Run, engine: Engine, enter: Any
) -> None:
    """The run was removed by another server or the command line. Pages of other runs stay open."""
    for name in ("r1", "r2"):
        join_run(engine, RunHeader(name, "erl", name, "generation", None, 1.0), 1.0)
    other = Run()
    gone, stays = (
        enter(live.viewing(name, "names", of.read)) for name, of in (("r1", run), ("r2", other))
    )
    for viewer, name, of in ((gone, "r1", run), (stays, "r2", other)):
        of.revision = run_history.revision(engine, name)
        await viewer.begin(None)
    watcher = Watcher(engine, live, Requests(engine))
    with writing(engine) as connection:
        connection.execute(delete(runs).where(runs.c.id == "r1"))
    run.failure = run_history.NoSuchRun("r1")
    looks = list(other.reads)
    await asyncio.to_thread(watcher.once)
    assert await gone.news() is None
    assert other.reads == looks


@on_a_loop
async def test_viewers_that_leave_are_cleaned_up(live: Live, run: Run) -> None:
    for _ in range(3):
        with live.viewing("r1", "names", run.read) as viewer:
            await viewer.begin(None)
            assert live.watched == ["r1"]
    assert (live.watched, live.listeners) == ([], 0)
    live.wake("r1")
    await asyncio.sleep(0.01)
    assert run.reads == [None] * 3
    assert [task for task in asyncio.all_tasks() if "_follow" in repr(task)] == []
