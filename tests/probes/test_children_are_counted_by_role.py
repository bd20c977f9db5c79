"""Children by proportional and unique size, and by what they are there for, with real processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakline.probes.children import read_children
from leakline.snapshot import Number

MIB = 2**20
WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@contextmanager
def waiting(code: str = WAITS, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A subprocess that says when it is up and ends when its input does."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
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


def test_without_procfs_and_psutil_nothing_is_known_of_children(
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


def test_children_are_counted_with_what_is_theirs_alone() -> None:
    ballast = bytearray(b"y") * (48 * MIB)
    ready, write_ready = os.pipe()
    release, write_release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_ready, b"1")
        os.read(release, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        samples = read_children()
        # The ballast is shared with us: resident in the child, but not its own.
        assert samples["children.count"] == 1
        assert samples["children.uss_bytes"] < len(ballast)
        assert samples["children.pss_bytes"] >= samples["children.uss_bytes"]
    finally:
        os.write(write_release, b"1")
        os.waitpid(pid, 0)
    assert read_children()["children.count"] == 0


def test_grandchildren_belong_to_the_children() -> None:
    inner = "import sys; sys.stdin.read()"
    outer = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]]);"
        "print('up', flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer, inner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert read_children()["children.count"] == 2
        child.communicate("")


def test_a_subprocess_is_one_of_the_others() -> None:
    with waiting():
        samples = read_children()
    assert roles(samples) == {"others": 1}
    assert samples["children.others.uss_bytes"] == samples["children.uss_bytes"] > 0
    assert samples["children.others.pss_bytes"] == samples["children.pss_bytes"]


def test_a_role_that_no_child_has_is_absent() -> None:
    assert read_children() == {
        "children.count": 0, "children.pss_bytes": 0, "children.uss_bytes": 0,
    }  # fmt: skip


def test_processes_started_with_a_rank_of_their_own_are_ranks() -> None:
    with waiting(RANK="0", LOCAL_RANK="0"), waiting(RANK="1", LOCAL_RANK="1"):
        samples = read_children()
    assert roles(samples) == {"ranks": 2}


def test_a_rank_that_ends_while_it_is_read_costs_no_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting(RANK="7") as rank:

        def ends() -> dict[int, str]:
            # Between what is read for the roles and what is read for the names: its environment is gone.
            rank.kill()
            os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
            return {}

        monkeypatch.setattr("leakline.probes.children.given_names", ends)
        samples = read_children()
    assert roles(samples) == {"ranks": 1}
    assert samples["children.process.rank_7.uss_bytes"] == samples["children.uss_bytes"] > 0


def test_what_a_rank_starts_is_no_rank() -> None:
    outer = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[-1]], stdin=0);"
        "p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer, WAITS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "RANK": "3"},
    ) as rank:  # fmt: skip
        assert rank.stdout is not None
        rank.stdout.readline()
        samples = read_children()
        rank.communicate("")
    assert roles(samples) == {"ranks": 1, "others": 1}


def test_the_children_of_a_rank_share_its_rank_and_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with waiting(), waiting(RANK="7"):
        samples = read_children()
    assert roles(samples) == {"others": 1, "ranks": 1}


class Squares:
    """A data set as torch wants it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return index * index


def test_the_workers_of_a_data_loader_are_named() -> None:
    import torch

    loader: Any = torch.utils.data.DataLoader(
        Squares(), num_workers=2, batch_size=4, persistent_workers=True  # type: ignore[arg-type]
    )  # fmt: skip
    with waiting():
        items = iter(loader)
        # The first batch comes from a worker that has named itself; the second from the other one.
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
    # Reads every page, so that each worker has all of it resident.
    ready.put(float(shared.sum()))
    release.wait(60)


def test_an_array_shared_with_forked_workers_is_counted_once() -> None:
    context = multiprocessing.get_context("fork")
    shared = np.ones(96 * MIB // 8)
    ready, release = context.SimpleQueue(), context.Event()
    alone = own_proportional_bytes()
    workers = [context.Process(target=_hold, args=(shared, ready, release)) for _ in range(3)]
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
    # Resident in four processes, 384 MiB by adding up; in the books of proportional size it is there once.
    assert together - alone < shared.nbytes
    assert samples["children.uss_bytes"] < shared.nbytes
    assert samples["children.pss_bytes"] > shared.nbytes / 2
