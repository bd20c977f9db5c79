"""A real training killed at generation 7 and resumed at 6: one run, one leak with one rate, nothing counted twice."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.transport.spool_format import read_header

from .conftest import clean_environment, leakline, page_of, rows_of, train

pytestmark = pytest.mark.flow
MIB = 2**20
LEAKED = 8 * MIB

# Has much memory that the resumed attempt does not allocate, and leaks the same in both attempts.
TRAINING = """
import os, signal, sys, time
import leakline


class Kept:
    def __init__(self):
        self.data = bytearray(b"1") * (8 << 20)


first, last, held, die = map(int, sys.argv[1:])
population = bytearray(b"1") * (held << 20)
kept = []
run = leakline.init(project="resumed", name="resumed", quiet=True)
for generation in range(first, last + 1):
    with run.generation(generation):
        with run.phase("evaluate"):
            kept.append(Kept())
        with run.phase("train"):
            time.sleep(0.05)
    if generation == die:
        # Data older than a second has reached the server.
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
run.finish()
"""


@pytest.mark.long
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_resumed_training_is_one_run_with_one_leak(
    server: Any, tmp_path: Path, eventually: Callable[..., Any], elsewhere: bool
) -> None:
    run = f"resumed-{'elsewhere' if elsewhere else 'here'}"
    assert train(server, tmp_path / "one", run, TRAINING, 0, 20, 300, 7) == -signal.SIGKILL
    second = tmp_path / ("two" if elsewhere else "one")
    assert train(server, second, run, TRAINING, 6, 22, 30, -1) == 0
    # Without the first spool, the second attempt does not know of an earlier one.
    said = [read_header(path)[1].attempt for path in (second / ".leakline").rglob("*.spool")]
    assert sorted(said) == ([1] if elsewhere else [1, 2])

    verdict = server.verdict(run, 23)
    assert verdict["generations"] == 23
    active = [f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed")]
    assert len(active) == 1, verdict["summary"]
    assert verdict["status"] == active[0]["status"]
    assert active[0]["phase"] == "evaluate"
    rate = active[0]["growth_bytes_per_generation"]["estimate"]
    assert rate == pytest.approx(LEAKED, rel=0.15)
    assert verdict["growth_bytes_per_generation"]["estimate"] == pytest.approx(LEAKED, rel=0.15)

    told = eventually(lambda: (r := server.get(f"/runs/{run}"))["state"] == "finished" and r)
    assert told["attempt"] == 2
    assert [(p["attempt"], p["rank"], p["role"]) for p in told["processes"]] == [
        (1, 0, "main"), (2, 0, "main"),
    ]  # fmt: skip
    described = [a["environment"] for a in told["attempts"]]
    assert ["-1" in str(e["command_line"]) for e in described] == [False, True]
    assert all("packages" in e and "python" in e for e in described)

    # Each attempt is listed with its generations, and the repeated ones are known.
    first, second = verdict["attempts"]
    assert first["generations"] == {"first": 0, "last": 7}
    assert first["again"] is None
    assert second["generations"] == {"first": 6, "last": 22}
    assert second["again"] == {"first": 6, "last": 7}
    for each in (first, second):
        grown = each["growth_bytes_per_generation"]
        assert grown["low"] <= LEAKED * 1.1
        assert grown["estimate"] == pytest.approx(LEAKED, rel=0.25)
    newest, oldest = rows_of(page_of(server, f"/runs/{run}"), "attempts")[1:]
    assert "6 to 22" in newest and "6 to 7" in newest
    assert "0 to 7" in oldest and "6 to 7" not in oldest
    assert re.search(r"\+[789]\.\d\d MiB", newest) and re.search(r"\+[6789]\.\d\d MiB", oldest)

    phase_accounts = server.get(f"/runs/{run}/phases")
    assert phase_accounts["generations"] == list(range(23))
    # The 270 MiB freed by the end of the process are not a release, and repeated generations are counted once.
    assert min(phase_accounts["total"]) > -LEAKED
    lines = {line["name"]: line["bytes"] for line in phase_accounts["lines"]}
    for generation in range(23):
        booked = lines["evaluate"][generation]
        assert booked == pytest.approx(LEAKED, rel=0.3), generation


def test_a_restart_without_a_leak_is_not_reported_as_recovery(server: Any, tmp_path: Path) -> None:
    """Nothing leaks, and half of the memory is gone after the restart, which proves nothing."""
    run = "resumed-healthy"
    script = TRAINING.replace("kept.append(Kept())", "Kept()")
    assert script != TRAINING
    for arguments in ((0, 20, 300, 7), (6, 22, 30, -1)):
        train(server, tmp_path / "one", run, script, *arguments)
    verdict = server.verdict(run, 23)
    assert verdict["status"] == "ok"
    assert [f for f in verdict["findings"] if f["status"] not in ("ok",)] == []


@pytest.mark.long
def test_offline_recordings_of_three_machines_sync_in_any_order(
    server: Any, tmp_path: Path
) -> None:
    run = "synced"
    folders = [tmp_path / f"machine-{n}" for n in range(3)]
    for n, folder in enumerate(folders):
        last = 4 * n + 5
        arguments = (4 * n, last, 10, -1)
        assert train(server, folder, run, TRAINING, *arguments, LEAKLINE_MODE="offline") == 0
    for _ in range(2):
        for n in (2, 0, 1):
            assert leakline(server, "sync", str(folders[n] / ".leakline")).returncode == 0
    told = server.get(f"/runs/{run}")
    assert (told["state"], told["attempt"]) == ("finished", 3)
    lasts = [(a["number"], a["environment"]["command_line"][-3]) for a in told["attempts"]]
    assert lasts == [(1, "5"), (2, "9"), (3, "13")]
    assert sorted(p["attempt"] for p in told["processes"]) == [1, 2, 3]
    assert server.get(f"/runs/{run}/phases")["generations"] == list(range(14))
    assert server.verdict(run, 14)["generations"] == 14


EPOCHS = """
import ast, sys
import leakline

