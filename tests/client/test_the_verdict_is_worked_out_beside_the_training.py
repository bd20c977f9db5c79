"""The verdict for `run.on` never stops the training thread: it is worked out on a thread of ours, by budget."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline import analysis
from leakline.analysis.history import history_from_batches
from leakline.analysis.results import Verdict
from leakline.budget import Governor
from leakline.callbacks import VerdictWatch
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

HEADER = RunHeader("r", "p", "n", "generation", None, 1.0)
NAME = "leakline-verdict"


def looks_under_way() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def end(number: int) -> Snapshot:
    samples = {"process.rss_bytes": 10**9 + number * 10**8, "generation.seconds": 1.0}
    now, label = float(number), f"generation {number}: end"
    return Snapshot(number + 1, now, now, number, None, label, "generation_end", samples)


@dataclass
class SlowAnalysis:
    """In place of the analysis: each look lasts until it is let go, and finds the run suspected."""

    go: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    fails: bool = False

    def examine(self, history: Any, kept: Any = None) -> Verdict:
        self.threads.append(threading.current_thread())
        self.kept.append(kept)
        assert self.go.wait(60)
        if self.fails:
            raise ZeroDivisionError
        return Verdict("r", "generation", 1, "suspected", "", None, None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowAnalysis]:
    analysed = SlowAnalysis()
    monkeypatch.setattr(analysis, "examine", analysed.examine)
    yield analysed
    analysed.go.set()


def watching(governor: Governor | None = None) -> tuple[VerdictWatch, list[str]]:
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), governor or Governor(1.0, 1e9))
    watch.follow()
    heard: list[str] = []
    watch.add("suspected", lambda verdict: heard.append(verdict.status))
    return watch, heard


def generation_end(watch: VerdictWatch, number: int) -> None:
    watch.see(end(number))
    watch.examine()
    for callback, verdict in watch.due():
        callback(verdict)


def test_a_generation_end_waits_for_no_look_and_begins_no_second_one(slow: SlowAnalysis) -> None:
    watch, heard = watching()
    for number in range(5):
        generation_end(watch, number)
        assert looks_under_way() == 1
    assert (heard, len(slow.threads)) == ([], 1)
    assert slow.threads[0] is not threading.current_thread()
    assert slow.threads[0].daemon
    slow.go.set()
    watch._beside.wait(60)
    # No generation has ended since.
    watch.examine()
    assert list(watch.due()) == []
    generation_end(watch, 5)
    assert heard == ["suspected"]


def test_what_came_while_a_look_was_under_way_is_looked_at_next(slow: SlowAnalysis) -> None:
    watch, _ = watching()
    generation_end(watch, 0)
    generation_end(watch, 1)
    watch.see(end(2))
    slow.go.set()
    watch._beside.wait(60)
    watch.examine()
    watch._beside.wait(60)
    assert len(slow.threads) == 2
    # And then nothing is new.
    watch.examine()
    assert watch._beside.is_free is False
    watch.conclude()
    assert len(slow.threads) == 2


def test_a_later_look_is_given_what_the_one_before_has_left(slow: SlowAnalysis) -> None:
    slow.go.set()
    watch, _ = watching()
    for number in range(3):
        generation_end(watch, number)
        watch._beside.wait(60)
    first, *others = slow.kept
    assert first is not None
    assert len(others) == 2 and all(each is first for each in others)


def test_the_verdict_beside_the_training_is_that_of_the_same_snapshots_anew() -> None:
    watch, _ = watching()
    for number in range(30):
        watch.see(end(number))
        watch._beside.begin(watch._snapshots[:])
        watch._beside.wait(60)
        look = watch._beside.take()
        assert look is not None
        batch = Batch(ProcessIdentity("i"), tuple(watch._snapshots))
        assert look.verdict == analysis.examine(history_from_batches(HEADER, [batch]))


def test_a_look_is_charged_to_the_budget_and_told_as_no_long_pause() -> None:
    governor = Governor(1.0, 1e9)
    watch, _ = watching(governor)
    governor.ledger()
    before = governor.spent_seconds
    for number in range(200):
        watch.see(end(number))
    watch.examine()
    watch._beside.wait(60)
    watch._take()
    assert governor.spent_seconds - before > 0.001
    assert governor.expects("verdict", 0.0) > 0.001
    assert 0 < governor.ledger()["client.pause_seconds"] <= governor.max_pause_seconds


def test_where_the_budget_has_no_room_no_look_begins(slow: SlowAnalysis) -> None:
    watch, _ = watching(Governor(0.0))
    generation_end(watch, 0)
    assert slow.threads == []


def test_a_look_that_fails_is_not_the_last(slow: SlowAnalysis, internal_exceptions: Any) -> None:
    slow.fails = True
    slow.go.set()
    watch, heard = watching()
    generation_end(watch, 0)
    watch._beside.wait(60)
    slow.fails = False
    for number in (1, 2):
        generation_end(watch, number)
        watch._beside.wait(60)
    assert heard == ["suspected"]
    assert [type(internal_exceptions.pop())] == [ZeroDivisionError]


def test_what_is_due_by_the_end_of_a_run_is_told_there(
    offline: leakline.Run, slow: SlowAnalysis
) -> None:
    heard: list[int] = []
    offline.on("suspected", lambda verdict: heard.append(threading.get_ident()))
    with offline.generation(0):
        pass
    assert heard == []
    slow.go.set()
    offline.finish()
    offline.finish()
    assert heard == [threading.get_ident()]


def test_a_callback_that_raises_at_the_end_of_a_run_does_not_keep_it_open(
    offline: leakline.Run, slow: SlowAnalysis
) -> None:
    def fail(verdict: Any) -> None:
        raise ValueError

    offline.on("suspected", fail)
    with offline.generation(0):
        pass
    slow.go.set()
    with pytest.raises(ValueError):
        offline.finish()
    assert leakline.current() is not offline


def test_a_run_ends_while_a_look_is_under_way_and_lets_go_of_the_program(
    offline: leakline.Run, slow: SlowAnalysis
) -> None:
    class Model:
        pass

    model = Model()
    gone = weakref.ref(model)
    offline.on("suspected", lambda verdict, model=model: pytest.fail("it is over"))
    del model
    with offline.generation(0):
        pass
    offline.finish()
    assert looks_under_way() == 1
    assert gone() is None
    watch = offline._chain.verdicts
    slow.go.set()
    watch._beside.wait(60)
    watch.see(end(1))
    watch.examine()
    assert (looks_under_way(), len(slow.threads), list(watch.due())) == (0, 1, [])


FORKS = """
import os, threading, leakline

def looks():
    return sum(thread.name == "leakline-verdict" for thread in threading.enumerate())

started, start = [], threading.Thread.start
threading.Thread.start = lambda thread: (started.append((thread.name, os.getpid())), start(thread))
run = leakline.init(mode="offline", quiet=True)
run.on("ok", lambda verdict: None)
children = []
for generation in range(30):
    with run.generation(generation):
        pass
    if generation % 10 == 0:
        child = os.fork()
        if not child:
            for later in range(generation + 1, generation + 20):
                with run.generation(later):
                    pass
            run.finish()
            wrong = looks() or [each for each in started if each[1] == os.getpid()]
            os._exit(1 if wrong else 0)
        children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
run.finish()
print("leakline-verdict" in [name for name, _ in started])
"""


def test_a_forked_child_begins_no_look(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FORKS)
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert (ended.returncode, ended.stdout) == (0, "[0, 0, 0]\nTrue\n"), ended.stderr
