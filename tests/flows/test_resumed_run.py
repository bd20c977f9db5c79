"""A real training killed at generation 7 and resumed at 6: one run, one leak with one rate, nothing counted twice."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.transport.spool_format import read_header

from .conftest import leakline, page_of, rows_of, train

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
