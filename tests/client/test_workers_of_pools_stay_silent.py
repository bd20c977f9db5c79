"""Workers of the pools of the standard library: one run, whatever starts them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.snapshot import Snapshot
from leakline.spool import read_end

pytestmark = pytest.mark.flow
Start = Callable[..., "subprocess.Popen[str]"]

POOL = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import leakline

run = leakline.init(mode="offline", quiet=True)


def work(number):
    inner = leakline.init(mode="offline", quiet=True)
    with leakline.current().phase("in a worker"):
        return os.getpid(), inner.id


if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    for generation in range(2):
        with run.generation(generation), run.phase("train"):
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                done = list(pool.map(work, range(8)))
        assert os.getpid() not in [pid for pid, _ in done]
        assert {{inner for _, inner in done}} == {{""}}
    run.finish()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool_of_processes_start_no_second_run(
    start: Start, spool_directory: Path, recorded: Callable[[], list[Snapshot]], method: str
) -> None:
    process: Any = start(POOL.format(method=method))
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said
    assert said == ""
    (path,) = spool_directory.rglob("*.spool")
    assert (read_end(path) or {})["state"] == "finished"
    assert [s.phase for s in recorded() if s.kind == "phase_end"] == ["train", "train"]
