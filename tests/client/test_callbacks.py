"""`run.on`: the user's function hears of the verdict, which is worked out beside the training thread, by budget."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

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
    thinned,
)
from leakline.analysis.results import Finding, Interval, OomForecast, Suspect, Verdict
from leakline.analysis.run_history import history_from_batches
from leakline.errors import BadArgument
from leakline.sampling.overhead_budget import Governor
from leakline.snapshot import (
    EVENT_KINDS,
    Batch,
    Event,
    Holder,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)

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
def test_an_unknown_event_or_a_callback_that_is_not_callable_raises_at_once(
    offline: Run, wrong: Any
) -> None:
    with pytest.raises(BadArgument, match="event=") as raised:
        offline.on(wrong, print)
    assert all(name in str(raised.value) for name in (*LADDER, *OTHERS, *EVENTS))
    with pytest.raises(BadArgument, match="callback"):
        offline.on("suspected", "print")  # type: ignore[arg-type]


def watching(
    *wanted: str, governor: Governor | None = None
) -> tuple[VerdictWatch, list[tuple[str, Any]]]:
    """A watch with a callback for each, and where they tell what they heard."""
    watch = VerdictWatch(HEADER, ProcessIdentity("i"), governor or Governor(1.0, 1e9))
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
    assert [name for name, _ in heard] == ["suspected"]


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


def test_nothing_is_examined_before_a_generation_ended(slow: SlowAnalysis) -> None:
    watch, _ = watching("learning")
    watch.examine()
    assert (slow.threads, list(watch.due()), watch.status) == ([], [], "learning")


def test_a_jump_over_a_status_still_reaches_it() -> None:
    assert _reached("suspected", "watch", "confirmed")
    assert _reached("suspected", "ok", "suspected")
    assert not _reached("suspected", "suspected", "confirmed")
    assert not _reached("suspected", "confirmed", "watch")
    assert _reached("recovered", "confirmed", "recovered")
    assert not _reached("ok", "ok", "ok")


def test_the_exception_of_a_callback_is_the_users(
    offline: Run, monkeypatch: pytest.MonkeyPatch
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


def test_a_real_training_without_a_server_hears_of_its_leak_once(start: Any) -> None:
    process = start(SCRIPT)
    said, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    heard = dict(line.split() for line in said.splitlines())
    assert heard["suspected"] in ("suspected", "confirmed")
    assert "incident.suspected" in heard
    # Each once.
    assert len(heard) == len(said.splitlines())


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


def generation_end(watch: VerdictWatch, number: int) -> None:
    watch.see(end(number))
    watch.examine()
    for callback, verdict in watch.due():
        callback(verdict)


def test_a_generation_end_waits_for_no_look_and_begins_no_second_one(slow: SlowAnalysis) -> None:
    watch, heard = watching("suspected")
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
    assert [verdict.status for _, verdict in heard] == ["suspected"]


def test_what_came_while_a_look_was_under_way_is_looked_at_next(slow: SlowAnalysis) -> None:
    watch, _ = watching("suspected")
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
    watch, _ = watching("suspected")
    for number in range(3):
        generation_end(watch, number)
        watch._beside.wait(60)
    first, *others = slow.kept
    assert first is not None
    assert len(others) == 2 and all(each is first for each in others)


def test_the_verdict_beside_the_training_is_that_of_the_same_snapshots_anew() -> None:
    watch, _ = watching("suspected")
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
    watch, _ = watching("suspected", governor=governor)
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
    watch, _ = watching("suspected", governor=Governor(0.0))
    watch.examine()
    generation_end(watch, 0)
    assert (slow.threads, list(watch.due()), watch.status) == ([], [], "learning")


def test_a_look_that_fails_is_not_the_last(slow: SlowAnalysis, internal_exceptions: Any) -> None:
    slow.fails = True
    slow.go.set()
    watch, heard = watching("suspected")
    generation_end(watch, 0)
    watch._beside.wait(60)
    slow.fails = False
    for number in (1, 2):
        generation_end(watch, number)
        watch._beside.wait(60)
    assert [verdict.status for _, verdict in heard] == ["suspected"]
    assert [type(internal_exceptions.pop())] == [ZeroDivisionError]


def test_what_is_due_by_the_end_of_a_run_is_told_there(offline: Run, slow: SlowAnalysis) -> None:
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
    offline: Run, slow: SlowAnalysis
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


def test_a_forked_child_begins_no_look(start: Any) -> None:
    process = start(FORKS)
    said, errors = process.communicate(timeout=90)
    assert (process.returncode, said) == (0, "[0, 0, 0]\nTrue\n"), errors


S, C, R, V = "incident.suspected", "incident.confirmed", "incident.recovered", "contract.violated"


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


def told(*verdicts: Verdict) -> list[set[str]]:
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
def test_an_incident_is_told_once_for_each_change(
    statuses: list[str], expected: list[set[str]]
) -> None:
    assert told(*(verdict(finding(status)) for status in statuses)) == expected


def test_a_broken_count_is_told_in_place_of_a_suspicion() -> None:
    broken = verdict(finding("suspected", "count_contract"))
    assert told(broken, broken, verdict(finding("confirmed"))) == [{V}, set(), set()]
    assert told(verdict(finding("suspected")), broken) == [{S}, {V}]


def test_each_finding_is_told_by_itself() -> None:
    one, two = finding("suspected"), finding("suspected", name="g", suspect="app.Other")
    assert told(verdict(one), verdict(one, two), verdict(two, one)) == [{S}, {S}, set()]


def test_a_leak_known_by_a_better_name_is_the_same_one() -> None:
    first, better = finding("suspected"), finding("suspected", "container", name="g")
    assert told(verdict(first), verdict(better)) == [{S}, set()]
    # Only one of two can be it.
    other = finding("suspected", "tensors", name="h")
    assert told(verdict(first), verdict(better, other)) == [{S}, {S}]


def test_memory_that_runs_out_is_told_when_it_gets_worse_until_the_risk_is_over() -> None:
    risks = ["none", "low", "high", "high", "critical", "high", "critical", "none", "critical"]
    events = told(*(verdict(risk=risk) for risk in risks))
    assert ["oom.risk" in each for each in events] == [
        False, False, True, False, True, False, False, False, True
    ]  # fmt: skip


AGENT = "app.Agent"
CAPACITY = 100_000
DECLARED = (
    ("expect", "app.Agent", {"low": 0, "high": 50, "after": None}),
    ("track", "replay", {"capacity": CAPACITY}),
    ("watch", "app.Agent", {}),
    ("register_cleanup", "replay", {"on_request": False, "when": "suspected"}),
)
# Four snapshots in a generation: the first few are gone several times over.
GENERATIONS = KEPT_SNAPSHOTS


def event(kind: str, name: str, data: dict[str, Any], time: float = 1.0) -> Event:
    return Event(0, time, kind, name, None, None, data)


class Training:
    """A replay buffer fills slowly, and holds all that grows."""

    def __init__(self) -> None:
        self.watch, self.heard = watching("suspected", "contract.violated")
        self.sequence = 0

    def generation(self, number: int, agents: int = 16, events: tuple[Event, ...] = ()) -> None:
        for phase in ("collect", "train", "evaluate", None):
            self.sequence += 1
            held = 100 * number
            size = 500 * MIB + held * 10_000
            samples: dict[str, float] = {
                "process.rss_bytes": size, "process.anon_bytes": size,
                f"type.{AGENT}.count": agents,
                "tracked.replay.length": held, "tracked.replay.bytes": held * 10_000,
            }  # fmt: skip
            if phase is None:
                samples |= {
                    "phase.collect.bytes": 1_000_000, "phase.train.bytes": 0, "phase.evaluate.bytes": 0,
                    "phase.between.bytes": 0, "phase.leakline.bytes": 0, "generation.seconds": 1.0,
                }  # fmt: skip
            now = float(self.sequence)
            kind = "phase_end" if phase else "generation_end"
            label = f"generation {number}: {f'after {phase}' if phase else 'end'}"
            self.watch.see(
                Snapshot(self.sequence, now, now, number, phase, label, kind, samples, events)
            )
            events = ()


def long_training() -> Training:
    """Declared before its loop, so on its first phase end."""
    training = Training()
    training.generation(0, events=tuple(event(*each) for each in DECLARED))
    for number in range(1, GENERATIONS):
        training.generation(number)
    return training


def test_a_count_declared_hundreds_of_generations_ago_is_still_held_against_the_run() -> None:
    training = long_training()
    call_due(training.watch)
    assert training.heard == []
    for number in range(GENERATIONS, GENERATIONS + 12):
        training.generation(number, agents=500)
    call_due(training.watch)
    assert "contract.violated" in [name for name, _ in training.heard]


def test_a_buffer_with_a_declared_capacity_stays_one_and_calls_for_no_cleanup() -> None:
    training = long_training()
    call_due(training.watch)
    assert training.watch.status in ("ok", "filling")


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


def test_the_first_and_the_newest_stay_and_fewer_than_may_be() -> None:
    for count in (65, 66, 67):
        for kind in ("phase_end", "generation_end"):
            kept = thinned([snapshot(n, kind) for n in range(count)], 64)
            assert (kept[0].sequence, kept[-1].sequence) == (0, count - 1)
            assert len(kept) <= 48
            assert [one.sequence for one in kept] == sorted({one.sequence for one in kept})


def test_what_is_declared_stays_and_what_only_happened_goes() -> None:
    told = tuple(event(kind, f"of {kind}", {}) for kind in EVENT_KINDS)
    kept = seen([snapshot(n, events=told if n == 1 else ()) for n in range(1000)])
    went = {"mark", "note", "exception", "warning", "collection", "log"}
    assert {each.kind for each in all_events(kept)} == set(EVENT_KINDS) - went
    assert len(all_events(kept)) == len(EVENT_KINDS) - len(went)


def test_what_is_declared_in_every_generation_is_kept_twice_the_first_time_and_the_newest() -> None:
    bounds = [(0, 50), (0, 10)]
    ends = [
        snapshot(n, events=(
            event("expect", "app.Agent", {"low": low, "high": high, "after": None}, float(n)),
        ))
        for n in range(1000) for low, high in [bounds[n % 2]]
    ]  # fmt: skip
    kept = seen(ends)
    times = [each.time for each in kept[0].events]
    assert times[:2] == [0.0, 1.0] and len(times) == 4
    newest = max(all_events(kept), key=lambda each: each.time)
    assert (newest.time, newest.data["high"]) == (999.0, 10)


def test_the_newest_times_of_each_cleanup_stay_and_a_rare_one_beside_a_frequent_one() -> None:
    freed = {"freed_bytes": 0}
    ends = [
        snapshot(n, events=(event("cleanup", "frequent", {**freed, "n": n}, float(n)),))
        for n in range(2, 1000)
    ]
    rare = snapshot(1, events=(event("cleanup", "rare", freed), event("cleanup", "rare", freed)))
    kept = seen([snapshot(0), rare, *ends])
    names = [each.name for each in kept[0].events]
    assert (names.count("rare"), names.count("frequent")) == (2, TIMES_KEPT)
    told = sorted(each.data["n"] for each in all_events(kept) if each.name == "frequent")
    assert told[-TIMES_KEPT:] == list(range(1000 - TIMES_KEPT, 1000))


def test_what_a_program_declares_without_end_is_bounded_and_displaces_nothing_else() -> None:
    expected = event("expect", "app.Agent", {"low": 0, "high": 50, "after": None}, 0.0)
    bands = [
        snapshot(n, events=(event("band", "process.rss_bytes", {"first": n}, float(n)),))
        for n in range(1, 3000)
    ]
    kept = seen([snapshot(0, events=(expected,)), *bands])
    assert kept[0].events[0] == expected
    assert len(kept[0].events) == 1 + EVENTS_KEPT


def test_who_holds_what_stays_as_it_was_found_last() -> None:
    def holding(n: int) -> tuple[Holder, ...]:
        always = Holder(n, "app.Agent", "app.Trainer.history[*]", n)
        return (always, Holder(n, "app.Agent", f"app.Trainer.other{n}", 1))

    kept = seen([snapshot(n, holders=holding(n)) for n in range(1000)])
    found = [h for h in kept[0].holders if h.path == "app.Trainer.history[*]"]
    assert len(found) == 1 and found[0].count > 900
    assert len(kept[0].holders) == HOLDERS_KEPT


def test_what_is_kept_stays_small() -> None:
    training = long_training()
    names = [name for one in training.watch._snapshots for name in one.samples]
    assert len({id(name) for name in names}) == len(set(names))
    assert len(training.watch._snapshots) <= KEPT_SNAPSHOTS
    assert len(all_events(training.watch._snapshots)) == len(DECLARED)
