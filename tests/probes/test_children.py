"""Child processes by proportional and unique size and by role, each with its own series."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from leakline.probes import child_memory
from leakline.probes.child_memory import Child, ChildSizes, Size, read_children
from leakline.probes.child_names import (
    NAMES_LIMIT,
    REPORTED_LIMIT,
    ChildNames,
    Wanted,
    wanted_of_command,
)
from leakline.snapshot import Number

MIB = 2**20
WAITS = "import sys; print('up', flush=True); sys.stdin.read()"
# Starts another process that waits, and waits for it.
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[-1]])"
CONTEXT = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def only_new_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore descendants from before the test: databases and servers of other tests run until the session ends."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    processes, descendants = child_memory._processes, psutil.Process.children

    def new_descendants(process: psutil.Process, recursive: bool) -> list[psutil.Process]:
        return [
            child
            for child in descendants(process, recursive)
            if before.isdisjoint([child.pid, *(parent.pid for parent in child.parents())])
        ]

    monkeypatch.setattr(
        child_memory,
        "_processes",
        lambda proc: (one for one in processes(proc) if one.pid not in before),
    )
    monkeypatch.setattr(psutil.Process, "children", new_descendants)


@contextmanager
def waiting(code: str = WAITS, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a subprocess; it has announced that it runs, and ends when its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", code, WAITS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.communicate("")


def roles(samples: dict[str, Number]) -> dict[str, Number]:
    return {
        name.split(".")[1]: value
        for name, value in samples.items()
        if name.count(".") == 2 and name.endswith(".count")
    }


def own_proportional_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def test_without_procfs_and_psutil_children_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert read_children(tmp_path) == {}


def test_without_procfs_children_are_counted_by_psutil_without_roles(tmp_path: Path) -> None:
    with waiting():
        samples = read_children(tmp_path)
    assert {"children.count", "children.uss_bytes"} == {n for n in samples if n.count(".") == 1}
    assert samples["children.count"] == 1
    (own,) = (name for name in samples if name.count(".") > 1)
    assert own.startswith("children.process.python")
    assert samples[own] == samples["children.uss_bytes"] > 0


def test_without_children_all_samples_are_zero() -> None:
    assert read_children() == {
        "children.count": 0, "children.pss_bytes": 0, "children.uss_bytes": 0, "children.rss_bytes": 0,
    }  # fmt: skip


def test_a_subprocess_has_the_role_other() -> None:
    with waiting():
        samples = read_children()
    assert roles(samples) == {"others": 1}
    assert samples["children.others.uss_bytes"] == samples["children.uss_bytes"] > 0
    assert samples["children.others.pss_bytes"] == samples["children.pss_bytes"]
    assert samples["children.rss_bytes"] > samples["children.pss_bytes"]


def test_processes_started_with_their_own_rank_are_ranks() -> None:
    with waiting(RANK="0", LOCAL_RANK="0"), waiting(RANK="1", LOCAL_RANK="1"):
        assert roles(read_children()) == {"ranks": 2}


def test_a_rank_that_ends_while_it_is_read_is_still_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting(RANK="7") as rank:

        def ends() -> dict[int, str]:
            # The process ends between reading the roles and reading the names: its environment is gone.
            rank.kill()
            os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
            return {}

        monkeypatch.setattr("leakline.probes.child_memory.given_names", ends)
        samples = read_children()
    assert roles(samples) == {"ranks": 1}
    assert samples["children.process.rank_7.uss_bytes"] == samples["children.uss_bytes"] > 0


def test_processes_started_by_a_rank_are_our_children_but_not_ranks() -> None:
    with waiting(STARTS, RANK="3"):
        samples = read_children()
    assert roles(samples) == {"ranks": 1, "others": 1}
    assert samples["children.count"] == 2


def test_children_that_inherit_a_rank_are_not_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with waiting(), waiting(RANK="7"):
        assert roles(read_children()) == {"others": 1, "ranks": 1}


class Squares:
    """A data set in the form that torch expects."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return index * index


