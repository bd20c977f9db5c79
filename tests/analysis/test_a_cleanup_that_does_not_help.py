"""A cleanup that ran while something grew and freed none of it makes the finding one class worse; nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builder import GIB, MIB, TRAIN, Leak, Training, kept_environments

from leakline.analysis import RunHistory, compare, examine, history_from_batches
from leakline.analysis.kept import Kept
from leakline.analysis.priority import Priorities
from leakline.analysis.results import Finding
from leakline.snapshot import Event

ENVIRONMENT = "trading.TradingEnvironment"
RAISED = "Its priority is one class higher for it."
HISTORY = Training(leaks=(kept_environments(),), generations=24).history()


def cleanup(freed: Any, generation: int | None = 9, name: str = "agent", **more: Any) -> Event:
    return Event(3, 5.0, "cleanup", name, generation, None, {"freed_bytes": freed, **more})


def worst(*events: Event, of: RunHistory = HISTORY) -> Finding:
    return examine(replace(of, events=(*of.events, *events))).findings[0]


def counted(before: Any, after: Any, freed: int = 64 * MIB, **more: Any) -> Event:
    """A registered one, that told of the environments."""
    return cleanup(freed, counts={ENVIRONMENT: [before, after]}, because="it was asked for", **more)


def test_without_it_the_finding_is_what_it_is() -> None:
    finding = worst()
    assert (finding.status, finding.priority) == ("confirmed", "minor")
    assert not any("cleanup" in line for line in (*finding.evidence, *finding.advice))


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([cleanup(0), cleanup(-4096)], "ran 2 times and freed nothing"),
        ([cleanup(0), cleanup(0), cleanup(0)], "ran 3 times and freed nothing"),
        # A collection gives some pages back, whatever grows.
        ([cleanup(4096), cleanup(8192)], "ran 2 times and freed only 12.00 KiB"),
        (
            [cleanup(0, devices={"cuda.0.reserved_bytes": [GIB, GIB]})] * 2,
            "ran 2 times and freed nothing",
        ),
        ([counted(30, 30), counted(60, 60)], "ran 2 times and freed no TradingEnvironment"),
    ],
)
def test_one_that_freed_nothing_of_it_makes_it_one_class_worse(
    events: list[Event], said: str
) -> None:
    before, finding = worst(), worst(*events)
    assert finding.priority == "major"
    line = f"The cleanup agent {said}: it does not reach what grows."
    assert finding.evidence == (*before.evidence, f"{line} {RAISED}")
    assert line in finding.advice
    assert (finding.status, finding.confidence) == (before.status, before.confidence)


@pytest.mark.parametrize(
    "events",
    [
        [cleanup(0)], [cleanup(0), cleanup(0, name="other")], [cleanup(0), cleanup(2 * MIB)],
        [cleanup(0), cleanup(0, error="ValueError")], [cleanup("much"), cleanup(None)], [cleanup(0), cleanup(True)],
        [cleanup(0, generation=None), cleanup(0, generation=None)],
        # It reached them once; or says nothing of them; or was a part of the training, not a remedy.
        [counted(30, 30), counted(60, 0)], [counted(0, 0), counted(0, 0)], [counted("a", "b"), counted(None, 1)],
        [counted(30, 0, freed=0), counted(60, 0, freed=0)],
        [cleanup(64 * MIB, counts={ENVIRONMENT: [30, 30]})] * 2, [cleanup(64 * MIB, counts=[1], because="")] * 2,
        # It is there for the memory of a device.
        [cleanup(0, devices={"cuda.0.reserved_bytes": [8 * GIB, GIB]})] * 2,
        [Event(3, 5.0, "mark", "agent", 9, None, {"freed_bytes": 0})] * 2,
    ],
)  # fmt: skip
def test_anything_else_leaves_the_class_as_it_is(events: list[Event]) -> None:
    finding = worst(*events)
    assert finding.priority == "minor"
    assert not any("does not reach" in line for line in (*finding.evidence, *finding.advice))


def test_what_ran_before_the_growth_began_says_nothing_of_it() -> None:
    late = Training(leaks=(kept_environments(start=12),), generations=36).history()
    early = [cleanup(0, generation=g) for g in (2, 4, 6)]
    assert worst(*early, of=late).priority == "minor"
    assert worst(*early, cleanup(0, generation=20), of=late).priority == "minor"
    # What it freed before there was a leak does not speak for it.
    freed = [cleanup(GIB, generation=g) for g in (2, 4)]
    since = [cleanup(0, generation=g) for g in (20, 24)]
    assert worst(*freed, *since, of=late).priority == "major"


def test_the_worst_class_stays_the_worst() -> None:
    history = Training(
        leaks=(Leak(TRAIN, 6e9, {ENVIRONMENT: 4}),), generations=24, resident=300 * GIB
    ).history()
    plain = worst(of=history)
    finding = worst(cleanup(0), cleanup(0), of=history)
    assert plain.priority == finding.priority == "critical"
    assert "does not reach what grows." in finding.evidence[-1]
    assert RAISED not in finding.evidence[-1]


def test_the_classes_begin_where_somebody_says() -> None:
    vain = replace(HISTORY, events=(*HISTORY.events, cleanup(0), cleanup(0)))

    def classes(limits: Priorities) -> tuple[str, str, str]:
        told = [examine(of, priorities=limits).findings[0] for of in (HISTORY, vain)]
        compared = compare(HISTORY, HISTORY, limits).findings.still[0]
        return told[0].priority, told[1].priority, compared.priority

    assert classes(Priorities()) == ("minor", "major", "minor")
    assert classes(Priorities(major_bytes=MIB)) == ("major", "critical", "major")
    assert classes(Priorities(1, MIB)) == ("critical", "critical", "critical")


def test_a_run_that_does_not_leak_is_the_same_with_cleanups() -> None:
    healthy = Training(generations=24).history()
    noisy = replace(healthy, events=(*healthy.events, cleanup(0), cleanup(0)))
    before, after = examine(healthy), examine(noisy)
    assert (after.findings, after.status, after.summary) == (
        before.findings, before.status, before.summary
    )  # fmt: skip


def test_what_is_kept_between_looks_knows_of_it_at_once() -> None:
    kept = Kept()
    assert examine(HISTORY, kept).findings[0].priority == "minor"
    again = replace(HISTORY, events=(*HISTORY.events, cleanup(0), cleanup(0)))
    assert examine(again, kept) == examine(again)
    assert examine(again, kept).findings[0].priority == "major"


def test_ranks_that_leak_alike_are_raised_together() -> None:
    ranks = [
        Training(leaks=(kept_environments(),), generations=24, instance=f"p{rank}", rank=rank)
        for rank in range(2)
    ]
    batches = [batch for each in ranks for batch in each.batches()]
    history = history_from_batches(ranks[0].header(), batches)
    plain, finding = worst(of=history), worst(cleanup(0), cleanup(0), of=history)
    assert plain.process == finding.process == "rank 0 main, rank 1 main"
    assert (plain.priority, finding.priority) == ("minor", "major")
