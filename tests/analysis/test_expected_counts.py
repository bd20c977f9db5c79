"""Declared counts: which readings are compared with them, and when a surplus is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import EVALUATE, EVOLVE, MIB, TRAIN, Leak, Training, old_population
from pieces import ends_history, ends_timeline, steps_history, timeline_of

from leakline.analysis import (
    RunHistory,
    check_counts,
    examine,
    history_from_batches,
)
from leakline.analysis.assertions.expected_counts import (
    Readings,
    Violation,
    applicable_readings,
    applies,
    counted_type,
    find_violation,
    matching_types,
    range_text,
    stands_for,
)
from leakline.analysis.results import SEVERITY, Interval
from leakline.analysis.run_history import Expectation, Value
from leakline.core.declarations import expectation
from leakline.snapshot import LARGEST_INTEGER, Batch, Event, ProcessIdentity, RunHeader, Snapshot

COUNT, COLLECTIONS = "type.app.Env.count", "python.collections_full"
Row = tuple[str, int | None, str | None]
ENVIRONMENTS = ("TradingEnvironment", 2, 2, None)
AGENTS = ("agents.DDPGAgent", 17, 17, EVOLVE)


def counts_only(*counts: tuple[int, int, int | None]) -> RunHistory:
    """Return a run at constant memory with (generation, environments, full collections); two are declared."""
    generations, environments, collections = zip(*counts, strict=True)
    series = {
        "type.train.Env.count": environments, "process.rss_bytes": [100 * MIB] * len(counts), COLLECTIONS: collections,
    }  # fmt: skip
    rows: list[Row] = [("phase_end", g, "train") for g in generations]
    return steps_history(rows, series, expectations=(Expectation("Env", 2, 2),))


def test_a_surplus_seen_once_without_a_collection_is_not_reported_yet() -> None:
    verdict = examine(counts_only((0, 2, 5), (1, 18, 5)))
    assert SEVERITY.index(verdict.status) < SEVERITY.index("suspected")


def test_a_constant_surplus_is_only_a_broken_contract() -> None:
    verdict = examine(counts_only(*((g, 3, g) for g in range(8))))
    assert (verdict.status, [f.kind for f in verdict.findings]) == ("suspected", ["count_contract"])
    assert "Env count is 3, declared 2" in verdict.summary


@pytest.mark.parametrize("generations", [2, 3])
def test_a_surplus_is_reported_in_its_generation(generations: int) -> None:
    leaks = (old_population(start=generations - 1),)
    training = Training(leaks=leaks, expectations=(AGENTS,), generations=generations)
    verdict = examine(training.history())
    assert verdict.status == "suspected"
    assert verdict.findings[0].suspects[0].name == "agents.DDPGAgent"
    assert verdict.findings[0].started_at_generation is not None
    assert verdict.findings[0].started_at_generation.estimate == generations - 1


def test_expectation_rows_show_the_observed_counts() -> None:
    leak = Leak(EVALUATE, 1 * MIB, {"trading.TradingEnvironment": 16}, start=2)
    history = Training(
        leaks=(leak,), generations=5, expectations=(ENVIRONMENTS, AGENTS, ("Missing", 1, 1, None))
    ).history()
    rows = {row.name: row for row in check_counts(history)}
    environment = rows["trading.TradingEnvironment"]
    assert (environment.low, environment.high, environment.state) == (2, 2, "broken")
    assert environment.measured == Interval(50, 50, 50)
    said = "50 at the newest reading; outside the bounds at 14 readings, first in generation 2."
    assert environment.sentence == said
    assert rows["agents.DDPGAgent"].state == "holds"
    assert rows["Missing"].state == "not_measured"


TENSOR = "torch.Tensor"


def attempt(number: int, *rows: tuple[int | None, str | None, int], after: str | None) -> Batch:
    """Return the (generation, phase, tensors) rows of one process that declared ``"baseline"``."""
    name, data = expectation(TENSOR, "baseline", after)
    events = (Event(0, 0.0, "expect", str(name), data=data),)
    snapshots = []
    for i, (generation, phase, count) in enumerate(rows):
        kind = "baseline" if generation is None else "phase_end" if phase else "generation_end"
        at = 1000.0 * number + i
        samples = {f"type.{TENSOR}.count": count, "process.rss_bytes": 100 * MIB}
        snapshots.append(
            Snapshot(i, at, at, generation, phase, "", kind, samples, events if i == 0 else ())
        )
    return Batch(ProcessIdentity(f"p{number}", attempt=number), tuple(snapshots))


def history(*attempts: Batch) -> RunHistory:
    return history_from_batches(RunHeader("r", "p", "r", "generation", None, 0.0), attempts)


def trained(
    *tensors: int, number: int = 1, begins: int = 0, after: str | None = TRAIN, initial: int = 400
) -> Batch:
    ends = [(begins + i, TRAIN, count) for i, count in enumerate(tensors)]
    return attempt(number, (None, None, initial), *ends, after=after)


def test_a_run_that_returns_to_its_baseline_is_not_reported() -> None:
    run = history(trained(567, 567, 560, 567))
    (row,) = check_counts(run)
    assert (row.state, row.low, row.high, row.violations) == ("holds", None, 567, 0)
    assert not examine(run).findings


def test_a_surplus_over_the_baseline_is_reported_with_both_numbers() -> None:
    run = history(trained(567, 567, 5678, 5678))
    (row,) = check_counts(run)
    assert (row.state, row.deviations[0].generation) == ("broken", 2)
    assert row.measured == Interval(5678, 5678, 5678)
    (finding,) = examine(run).findings
    assert finding.status == "suspected"
    assert finding.suspects[0].name == TENSOR
    said = (
        "Tensor count is 5,678, declared up to 567 (baseline) after train_population; the surplus"
    )
    assert any(line.startswith(said) for line in finding.evidence)


def test_a_resumed_run_sets_its_baseline_again() -> None:
    """The fix in the second attempt keeps another optimizer, so the first attempt's baseline does not apply."""
    well = history(trained(567, 567), trained(900, 900, 900, number=2, begins=2))
    (row,) = check_counts(well)
    assert (row.state, row.high) == ("holds", 900)
    assert not examine(well).findings
    leaking = history(trained(900, 900), trained(567, 800, 800, number=2, begins=2))
    (row,) = check_counts(leaking)
    assert (row.state, row.high) == ("broken", 567)


