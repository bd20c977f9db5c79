"""Real DataLoader workers and torchrun ranks on a real server: one run with its processes and attempts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.snapshot import ProcessIdentity
from leakline.transport.spool_format import read_batches, read_end, read_header

from .conftest import clean_environment

pytestmark = [pytest.mark.flow, pytest.mark.long]
pytest.importorskip("torch")

LOADER = """
import sys
import leakline
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

run = leakline.init(mode="offline", quiet=True)


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        assert get_worker_info() is not None
        inner = leakline.init(mode="offline", quiet=True)
        with leakline.current().phase("in a worker"), inner.phase("in a worker"):
            leakline.current().mark("in a worker")
        return torch.tensor([float(i), float(bool(inner.id or leakline.current().id))])


def main():
    loader = DataLoader(
        Numbers(), batch_size=8, num_workers={workers}, persistent_workers={persistent},
        multiprocessing_context={method!r},
    )
    for epoch in range(2):
        with run.epoch(epoch), run.phase("train"):
            seen = torch.cat(list(loader))
        assert seen[:, 0].sum() == sum(range(64))
        assert not seen[:, 1].any(), "a worker has a run"
    run.finish()


if __name__ == "__main__":
    main()
"""

# The launcher needs torch; for the ranks only its environment matters.
RANK = """
import os, pathlib, signal, time
import leakline

arrived = pathlib.Path("arrived")
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
run = leakline.init(project="torchrun", quiet=True)
for generation in range(6 * restart, 12):
    with run.generation(generation), run.phase("train"):
        pass
    if restart == 0 and generation == 7:
        # Both are running when one is killed; the launcher terminates the other.
        if rank == 0:
            arrived.touch()
            time.sleep(60)
        until = time.monotonic() + 60
        while not arrived.exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
run.finish()
"""


def launched(folder: Path, server: Any, restarts: int) -> subprocess.CompletedProcess[str]:
    """Launch two ranks, the second of which is killed in generation 7 of its first attempt."""
    (folder / "rank.py").write_text(RANK)
    environ = clean_environment(LEAKLINE_SERVER=server.address, OMP_NUM_THREADS="1")
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--max-restarts", str(restarts), "rank.py",
        ],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    # A quiet run prints no line of ours. File names in a traceback may contain "leakline".
    assert not any(line.startswith("leakline: ") for line in done.stderr.splitlines())
    return done


def recorded(folder: Path) -> dict[tuple[int, int], tuple[str, ProcessIdentity, str | None]]:
    """Return (rank, attempt) -> (run, process, end state) of every spool."""
    found = {}
    for path in (folder / ".leakline").rglob("*.spool"):
        run, process = read_header(path)
        end = read_end(path)
        key = process.rank, process.attempt
        assert key not in found
        found[key] = run.id, process, None if end is None else str(end["state"])
    return found


def test_a_restarted_launch_is_two_attempts_of_one_run(
    server: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    done = launched(tmp_path, server, restarts=1)
    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path)
    ends = {key: end for key, (_, _, end) in found.items()}
    assert ends.pop((0, 1)) == "terminated"
    # It could not report its end; the next start of its rank may have recovered it.
    assert ends.pop((1, 1)) in (None, "silent", "killed")
    assert ends == {(0, 2): "finished", (1, 2): "finished"}
    (run,) = {run for run, _, _ in found.values()}
    told = eventually(lambda: (r := server.get(f"/runs/{run}"))["state"] == "finished" and r)
    assert {(p["rank"], p["attempt"]): p["instance"] for p in told["processes"]} == {
        key: process.instance for key, (_, process, _) in found.items()
    }
    assert [a["number"] for a in told["attempts"]] == [1, 2]
    assert all("rank.py" in str(a["environment"]["command_line"]) for a in told["attempts"])
    verdict = server.verdict(run, 12)
    assert verdict["generations"] == 12
    phase_accounts = server.get(f"/runs/{run}/phases")
    assert phase_accounts["generations"] == list(range(12))


def test_a_rank_that_dies_leaves_its_run_unfinished(
    server: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    assert launched(tmp_path, server, restarts=0).returncode != 0
    found = recorded(tmp_path)
    assert set(found) == {(0, 1), (1, 1)}
    # One is killed without a record of its end; the launcher terminates the other.
    assert found[1, 1][2] is None
    assert found[0, 1][2] == "terminated"
    (run,) = {run for run, _, _ in found.values()}
    rank = eventually(
        lambda: [p for p in server.get(f"/runs/{run}")["processes"] if p["end_state"]]
    )
    assert [p["rank"] for p in rank] == [0]
    assert server.get(f"/runs/{run}")["state"] != "finished"


# A spawned worker imports torch again.
@pytest.mark.parametrize(
    ("method", "persistent", "workers"), [("fork", False, 2), ("spawn", True, 1)]
)
def test_data_loader_workers_do_not_start_a_second_run(
    tmp_path: Path, method: str, persistent: bool, workers: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADER.format(method=method, persistent=persistent, workers=workers))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=clean_environment(), capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "leakline: " not in done.stderr
    (path,) = (tmp_path / ".leakline").rglob("*.spool")
    told = [
        s.phase for batch in read_batches(path) for s in batch.snapshots if s.kind == "phase_end"
    ]
    assert told == ["train", "train"]
    assert read_header(path)[1].pid != os.getpid()
    assert (read_end(path) or {})["state"] == "finished"
