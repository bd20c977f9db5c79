"""Small heaps for the tests, and the slow way to count them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leakline.probes import native_module
from leakline.probes.heap.arrays import ArrayMeasure
from leakline.probes.heap.census import take_census
from leakline.probes.heap.census_result import CensusResult

needs_native = pytest.mark.skipif(
    native_module.native() is None, reason=f"no native module: {native_module.why_not_native()}"
)


@pytest.fixture(params=["native", "pure"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each test with the native module and without it; nothing that other tests left is counted."""
    monkeypatch.setenv(native_module.SETTING, "1" if request.param == "native" else "0")
    native_module.forget()
    if request.param == "native" and native_module.native() is None:
        pytest.skip(f"no native module: {native_module.why_not_native()}")
    gc.collect()
    gc.freeze()
    yield request.param
    native_module.forget()


def _touch(name: str) -> Callable[..., Any]:
    def touch(*_: object) -> Any:
        touched.append(name)
        raise RuntimeError(name)

    return touch


touched: list[str] = []
_METHODS = (
    "__getattribute__", "__sizeof__", "__repr__", "__len__", "__eq__", "__hash__", "__bool__", "__iter__",
)  # fmt: skip
# Everything that a careless look would run.
Hostile: Any = type(
    "Hostile",
    (),
    {name: _touch(name) for name in _METHODS}
    | {name: property(_touch(name)) for name in ("__class__", "__dict__")},
)


def census() -> CensusResult:
    """With nothing of an earlier test in it that waits for the collector."""
    gc.collect()
    return take_census()


def arrays() -> ArrayMeasure:
    measured = census().arrays
    assert measured is not None
    return measured


def arrays_of(make: Callable[[], object]) -> tuple[int, int]:
    """How many arrays, and bytes of arrays, there are more once this is made."""
    before = arrays()
    kept = [make()]
    after = arrays()
    assert kept
    return after.count - before.count, after.bytes - before.bytes


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


def run_alone(
    folder: Path, program: str, *arguments: str, given: str = "", **environment: str
) -> str:
    """What a program prints in a process of its own: pytest rewrites asserting functions so that they ask for their
    own locals, and other tests leave things behind.
    """
    script = folder / "train.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), *arguments], input=given,
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