def test_a_declared_name_matches_a_class_if_either_lacks_a_module() -> None:
    assert stands_for("Env", "app.Env") and stands_for("app.Env", "Env")
    assert not stands_for("Env", "app.MyEnv") and not stands_for("other.Env", "app.Env")


def test_a_fully_qualified_name_matches_only_itself() -> None:
    counted = {"type.b.Env.count": [1], "type.a.Env.count": [1]}
    assert matching_types(ends_timeline(counted), "Env") == ("a.Env", "b.Env")
    counted["type.Env.count"] = [1]
    assert matching_types(ends_timeline(counted), "Env") == ("Env",)


def test_each_series_is_mapped_to_its_type() -> None:
    series = (
        "type.app.Env.count", "type.app.Env.bytes", "x.app.Env.count", "type.leakline.client.Client.count",
    )  # fmt: skip
    assert [counted_type(name) for name in series] == ["app.Env", None, None, None]


def test_the_expected_number_of_instances() -> None:
    assert range_text(Expectation("E", 2, 2)) == "2"
    assert range_text(Expectation("E", 1, 2)) == "1 to 2"
    assert range_text(Expectation("E", 0, 567, baseline=True)) == "up to 567 (baseline)"
    assert range_text(Expectation("E", 0, LARGEST_INTEGER, baseline=True)) == "up to the baseline"


@pytest.mark.parametrize(
    ("kind", "phase", "after", "held"),
    [
        ("phase_end", "train", None, True), ("generation_end", None, None, True), ("baseline", None, None, True),
        ("sample", None, None, False), ("phase_end", "train", "train", True),
        ("phase_end", "evaluate/run", "run", True), ("phase_end", "evaluate/rerun", "run", False),
        ("phase_end", "run/evaluate", "run", False), ("generation_end", None, "train", False),
        ("phase_end", None, "train", False),
    ],
)  # fmt: skip
def test_only_readings_after_the_declared_phase_are_compared(
    kind: str, phase: str | None, after: str | None, held: bool
) -> None:
    rows: list[Row] = [(kind, 0, phase), ("generation_end", 0, None)]
    timeline = timeline_of(steps_history(rows, {"process.anon_bytes": [1, 1]}))
    assert applies(timeline, 0, after) == held


def _violation(
    counts: Sequence[Value], collections: Sequence[Value] | None = None, end: int | None = None, low: int = 1
) -> Violation | None:  # fmt: skip
    series = {COUNT: counts} if collections is None else {COUNT: counts, COLLECTIONS: collections}
    timeline = ends_timeline(series)
    (readings,) = applicable_readings(timeline, [Expectation("Env", low, 2)])
    return find_violation(timeline, readings, len(counts) - 1 if end is None else end)


