"""50 MiB per generation, leaked in one phase of a real training: accounted to that phase and ranked first."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from .conftest import page_of, rows_of, train

pytestmark = pytest.mark.flow
MIB = 2**20
PLANTED = 50 * MIB
GENERATIONS = 8

TRAINING = """
import sys
import leakline

kept = []
run = leakline.init(project="books", quiet=True)
for generation in range(int(sys.argv[1])):
    with run.generation(generation):
        for phase in ("collect", "train", "evaluate"):
            with run.phase(phase):
                # Every phase allocates the same; one keeps it.
                taken = bytearray(b"1") * (50 << 20)
                if phase == "train":
                    kept.append(taken)
                del taken
run.finish()
"""


def at_ends(server: Any, run: str, name: str) -> dict[int, float]:
    path = f"/runs/{run}/series?name={name}&kind=generation_end&points=200"
    (item,) = server.get(path)["items"]
    return dict(zip(map(int, item["x"]), item["last"], strict=True))


def test_kept_memory_is_accounted_to_its_phase_and_phases_add_up(
    server: Any, tmp_path: Path
) -> None:
    run = "phases"
    assert train(server, tmp_path, run, TRAINING, GENERATIONS) == 0
    verdict = server.verdict(run, GENERATIONS)

    phase_accounts = server.get(f"/runs/{run}/phases")
    assert phase_accounts["generations"] == list(range(GENERATIONS))
    lines = {line["name"]: line["bytes"] for line in phase_accounts["lines"]}
    for i, generation in enumerate(phase_accounts["generations"]):
        # Exact to the byte.
        assert sum(line[i] for line in lines.values()) == phase_accounts["total"][i], generation
        assert lines["train"][i] == pytest.approx(PLANTED, rel=0.1), generation
        for other in ("collect", "evaluate"):
            # A phase that frees everything may keep what its first execution warmed up.
            assert abs(lines[other][i]) < (0.1 if i else 0.3) * PLANTED, (generation, other)

    # The sum of the phase accounts equals the change in the kernel's figures for the process.
    anon, swap = (at_ends(server, run, f"process.{name}_bytes") for name in ("anon", "swap"))
    ends = [anon[g] + swap.get(g, 0) for g in phase_accounts["generations"]]
    for i, (before, after) in enumerate(pairwise(ends), 1):
        assert phase_accounts["total"][i] == pytest.approx(after - before, abs=MIB), i

    assert verdict["findings"][0]["phase"] == "train", verdict["summary"]
    rows = rows_of(page_of(server, f"/runs/{run}"), "phases")
    (row,) = (row for row in rows if "train" in row.split())
    assert re.search(r"\+(4[5-9]|5[0-5])\.\d\d MiB", row), row
