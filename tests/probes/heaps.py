"""Small heaps for the tests, and a slow way to count them."""

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
    """Run each test with and without the native module; nothing left by other tests is counted."""
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
# Overrides everything that a careless scan would execute.
Hostile: Any = type(
    "Hostile",
    (),
    {name: _touch(name) for name in _METHODS}
    | {name: property(_touch(name)) for name in ("__class__", "__dict__")},
)


def census() -> CensusResult:
    """Take a census without uncollected garbage of earlier tests."""
    gc.collect()
    return take_census()


def arrays() -> ArrayMeasure:
    measured = census().arrays
    assert measured is not None
    return measured


def arrays_of(make: Callable[[], object]) -> tuple[int, int]:
    """Return by how many arrays, and bytes of arrays, the census grows once this is made."""
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
    """Count one by one all objects of exactly this type reachable from the collector's lists."""
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
    """Return what a program prints in its own process.

    Here pytest rewrites functions with asserts so that they access their locals, and other tests leave objects behind.
    """
    script = folder / "train.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), *arguments], input=given,
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
