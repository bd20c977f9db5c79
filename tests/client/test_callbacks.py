"""`run.on` calls functions of the program when the verdict changes. The verdict is computed on its own thread."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.client.conftest import no_threads

import leakline
from leakline import Run, analysis
from leakline.actions.callbacks import (
    EVENTS,
    EVENTS_KEPT,
    HOLDERS_KEPT,
    KEPT_SNAPSHOTS,
    LADDER,
    OTHERS,
    TIMES_KEPT,
    VerdictEvents,
    VerdictWatch,
    _reached,
    lasting_events,
    thinned,
)
from leakline.analysis.results import Finding, Interval, OomForecast, Suspect, Verdict
from leakline.errors import BadArgument
from leakline.sampling.overhead_budget import Governor
from leakline.snapshot import (
    EVENT_KINDS,
    Event,
    Holder,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)

MIB = 2**20
HEADER = RunHeader("r", "p", "n", "generation", None, 1.0)


def generation_end_of(number: int, size: int, samples: dict[str, float] | None = None) -> Snapshot:
    of_all = {"process.rss_bytes": size, "process.anon_bytes": size, "generation.seconds": 1.0}
    now, label = float(number), f"generation {number}: end"
    samples = {**of_all, **(samples or {})}
    return Snapshot(number + 1, now, now, number, None, label, "generation_end", samples)


def leaking(grown: int, generation: int) -> Snapshot:
    """Return the end of ``generation``, after ``grown`` generations that each kept 100 MiB."""
    phase_accounts = {"phase.between.bytes": 0, "phase.leakline.bytes": 0}
    phase_accounts["phase.train.bytes"] = 100 * MIB if grown == generation else 0
    return generation_end_of(generation, 500 * MIB + grown * 100 * MIB, phase_accounts)


@pytest.mark.parametrize("wrong", ["leaking", "incident.resolved", "run.finished", "", None, 5, []])
def test_unknown_events_and_uncallable_callbacks_raise(offline: Run, wrong: Any) -> None:
    with pytest.raises(BadArgument, match="event=") as raised:
        offline.on(wrong, print)
    assert all(name in str(raised.value) for name in (*LADDER, *OTHERS, *EVENTS))
    with pytest.raises(BadArgument, match="callback"):
        offline.on("suspected", "print")  # type: ignore[arg-type]


def watching(
    *wanted: str, governor: Governor | None = None
) -> tuple[VerdictWatch, list[tuple[str, Any]]]:
    """Return a watch with a callback for each event, and the list that the callbacks append to."""
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), governor or Governor(1.0, 1e9))
    heard: list[tuple[str, Any]] = []
    watch.follow()
    for name in wanted:
        watch.add(name, lambda verdict, name=name: heard.append((name, verdict)))
    return watch, heard


def call_due(watch: VerdictWatch) -> None:
    """Run the analysis and its callbacks as at two consecutive generation ends."""
    watch.examine()
    watch._verdict_thread.wait(60)
    watch._take()
    for callback, verdict in watch.due():
        callback(verdict)


def test_each_status_change_calls_back_once() -> None:
    watch, heard = watching("suspected", *EVENTS)
    for generation in range(90):
        watch.see(leaking(min(generation, 45), generation))
        call_due(watch)
    assert [name for name, _ in heard] == ["suspected", S, C, R]


def test_skipping_a_status_still_counts_as_reaching_it() -> None:
    assert _reached("suspected", "watch", "confirmed")
    assert _reached("suspected", "ok", "suspected")
    assert not _reached("suspected", "suspected", "confirmed")
    assert not _reached("suspected", "confirmed", "watch")
    assert _reached("recovered", "confirmed", "recovered")
    assert not _reached("ok", "ok", "ok")


S, C, R, V = "incident.suspected", "incident.confirmed", "incident.recovered", "contract.violated"


def looks_under_way() -> int:
    return sum(thread.name == "leakline-verdict" for thread in threading.enumerate())


def end(number: int) -> Snapshot:
    return generation_end_of(number, 10**9 + number * 10**8)


@dataclass
class SlowAnalysis:
    """Stand-in for the analysis: each call blocks until released and returns the status suspected."""

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


def generation_end(watch: VerdictWatch, number: int) -> None:
    watch.see(end(number))
    watch.examine()
    for callback, verdict in watch.due():
        callback(verdict)


def fail(verdict: Any) -> None:
    raise ValueError


def test_a_callback_that_raises_does_not_cancel_the_others(slow: SlowAnalysis) -> None:
    slow.go.set()
    watch, heard = watching("suspected")
    watch._callbacks.insert(0, ("suspected", fail))
    generation_end(watch, 0)
    watch._verdict_thread.wait(60)
    with pytest.raises(ValueError):
        generation_end(watch, 1)
    generation_end(watch, 2)
    assert [name for name, _ in heard] == ["suspected"]


def test_a_generation_end_never_waits_for_an_analysis(slow: SlowAnalysis) -> None:
    watch, heard = watching("suspected")
    for number in range(5):
        generation_end(watch, number)
        assert looks_under_way() == 1
    assert (heard, len(slow.threads)) == ([], 1)
    assert slow.threads[0] is not threading.current_thread()
    assert slow.threads[0].daemon
    slow.go.set()
    watch._verdict_thread.wait(60)
    # No generation has ended since.
    watch.examine()
    assert list(watch.due()) == []
    generation_end(watch, 5)
    assert [verdict.status for _, verdict in heard] == ["suspected"]
    # The second analysis includes what arrived during the first; after that nothing is new.
    watch._verdict_thread.wait(60)
    watch.examine()
    watch.conclude()
    assert len(slow.threads) == 2


def test_the_incremental_cache_is_passed_to_later_analyses(slow: SlowAnalysis) -> None:
    slow.go.set()
    watch, _ = watching("suspected")
    for number in range(3):
        generation_end(watch, number)
        watch._verdict_thread.wait(60)
    first, *others = slow.kept
    assert first is not None
    assert len(others) == 2 and all(each is first for each in others)


def test_an_analysis_is_charged_to_the_budget_without_a_long_pause() -> None:
    # This thread's CPU time is not affected by other programs.
    governor = Governor(1.0, 1e9, clock=time.thread_time)
    watch, _ = watching("suspected", governor=governor)
    governor.ledger()
    before = governor.spent_seconds
    for number in range(200):
        watch.see(end(number))
    watch.examine()
    watch._verdict_thread.wait(60)
    watch._take()
    assert governor.spent_seconds - before > 0.001
    assert governor.expects("verdict", 0.0) > 0.001
    assert 0 < governor.ledger()["client.pause_seconds"] <= governor.max_pause_seconds


def test_no_analysis_starts_before_a_generation_ends_or_without_budget(slow: SlowAnalysis) -> None:
    for governor in (Governor(1.0, 1e9), Governor(0.0)):
        watch, _ = watching("suspected", governor=governor)
        # No generation has ended.
        watch.examine()
        assert looks_under_way() == 0
    generation_end(watch, 0)
    assert (slow.threads, list(watch.due()), watch.status) == ([], [], "learning")


def test_a_failed_analysis_is_followed_by_others(
    slow: SlowAnalysis, internal_exceptions: Any
) -> None:
    slow.fails = True
    slow.go.set()
    watch, heard = watching("suspected")
    generation_end(watch, 0)
    watch._verdict_thread.wait(60)
    slow.fails = False
    for number in (1, 2):
        generation_end(watch, number)
        watch._verdict_thread.wait(60)
    assert [verdict.status for _, verdict in heard] == ["suspected"]
    assert [type(internal_exceptions.pop())] == [ZeroDivisionError]


def test_an_analysis_without_a_thread_runs_at_the_end(slow: SlowAnalysis) -> None:
    slow.go.set()
    watch, heard = watching("suspected")
    with no_threads(), pytest.raises(RuntimeError):
        generation_end(watch, 0)
    watch.conclude()
    for callback, verdict in watch.due():
        callback(verdict)
    assert [name for name, _ in heard] == ["suspected"]


def test_callbacks_work_after_the_spool_was_deleted(offline: Run, slow: SlowAnalysis) -> None:
    slow.go.set()
    with offline.generation(0):
        pass
    chain = offline._chain
    chain.flush()
    assert chain.spool_path is not None
    chain.spool_path.unlink()
    heard: list[str] = []
    offline.on("suspected", lambda verdict: heard.append(verdict.status))
    assert chain.verdicts.follows
    with offline.generation(1):
        pass
    offline.finish()
    assert heard == ["suspected"]


def test_two_threads_adding_the_first_callback_start_the_watch_once(
    offline: Run, slow: SlowAnalysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.go.set()
    chain, both = offline._chain, threading.Barrier(2)
    recorded = chain._recorded

    def recorded_by_both() -> list[Snapshot]:
        # If one thread has to wait for the other, they never meet here.
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return recorded()

    monkeypatch.setattr(chain, "_recorded", recorded_by_both)
    heard: list[Any] = []
    threads = [
        threading.Thread(target=offline.on, args=("suspected", heard.append)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with offline.generation(0):
        pass
    kept = [snapshot.sequence for snapshot in chain.verdicts._snapshots]
    assert kept == sorted(set(kept))
    offline.finish()
    assert len(heard) == 2


def test_due_callbacks_are_called_at_the_end_of_a_run(offline: Run, slow: SlowAnalysis) -> None:
    heard: list[int] = []
    offline.on("suspected", lambda verdict: heard.append(threading.get_ident()))
    with offline.generation(0):
        pass
    assert heard == []
    slow.go.set()
    offline.finish()
    offline.finish()
    assert heard == [threading.get_ident()]


@pytest.mark.parametrize("at_end", [False, True])
def test_an_exception_in_a_callback_reaches_the_program_and_the_run_ends(
    offline: Run, slow: SlowAnalysis, at_end: bool
) -> None:
    offline.on("suspected", fail)
    with offline.generation(0):
        pass
    slow.go.set()
    offline._chain.verdicts._verdict_thread.wait(60)
    with pytest.raises(ValueError):
        if at_end:
            offline.finish()
        with offline.generation(1):
            pass
    assert (leakline.current() is offline) is not at_end


def test_a_run_that_ends_during_an_analysis_releases_the_program(
    offline: Run, slow: SlowAnalysis
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
    watch._verdict_thread.wait(60)
    watch.see(end(1))
    watch.examine()
    assert (looks_under_way(), len(slow.threads), list(watch.due())) == (0, 1, [])


FORKS = """
import os, threading, leakline

