"""Live objects, garbage in cycles, and memory kept by the allocator, with one training process each.

Nothing in between is replaced: the client records to disk, and the report reads and judges the recording.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leakline.analysis.results import Finding, Verdict
from leakline.probes.native_module import native, why_not_native
from leakline.report import build, load, spools_by_run
from leakline.snapshot import CYCLIC_GARBAGE

GENERATIONS = 28
SECONDS = 60

pytestmark = [pytest.mark.flow, pytest.mark.timeout(300)]
needs_native = pytest.mark.skipif(native() is None, reason=f"no native module: {why_not_native()}")
both_ways = pytest.mark.parametrize(
    "way",
    [pytest.param("1", marks=needs_native), pytest.param("0", marks=pytest.mark.long)],
    ids=["native", "pure"],
)

LOOP = """
import gc
import leakline

class Node:
    def __init__(self, number):
        self.itself = self
        self.weights = [float(number + i) for i in range(40)]

{begin}
run = leakline.init(project="growths", mode="offline", quiet=True)
for generation in range({generations}):
    with run.generation(generation):
        with run.phase("train"):
            {train}
        with run.phase("evaluate"):
            sum(i * i for i in range(2_000))
run.finish()
"""

GROWING_LIST = """
            history.extend({"step": i, "name": str(i * 7919)} for i in range(4_000))
"""
CYCLES_OF_A_CLASS = """
            for number in range(800):
                Node(number)
"""
DECLARED = """
            if generation == 0:
                run.expect(Node, (0, 800))
"""
PLAIN_CYCLES = """
            for i in range(1_500):
                values = [float(i + j) for j in range(20)]
                values.append({"values": values, "i": i})
            del values
"""
# Each block is truncated, and its rest pins the heap behind it. The blocks of the next generation are slightly larger
# than the holes, so they do not fit. All are far below the size from which malloc uses mmap.
HOLES = (
    "The C allocator keeps the memory freed around retained objects, and that memory grows with "
    "their number."
)
SURVIVORS = """
            blocks = [bytearray(b"x") * (40_000 + 1_000 * generation) for _ in range(60)]
            for block in blocks:
                del block[600:]
            survivors.extend(blocks)
            del blocks, block
"""

Train = Callable[..., Verdict]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that runs this body in every generation's train phase and returns the verdict."""

    def run(body: str, begin: str = "", **environment: str) -> Verdict:
        code = LOOP.format(begin=begin, train=body.strip(), generations=GENERATIONS)
        script = tmp_path / "train.py"
        script.write_text(code)
        spools = tmp_path / "spools"
        outside = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path, env={**outside, "LEAKLINE_DIR": str(spools), **environment},
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "failed" not in done.stderr
        (found,) = spools_by_run(spools)
        return build(load(found)).verdict

    return run


def first_of(verdict: Verdict) -> Finding:
    assert verdict.status in ("suspected", "confirmed"), verdict.summary
    finding = verdict.findings[0]
    assert finding.phase == "train", verdict.summary
    return finding


def kinds(verdict: Verdict) -> set[str]:
    """Return the kinds of all suspected and confirmed findings."""
    return {f.kind for f in verdict.findings if f.status in ("suspected", "confirmed")}


def names(finding: Finding) -> list[str]:
    return [suspect.name for suspect in finding.suspects]


@both_ways
def test_a_growing_list_is_reported_as_live_objects(train: Train, way: str) -> None:
    verdict = train(GROWING_LIST, "history = []", LEAKLINE_NATIVE=way)
    finding = first_of(verdict)
    assert finding.kind in ("container", "objects"), verdict.summary
    assert names(finding)[0] == "__main__.history", verdict.summary
    assert kinds(verdict) <= {"container", "objects"}


@both_ways
def test_cycles_of_a_class_are_garbage_with_the_collector_off(train: Train, way: str) -> None:
    verdict = train(CYCLES_OF_A_CLASS, "gc.disable()", LEAKLINE_NATIVE=way)
    finding = first_of(verdict)
    assert finding.kind == "cyclic_garbage", verdict.summary
    assert names(finding)[:2] == ["__main__.Node", CYCLIC_GARBAGE]
    assert finding.suspects[0].count_per_generation == pytest.approx(800, rel=0.1)
    assert any("gc.enable()" in line for line in finding.advice)
    assert kinds(verdict) == {"cyclic_garbage"}


@both_ways
def test_held_objects_beyond_the_declared_count_are_live_objects(train: Train, way: str) -> None:
    held = DECLARED + CYCLES_OF_A_CLASS.replace("Node(number)", "kept.append(Node(number))")
    finding = first_of(train(held, "gc.disable()\nkept = []", LEAKLINE_NATIVE=way))
    assert finding.kind == "objects"
    assert names(finding)[0] == "__main__.Node"
    assert CYCLIC_GARBAGE not in names(finding)


@both_ways
def test_cycles_beyond_the_declared_count_are_garbage(train: Train, way: str) -> None:
    verdict = train(DECLARED + CYCLES_OF_A_CLASS, "gc.disable()", LEAKLINE_NATIVE=way)
    finding = first_of(verdict)
    assert finding.kind == "cyclic_garbage", verdict.summary
    assert names(finding)[:2] == ["__main__.Node", CYCLIC_GARBAGE]
    assert any("declared 0 to 800" in line for line in finding.evidence)
    assert any("gc.enable()" in line for line in finding.advice)
    assert kinds(verdict) == {"cyclic_garbage"}


@needs_native
def test_cycles_of_plain_lists_and_dicts_are_garbage_too(train: Train) -> None:
    verdict = train(PLAIN_CYCLES, "gc.disable()")
    finding = first_of(verdict)
    assert finding.kind == "cyclic_garbage", verdict.summary
    assert {"list", "dict"} <= set(names(finding))
    assert kinds(verdict) == {"cyclic_garbage"}


def test_cycles_that_the_collector_frees_are_not_a_leak(train: Train) -> None:
    verdict = train(CYCLES_OF_A_CLASS)
    assert verdict.status in ("ok", "watch"), verdict.summary


@both_ways
def test_holes_between_survivors_are_one_finding_with_the_survivors(train: Train, way: str) -> None:
    verdict = train(SURVIVORS, "survivors = []", LEAKLINE_NATIVE=way)
    finding = first_of(verdict)
    assert finding.kind == "container", verdict.summary
    assert finding.suspects[0].name == "__main__.survivors"
    assert HOLES in finding.evidence
    # 60 holes of 40,000 to 67,000 bytes.
    assert 2e6 < finding.growth_bytes_per_generation.estimate < 4e6
    rest = sum(f.growth_bytes_per_generation.estimate for f in verdict.findings[1:])
    assert rest < 0.1 * finding.growth_bytes_per_generation.estimate


def test_survivors_of_a_class_are_named_with_the_holes_around_them(train: Train) -> None:
    """Objects of unmeasured size, as many as there are holes."""
    body = SURVIVORS.replace("survivors.extend(blocks)", "survivors.extend(map(Result, blocks))")
    result = (
        "class Result:\n    def __init__(self, data):\n        self.data = data\nsurvivors = []"
    )
    finding = first_of(train(body, result))
    assert (finding.kind, finding.suspects[0].name) == ("objects", "__main__.Result")
    assert HOLES in finding.evidence
