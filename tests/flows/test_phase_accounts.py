"""50 MiB a generation, planted in each phase of a real training in turn: booked there, to the sum, and ranked first."""

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
PHASES = ("collect", "train", "evaluate")
GENERATIONS = 8

TRAINING = """
import sys
import leakline

where, generations, kept = sys.argv[1], int(sys.argv[2]), []
run = leakline.init(project="books", name=where, quiet=True)
for generation in range(generations):
    with run.generation(generation):
        for phase in ("collect", "train", "evaluate"):
            with run.phase(phase):
                # Every phase takes as much; one keeps it.
                taken = bytearray(b"1") * (50 << 20)
                if phase == where:
                    kept.append(taken)
                del taken
run.finish()
"""


def at_ends(server: Any, run: str, name: str) -> dict[int, float]:
    path = f"/runs/{run}/series?name={name}&kind=generation_end&points=200"
    (item,) = server.get(path)["items"]
    return dict(zip(map(int, item["x"]), item["last"], strict=True))


@pytest.mark.parametrize(
    "where", ["train", *(pytest.param(p, marks=pytest.mark.long) for p in ("collect", "evaluate"))]
)
def test_what_one_phase_keeps_is_on_its_line_and_the_lines_are_the_whole(
    server: Any, tmp_path: Path, where: str
) -> None:
    run = f"phases-{where}"
    assert train(server, tmp_path, run, TRAINING, where, GENERATIONS) == 0
    verdict = server.verdict(run, GENERATIONS)

    phase_accounts = server.get(f"/runs/{run}/phases")
    assert phase_accounts["generations"] == list(range(GENERATIONS))
    lines = {line["name"]: line["bytes"] for line in phase_accounts["lines"]}
    for i, generation in enumerate(phase_accounts["generations"]):
        # To the byte.
        assert sum(line[i] for line in lines.values()) == phase_accounts["total"][i], generation
        assert lines[where][i] == pytest.approx(PLANTED, rel=0.1), generation
        for other in set(PHASES) - {where}:
            # A phase that gives all back may keep what its first execution warmed up.
            assert abs(lines[other][i]) < (0.1 if i else 0.3) * PLANTED, (generation, other)

    # And the sum of the phase accounts is what the kernel says of the process from one end to the next.
    anon, swap = (at_ends(server, run, f"process.{name}_bytes") for name in ("anon", "swap"))
    ends = [anon[g] + swap.get(g, 0) for g in phase_accounts["generations"]]
    for i, (before, after) in enumerate(pairwise(ends), 1):
        assert phase_accounts["total"][i] == pytest.approx(after - before, abs=MIB), i

    assert verdict["findings"][0]["phase"] == where, verdict["summary"]
    rows = rows_of(page_of(server, f"/runs/{run}"), "phases")
    (row,) = (row for row in rows if where in row.split())
    assert re.search(r"\+(4[5-9]|5[0-5])\.\d\d MiB", row), row
