"""How memory is shared out among causes, what garbage is among them, and which of two findings are one leak."""

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
    ends_history,
    growing,
    lane_of,
    sure,
)

from leakline.analysis.attribution import Cause, Memory
from leakline.analysis.candidates import Candidate, Family, Place
from leakline.analysis.facts import Facts
from leakline.analysis.fingerprint import fingerprint_of, goes_on_as, normalised, shares_names
from leakline.analysis.garbage import (
    Waiting,
    _newest,
    _telling,
    garbage_of,
    may_pass,
    members_of,
    no_growth,
    together,
    waiting_of,
)
from leakline.analysis.history import Value
from leakline.analysis.known import Known
from leakline.analysis.priority import Priorities, one_worse, priority
from leakline.analysis.results import Finding, Interval, Kind, Suspect
from leakline.analysis.said import Holders
from leakline.analysis.sharing import (
    _around,
    _claim,
    _is_plausible,
    _likelihood,
    _taking_part,
    _unsure,
    share_out,
)
from leakline.analysis.trend import Slope
from leakline.snapshot import CYCLIC_GARBAGE, Holder

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


def test_two_measured_causes_are_together_what_memory_gained() -> None:
    assert _rates([_sized(30.0), _sized(20.0, EVOLVE, PLANS)]) == ([60.0, 40.0], 0.0)
    (one,), left, _ = share_out([_sized(50.0)], MEMORY, True, True)
    assert (one.rate, left) == (Slope(100.0, 80.0, 120.0, 16), 0.0)


@pytest.mark.parametrize(
    ("measured", "rises", "rates", "left"),
    [
        (25.0, True, [100.0], 0.0),
        (24.0, True, [24.0], 76.0),
        (24.0, False, [100.0], 0.0),
        (4.0, True, [4.0], 100.0),
        (4.0, False, [4.0], 0.0),
    ],
    ids=["a quarter", "less", "not seen in memory", "next to nothing", "and not seen"],
)
def test_less_than_a_quarter_leaves_room_for_growth_outside_python(
    measured: float, rises: bool, rates: list[float], left: float
) -> None:
    """In a phase that keeps little, so that its books say no more than was measured."""
    little = Place("little", "little", 1.0)
    assert _rates([_sized(measured, little)], rises) == (rates, left)


@pytest.mark.parametrize(
    ("causes", "phases", "apart"),
    [
        ([_sized(60.0)], {"train": 60.0, "evolve": 40.0}, {"evolve": 40.0}),
        ([_sized(60.0)], {"train": 82.0, "evolve": 18.0}, {}),
        ([_sized(95.0)], {"train": 60.0, "evolve": 40.0}, {}),
        ([_sized(None)], {"train": 60.0, "evolve": 40.0}, {}),
        ([_sized(60.0, NOWHERE)], {"train": 60.0, "evolve": 40.0}, {}),
        ([_sized(60.0), _sized(30.0, EVOLVE)], {"train": 60.0, "evolve": 40.0}, {}),
        ([_sized(60.0)], {"train": 60.0, "between": 40.0}, {}),
    ],
    ids=["its own", "little", "made here, kept there", "not measured", "nowhere", "of another", "no phase"],
)  # fmt: skip
def test_what_stays_in_use_of_a_phase_without_a_cause_is_growth_of_its_own(
    causes: list[Cause], phases: dict[str, float], apart: dict[str, float]
) -> None:
    memory = Memory(MEMORY.total, phases, living=True)
    shared, left, elsewhere = share_out(causes, memory, True, True)
    assert elsewhere == apart
    assert left == pytest.approx(sum(apart.values()))
    assert sum(c.rate.estimate for c in shared) == pytest.approx(100.0 - left)
    # Books of memory alone charge what another phase freed.
    assert share_out(causes, replace(memory, living=False), True, True)[2] == {}


def test_where_memory_gains_too_little_each_keeps_what_was_measured() -> None:
    assert _rates([_sized(30.0), _sized(20.0, EVOLVE)], matters=False) == ([30.0, 20.0], 0.0)
    unsure = Memory(Slope(100.0, 0.0, 200.0, 16))
    shared, left, _ = share_out([_sized(30.0)], unsure, True, True)
    assert (shared[0].rate, left) == (Slope(30.0, 0.0, 200.0, 16), 0.0)


