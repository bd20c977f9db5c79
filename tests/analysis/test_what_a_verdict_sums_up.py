"""What a verdict sums up: the worst of its findings, the growth of all processes, and what was ruled out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pieces import assessed, cause_of, ends_history, lane_of, steps_history, sure

from leakline.analysis.evidence import Rise, Scale
from leakline.analysis.history import Value
from leakline.analysis.results import Finding, Interval, RuledOut, Status
from leakline.analysis.study import Assessed, LaneStudy, Moment
from leakline.analysis.trend import NO_GROWTH, Slope
from leakline.analysis.verdict import (
    _explained_share,
    _filling_lines,
    _growth,
    _never_ran,
    _ruled_out,
    _status,
)


def _study(**series: Sequence[Value]) -> LaneStudy:
    named = {name.replace("__", "."): values for name, values in series.items()}
    history = ends_history(named, capacities={"replay": 1000})
    return LaneStudy(history, lane_of(history))


RISING: list[Value] = [1000 + 100 * g for g in range(12)]
STUDY = _study(process__anon_bytes=RISING)


def _moment(
    upto: int = 12, *causes: Assessed, visible: bool = False, growth: Slope = NO_GROWTH, filling: tuple[str, ...] = ()
) -> Moment:  # fmt: skip
    return Moment(upto, causes, Rise(visible=visible), growth, Scale(1000.0), filling)


def _finding(status: Status, phase: str | None = "train") -> Finding:
    return Finding("f", status, "objects", phase, 1.0, (), Interval(1.0, 1.0, 1.0), None, 0.9)


@pytest.mark.parametrize(
    ("statuses", "filling", "visible", "generations", "status"),
    [
        (["ok", "confirmed", "watch"], True, True, 3, "confirmed"),
        (["recovered", "suspected"], True, True, 3, "suspected"),
        (["ok", "watch"], True, True, 3, "watch"),
        (["ok", "recovered"], True, True, 3, "filling"),
        (["recovered"], False, True, 4, "learning"),
        (["recovered"], False, True, 5, "recovered"),
        (["ok"], False, True, 5, "watch"),
        (["ok"], False, False, 5, "ok"),
        ([], False, False, 5, "ok"),
        ([], False, False, 4, "learning"),
        ([], False, True, 5, "watch"),
    ],
)
def test_the_status_of_a_run_is_the_worst_of_what_is_known(
    statuses: list[Status], filling: bool, visible: bool, generations: int, status: Status
) -> None:
    moment = _moment(visible=visible, filling=("replay",) if filling else ())
    found = [_finding(each) for each in statuses]
    assert _status(found, [(STUDY, moment, [])], generations) == status


def test_growth_of_a_run_is_that_of_its_processes_together() -> None:
    one, two = _moment(growth=Slope(3.0, 1.0, 5.0, 12)), _moment(growth=Slope(4.0, 2.0, 9.0, 12))
    assert _growth([one, two]) == Interval(7.0, 3.0, 14.0)
    assert _growth([]) is None


def test_a_store_that_fills_says_how_full_it_is_and_when_it_will_be() -> None:
    length: list[Value] = [50 * g for g in range(12)]
    study = _study(
        process__anon_bytes=RISING, tracked__replay__length=length, tracked__replay__bytes=length
    )
    (line,) = _filling_lines(study, _moment(filling=("replay",)))
    # 550 of 1,000 items at generation 11, and 50 more in each: nine generations to go.
    assert line == "replay holds 550 of 1,000 (55%), full about generation 20 with 1,000 B"
    assert _filling_lines(study, _moment()) == []
    still = _study(process__anon_bytes=RISING, tracked__replay__length=[550] * 12)
    assert _filling_lines(still, _moment(filling=("replay",))) == [
        "replay holds 550 of 1,000 (55%)"
    ]


@pytest.mark.parametrize(
    ("upto", "causes", "share"),
    [
        (12, [cause_of(measured=25.0, rate=100.0)], 0.25),
        (12, [cause_of(measured=25.0), cause_of(measured=50.0)], 0.75),
        (12, [cause_of(measured=900.0)], 1.0),
        (12, [cause_of()], None),
        (12, [], None),
        (4, [cause_of(measured=25.0)], None),
        (5, [cause_of(measured=25.0)], 0.25),
    ],
    ids=["a quarter", "two causes", "more than all", "unmeasured", "none", "too soon", "just not"],
)
def test_the_share_that_is_explained_is_what_was_measured_of_what_memory_gained(
    upto: int, causes: Sequence[object], share: float | None
) -> None:
    found = [assessed(c) for c in causes]  # type: ignore[arg-type]
    assert _explained_share([STUDY], [_moment(upto, *found)]) == share


def test_what_lies_on_a_device_explains_nothing_of_the_process() -> None:
    on_device = assessed(cause_of(measured=25.0), channel="cuda.0.allocated_bytes")
    assert _explained_share([STUDY], [_moment(12, on_device)]) is None
    flat = _study(process__anon_bytes=[1000] * 12)
    assert _explained_share([flat], [_moment(12, assessed(cause_of(measured=25.0)))]) is None


def test_a_phase_that_was_announced_and_never_ran_is_ruled_out() -> None:
    rows: list[tuple[str, int | None, str | None]] = [
        ("phase_end", 0, "evaluate/episode"), ("generation_end", 0, None),
    ]  # fmt: skip
    phases = ("evaluate", "episode", "evaluate/episode", "train")
    history = steps_history(rows, {"process.anon_bytes": [1, 1]}, phases=phases)
    study = LaneStudy(history, lane_of(history))
    assert _never_ran(history, [study]) == (RuledOut("train", "never ran"),)


@pytest.mark.parametrize(
    ("rate", "upto", "status", "named"),
    [
        (2, 12, "suspected", ["evolve"]),
        (3, 12, "suspected", []),
        (2, 12, "ok", []),
        (2, 12, "watch", ["evolve"]),
        (2, 2, "suspected", []),
        (2, 3, "suspected", ["evolve"]),
    ],
    ids=["flat", "rises", "no alarm", "may leak", "too soon", "three generations"],
)
def test_a_phase_that_keeps_too_little_to_matter_is_ruled_out_beside_one_that_leaks(
    rate: int, upto: int, status: Status, named: list[str]
) -> None:
    """Of a thousand bytes 50 matter, and twelve generations are looked ahead for twice as long: 2.08 in each."""
    study = _study(
        process__anon_bytes=RISING, phase__train__bytes=[100] * 12, phase__evolve__bytes=[rate] * 12,
        phase__between__bytes=[0] * 12,
    )  # fmt: skip
    moment = _moment(upto, growth=sure(100.0))
    found = _ruled_out(study.history, [(study, moment, [])], [_finding(status)])
    assert [each.phase for each in found] == named
