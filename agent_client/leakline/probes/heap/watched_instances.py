"""Created and freed instances of watched classes, and the classes that are known to pile up.

Counting creations exactly would mean to patch the class. So: how many are alive is exact (`ClassCounts`); deaths are
counted by weak references to the instances we know of; what was created follows from both, and is a lower bound, for an
instance may be born and die between two looks.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from leakline.probes.references.class_names import type_name
from leakline.snapshot import Number

# Instances followed in all: at 170 bytes each (a weak reference and a place in a dictionary) 3.4 MB.
FOLLOWED_LIMIT: Final = 20_000

# Classes that pile up in training programs by their full names; a name that is not loaded costs nothing.
_PILING: Final = (
    "threading.Thread", "threading.Timer", "_asyncio.Task", "asyncio.events.TimerHandle",
    "concurrent.futures._base.Future", "concurrent.futures.thread.ThreadPoolExecutor",
    "concurrent.futures.process.ProcessPoolExecutor", "multiprocessing.context.Process",
    "multiprocessing.context.SpawnProcess", "multiprocessing.context.ForkProcess", "multiprocessing.pool.Pool",
    "multiprocessing.queues.Queue", "multiprocessing.shared_memory.SharedMemory", "subprocess.Popen",
    "socket.socket", "tempfile._TemporaryFileWrapper", "tempfile.TemporaryDirectory", "sqlite3.Connection",
    "logging.StreamHandler", "logging.FileHandler", "logging.handlers.RotatingFileHandler",
    "logging.handlers.MemoryHandler", "logging.handlers.QueueHandler", "weakref.finalize",
    "torch.utils.hooks.RemovableHandle", "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter", "torch.optim.adam.Adam", "torch.optim.adamw.AdamW",
    "torch.optim.sgd.SGD", "torch.optim.rmsprop.RMSprop", "torch.cuda.streams.Stream", "torch.cuda.streams.Event",
    "torch.cuda.graphs.CUDAGraph", "torch.utils.tensorboard.writer.SummaryWriter",
    "tensorboardX.writer.SummaryWriter", "matplotlib.figure.Figure", "PIL.Image.Image", "h5py._hl.files.File",
    "h5py._hl.dataset.Dataset", "tqdm.std.tqdm", "requests.sessions.Session", "keras.src.models.sequential.Sequential",
    "keras.src.models.functional.Functional",
)  # fmt: skip
# The same of types without reference counts of their instances (before 3.12): only a census tells.
_PILING_STATIC: Final = frozenset({
    "_io.FileIO", "_io.TextIOWrapper", "_io.BufferedReader", "_io.BufferedWriter", "_io.BytesIO", "_io.StringIO",
    "_socket.socket", "mmap.mmap", "select.epoll",
})  # fmt: skip


def known_to_pile_up() -> tuple[str, ...]:
    """Full names of classes whose counts are worth telling whenever their modules are loaded."""
    return tuple(name for name in _PILING if name.rpartition(".")[0] in sys.modules)


def is_known_to_pile_up(name: str) -> bool:
    """Return True if this class is one of those."""
    return name in _PILING


def piling_in_census(names: Mapping[str, int]) -> dict[str, Number]:
    """``type.<name>.count`` of types known to pile up that only a census counts: open files, sockets, memory maps."""
    return {f"type.{name}.count": n for name, n in names.items() if name in _PILING_STATIC}


class _Reference(ref[Any]):
    """A weak reference that knows the address of what it led to."""

    __slots__ = ("address",)

    address: int


@dataclass(slots=True)
class _Followed:
    references: dict[int, _Reference] = field(default_factory=dict)  # by address
    # What has died since the last look. The callback is its `append` itself: C code, that any thread may run at any
    # time, also while the interpreter ends, and that has nothing to raise.
    dead: deque[Any] = field(default_factory=deque)
    died: int = 0  # and is not booked yet
    alive: int | None = None
    created: int = 0
    freed: int = 0


class WatchedClasses:
    """Running totals of created and freed instances of the classes that somebody watches; lower bounds both.

    ``note`` new instances as often as is cheap, ``read`` at phase ends. At most ``FOLLOWED_LIMIT`` instances are
    followed in all; the series of a class that would need more are absent.
    """

    def __init__(self, limit: int = FOLLOWED_LIMIT) -> None:
        self._limit = limit
        # None: the instances are too many, or allow no weak references.
        self._followed: dict[str, _Followed | None] = {}

    def watch(self, name: str) -> None:
        """Follow the class of this full name from now on."""
        self._followed.setdefault(name, _Followed())

    @property
    def names(self) -> tuple[str, ...]:
        """The classes that are followed."""
        return tuple(name for name, one in self._followed.items() if one is not None)

    def note(self, instances: Mapping[type, Sequence[object]]) -> None:
        """Instances of watched classes, old or new, in any order; others are passed over."""
        for cls, ones in instances.items():
            name = type_name(cls)
            followed = self._followed.get(name)
            if followed is None:
                continue
            _bury(followed)
            if not self._follow(followed, ones):
                self._followed[name] = None

    def read(self, counts: Mapping[str, int]) -> dict[str, Number]:
        """``type.<name>.created`` and ``.freed`` since the class was first counted.

        ``counts`` are the instances alive now by type name, exact (``ClassCounts.read_names``); a class that is not
        among them is absent this time. ``created - freed`` is always the change of the count.
        """
        samples: dict[str, Number] = {}
        for name, followed in self._followed.items():
            if followed is None:
                continue
            _bury(followed)
            alive = counts.get(name)
            if alive is None:
                continue
            if followed.alive is not None:
                born = alive - followed.alive + followed.died
                # Below zero, more died than those we knew.
                followed.created += max(0, born)
                followed.freed += followed.died + max(0, -born)
                samples[f"type.{name}.created"] = followed.created
                samples[f"type.{name}.freed"] = followed.freed
            followed.alive, followed.died = alive, 0
        return samples

    def _follow(self, followed: _Followed, ones: Iterable[object]) -> bool:
        """Return False if some of the instances cannot be followed."""
        room = self._limit - sum(len(one.references) for one in self._followed.values() if one)
        for one in ones:
            known = followed.references.get(id(one))
            # An address may be new again: its first owner has died since we last looked.
            if known is not None and known() is one:
                continue
            if room <= 0:
                return False
            try:
                reference = _Reference(one, followed.dead.append)
            except TypeError:
                return False
            reference.address = id(one)
            followed.references[id(one)] = reference
            room -= known is None
        return True


def _bury(followed: _Followed) -> None:
    """Forget those that died since the last time, and count them."""
    while followed.dead:
        reference = followed.dead.popleft()
        address = reference.address
        followed.died += 1
        if followed.references.get(address) is reference:
            del followed.references[address]