def test_causes_without_a_claim_keep_their_own_bytes_roughly() -> None:
    idle, active = _sized(4.0), _sized(50.0, EVOLVE)
    shared, *_ = share_out([idle, active], MEMORY, True, True)
    assert [c.rate for c in shared] == [Slope(100.0, 80.0, 120.0, 16), Slope(4.0, 2.0, 6.0, 0)]
    assert _around(4.0) == Slope(4.0, 2.0, 6.0, 0)
    assert _rates([]) == ([], 100.0)
    assert _rates([], rises=False) == ([], 0.0)


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ([20.0, 5.0], [20.0, 5.0]),
        ([40.0, 4.9], [40.0]),
        ([20.0, 4.9], [20.0, None]),
        ([25.0], [25.0]),
        ([24.0], [24.0, None]),
        ([], [None]),
    ],
    ids=["a twentieth", "less", "together too little", "a quarter", "less than a quarter", "nothing"],
)  # fmt: skip
def test_what_nobody_measured_takes_part_where_sizes_say_too_little(
    sizes: list[float], part: list[float | None]
) -> None:
    unknown = _sized(None, EVOLVE, replace(PLANS, declared=True))
    found = _taking_part([*(_sized(size) for size in sizes), unknown], MEMORY)
    assert [c.measured for c in found] == part


def test_of_guesses_the_likeliest_stands_and_those_that_hold_their_phase() -> None:
    def names(phases: dict[str, float], *causes: Cause) -> list[str]:
        memory = Memory(MEMORY.total, phases)
        return [c.members[0].name for c in _taking_part(causes, memory)]

    envs, plans = _sized(None), _sized(None, EVOLVE, PLANS)
    assert names({"train": 60.0, "evolve": 40.0}, envs, plans) == ["app.Env", "app.Plan"]
    assert names({"train": 70.0, "evolve": 30.0}, envs, plans) == ["app.Env", "app.Plan"]
    assert names({"train": 71.0, "evolve": 29.0}, envs, plans) == ["app.Env"]
    assert names({"train": 29.0, "evolve": 71.0}, envs, plans) == ["app.Plan"]


def test_a_broken_count_is_likelier_than_a_declared_one_and_that_than_a_larger_phase() -> None:
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
        (ENVS, MIB, True),
        (ENVS, MIB + 1, False),
        (replace(ENVS, growth=growing(2)), 2 * MIB, True),
        (replace(ENVS, growth=growing(2)), 2 * MIB + 1, False),
        (replace(ENVS, declared=True), 9 * LARGE, True),
        (replace(ENVS, violation=BROKEN), 9 * LARGE, True),
        (replace(ENVS, growth=growing(0)), 1.0, False),
        (replace(ENVS, growth=growing(0), declared=True), 1.0, False),
        (replace(ENVS, growth=growing(0), violation=BROKEN), 1.0, True),
        (replace(ENVS, growth=growing(-1)), 1.0, False),
        (replace(ENVS, growth=growing(0.5)), 0.5 * MIB, True),
        (replace(ENVS, place=NOWHERE), 1.0, False),
        (replace(ENVS, place=SPREAD), 1.0, True),
    ],
    ids=["a mebibyte each", "more", "two of one each", "of more", "declared", "broken", "as many as ever",
         "as many as declared", "as many and broken", "fewer", "one in two", "nowhere", "between"],
)  # fmt: skip
def test_an_object_nobody_declared_is_no_larger_than_a_mebibyte(
    owner: Candidate, total: float, plausible: bool
) -> None:
    assert _is_plausible(cause_of(owner), total) == plausible


@pytest.mark.parametrize(
    ("family", "with_list", "total", "plausible"),
    [
        ("tensor", False, LARGE, True),
        ("tensor", False, LARGE + 1, False),
        ("graph", False, LARGE, True),
        ("figure", False, LARGE, True),
        ("object", True, LARGE, True),
        ("object", True, LARGE + 1, False),
        ("object", False, LARGE, False),
        ("array", True, LARGE, False),
        ("plain", False, 1.0, False),
        ("library", False, 1.0, False),
        ("array", False, 1.0, True),
        ("container", False, 1.0, True),
    ],
)
def test_tensors_and_what_a_list_keeps_one_by_one_may_be_large(
    family: Family, with_list: bool, total: float, plausible: bool
) -> None:
    members = [candidate("x", family)] + ([candidate("app.log", "container")] if with_list else [])
    assert _is_plausible(cause_of(*members), total) == plausible


