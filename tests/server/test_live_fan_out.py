"""Viewers of the same run share one read and one message; a slow viewer delays nobody."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from sqlalchemy import delete

from leakline.snapshot import RunHeader
from leakline_server import live_updates as live_module
from leakline_server.live_updates import MAX_KEPT_MESSAGES, Live, Told, Viewer
from leakline_server.run_requests import Requests
from leakline_server.store.engine import Engine, writing
from leakline_server.store.runs import run_history
from leakline_server.store.runs.run_registration import join_run
from leakline_server.store.schema import runs
from leakline_server.workers.change_poller import Watcher


class Run:
    """A run in a database: its revision, and how often it was read."""

    def __init__(self) -> None:
        self.revision = 0
        self.reads: list[int | None] = []
        self.failure: Exception | None = None

    async def read(self, since: int | None) -> Told:
        self.reads.append(since)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        data = b"" if since == self.revision else b"<%d>" % self.revision
        return Told(since, self.revision, data)


@pytest.fixture
def enter() -> Iterator[Callable[..., Any]]:
    """Enter a context that lasts to the end of the test; after its loop, for which nothing is left to do."""
    kept: list[Any] = []

    def into(context: Any) -> Any:
        kept.append(context)
        return context.__enter__()

    yield into
    kept.clear()


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    """Whose messages follow each other without a pause."""
    monkeypatch.setattr(live_module, "COALESCE_SECONDS", 0.0)
    return Live()


@pytest.fixture
def run() -> Run:
    return Run()


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test with its fixtures on a loop of its own."""

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
async def test_who_reconnects_at_once_with_others_shares_the_read(
    live: Live, run: Run, enter: Any
) -> None:
    run.revision = 8
    viewers = [enter(live.viewing("r1", "names", run.read)) for _ in range(30)]
    assert set(await asyncio.gather(*(v.begin(3) for v in viewers))) == {b"<8>"}
    assert run.reads == [3]


@on_a_loop
async def test_news_that_come_while_somebody_else_is_read_for_are_told(
    live: Live, run: Run, enter: Any
) -> None:
    """That read has looked at the database already, and does not find them."""
    may_answer = asyncio.Event()
    may_answer.set()

    async def read(since: int | None) -> Told:
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
    # It has looked when the loop comes back to it, and only answers later.
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
async def test_others_who_watch_something_else_are_read_for_apart(
    live: Live, run: Run, enter: Any
) -> None:
    other = Run()
    one = enter(live.viewing("r1", ("a",), run.read))
    two = enter(live.viewing("r1", ("b",), other.read))
    await asyncio.gather(one.begin(None), two.begin(None))
    run.revision = 1
    other.revision = 2
    live.wake("r1")
    assert await next_of([one, two]) == [b"<1>", b"<2>"]


@on_a_loop
async def test_news_of_other_runs_wake_nobody(live: Live, run: Run, enter: Any) -> None:
    viewer = enter(live.viewing("r1", "names", run.read))
    await viewer.begin(None)
    live.wake("r2")
    live.wake_behind({"r2": 7})
    await asyncio.sleep(0.01)
    assert run.reads == [None]
    assert live.watched == ["r1"]


@on_a_loop
async def test_who_is_slow_is_told_all_of_it_together(live: Live, run: Run, enter: Any) -> None:
    quick, slow = await begin_two(live, run, enter)
    for revision in (1, 2, 3):
        run.revision = revision
        live.wake("r1")
        assert await quick.news() == b"<%d>" % revision
    assert await slow.news() == b"<1><2><3>"


@on_a_loop
async def test_who_was_away_for_longer_than_is_kept_is_read_for(
    live: Live, run: Run, enter: Any
) -> None:
    quick, slow = await begin_two(live, run, enter)
    for revision in range(1, MAX_KEPT_MESSAGES + 2):
        run.revision = revision
        live.wake("r1")
        await quick.news()
    assert run.reads.count(0) == 1
    assert await slow.news() == b"<%d>" % (MAX_KEPT_MESSAGES + 1)
    assert run.reads.count(0) == 2


@on_a_loop
async def test_what_is_kept_is_bounded_in_bytes(
    live: Live, run: Run, enter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_KEPT_BYTES", 4)
    quick, slow = await begin_two(live, run, enter)
    for revision in (1, 2):
        run.revision = revision
        live.wake("r1")
        await quick.news()
    # Of <1> and <2>, six bytes, the newest stays.
    assert await slow.news() == b"<2>"
    assert run.reads.count(0) == 2


@on_a_loop
async def test_who_comes_later_joins_where_the_others_are(live: Live, run: Run, enter: Any) -> None:
    first = enter(live.viewing("r1", "names", run.read))
    await first.begin(None)
    run.revision = 5
    # Not told yet: who comes now has read more than the others were told.
    later = enter(live.viewing("r1", "names", run.read))
    assert await later.begin(None) == b"<5>"
    live.wake("r1")
    assert await first.news() == b"<5>"
    run.revision = 6
    live.wake("r1")
    assert await next_of([first, later]) == [b"<6>", b"<6>"]


@on_a_loop
async def test_a_wake_without_news_tells_nothing(live: Live, run: Run, enter: Any) -> None:
    viewer = enter(live.viewing("r1", "names", run.read))
    run.revision = 3
    await viewer.begin(None)
    live.wake_behind({"r1": 3})
    await asyncio.sleep(0.01)
    assert run.reads == [None]
    live.wake("r1")
    run.revision = 4
    live.wake_behind({"r1": 4})
    assert await viewer.news() == b"<4>"


@on_a_loop
async def test_a_quiet_stream_shows_that_it_lives(
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
async def test_a_database_that_fails_ends_the_streams_so_that_they_come_back(
    live: Live, run: Run, enter: Any
) -> None:
    viewers = [enter(live.viewing("r1", "names", run.read)) for _ in range(2)]
    await asyncio.gather(*(v.begin(None) for v in viewers))
    run.failure = OSError("the database went away")
    live.wake("r1")
    assert await next_of(viewers) == [None, None]


@on_a_loop
async def test_a_run_that_begins_anew_under_its_id_ends_the_streams(
    live: Live, run: Run, enter: Any
) -> None:
    run.revision = 9
    viewer = enter(live.viewing("r1", "names", run.read))
    await viewer.begin(None)
    run.revision = 1
    live.wake_behind({"r1": 1})
    assert await viewer.news() is None


@on_a_loop
async def test_pages_of_a_run_that_another_program_removed_end(
    live: Live, run: Run, engine: Engine, enter: Any
) -> None:
    """Another server, or the command line. Those of a run that is there stay."""
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
async def test_nothing_is_left_of_those_who_have_left(live: Live, run: Run) -> None:
    for _ in range(3):
        with live.viewing("r1", "names", run.read) as viewer:
            await viewer.begin(None)
            assert live.watched == ["r1"]
    assert (live.watched, live.listeners) == ([], 0)
    live.wake("r1")
    await asyncio.sleep(0.01)
    assert run.reads == [None] * 3
    assert [task for task in asyncio.all_tasks() if "_follow" in repr(task)] == []