def train(first):
    for generation in range(first, first + 20):
        with run.generation(generation):
            pass

started, start = [], threading.Thread.start
threading.Thread.start = lambda thread: (started.append(thread.name), start(thread))
run = leakline.init(mode="offline", quiet=True)
run.on("ok", lambda verdict: None)
train(0)
print("leakline-verdict" in started, flush=True)
started.clear()
child = os.fork()
if not child:
    train(20)
    run.finish()
    os._exit(len(started))
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_starts_no_analysis(start: Any) -> None:
    assert start(FORKS).communicate(timeout=90) == ("True\n0\n", "")


def finding(
    status: Any, kind: Any = "objects", name: str = "f", suspect: str = "app.Agent"
) -> Finding:
    growth = Interval(1e6, 9e5, 1.1e6)
    return Finding(
        name, status, kind, "train", 0.9, (Suspect(suspect, "type"),), growth, Interval(3, 2, 4), 0.9
    )  # fmt: skip


def verdict(*findings: Finding, risk: Any = "none") -> Verdict:
    return Verdict(
        "r", "generation", 9, "ok", "", None, None, tuple(findings), oom=OomForecast(risk)
    )


def happened(*verdicts: Verdict) -> list[set[str]]:
    events = VerdictEvents()
    return [events.since_last(each) for each in verdicts]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["watch", "suspected", "suspected"], [set(), {S}, set()]),
        (["suspected", "confirmed", "confirmed"], [{S}, {C}, set()]),
        (["confirmed", "suspected", "confirmed"], [{S, C}, set(), set()]),
        (["suspected", "watch", "suspected"], [{S}, set(), set()]),
        (["suspected", "recovered", "recovered"], [{S}, {R}, set()]),
        (["suspected", "recovered", "suspected"], [{S}, {R}, {S}]),
        (["suspected", "ok", "suspected"], [{S}, set(), {S}]),
        (["watch", "recovered", "ok"], [set(), set(), set()]),
    ],
)  # fmt: skip
def test_an_incident_event_fires_once_for_each_change(
    statuses: list[str], expected: list[set[str]]
) -> None:
    assert happened(*(verdict(finding(status)) for status in statuses)) == expected


