"""`run.on`: the user's function is called in the training process when the verdict gets that far."""

from __future__ import annotations

from typing import Any

import pytest

import leakline
from leakline.budget import Governor
from leakline.callbacks import KEPT_SNAPSHOTS, VerdictWatch, _reached
from leakline.errors import BadArgument
from leakline.snapshot import ProcessIdentity, RunHeader, Snapshot

MIB = 2**20
HEADER = RunHeader("r", "p", "n", "generation", None, 1.0)


def leaking(sequence: int, generation: int) -> Snapshot:
    size = 500 * MIB + generation * 100 * MIB
    samples = {
        "process.rss_bytes": size, "process.anon_bytes": size, "phase.train.bytes": 100 * MIB,
        "phase.between.bytes": 0, "phase.leakline.bytes": 0, "generation.seconds": 1.0,
    }  # fmt: skip
    label, now = f"generation {generation}: end", float(sequence)
    return Snapshot(sequence, now, now, generation, None, label, "generation_end", samples)


def test_a_wrong_status_or_callback_is_named() -> None:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(1.0, 1e9))
    with pytest.raises(BadArgument, match="status"):
        watch.add("leaking", print)
    with pytest.raises(BadArgument, match="callback"):
        watch.add("suspected", "print")  # type: ignore[arg-type]


def test_a_leak_calls_back_once_when_it_is_suspected() -> None:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(1.0, 1e9))
    heard: list[Any] = []
    watch.add("suspected", heard.append)
    for generation in range(40):
        watch.see(leaking(generation + 1, generation))
        for callback, verdict in watch.due():
            callback(verdict)
    assert len(heard) == 1
    assert heard[0].status in ("suspected", "confirmed")


def test_nothing_is_examined_before_a_generation_ended_or_without_budget() -> None:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(0.0))
    watch.add("watch", print)
    assert watch.due() == []
    watch.see(leaking(1, 0))
    assert watch.due() == []


def test_a_jump_over_a_status_still_reaches_it() -> None:
    assert _reached("suspected", "watch", "confirmed")
    assert _reached("suspected", "ok", "suspected")
    assert not _reached("suspected", "suspected", "confirmed")
    assert not _reached("suspected", "confirmed", "watch")
    assert _reached("recovered", "confirmed", "recovered")
    assert not _reached("ok", "ok", "ok")


def test_what_is_kept_for_the_callbacks_is_bounded() -> None:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(0.0))
    watch.add("watch", print)
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