def test_a_list_that_grows_otherwise_keeps_none_of_them() -> None:
    faster = candidate("app.log", "container", slope=5)
    assert not _is_plausible(cause_of(ENVS, faster), LARGE)
    assert not _is_plausible(cause_of(ENVS, candidate("app.log", "plain")), LARGE)
    assert not _is_plausible(cause_of(), 1.0)


@pytest.mark.parametrize(
    ("measured", "beside", "claim"),
    [
        (30.0, None, 30.0),
        (29.0, None, 60.0),
        (29.0, 1.0, 59.0),
        (29.0, 2.0, 29.0),
        (30.0, 20.0, 30.0),
    ],
    ids=["half of its phase", "less", "less of the rest", "half of the rest", "more of the rest"],
)
def test_a_walk_that_ended_early_claims_what_the_books_of_its_phase_say(
    measured: float, beside: float | None, claim: float
) -> None:
    one, elsewhere = _sized(measured), _sized(99.0, EVOLVE)
    others = [] if beside is None else [_sized(beside)]
    assert _claim(one, MEMORY, [one, *others, elsewhere]) == claim


def test_what_nobody_measured_claims_its_phase_or_its_part() -> None:
    one, other = _sized(None), _sized(50.0, EVOLVE)
    lost = _sized(None, NOWHERE)
    assert _claim(one, MEMORY, [one]) == 100.0
    assert _claim(one, MEMORY, [one, other]) == 60.0
    assert _claim(lost, MEMORY, [lost, other, one, one]) == 25.0
    assert _claim(one, Memory(sure(100.0), {"train": -5.0}), [one, other]) == 0.0
    assert _claim(_sized(7.0, NOWHERE), MEMORY, [one]) == 7.0


@pytest.mark.parametrize(
    ("measured", "total", "rate"),
    [
        (None, Slope(9.0, -1.0, 20.0, 8), Slope(9.0, -1.0, 20.0, 8)),
        (10.0, Slope(9.0, -1.0, 20.0, 8), Slope(10.0, -1.0, 20.0, 8)),
        (30.0, Slope(9.0, -1.0, 20.0, 8), Slope(20.0, -1.0, 20.0, 8)),
        (10.0, Slope(9.0, 8.0, 20.0, 8), Slope(10.0, 5.0, 20.0, 8)),
        (10.0, Slope(-9.0, -12.0, -5.0, 8), Slope(0.0, -12.0, 0.0, 8)),
    ],
    ids=["unmeasured", "measured", "more than memory allows", "surer", "memory falls"],
)
def test_where_memory_does_not_show_it_what_was_measured_stands_within_what_it_allows(
    measured: float | None, total: Slope, rate: Slope
) -> None:
    assert _unsure(_sized(measured), total) == rate