def test_a_broken_count_fires_contract_violated_instead_of_suspected() -> None:
    broken = verdict(finding("suspected", "count_contract"))
    assert happened(broken, broken, verdict(finding("confirmed"))) == [{V}, set(), set()]
    assert happened(verdict(finding("suspected")), broken) == [{S}, {V}]


def test_each_finding_has_its_own_events() -> None:
    one, two = finding("suspected"), finding("suspected", name="g", suspect="app.Other")
    assert happened(verdict(one), verdict(one, two), verdict(two, one)) == [{S}, {S}, set()]


def test_a_leak_with_a_better_name_is_the_same_incident() -> None:
    first, better = finding("suspected"), finding("suspected", "container", name="g")
    assert happened(verdict(first), verdict(better)) == [{S}, set()]
    # Only one of the two can be the same leak.
    other = finding("suspected", "tensors", name="h")
    assert happened(verdict(first), verdict(better, other)) == [{S}, {S}]


def test_oom_risk_fires_each_time_the_risk_gets_worse() -> None:
    risks = ["none", "low", "high", "high", "critical", "high", "critical", "none", "critical"]
    events = happened(*(verdict(risk=risk) for risk in risks))
    assert ["oom.risk" in each for each in events] == [
        False, False, True, False, True, False, False, False, True
    ]  # fmt: skip


