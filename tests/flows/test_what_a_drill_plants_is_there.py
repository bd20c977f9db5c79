"""The truth of a drill against the kernel: what a plant says it added is what its process gained, without Leakline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import leakline.drill
from leakline.drill.kinds import HEALTHY, LEAKING, Kind

pytestmark = [pytest.mark.flow]

PROGRAMS = Path(leakline.drill.__file__).parent
MIB = 2**20
TOLERANCE = 0.1
SECONDS = 60
# What a healthy training may gain in twenty generations: arenas, caches of the interpreter.
HEALTHY_BYTES = 2 * MIB

MEASURE = """
import gc, json, psutil, sys
from small_training.planting import plant_of

def private():
    # The same order each time; children are those of the plant.
    own = psutil.Process()
    return sum(p.memory_full_info().uss for p in (own, *own.children(recursive=True)))

plant, first, last = plant_of(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for generation in range(first):
    plant.grow(generation)
# Of a healthy one, what the collector would have freed in a moment is not kept.
collect = gc.collect if sys.argv[4] == "healthy" else int
collect()
before = private()
planted = sum(plant.grow(generation) for generation in range(first, last))
collect()
print(json.dumps([planted, private() - before]))
plant.close()
"""


def measured(kind: Kind, first: int, last: int) -> tuple[int, int]:
    """(bytes that the plant says it added, bytes that the kernel says its processes gained)."""
    if kind.missing:
        pytest.skip(f"needs {' and '.join(kind.missing)}")
    done = subprocess.run(
        [
            sys.executable, "-c", MEASURE, kind.plant, str(first), str(last),
            "healthy" if kind.name in HEALTHY else "leaking",
        ],
        cwd=PROGRAMS, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    planted, gained = json.loads(done.stdout)
    return planted, gained


# Kinds that differ only in when they plant share a plant.
PLANTS = list({kind.plant: kind for kind in LEAKING.values()}.values())


@pytest.mark.parametrize("kind", PLANTS, ids=lambda kind: kind.plant)
def test_what_is_planted_is_what_the_kernel_sees(kind: Kind) -> None:
    # The first ones also load and warm up what they need.
    planted, gained = measured(kind, 3, 13)
    assert planted > 0
    assert gained == pytest.approx(planted, rel=TOLERANCE)


@pytest.mark.parametrize("kind", HEALTHY.values(), ids=lambda kind: kind.name)
def test_a_healthy_kind_keeps_nothing_once_it_is_full(kind: Kind) -> None:
    planted, gained = measured(kind, 20, 40)
    assert planted == 0
    assert gained < HEALTHY_BYTES