run_id, first, last, resume = sys.argv[1], *map(ast.literal_eval, sys.argv[2:])
run = leakline.init(project=run_id, id=run_id, resume=resume)
for epoch in range(first, last + 1):
    with run.epoch(epoch), run.phase("train"):
        pass
run.finish()
print("trained")
"""


def epochs(
    server: Any, folder: Path, run: str, first: int, last: int, resume: object, **environ: str
) -> str:
    """Train from the first to the last epoch, which always succeeds, and return the lines on stderr."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(EPOCHS)
    done = subprocess.run(
        [sys.executable, "train.py", run, *map(repr, (first, last, resume))], cwd=folder, capture_output=True,
        text=True, timeout=100, env=clean_environment(LEAKLINE_SERVER=server.address, **environ), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def attempts_of(server: Any, run: str) -> list[int]:
    """Return the attempts of the processes of a run, or [] if the run does not exist."""
    items = server.get(f"/runs?project={run}")["items"]
    return [each["attempt"] for _ in items for each in server.get(f"/runs/{run}")["processes"]]


@pytest.mark.parametrize("resume", [None, True, "allow", "auto", "must"])
def test_a_resumed_run_continues_its_epochs(
    server: Any, tmp_path: Path, eventually: Callable[..., Any], resume: str | bool | None
) -> None:
    run = f"epochs-{resume}"
    # The argument takes precedence over the variable, and each machine has its own folder.
    other = {"LEAKLINE_RUN_ID": "another"}
    epochs(server, tmp_path / "one", run, 0, 39, None if resume == "must" else resume, **other)
    said = epochs(server, tmp_path / "two", run, 40, 59, resume, **other)
    assert "does not accept" not in said and "it is recorded as" not in said
    resumed = eventually(lambda: (r := server.get(f"/runs/{run}"))["generations"] == 60 and r)
    assert (resumed["attempt"], resumed["unit"], resumed["state"]) == (2, "epoch", "finished")
    assert [each["id"] for each in server.get(f"/runs?project={run}")["items"]] == [run]
    verdict = server.verdict(run, 60)
    assert [each["generations"] for each in verdict["attempts"]] == [
        {"first": 0, "last": 39}, {"first": 40, "last": 59},
    ]  # fmt: skip
    assert [each["again"] for each in verdict["attempts"]] == [None, None]
    assert server.get(f"/runs/{run}/phases")["generations"] == list(range(60))
    newest, oldest = rows_of(page_of(server, f"/runs/{run}"), "attempts")[1:]
    assert "40 to 59" in newest and "0 to 39" in oldest


def test_a_run_that_must_exist_is_only_recorded_if_it_does_not(server: Any, tmp_path: Path) -> None:
    run, recorded = "must-exist", tmp_path / "one" / ".leakline"
    said = epochs(server, tmp_path / "one", run, 0, 5, "must")
    (line,) = [each for each in said.splitlines() if "does not accept this run (404" in each]
    assert f'run {run} does not exist, but resume="must" requires it' in line
    assert "recording continues in" in line
    assert len(list(recorded.rglob("*.spool"))) == 1
    done = leakline(server, "sync", str(recorded))
    assert done.returncode == 1 and 'resume="must"' in done.stdout
    assert attempts_of(server, run) == []
    assert leakline(server, "sync", "--again", str(recorded)).returncode == 0
    assert attempts_of(server, run) == [1]
    assert server.verdict(run, 6)["generations"] == 6


def test_a_run_that_must_be_new_is_not_continued(server: Any, tmp_path: Path) -> None:
    run = "must-be-new"
    assert "does not accept" not in epochs(server, tmp_path / "one", run, 0, 5, "never")
    said = epochs(server, tmp_path / "two", run, 6, 9, "never")
    (line,) = [each for each in said.splitlines() if "does not accept this run (409" in each]
    assert f'run {run} already exists, but resume="never" requires a new id' in line
    assert attempts_of(server, run) == [1]
    # The next start in the same folder uploads its own recording, not the one that was refused.
    epochs(server, tmp_path / "two", run, 6, 7, "must")
    assert attempts_of(server, run) == [1, 2]
    assert server.verdict(run, 8)["generations"] == 8


def test_offline_recordings_are_checked_when_they_are_uploaded(server: Any, tmp_path: Path) -> None:
    run = "checked-later"
    for name, first, resume in (("one", 0, "never"), ("two", 6, "never"), ("three", 6, "must")):
        epochs(server, tmp_path / name, run, first, first + 5, resume, LEAKLINE_MODE="offline")
    statuses = [
        leakline(server, "sync", str(tmp_path / name / ".leakline")).returncode
        for name in ("three", "one", "two", "three", "three")
    ]
    assert statuses == [1, 0, 1, 0, 0]
    assert attempts_of(server, run) == [1, 2]
    assert server.verdict(run, 12)["generations"] == 12


def test_recordings_are_uploaded_in_the_order_of_their_starts(server: Any, tmp_path: Path) -> None:
    run, folder = "in-order", tmp_path / ".leakline" / "in-order"
    for first, resume, name in ((0, "never", "z"), (6, "allow", "a")):
        epochs(server, tmp_path, run, first, first + 5, resume, LEAKLINE_MODE="offline")
        newest = max(folder.glob("*.spool"), key=lambda spool: spool.stat().st_mtime_ns)
        newest.rename(folder / f"{name}.spool")
    assert leakline(server, "sync", str(folder.parent)).returncode == 0
    assert attempts_of(server, run) == [1, 2]
