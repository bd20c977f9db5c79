"""Counts of created and freed instances of watched classes, and a list of classes that tend to pile up.

Counting creations exactly would require patching the class. Instead, `ClassCounts` provides the exact number of live
instances, and weak references to known instances count freed instances. The number of creations follows from both
numbers. It is a lower bound, because an instance may be created and freed between two scans.

`AgeSamples` keeps weak references to a few instances of each class, old and new. The search for holders starts from
these instances.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from leakline.probes.references.class_names import hashes_plainly, type_name
from leakline.probes.references.referrers import native_look
from leakline.snapshot import Number

# Limit on the instances followed in total: 3.4 MB at 170 bytes each (a weak reference and a dictionary entry).
FOLLOWED_LIMIT: Final = 20_000

# Full names of classes that pile up in training programs. A class that is not loaded costs nothing.
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
# Types that pile up but are counted only by a census, because before 3.12 their instances hold no reference to the
# type.
_PILING_STATIC: Final = frozenset({
    "_io.FileIO", "_io.TextIOWrapper", "_io.BufferedReader", "_io.BufferedWriter", "_io.BytesIO", "_io.StringIO",
    "_socket.socket", "mmap.mmap", "select.epoll",
})  # fmt: skip


def known_to_pile_up() -> tuple[str, ...]:
    """Return the full names of classes in loaded modules that tend to pile up."""
    return tuple(name for name in _PILING if name.rpartition(".")[0] in sys.modules)


def is_known_to_pile_up(name: str) -> bool:
    """Return True if the class with this full name tends to pile up."""
    return name in _PILING


def piling_in_census(names: Mapping[str, int]) -> dict[str, Number]:
    """Return ``type.<name>.count`` of open files, sockets and memory maps.

    These types tend to pile up, and only a census counts them.
    """
    return {f"type.{name}.count": n for name, n in names.items() if name in _PILING_STATIC}


class _Reference(ref[Any]):
    """A weak reference that keeps the address of its object."""

    __slots__ = ("address",)

    address: int


@dataclass(slots=True)
class _Followed:
    references: dict[int, _Reference] = field(default_factory=dict)  # by address
    # References to objects freed since the last check. Their callback is `append` itself, which is implemented in C and
    # raises nothing, because any thread may run it at any time, even at interpreter exit.
    dead: deque[Any] = field(default_factory=deque)
    died: int = 0  # freed instances not yet added to `freed`
    alive: int | None = None
    created: int = 0
    freed: int = 0


class WatchedClasses:
    """Running totals of created and freed instances of watched classes; both totals are lower bounds.

    Call ``note`` with new instances whenever this is cheap, and ``read`` at generation ends. At most ``FOLLOWED_LIMIT``
    instances are followed in total; a class that would exceed this limit has no series.
    """

    def __init__(self, limit: int = FOLLOWED_LIMIT) -> None:
        self._limit = limit
        # None means that the class has too many instances, or that they do not support weak references.
        self._followed: dict[str, _Followed | None] = {}

    def watch(self, name: str) -> None:
        """Follow the class with this full name from now on."""
        self._followed.setdefault(name, _Followed())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the followed classes."""
        return tuple(name for name, one in self._followed.items() if one is not None)

    def note(self, instances: Mapping[type, Sequence[object]]) -> None:
        """Follow known or new instances, in any order; instances of unwatched classes are ignored."""
        for cls, ones in instances.items():
            name = type_name(cls)
            followed = self._followed.get(name)
            if followed is None:
                continue
            _bury(followed)
            if not self._follow(followed, ones):
                self._followed[name] = None

    def read(self, counts: Mapping[str, int]) -> dict[str, Number]:
        """Return ``type.<name>.created`` and ``.freed`` since the class was first counted.

        ``counts`` contains the exact numbers of live instances by type name (``ClassCounts.read_names``). A class
        without an exact count is left out of this result. ``created - freed`` is always the change in the count.
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
                # A negative number means that instances that we did not follow have also been freed.
                followed.created += max(0, born)
                followed.freed += followed.died + max(0, -born)
                samples[f"type.{name}.created"] = followed.created
                samples[f"type.{name}.freed"] = followed.freed
            followed.alive, followed.died = alive, 0
        return samples

    def _follow(self, followed: _Followed, ones: Iterable[object]) -> bool:
        """Follow these instances. Return False if the limit is reached or they do not support weak references."""
        room = self._limit - sum(len(one.references) for one in self._followed.values() if one)
        for one in ones:
            known = followed.references.get(id(one))
            # If the followed instance was freed since the last call, its address may belong to a new instance.
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
    """Count the instances that were freed since the last call, and forget the references to them."""
    while followed.dead:
        reference = followed.dead.popleft()
        address = reference.address
        followed.died += 1
        if followed.references.get(address) is reference:
            del followed.references[address]


CLASSES_LIMIT: Final = 32
INSTANCES_OF_A_GENERATION: Final = 8
# Limit on the weak references of one class, at 72 bytes each without the lists that hold them.
REFERENCES_OF_A_CLASS: Final = 96
_PICK_SECONDS: Final = 0.0005

Instances = Mapping[type, Sequence[object]]


class _KnownReference(ref[Any]):
    """A weak reference of our own type, because a growing number of plain weak references would look like a leak."""

    __slots__ = ()


@dataclass(slots=True)
class _Sample:
    """References to instances of one class, grouped by the generation in which they were first seen."""

    cohorts: list[list[ref[Any]]] = field(default_factory=list)  # oldest first
    # The references by the instance's address, including some that were dropped from the cohorts.
    known: dict[int, ref[Any]] = field(default_factory=dict)

    def note(self, newest: Sequence[object]) -> None:
        """Add instances from the start of ``newest`` until a known instance follows.

        Raises TypeError if the instances do not support weak references.
        """
        new: list[ref[Any]] = [_KnownReference(one) for one in self._until_known(newest)]
        if not new:
            return
        self.cohorts.append(new)
        self.known.update(zip(map(id, newest), new, strict=False))
        if sum(map(len, self.cohorts)) > REFERENCES_OF_A_CLASS:
            self._thin_out()

    def alive(self) -> list[ref[Any]]:
        return [one for cohort in self.cohorts for one in cohort if one() is not None]

    def _until_known(self, newest: Sequence[object]) -> Iterator[object]:
        for one in newest[:INSTANCES_OF_A_GENERATION]:
            reference = self.known.get(id(one))
            if reference is not None and reference() is one:
                return
            yield one

    def _thin_out(self) -> None:
        """Halve the largest cohorts. If each has only one instance left, drop every other older cohort."""
        alive = ([one for one in cohort if one() is not None] for cohort in self.cohorts)
        cohorts = [cohort for cohort in alive if cohort]
        # Reduce the sample to three quarters of the limit, so that thinning is not needed every time.
        excess = sum(map(len, cohorts)) - REFERENCES_OF_A_CLASS * 3 // 4
        for cohort in sorted(cohorts, key=len, reverse=True):
            if excess <= 0:
                break
            excess -= len(cohort) // 2
            del cohort[(len(cohort) + 1) // 2 :]
        if excess > 0:
            older = len(cohorts) // 2
            cohorts[:older] = cohorts[:older:2]
        self.cohorts = cohorts
        self.known = {id(one): weak for weak in self.alive() if (one := weak()) is not None}


class AgeSamples:
    """Weak references to old and new instances of at most ``CLASSES_LIMIT`` classes."""

    def __init__(self) -> None:
        # None means that the instances do not support weak references.
        self._classes: dict[str, _Sample | None] = {}

    def note(self, instances: Instances) -> None:
        """Add the newest instances of each class, newest first, at a generation end."""
        for cls, newest in instances.items():
            name = type_name(cls)
            if name not in self._classes and len(self._classes) < CLASSES_LIMIT:
                self._classes[name] = _Sample()
            sample = self._classes.get(name)
            if sample is None:
                continue
            try:
                sample.note(newest)
            except TypeError:
                # The class has __slots__ without __weakref__.
                self._classes[name] = None

    def instances(self, cls: type) -> list[ref[Any]]:
        """Return weak references to instances of a class, oldest first."""
        sample = self._classes.get(type_name(cls))
        return [one for one in (sample.alive() if sample is not None else []) if type(one()) is cls]


def pick_newest(
    types: Sequence[type], each: int = INSTANCES_OF_A_GENERATION, seconds: float = _PICK_SECONDS
) -> dict[type, list[Any]]:
    """Return the newest instances of each class, newest first.

    The search stops after ``seconds`` and returns the instances found so far. Without the native module, the result is
    empty. The result holds the program's objects; drop it before the program continues.
    """
    module = native_look()
    plain = tuple(cls for cls in types if hashes_plainly(cls))
    if module is None or not plain:
        return {}
    found = module.newest_instances(plain, each, seconds)
    return {cls: ones for cls, ones in zip(plain, found, strict=True) if ones}