AGENT = "app.Agent"
DECLARED = (
    ("expect", AGENT, {"low": 0, "high": 50, "after": None}),
    ("track", "replay", {"capacity": 200_000}),
    ("watch", AGENT, {}),
    ("register_cleanup", "replay", {"on_request": False, "when": "suspected"}),
)


def event(kind: str, name: str, data: dict[str, Any], time: float = 1.0) -> Event:
    return Event(0, time, kind, name, None, None, data)


def test_declarations_of_hundreds_of_generations_ago_still_apply() -> None:
    """A replay buffer with a declared capacity fills slowly and explains all growth."""
    watch, heard = watching("suspected", V)
    phase_accounts = {f"phase.{name}.bytes": 0 for name in ("evaluate", "between", "leakline")}
    phase_accounts["phase.collect.bytes"] = MIB

    def train(numbers: range, agents: int, events: tuple[Event, ...] = ()) -> None:
        for number in numbers:
            held = {"tracked.replay.length": 100 * number, "tracked.replay.bytes": number * MIB}
            samples = {f"type.{AGENT}.count": agents, **held, **phase_accounts}
            one = generation_end_of(number, (500 + number) * MIB, samples)
            watch.see(replace(one, events=() if number else events))
        call_due(watch)

    train(range(2 * KEPT_SNAPSHOTS), 16, tuple(event(*each) for each in DECLARED))
    kept = watch._snapshots
    assert len(kept) <= KEPT_SNAPSHOTS
    assert len(all_events(kept)) == len(DECLARED)
    names = [name for one in kept for name in one.samples]
    assert len({id(name) for name in names}) == len(set(names))
    assert (heard, watch.status in ("ok", "filling")) == ([], True)
    train(range(2 * KEPT_SNAPSHOTS, 2 * KEPT_SNAPSHOTS + 12), 500)
    assert V in [name for name, _ in heard]