OBJECTS, WHOLE, LOOKED = (
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
    return waiting_of(lane_of(ends_history({**series, **named})))


@pytest.mark.parametrize(
    ("counts", "waits"),
    [
        (RISING, True),
        ([2100, *[1060, 1065, 1070, 1075, 1080, 1085, 1090, 1095]], True),
        ([*RISING, 1049], False),
        ([1500] * 12, False),
    ],
    ids=["grows", "a fall long ago", "more than half of it went", "as many as ever"],
)  # fmt: skip
def test_a_thousand_objects_that_grow_wait_for_the_collector(
    counts: list[Value], waits: bool
) -> None:
    assert (_waiting(counts).objects is not None) == waits


def test_garbage_of_which_just_less_than_a_thousand_waits_is_none() -> None:
    ends_below, ends_at = [*range(120, 1000, 80), 999], [*range(120, 1000, 80), 1000]
    assert _waiting(ends_below) == Waiting()
    assert _waiting(ends_at).objects == 1000


def test_what_waits_is_told_with_its_rate_and_its_bytes() -> None:
    found = _waiting()
    assert (found.objects, found.bytes_rate, found.mostly, found.least) == (
        2100,
        4000.0,
        False,
        False,
    )
    assert found.growth is not None
    assert found.growth.slope == 100.0
    assert _waiting(collector_enabled=[0] * 12).collector_off
    assert not _waiting(collector_enabled=[1] * 12).collector_off


@pytest.mark.parametrize(
    ("looks", "waits"),
    [([2000] * 4, True), ([2000] * 3, False), ([4000, *[2000] * 3], True), ([4001, *[2000] * 3], False)],
    ids=["four", "three", "half went", "more went"],
)  # fmt: skip
def test_four_looks_say_that_garbage_is_not_collected(looks: list[int], waits: bool) -> None:
    counts: list[Value] = [*[None] * (12 - len(looks)), *looks]
    found = _waiting(counts, garbage_is_whole=[0] * 12, garbage_looked_at=[2000] * 12)
    assert (found.objects is not None) == waits


@pytest.mark.parametrize(
    ("looked_at", "mostly"), [(4200, True), (4201, False)], ids=["half", "less"]
)
def test_of_the_newest_objects_half_must_be_garbage(looked_at: int, mostly: bool) -> None:
    found = _waiting(garbage_is_whole=[0] * 12, garbage_looked_at=[looked_at] * 12)
    assert (found.mostly, found.least) == (mostly, mostly)
    assert found.objects == (2100 if mostly else None)


def test_while_the_collector_is_off_what_waits_for_it_is_counted_apart() -> None:
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
def test_looks_at_the_newest_that_reach_no_further_back_see_what_has_come_since(
    reached: list[Value], least: bool
) -> None:
    off = _waiting(garbage_is_whole=[0] * 12, garbage_looked_at=reached, collector_enabled=[0] * 12)
    assert (off.least, off.objects) == (least, 2100 if least else None)
    assert (off.mostly, off.collector_off) == (False, True)
    on = _waiting(garbage_is_whole=[0] * 12, garbage_looked_at=reached)
    assert on == Waiting()


def test_the_newest_reading_is_the_last_there_is() -> None:
    lane = lane_of(ends_history({"a": [1, 2, None], "b": [None, None, None]}))
    assert (_newest(lane, "a"), _newest(lane, "b"), _newest(lane, "c")) == (2.0, None, None)


def _facts(holders: Sequence[Holder] = (), **series: Sequence[Value]) -> Facts:
    named = {f"python.{name}": values for name, values in series.items()}
    history = ends_history({"process.anon_bytes": [9000] * 4, **named}, holders=tuple(holders))
    return Facts(history, lane_of(history))


CYCLE = Holder(3, "app.Env", CYCLIC_GARBAGE, 100)
NATIVE = cause_of(kind="native", rate=100.0)


@pytest.mark.parametrize(
    ("rate", "mostly", "named", "measured"),
    [
        (30.0, False, ["app.Env"], 30.0),
        (29.0, False, None, None),
        (29.0, True, ["app.Env"], 29.0),
        (0.0, True, ["app.Env"], None),
        (300.0, False, ["app.Env"], 100.0),
    ],
    ids=["three tenths", "less", "most of the newest", "of unknown size", "more than all"],
)
def test_growth_of_no_name_is_garbage_where_that_is_three_tenths_of_it(
    rate: float, mostly: bool, named: list[str] | None, measured: float | None
) -> None:
    waiting = Waiting(5000.0, growing(8), rate, mostly)
    found = garbage_of(NATIVE, _facts([CYCLE]), waiting)
    assert (found and [m.name for m in found.members]) == named
    assert (found and found.measured) == measured


def test_a_class_that_is_held_by_cycles_alone_is_garbage() -> None:
    nothing, env = Waiting(), cause_of(ENVS, rate=100.0)
    found = garbage_of(env, _facts([CYCLE]), nothing)
    assert found == replace(env, kind="cyclic_garbage")
    assert garbage_of(env, _facts(), nothing) is None
    kept = Holder(4, "app.Env", "app.kept[*]", 900)
    assert garbage_of(env, _facts([CYCLE, kept]), nothing) is None
    # What most of the newest objects are says more than a path that holds some of them.
    beside = Holder(3, "app.Env", "app.kept[*]", 900)
    assert garbage_of(env, _facts([CYCLE, beside]), nothing) is None
    assert garbage_of(env, _facts([CYCLE, beside]), Waiting(mostly=True)) is not None
    assert garbage_of(cause_of(candidate("app.log", "container")), _facts([CYCLE]), nothing) is None


def test_only_what_has_no_name_is_looked_for_among_what_waits() -> None:
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
        (NATIVE, Waiting(), {"garbage_bytes": [300] * 4, "collector_enabled": [1] * 4}, True),
        (NATIVE, Waiting(), {"garbage_bytes": [300] * 4, "collector_enabled": [1, 1, 1, 0]}, False),
        (NATIVE, Waiting(), {"garbage_bytes": [300] * 4, "collector_enabled": [0, 0, 0, 1]}, True),
        (NATIVE, Waiting(), {}, False),
        (replace(NATIVE, kind="cyclic_garbage"), Waiting(), {"garbage_bytes": [300] * 4}, True),
        (replace(NATIVE, kind="cyclic_garbage"), Waiting(5000.0), {"garbage_bytes": [300] * 4}, False),
        (cause_of(candidate("str", "plain"), rate=100.0), Waiting(), {"garbage_bytes": [300] * 4}, True),
        (cause_of(ENVS, rate=100.0), Waiting(), {"garbage_bytes": [300] * 4}, True),
        (cause_of(PLANS, rate=100.0), Waiting(), {"garbage_bytes": [300] * 4}, False),
        (cause_of(PLANS, kind="cyclic_garbage", rate=100.0), Waiting(), {"garbage_bytes": [300] * 4}, True),
    ],
    ids=["three tenths", "less", "on", "off now", "on again", "not told", "garbage", "that does not go", "strings",
         "a class seen in it", "a class not seen in it", "a class in cycles"],
)  # fmt: skip
def test_a_growth_of_which_three_tenths_wait_for_a_collector_that_runs_may_pass(
    cause: Cause, waiting: Waiting, series: dict[str, list[Value]], passes: bool
) -> None:
    """A hundred bytes in each of ten generations are a thousand."""
    assert may_pass(cause, _facts([CYCLE], **series), waiting, 10.0, 4) == passes


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        (
            Waiting(5000.0),
            "5,000 objects wait for the collector: nothing but each other refers to them.",
        ),
        (
            Waiting(5000.0, growing(8)),
            "5,000 objects wait for the collector, 8 more per step: nothing but each other refers to them.",
        ),
        (
            Waiting(5000.0, least=True),
            "At least 5,000 objects wait for the collector: nothing but each other refers to them.",
        ),
        (Waiting(), "Nothing but each other refers to them: only the collector can free them."),
        (
            Waiting(collector_off=True),
            "Nothing but each other refers to them: only the collector can free them. The collector is switched off.",
        ),
    ],
    ids=["some", "ever more", "at least", "unknown", "switched off"],
)
def test_what_waits_for_the_collector_is_told_as_far_as_it_was_looked_at(
    waiting: Waiting, said: str
) -> None:
    assert waiting.told("step") == said


