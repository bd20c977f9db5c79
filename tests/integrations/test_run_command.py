"""Slow tests of `leakline run`: with torchrun, a program that calls init late, and pytest with workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.cli.programs import Place
from tests.flows.conftest import clean_environment, eventually

# Otherwise glibc fragments the heap of the healthy rank: in 3 of 27 programs without Leakline memory grew by 6 MiB/s,
# and a finding about that would be right.
MAPPED = "131072"
RANK = """
import os, time, sys
import torch
import torch.distributed as dist

class Prediction:
    def __init__(self):
        self.values = torch.randn(100_000)

def main():
    dist.init_process_group("gloo")
    kept, began = [], time.monotonic()
    while time.monotonic() < began + 25:
        made = Prediction()
        if dist.get_rank() == 1:
            kept.append(made)
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
    dist.destroy_process_group()
    sys.exit(0)

main()
"""


def run(folder: Path, server: Any, *command: str, options: tuple[str, ...] = ()) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "leakline", "run", "--server", server.address, *options, "--", *command],
        cwd=folder, env=clean_environment(OMP_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_=MAPPED),
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def run_of(said: Any) -> str:
    (line,) = [line for line in said.stderr.splitlines() if line.startswith("leakline: run ")]
    return str(line.rpartition("/")[2])


def test_torchrun_ranks_are_one_run_and_the_leaking_one_is_named(
    server: Any, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "rank.py").write_text(RANK)
    said = run(
        tmp_path, server, sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", "2", "rank.py", options=("--per", "second", "--name", "ranks"),
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    told = eventually(
        lambda: (r := server.get(f"/runs/{run_of(said)}"))["state"] == "finished" and r
    )
    assert sorted((p["rank"], p["role"], p["attempt"]) for p in told["processes"]) == [
        (0, "main", 1),
        (1, "main", 1),
    ]
    assert (told["name"], told["unit"]) == ("ranks", "second")
    verdict = server.get(f"/runs/{told['id']}/verdict")
    assert verdict["status"] in ("suspected", "confirmed"), verdict["summary"]
    found = [f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed")]
    assert {f["process"] for f in found} == {"rank 1 main"}, found
    assert "Prediction" in said.stderr.splitlines()[-1] or "Tensor" in said.stderr.splitlines()[-1]


def test_a_rank_that_fails_fails_the_launch(server: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "rank.py").write_text("import os, sys\nsys.exit(int(os.environ['RANK']) * 9)\n")
    command = (
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "rank.py",
    )  # fmt: skip
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=100)
    assert run(tmp_path, server, *command).returncode == alone.returncode != 0


FEW_EPOCHS = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Prediction:
    def __init__(self):
        self.values = torch.randn(100_000)

model, kept = nn.Linear(64, 8), []
optimizer = torch.optim.SGD(model.parameters(), 0.01)
train = DataLoader(TensorDataset(torch.randn(960, 64)), 32, shuffle=True)
test = DataLoader(TensorDataset(torch.randn(960, 64)), 32)

def keep(phase):
    made = Prediction()
    if sys.argv[1] == phase:
        kept.append(made)

for epoch in range(5):
    for (x,) in train:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        keep("train")
        time.sleep(0.12)
    with torch.no_grad():
        for (x,) in test:
            model(x)
            keep("evaluation")
"""


