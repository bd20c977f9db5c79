"""A queue of many senders: the burst of one project or run neither delays the others nor takes their room.

Projects are served in turn, and the runs of a project in turn. What an item costs is charged to its project and its
run, and whoever has used up its turn waits until all others have had theirs (surplus round robin). So an expensive item
delays others once, however many such items its sender has waiting.
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

# What a turn may cost. Small, so that a turn of cheap items is short; an expensive one is paid back over many turns.
TURN_COST: Final = 100

Item = TypeVar("Item")


class Sender(NamedTuple):
    """``project``: "" for all runs whose project is not known yet."""

    project: str
    run: str


class Weight(NamedTuple):
    batches: int
    snapshots: int
    bytes: int


@dataclass(slots=True)
class _Branch(Generic[Item]):
    """All that waits, of one project, or of one run; only a run has items, the others have branches."""

    held: list[int] = field(default_factory=lambda: [0] * len(Weight._fields))
    # What its turn may still cost; below zero after an item that cost more.
    credit: int = TURN_COST
    branches: dict[str, _Branch[Item]] = field(default_factory=dict)
    items: deque[tuple[Item, Weight, int]] = field(default_factory=deque)

    def hold(self, weight: Weight, sign: int) -> None:
        for i, amount in enumerate(weight):
            self.held[i] += sign * amount


class FairQueue(Generic[Item]):
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: _Branch[Item] = _Branch()

    def __len__(self) -> int:
        return self._all.held[0]

    def has_room(self, sender: Sender, room: Sequence[int]) -> bool:
        """Return True if one more item of ``sender`` may wait, where all together may hold ``room``.

        An item counts for all, for its project and for its run, and the three must stay below ``room``. So a run alone
        may fill a third, a project alone half, and what is left is enough for whoever comes next.
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
        """Remove and return the next items: at most ``most``, which together cost ``cost``, or one that costs more."""
        taken: list[Item] = []
        with self._lock:
            # Nobody's turn is looked for beyond it: a sender that is alone now would pay back its debt by that.
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
    """Work that all others would wait for: on the event loop, or with the one lock for writing. At most ``at_once``
    pieces are done at a time, and of all that wait, those of each sender come in turn. With ``pauses``, each piece is
    followed by a pause as long as the piece took, in which the event loop does everything else.
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
            # One that was cancelled while it waited had no turn.
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