def test_two_causes_that_are_one_have_the_bytes_and_the_members_of_both() -> None:
    strings = candidate("str", "plain")
    first = cause_of(strings, measured=3.0, rate=Slope(10.0, 5.0, 20.0, 8))
    second = cause_of(ENVS, strings, measured=4.0, rate=Slope(1.0, 0.5, 2.0, 16))
    both = together(first, second)
    assert (both.members, both.measured) == ((ENVS, strings), 7.0)
    assert both.rate == Slope(11.0, 5.5, 22.0, 16)
    assert together(cause_of(), cause_of()).measured is None


def test_garbage_is_named_by_the_programs_own_classes_unless_they_are_few() -> None:
    assert _telling({"dict": 100, "app.Env": 10, "list": 50}) == ["app.Env", "dict", "list"]
    assert _telling({"dict": 100, "app.Env": 9, "list": 50}) == ["dict", "list", "app.Env"]
    assert _telling({"app.A": 40, "app.B": 60}) == ["app.B", "app.A"]
    assert _telling({}) == []


def test_the_three_types_that_tell_most_share_the_growth_by_their_numbers() -> None:
    counts = {"app.Env": 20, "dict": 50, "list": 20, "tuple": 10}
    holders = Holders([Holder(3, name, CYCLIC_GARBAGE, count) for name, count in counts.items()])
    found = members_of(holders, TRAIN, growing(10), 1000.0)
    assert [(c.name, c.growth.slope, c.bytes_rate) for c in found] == [
        ("app.Env", 2.0, 200.0),
        ("dict", 5.0, 500.0),
        ("list", 2.0, 200.0),
    ]
    assert [c.bytes_rate for c in members_of(holders, TRAIN, growing(10), 0.0)] == [None] * 3
    assert {(c.deep, c.declared, c.holder) for c in found} == {(False, False, CYCLIC_GARBAGE)}
    assert no_growth(7.0).slope == no_growth(7.0).each == 7.0
    assert (no_growth(7.0).rises, no_growth(7.0).generations, no_growth(7.0).start) == (0, 1, 0)


