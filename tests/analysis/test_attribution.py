"""Who owns a growth: where it stays, what holds what, and from what share on bytes are an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pieces import BROKEN, EVOLVE, SPREAD, TRAIN, candidate, growing, sure

from leakline.analysis.attribution.candidates import NOWHERE, Candidate, Family, Place, family_of
from leakline.analysis.attribution.causes import (
    Cause,
    Memory,
    _beside,
    _house,
    _is_loose,
    _keeps,
    _may_hold,
    _measured,
    _rank,
    _ranked,
    _split,
    _stands_alone,
    find_causes,
    holds,
    kind_of,
)
from leakline.analysis.results import Kind
from leakline.analysis.statistics.count_evidence import CountGrowth
from leakline.analysis.statistics.trend import Slope

# Bytes per generation that memory gains, wherever a share of it is asked for.
GROWTH = 100.0
PHASES = {"train": 60.0, "evolve": 30.0, "between": 5.0, "other_threads": 7.0}
MEMORY = Memory(Slope(GROWTH, 80.0, 120.0, 16), PHASES)
ENVS = candidate("app.Env", "object")
LOG = candidate("app.Trainer.log", "container")


@pytest.mark.parametrize("place", [SPREAD, EVOLVE], ids=["between phases", "of another thread"])
def test_a_place_without_a_line_keeps_nothing(place: Place) -> None:
    assert Memory(sure(GROWTH), {"train": 60.0}).at(place) == 0.0


@pytest.mark.parametrize(
    ("kept", "total", "phases"),
    [
        (25.0, Slope(75.0, 60.0, 90.0, 16), {"train": 45.0, "evolve": 22.5}),
        (100.0, Slope(0.0, 0.0, 0.0, 16), {"train": 0.0, "evolve": 0.0}),
        (300.0, Slope(0.0, 0.0, 0.0, 16), {"train": 0.0, "evolve": 0.0}),
        (-25.0, Slope(100.0, 80.0, 120.0, 16), {"train": 60.0, "evolve": 30.0}),
    ],
    ids=["a quarter", "all", "more than all", "less than nothing"],
)
def test_what_is_accounted_for_is_taken_from_everywhere_alike(
    kept: float, total: Slope, phases: dict[str, float]
) -> None:
    memory = Memory(Slope(GROWTH, 80.0, 120.0, 16), {"train": 60.0, "evolve": 30.0})
    assert memory.without(kept) == Memory(total, phases)


def test_a_fraction_of_a_byte_is_taken_as_well() -> None:
    assert Memory(sure(0.75), {"train": 0.75}).without(0.375) == Memory(
        sure(0.375), {"train": 0.375}
    )


@pytest.mark.parametrize("estimate", [0.0, -10.0])
def test_from_memory_that_does_not_grow_nothing_is_taken(estimate: float) -> None:
    memory = Memory(sure(estimate), {"train": 1.0})
    assert memory.without(5.0) is memory


@pytest.mark.parametrize(
    ("phases", "place"),
    [
        ({"train": 60.0, "evolve": 40.0}, Place("train", "train", 0.6)),
        ({"train": 59.0, "evolve": 41.0}, Place(None, None, 0.59)),
        ({"train": 60.0, "evolve": -60.0}, Place("train", "train", 1.0)),
        ({"between": 90.0, "train": 10.0}, Place(None, None, 0.9)),
        ({"other_threads": 90.0, "train": 10.0}, Place(None, None, 0.9)),
        ({"train": 0.5}, Place("train", "train", 1.0)), ({"train": -1.0}, NOWHERE), ({"train": 0.0}, NOWHERE),
        ({}, NOWHERE),
    ],
    ids=["three fifths", "less", "another gives back", "between", "threads", "half a byte", "falls", "flat", "?"],
)  # fmt: skip
def test_the_phase_that_keeps_three_fifths_of_a_growth_is_its_place(
    phases: dict[str, float], place: Place
) -> None:
    assert Memory(sure(GROWTH), phases).place() == place


def _home(lost: Candidate, *owners: tuple[str | None, Candidate]) -> str | None:
    groups: dict[str | None, list[Candidate]] = {}
    for phase, owner in owners:
        groups.setdefault(phase, []).append(owner)
    _house([lost], groups)
    (home,) = [phase for phase, members in groups.items() if lost in members]
    return home


LOST = candidate("torch.Tensor", "tensor", 50.0, start=5, place=NOWHERE)


@pytest.mark.parametrize(
    ("lost", "home"),
    [
        (LOST, "train"),
        (candidate("app.Env", "object", 50.0, deep=True, place=NOWHERE), None),
        (candidate("app.Env", "object", 50.0, place=NOWHERE), "train"),
        (candidate("app.Env", "object", place=NOWHERE, violation=BROKEN), None),
        (candidate("torch.Tensor", "tensor", 50.0, deep=True, place=NOWHERE), "train"),
    ],
    ids=["tensors", "a measured class", "a class", "a broken count", "measured tensors"],
)
def test_a_growth_that_is_known_for_itself_is_no_part_of_another(
    lost: Candidate, home: str | None
) -> None:
    assert _home(lost, ("train", candidate("app.Agent", "object"))) == home


def _kept(size: float | None, holder: str | None = "app.Keeper.kept[*]") -> Candidate:
    return candidate("torch.Tensor", "tensor", size, holder=holder)


@pytest.mark.parametrize(
    ("owner", "parts", "growth", "keeps"),
    [
        (candidate("app.Keeper.kept", "container", 100.0), [_kept(131.0)], 1e9, False),
        (candidate("app.Keeper.kept", "container", 70.0), [_kept(500.0)], 100.0, True),
        (candidate("app.Keeper.kept", "container", 69.0), [_kept(500.0)], 100.0, False),
        (candidate("app.Keeper", "object", 1.0), [_kept(131.0)], 1e9, True),
        (candidate("app.Keeper", "object", 1.0), [_kept(1.0), _kept(1.0)], 1e9, False),
        (candidate("app.Keeper", "object", 100.0, deep=True), [_kept(None)], 1e9, True),
        (candidate("app.Keeper.kept", "container", None), [_kept(1.0)], 1e9, True),
    ],
    ids=["more", "most of the growth", "too little of it", "one part, unmeasured", "two parts, unmeasured",
         "unmeasured part", "unmeasured list"],
)  # fmt: skip
def test_whether_a_holder_may_be_all_that_keeps_tensors(
    owner: Candidate, parts: list[Candidate], growth: float, keeps: bool
) -> None:
    assert _keeps(owner, parts, Memory(sure(growth))) == keeps


@pytest.mark.parametrize(
    ("families", "loose"),
    [
        (["graph"], True), (["graph", "container"], True),
        (["tensor", "graph", "library", "plain", "container"], True), (["graph", "figure"], False),
        (["plain"], False),
    ],
)  # fmt: skip
def test_tensors_are_loose_where_no_class_of_the_program_owns_them(
    families: list[Family], loose: bool
) -> None:
    assert _is_loose([candidate(family, family) for family in families]) == loose


def test_nothing_stands_beside_a_first_that_is_no_container() -> None:
    assert _beside([candidate("app.Env", "object", 50.0), LOG], GROWTH) == []
    lists = [candidate("app.Env", "object", 50.0), candidate("a", "container", 50.0)]
    assert _beside(lists, GROWTH) == []


@pytest.mark.parametrize(
    ("size", "explained", "alone"),
    [
        (20.0, 69.0, True), (19.0, 69.0, False), (20.0, 70.0, False), (61.0, 69.0, True), (62.0, 69.0, False),
        (None, 0.0, False),
    ],
    ids=["a fifth", "less", "all is explained", "as much as there may be", "more", "unmeasured"],
)  # fmt: skip
def test_a_second_leak_needs_bytes_and_room_for_them(
    size: float | None, explained: float, alone: bool
) -> None:
    second = candidate("app.Agent", "object", size, slope=7)
    assert _stands_alone(second, ENVS, explained, GROWTH) == alone


@pytest.mark.parametrize(
    ("second", "alone"),
    [
        (candidate("app.Agent", "object", 50.0, slope=7), True),
        (candidate("app.Agent", "object", 50.0, slope=1), False),
        (candidate("app.other", "container", 50.0, slope=7), True),
        (candidate("app.other", "container", 50.0, slope=1), False),
        (candidate("app.other", "container", 4.0, slope=7), True),
        (candidate("app.other", "container", 5.0, slope=7), False),
    ],
    ids=["another class", "as many as the owner", "another list", "a list of the owners",
         "a list of next to nothing", "a list of little"],
)  # fmt: skip
def test_a_second_leak_is_of_a_kind_and_a_number_of_its_own(second: Candidate, alone: bool) -> None:
    assert _stands_alone(second, ENVS, 0.0, GROWTH) == alone


@pytest.mark.parametrize(
    ("container", "owner", "held"),
    [
        (candidate("app.Env.log", "container", slope=99), ENVS, True),
        (candidate("app.Other.log", "container", slope=99), ENVS, False),
        (candidate("app.Envs.log", "container", slope=99), ENVS, False),
        (candidate("app.kept", "container", slope=99), candidate("E", "object", holder="app.x[*]"), False),
        (candidate("l", "container", slope=2), candidate("t", "tensor", slope=32), True),
        (candidate("l", "container", slope=2), candidate("t", "object", slope=32), False),
    ],
    ids=["its own", "of another", "of a longer name", "held elsewhere", "16 an entry", "objects"],
)  # fmt: skip
def test_a_list_is_of_the_owners_story_where_it_keeps_it_or_is_kept_by_it(
    container: Candidate, owner: Candidate, held: bool
) -> None:
    assert holds(container, owner) == held


@pytest.mark.parametrize(
    ("one", "share", "held", "rank"),
    [
        (candidate("o", "plain", violation=BROKEN), None, False, 0),
        (candidate("o", "object", deep=True), 0.3, False, 1), (candidate("o", "object"), 0.9, True, 2.5),
        (candidate("o", "object"), 0.9, False, 4), (candidate("o", "graph"), 0.6, False, 2.2),
        (candidate("o", "graph"), None, False, 3), (candidate("o", "tensor"), 0.3, False, 4.5),
        (candidate("o", "array"), None, False, 4.5), (candidate("o", "tensor"), 0.29, False, 5),
        (candidate("o", "library"), 0.9, False, 5.2), (candidate("o", "plain"), 0.29, False, 7),
    ],
)  # fmt: skip
def test_how_likely_a_growth_is_to_own_the_others(
    one: Candidate, share: float | None, held: bool, rank: float
) -> None:
    assert _rank(one, share, held) == rank


ARRAYS = candidate("numpy.ndarray", "array", 60.0, deep=True)


@pytest.mark.parametrize(
    ("owner", "rest", "measured"),
    [
        (candidate("E", "object", 30.0), [], 30.0),
        (candidate("l", "container", 1.0), [candidate("m", "container", 2.0)], 3.0),
        (candidate("E", "object"), [ARRAYS], 60.0), (candidate("E", "object", place=EVOLVE), [ARRAYS], None),
        (candidate("E", "object", place=EVOLVE, declared=True), [ARRAYS], 60.0),
        (candidate("E", "object", place=NOWHERE), [ARRAYS], 60.0),
        (candidate("l", "container", 1.0, place=EVOLVE), [ARRAYS], 60.0),
        (candidate("E", "object"), [ARRAYS, candidate("t", "tensor", 70.0, deep=True)], 70.0),
    ],
    ids=["a share that tells", "two lists", "arrays beside it", "arrays elsewhere", "but declared", "nowhere",
         "of a list", "totals are no sum"],
)  # fmt: skip
def test_bytes_measured_for_a_cause_are_its_owners_or_of_what_it_holds(
    owner: Candidate, rest: list[Candidate], measured: float | None
) -> None:
    assert _measured(owner, rest, GROWTH) == measured


@pytest.mark.parametrize(
    ("owner", "rest", "kind"),
    [
        (LOG, [candidate("torch.Tensor", "graph")], "graph"),
        (LOG, [candidate("numpy.ndarray", "array", 49.0)], "container"),
        (candidate("l", "container", 200.0), [candidate("a", "array", 100.0)], "arrays"),
        (ENVS, [candidate("torch.Tensor", "graph"), candidate("a", "array", 99.0)], "objects"),
        (candidate("torch.Tensor", "tensor"), [], "tensors"),
    ],
)  # fmt: skip
def test_a_list_that_keeps_graphs_or_mostly_arrays_is_named_after_them(
    owner: Candidate, rest: list[Candidate], kind: Kind
) -> None:
    assert kind_of(owner, rest, GROWTH) == kind


def _names(causes: list[Cause]) -> list[list[str]]:
    return [[member.name for member in cause.members] for cause in causes]


def test_what_one_owner_leaves_unexplained_may_be_a_second_leak_of_its_phase() -> None:
    envs = candidate("Env", "object", 40.0, deep=True, slope=2)
    agents = candidate("Agent", "object", 35.0, deep=True, slope=9)
    plans = candidate("Plan", "object", 30.0, deep=True, slope=50)
    assert _names(_split([envs, agents], GROWTH)) == [["Env"], ["Agent"]]
    # With 75 of 100 explained by two, no third is looked for: it goes with the second.
    assert _names(_split([envs, agents, plans], GROWTH)) == [["Env"], ["Agent", "Plan"]]


def test_an_owner_of_just_less_than_seven_tenths_leaves_room() -> None:
    envs = candidate("Env", "object", 69.5, deep=True, slope=2)
    agents = candidate("Agent", "object", 30.0, deep=True, slope=9)
    assert _names(_split([envs, agents], GROWTH)) == [["Env"], ["Agent"]]


def test_two_lists_side_by_side_are_two_causes_and_a_total_of_arrays_is_of_neither() -> None:
    one, two = candidate("a", "container", 60.0, slope=9), candidate("b", "container", 30.0)
    arrays = candidate("numpy.ndarray", "array", 90.0, deep=True)
    found = _split([one, two, arrays], GROWTH)
    assert [(c.owner.name, c.measured) for c in found if c.owner] == [("a", 60.0), ("b", 30.0)]


def test_causes_come_by_their_bytes_and_those_without_last() -> None:
    small = candidate("Small", "object", 25.0, deep=True, slope=9, place=TRAIN)
    large = candidate("Large", "object", 29.0, deep=True, place=EVOLVE)
    unknown = candidate("Unknown", "object", growth=growing(3), place=Place("a", "a", 1.0))
    assert _names(find_causes([unknown, small, large], MEMORY)) == [
        ["Large"],
        ["Small"],
        ["Unknown"],
    ]


def test_only_what_was_seen_nowhere_is_looked_a_home_for() -> None:
    """Growth between phases has a place, though no phase."""
    for place, alone in ((NOWHERE, False), (SPREAD, True)):
        tensors = candidate("torch.Tensor", "library", 9.0, place=place)
        assert ([tensors.name] in _names(find_causes([ENVS, tensors], MEMORY))) == alone
    elsewhere = candidate("torch.Tensor", "library", 9.0, place=EVOLVE)
    assert [tensors.name] in _names(find_causes([ENVS, elsewhere], MEMORY))


@pytest.mark.parametrize(
    ("holder", "entries", "joined"),
    [
        ("app.Learner.kept[*]", 5.0, True),
        ("app.Learner.kept[*]", 9.0, False),
        ("app.Other.kept[*]", 5.0, False),
        (None, 5.0, False),
    ],
    ids=["an entry for each", "more entries", "held elsewhere", "not known"],
)
def test_a_container_that_another_phase_fills_is_part_of_what_it_holds(
    holder: str | None, entries: float, joined: bool
) -> None:
    made = candidate("app.Path", "object", 60.0, slope=5.0, deep=True, holder=holder)
    kept = candidate("app.Learner.kept", "container", 60.0, slope=entries, place=EVOLVE)
    causes = find_causes([made, kept], MEMORY)
    assert [[m.name for m in c.members] for c in causes if c.place == TRAIN] == (
        [["app.Path", "app.Learner.kept"]] if joined else [["app.Path"]]
    )
    assert len(causes) == (1 if joined else 2)


MIB = 2**20
BOTH_PHASES = Memory(
    Slope(20.7 * MIB, 20 * MIB, 21 * MIB, 16), {"train": 6.0 * MIB, "evolve": 14.0 * MIB}
)


def _constant(slope: float, start: float) -> CountGrowth:
    return CountGrowth("constant", slope, slope, slope, start, start, start, 14, 16 - start, slope)


def _candidate(
    name: str, family: Family, slope: float, start: float, place: Place, size: float, deep: bool
) -> Candidate:
    role = "container" if family == "container" else "type"
    return Candidate(name, role, family, _constant(slope, start), place, size, deep, declared=False)  # type: ignore[arg-type]


GRAPHS = _candidate("torch.Tensor", "graph", 1260, 1, NOWHERE, 16 * MIB, deep=True)
LOSSES = _candidate(
    "train.losses", "container", 320, 1, Place("train", "train", 1.0), 9.7 * MIB, deep=False
)
# One small record per generation, measured with all it holds.
PROGRESS = _candidate("train.Progress", "object", 1, 0, Place(None, None, 0.8), 96, deep=True)


def test_a_well_known_owner_of_bytes_does_not_take_megabytes() -> None:
    causes = find_causes([PROGRESS, GRAPHS, LOSSES], BOTH_PHASES)
    assert [cause.kind for cause in causes if GRAPHS in cause.members] == ["graph"]


def test_a_kept_graph_is_found_where_its_list_grows() -> None:
    (graph, *_) = find_causes([PROGRESS, GRAPHS, LOSSES], BOTH_PHASES)
    assert graph.owner == GRAPHS
    assert graph.place.phase == "train"
    assert LOSSES in graph.members


@pytest.mark.parametrize(
    ("size", "first"), [(4.0 * MIB, "bytearray"), (0.1 * MIB, "cell")], ids=["much", "little"]
)
def test_of_plain_types_the_one_whose_bytes_are_the_growth_owns_it(size: float, first: str) -> None:
    """The closures that hold it bring as many cells, of 40 bytes each, and by chance one more."""
    cells = _candidate("cell", "plain", 17, 0, NOWHERE, 680, deep=False)
    batches = _candidate("bytearray", "plain", 16, 0, NOWHERE, size, deep=False)
    memory = Memory(Slope(4.07 * MIB, 4.0 * MIB, 4.1 * MIB, 30), {"train": 4.07 * MIB})
    (cause,) = find_causes([cells, batches], memory)
    assert cause.members[0].name == first
    assert (cause.measured == size) == (first == "bytearray")


@pytest.mark.parametrize("node", ["AddmmBackward0", "MseLossBackward0", "AccumulateGrad"])
def test_weights_that_graphs_hold_are_part_of_them_though_nodes_of_the_graphs_are_counted(
    node: str,
) -> None:
    nodes = _candidate(node, family_of(node, "type"), 190, 8, NOWHERE, 9_000, deep=False)
    graphs = replace(GRAPHS, place=Place("train", "train", 0.86))
    evolve = Place("evolve", "evolve", 0.92)
    weights = _candidate(
        "torch.nn.parameter.Parameter", "tensor", 192, 2, evolve, 3 * MIB, deep=True
    )
    (cause,) = find_causes([graphs, nodes, weights, LOSSES], BOTH_PHASES)
    assert (cause.kind, cause.place.phase) == ("graph", "train")
    assert weights in cause.members


def test_a_function_of_the_program_is_no_node_of_torch() -> None:
    assert family_of("losses.ScaledBackward", "type") == "object"


VALIDATION = Place("validation", "validation", 1.0)
TRAINING = Place("train", "train", 0.8)
PREDICTIONS = _candidate(
    "keeping.Keeper.kept", "container", 1, 1, VALIDATION, 4.0 * MIB, deep=False
)
EVOLUTION = Place("evolve", "evolve", 0.4)
TENSORS = replace(
    _candidate("torch.Tensor", "tensor", 1.8, 2, TRAINING, 4.1 * MIB, deep=True),
    holder="keeping.Keeper.kept[*].values",
)


def test_tensors_seen_below_what_grows_in_another_phase_are_that_growth() -> None:
    """Keras: of those that training makes and drops, one reading in a few showed one more (5 of 16 trainings)."""
    (cause,) = find_causes([PREDICTIONS, TENSORS], BOTH_PHASES)
    assert cause.place == VALIDATION
    assert cause.members == (PREDICTIONS, TENSORS)
    parts = [
        replace(TENSORS, bytes_rate=2 * MIB),
        replace(TENSORS, place=EVOLUTION, bytes_rate=MIB),
    ]
    (cause,) = find_causes([PREDICTIONS, *parts], BOTH_PHASES)
    assert cause.place == VALIDATION


RECORDER = replace(
    _candidate("app.Recorder", "object", 1, 2, VALIDATION, 0, deep=False), bytes_rate=None
)
GRADIENTS = replace(TENSORS, holder="app.Recorder.gradients[*]")
NOTES = _candidate("app.notes", "container", 1, 2, VALIDATION, 500, deep=False)


@pytest.mark.parametrize(
    ("validation", "train", "others", "places"),
    [
        (0.2, 4.0, [], {VALIDATION, TRAINING}),
        (0.2, 4.0, [NOTES], {VALIDATION, TRAINING}),
        (1.6, 4.0, [], {VALIDATION}),
        (4.0, 0.2, [], {VALIDATION}),
    ],
    ids=["filled elsewhere", "beside others", "filled in both", "filled where they are made"],
)
def test_objects_that_another_phase_fills_keep_what_that_one_gains(
    validation: float, train: float, others: list[Candidate], places: set[Place]
) -> None:
    rate = validation + train
    memory = Memory(
        Slope(rate * MIB, rate * MIB, rate * MIB, 24),
        {"validation": validation * MIB, "train": train * MIB},
    )
    causes = find_causes([RECORDER, GRADIENTS, *others], memory)
    assert {cause.place for cause in causes} == places


def test_a_holder_that_is_most_of_the_growth_outweighs_a_rate_of_its_tensors_over_few_readings() -> (
    None
):
    memory = Memory(Slope(4.2 * MIB, 4.1 * MIB, 4.3 * MIB, 24), {"validation": 4.2 * MIB})
    (cause,) = find_causes([PREDICTIONS, replace(TENSORS, bytes_rate=6.3 * MIB)], memory)
    assert cause.place == VALIDATION


@pytest.mark.parametrize(
    "others",
    [
        [replace(TENSORS, holder="train.history[*].values")], [replace(TENSORS, holder=None)],
        [replace(TENSORS, bytes_rate=12.0 * MIB)],
        [TENSORS, replace(TENSORS, place=EVOLUTION, bytes_rate=3.0 * MIB)],
        [replace(TENSORS, bytes_rate=None), replace(TENSORS, place=EVOLUTION, bytes_rate=None)],
    ],
    ids=["elsewhere", "nobody known", "larger than its holder", "together larger", "nothing measured"],
)  # fmt: skip
def test_tensors_stay_a_growth_of_their_own_where_nothing_says_that_they_are_kept_there(
    others: list[Candidate],
) -> None:
    causes = find_causes([PREDICTIONS, *others], BOTH_PHASES)
    assert [c.place.phase for c in causes if others[0] in c.members] == ["train"]


@pytest.mark.parametrize(
    ("owner", "size", "may"),
    [
        (candidate("app.Env", "object", 30.0, deep=True), 100.0, True),
        (candidate("app.Env", "object", 29.0, deep=True), 100.0, False),
        (candidate("app.log", "container", 29.0), 100.0, False),
        (candidate("app.log", "container", 30.0), 100.0, True),
        (candidate("app.Env", "object", 29.0), 100.0, True),
        (candidate("app.Env", "object", None, deep=True), 100.0, True),
        (candidate("app.Env", "object", 29.0, deep=True), None, True),
    ],
    ids=["enough", "too little", "list too short", "list", "shallow", "unmeasured", "part unknown"],
)
def test_an_owner_has_room_for_what_it_holds(
    owner: Candidate, size: float | None, may: bool
) -> None:
    assert _may_hold(owner, candidate("torch.Tensor", "tensor", size)) == may


@pytest.mark.parametrize(
    ("sizes", "beside"),
    [
        ([80.0, 20.0], ["b"]), ([80.0, 19.0], []), ([110.0, 20.0], ["b"]), ([111.0, 20.0], []),
        ([60.0, 30.0, 25.0], ["b", "c"]), ([80.0, None], []), ([None, 50.0], []),
    ],
    ids=["a fifth", "less", "in all 1.3", "more", "two", "unmeasured", "first unmeasured"],
)  # fmt: skip
def test_containers_that_keep_a_fifth_each_stand_beside_each_other(
    sizes: list[float | None], beside: list[str]
) -> None:
    lists = [candidate(name, "container", size) for name, size in zip("abc", sizes, strict=False)]
    assert [c.name for c in _beside(lists, GROWTH)] == beside


@pytest.mark.parametrize(
    ("in_a", "in_b", "home"),
    [
        ({"start": 9, "deep": True, "size": 100.0}, {"start": 5, "size": 100.0}, "a"),
        ({"start": 9, "declared": True}, {"start": 5}, "a"), ({"start": 3}, {"start": 8}, "a"),
        ({"start": 8}, {"start": 4}, "b"), ({"size": 90.0}, {"size": 80.0}, "a"), ({"size": 80.0}, {"size": 90.0}, "b"),
        ({"size": None}, {"size": 1.0}, "b"), ({}, {}, "a"),
    ],
    ids=["measured", "declared", "nearer", "nearer b", "larger", "larger b", "sized", "by name"],
)  # fmt: skip
def test_what_is_rarely_read_lives_with_the_best_known_then_the_nearest_then_the_largest(
    in_a: dict[str, Any], in_b: dict[str, Any], home: str
) -> None:
    owners = [("a", candidate("A", "object", **in_a)), ("b", candidate("B", "object", **in_b))]
    assert _home(LOST, *owners) == home


@pytest.mark.parametrize(
    ("members", "first"),
    [
        ([candidate("a", "object", slope=2), candidate("b", "object", slope=1)], "b"),
        ([candidate("a", "tensor", slope=1), candidate("b", "tensor", slope=2)], "b"),
        ([candidate("a", "object", slope=1), candidate("b", "object", slope=1)], "a"),
        ([candidate("a", "container", 40.0), candidate("b", "container", 50.0)], "b"),
        ([candidate("a", "object", None, deep=True), candidate("b", "object", 0.5, deep=True)], "b"),
        ([candidate("a", "container", 1.0), candidate("b", "object")], "b"),
        ([candidate("a", "object", 40.0), candidate("b", "object", 50.0)], "a"),
        ([candidate("a", "object", place=NOWHERE), candidate("b", "plain")], "b"),
        ([candidate("a", "object", declared=True, place=NOWHERE), candidate("b", "plain")], "a"),
    ],
    ids=["fewest objects", "most tensors", "by name", "larger list", "measured class", "a list of little",
         "shallow bytes say nothing", "seen nowhere", "but declared"],
)  # fmt: skip
def test_the_likeliest_owner_comes_first(members: list[Candidate], first: str) -> None:
    assert [_ranked(order, GROWTH)[0].name for order in (members, members[::-1])] == [first] * 2
