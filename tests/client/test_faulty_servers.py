"""Trainings beside each fault of a server, also such that spawn processes: nothing waits, and everything arrives once.

`tests/soak/test_faults.py` measures.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.client.fault_loop import train
from tests.client.faults import MODES, FaultServer

from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_upload import upload

pytestmark = pytest.mark.flow


@pytest.mark.long
@pytest.mark.parametrize("mode", ["absent", "black hole", "dripping", "endless body", "busy"])
def test_the_loop_goes_on_and_everything_arrives_once(
    tmp_path: Path, faulty: FaultServer, mode: str
) -> None:
    cost = train(tmp_path, faulty, mode, seconds=0.5, waiting=300)
    assert cost.failures > 0
    # Measured beside whatever else this machine does; the soak holds the promise of 5 ms.
    assert cost.longest_stall_seconds < 0.05
    # A call that waited for the network would have waited for the 0.3 s that a request has here.
    assert max(cost.outage["longest_wait"], cost.after["longest_wait"]) < 0.25
    assert cost.lost == {}
    assert sorted(faulty.sequences) == list(range(1, max(faulty.sequences) + 1))
    assert len(faulty.sequences) > 300
    assert faulty.ends[0]["state"] == "finished"


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
TOLD_BY_WORKERS = [*["[(0, ''), (1, ''), (2, '')]"] * 20, "raised of the program", "[0, 7]"]


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("program", "runs", "status", "told", "raised"),
    [
        (WORKERS, 1, 5, TOLD_BY_WORKERS, []),
        (TRAININGS, 3, 0, ["[0, 7, 1]"], ["RuntimeError: of the program"]),
    ],
    ids=["workers", "trainings"],
)
def test_programs_that_spawn_end_as_without_us_and_everything_arrives_once(
    start: Any, spool_directory: Path, faulty: FaultServer, mode: str, program: str, runs: int, status: int,
    told: list[str], raised: list[str],
) -> None:  # fmt: skip
    faulty.set(mode)
    process = start(program, LEAKLINE_SERVER=faulty.address)
    printed, said = process.communicate(timeout=120)
    assert (process.returncode, printed.splitlines()) == (status, told), said
    assert [line for line in said.splitlines() if line.startswith("RuntimeError")] == raised
    assert "leakline" not in said.replace("leakline.init", "").lower(), said
    spools = list(spool_directory.rglob("*.spool"))
    assert len(spools) == runs
    faulty.set("healthy")
    for spool in spools:
        assert upload(spool, Delivery(faulty.address)).complete
    found = defaultdict(list)
    for batch in faulty.batches:
        found[batch.process.instance] += [each.sequence for each in batch.snapshots]
    assert len(found) == runs
    for numbers in found.values():
        # Two for each generation at least; twice is the same as once.
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
        assert max(numbers) >= 40
