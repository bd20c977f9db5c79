"""Garbage in cycles, memory kept by the allocator, and memory uncollected by V8, each separate from live objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import EVALUATE, MIB, TRAIN, Leak, Training
from pieces import TRAIN as IN_TRAIN
from pieces import (
    candidate,
    cause_of,
    ends_history,
    growing,
    timeline_of,
)

from leakline.analysis import examine
from leakline.analysis.attribution.causes import Cause
from leakline.analysis.memory.uncollected_memory import (
    Waiting,
    _telling,
    garbage_of,
    may_pass,
    members_of,
    together,
    waiting_of,
)
from leakline.analysis.results import Finding, Verdict
from leakline.analysis.run_history import Holders, Value
from leakline.analysis.series_facts import Facts
from leakline.analysis.statistics.trend import Slope
from leakline.snapshot import CYCLIC_GARBAGE, Holder

ENVIRONMENT = "trading.TradingEnvironment"
KEPT = "trainer.Trainer.kept[*]"


def examined(*leaks: Leak, generations: int = 28, **counts: float) -> Verdict:
    training = Training(leaks=leaks, generations=generations, noise=0.5 * MIB)
    training.counts |= counts
    return examine(training.history())


def first(verdict: Verdict) -> Finding:
    assert verdict.status in ("suspected", "confirmed"), verdict.summary
    return verdict.findings[0]


def environments(garbage: int, path: str = CYCLIC_GARBAGE) -> Leak:
    holder = Holder(0, ENVIRONMENT, path, garbage)
    return Leak(EVALUATE, 6 * MIB, {ENVIRONMENT: 16}, holders=(holder,))


def looks(objects: float, size: float = 6 * MIB, **more: float) -> dict[str, float]:
    return {
        "python.garbage_objects": objects,
        "python.garbage_bytes": size,
        "python.garbage_looked_at": objects,
        **{f"python.{name}": value for name, value in more.items()},
    }


WHOLE = {"python.garbage_is_whole": 1.0, "python.garbage_looked_at": 40_000.0}
PART = {"python.garbage_is_whole": 0.0}
OFF = {"python.collector_enabled": 0.0}


def test_a_class_held_only_by_its_own_cycles_is_garbage() -> None:
    finding = first(examined(environments(16 * 25)))
    assert (finding.kind, finding.phase) == ("cyclic_garbage", EVALUATE)
    assert finding.suspects[0].name == ENVIRONMENT
    assert (finding.suspects[1].name, finding.suspects[1].role) == (CYCLIC_GARBAGE, "holder")
    assert not any("keeps TradingEnvironment alive" in line for line in finding.advice)


@pytest.mark.parametrize(
    ("cycles", "paths"), [(16 * 3, []), (40, [KEPT])], ids=["a few in cycles", "more of them held"]
)
def test_a_few_instances_in_cycles_do_not_make_a_class_garbage(
    cycles: int, paths: list[str]
) -> None:
    held = (Holder(0, ENVIRONMENT, path, 200) for path in paths)
    leak = replace(environments(0), holders=(*held, Holder(0, ENVIRONMENT, CYCLIC_GARBAGE, cycles)))
    found, declared = first(examined(leak)), first(examined_as_declared(leak))
    assert found.kind == declared.kind == "objects"
    assert [s.name for s in found.suspects if s.role == "holder"] == paths
    assert CYCLIC_GARBAGE not in {s.name for s in declared.suspects}


DECLARED = ((ENVIRONMENT, 2, 2, None),)


def examined_as_declared(*leaks: Leak, collections: bool = False) -> Verdict:
    training = Training(
        leaks=leaks, generations=28, noise=0.5 * MIB, expectations=DECLARED, collections=collections
    )
    return examine(training.history())


@pytest.mark.parametrize(("collections", "kind"), [(False, "cyclic_garbage"), (True, "objects")])
def test_a_partial_scan_withdraws_nothing_without_a_collection(
    collections: bool, kind: str
) -> None:
    whole, part = (
        replace(environments(16 * seen), bytes=0, counts={}, start=start, stop=start + 1)
        for seen, start in ((22, 22), (5, 23))
    )
    grows = replace(environments(0), holders=())
    finding = first(examined_as_declared(grows, whole, part, collections=collections))
    assert (finding.kind, finding.suspects[0].name) == (kind, ENVIRONMENT)
    assert any(suspect.name == CYCLIC_GARBAGE for suspect in finding.suspects) is not collections


def test_a_broken_count_held_only_by_cycles_is_garbage() -> None:
    verdict = examined_as_declared(environments(16 * 25))
    finding = first(verdict)
    assert (finding.kind, finding.phase) == ("cyclic_garbage", EVALUATE)
    assert [s.name for s in finding.suspects[:2]] == [ENVIRONMENT, CYCLIC_GARBAGE]
    assert "leaves reference cycles of TradingEnvironment" in verdict.summary
    assert any("declared 2." in line for line in finding.evidence)
    assert any("Break reference cycles" in line for line in finding.advice)
    assert not any("drop the last reference" in line for line in finding.advice)


@pytest.mark.parametrize("off", [True, False])
def test_growing_garbage_explains_unattributed_memory(off: bool) -> None:
    holders = (Holder(0, "list", CYCLIC_GARBAGE, 9_000), Holder(0, "dict", CYCLIC_GARBAGE, 3_000))
    leak = Leak(TRAIN, 6 * MIB, looks(2_000), holders=holders)
    verdict = examined(leak, **WHOLE, **(OFF if off else {"python.collector_enabled": 1.0}))
    finding = first(verdict)
    assert (finding.kind, finding.phase) == ("cyclic_garbage", TRAIN)
    assert [s.name for s in finding.suspects if s.role == "type"] == ["list", "dict"]
    assert finding.suspects[0].count_per_generation == pytest.approx(1_500, rel=0.05)
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.25)
    assert any("2,000 more per generation" in line for line in finding.evidence)
    assert any("gc.enable()" in line for line in finding.advice) is off
    assert "that only the collector can free" in verdict.summary


@pytest.mark.parametrize(("collector_on", "status"), [(True, "watch"), (False, "confirmed")])
def test_growth_possibly_in_cycles_is_no_leak_with_the_collector_on(
    collector_on: bool, status: str
) -> None:
    """They are too few for their own finding; their bytes are compared with the total growth."""
    counts = looks(385, 21 * MIB, garbage_is_whole=1.0, collector_enabled=float(collector_on))
    verdict = examined(Leak(TRAIN, 2 * MIB), **counts)
    assert verdict.status == status, verdict.summary


def test_a_few_large_objects_in_cycles_are_a_leak() -> None:
    """They are too few to trigger a full collection, and hold memory that the collector does not see."""
    leak = environments(2 * 25)
    counts = {**leak.counts, ENVIRONMENT: 2, **looks(15, 15_000)}
    verdict = examined(replace(leak, counts=counts), **WHOLE, **{"python.collector_enabled": 1.0})
    assert (first(verdict).kind, verdict.status) == ("cyclic_garbage", "confirmed")


def test_a_partial_scan_is_scaled_by_the_waiting_objects() -> None:
    """Only the newest 20,000 objects are scanned, and nearly all are garbage: their number does not show the growth."""
    leak = Leak(TRAIN, 6 * MIB, {"python.collector_pending": 3_000})
    sizes = {"python.garbage_objects": 19_000.0, "python.garbage_looked_at": 20_000.0}
    verdict = examined(leak, **sizes, **{"python.garbage_bytes": 19_000 * 2_000.0}, **PART, **OFF)
    finding = first(verdict)
    assert finding.kind == "cyclic_garbage"
    assert any("At least 19,000 objects wait" in line for line in finding.evidence)
    assert any("2,850 more per generation" in line for line in finding.evidence)


def examined_in_part(*leaks: Leak) -> Verdict:
    """Return the verdict if a growing minority of the newest 30,000 objects is garbage and the collector is off."""
    start = {
        "python.garbage_objects": 2_000.0, "python.garbage_bytes": 5e6, "python.garbage_looked_at": 3e4,
    }  # fmt: skip
    more = {**looks(300), "python.garbage_looked_at": 0.0}
    return examined(Leak(TRAIN, 6 * MIB, more), *leaks, **start, **PART, **OFF)


def test_with_the_collector_off_garbage_among_the_newest_is_new() -> None:
    finding = first(examined_in_part())
    assert (finding.kind, finding.phase) == ("cyclic_garbage", TRAIN)
    assert any("At least 10,400 objects wait" in line for line in finding.evidence)


def test_unattributed_memory_is_assigned_to_named_garbage() -> None:
    """The pool of the allocator runs empty in another phase than the one that leaves the cycles."""
    named = replace(environments(16 * 25), bytes=0.2 * MIB)
    verdict = examined_in_part(named)
    raised = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert [(f.kind, f.phase) for f in raised] == [("cyclic_garbage", EVALUATE)]
    assert raised[0].suspects[0].name == ENVIRONMENT
    assert raised[0].growth_bytes_per_generation.estimate == pytest.approx(6.2 * MIB, rel=0.25)


def test_garbage_that_swings_with_the_collector_is_watched() -> None:
    """Every third generation a collection frees what two others left."""
    holder = Holder(0, "app.Node", CYCLIC_GARBAGE, 4_000)
    swings = Leak(TRAIN, 30 * MIB, holders=(holder,))
    swings.times = lambda generation: -2 if generation % 3 == 2 else 1
    freed = Leak(TRAIN, 0, {"python.garbage_freed": 12_000})
    freed.times = lambda generation: generation % 3 == 2
    training = Training(leaks=(swings, freed), generations=28, noise=0.5 * MIB)
    training.counts |= {"python.garbage_freed": 0}
    verdict = examine(training.history())
    (found,) = [f for f in verdict.findings if f.kind == "cyclic_garbage"]
    assert found.status == "watch"
    assert [s.name for s in found.suspects] == ["app.Node", CYCLIC_GARBAGE]
    assert "swings" in " ".join(found.evidence)


def test_constant_garbage_explains_no_growth() -> None:
    sizes = {"python.garbage_objects": 30_000.0, "python.garbage_bytes": 9e6}
    assert first(examined(Leak(TRAIN, 6 * MIB), **sizes, **WHOLE, **OFF)).kind == "native"


def test_a_guessed_class_does_not_explain_memory_kept_by_the_allocator() -> None:
    leak = Leak(TRAIN, 6 * MIB, {ENVIRONMENT: 16, "allocator.kept_bytes": 5.4 * MIB})
    verdict = examined(leak, **{"allocator.kept_bytes": 10.0 * MIB})
    finding = first(verdict)
    assert (finding.kind, finding.phase) == ("allocator_retained", TRAIN)
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(5.4 * MIB, rel=0.25)
    rest = [f for f in verdict.findings[1:] if f.kind == "objects"]
    assert sum(f.growth_bytes_per_generation.estimate for f in rest) < 1.2 * MIB


ENVS = candidate("app.Env", "object")
OBJECTS, IS_WHOLE, LOOKED = (
    "python.garbage_objects",
    "python.garbage_is_whole",
    "python.garbage_looked_at",
)
RISING: list[Value] = [1000 + 100 * g for g in range(12)]


def _waiting(counts: Sequence[Value] = RISING, **more: Sequence[Value]) -> Waiting:
    named = {f"python.{name}": values for name, values in more.items()}
    size = [40 * c if c is not None else None for c in counts]
    series = {
        "process.anon_bytes": [9000] * len(counts),
        OBJECTS: counts,
        "python.garbage_bytes": size,
    }
    return waiting_of(timeline_of(ends_history({**series, **named})))


def test_less_than_a_thousand_waiting_objects_are_ignored() -> None:
    ends_below, ends_at = [*range(120, 1000, 80), 999], [*range(120, 1000, 80), 1000]
    assert _waiting(ends_below) == Waiting()
    assert _waiting(ends_at).objects == 1000


@pytest.mark.parametrize(
    ("looks", "waits"),
    [([2000] * 4, True), ([2000] * 3, False), ([4000, *[2000] * 3], True), ([4001, *[2000] * 3], False)],
    ids=["four", "three", "half went", "more went"],
)  # fmt: skip
def test_four_scans_show_that_garbage_is_not_collected(looks: list[int], waits: bool) -> None:
    counts: list[Value] = [*[None] * (12 - len(looks)), *looks]
    found = _waiting(counts, garbage_is_whole=[0] * 12, garbage_looked_at=[2000] * 12)
    assert (found.objects is not None) == waits


@pytest.mark.parametrize(
    ("looked_at", "mostly"), [(4200, True), (4201, False)], ids=["half", "less"]
)
def test_half_of_the_newest_objects_must_be_garbage(looked_at: int, mostly: bool) -> None:
    found = _waiting(garbage_is_whole=[0] * 12, garbage_looked_at=[looked_at] * 12)
    assert (found.mostly, found.least) == (mostly, mostly)
    assert found.objects == (2100 if mostly else None)


def test_with_the_collector_off_waiting_objects_are_separate() -> None:
    more = {"garbage_is_whole": [0] * 12, "garbage_looked_at": [4200] * 12}
    pending = [50 * g for g in range(12)]
    off = _waiting(**more, collector_enabled=[0] * 12, collector_pending=pending)
    assert off.growth is not None
    assert (off.growth.slope, off.bytes_rate, off.collector_off) == (25.0, 1000.0, True)
    assert (off.mostly, off.least) == (True, True)
    on = _waiting(**more, collector_enabled=[1] * 12, collector_pending=pending)
    assert (on.growth, on.bytes_rate, on.collector_off) == (None, 0.0, False)


@pytest.mark.parametrize(
    ("reached", "least"),
    [([9000] * 12, True), ([9000] * 11 + [13500], True), ([9000] * 11 + [13501], False)],
    ids=["as far", "half as far again", "further"],
)
def test_partial_scans_of_equal_depth_show_new_garbage(reached: list[Value], least: bool) -> None:
    off = _waiting(garbage_is_whole=[0] * 12, garbage_looked_at=reached, collector_enabled=[0] * 12)
    assert (off.least, off.objects) == (least, 2100 if least else None)
    assert (off.mostly, off.collector_off) == (False, True)
    on = _waiting(garbage_is_whole=[0] * 12, garbage_looked_at=reached)
    assert on == Waiting()


def _facts(holders: Sequence[Holder] = (), **series: Sequence[Value]) -> Facts:
    named = {f"python.{name}": values for name, values in series.items()}
    history = ends_history({"process.anon_bytes": [9000] * 4, **named}, holders=tuple(holders))
    return Facts(history, timeline_of(history))


CYCLE = Holder(3, "app.Env", CYCLIC_GARBAGE, 100)
NATIVE = cause_of(kind="native", rate=100.0)


@pytest.mark.parametrize(
    ("rate", "mostly", "named", "measured"),
    [
        (30.0, False, ["app.Env"], 30.0), (29.0, False, None, None), (29.0, True, ["app.Env"], 29.0),
        (0.0, True, ["app.Env"], None), (300.0, False, ["app.Env"], 100.0),
    ],
    ids=["three tenths", "less", "most of the newest", "of unknown size", "more than all"],
)  # fmt: skip
def test_unattributed_growth_is_garbage_from_30_percent_on(
    rate: float, mostly: bool, named: list[str] | None, measured: float | None
) -> None:
    waiting = Waiting(5000.0, growing(8), rate, mostly)
    found = garbage_of(NATIVE, _facts([CYCLE]), waiting)
    assert (found and [m.name for m in found.members]) == named
    assert (found and found.measured) == measured


def test_a_cause_held_only_by_cycles_is_garbage() -> None:
    nothing, env = Waiting(), cause_of(candidate("app.Env", "object"), rate=100.0)
    found = garbage_of(env, _facts([CYCLE]), nothing)
    assert found == replace(env, kind="cyclic_garbage")
    assert garbage_of(env, _facts(), nothing) is None
    kept = Holder(4, "app.Env", "app.kept[*]", 900)
    assert garbage_of(env, _facts([CYCLE, kept]), nothing) is None
    # The state of most of the newest objects outweighs a path that holds some of them.
    also_held = Holder(3, "app.Env", "app.kept[*]", 900)
    assert garbage_of(env, _facts([CYCLE, also_held]), nothing) is None
    assert garbage_of(env, _facts([CYCLE, also_held]), Waiting(mostly=True)) is not None
    assert garbage_of(cause_of(candidate("app.log", "container")), _facts([CYCLE]), nothing) is None


@pytest.mark.parametrize(
    ("paths", "holder", "waiting", "garbage"),
    [
        ([CYCLIC_GARBAGE] * 2, None, 5_000.0, True), ([CYCLIC_GARBAGE], None, 5_000.0, False),
        ([CYCLIC_GARBAGE, "app.figures[*]"], None, 5_000.0, False), ([CYCLIC_GARBAGE] * 2, None, None, False),
        ([CYCLIC_GARBAGE] * 2, "app.figures[*]", 5_000.0, False),
    ],
    ids=["garbage", "one type", "partly held", "garbage does not grow", "held itself"],
)  # fmt: skip
def test_a_class_that_only_comes_with_garbage_is_garbage(
    paths: list[str], holder: str | None, waiting: float | None, garbage: bool
) -> None:
    holders = [Holder(3, f"app.Part{n}", path, 100) for n, path in enumerate(paths)]
    figure = candidate("app.Figure", "object", holder=holder)
    parts = [candidate(f"app.Part{n}", "object", slope=50) for n in range(2)]
    found = garbage_of(cause_of(figure, *parts, rate=100.0), _facts(holders), Waiting(waiting))
    assert (found is not None) == garbage


def test_only_unattributed_growth_is_searched_in_waiting_garbage() -> None:
    waiting, facts = Waiting(5000.0, growing(8), 100.0), _facts([CYCLE])
    strings = candidate("str", "plain")
    found = garbage_of(cause_of(strings, rate=100.0), facts, waiting)
    assert found is not None
    assert [m.name for m in found.members] == ["app.Env", "str"]
    assert garbage_of(cause_of(candidate("app.Plan", "object"), rate=100.0), facts, waiting) is None
    assert garbage_of(cause_of(kind="gpu", rate=100.0), facts, waiting) is None
    assert garbage_of(NATIVE, facts, replace(waiting, objects=None)) is None
    assert garbage_of(cause_of(strings, rate=1e9), facts, replace(waiting, mostly=True)) is None


@pytest.mark.parametrize(
    ("cause", "waiting", "series", "passes"),
    [
        (NATIVE, Waiting(), {"garbage_bytes": [300] * 4}, True),
        (NATIVE, Waiting(), {"garbage_bytes": [299] * 4}, False),
        (NATIVE, Waiting(), {"garbage_bytes": [300] * 4, "collector_enabled": [1, 1, 1, 0]}, False),
        (NATIVE, Waiting(), {}, False),
        (replace(NATIVE, kind="cyclic_garbage"), Waiting(5000.0), {"garbage_bytes": [300] * 4}, False),
        (cause_of(ENVS, rate=100.0), Waiting(), {"garbage_bytes": [300] * 4}, True),
    ],
    ids=["three tenths", "less", "off now", "not known", "that does not go", "a class seen in it"],
)  # fmt: skip
def test_growth_waiting_for_a_running_collector_may_pass(
    cause: Cause, waiting: Waiting, series: dict[str, list[Value]], passes: bool
) -> None:
    """A hundred bytes in each of ten generations are a thousand."""
    assert may_pass(cause, _facts([CYCLE], **series), waiting, 10.0, 4) == passes


@pytest.mark.parametrize(
    ("waiting", "begins", "ends"),
    [
        (Waiting(5000.0), "5,000 objects wait for the collector: ", ""),
        (Waiting(5000.0, growing(8)), "5,000 objects wait for the collector, 8 more per step: ", ""),
        (Waiting(5000.0, least=True), "At least 5,000 objects wait for the collector: ", ""),
        (Waiting(), "", ", so only the collector can free them"),
        (Waiting(collector_off=True), "", ", so only the collector can free them. The collector is switched off"),
    ],
    ids=["some", "ever more", "at least", "unknown", "switched off"],
)  # fmt: skip
def test_the_sentence_on_waiting_garbage_gives_only_observations(
    waiting: Waiting, begins: str, ends: str
) -> None:
    nothing = f"{'they' if begins else 'The objects'} refer only to each other"
    assert waiting.sentence("step") == f"{begins}{nothing}{ends}."


def test_merged_causes_have_the_bytes_and_members_of_both() -> None:
    strings = candidate("str", "plain")
    first = cause_of(strings, measured=3.0, rate=Slope(10.0, 5.0, 20.0, 8))
    second = cause_of(ENVS, strings, measured=4.0, rate=Slope(1.0, 0.5, 2.0, 16))
    both = together(first, second)
    assert (both.members, both.measured) == ((ENVS, strings), 7.0)
    assert both.rate == Slope(11.0, 5.5, 22.0, 16)
    assert together(cause_of(), cause_of()).measured is None


def test_garbage_is_named_after_program_classes_unless_they_are_few() -> None:
    assert _telling({"dict": 100, "app.Env": 10, "list": 50}) == ["app.Env", "dict", "list"]
    assert _telling({"dict": 100, "app.Env": 9, "list": 50}) == ["dict", "list", "app.Env"]
    assert _telling({"app.A": 40, "app.B": 60}) == ["app.B", "app.A"]
    assert _telling({}) == []


def test_the_three_most_significant_types_share_the_growth() -> None:
    counts = {"app.Env": 20, "dict": 50, "list": 20, "tuple": 10}
    holders = Holders([Holder(3, name, CYCLIC_GARBAGE, count) for name, count in counts.items()])
    found = members_of(holders, IN_TRAIN, growing(10), 1000.0)
    assert [(c.name, c.growth.slope, c.bytes_rate) for c in found] == [
        ("app.Env", 2.0, 200.0),
        ("dict", 5.0, 500.0),
        ("list", 2.0, 200.0),
    ]
    assert [c.bytes_rate for c in members_of(holders, IN_TRAIN, growing(10), 0.0)] == [None] * 3
    assert {(c.deep, c.declared, c.holder) for c in found} == {(False, False, CYCLIC_GARBAGE)}
