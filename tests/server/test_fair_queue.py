"""A burst of one project or run does not delay others and leaves them room; refused clients wait long enough."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.server.stored import serving
from tests.server.under_load import beside_a_crowd

from leakline_server.errors import TooBusy
from leakline_server.ingest.fair_queue import TURN_COST, FairQueue, Sender, Turns, Weight
from leakline_server.ingest.writer import LONGEST_RETRY_SECONDS, REFUSED_PER_SECOND, TurnedAway
from leakline_server.limits import MAX_BODIES_BYTES
from leakline_server.web.request_bodies import Coming

ONE = Weight(1, 1, 1)
CROWD = Sender("crowd", "r1")
ROOM = (300, 10**6, 10**6)


def filled(costs: dict[Sender, list[int]]) -> FairQueue[tuple[Sender, int]]:
    """Return a queue in which each item is its sender and its number among the items of that sender."""
    queue: FairQueue[tuple[Sender, int]] = FairQueue()
    for sender, each in costs.items():
        for number, cost in enumerate(each):
            queue.add(sender, (sender, number), ONE, cost)
    return queue


def fill(queue: FairQueue[int], sender: Sender, room: tuple[int, int, int]) -> int:
    """Add as many items as the queue has room for; return how many."""
    count = 0
    while queue.has_room(sender, room):
        queue.add(sender, count, ONE, 1)
        count += 1
    return count


def test_a_cheap_item_waits_for_at_most_one_expensive_one() -> None:
    other = Sender("other", "r2")
    queue = filled({CROWD: [4_000] * 40, other: [10] * 8})
    first = [queue.take(1, 0)[0] for _ in range(9)]
    assert first == [(CROWD, 0), *((other, n) for n in range(8))]
    # An expensive item is taken alone.
    queue = filled({other: [10] * 3, CROWD: [4_000] * 2})
    assert [len(queue.take(64, 2_000)) for _ in range(4)] == [3, 1, 1, 0]
    assert (len(queue), queue._all.held, queue._all.branches) == (0, [0, 0, 0], {})


def test_projects_and_runs_share_by_cost() -> None:
    """Projects share equally by cost, and so do the runs of a project, however many items they send."""
    runs = [Sender("many", f"r{n}") for n in range(9)]
    queue = filled({run: [50] * 90 for run in runs} | {CROWD: [500] * 40})
    taken = [queue.take(1, 0)[0][0] for _ in range(190)]
    cost = Counter({"many": 50 * sum(s.project == "many" for s in taken)})
    cost["crowd"] = 500 * taken.count(CROWD)
    assert abs(cost["many"] - cost["crowd"]) <= 500
    of_runs = [taken.count(run) for run in runs]
    assert max(of_runs) - min(of_runs) <= TURN_COST // 50


def test_a_sender_that_was_alone_still_owes_its_cost() -> None:
    """A sender that arrives while an expensive item is processed is served before the next of them."""
    queue = filled({CROWD: [4_000] * 3})
    other = Sender("other", "r2")
    for number in range(2):
        assert [sender for sender, _ in queue.take(64, 2_000)] == [CROWD]
        queue.add(other, (other, number), ONE, 10)
        assert [sender for sender, _ in queue.take(1, 2_000)] == [other]


def test_a_run_may_fill_a_third_and_a_project_half() -> None:
    queue: FairQueue[int] = FairQueue()
    assert fill(queue, CROWD, ROOM) == 100
    assert fill(queue, Sender("crowd", "r2"), ROOM) > 0
    for number in range(3, 99):
        fill(queue, Sender("crowd", f"r{number}"), ROOM)
    assert len(queue) == 150
    assert fill(queue, Sender("other", "r1"), ROOM) >= 50
    # The next sender has room, however many came before.
    for number in range(4):
        assert fill(queue, Sender(f"p{number}", "r1"), ROOM) > 0


@pytest.mark.parametrize("amount", range(3))
def test_each_amount_has_its_own_limit(amount: int) -> None:
    queue: FairQueue[int] = FairQueue()
    weight = Weight(*(10 if i == amount else 1 for i in range(3)))
    for number in range(10):
        queue.add(CROWD, number, weight, 1)
    assert queue.has_room(CROWD, (301, 301, 301))
    assert not queue.has_room(CROWD, (300, 300, 300))
    assert queue.has_room(Sender("other", "r1"), (300, 300, 300))
    queue.take(1, 1)
    assert queue.has_room(CROWD, (300, 300, 300))


def test_concurrent_threads_lose_and_repeat_nothing() -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue()
    taken: list[tuple[int, int]] = []

    def add(n: int) -> None:
        for i in range(500):
            queue.add(Sender(f"p{n % 2}", f"r{n}"), (n, i), ONE, 1)

    deadline = time.monotonic() + 20
    with ThreadPoolExecutor(4) as pool:
        pool.map(add, range(4))
        while len(taken) < 2_000 and time.monotonic() < deadline:
            taken += queue.take(7, 100)
    for n in range(4):
        assert [i for m, i in taken if m == n] == list(range(500))
    assert len(queue) == 0


def test_other_tasks_run_between_two_turns() -> None:
    done: list[str] = []

    async def check(turns: Turns, sender: Sender, cost: int) -> None:
        async with turns.turn(sender, cost):
            done.append(sender.project)

    async def else_due() -> None:
        while done.count("crowd") < 20:
            done.append("-")
            await asyncio.sleep(0)

    async def all_at_once() -> None:
        turns = Turns()
        crowd = [check(turns, CROWD, 4_000) for _ in range(20)]
        await asyncio.gather(*crowd, check(turns, Sender("other", "r1"), 10), else_due())

    asyncio.run(all_at_once())
    assert "crowdcrowd" not in "".join(done)
    assert [name for name in done if name != "-"].index("other") <= 2


def test_a_turn_is_followed_by_a_pause_of_the_same_length() -> None:
    async def work() -> tuple[float, float]:
        turns, loop = Turns(pauses=True), asyncio.get_running_loop()
        async with turns.turn(CROWD, 1):
            began = loop.time()
            await asyncio.sleep(0.02)
            worked = loop.time() - began
        async with turns.turn(CROWD, 1):
            return worked, loop.time() - began

    worked, until_next = asyncio.run(work())
    assert until_next >= 2 * worked


def test_a_cancelled_waiter_takes_no_turn() -> None:
    async def work() -> None:
        turns = Turns(at_once=2)
        begun, go_on = [], asyncio.Event()

        async def piece(name: int) -> None:
            async with turns.turn(CROWD, 1):
                begun.append(name)
                await go_on.wait()

        tasks = [asyncio.ensure_future(piece(n)) for n in range(6)]
        while len(begun) < 2:
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[3].cancel()
        while len(begun) < 3:
            await asyncio.sleep(0)
        assert begun == [0, 1, 2]
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert begun == [0, 1, 2, 4, 5]

    asyncio.run(asyncio.wait_for(work(), 20))


def test_bodies_of_a_project_leave_as_much_room_as_they_take() -> None:
    coming = Coming()
    coming.add(MAX_BODIES_BYTES // 2, "crowd")
    coming.check("crowd")
    with pytest.raises(TooBusy), coming.holding(1, "crowd"):
        pytest.fail("there is no room for more of it")
    with coming.holding(MAX_BODIES_BYTES // 4, "other"):
        assert set(coming.of_projects) == {"crowd", "other"}
    coming.add(-(MAX_BODIES_BYTES // 2), "crowd")
    assert (coming.size, coming.of_projects) == (0, {})
    # A body that ends before it began takes no room.
    with coming.holding(0, "gone"), coming.holding(0, "gone"):
        coming.check("gone")
    assert (coming.size, coming.of_projects) == (0, {})


@pytest.mark.flow
@pytest.mark.alone
@pytest.mark.long
def test_other_projects_are_not_delayed_by_a_crowd_of_new_names(serve: Callable[..., Any]) -> None:
    """In one queue for all they would wait as long as the crowd; `make test-weekly` measures how long."""
    waits = beside_a_crowd(serve().port, alone=2.0)
    assert waits.refused == []
    assert waits.crowded < 0.5 * waits.of_the_crowd, waits


def test_the_retry_delay_grows_with_refusals_and_shrinks_again() -> None:
    turned_away = TurnedAway()
    for at in range(REFUSED_PER_SECOND - 1):
        assert turned_away.one_more(at / REFUSED_PER_SECOND) == 1
    turned_away = TurnedAway()
    for at in range(10 * REFUSED_PER_SECOND):
        last = turned_away.one_more(at / (10 * REFUSED_PER_SECOND))
    assert last == 11
    # The first refusal of the next second: equally many may follow.
    assert turned_away.one_more(1.0) == 11
    assert turned_away.one_more(3.5) == 1
    # The delay is never longer than the one that a training uses anyway.
    waits = {turned_away.one_more(9.5) for _ in range(100 * REFUSED_PER_SECOND)}
    assert waits == set(range(1, LONGEST_RETRY_SECONDS + 1))


def test_a_refused_body_is_not_decompressed(sqlite_url: str, make_run: Any, patch: Any) -> None:
    run = make_run()
    with serving(sqlite_url) as api:
        run.create(api)
        path, headers = "/api/v1/runs/r1/batches", {"content-encoding": "gzip"}
        body = gzip.compress(b"not a batch")
        assert api.post(path, content=body, headers=headers).status_code == 400
        patch("ingest.writer.MAX_WAITING_BATCHES", 0)
        assert api.post(path, content=body, headers=headers).status_code == 429