@pytest.mark.parametrize("phase", ["train", "evaluation", "nowhere"])
def test_five_epochs_of_a_few_seconds_are_enough_for_a_verdict(
    server: Any, tmp_path: Path, phase: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(FEW_EPOCHS)
    said = run(tmp_path, server, sys.executable, "train.py", phase)
    assert said.returncode == 0, said.stderr
    finished = eventually(
        lambda: (r := server.get(f"/runs/{run_of(said)}"))["state"] == "finished" and r
    )
    verdict = server.verdict(finished["id"], finished["generations"])
    found = [f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed")]
    assert {f["phase"] for f in found} == ({phase} - {"nowhere"}), verdict["summary"]
    if phase == "nowhere":
        assert verdict["status"] == "ok", verdict["summary"]


def test_a_program_that_calls_init_late_continues_the_same_run(server: Any, tmp_path: Path) -> None:
    """The script loads for a long time and does not mention Leakline, so the run is announced before init is called."""
    (tmp_path / "later.py").write_text(
        textwrap.dedent(
            """
            import leakline
            run = leakline.init(project="own", unit="epoch", resume="never")
            for number in range(7):
                with run.epoch(number):
                    pass
            """
        )
    )
    (tmp_path / "train.py").write_text("import time\ntime.sleep(7)\nimport later\n")
    said = run(tmp_path, server, sys.executable, "train.py", options=("--project", "given"))
    assert said.returncode == 0, said.stderr
    # Only the program prints the verdict, and only the command where to see the run.
    assert len(said.stderr.splitlines()) == 2, said.stderr
    told = eventually(lambda: (r := server.get(f"/runs/{run_of(said)}"))["generations"] == 7 and r)
    assert (told["project"], told["unit"]) == ("given", "epoch")
    assert [p["attempt"] for p in told["processes"]] == [1, 2]
    assert server.verdict(told["id"], 7)["unit"] == "epoch"


def test_marked_tests_are_checked_in_xdist_workers(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import pytest
            kept = []

            @pytest.mark.leakline
            def test_leaking():
                kept.append(bytearray(3_000_000))

            @pytest.mark.leakline
            def test_healthy():
                bytearray(3_000_000)
            """
        )
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "xdist", "-p", "leakline.pytest_plugin",
            "--junit-xml", "report.xml",
        ],
        cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert re.search(r"retains at least 2\.[89]\d MiB per call", done.stdout), done.stdout
    assert "leakline_growth_bytes_per_generation" in (tmp_path / "report.xml").read_text()


def test_a_leak_is_named_from_inside_and_detected_from_outside(tmp_path: Path) -> None:
    """Both in one process at the same time, because each takes ten seconds."""
    place = Place(tmp_path)
    script = place.write(
        """
        import os, time
        class Episode:
            def __init__(self):
                self.steps = bytearray(400_000)
        print(os.getpid(), flush=True)
        kept, began = [], time.monotonic()
        while time.monotonic() < began + 10:
            kept.append(Episode())
            time.sleep(0.04)
        """
    )
    run = subprocess.Popen(
        place.line([sys.executable, script], "--per", "second"),
        cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    pid = run.stdout.readline().strip()
    alongside = tmp_path / "beside"
    alongside.mkdir()
    watch = subprocess.run(
        [
            sys.executable, "-m", "leakline", "watch", pid, "--mode", "offline", "--per", "second",
            "--project", "night",
        ],
        cwd=alongside, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    _, errors = run.communicate(timeout=60)
    assert (run.returncode, watch.returncode) == (0, 0)
    inside, outside = errors.splitlines()[-1], watch.stderr.splitlines()[-1]
    assert re.match(r"leakline: (suspected|confirmed): .* keeps \d+ Episode per second", inside)
    assert re.match(r"leakline: (watch|suspected|confirmed): .* per second", outside)
    assert "Episode" not in outside
    (recorded,) = Place(alongside).recorded()
    header = recorded.header
    assert (header.project, header.unit, recorded.process.pid) == ("night", "second", int(pid))
    assert header.environment["command_line"][-1] == script
    assert "packages" not in header.environment
    sizes = [s.samples.get("process.rss_bytes") for s in recorded.snapshots]
    known = [size for size in sizes if size is not None]
    assert known[-1] > known[0] + 30 * 2**20
    assert 0 not in sizes
    state, reason = recorded.how
    assert (state, "exit status is not available" in reason) == ("finished", True)
    # Nothing of the watching process itself is recorded.
    names = {name for s in recorded.snapshots for name in s.samples}
    assert not any(name.startswith(("type.", "python.")) for name in names)


def test_pool_workers_do_not_start_runs(tmp_path: Path) -> None:
    place = Place(tmp_path)
    said = place.python(
        """
        import multiprocessing
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(abs, [-1]))
        """,
        "--children",
    )  # fmt: skip
    assert said.stdout == "[1]\n[1]\n"
    assert [r.process.role for r in place.recorded()] == ["main"]