@pytest.mark.parametrize(
    ("rate", "grade"),
    [(4.9e9, "major"), (5e9, "critical"), (1e9, "major"), (0.9e9, "minor"), (-9e9, "minor")],
)
def test_a_gigabyte_in_each_generation_is_major_and_five_are_critical(
    rate: float, grade: str
) -> None:
    assert priority(rate) == grade
    assert priority(10.0, Priorities(5.0, 10.0)) == "critical"
    assert [one_worse("minor"), one_worse("major"), one_worse("critical")] == [
        "major", "critical", "critical",
    ]  # fmt: skip


def test_a_fingerprint_is_of_the_kind_the_phase_and_the_owner() -> None:
    one = cause_of(ENVS)
    same = cause_of(replace(ENVS, growth=growing(9)), PLANS, rate=9.0, measured=1.0)
    assert fingerprint_of(one) == fingerprint_of(same)
    others = [cause_of(ENVS, kind="gpu"), cause_of(ENVS, place=EVOLVE), cause_of(PLANS), cause_of()]
    assert len({fingerprint_of(c) for c in (one, *others)}) == 5
    assert len(fingerprint_of(one)) == 16
    assert normalised("__main__.Env.log[3].x12") == "Env.log[*].x#"


def _finding(
    *suspects: str, kind: Kind = "objects", phase: str | None = "train", start: float | None = None, **more: Any
) -> Finding:  # fmt: skip
    begun = None if start is None else Interval(start, start, start)
    named = tuple(Suspect(name, "type") for name in suspects)
    growth = Interval(1.0, 1.0, 1.0)
    return Finding("f", "watch", kind, phase, 1.0, named, growth, begun, 0.9, **more)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (_finding("A"), _finding("A", "B", kind="native"), True),
        (_finding("A"), _finding("B"), False),
        (_finding("A"), _finding("A", phase="evolve"), False),
        (_finding("A"), _finding("A", phase=None), True),
        (_finding("A", kind="gpu"), _finding("A", kind="gpu"), True),
        (_finding("A", kind="gpu"), _finding("A"), False),
        (_finding("A", process="rank 0 main"), _finding("A", process="rank 1 main"), False),
        (
            _finding("A", process="rank 0 main"),
            _finding("A", process="rank 1 main, rank 0 main"),
            True,
        ),
        (_finding("A", process="rank 0 main"), _finding("A"), True),
        (_finding(start=5.0), _finding("A", start=8.0), True),
        (_finding(start=5.0), _finding("A", start=8.1), False),
        (_finding(start=8.0), _finding(start=5.0), True),
        (_finding(start=5.0), _finding("A"), False),
        (_finding(), _finding("A", start=5.0), False),
        (_finding("A", start=5.0), _finding("B", start=5.0), False),
    ],
    ids=[
        "a name in both",
        "another name",
        "another phase",
        "a phase not known",
        "on a device",
        "on a device alone",
        "another rank",
        "also another rank",
        "all ranks",
        "three generations apart",
        "more",
        "before",
        "start not known",
        "first not known",
        "other names since then",
    ],
)
def test_which_finding_goes_on_as_another(old: Finding, new: Finding, same: bool) -> None:
    assert goes_on_as(old, new) == same


def test_names_are_the_same_but_for_numbers() -> None:
    assert shares_names(_finding("app.log[3]"), _finding("app.log[7]"))
    assert not shares_names(_finding(), _finding("A"))


def test_what_is_known_is_worked_out_once() -> None:
    known, answers = Known(), iter((7, 0))
    assert [known.once(3, "what", lambda: next(answers)) for _ in range(2)] == [7, 7]
    assert known.once(4, "what", lambda: 8) == 8
    few = known.only(lambda upto, what: upto == 3)
    assert few.once(4, "what", lambda: 9) == 9
    known.learn(few)
    assert known.once(4, "what", lambda: 0) == 9
