"""How growth is split among causes, and which findings are the same leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pieces import (
    BROKEN,
    EVOLVE,
    NOWHERE,
    SPREAD,
    TRAIN,
    candidate,
    cause_of,
    growing,
    sure,
)

from leakline.analysis.attribution.candidates import Candidate, Family, Place
from leakline.analysis.attribution.causes import (
    Cause,
    Memory,
    fingerprint_of,
    goes_on_as,
    normalised,
)
from leakline.analysis.attribution.growth_split import (
    _around,
    _claim,
    _is_plausible,
    _likelihood,
    _taking_part,
    share_out,
)
from leakline.analysis.results import Finding, Interval, Kind, Role, Suspect
from leakline.analysis.statistics.trend import Slope

MEMORY = Memory(Slope(100.0, 80.0, 120.0, 16), {"train": 60.0, "evolve": 40.0})
ENVS = candidate("app.Env", "object")
PLANS = candidate("app.Plan", "object", place=EVOLVE)


def _sized(measured: float | None, place: Place = TRAIN, owner: Candidate = ENVS) -> Cause:
    return cause_of(owner, place=place, measured=measured)


def _rates(
    causes: Sequence[Cause], rises: bool = True, matters: bool = True
) -> tuple[list[float], float]:
    shared, left, _ = share_out(causes, MEMORY, rises, matters)
    return [c.rate.estimate for c in shared], left  # fmt: skip


def test_two_measured_causes_add_up_to_the_memory_gain() -> None:
    assert _rates([_sized(30.0), _sized(20.0, EVOLVE, PLANS)]) == ([60.0, 40.0], 0.0)
    (one,), left, _ = share_out([_sized(50.0)], MEMORY, True, True)
    assert (one.rate, left) == (Slope(100.0, 80.0, 120.0, 16), 0.0)


@pytest.mark.parametrize(
    ("measured", "rises", "rates", "left"),
    [
        (25.0, True, [100.0], 0.0), (24.0, True, [24.0], 76.0), (4.0, True, [4.0], 100.0),
        (4.0, False, [4.0], 0.0),
    ],
    ids=["a quarter", "less", "next to nothing", "and not seen"],
)  # fmt: skip
def test_a_measure_below_a_quarter_leaves_room_for_native_growth(
    measured: float, rises: bool, rates: list[float], left: float
) -> None:
    """The phase keeps little, so its accounts give no more than the measurement."""
    little = Place("little", "little", 1.0)
    assert _rates([_sized(measured, little)], rises) == (rates, left)


@pytest.mark.parametrize(
    ("causes", "phases", "apart"),
    [
        ([_sized(60.0)], {"train": 60.0, "evolve": 40.0}, {"evolve": 40.0}),
        ([_sized(60.0)], {"train": 82.0, "evolve": 18.0}, {}),
        ([_sized(95.0)], {"train": 60.0, "evolve": 40.0}, {}),
        ([_sized(None)], {"train": 60.0, "evolve": 40.0}, {}),
        ([_sized(50.0)], {"train": 1.0, "evolve": 49.0}, {}),
    ],
    ids=["its own", "little", "made here, kept there", "not measured", "and freed memory around it"],
)  # fmt: skip
def test_memory_in_use_of_a_phase_without_a_cause_is_its_own_growth(
    causes: list[Cause], phases: dict[str, float], apart: dict[str, float]
) -> None:
    memory = Memory(MEMORY.total, phases, living=True)
    shared, left, elsewhere = share_out(causes, memory, True, True)
    assert elsewhere == apart
    assert left == pytest.approx(sum(apart.values()))
    assert sum(c.rate.estimate for c in shared) == pytest.approx(100.0 - left)
    # Accounts based on memory alone also charge what another phase freed.
    assert share_out(causes, replace(memory, living=False), True, True)[2] == {}


def test_causes_keep_their_measure_if_memory_gains_too_little() -> None:
    assert _rates([_sized(30.0), _sized(20.0, EVOLVE)], matters=False) == ([30.0, 20.0], 0.0)
    unsure = Memory(Slope(100.0, 0.0, 200.0, 16))
    shared, left, _ = share_out([_sized(30.0)], unsure, True, True)
    assert (shared[0].rate, left) == (Slope(30.0, 0.0, 200.0, 16), 0.0)


def test_causes_without_a_claim_keep_roughly_their_own_bytes() -> None:
    idle, active = _sized(4.0), _sized(50.0, EVOLVE)
    shared, *_ = share_out([idle, active], MEMORY, True, True)
    assert [c.rate for c in shared] == [Slope(100.0, 80.0, 120.0, 16), Slope(4.0, 2.0, 6.0, 0)]
    assert _around(4.0) == Slope(4.0, 2.0, 6.0, 0)
    assert _rates([]) == ([], 100.0)
    assert _rates([], rises=False) == ([], 0.0)


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ([20.0, 5.0], [20.0, 5.0]), ([20.0, 4.9], [20.0, None]), ([24.0], [24.0, None]),
    ],
    ids=["a twentieth", "together too little", "less than a quarter"],
)  # fmt: skip
def test_unmeasured_causes_share_if_measured_ones_explain_too_little(
    sizes: list[float], part: list[float | None]
) -> None:
    unknown = _sized(None, EVOLVE, replace(PLANS, declared=True))
    found = _taking_part([*(_sized(size) for size in sizes), unknown], MEMORY)
    assert [c.measured for c in found] == part


def test_the_most_likely_guess_remains() -> None:
    def names(phases: dict[str, float], *causes: Cause) -> list[str]:
        memory = Memory(MEMORY.total, phases)
        return [c.members[0].name for c in _taking_part(causes, memory)]

    envs, plans = _sized(None), _sized(None, EVOLVE, PLANS)
    assert names({"train": 60.0, "evolve": 40.0}, envs, plans) == ["app.Env", "app.Plan"]
    assert names({"train": 70.0, "evolve": 30.0}, envs, plans) == ["app.Env", "app.Plan"]
    assert names({"train": 71.0, "evolve": 29.0}, envs, plans) == ["app.Env"]
    assert names({"train": 29.0, "evolve": 71.0}, envs, plans) == ["app.Plan"]


def test_broken_counts_rank_before_declared_ones_and_larger_phases() -> None:
    broken = _likelihood(_sized(None, EVOLVE, replace(ENVS, violation=BROKEN)), MEMORY)
    declared = _likelihood(_sized(None, EVOLVE, replace(ENVS, declared=True)), MEMORY)
    large, small = _likelihood(_sized(None), MEMORY), _likelihood(_sized(None, EVOLVE), MEMORY)
    many = _likelihood(_sized(None, EVOLVE, replace(ENVS, growth=growing(9))), MEMORY)
    assert broken > declared > large > many > small
    assert small == (False, False, 40.0, 1.0)
    assert _likelihood(_sized(None, NOWHERE), MEMORY) == (False, False, 0.0, 1.0)
    assert _likelihood(cause_of(), MEMORY) == (False, False, 0.0, 0.0)


MIB = 2.0**20
LARGE = 2.0**27


@pytest.mark.parametrize(
    ("owner", "total", "plausible"),
    [
        (ENVS, MIB, True), (ENVS, MIB + 1, False), (replace(ENVS, growth=growing(2)), 2 * MIB, True),
        (replace(ENVS, growth=growing(2)), 2 * MIB + 1, False), (replace(ENVS, declared=True), 9 * LARGE, True),
        (replace(ENVS, violation=BROKEN), 9 * LARGE, True), (replace(ENVS, growth=growing(0)), 1.0, False),
        (replace(ENVS, growth=growing(0), declared=True), 1.0, False),
        (replace(ENVS, growth=growing(0), violation=BROKEN), 1.0, True),
        (replace(ENVS, growth=growing(-1)), 1.0, False), (replace(ENVS, growth=growing(0.5)), 0.5 * MIB, True),
        (replace(ENVS, place=NOWHERE), 1.0, False), (replace(ENVS, place=SPREAD), 1.0, True),
    ],
    ids=["a mebibyte each", "more", "two of one each", "of more", "declared", "broken", "as many as ever",
         "as many as declared", "as many and broken", "fewer", "one in two", "nowhere", "between"],
)  # fmt: skip
def test_an_undeclared_object_is_at_most_a_mebibyte(
    owner: Candidate, total: float, plausible: bool
) -> None:
    assert _is_plausible(cause_of(owner), total) == plausible


@pytest.mark.parametrize(
    ("family", "with_list", "total", "plausible"),
    [
        ("graph", False, LARGE, True), ("figure", False, LARGE, True), ("object", True, LARGE, True),
        ("array", True, LARGE, False), ("library", False, 1.0, False), ("array", False, 1.0, True),
    ],
)  # fmt: skip
def test_tensors_and_objects_kept_one_by_one_in_a_list_may_be_large(
    family: Family, with_list: bool, total: float, plausible: bool
) -> None:
    members = [candidate("x", family)] + ([candidate("app.log", "container")] if with_list else [])
    assert _is_plausible(cause_of(*members), total) == plausible
    # A list that grows at another rate holds none of them.
    other = [candidate("app.log", "container", slope=5)]
    assert not _is_plausible(cause_of(ENVS, *other), LARGE)


@pytest.mark.parametrize(
    ("measured", "other", "claim"),
    [
        (29.0, None, 60.0), (29.0, 1.0, 59.0), (29.0, 2.0, 29.0), (30.0, 20.0, 30.0),
    ],
    ids=["less", "less of the rest", "half of the rest", "more of the rest"],
)  # fmt: skip
def test_an_incomplete_measurement_claims_the_gain_of_its_phase(
    measured: float, other: float | None, claim: float
) -> None:
    one, elsewhere = _sized(measured), _sized(99.0, EVOLVE)
    others = [] if other is None else [_sized(other)]
    assert _claim(one, MEMORY, [one, *others, elsewhere]) == claim


def test_an_unmeasured_cause_claims_its_phase_or_its_share() -> None:
    one, other = _sized(None), _sized(50.0, EVOLVE)
    lost = _sized(None, NOWHERE)
    assert _claim(one, MEMORY, [one]) == 100.0
    assert _claim(one, MEMORY, [one, other]) == 60.0
    assert _claim(lost, MEMORY, [lost, other, one, one]) == 25.0
    assert _claim(one, Memory(sure(100.0), {"train": -5.0}), [one, other]) == 0.0
    assert _claim(_sized(7.0, NOWHERE), MEMORY, [one]) == 7.0


def test_a_fingerprint_consists_of_kind_phase_and_owner() -> None:
    one = cause_of(ENVS)
    same = cause_of(replace(ENVS, growth=growing(9)), PLANS, rate=9.0, measured=1.0)
    assert fingerprint_of(one) == fingerprint_of(same)
    others = [cause_of(ENVS, kind="gpu"), cause_of(ENVS, place=EVOLVE), cause_of(PLANS), cause_of()]
    assert len({fingerprint_of(c) for c in (one, *others)}) == 5
    assert len(fingerprint_of(one)) == 16
    assert normalised("__main__.Env.log[3].x12") == "Env.log[*].x#"


def _finding(
    *suspects: str, kind: Kind = "objects", phase: str | None = "train", start: float | None = None,
    role: Role = "type", **more: Any,
) -> Finding:  # fmt: skip
    begun = None if start is None else Interval(start, start, start)
    named = tuple(Suspect(name, role) for name in suspects)
    growth = Interval(1.0, 1.0, 1.0)
    return Finding("f", "watch", kind, phase, 1.0, named, growth, begun, 0.9, **more)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (_finding("A"), _finding("A", "B", kind="native"), True), (_finding("A"), _finding("B"), False),
        (_finding("A"), _finding("A", phase="evolve"), False), (_finding("A"), _finding("A", phase=None), True),
        (_finding("A", kind="gpu"), _finding("A", kind="gpu"), True), (_finding("A", kind="gpu"), _finding("A"), False),
        (_finding("A", process="rank 0 main"), _finding("A", process="rank 1 main"), False),
        (_finding("A", process="rank 0 main"), _finding("A", process="rank 1 main, rank 0 main"), True),
        (_finding("A", process="rank 0 main"), _finding("A"), True),
        (_finding(start=5.0), _finding("A", start=8.0), True), (_finding(start=5.0), _finding("A", start=8.1), False),
        (_finding(), _finding("A", start=5.0), False), (_finding("app.log[3]"), _finding("app.log[7]"), True),
        (_finding("log", role="container"), _finding("log[*]", role="container"), True),
        (_finding("log[*]", role="container"), _finding("log", role="container", phase=None), True),
        (_finding("log", role="container", start=1.0), _finding("logs", role="container", start=1.0), False),
        (_finding("A", start=1.0), _finding("log", role="container", kind="container", start=2.0), True),
        (_finding("log", role="container", kind="container", start=1.0), _finding("A", start=1.0), True),
        (_finding("A", start=1.0), _finding("log", role="container", start=9.0), False),
        (_finding("A", start=1.0), _finding("log", role="container", phase=None, start=1.0), False),
        (_finding("A", start=1.0), _finding("B", start=1.0), False),
        (_finding("log", role="container"), _finding("log[*]", role="holder", phase="evolve"), True),
        (_finding("sqlite", role="library", kind="native", start=1.0), _finding("A", start=1.0), True),
        (_finding("sqlite", role="library", start=1.0), _finding("pyarrow", role="library", start=1.0), False),
    ],
    ids=["a name in both", "another name", "another phase", "a phase not known", "on a device", "on a device alone",
         "another rank", "also another rank", "all ranks", "three generations apart", "more",
         "first not known", "another number", "an inner container", "an outer container", "a similar container",
         "its container", "its type", "a later container", "a container elsewhere", "two types at once",
         "a container in another phase", "its library", "another library"],
)  # fmt: skip
def test_a_finding_may_continue_under_another_fingerprint(
    old: Finding, new: Finding, same: bool
) -> None:
    assert goes_on_as(old, new) == same
