"""A fair queue for many senders: a burst from one project or run neither delays other senders nor takes their space.

Projects take turns, and so do the runs of a project. The cost of an item is charged to its project and run, and a
sender that has used up its turn waits until all others have had a turn (surplus round robin). So an expensive item
delays other senders only once, no matter how many expensive items its sender has queued.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import lt
from typing import Final, Generic, NamedTuple, TypeVar

# The cost limit of one turn. It is small, so that a turn of cheap items is short; the cost of an expensive item is
# repaid over many turns.
TURN_COST: Final = 100

Item = TypeVar("Item")


class Sender(NamedTuple):
    """A run of a project; ``project`` is "" while the run's project is unknown."""

    project: str
    run: str


class Weight(NamedTuple):
    batches: int
    snapshots: int
    bytes: int


@dataclass(slots=True)
class _Branch(Generic[Item]):
    """A node of the queue: the root, a project or a run. Only runs have items; the other nodes have branches."""

    held: list[int] = field(default_factory=lambda: [0] * len(Weight._fields))
    # The cost that remains in the branch's turn; negative after an item that cost more than was left.
    credit: int = TURN_COST
    branches: dict[str, _Branch[Item]] = field(default_factory=dict)
    items: deque[tuple[Item, Weight, int]] = field(default_factory=deque)

    def hold(self, weight: Weight, sign: int) -> None:
        for i, amount in enumerate(weight):
            self.held[i] += sign * amount


class FairQueue(Generic[Item]):
    """A queue of items from many senders. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: _Branch[Item] = _Branch()

    def __len__(self) -> int:
        return self._all.held[0]

    def has_room(self, sender: Sender, room: Sequence[int]) -> bool:
        """Return True if ``sender`` may queue one more item; ``room`` is the limit for all senders together.

        An item counts towards the total, its project and its run, and the sum of these three counts must stay below
        ``room``. So a single run can fill a third of the room, and a single project can fill half; other senders can
        use the remaining room.
        """
        with self._lock:
            held, branch = [self._all.held], self._all
            for name in sender:
                if name not in branch.branches:
                    break
                branch = branch.branches[name]
                held.append(branch.held)
            return all(map(lt, map(sum, zip(*held, strict=True)), room))

    def add(self, sender: Sender, item: Item, weight: Weight, cost: int) -> None:
        with self._lock:
            branch = self._all
            branch.hold(weight, 1)
            for name in sender:
                branch = branch.branches.setdefault(name, _Branch())
                branch.hold(weight, 1)
            branch.items.append((item, weight, cost))

    def take(self, most: int, cost: int) -> list[Item]:
        """Remove and return the next items: at most ``most`` items with a total cost of at most ``cost``, or a single
        costlier item.
        """
        taken: list[Item] = []
        with self._lock:
            # Stop when ``most`` or ``cost`` is reached: if there is only one sender, starting another turn would let it
            # repay its debt for free.
            while self._all.branches and len(taken) < most and (cost > 0 or not taken):
                path = self._next()
                item, weight, its_cost = path[-1][1].items[0]
                if taken and its_cost > cost:
                    break
                path[-1][1].items.popleft()
                self._all.hold(weight, -1)
                parent = self._all
                for name, branch in path:
                    branch.credit -= its_cost
                    branch.hold(weight, -1)
                    if not branch.held[0]:
                        del parent.branches[name]
                    parent = branch
                taken.append(item)
                cost -= its_cost
        return taken

    def _next(self) -> list[tuple[str, _Branch[Item]]]:
        """Return the project and the run whose turn it is."""
        path = []
        branch = self._all
        while branches := branch.branches:
            name, branch = next(iter(branches.items()))
            while branch.credit <= 0:
                branch.credit += TURN_COST
                branches[name] = branches.pop(name)
                name, branch = next(iter(branches.items()))
            path.append((name, branch))
        return path


class Turns:
    """Turns for work that blocks other work, on the event loop or under the single write lock.

    At most ``at_once`` pieces of work run at a time, and senders take turns. With ``pauses``, each piece
    is followed by a pause of the same length, in which the event loop does its other work.
    """

    def __init__(self, at_once: int = 1, *, pauses: bool = False) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._free, self._pauses = at_once, pauses

    @asynccontextmanager
    async def turn(self, sender: Sender, cost: int) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        began = loop.time()
        self._queue.add(sender, granted, Weight(1, 0, 0), cost)
        self._grant()
        try:
            await granted
            began = loop.time()
            yield
        finally:
            # A piece that was cancelled while it waited has not had a turn.
            if not granted.cancelled():
                loop.call_later(loop.time() - began if self._pauses else 0.0, self._free_one)

    def _free_one(self) -> None:
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and (taken := self._queue.take(1, 0)):
            if not taken[0].done():
                taken[0].set_result(None)
                self._free -= 1
