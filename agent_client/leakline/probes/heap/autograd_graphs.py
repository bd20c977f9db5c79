"""Finds storages that autograd graphs keep alive after the program has dropped their tensors, and the longest chains.

A graph may be read only while torch's autograd engine is idle: the engine frees the data saved by graphs, and adds to
gradients, without the interpreter lock, so a concurrent reader would crash the program. Our threads therefore let the
main thread read graphs, between two steps of the program (`on_main_thread`). The interpreter runs such a call at the
points where it would run a signal handler. If the main thread is inside a long C call, the waiting thread gives up and
continues without the result.

Nothing here unpacks a saved tensor, because unpacking would run the program's hooks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar
from weakref import ref

from leakline.probes.heap.tensor_storages import overrides_off, storage_key
from leakline.probes.native_module import native
from leakline.probes.references.frames import no_collection

Result = TypeVar("Result")

_PACKAGE: Final = str(Path(__file__).parents[2])


class _Errand:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._found: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        # If the waiting thread has given up, it keeps the lock forever, and the call must no longer run.
        if not self._turn.acquire(blocking=False):
            return
        call, self._call = self._call, None
        try:
            self._found = call() if call is not None else None
        except Exception as error:
            if not _is_ours(error):
                raise
            # This is the program's thread, so our own errors must not be raised here; the waiting thread raises them
            # instead.
            self._error = error
        finally:
            self._over.set()

    def wait(self, seconds: float) -> Any:
        if not self._over.wait(seconds) and self._turn.acquire(blocking=False):
            self._call = None
            return None
        # The call has already begun, so wait until it is finished.
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._found


def on_main_thread(call: Callable[[], Result], wait_seconds: float) -> Result | None:
    """Run ``call`` on the main thread and return its result, or None if the call does not start in time.

    The result is also None without the native module. The calling thread must not be the main thread, and must hold no
    lock that the main thread may wait for.
    """
    module = native()
    if module is None:
        return None
    errand = _Errand(call)
    if not module.call_on_main_thread(errand.run):
        return None
    return errand.wait(wait_seconds)  # type: ignore[no-any-return]


def _is_ours(error: Exception) -> bool:
    """Return True if our code raised the error, False if a signal handler of the program did."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is None or innermost.tb_frame.f_code.co_filename.startswith(_PACKAGE)


# Limits on the graphs and nodes that one census visits, which takes about 10 ms; the sizes of the other graphs are
# extrapolated. The limits are also low because torch creates a Python object for each saved tensor that is read, and
# keeps the object until the graph is freed.
_GRAPHS_VISITED: Final = 64
# Tensors created one after another often share a graph, so this many neighbours are visited together.
_NEIGHBOURS: Final = 8
_NODES_VISITED: Final = 5_000
# Limits on the walk along chains, which reads no saved tensors and takes about 10 ms.
_CHAINS_WALKED: Final = 512
_LINKS_WALKED: Final = 5_000
# Sequence number of the nodes that add up gradients of leaves, with which every chain ends.
_LEAF: Final = 2**64 - 1


# Every thread in the engine has a frame in one of these modules, or waits for a thread that has such a frame.
_ENGINE: Final = frozenset({"torch.autograd", "torch.autograd.graph"})
# How long one of our threads waits for the main thread to run a call.
_WAIT_SECONDS: Final = 0.25


def while_the_engine_rests(read: Callable[[], Result]) -> Result | None:
    """Call ``read`` on a thread that may read graphs and gradients, and return its result.

    The result is None if graphs cannot be read now, for example because the engine is running.
    """
    if threading.current_thread().name.startswith("leakline-"):
        return on_main_thread(lambda: _unless_it_runs(read), _WAIT_SECONDS)
    return _unless_it_runs(read)


def _unless_it_runs(read: Callable[[], Result]) -> Result | None:
    if _engine_runs():
        return None
    with overrides_off():
        return read()


def _engine_runs() -> bool:
    """Return True if the engine runs on any thread, including this thread (in an autograd hook)."""
    with no_collection():
        return any(map(_is_in_engine, sys._current_frames().values()))


