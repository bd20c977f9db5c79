"""What the verdict in the process is worked out from is thinned; what the program said of itself stays."""

from __future__ import annotations

from typing import Any

from leakline.budget import Governor
from leakline.callbacks import KEPT_SNAPSHOTS, VerdictWatch
from leakline.forgetting import EVENTS_KEPT, HOLDERS_KEPT, TIMES_KEPT, thinned
from leakline.snapshot import EVENT_KINDS, Event, Holder, ProcessIdentity, RunHeader, Snapshot

MIB = 2**20
HEADER = RunHeader("r", "p", "n", "generation", None, 1.0)
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
        self.watch = VerdictWatch(HEADER, ProcessIdentity("i"), Governor(1.0, 1e9))
        self.watch.follow()
        self.heard: list[str] = []
        for name in ("suspected", "contract.violated"):
            self.watch.add(name, lambda verdict, name=name: self.heard.append(name))
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

    def look(self) -> None:
        self.watch.examine()
        self.watch._beside.wait(60)
        self.watch._take()
        for callback, verdict in self.watch.due():
            callback(verdict)


def long_training() -> Training:
    """Declared before its loop, so on its first phase end."""
    training = Training()
    training.generation(0, events=tuple(event(*each) for each in DECLARED))
    for number in range(1, GENERATIONS):
        training.generation(number)
    return training


def test_a_count_declared_hundreds_of_generations_ago_is_still_held_against_the_run() -> None:
    training = long_training()
    training.look()
    assert training.heard == []
    for number in range(GENERATIONS, GENERATIONS + 12):
        training.generation(number, agents=500)
    training.look()
    assert "contract.violated" in training.heard


def test_a_buffer_with_a_declared_capacity_stays_one_and_calls_for_no_cleanup() -> None:
    training = long_training()
    training.look()
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
