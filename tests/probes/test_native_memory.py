"""Objects with a handle of a C library have no size, and those that Python can measure have one."""

from __future__ import annotations

import collections
import datetime
import decimal
import mmap
import re
import sqlite3
import threading
import zlib
from time import thread_time

import numpy as np
import pytest

from leakline.holders import find_holder_of_largest
from leakline.probes.deep import marginal_bytes
from leakline.probes.native_memory import hides_memory

LOG = bytearray(4 << 20)


class Plain:
    pass


class Slotted:
    __slots__ = ("a", "b")


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Database(sqlite3.Connection):
    pass


class Session:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")


@pytest.mark.parametrize(
    "kind", [sqlite3.Connection, Database, type(zlib.compressobj()), type(zlib.decompressobj()), mmap.mmap]
)  # fmt: skip
def test_handles_of_c_libraries_hide_memory(kind: type) -> None:
    assert hides_memory(kind)


@pytest.mark.parametrize(
    "kind",
    [
        Plain, Slotted, Pair, dict, str, float, ValueError, collections.deque, datetime.datetime, decimal.Decimal,
        re.Pattern, threading.Thread, type(threading.Lock()), np.ndarray, np.float64,
    ],
)  # fmt: skip
def test_values_and_classes_of_the_program_hide_none(kind: type) -> None:
    assert not hides_memory(kind)


def test_an_object_that_is_little_but_a_handle_has_no_size() -> None:
    sessions = [Session() for _ in range(4)]
    assert marginal_bytes(sessions) is None
    for session in sessions:
        session.connection.close()


def test_a_handle_that_all_share_leaves_each_its_size() -> None:
    shared = sqlite3.connect(":memory:")
    plain = [Plain() for _ in range(6)]
    for one in plain:
        one.connection = shared  # type: ignore[attr-defined]
    size = marginal_bytes(plain)
    assert size is not None and size < 4_096
    shared.close()


class Table:
    def __init__(self) -> None:
        self.rows = {"state": np.zeros(1 << 19), "reward": np.zeros(8)}


def test_the_holder_of_the_largest_array_is_named() -> None:
    table = Table()
    found = find_holder_of_largest(np.ndarray, 5.0)
    paths = [(one.type, one.count, one.bytes_each) for one in found if "Table.rows" in one.path]
    assert paths == [("numpy.ndarray", 1, None)]
    assert len(table.rows) == 2


def test_a_large_object_near_the_roots_is_named_without_a_look_through_the_heap() -> None:
    (found,) = find_holder_of_largest(bytearray, 5.0, near_only=True)
    assert found.path.endswith("test_native_memory.LOG")
    assert len(LOG) == 4 << 20


@pytest.mark.parametrize("near_only", [True, False])
def test_the_search_for_the_largest_keeps_to_its_budget(
    monkeypatch: pytest.MonkeyPatch, near_only: bool
) -> None:
    """Beside long containers. It took seconds when it measured each of their items; generous for slow machines."""
    texts = [f"text {i}" for i in range(300_000)]
    monkeypatch.setitem(globals(), "TEXTS", texts)
    monkeypatch.setitem(globals(), "TABLE", dict.fromkeys(texts[:200_000]))
    monkeypatch.setitem(globals(), "LONG", "x" * (4 << 20))
    budget = 0.05
    started = thread_time()
    found = find_holder_of_largest(str, budget, near_only=near_only)
    assert thread_time() - started < 12 * budget
    if near_only:
        assert [one.path.rpartition(".")[2] for one in found] == ["LONG"]


def test_nothing_is_named_where_no_object_is_large() -> None:
    assert find_holder_of_largest(collections.deque, 5.0) == []