def snapshot(sequence: int, kind: str = "phase_end", **more: Any) -> Snapshot:
    now = float(sequence)
    return Snapshot(sequence, now, now, sequence, None, kind, kind, {}, **more)


def all_events(snapshots: list[Snapshot]) -> list[Event]:
    return [each for one in snapshots for each in one.events]


def seen(snapshots: list[Snapshot], limit: int = 64) -> list[Snapshot]:
    kept: list[Snapshot] = []
    for each in snapshots:
        kept.append(each)
        if len(kept) > limit:
            kept = thinned(kept, limit)
    return kept


def test_thinning_keeps_the_first_and_newest_snapshot() -> None:
    for count in (65, 66, 67):
        for kind in ("phase_end", "generation_end"):
            kept = thinned([snapshot(n, kind) for n in range(count)], 64)
            assert (kept[0].sequence, kept[-1].sequence) == (0, count - 1)
            assert len(kept) <= 48
            assert [one.sequence for one in kept] == sorted({one.sequence for one in kept})


def test_thinning_keeps_declarations_and_drops_occurrences() -> None:
    events = tuple(event(kind, f"of {kind}", {}) for kind in EVENT_KINDS)
    kept = seen([snapshot(n, events=events if n == 1 else ()) for n in range(1000)])
    went = {"mark", "note", "exception", "warning", "collection", "log"}
    assert {each.kind for each in all_events(kept)} == set(EVENT_KINDS) - went
    assert len(all_events(kept)) == len(EVENT_KINDS) - len(went)


def test_the_first_and_newest_of_repeated_declarations_are_kept() -> None:
    kept = lasting_events(
        event("expect", AGENT, {"high": high}, float(n)) for n in range(1000) for high in [50 - n % 2]
    )  # fmt: skip
    assert [(each.time, each.data["high"]) for each in kept] == [
        (0.0, 50), (1.0, 49), (998.0, 50), (999.0, 49)
    ]  # fmt: skip


def test_the_newest_runs_of_each_cleanup_are_kept() -> None:
    often = [event("cleanup", "frequent", {}, float(n)) for n in range(2, 1000)]
    kept = lasting_events([event("cleanup", "rare", {}), *often, event("cleanup", "rare", {})])
    assert [each.name for each in kept].count("rare") == 2
    times = [each.time for each in kept if each.name == "frequent"]
    assert times == [float(n) for n in range(1000 - TIMES_KEPT, 1000)]


def test_endless_declarations_are_bounded_and_displace_nothing_else() -> None:
    expected = event("expect", AGENT, {"high": 50}, 0.0)
    bands = [event("band", "process.rss_bytes", {"first": n}, float(n)) for n in range(1, 3000)]
    kept = lasting_events([expected, *bands])
    assert kept[0] == expected
    assert len(kept) == 1 + EVENTS_KEPT


def test_the_newest_holders_are_kept() -> None:
    def holding(n: int) -> tuple[Holder, ...]:
        always = Holder(n, AGENT, "app.Trainer.history[*]", n)
        return (always, Holder(n, AGENT, f"app.Trainer.other{n}", 1))

    (first, *_) = seen([snapshot(n, holders=holding(n)) for n in range(1000)])
    (found,) = [h for h in first.holders if h.path == "app.Trainer.history[*]"]
    assert found.count > 900
    assert len(first.holders) == HOLDERS_KEPT
