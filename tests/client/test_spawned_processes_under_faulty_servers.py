"""Trainings that spawn processes beside each fault of a server: what they do stays the same, and everything arrives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.client.faults import MODES, FaultServer

from leakline.delivery import Delivery
from leakline.uploading import upload

pytestmark = [pytest.mark.flow, pytest.mark.long]

# The main process has the run; each spawned one imports this file, and so calls `init` again.
WORKERS = """
import multiprocessing, sys
import leakline

run = leakline.init(project="spawn", quiet=True)

def work(number):
    with leakline.current().phase("work"):
        if number == 3:
            raise ValueError("of the program")
        return number, leakline.current().id

def end(status):
    sys.exit(status)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        for generation in range(20):
            with run.generation(generation), run.phase("train"):
                print(pool.map(work, [0, 1, 2]))
        try:
            pool.apply(work, [3])
        except ValueError as error:
            print("raised", error)
    ends = [context.Process(target=end, args=(status,)) for status in (0, 7)]
    for each in ends:
        each.start()
    for each in ends:
        each.join()
    print([each.exitcode for each in ends])
    sys.exit(5)
"""
# Each spawned process has a run of its own, as with `torch.multiprocessing.spawn`.
TRAININGS = """
import multiprocessing, os, sys
import leakline

def train(rank, status):
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_PORT="1", LEAKLINE_RUN_ID="spawned")
    run = leakline.init(project="spawn", quiet=True)
    for generation in range(20):
        with run.generation(generation), run.phase("train"):
            sum(range(1000))
    if status == 9:
        raise RuntimeError("of the program")
    sys.exit(status)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=train, args=pair) for pair in ((0, 0), (1, 7), (2, 9))]
    for each in started:
        each.start()
    for each in started:
        each.join()
    print([each.exitcode for each in started])
"""
PROCESSES = {WORKERS: 1, TRAININGS: 3}
# For so long an end waits for a server at most, and as much again for a busy machine.
LONGEST_END_SECONDS = 2.0
PATIENCE_SECONDS = 20.0


def run(folder: Path, program: str, **settings: str) -> tuple[int, str, list[str], float]:
    """Status, output, last lines of tracebacks, and seconds of a program."""
    folder.mkdir(exist_ok=True)
    script = folder / "training.py"
    script.write_text(program)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LEAKLINE_")}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**kept, "LEAKLINE_DIR": str(folder / "spool"), **settings},
    )  # fmt: skip
    raised = [line for line in ended.stderr.splitlines() if line.startswith("RuntimeError")]
    assert "leakline" not in ended.stderr.replace("leakline.init", "").lower(), ended.stderr
    return ended.returncode, ended.stdout, raised, time.monotonic() - began


@pytest.fixture(scope="module")
def without(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[int, str, list[str], float]]:
    """The same programs where the client does nothing, but for the ids of runs that they print."""
    folder = tmp_path_factory.mktemp("without")
    return {program: run(folder, program, LEAKLINE_MODE="disabled") for program in PROCESSES}


@pytest.mark.parametrize("mode", MODES)
def test_they_end_as_without_us_and_everything_arrives_once(
    tmp_path: Path,
    faulty: FaultServer,
    mode: str,
    without: dict[str, tuple[int, str, list[str], float]],
) -> None:
    for program, count in PROCESSES.items():
        folder = tmp_path / f"{count}"
        faulty.set(mode)
        status, printed, raised, seconds = run(folder, program, LEAKLINE_SERVER=faulty.address)
        wanted = without[program]
        assert (status, printed, raised) == wanted[:3]
        assert seconds < wanted[3] + LONGEST_END_SECONDS + PATIENCE_SECONDS
        spools = list((folder / "spool").rglob("*.spool"))
        assert len(spools) == count
        faulty.set("healthy")
        for spool in spools:
            assert upload(spool, Delivery(faulty.address)).complete
        found = defaultdict(list)
        for batch in faulty.batches:
            found[batch.process.instance] += [each.sequence for each in batch.snapshots]
        assert len(found) == count
        for numbers in found.values():
            # Two for each generation at least; twice is the same as once.
            assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
            assert max(numbers) >= 40
        faulty.batches.clear()
