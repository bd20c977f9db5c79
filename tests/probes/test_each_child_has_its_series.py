"""Each child process has a series of its own: a name that stays, a bound, and the rest counted; with real processes."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from leakline.probes.child_names import (
    NAMES_LIMIT,
    TOLD_LIMIT,
    ChildNames,
    Wanted,
    wanted_of_command,
)
from leakline.probes.children import read_children
from leakline.snapshot import Number

MIB = 2**20
CONTEXT = multiprocessing.get_context("fork")


def _collect(grow: Any, grown: Any) -> None:
    kept = []
    while size := grow.recv():
        kept.append(bytearray(b"x") * size)
        grown.send(len(kept))


class Collector:
    """A child that keeps what it is told to."""

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


def test_without_children_there_is_no_series_of_one() -> None:
    assert one_by_one(read_children()) == {}


def test_of_a_command_the_arguments_are_not_told() -> None:
    command = b"/usr/bin/python3.12\0-u\0/home/me/train.py\0--token=secret\0"
    assert wanted_of_command(command, b"python3.12") == Wanted("train", 1)
    assert wanted_of_command(b"/usr/bin/ffmpeg\0-i\0secret\0", b"ffmpeg") == Wanted("ffmpeg", 1)
    assert wanted_of_command(b"python\0-m\0http.server\0", b"python") == Wanted("http.server", 1)
    assert wanted_of_command(b"python\0-c\0print(secret)\0", b"python") == Wanted("python", 1)
    tracker = b"python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0"
    assert wanted_of_command(tracker, b"python") == Wanted("resource_tracker", 1)
    assert wanted_of_command(b"", b"kworker") == Wanted("kworker", 1)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python\0-uc\0import x; connect('password=hunter2')\0", "python"),
        ("python\0-Bucimport x; connect('password=hunter2')\0", "python"),
        ("python\0-c\0\0--token=secret\0", "python"),
        ("python\0-\0secret\0", "python"),
        (": secret\0", ""),
        ("python\0-i\0", "python"),
        ("python\0-um\0http.server\0--bind\0secret\0", "http.server"),
        ("python\0-mhttp.server\0secret\0", "http.server"),
        ("python\0-W\0ignore\0train.py\0secret\0", "train"),
        ("python\0-Wignore\0-uX\0faulthandler\0/home/me/train.py\0-c\0secret\0", "train"),
        ("python\0-X\0faulthandler\0-c\0print(secret)\0", "python"),
        ("python\0--check-hash-based-pycs\0always\0--\0train.py\0secret\0", "train"),
        ("myapp: worker --api-key=abcdef123 (run)\0\0\0", "myapp"),
        ("/opt/my/app --upload=/home/me/secret\0", "app"),
        ("python3 -c connect('password=hunter2')\0", "python"),
    ],
)
def test_neither_code_nor_a_title_nor_the_value_of_an_option_is_a_name(
    command: str, name: str
) -> None:
    assert wanted_of_command(command.encode(), b"comm") == Wanted(name, 1)


def test_a_child_has_the_name_that_the_program_gave_it_and_the_parts_are_the_whole() -> None:
    with collectors("collector-a", "collector-b"):
        samples = read_children()
    assert set(one_by_one(samples)) == {"collector-a", "collector-b"}
    for what in ("pss_bytes", "uss_bytes"):
        assert sum(one_by_one(samples, what).values()) == samples[f"children.{what}"]


def test_the_one_that_grows_is_the_one_whose_series_grows() -> None:
    names = ChildNames()
    with collectors("collector-a", "collector-b") as (_, b):
        before = one_by_one(read_children(names=names))
        b.keep(32 * MIB)
        after = one_by_one(read_children(names=names))
    assert after["collector-b"] - before["collector-b"] > 31 * MIB
    assert after["collector-a"] - before["collector-a"] < 4 * MIB


def test_a_name_that_is_free_goes_to_the_next_child() -> None:
    names = ChildNames()
    for _ in range(3):
        # Each has a higher number in the program itself.
        with collectors(None, None):
            samples = one_by_one(read_children(names=names))
        assert set(samples) == {"ForkProcess-1", "ForkProcess-2"}


def test_who_stays_keeps_its_name_when_one_before_it_ends() -> None:
    names = ChildNames()
    with collectors(None) as (stays,):
        first = Collector(None)
        assert set(one_by_one(read_children(names=names))) == {"ForkProcess-1", "ForkProcess-2"}
        stays.keep(16 * MIB)
        first.end()
        samples = one_by_one(read_children(names=names))
    assert set(samples) == {"ForkProcess-1"}
    assert samples["ForkProcess-1"] > 16 * MIB


def test_two_of_one_name_and_one_with_a_dot_are_told_apart() -> None:
    with collectors("actor", "actor", "v1.2", "other"):
        samples = read_children()
    assert set(one_by_one(samples)) == {"actor", "actor-2", "v1_2", "other-2"}


def test_of_many_children_the_largest_are_told_and_the_rest_is_counted() -> None:
    names = ChildNames()
    with collectors(*(f"actor-{i}" for i in range(TOLD_LIMIT + 3))) as children:
        children[-1].keep(24 * MIB)
        samples = read_children(names=names)
        assert read_children(names=names).keys() == samples.keys(), "those told stay the same"
    told = one_by_one(samples)
    assert len(told) == TOLD_LIMIT + 1
    assert samples["children.process.other.count"] == 3
    assert told[f"actor-{TOLD_LIMIT + 2}"] > 24 * MIB
    # By name and together they are all that there are.
    for what in ("pss_bytes", "uss_bytes"):
        assert sum(one_by_one(samples, what).values()) == samples[f"children.{what}"]


def test_a_program_that_invents_names_gets_so_many_series_and_no_more() -> None:
    names = ChildNames()
    told = {names.name(i, lambda i=i: Wanted(f"job-{i}")) for i in range(3 * NAMES_LIMIT)}  # type: ignore[misc]
    assert len(told - {None}) == NAMES_LIMIT
    names.keep([])
    assert names.name("new", lambda: Wanted("job-5")) == "job-5"
    assert names.name("newer", lambda: Wanted("job-unheard-of")) is None


def test_children_beyond_the_names_are_not_asked_again_at_each_reading() -> None:
    names, asked, living = ChildNames(), list[int](), range(500)

    def wanted(child: int) -> Wanted:
        asked.append(child)
        # More kinds than there are names, so that names of some are free while others have none.
        return Wanted(f"job-{child}" if child % 2 else "worker", None if child % 2 else 1)

    def read(living: Iterable[int]) -> list[str]:
        names.keep(living)
        found = [names.name(child, partial(wanted, child)) for child in living]
        return [name for name in found if name is not None]

    first = read(living)
    assert len(set(first)) == len(first) == NAMES_LIMIT
    assert len(asked) == NAMES_LIMIT
    for _ in range(3):
        assert read(living) == first
    # The first ten end: each that comes now is asked once, and the names of its kind are there for it.
    newer = range(10, 510)
    assert len(read(newer)) == NAMES_LIMIT - 5
    assert read(newer) == read(newer)
    assert asked == [*range(NAMES_LIMIT), *range(500, 510)]


def test_the_names_of_a_child_cost_little_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    names, asked = ChildNames(), []
    real: Callable[..., Wanted] = wanted_of_command

    def asking(command: bytes, name: bytes) -> Wanted:
        asked.append(command)
        return real(command, name)

    monkeypatch.setattr("leakline.probes.children.wanted_of_command", asking)
    waits = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE) as child:
        for _ in range(5):
            assert set(one_by_one(read_children(names=names))) == {"python-1"}
        child.communicate()
    assert len(asked) == 1