@pytest.mark.parametrize(
    ("counts", "broken"),
    [([2], False), ([3], True), ([1], False), ([0], True), ([3, 2], False), ([None], False)],
    ids=["the most", "more", "the least", "fewer", "not any more", "not read"],
)
def test_a_count_is_broken_outside_its_bounds_at_the_newest_reading(
    counts: list[Value], broken: bool
) -> None:
    assert (_violation(counts) is not None) == broken


def test_a_violation_has_its_start_and_the_count_before_it() -> None:
    found = _violation([2, 3, 4, 5])
    assert found is not None
    assert (found.count, found.first_count, found.count_before) == (5, 3, 2)
    assert (found.first_row, found.row_before, found.above, found.proven) == (1, 0, True, True)
    found = _violation([3, 4])
    assert found is not None
    assert (found.first_row, found.row_before, found.count_before) == (0, None, None)
    # A surplus is not part of a deficit.
    found = _violation([3, 0, 0])
    assert found is not None
    assert (found.first_row, found.above, found.row_before) == (1, False, 0)
    assert _violation([2, 3, 4], end=0) is None


@pytest.mark.parametrize(
    ("counts", "collections", "proven"),
    [
        ([2, 3], None, True), ([2, 3], [None, None], True), ([2, 3], [0, 0], False), ([2, 3, 3], [0, 0, 0], True),
        ([2, 3], [0, 1], False),
    ],
    ids=["nothing known", "nothing given", "seen once", "seen again", "collected before"],
)  # fmt: skip
def test_a_surplus_is_proven_if_it_persists_or_collections_are_unknown(
    counts: list[Value], collections: list[Value] | None, proven: bool
) -> None:
    found = _violation(counts, collections)
    assert found is not None
    assert found.proven == proven


@pytest.mark.parametrize(
    ("later", "collections", "proven"),
    [(3, [0, 0, 1], True), (3, [0, 1, 1], False), (2, [0, 0, 1], False), (None, [0, 0, 1], False),
     (3, [0, None, 1], False), (3, [0, 0, None], False)],
    ids=["outlived one", "no collection since", "gone", "not read", "unknown before", "unknown after"],
)  # fmt: skip
def test_a_surplus_seen_once_is_proven_by_a_full_collection(
    later: Value, collections: list[Value], proven: bool
) -> None:
    """Readings within phases are not judged, but show whether the surplus still exists."""
    rows: list[Row] = [
        ("generation_end", 0, None), ("generation_end", 1, None), ("sample", 1, None),
    ]  # fmt: skip
    timeline = timeline_of(steps_history(rows, {COUNT: [2, 3, later], COLLECTIONS: collections}))
    (readings,) = applicable_readings(timeline, [Expectation("Env", 1, 2)])
    found = find_violation(timeline, readings, 2)
    assert found is not None
    assert found.proven == proven


def test_a_baseline_is_the_maximum_up_to_the_end_of_generation_0() -> None:
    rows: list[Row] = [
        ("baseline", None, None), ("phase_end", 0, "a"), ("generation_end", 0, None), ("generation_end", 1, None),
    ]  # fmt: skip
    timeline = timeline_of(steps_history(rows, {COUNT: [3, 7, 5, 9]}))
    (readings,) = applicable_readings(
        timeline, [Expectation("Env", 0, LARGEST_INTEGER, baseline=True)]
    )
    assert (readings.expectation.high, readings.counts) == (7, (3, 7, 5, 9))
    unread = timeline_of(steps_history(rows, {COUNT: [None] * 4}))
    expected = Expectation("Env", 0, LARGEST_INTEGER, baseline=True)
    assert applicable_readings(unread, [expected]) == (Readings(expected, "app.Env", (), ()),)


def test_each_broken_class_has_a_row_with_many_processes() -> None:
    """Alerts read from these rows who declared the broken count."""
    names = [f"app.C{number}" for number in range(6)]
    series = {f"type.{name}.count": [2.0, 3.0, 3.0] for name in names}
    one = ends_history(series).processes[0]
    processes = tuple(replace(one, instance=f"p{rank}", rank=rank) for rank in range(16))
    limits = tuple(Expectation(name, 2, 2, accepted=name == names[5]) for name in names)
    checks = examine(RunHistory("r", processes=processes, expectations=limits)).assertions
    assert (len(checks), {check.state for check in checks}) == (80, {"broken"})
    assert {check.name for check in checks[:6]} == {*names}
    assert next(each.origin for each in checks if each.name == names[5]) == "accepted"
