"""Small heaps for the tests, and the slow way to count them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from leakline.probes import native
from leakline.probes.census import take_census
from leakline.probes.census_result import CensusResult
from leakline.probes.names import type_name


@pytest.fixture(params=["native", "pure"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each test with the native module and without it."""
    monkeypatch.setenv(native.SETTING, "1" if request.param == "native" else "0")
    native.forget()
    if request.param == "native" and native.native() is None:
        pytest.skip(f"no native module: {native.why_not_native()}")
    yield request.param
    native.forget()


class Hostile:
    """Everything that a careless look would run."""

    touched: list[str] = []  # noqa: RUF012

    @property
    def __class__(self) -> type:  # type: ignore[override]
        Hostile.touched.append("__class__")
        raise RuntimeError

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        Hostile.touched.append("__dict__")
        raise RuntimeError

    def __getattribute__(self, name: str) -> Any:
        Hostile.touched.append(name)
        raise RuntimeError(name)

    def __sizeof__(self) -> int:
        Hostile.touched.append("__sizeof__")
        return -1

    def __repr__(self) -> str:
        Hostile.touched.append("__repr__")
        raise RuntimeError

    def __len__(self) -> int:
        Hostile.touched.append("__len__")
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        Hostile.touched.append("__eq__")
        raise RuntimeError

    def __hash__(self) -> int:
        Hostile.touched.append("__hash__")
        raise RuntimeError

    def __bool__(self) -> bool:
        Hostile.touched.append("__bool__")
        raise RuntimeError


def census() -> CensusResult:
    """With nothing of an earlier test in it that waits for the collector."""
    gc.collect()
    return take_census()


def count_of(result: CensusResult, kind: type) -> int:
    return result.counts.get(kind, 0)


def rows(result: CensusResult) -> Mapping[str, tuple[int, int | None]]:
    return {name: (count, size) for name, count, size in result.to_census(1, 10_000).types}


def brute_force(kind: type) -> int:
    """Every object of exactly this type that can be reached from what the collector lists, one by one."""
    seen: set[int] = set()
    waiting = gc.get_objects()
    own = {id(waiting), id(seen)}
    found = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or id(one) in own:
            continue
        seen.add(id(one))
        found += type(one) is kind
        if not gc.is_tracked(one) or type(one) in (list, tuple, dict, set):
            waiting.extend(r for r in gc.get_referents(one) if not gc.is_tracked(r))
        elif type(one) is not type:
            waiting.extend(r for r in gc.get_referents(one) if type(r) is kind)
    return found


def name_of(kind: Any) -> str:
    return type_name(kind)
