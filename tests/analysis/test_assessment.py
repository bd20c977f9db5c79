"""Assessment of a single moment: where a growth began, what supports it, and when two readings suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pieces import (
    BROKEN,
    FLAT,
    candidate,
    cause_of,
    ends_history,
    growing,
    steps_history,
    study_of,
    timeline_of,
)

from leakline.analysis.assertions.expected_counts import Violation
from leakline.analysis.assessment import (
    _come_together,
    _growth_since_violation,
    _start,
    _witnesses,
    assess,
    exploded,
    moment_of,
    with_surplus,
)
from leakline.analysis.attribution.candidates import Candidate
from leakline.analysis.attribution.causes import Cause, Memory
from leakline.analysis.memory.memory_kinds import Channel
from leakline.analysis.run_history import Expectation, Value
from leakline.analysis.statistics.count_evidence import CountGrowth
from leakline.analysis.statistics.memory_evidence import Rise
from leakline.analysis.statistics.trend import NO_GROWTH
from leakline.analysis.timeline_analysis import (
    last_row_of,
    memory_since,
    position_of,
)
from leakline.snapshot import Event, Holder

ENVS = candidate("app.Env", "object")
LOG = candidate("app.log", "container")


@pytest.mark.parametrize(
    ("generation", "end", "position"),
    [
        (None, 8, 2), (None, 15, 3), (None, 16, 4), (None, 300, 44), (None, 256, 4), (None, 1, 0), (5, 12, 5),
        (4.5, 12, 5), (0, 12, 0), (10, 12, 10), (11, 12, 10), (5, 300, 44), (999, 12, 0),
    ],
)  # fmt: skip
def test_a_rate_uses_at_least_two_readings_after_start_or_warm_up(
    generation: float | None, end: int, position: int
) -> None:
    timeline = timeline_of(ends_history({"process.anon_bytes": [1000] * 300}))
    assert position_of(timeline, generation, end) == position


def test_rows_of_an_unfinished_generation_belong_to_the_newest_moment() -> None:
    rows = [("generation_end", 0, None), ("generation_end", 1, None), ("phase_end", 2, "train")]
    study = study_of(steps_history(rows, {"process.anon_bytes": [1, 2, 3]}))
    assert [last_row_of(study, end) for end in (1, 2)] == [0, 2]


def test_the_number_of_remaining_generations() -> None:
    for total, end, remaining in ((100, 10, 90.0), (5, 12, 0.0), (100, 0, None)):
        history = ends_history({"process.anon_bytes": FLAT}, total=total)
        assert study_of(history).remaining(end) == remaining


def test_growth_is_compared_with_resident_memory_if_larger() -> None:
    rising: list[Value] = [1000 + 10 * g for g in range(12)]
    small = study_of(process__anon_bytes=rising)
    assert (small.scale(12).baseline_bytes, small.scale(12).level_bytes) == (1010.0, 1110.0)
    assert small.scale(3).level_bytes == 1020.0
    large = study_of(process__anon_bytes=rising, process__rss_bytes=[5000, 6000, 7000, *[9000] * 9])
    assert large.scale(12).baseline_bytes == 6000.0
    less = study_of(process__anon_bytes=rising, process__rss_bytes=[5] * 12)
    assert less.scale(12) == small.scale(12)
    nothing = study_of(ends_history({"x": FLAT}))
    assert nothing.scale(12).level_bytes == 0.0
    assert (nothing.residual(12), nothing.rise(12)) == ([], Rise())


def test_memory_since_a_start_includes_the_reading_before_it() -> None:
    values = [1000.0] * 6 + [1100.0 + 50 * i for i in range(6)]
    study = study_of(process__anon_bytes=[round(v) for v in values])
    assert memory_since(study, values, 7.0, 12).total.estimate == 50.0
    assert memory_since(study, values[:1], None, 1) == Memory(NO_GROWTH)
    assert memory_since(study, values[:2], None, 2).total.points == 2


def test_a_rise_below_the_noise_of_a_channel_does_not_last() -> None:
    values = tuple(1000.0 + 50.0 * g for g in range(30))
    for noise, rise in ((1500.0, 30), (1501.0, 0)):
        study = study_of(process__anon_bytes=[1000] * 30)
        found = study.channel_rise(Channel("c", "gpu", values, noise_bytes=noise), 30)
        assert (found.window, found.visible) == (rise, True)


@pytest.mark.parametrize(
    ("cause", "witnesses"),
    [
        (cause_of(replace(ENVS, growth=growing(rises=3))), {"counts", "steady"}),
        (cause_of(replace(ENVS, growth=growing(rises=3, pattern="periodic"))), {"counts", "steady"}),
        (cause_of(replace(ENVS, growth=growing(rises=3, pattern="irregular"))), {"counts"}),
        (cause_of(replace(ENVS, growth=growing(rises=3, pattern="noisy"))), {"counts"}),
        (cause_of(replace(ENVS, growth=growing(rises=1))), {"explosion"}),
        (cause_of(replace(ENVS, growth=growing(rises=1), violation=BROKEN)), {"contract"}),
        (cause_of(replace(ENVS, growth=growing(rises=2), violation=BROKEN)), {"contract"}),
        (cause_of(replace(ENVS, growth=growing(rises=2)), LOG), {"container"}),
        (cause_of(measured=None, rate=100.0), set()),
    ],
)  # fmt: skip
def test_witnesses_of_a_cause(cause: Cause, witnesses: set[str]) -> None:
    assert _witnesses(cause) == witnesses


@pytest.mark.parametrize(
    ("candidates", "start"),
    [
        ([candidate("a", "object", 9.0, start=3), candidate("b", "object", 8.0, start=5)], 3),
        ([candidate("a", "object", 8.0, start=3), candidate("b", "object", 9.0, start=5)], 5),
        ([candidate("a", "object", 1.0, start=3), candidate("b", "object", slope=9, start=5)], 3),
        ([candidate("a", "object", slope=1, start=3), candidate("b", "object", slope=9, start=5)], 5),
        ([candidate("a", "object", start=3), candidate("b", "object", start=5)], 5),
        ([candidate("a", "object", 1.0, start=3), candidate("b", "plain", 9.0, start=5)], 3),
        ([candidate("a", "library", 1.0, start=3), candidate("b", "plain", 9.0, start=5)], 5),
    ],
    ids=["larger", "the other", "sized", "faster", "by name", "of the program", "of nobody"],
)  # fmt: skip
def test_growth_starts_with_the_largest_count_of_the_program(
    candidates: list[Candidate], start: float
) -> None:
    assert _start(study_of(), candidates, Rise(), 12) == (start, start, start)


def test_without_counts_growth_starts_at_the_bend_of_memory() -> None:
    rising: list[Value] = [*[1000] * 8, *[1000 + 100 * i for i in range(1, 9)]]
    study = study_of(process__anon_bytes=rising)
    assert _start(study, [], Rise(), 16) is None
    for rise in (Rise(visible=True), Rise(window=8)):
        assert _start(study, [], rise, 16) == study.bend(16)
    assert study.bend(16) is not None


def test_counts_and_memory_match_if_both_rise_in_the_same_generations() -> None:
    beat = [g // 4 for g in range(24)]
    counts: list[Value] = [10 + b for b in beat]
    together: list[Value] = [100_000 + 5000 * b for b in beat]
    env = replace(ENVS, growth=growing(0.25, 4, pattern="periodic", rises=5, period=4))
    study = study_of(process__anon_bytes=together, type__app__Env__count=counts)
    assert _come_together(study, cause_of(env), 24)
    (only,) = assess(study, 24).causes
    assert {"counts", "steady", "together"} <= only.witnesses
    assert not _come_together(study, cause_of(replace(env, name="app.Plan")), 24)
    assert not _come_together(study, cause_of(replace(env, role="container")), 24)
    assert not _come_together(study, cause_of(), 24)
    # Two periods since its beginning are too few to decide.
    late = replace(env, growth=growing(0.25, 16, pattern="periodic", rises=5, period=4))
    assert not _come_together(study, cause_of(late), 24)
    apart: list[Value] = [100_000 + 5000 * ((g + 2) // 4) for g in range(24)]
    study = study_of(process__anon_bytes=apart, type__app__Env__count=counts)
    assert not _come_together(study, cause_of(env), 24)


def test_memory_that_rises_alone_has_one_unattributed_cause() -> None:
    study = study_of(process__anon_bytes=[100_000 + 5000 * g for g in range(16)])
    (only,) = assess(study, 16).causes
    assert (only.cause.kind, only.cause.owner, only.cause.rate.estimate) == ("native", None, 5000.0)
    assert assess(study_of(), 12).causes == ()
    # Memory that merely rises counts as a separate growth from eight generations on.
    assert assess(study, 7).causes == ()
    assert len(assess(study, 8).causes) == 1


def test_a_settled_moment_is_assessed_once() -> None:
    rows: list[tuple[str, int | None, str | None]] = [("generation_end", g, None) for g in range(6)]
    whole = study_of(steps_history(rows, {"process.anon_bytes": [1000] * 6}))
    assert moment_of(whole, 6) is moment_of(whole, 6)
    goes_on = study_of(
        steps_history([*rows, ("phase_end", 6, "train")], {"process.anon_bytes": [1000] * 7})
    )
    assert moment_of(goes_on, 6) is not moment_of(goes_on, 6)
    assert moment_of(goes_on, 5) is moment_of(goes_on, 5)


@pytest.mark.parametrize(
    ("slope", "declared", "named"),
    [(0, False, []), (0, True, ["app.Item"]), (5000, False, ["app.Item"])],
    ids=["no other growth", "declared", "while memory rises"],
)
def test_a_class_that_may_be_items_of_a_store_is_excused(
    slope: int, declared: bool, named: list[str]
) -> None:
    length: list[Value] = [100 * g for g in range(16)]
    size: list[Value] = [1000 * g for g in range(16)]
    history = ends_history(
        {
            "process.anon_bytes": [1_000_000 + 1000 * g + 10 * slope * g for g in range(16)],
            "tracked.replay.length": length,
            "tracked.replay.bytes": size,
            "type.app.Item.count": length,
        },
        capacities={"replay": 100_000},
        holders=(Holder(3, "app.Item", "app.Replay.items[*]", 100, 10),),
        events=(Event(0, 0.0, "watch", "app.Item"),) if declared else (),
    )
    causes = assess(study_of(history), 16).causes
    assert [a.cause.owner.name for a in causes if a.cause.owner] == named


def _leaps(
    private: Sequence[Value], counts: Sequence[Value], name: str = "tensors.count", candidates: Sequence[Candidate] = ()
) -> list[Candidate]:  # fmt: skip
    study = study_of(ends_history({"process.anon_bytes": private, name: counts}))
    return exploded(study, len(private), candidates)


@pytest.mark.parametrize(
    ("private", "counts", "found"),
    [
        ([1000, 1400], [10, 50], True), ([1000, 1399], [10, 50], False), ([1000, 1400], [10, 49], False),
        ([1000, 1000, 1400], [10, 10, 50], True), ([5000, 1000, 1400], [90, 10, 50], True),
        ([1000, 1400, 1400], [10, 50, 50], False), ([1000, 1000, 1000, 1400], [10, 10, 10, 50], False),
        ([1400], [50], False), ([1000, 1400], [0, 50], False), ([1000, 1400], [1, 5], True),
        ([1000, 1400], [None, 50], False),
    ],
    ids=["five times", "memory by less", "fewer", "in the third", "larger at first", "not now", "in the fourth",
         "at once", "from nothing", "from one", "not read before"],
)  # fmt: skip
def test_exploding_tensors_are_seen_in_the_first_generations(
    private: list[Value], counts: list[Value], found: bool
) -> None:
    leaps = _leaps(private, counts)
    assert [leap.name for leap in leaps] == (["torch.Tensor"] if found else [])


def test_only_tensors_explode_and_only_while_nothing_else_grows() -> None:
    leap: tuple[list[Value], list[Value]] = ([1000, 1400], [10, 50])
    assert _leaps(*leap, "type.app.Env.count") == _leaps(*leap, "arrays.count") == []
    assert _leaps(*leap, candidates=[ENVS]) == []
    (one,) = _leaps(*leap)
    assert one.growth == CountGrowth("irregular", 40, 40, 40, 1, 1, 1, 1, 1, 40)


def _since(violation: Violation) -> CountGrowth:
    study = study_of(type__Env__count=[1] * 12)
    return _growth_since_violation(study, "Env", violation, 12)


def test_a_broken_count_grows_from_its_last_valid_reading() -> None:
    held = replace(BROKEN, count=15, count_before=1, first_row=5, row_before=4)
    assert _since(held) == CountGrowth("irregular", 2, 2, 2, 5, 4, 5, 1, 7, 14)
    never = replace(held, count_before=None, row_before=None)
    assert _since(never) == CountGrowth("irregular", 2, 2, 2, 5, 5, 5, 1, 6, 12)
    newest = replace(never, first_row=11, first_count=8)
    assert _since(newest) == CountGrowth("irregular", 7, 7, 7, 11, 11, 11, 1, 1, 7)
    in_one = replace(held, first_row=4, row_before=5)
    assert _since(in_one).start_low == 4


def test_a_surplus_belongs_to_its_type() -> None:
    history = ends_history(
        {"process.anon_bytes": FLAT, "type.app.Env.count": [*[1] * 8, *[9] * 4]},
        expectations=(Expectation("app.Env", 0, 1),),
    )
    (alone,) = with_surplus(study_of(history), 12, [])
    assert (alone.name, alone.violation is not None, alone.growth.slope) == ("app.Env", True, 2.0)
    with_type = with_surplus(study_of(history), 12, [ENVS])
    assert [(c.name, c.violation is not None) for c in with_type] == [("app.Env", True)]
    assert with_type[0].growth == ENVS.growth
    assert with_surplus(study_of(history), 8, []) == []
