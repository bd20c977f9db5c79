"""Cleanups that ran during a growth: ineffective ones raise the priority, rare ones get advice on their interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builder import MIB, Training, kept_environments
from pieces import ends_timeline, finding

from leakline.analysis import RunHistory, compare, examine
from leakline.analysis.findings.cleanup_effects import (
    Freed,
    RareCleanup,
    _change,
    _runs_since,
    deeper,
    freed_by,
    freed_in_all,
    is_deeper,
    rare_cleanup,
    vain_cleanup,
)
from leakline.analysis.findings.verdict_summary import Priorities
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.results import Finding, Suspect
from leakline.analysis.run_history import Value
from leakline.analysis.timeline import Timeline
from leakline.snapshot import Event

ENVIRONMENT = "trading.TradingEnvironment"
RAISED = "This raises the finding's priority by one class."
HISTORY = Training(leaks=(kept_environments(),), generations=14).history()


def cleanup(freed: Any, generation: int | None = 9, name: str = "agent", **more: Any) -> Event:
    return Event(3, 5.0, "cleanup", name, generation, None, {"freed_bytes": freed, **more})


def worst(*events: Event, of: RunHistory = HISTORY) -> Finding:
    return examine(replace(of, events=(*of.events, *events))).findings[0]


@pytest.fixture(scope="module")
def plain() -> Finding:
    """Return the finding without a cleanup."""
    return worst()


def counted(before: Any, after: Any, freed: int = 64 * MIB, **more: Any) -> Event:
    """Return a registered cleanup that counted the environments."""
    return cleanup(freed, counts={ENVIRONMENT: [before, after]}, because="it was requested", **more)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([cleanup(0), cleanup(-4096)], "ran twice and freed nothing"),
        # A collection frees some pages, whatever grows.
        ([cleanup(4096), cleanup(8192), cleanup(0)], "ran 3 times and freed only 12.00 KiB"),
        ([counted(30, 30), counted(60, 60)], "ran twice and freed no TradingEnvironment"),
    ],
)
def test_an_ineffective_cleanup_raises_the_priority_by_one_class(
    plain: Finding, events: list[Event], said: str
) -> None:
    finding = worst(*events)
    assert finding.priority == "major"
    line = f"The cleanup agent {said}: it does not affect the memory that is growing."
    assert finding.evidence == (*plain.evidence, f"{line} {RAISED}")
    assert line in finding.advice
    assert (finding.status, finding.confidence) == (plain.status, plain.confidence)


def test_the_priority_classes_follow_the_settings() -> None:
    vain = replace(HISTORY, events=(*HISTORY.events, cleanup(0), cleanup(0)))

    limits = Priorities(major_bytes=MIB)
    found = [examine(of, priorities=limits).findings[0].priority for of in (HISTORY, vain)]
    assert found == ["major", "critical"]
    assert compare(HISTORY, HISTORY, limits).findings.still[0].priority == "major"


def test_cached_analyses_take_a_new_cleanup_into_account() -> None:
    kept = Kept()
    assert examine(HISTORY, kept).findings[0].priority == "minor"
    again = replace(HISTORY, events=(*HISTORY.events, cleanup(0), cleanup(0)))
    assert examine(again, kept) == examine(again)
    assert examine(again, kept).findings[0].priority == "major"


@pytest.mark.parametrize(
    ("host", "device", "known", "something", "words"),
    [
        (None, None, False, False, "nothing"), (0, None, True, False, "nothing"), (1, None, True, True, "1 B"),
        (None, 1, True, True, "1 B of GPU memory"), (None, 0, True, False, "nothing"),
        (-5, 1, True, True, "1 B of GPU memory"), (2, 1, True, True, "2 B and 1 B of GPU memory"),
    ],
)  # fmt: skip
def test_freed_memory_is_written_with_its_place(
    host: float | None, device: float | None, known: bool, something: bool, words: str
) -> None:
    freed = Freed(host, device)
    assert (freed.known, freed.something, freed.words) == (known, something, words)


@pytest.mark.parametrize(
    ("devices", "freed"),
    [
        ({"cuda.0.allocated_bytes": [9, 4], "cuda.0.reserved_bytes": [9, 7]}, 5),
        ({"cuda.0.allocated_bytes": [9, 4], "cuda.1.allocated_bytes": [9, 7]}, 7),
        ({"cuda.0.allocated_bytes": [4, 9]}, 0), ({"cuda.0.allocated_bytes": [9, None]}, None),
        ({"cuda.0.allocated_bytes": [9, 4, 1]}, None), ([], None), (None, None),
    ],
    ids=["the larger fall", "of two", "a rise", "half given", "three numbers", "no names", "not given"],
)  # fmt: skip
def test_the_larger_fall_of_a_device_counts(devices: Any, freed: float | None) -> None:
    assert freed_by({"freed_bytes": 3, "devices": devices}) == Freed(3, freed)


def test_ineffective_runs_do_not_reduce_what_others_freed() -> None:
    times = [Freed(5, None), Freed(-9, 2), Freed(None, 1), Freed(0, -4)]
    assert freed_in_all(times) == Freed(5, 3)
    assert freed_in_all([Freed(None), Freed(None)]) == Freed(None, None)


def _leak(rate: float = 1000.0, start: float | None = 5.0, **more: Any) -> Finding:
    said: dict[str, Any] = {"priority": "minor", **more}
    return finding(rate=rate, start=start, suspects=(Suspect("app.Env", "type"),), **said)


@pytest.mark.parametrize(
    ("events", "vain"),
    [
        ([cleanup(0, 5), cleanup(0, 5)], True), ([cleanup(0, 5), cleanup(0, 5, "other")], False),
        ([cleanup(0, 4), cleanup(0, 5)], False), ([cleanup(0, None), cleanup(0, None)], False),
        ([cleanup(10, 5), cleanup(10, 6)], True), ([cleanup(10, 5), cleanup(11, 6)], False),
        ([cleanup(0, 5), cleanup(0, 6, error="ValueError")], False), ([cleanup("much", 5), cleanup(None, 5)], False),
        ([cleanup(0, 5), cleanup(True, 5)], False), ([replace(cleanup(0), kind="mark")] * 2, False),
        ([cleanup(0, 5, devices={"cuda.0.x": [30, 20]}), cleanup(0, 6)], True),
        ([cleanup(0, 5, devices={"cuda.0.x": [30, 19]}), cleanup(0, 6)], False),
    ],
    ids=["twice", "two names", "before it began", "no generation", "a hundredth", "more", "failed", "not given",
         "no number", "no cleanup", "a hundredth of a device", "more of a device"],
)  # fmt: skip
def test_a_cleanup_that_freed_at_most_one_percent_is_ineffective(
    events: list[Event], vain: bool
) -> None:
    assert (vain_cleanup(_leak(), events) is not None) == vain


def test_a_process_cleanup_is_not_blamed_for_growth_elsewhere() -> None:
    events = [cleanup(0, 5), cleanup(0, 6)]
    assert vain_cleanup(_leak(kind="gpu"), events) is None
    assert vain_cleanup(_leak(start=None), [cleanup(0, None), cleanup(0, None)]) is not None
    for start, runs in ((6, 1), (None, 2)):
        assert {name: len(runs) for name, runs in _runs_since(start, events).items()} == {
            "agent": runs
        }


@pytest.mark.parametrize(
    ("pairs", "vain"),
    [([[5, 5], [6, 6]], True), ([[5, 5], [6, 5]], False), ([[5, 6], [6, 6]], True), ([[5, 5], None], False),
     ([["a", "b"], [5, 5]], False)],
    ids=["as many", "one fewer", "one more", "not given", "no numbers"],
)  # fmt: skip
def test_a_cleanup_that_freed_no_instance_is_ineffective(pairs: list[Any], vain: bool) -> None:
    events = [cleanup(1e9, 5, because="x", counts={"app.Env": pair}) for pair in pairs]
    found = vain_cleanup(_leak(), events)
    assert (found is not None) == vain
    assert found is None or (found.type, found.times) == ("app.Env", 2)


def test_instances_count_if_the_cleanup_was_registered() -> None:
    data = {"because": "x", "counts": {"app.Env": [7, 4], "app.Odd": [7, -4]}}
    assert _change(data, "app.Env") == -3
    assert _change({"counts": {"app.Env": [7, 4]}}, "app.Env") is None
    assert _change(data, "app.Plan") is _change(data, "app.Odd") is None


def test_a_finding_with_an_ineffective_cleanup_is_one_class_worse() -> None:
    events, limits = [cleanup(0, 5), cleanup(0, 6)], Priorities(major_bytes=1e4, critical_bytes=1e5)
    minor, worst_class = deeper(_leak(), events), deeper(_leak(priority="critical"), events)
    assert (minor.priority, worst_class.priority) == ("major", "critical")
    assert [RAISED in each.evidence[-1] for each in (minor, worst_class)] == [True, False]
    assert deeper(_leak(), []) == _leak()
    assert is_deeper(minor, limits)
    assert not is_deeper(_leak(), limits)


def _sawtooth(
    cleaned: set[int], gain: int, back: int, n: int = 24, *, again: bool = False
) -> Timeline:
    """Return a timeline with cleanups. ``again``: what a cleanup frees is back one generation later."""
    value, values = 100_000, list[Value]()
    for g in range(n):
        value += gain - (back if g in cleaned else 0)
        value += back if again and g - 1 in cleaned else 0
        values.append(value)
    return ends_timeline({"process.anon_bytes": values})


@pytest.mark.parametrize(
    ("cleaned", "back", "every"),
    [
        ({8, 16}, 3000, 3), ({8, 16}, 300, 1), ({8, 16}, 299, None), ({8}, 3000, None), ({8, 16}, 7999, 7),
        ({8, 16}, 8500, None), (set(range(8, 24)), 300, None), (set(range(3, 24)), 300, None),
    ],
    ids=["three generations", "three tenths of one", "less", "once", "nearly all", "often enough", "in each",
         "never without one"],
)  # fmt: skip
def test_a_rare_effective_cleanup_is_to_run_more_often(
    cleaned: set[int], back: int, every: int | None
) -> None:
    """It has to run as often as what it frees has grown again: 16 generations have passed since the first."""
    events = [cleanup(back, g) for g in sorted(cleaned)]
    found = rare_cleanup(_leak(), events, _sawtooth(cleaned, 1000, back))
    expected = None if every is None else RareCleanup("agent", 2, 16, float(back), every)
    assert found == expected


def test_a_cleanup_with_no_lasting_effect_is_not_advised() -> None:
    events = [cleanup(3000, 8), cleanup(3000, 16)]
    assert rare_cleanup(_leak(), events, _sawtooth({8, 16}, 1000, 3000, again=True)) is None
    left = [cleanup(3000, g, because="x", counts={"app.Env": [9, 9]}) for g in (8, 16)]
    assert rare_cleanup(_leak(), left, _sawtooth({8, 16}, 1000, 3000)) is None


def test_a_cleanup_before_the_growth_began_is_not_counted() -> None:
    timeline = _sawtooth({4, 8, 16}, 1000, 3000)
    events = [cleanup(3000, g) for g in (4, 8, 16)]
    for start, wanted in ((5.0, (2, 16)), (None, (3, 20))):
        found = rare_cleanup(_leak(start=start), events, timeline)
        assert found is not None
        assert (found.times, found.window) == wanted
    assert rare_cleanup(_leak(kind="gpu"), events, timeline) is None
    assert rare_cleanup(_leak(), [cleanup(0, g) for g in (4, 8, 16)], timeline) is None