def test_data_loader_workers_are_recognized() -> None:
    import torch

    loader: Any = torch.utils.data.DataLoader(
        Squares(), num_workers=2, batch_size=4, persistent_workers=True  # type: ignore[arg-type]
    )  # fmt: skip
    with waiting():
        items = iter(loader)
        # The first batch comes from a worker that has set its name; the second from the other one.
        next(items)
        next(items)
        samples = read_children()
        del items
        loader._iterator = None
    assert roles(samples)["loader_workers"] == 2
    assert roles(samples)["others"] >= 1
    assert samples["children.loader_workers.pss_bytes"] > 0
    for name in ("loader_worker-0", "loader_worker-1"):
        assert samples[f"children.process.{name}.uss_bytes"] > 0
    assert samples["children.count"] == sum(roles(samples).values())
    parts = sum(samples[f"children.{role}.pss_bytes"] for role in roles(samples))
    assert parts == samples["children.pss_bytes"]


def _hold(shared: Any, ready: Any, release: Any) -> None:
    # Reads every page, so that each worker has the entire array resident.
    ready.put(float(shared.sum()))
    release.wait(60)


def test_an_array_shared_with_forked_workers_is_counted_once() -> None:
    shared = np.ones(96 * MIB // 8)
    ready, release = CONTEXT.SimpleQueue(), CONTEXT.Event()
    alone = own_proportional_bytes()
    workers = [CONTEXT.Process(target=_hold, args=(shared, ready, release)) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in workers:
            assert ready.get() == shared.size
        samples = read_children()
        together = own_proportional_bytes() + samples["children.pss_bytes"]
    finally:
        release.set()
        for worker in workers:
            worker.join()
    assert roles(samples) == {"others": 3}
    # Resident in four processes: 384 MiB when added up, but the proportional sizes count it once.
    assert together - alone < shared.nbytes
    assert samples["children.uss_bytes"] < shared.nbytes
    assert samples["children.pss_bytes"] > shared.nbytes / 2
    assert read_children()["children.count"] == 0


# -- one series per child


def _collect(grow: Any, grown: Any) -> None:
    kept = []
    while size := grow.recv():
        kept.append(bytearray(b"x") * size)
        grown.send(len(kept))


class Collector:
    """A child process that keeps as much memory as requested."""

    def __init__(self, name: str | None) -> None:
        there, self._grow = CONTEXT.Pipe(False)
        self._grown, here = CONTEXT.Pipe(False)
        self.process = CONTEXT.Process(target=_collect, args=(there, here), name=name)
        self.process.start()
        self.keep(1)

    def keep(self, size: int) -> None:
        self._grow.send(size)
        assert self._grown.poll(30)
        self._grown.recv()

    def end(self) -> None:
        self._grow.send(0)
        self.process.join()


@contextmanager
def collectors(*names: str | None) -> Iterator[list[Collector]]:
    with ExitStack() as stack:
        started = []
        for name in names:
            started.append(Collector(name))
            stack.callback(started[-1].end)
        yield started


def one_by_one(samples: dict[str, Number], what: str = "uss_bytes") -> dict[str, Number]:
    head, tail = "children.process.", f".{what}"
    return {
        name.removeprefix(head).removesuffix(tail): value
        for name, value in samples.items()
        if name.startswith(head) and name.endswith(tail)
    }


def parts_are_the_whole(samples: dict[str, Number]) -> bool:
    return all(
        sum(one_by_one(samples, what).values()) == samples[f"children.{what}"]
        for what in ("pss_bytes", "uss_bytes")
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3.12\0-u\0/home/me/train.py\0--token=secret\0", "train"),
        ("python\0-c\0print(secret)\0", "python"),
        ("python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0", "resource_tracker"),
        ("", "comm"),
        ("python\0-Bucimport x; connect('password=hunter2')\0", "python"),
        ("python\0-c\0\0--token=secret\0", "python"),
        ("python\0-\0secret\0", "python"),
        (": secret\0", ""),
        ("python\0-i\0", "python"),
        ("python\0-um\0http.server\0--bind\0secret\0", "http.server"),
        ("python\0-Wignore\0-uX\0faulthandler\0/home/me/train.py\0-c\0secret\0", "train"),
        ("python\0--check-hash-based-pycs\0always\0--\0train.py\0secret\0", "train"),
        ("myapp: worker --api-key=abcdef123 (run)\0\0\0", "myapp"),
        ("/opt/my/app --upload=/home/me/secret\0", "app"),
        ("python3 -c connect('password=hunter2')\0", "python"),
    ],
)  # fmt: skip
def test_code_titles_and_option_values_are_not_used_as_names(command: str, name: str) -> None:
    assert wanted_of_command(command.encode(), b"comm") == Wanted(name, 1)


def test_only_the_series_of_the_growing_child_grows() -> None:
    names = ChildNames()
    with collectors("collector-a", "collector-b") as (_, b):
        samples = read_children(names=names)
        before = one_by_one(samples)
        b.keep(32 * MIB)
        after = one_by_one(read_children(names=names))
    assert set(before) == {"collector-a", "collector-b"}
    assert parts_are_the_whole(samples)
    assert after["collector-b"] - before["collector-b"] > 31 * MIB
    assert after["collector-a"] - before["collector-a"] < 4 * MIB


def test_a_free_name_is_reused_and_living_children_keep_theirs() -> None:
    names = ChildNames()
    for _ in range(2):
        # Each has a higher number in the program itself.
        with collectors(None) as (stays,):
            first = Collector(None)
            told = one_by_one(read_children(names=names))
            assert set(told) == {"ForkProcess-1", "ForkProcess-2"}
            stays.keep(16 * MIB)
            first.end()
            samples = one_by_one(read_children(names=names))
        assert set(samples) == {"ForkProcess-1"}
        assert samples["ForkProcess-1"] > 16 * MIB
        read_children(names=names)


def test_children_with_equal_names_or_dots_get_distinct_series() -> None:
    with collectors("actor", "actor", "v1.2", "other"):
        samples = read_children()
    assert set(one_by_one(samples)) == {"actor", "actor-2", "v1_2", "other-2"}


def test_only_the_largest_children_have_series_and_the_rest_is_summed() -> None:
    names = ChildNames()
    with collectors(*(f"actor-{i}" for i in range(REPORTED_LIMIT + 3))) as children:
        children[-1].keep(24 * MIB)
        samples = read_children(names=names)
        assert read_children(names=names).keys() == samples.keys(), "the named ones stay the same"
    told = one_by_one(samples)
    assert len(told) == REPORTED_LIMIT + 1
    assert samples["children.process.other.count"] == 3
    assert told[f"actor-{REPORTED_LIMIT + 2}"] > 24 * MIB
    # The named ones and the rest add up to all children.
    assert parts_are_the_whole(samples)


def test_the_number_of_child_names_is_bounded() -> None:
    names = ChildNames()
    told = {names.name(i, partial(Wanted, f"job-{i}")) for i in range(3 * NAMES_LIMIT)}
    assert len(told - {None}) == NAMES_LIMIT
    names.keep([])
    assert names.name("new", lambda: Wanted("job-5")) == "job-5"
    assert names.name("newer", lambda: Wanted("job-unheard-of")) is None


def test_children_without_a_name_are_not_queried_at_each_reading() -> None:
    names, asked, living = ChildNames(), list[int](), range(500)

    def wanted(child: int) -> Wanted:
        asked.append(child)
        # There are more kinds than names, so that some names are free while other children have none.
        return Wanted(f"job-{child}" if child % 2 else "worker", None if child % 2 else 1)

    def read(living: Iterable[int]) -> list[str]:
        names.keep(living)
        found = [names.name(child, partial(wanted, child)) for child in living]
        return [name for name in found if name is not None]

    first = read(living)
    assert len(set(first)) == len(first) == NAMES_LIMIT
    assert len(asked) == NAMES_LIMIT
    assert read(living) == first
    # The first ten have ended: each new child is queried once, and names of its kind are free.
    newer = range(10, 510)
    assert len(read(newer)) == NAMES_LIMIT - 5
    assert read(newer) == read(newer)
    assert asked == [*range(NAMES_LIMIT), *range(500, 510)]


def test_the_command_of_a_child_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names, asked = ChildNames(), list[bytes]()

    def asking(command: bytes, name: bytes) -> Wanted:
        asked.append(command)
        return wanted_of_command(command, name)

    monkeypatch.setattr("leakline.probes.child_memory.wanted_of_command", asking)
    with waiting():
        for _ in range(5):
            assert set(one_by_one(read_children(names=names))) == {"python-1"}
    assert len(asked) == 1


# -- sizes: read exactly in turns, and estimated from anonymous memory in between

PAGE = os.sysconf("SC_PAGE_SIZE")


class Processes:
    """Processes by id and resident pages; each exact reading takes 10 ms."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.seconds, self.read = proc, 0.0, list[int]()
        self.exact: dict[int, Size] = {}
        self.sizes = ChildSizes(proc, self._read, lambda: self.seconds)
        self.set(1, 100, 0)

    def set(self, pid: int, anonymous: int = 120, unique: int = 20) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "statm").write_text(f"999 {anonymous + 7} 7 0 0 0 0\n")
        self.exact[pid] = 2 * unique * PAGE, unique * PAGE

    def _read(self, pid: int) -> Size | None:
        self.seconds += 0.01
        self.read.append(pid)
        return self.exact.get(pid)

    def pages(self, *pids: int, seconds: float | None = 0.0) -> dict[int, int | None]:
        """Return the reported pages of each process, exact as far as ``seconds`` allow."""
        sizes = self.sizes.read([Child(pid, pid, 1, b"python") for pid in pids], seconds)
        assert sizes is not None
        return {pid: None if size is None else size[1] // PAGE for pid, size in sizes.items()}


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_without_a_limit_every_child_is_read_exactly(processes: Processes) -> None:
    for pid in (2, 3):
        processes.set(pid, 120, 20 + pid)
    assert processes.pages(2, 3, 4, seconds=None) == {2: 22, 3: 23, 4: None}
    assert sorted(processes.read) == [2, 3, 4]


def test_an_unread_size_follows_anonymous_memory(processes: Processes) -> None:
    processes.set(2)
    processes.pages(2, seconds=None)
    processes.set(2, 150, 999)
    assert processes.pages(2) == {2: 50}
    processes.set(2, 90, 999)
    assert processes.pages(2) == {2: 0}, "no size is below zero"


def test_a_new_child_is_estimated_from_another_of_its_name(
    processes: Processes,
) -> None:
    processes.set(2, 110, 20)
    processes.pages(2, seconds=None)
    # The parent has grown by half, and so has its memory shared with a new child: 90 pages until then.
    processes.set(1, 150, 0)
    processes.set(3, 135 + 40, 999)
    assert processes.pages(2, 3) == {2: 20, 3: 40}


@pytest.mark.parametrize(
    ("pids", "seconds", "times", "read"),
    [((2, 3, 4), 0.011, 4, [2, 3, 4, 2]), ((2,), 0.003, 12, [2, 2, 2])],
    ids=["what was read longest ago is read first", "time that is not spent counts later"],
)
def test_children_are_read_in_turns(
    pids: tuple[int, ...], seconds: float, times: int, read: list[int], processes: Processes
) -> None:
    for pid in pids:
        processes.set(pid)
    processes.pages(*pids, seconds=None)
    processes.read.clear()
    for _ in range(times):
        processes.pages(*pids, seconds=seconds)
    assert processes.read == read


def test_the_total_is_unknown_while_one_size_is_unknown(processes: Processes) -> None:
    names = [Child(pid, pid, 1, str(pid).encode()) for pid in range(2, 14)]
    for child in names:
        processes.set(child.pid)
    assert processes.sizes.read(names, 0.0) is None
    assert processes.sizes.read(names, 0.1) is not None


def test_a_child_whose_memory_cannot_be_read_has_unknown_size(
    processes: Processes,
) -> None:
    processes.set(2)
    processes.set(3)
    processes.pages(2, 3, seconds=None)
    (processes.proc / "3" / "statm").unlink()
    assert processes.pages(2, 3) == {2: 20, 3: None}
