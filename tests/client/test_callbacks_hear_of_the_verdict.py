"""`run.on`: the user's function is called in the training process when the verdict gets that far."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.budget import Governor
from leakline.callbacks import KEPT_SNAPSHOTS, LADDER, OTHERS, VerdictWatch, _reached
from leakline.errors import BadArgument
from leakline.snapshot import ProcessIdentity, RunHeader, Snapshot
from leakline.verdict_events import EVENTS

MIB = 2**20
HEADER = RunHeader("r", "p", "n", "generation", None, 1.0)


def leaking(sequence: int, grown: int, generation: int | None = None) -> Snapshot:
    """The end of a generation after so many that each kept 100 MiB."""
    generation = grown if generation is None else generation
    size = 500 * MIB + grown * 100 * MIB
    samples = {
        "process.rss_bytes": size, "process.anon_bytes": size,
        "phase.train.bytes": 100 * MIB if grown == generation else 0,
        "phase.between.bytes": 0, "phase.leakline.bytes": 0, "generation.seconds": 1.0,
    }  # fmt: skip
    label, now = f"generation {generation}: end", float(sequence)
    return Snapshot(sequence, now, now, generation, None, label, "generation_end", samples)


@pytest.mark.parametrize("wrong", ["leaking", "incident.resolved", "run.finished", "", None, 5, []])
def test_a_wrong_name_raises_at_once_and_names_the_right_ones(
    offline: leakline.Run, wrong: Any
) -> None:
    with pytest.raises(BadArgument, match="event=") as raised:
        offline.on(wrong, print)
    assert all(name in str(raised.value) for name in (*LADDER, *OTHERS, *EVENTS))


def test_what_cannot_be_called_is_named(offline: leakline.Run) -> None:
    with pytest.raises(BadArgument, match="callback"):
        offline.on("suspected", "print")  # type: ignore[arg-type]


def watching(*wanted: str) -> tuple[VerdictWatch, list[tuple[str, Any]]]:
    """A watch with a callback for each, and where they tell what they heard."""
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(1.0, 1e9))
    heard: list[tuple[str, Any]] = []
    watch.follow()
    for name in wanted:
        watch.add(name, lambda verdict, name=name: heard.append((name, verdict)))
    return watch, heard


def call_due(watch: VerdictWatch) -> None:
    """As at a generation end, and at the next one where the look of this one is over."""
    watch.examine()
    watch._beside.wait(60)
    watch._take()
    for callback, verdict in watch.due():
        callback(verdict)


def test_a_leak_calls_back_once_when_it_is_suspected() -> None:
    watch, heard = watching("suspected")
    for generation in range(40):
        watch.see(leaking(generation + 1, generation))
        call_due(watch)
    assert len(heard) == 1
    assert heard[0][1].status in ("suspected", "confirmed")


def test_a_leak_that_stops_is_told_as_its_incident_once_for_each_change() -> None:
    watch, heard = watching(*EVENTS)
    for generation in range(90):
        watch.see(leaking(generation + 1, min(generation, 45), generation))
        call_due(watch)
    assert [name for name, _ in heard] == [
        "incident.suspected", "incident.confirmed", "incident.recovered"
    ]  # fmt: skip


def test_memory_that_runs_out_is_told_when_the_risk_is_high_and_when_critical() -> None:
    watch, heard = watching("oom.risk")
    for generation in range(40):
        snapshot = leaking(generation + 1, generation)
        limit = {
            "cgroup.limit_bytes": 4600 * MIB,
            "cgroup.used_bytes": snapshot.samples["process.rss_bytes"],
        }
        watch.see(replace(snapshot, samples={**snapshot.samples, **limit}))
        call_due(watch)
    risks = [verdict.oom.risk for _, verdict in heard]
    assert risks == ["high", "critical"]


def test_one_that_raises_leaves_the_others_due() -> None:
    watch, heard = watching("learning", "ok", "watch", "suspected")

    def fail(verdict: Any) -> None:
        raise ValueError

    watch._callbacks.insert(0, ("suspected", fail))
    raised = 0
    for generation in range(40):
        watch.see(leaking(generation + 1, generation))
        try:
            call_due(watch)
        except ValueError:
            raised += 1
            assert "suspected" not in [name for name, _ in heard]
    assert raised == 1
    assert [name for name, _ in heard].count("suspected") == 1


def test_nothing_is_examined_before_a_generation_ended_or_without_budget() -> None:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(0.0))
    watch.follow()
    watch.add("learning", print)
    watch.examine()
    watch.see(leaking(1, 0))
    watch.examine()
    assert (list(watch.due()), watch.status) == ([], "learning")


def test_a_jump_over_a_status_still_reaches_it() -> None:
    assert _reached("suspected", "watch", "confirmed")
    assert _reached("suspected", "ok", "suspected")
    assert not _reached("suspected", "suspected", "confirmed")
    assert not _reached("suspected", "confirmed", "watch")
    assert _reached("recovered", "confirmed", "recovered")
    assert not _reached("ok", "ok", "ok")


def test_what_is_kept_for_the_callbacks_is_bounded() -> None:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(0.0))
    watch.follow()
    for number in range(5 * KEPT_SNAPSHOTS):
        watch.see(leaking(number + 1, number))
    assert len(watch._snapshots) <= KEPT_SNAPSHOTS


def test_the_exception_of_a_callback_is_the_users(
    offline: leakline.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(verdict: Any) -> None:
        raise Stop

    # "learning" is the status before anything is known, so the first examined one differs from it.
    for status in ("learning", "ok", "filling", "watch"):
        offline.on(status, stop)
    with pytest.raises(Stop):
        for generation in range(30):
            offline.generation(generation)
            with offline.phase("train"):
                pass
            offline._chain.verdicts._beside.wait(60)


SCRIPT = """
import gc, leakline

class Agent:
    def __init__(self):
        self.weights = bytearray(1 << 20)

kept = []
run = leakline.init(mode="offline", quiet=True)
run.expect(Agent, (0, 1000))
run.expect(Agent, (0, 60), after="train")
for event in ("suspected", "incident.suspected", "incident.confirmed", "contract.violated"):
    run.on(event, lambda verdict, event=event: print(event, verdict.status))
for generation in range(40):
    with run.generation(generation), run.phase("train"):
        kept.extend(Agent() for _ in range(4))
        gc.collect()
run.finish()
"""


def test_a_real_training_without_a_server_hears_of_its_leak(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 0, ended.stderr
    heard = [line.split()[0] for line in ended.stdout.splitlines()]
    assert heard.count("suspected") == heard.count("incident.suspected") == 1
    assert len(heard) == len(set(heard))
