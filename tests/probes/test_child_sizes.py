"""Sizes of children are read exactly in turns and follow their anonymous memory in between."""

from __future__ import annotations

import os
from pathlib import Path

from leakline.probes.child_sizes import Child, ChildSizes, Size

PAGE = os.sysconf("SC_PAGE_SIZE")


class Machine:
    """Processes by id with the pages that are resident in them; each exact reading takes 10 ms."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.seconds, self.read = proc, 0.0, list[int]()
        self.sizes: dict[int, Size] = {}

    def set(self, pid: int, anonymous: int, unique: int) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "statm").write_text(f"999 {anonymous + 7} 7 0 0 0 0\n")
        self.sizes[pid] = 2 * unique * PAGE, unique * PAGE

    def read_exact(self, pid: int) -> Size | None:
        self.seconds += 0.01
        self.read.append(pid)
        return self.sizes.get(pid)

    def children(self, *pids: int) -> list[Child]:
        return [Child(pid, pid, 1, b"python") for pid in pids]


def pages(sizes: dict[int, Size | None] | None) -> dict[int, int | None]:
    assert sizes is not None
    return {pid: None if size is None else size[1] // PAGE for pid, size in sizes.items()}


def machine_with(tmp_path: Path) -> tuple[Machine, ChildSizes]:
    machine = Machine(tmp_path)
    machine.set(1, 100, 0)
    return machine, ChildSizes(tmp_path, machine.read_exact, lambda: machine.seconds)


def test_without_a_limit_every_child_is_read_exactly(tmp_path: Path) -> None:
    machine, sizes = machine_with(tmp_path)
    for pid in (2, 3):
        machine.set(pid, 120, 20 + pid)
    assert pages(sizes.read(machine.children(2, 3, 4), None)) == {2: 22, 3: 23, 4: None}
    assert sorted(machine.read) == [2, 3, 4]


def test_a_size_that_is_not_read_moves_with_anonymous_memory(tmp_path: Path) -> None:
    machine, sizes = machine_with(tmp_path)
    machine.set(2, 120, 20)
    sizes.read(machine.children(2), None)
    machine.set(2, 150, 999)
    assert pages(sizes.read(machine.children(2), 0.0)) == {2: 50}
    machine.set(2, 90, 999)
    assert pages(sizes.read(machine.children(2), 0.0)) == {2: 0}, "no size is below zero"


def test_a_new_child_is_as_large_as_another_of_its_name_but_for_what_both_share(
    tmp_path: Path,
) -> None:
    machine, sizes = machine_with(tmp_path)
    machine.set(2, 110, 20)
    sizes.read(machine.children(2), None)
    # The parent has grown by half: so has what a new child shares with it, 90 pages until then.
    machine.set(1, 150, 0)
    machine.set(3, 135 + 40, 999)
    assert pages(sizes.read(machine.children(2, 3), 0.0)) == {2: 20, 3: 40}


def test_what_was_read_longest_ago_is_read_first(tmp_path: Path) -> None:
    machine, sizes = machine_with(tmp_path)
    children = machine.children(2, 3, 4)
    for child in children:
        machine.set(child.pid, 120, 20)
    sizes.read(children, None)
    machine.read.clear()
    for _ in range(4):
        sizes.read(children, 0.011)
    assert machine.read == [2, 3, 4, 2]


def test_time_that_is_not_spent_counts_later(tmp_path: Path) -> None:
    machine, sizes = machine_with(tmp_path)
    children = machine.children(2)
    machine.set(2, 120, 20)
    sizes.read(children, None)
    machine.read.clear()
    for _ in range(12):
        sizes.read(children, 0.003)
    assert len(machine.read) == 3


def test_a_total_is_unknown_while_the_size_of_a_child_is(tmp_path: Path) -> None:
    machine, sizes = machine_with(tmp_path)
    names = [Child(pid, pid, 1, str(pid).encode()) for pid in range(2, 14)]
    for child in names:
        machine.set(child.pid, 120, 20)
    assert sizes.read(names, 0.0) is None
    assert sizes.read(names, 0.1) is not None


def test_a_child_whose_memory_cannot_be_read_is_unknown_and_not_small(tmp_path: Path) -> None:
    machine, sizes = machine_with(tmp_path)
    machine.set(2, 120, 20)
    machine.set(3, 120, 20)
    sizes.read(machine.children(2, 3), None)
    (tmp_path / "3" / "statm").unlink()
    assert pages(sizes.read(machine.children(2, 3), 0.0)) == {2: 20, 3: None}
