"""The allocator gives arenas back, and the entries they had point to each other: a scan begun after that finds all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leakline.probes.native import why_not_native

# A hundred arenas of 1 MiB and more; the first half of them is given back before anything of ours is asked.
PROGRAM = """
import random
kept = [[object() for _ in range(40_000)] for _ in range(200)]
order = list(range(100))
random.Random(0).shuffle(order)
for place in order:
    kept[place] = None
from leakline.probes.sampled import take_sample, why_no_sample
assert why_no_sample() is None, why_no_sample()
found = take_sample(1).counts[object]
assert 3_990_000 < found < 4_100_000, found
"""


@pytest.mark.skipif(
    why_not_native() is not None, reason=f"needs the native module: {why_not_native()}"
)
def test_a_scan_begun_after_half_of_the_arenas_were_freed_counts_what_is_left() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