def _is_in_engine(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in _ENGINE:
            return True
        frame = frame.f_back
    return False


@dataclass(frozen=True, slots=True)
class GraphBytes:
    """The bytes held by graphs, and the addresses of the storages found.

    If ``is_whole`` is False, ``bytes`` is extrapolated from these storages.
    """

    bytes: int
    storages: Collection[int]
    is_whole: bool


def graph_bytes(roots: list[Any], known: set[int], kinds: frozenset[type]) -> GraphBytes:
    """Return the bytes of storages held by the graphs of ``roots``, except storages in ``known``.

    Each storage is counted once. If the visit ends early, each remaining graph is assumed to add the average of the
    second half of the visited graphs, so that memory shared by graphs is not multiplied.
    """
    visit = _GraphVisit(set(known), kinds)
    found: list[int] = []
    order = list(_evenly(roots))
    for root in order:
        visit.add(root)
        found.append(visit.bytes)
        if len(found) == _GRAPHS_VISITED or visit.is_spent():
            break
    rest = len(order) - len(found)
    if not rest:
        return GraphBytes(visit.bytes, visit.found, is_whole=True)
    half = len(found) // 2
    added = found[-1] - (found[half - 1] if half else 0)
    scaled = visit.bytes + round(rest * added / (len(found) - half))
    return GraphBytes(scaled, visit.found, is_whole=False)


def graph_storages(root: Any, kinds: frozenset[type]) -> dict[int, int]:
    """Return the address and bytes of every storage held by one tensor's graph."""
    visit = _GraphVisit(set(), kinds)
    visit.add(root)
    return visit.found


# Sequence numbers of a node and of the nodes behind it -> length of its chain, for the newest nodes at the newest
# `longest_chain`. Nothing behind a node ever changes, so the next walk stops there: it walks only what was added since.
# Each thread numbers its nodes, so a node's own number would not be enough.
_known_chains: dict[tuple[int, ...], int] = {}
_first: Final = itemgetter(0)


def longest_chain(roots: list[Any]) -> int | None:
    """Return the number of nodes in the longest chain walked behind any of these tensors, zero if none has a graph.

    This is a lower bound. The result is None if the walk was cut short and proves no more than the walk before, or if
    this version of torch does not number its nodes.
    """
    try:
        with no_collection():
            found, is_whole = _chain_lengths(islice(_evenly(roots), _CHAINS_WALKED))
    except AttributeError:
        return None
    longest = max(found.values(), default=0)
    if is_whole:
        _known_chains.clear()
    elif longest <= max(_known_chains.values(), default=0):
        return None
    _known_chains.update(found)
    return longest


def known_chain(tensor: Any) -> int:
    """Return the length of a tensor's chain if the newest `longest_chain` began with this tensor, otherwise zero."""
    try:
        node = tensor.grad_fn
    except RuntimeError:
        return 0
    if node is None:
        return 0
    behind = [one._sequence_nr() for one, _ in _next_functions(node) if one is not None]
    return _known_chains.get((node._sequence_nr(), *sorted(behind, reverse=True)), 0)


def _chain_lengths(roots: Iterable[Any]) -> tuple[dict[tuple[int, ...], int], bool]:
    """Return the length of each tensor's longest chain by the key of its newest node, and whether all nodes were seen.

    Of the nodes behind a node, the oldest is entered first, because a chain that the program carries along leads into
    the past. A tensor in another one's chain is left out.
    """
    heads = []
    for root in roots:
        # A view whose base was changed in place has no history.
        with suppress(RuntimeError):
            if (node := root.grad_fn) is not None:
                heads.append((node._sequence_nr(), 1, node))
    heads.sort(key=_first, reverse=True)
    seen: set[int] = set()
    found: dict[tuple[int, ...], int] = {}
    for head in heads:
        waiting, longest, newest = [head], 0, None
        while waiting and len(seen) < _LINKS_WALKED:
            number, length, node = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            behind = [
                (one._sequence_nr(), length + 1, one)
                for one, _ in _next_functions(node)
                if one is not None
            ]
            if len(behind) > 1:
                behind.sort(key=_first, reverse=True)
            key = (number, *map(_first, behind))
            newest = newest or key
            if key in _known_chains:
                longest = max(longest, length - 1 + _known_chains[key])
                continue
            longest = max(longest, length + bool(behind))
            waiting += [one for one in behind if one[0] != _LEAF]
        if newest is not None:
            found[newest] = longest
    return found, len(seen) < _LINKS_WALKED


class GraphSample:
    """A sample of tensors with graphs: weak references to every n-th run of neighbours.

    Tensors are added a few at a time; n doubles when the sample is too large.
    """

    def __init__(self) -> None:
        self._runs: dict[int, list[ref[Any]]] = {}
        self._run_count = 0
        self._every = 1
        self._root_count = 0

    def add(self, roots: Sequence[Any]) -> None:
        for start in range(0, len(roots), _NEIGHBOURS):
            self._add_run(roots[start : start + _NEIGHBOURS])

    def _add_run(self, roots: Sequence[Any]) -> None:
        number = self._run_count
        self._run_count += 1
        self._root_count += len(roots)
        if number % self._every:
            return
        self._runs[number] = [ref(root) for root in roots]
        if len(self._runs) > 2 * _GRAPHS_VISITED // _NEIGHBOURS:
            self._every *= 2
            self._runs = {n: run for n, run in self._runs.items() if n % self._every == 0}

    def bytes(self, known: set[int], kinds: frozenset[type]) -> GraphBytes:
        """Return the `GraphBytes` of all added tensors; freed tensors add nothing."""
        visit = _GraphVisit(set(known), kinds)
        added: list[tuple[int, int]] = []
        for run in self._runs.values():
            before = visit.bytes
            for weak in run:
                root = weak()
                if root is not None:
                    visit.add(root)
                del root
            added.append((len(run), visit.bytes - before))
            if visit.is_spent():
                break
        rest = self._root_count - sum(roots for roots, _ in added)
        # Each remaining graph is assumed to add the average of the later graphs, so that memory shared by graphs is not
        # multiplied.
        later = added[len(added) // 2 :]
        roots = sum(count for count, _ in later)
        scaled = rest * sum(size for _, size in later) / roots if roots else 0
        is_whole = not rest and not visit.is_spent()
        return GraphBytes(visit.bytes + round(scaled), visit.found, is_whole)


class _GraphVisit:
    """A walk over graphs that visits each node once.

    The walk keeps all visited nodes alive, because another object could reuse the address of a freed node.
    """

    def __init__(self, storages: set[int], kinds: frozenset[type]) -> None:
        self.bytes = 0
        self.found: dict[int, int] = {}
        self._storages = storages
        self._kinds = kinds
        self._nodes: dict[int, Any] = {}
        self._saved_names: dict[type, tuple[str, ...]] = {}

    def is_spent(self) -> bool:
        return len(self._nodes) >= _NODES_VISITED

    def add(self, root: Any) -> None:
        try:
            waiting = [root.grad_fn]
        except RuntimeError:
            # The tensor is a view without a history, and its base was changed in place.
            return
        while waiting and not self.is_spent():
            node = waiting.pop()
            if node is None or id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            for saved in self._saved(node):
                self._add_saved(saved)
            waiting.extend(pair[0] for pair in _next_functions(node))

    def _saved(self, node: Any) -> Iterator[Any]:
        """Yield a node's saved tensors in their packed form."""
        base = _function_base()
        for name in self._names(type(node)):
            try:
                # A Python function's node belongs to the program, so attributes that its class defines are bypassed.
                value = (
                    getattr(base, name).__get__(node) if name == _PYTHON else getattr(node, name)
                )
            except RuntimeError:
                # The saved tensors were freed by backward().
                continue
            yield from value if type(value) is tuple else (value,)

    def _names(self, kind: type) -> tuple[str, ...]:
        names = self._saved_names.get(kind)
        if names is None:
            if _function_base() in _mro_of(kind):
                names = (_PYTHON,)
            else:
                names = tuple(n for n in type.__dir__(kind) if n.startswith("_raw_saved_"))
            self._saved_names[kind] = names
        return names

    def _add_saved(self, saved: Any) -> None:
        tensor = getattr(saved, "data", None)
        # If the program has installed hooks, `data` is the object that the pack hook returned.
        if type(tensor) not in self._kinds:
            return
        key = storage_key(tensor)
        if key is not None and key[0] not in self._storages:
            self._storages.add(key[0])
            self.found[key[0]] = key[1]
            self.bytes += key[1]


_PYTHON: Final = "_raw_saved_tensors"


def _function_base() -> Any:
    return getattr(getattr(sys.modules.get("torch"), "_C", None), "_FunctionBase", None)


_mro_of: Final = type.__dict__["__mro__"].__get__


def _next_functions(node: Any) -> Iterable[Any]:
    base = _function_base()
    if base in _mro_of(type(node)):
        return base.next_functions.__get__(node) or ()
    return node.next_functions or ()


def _evenly(roots: list[Any]) -> Iterator[Any]:
    """Yield all ``roots`` in runs of neighbours, in an order that covers the list evenly from the start."""
    starts = range(0, len(roots), _NEIGHBOURS)
    step = max(1, len(starts) * _NEIGHBOURS // _GRAPHS_VISITED)
    for first in range(step):
        for start in starts[first::step]:
            yield from roots[start : start + _NEIGHBOURS]
