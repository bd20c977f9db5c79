"""A process that a training starts beside itself: its own run, or a child of the run that it is told to join."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.snapshot import ProcessIdentity
from leakline.spool import read_header

pytestmark = pytest.mark.flow
Start = Callable[..., "subprocess.Popen[str]"]

TRAIN = """
import os, subprocess, sys
import leakline
run = leakline.init(mode="offline")
with run.generation(0), run.phase("train"):
    for _ in range({times}):
        subprocess.run([sys.executable, "eval.py"], check=True)
{end}
"""
EVALUATE = """
import leakline
run = leakline.init(mode="offline")
with run.generation(0), run.phase("evaluate"):
    pass
run.finish()
{more}
"""


@pytest.fixture
def train(start: Start, tmp_path: Path) -> Callable[..., str]:
    """Run a training that starts an evaluation; what both said on stderr."""

    def run(times: int = 1, end: str = "run.finish()", more: str = "", **environ: str) -> str:
        (tmp_path / "eval.py").write_text(EVALUATE.format(more=more))
        process = start(TRAIN.format(times=times, end=end), **environ)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
        return said

    return run


def processes(directory: Path) -> list[tuple[str, ProcessIdentity]]:
    """(run, process) of every spool, the first to begin first."""
    headers = [read_header(path) for path in directory.rglob("*.spool")]
    return [(run.id, process) for run, process in sorted(headers, key=lambda h: h[0].started_at)]


def test_without_the_id_of_the_run_it_starts_its_own(train: Any, spool_directory: Path) -> None:
    said = train()
    (parent, main), (own, child) = processes(spool_directory)
    assert parent != own
    assert (main.role, main.attempt, child.role, child.attempt) == ("main", 1, "main", 1)
    assert said.count("records to") == 2


@pytest.mark.parametrize("rank", [0, 2])
def test_with_the_id_of_the_run_it_joins_as_a_child_of_the_same_attempt(
    train: Any, spool_directory: Path, rank: int
) -> None:
    environ = {"LEAKLINE_RUN_ID": "ours", "RANK": str(rank), "WORLD_SIZE": "4"}
    said = train(times=2, **environ)
    found = processes(spool_directory)
    assert {run for run, _ in found} == {"ours"}
    assert [(p.rank, p.role, p.attempt) for _, p in found] == [
        (rank, "main", 1), (rank, "child", 1), (rank, "child", 1),
    ]  # fmt: skip
    assert len({p.instance for _, p in found}) == 3
    # One process of a run talks.
    assert said.count("records to") == (rank == 0)
    # Resumed: it belongs to the second attempt, and has not counted as one.
    train(**environ)
    assert [(p.role, p.attempt) for _, p in processes(spool_directory)[3:]] == [
        ("main", 2), ("child", 2),
    ]  # fmt: skip


def test_it_stays_a_child_when_it_starts_again_and_so_does_what_it_starts_itself(
    train: Any, spool_directory: Path
) -> None:
    more = """
import os, subprocess, sys
run = leakline.init(mode="offline")
if "DEEPER" not in os.environ:
    subprocess.run([sys.executable, "eval.py"], check=True, env={**os.environ, "DEEPER": "1"})
run.finish()
"""
    train(more=more, LEAKLINE_RUN_ID="ours")
    roles = [process.role for _, process in processes(spool_directory)]
    assert roles == ["main", "child", "child", "child", "child"]


def test_what_outlives_the_run_that_started_it_may_resume_it(
    train: Any, spool_directory: Path, start: Start, tmp_path: Path
) -> None:
    """A wrapper that was started inside a run and starts the training again and again."""
    late = """
import subprocess, sys
run.finish()
subprocess.run([sys.executable, "eval.py"], check=True)
"""
    train(times=0, end=late, LEAKLINE_RUN_ID="ours")
    assert [(p.role, p.attempt) for _, p in processes(spool_directory)] == [
        ("main", 1), ("main", 2),
    ]  # fmt: skip
    # The process that announced the run is gone, or its number is another one's by now.
    for gone in (
        "ours:7:123:4194303",
        f"ours:7:1:{os.getpid()}",
        f"ours:7::{'9' * 30}",
        "ours",
        ":::",
    ):
        environ = {**os.environ, "LEAKLINE_RUN_ID": "ours", "_LEAKLINE_ANNOUNCED": gone}
        script = [sys.executable, str(tmp_path / "eval.py")]
        subprocess.run(script, check=True, timeout=60, env=environ, capture_output=True)
    assert [(p.role, p.attempt) for _, p in processes(spool_directory)[2:]] == [
        ("main", attempt) for attempt in range(3, 8)
    ]  # fmt: skip


def test_a_forked_child_that_starts_a_run_by_the_same_id_is_a_child_of_it(
    start: Start, spool_directory: Path
) -> None:
    process = start(
        """
import os, leakline
run = leakline.init(mode="offline")
pid = os.fork()
if pid == 0:
    own = leakline.init(mode="offline")
    assert own.id == run.id == "ours"
    own.finish()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
run.finish()
""",
        LEAKLINE_RUN_ID="ours",
    )
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 0
    (_, main), (_, child) = processes(spool_directory)
    assert (main.role, child.role, child.attempt) == ("main", "child", 1)
    assert main.pid != child.pid
