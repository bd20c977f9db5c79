"""Tensors are counted by censuses only, at generation ends: no phase is known, and an owner has to be found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakline.analysis.attribution import Memory, find_causes
from leakline.analysis.candidates import NOWHERE, Candidate, Family, Place, family_of
from leakline.analysis.counts import CountGrowth
from leakline.analysis.trend import Slope

MIB = 2**20
MEMORY = Memory(
    Slope(20.7 * MIB, 20 * MIB, 21 * MIB, 16), {"train": 6.0 * MIB, "evolve": 14.0 * MIB}
)


def _growing(slope: float, start: float) -> CountGrowth:
    return CountGrowth("constant", slope, slope, slope, start, start, start, 14, 16 - start, slope)


def _candidate(
    name: str, family: Family, slope: float, start: float, place: Place, size: float, deep: bool
) -> Candidate:
    role = "container" if family == "container" else "type"
    return Candidate(name, role, family, _growing(slope, start), place, size, deep, declared=False)  # type: ignore[arg-type]


GRAPHS = _candidate("torch.Tensor", "graph", 1260, 1, NOWHERE, 16 * MIB, deep=True)
LOSSES = _candidate(
    "train.losses", "container", 320, 1, Place("train", "train", 1.0), 9.7 * MIB, deep=False
)
# One small record per generation, measured with all it holds.
PROGRESS = _candidate("train.Progress", "object", 1, 0, Place(None, None, 0.8), 96, deep=True)


def test_a_well_known_owner_of_bytes_does_not_take_megabytes() -> None:
    causes = find_causes([PROGRESS, GRAPHS, LOSSES], MEMORY)
    assert [cause.kind for cause in causes if GRAPHS in cause.members] == ["graph"]


def test_a_kept_graph_is_found_where_its_list_grows() -> None:
    (graph, *_) = find_causes([PROGRESS, GRAPHS, LOSSES], MEMORY)
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
    (cause,) = find_causes([graphs, nodes, weights, LOSSES], MEMORY)
    assert (cause.kind, cause.place.phase) == ("graph", "train")
    assert weights in cause.members


def test_a_function_of_the_program_is_no_node_of_torch() -> None:
    assert family_of("losses.ScaledBackward", "type") == "object"


VALIDATION = Place("validation", "validation", 1.0)
TRAIN = Place("train", "train", 0.8)
PREDICTIONS = _candidate(
    "keeping.Keeper.kept", "container", 1, 1, VALIDATION, 4.0 * MIB, deep=False
)
EVOLVE = Place("evolve", "evolve", 0.4)
TENSORS = replace(
    _candidate("torch.Tensor", "tensor", 1.8, 2, TRAIN, 4.1 * MIB, deep=True),
    holder="keeping.Keeper.kept[*].values",
)


def test_tensors_seen_below_what_grows_in_another_phase_are_that_growth() -> None:
    """Keras: of those that training makes and drops, one reading in a few showed one more (5 of 16 trainings)."""
    (cause,) = find_causes([PREDICTIONS, TENSORS], MEMORY)
    assert cause.place == VALIDATION
    assert cause.members == (PREDICTIONS, TENSORS)
    parts = [replace(TENSORS, bytes_rate=2 * MIB), replace(TENSORS, place=EVOLVE, bytes_rate=MIB)]
    (cause,) = find_causes([PREDICTIONS, *parts], MEMORY)
    assert cause.place == VALIDATION


RECORDER = replace(
    _candidate("app.Recorder", "object", 1, 2, VALIDATION, 0, deep=False), bytes_rate=None
)
GRADIENTS = replace(TENSORS, holder="app.Recorder.gradients[*]")
NOTES = _candidate("app.notes", "container", 1, 2, VALIDATION, 500, deep=False)


@pytest.mark.parametrize(
    ("validation", "train", "others", "places"),
    [
        (0.2, 4.0, [], {VALIDATION, TRAIN}),
        (0.2, 4.0, [NOTES], {VALIDATION, TRAIN}),
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
        [replace(TENSORS, holder="train.history[*].values")],
        [replace(TENSORS, holder=None)],
        [replace(TENSORS, bytes_rate=12.0 * MIB)],
        [TENSORS, replace(TENSORS, place=EVOLVE, bytes_rate=3.0 * MIB)],
        [replace(TENSORS, bytes_rate=None), replace(TENSORS, place=EVOLVE, bytes_rate=None)],
    ],
    ids=[
        "elsewhere",
        "nobody known",
        "larger than its holder",
        "together larger",
        "nothing measured",
    ],
)
def test_tensors_stay_a_growth_of_their_own_where_nothing_says_that_they_are_kept_there(
    others: list[Candidate],
) -> None:
    causes = find_causes([PREDICTIONS, *others], MEMORY)
    assert [c.place.phase for c in causes if others[0] in c.members] == ["train"]
