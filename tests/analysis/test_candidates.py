"""Facts about a growing count: its kind, its phase, its bytes, and its growing holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from pieces import (
    EVOLVE,
    TRAIN,
    candidate,
    ends_history,
    ends_timeline,
    growing,
    steps_history,
    timeline_of,
)

from leakline.analysis.attribution.candidates import (
    NOWHERE,
    Candidate,
    Family,
    Place,
    _by_phase,
    _by_phases,
    _bytes_rate,
    _kept_graphs,
    family_of,
    find_candidates,
    gained_since,
    place_of,
    rate_of,
)
from leakline.analysis.run_history import RunHistory, Value
from leakline.analysis.series_facts import Facts
from leakline.snapshot import GRAPH_NODE, Holder

TENSORS = "tensors.count"
LATE = [0, 50, 100, 100, 100, 110, 120, 130]


def _phased(
    generations: int,
    added: Mapping[str, Sequence[float] | float],
    at_ends: Mapping[str, Sequence[Value]] | None = None,
    series: str = TENSORS,
) -> RunHistory:
    """Return a count read after each phase, given what each phase adds; ``""`` is after the last of them."""
    rows: list[tuple[str, int | None, str | None]] = [("baseline", None, None)]
    count, counts = 1000.0, [1000.0]
    ends: dict[str, list[Value]] = {name: [None] for name in at_ends or {}}
    for g in range(generations):
        for path, amount in {**added, "": added.get("", 0.0)}.items():
            count += amount if isinstance(amount, (int, float)) else amount[g]
            rows.append(("phase_end", g, path) if path else ("generation_end", g, None))
            counts.append(count)
            for name, values in (at_ends or {}).items():
                ends[name].append(None if path else values[g])
    return steps_history(rows, {series: counts, **ends})


def _facts(history: RunHistory) -> Facts:
    return Facts(history, timeline_of(history))


@pytest.mark.parametrize(
    ("start", "end", "rate"),
    [
        (5, 8, 10.0), (6, 8, 10.0), (99, 8, None),
    ],
    ids=["four readings", "three readings", "none since"],
)  # fmt: skip
def test_the_rate_of_bytes_needs_three_readings_since_the_start(
    start: float, end: int, rate: float | None
) -> None:
    """The reading before the start is the base of the rate."""
    assert rate_of(ends_timeline({"x": LATE}), "x", start, end) == rate


@pytest.mark.parametrize(
    ("values", "start", "gained"),
    [
        ([10, 10, 10, 40, 60], 5, None), ([50, 50, 0], 2, 0.0), ([None, None, None, None, 60], 3, 30.0),
        ([None, None], 0, None),
    ],
    ids=["none since", "falls", "one look", "no look"],
)  # fmt: skip
def test_one_reading_after_the_start_gives_the_gain_per_generation(
    values: list[Value], start: float, gained: float | None
) -> None:
    assert gained_since(ends_timeline({"x": values}), "x", start, len(values)) == gained


@pytest.mark.parametrize(
    ("added", "place"),
    [
        ({"train/step": 0.5, "train": 0.125}, Place("train", "train/step", 1.0)),
        ({"train": 2, "": 8}, Place(None, None, 0.8)), ({"train": 0}, NOWHERE),
        ({"train": 6, "evolve": -2}, Place("train", "train", 1.0)),
        ({"train/a": 8, "train/b": 2, "evolve": 5}, Place("train", "train/a", 10 / 15)),
    ],
    ids=["nested, less than one", "between", "still", "evolve gives back", "nested"],
)  # fmt: skip
def test_a_count_is_placed_in_the_phase_with_60_percent_of_its_rise(
    added: dict[str, float], place: Place
) -> None:
    assert place_of(timeline_of(_phased(8, added)), TENSORS, 0, 8) == place


@pytest.mark.parametrize(
    ("before", "usual", "kept"),
    [
        (3, 2.0, 8.0), (3, 5.0, 5.0), (2, 2.0, 10.0),
    ],
    ids=["less before", "half before", "few before"],
)  # fmt: skip
def test_earlier_growth_of_a_phase_is_subtracted(before: int, usual: float, kept: float) -> None:
    """If it grew as fast before, it did not begin at the start."""
    history = _phased(before + 4, {"train": [usual] * before + [10.0] * 4})
    tops, rates = _by_phases(timeline_of(history), TENSORS, before, before + 4)
    assert tops["train"] == rates["train"] == kept


def test_phases_are_judged_by_64_generations_before_and_after_the_start() -> None:
    history = _phased(70, {"train": [100.0] * 6 + [0.0] * 64, "evolve": 1.0})
    tops, _ = _by_phases(timeline_of(history), TENSORS, 0, 70)
    assert tops == {"train": 0.0, "evolve": 1.0, "": 0.0}
    # Two of the six generations that added most are too far back.
    for before, since in ((640.0, 50.0), (64.0, 46.0)):
        history = _phased(70, {"train": [before] * 6 + [0.0] * 60 + [50.0] * 4})
        assert _by_phases(timeline_of(history), TENSORS, 66, 70)[0]["train"] == since


RISING = candidate("torch.Tensor", "tensor", 100.0, slope=40, start=0, place=NOWHERE, deep=True)
TENSOR = replace(RISING, growth=growing(10, 1))


@pytest.mark.parametrize(
    ("added", "parts"),
    [
        ({"train": 30, "evolve": 10}, [("evolve", 10.0, 25.0), ("train", 30.0, 75.0)]),
        ({"train": 31, "evolve": 9}, [(None, 40.0, 100.0)]),
    ],
    ids=["a quarter", "less"],
)  # fmt: skip
def test_tensors_are_placed_in_each_phase_that_keeps_a_quarter(
    added: dict[str, float], parts: list[tuple[str | None, float, float]]
) -> None:
    found = _by_phase(_facts(_phased(8, added)), RISING, 8)
    assert [(c.place.phase, c.growth.slope, c.bytes_rate) for c in found] == parts
    unmeasured = _by_phase(_facts(_phased(8, added)), replace(RISING, bytes_rate=None), 8)
    assert [c.bytes_rate for c in unmeasured] == [None] * len(parts)


@pytest.mark.parametrize(
    ("name", "role", "family"),
    [
        ("dict", "type", "plain"), ("collections.deque", "type", "plain"), ("torch.nn.Linear", "type", "library"),
        ("json.decoder.JSONDecoder", "type", "library"), ("AddmmBackward0", "type", "library"),
        ("AccumulateGrad", "type", "library"), ("__main__.Env", "type", "object"), ("app.Env", "type", "object"),
        ("torch", "type", "object"), ("app.AddmmBackward0", "type", "object"),
    ],
)  # fmt: skip
def test_names_are_assigned_to_families(name: str, role: str, family: Family) -> None:
    assert family_of(name, role) == family


HOLDER = Holder(0, "app.Env", "app.Keeper.kept[*]", 5, 30)


@pytest.mark.parametrize(
    ("name", "family", "series", "rate"),
    [
        ("app.Env", "object", {}, (60.0, True)),
        ("app.Agent", "object", {"type.app.Agent.bytes": LATE}, (10.0, False)),
        ("app.Agent", "object", {}, (None, False)),
        ("torch.Tensor", "tensor", {"tensors.bytes": LATE}, (10.0, True)),
        ("numpy.ndarray", "array", {"arrays.bytes": LATE}, (10.0, True)),
        ("torch.Tensor", "tensor", {}, (None, False)),
        ("app.log", "container", {"container.app.log.bytes": LATE}, (10.0, False)),
        ("app.log", "container", {"tracked.app.log.bytes": LATE}, (10.0, False)),
        ("app.log", "container", {}, (None, False)),
    ],
    ids=["what holders weigh", "shallow", "unmeasured", "tensors", "arrays", "tensors unmeasured", "a list",
         "a tracked list", "a list unmeasured"],
)  # fmt: skip
def test_bytes_per_generation_and_whether_they_include_held_objects(
    name: str, family: Family, series: dict[str, list[Value]], rate: tuple[float | None, bool]
) -> None:
    facts = _facts(ends_history({"process.anon_bytes": LATE, **series}, holders=(HOLDER,)))
    role = "container" if family == "container" else "type"
    assert _bytes_rate(facts, name, role, family, growing(2, start=6), 8) == rate


def _graphs_of(
    count: int, size: int = 0, found: Sequence[Candidate] = (TENSOR,)
) -> Candidate | None:  # fmt: skip
    """Return the graphs found by one scan in generation 19, for tensors that rise by 10 per generation."""
    once: list[Value] = [None] * 19
    history = _phased(
        20,
        {"train": 4, "evolve": 6},
        {"tensors.graph_count": [*once, count], "tensors.graph_bytes": [*once, size]},
    )
    return _kept_graphs(_facts(history), found, 20)


@pytest.mark.parametrize(
    ("count", "slope"),
    [(56, None), (57, 3.0), (190, 10.0), (380, 10.0)],
    ids=["too few", "three tenths", "all", "more than all"],
)
def test_graphs_are_kept_if_they_hold_30_percent_of_the_tensors(
    count: int, slope: float | None
) -> None:
    graph = _graphs_of(count)
    assert (None if graph is None else graph.growth.slope) == slope


OWNER = candidate("app.Env", "object", place=EVOLVE, deep=True)


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ([], Place("evolve", "evolve", 0.6)), ([OWNER], Place("train", "train", 1.0)),
        ([OWNER, replace(OWNER, place=TRAIN)], Place("evolve", "evolve", 0.6)),
    ],
    ids=["no owner", "measured", "owners everywhere"],
)  # fmt: skip
def test_graphs_are_kept_if_no_class_of_the_program_owns_the_tensors(
    others: list[Candidate], place: Place
) -> None:
    graph = _graphs_of(190, found=(TENSOR, *others))
    assert graph is not None
    assert (graph.place.phase, graph.place.path) == (place.phase, place.path)
    assert graph.place.share == pytest.approx(place.share)


@pytest.mark.parametrize(
    ("found", "name"),
    [((), "torch.Tensor"), ((replace(TENSOR, name="Tensor"),), "Tensor")],
    ids=["no tensors seen to grow", "tensors by another name"],
)
def test_growing_graphs_are_placed_in_the_phase_where_they_grow(
    found: tuple[Candidate, ...], name: str
) -> None:
    facts = _facts(_phased(12, {"train": 5}, series="tensors.graph_count"))
    graph = _kept_graphs(facts, found, 12)
    assert graph is not None
    assert (graph.name, graph.growth.slope, graph.place) == (name, 5.0, TRAIN)


FILLING = {"tracked.replay.length": range(0, 1200, 100), "tracked.replay.capacity": [9999] * 12}


def _found(**series: Sequence[Value]) -> list[tuple[str, str, float]]:
    named = {name.replace("__", "."): values for name, values in series.items()}
    history = ends_history({"process.anon_bytes": [1000] * 12, **FILLING, **named})
    return [(c.name, c.role, c.growth.slope) for c in find_candidates(_facts(history), 12)]


def _rising(each: int) -> list[Value]:
    return [10 + each * g for g in range(12)]


def test_every_growing_count_is_found_once() -> None:
    assert _found(
        type__app__Env__count=_rising(2),
        container__app__Env__length=_rising(3),
        type__app__Agent__count=_rising(0),
        figures__open=_rising(1),
        type__matplotlib__figure__Figure__count=_rising(5),
    ) == [
        ("matplotlib.figure.Figure", "type", 1.0),
        ("app.Env", "type", 2.0),
        ("app.Env", "container", 3.0),
    ]


@pytest.mark.parametrize(
    ("name", "each", "excused"),
    [
        ("dict", 100, True), ("dict", 37, False), ("json.Decoder", 100, False),
        ("matplotlib.figure.Figure", 100, False),
    ],
)  # fmt: skip
def test_plain_objects_added_with_items_of_a_store_are_excused(
    name: str, each: int, excused: bool
) -> None:
    found = _found(**{f"type__{name.replace('.', '__')}__count": _rising(each)})
    assert found == ([] if excused else [(name, "type", float(each))])
    assert _found(container__app__log__length=_rising(each)) == [("app.log", "container", each)]


def test_tensors_that_all_hold_a_graph_are_graphs() -> None:
    assert _found(tensors__count=_rising(5), tensors__graph_count=_rising(5)) == [
        ("torch.Tensor", "type", 5.0)
    ]
    two = _found(tensors__count=_rising(10), tensors__graph_count=_rising(5))
    assert two == [("torch.Tensor", "type", 5.0)] * 2


@pytest.mark.parametrize(
    ("depth", "slope"),
    [
        ([10 + 60 * g for g in range(12)], 60.0), ([10, 70, 130, 190, *[None] * 8], None), ([482] * 12, None),
        ([20 * g % 50 for g in range(1, 13)], None), ([0] * 12, None), ([242, None, 242, *[None] * 8, 242], None),
    ],
    ids=["every generation", "while memory stays flat", "a deep network", "a window", "no graphs", "rarely read"],
)  # fmt: skip
def test_a_chain_of_nodes_is_found_only_if_it_grows(
    depth: list[Value], slope: float | None
) -> None:
    found = _found(tensors__graph_depth=depth)
    assert found == ([] if slope is None else [(GRAPH_NODE, "type", slope)])


@pytest.mark.parametrize(
    "late",
    [
        [5, None, 15, 20, 21, 25], [5, None, 15, 20, None, 20, 25], [None, 5],
    ],
)  # fmt: skip
def test_graphs_read_late_grow_at_the_rate_of_their_tensors(late: list[Value]) -> None:
    """A sliced scan reports graphs and tensors of the previous generation; each end counts tensors."""
    late = [*late, *[None] * (12 - len(late))]
    tensors = [None if graphs is None else 2 * graphs for graphs in late]
    found = _found(
        type__torch__Tensor__count=_rising(10), tensors__count=tensors, tensors__graph_count=late
    )
    assert found == [("torch.Tensor", "type", pytest.approx(5.0, rel=0.01))] * 2


@pytest.mark.parametrize("graphs", [{0: 0, 3: 300}, {3: 300}, {3: 0}])
def test_a_store_excuses_its_tensors_but_not_their_graphs(
    graphs: dict[int, int],
) -> None:
    """Each of 100 new items of the store is a tensor whose graph keeps another one; it is rarely read."""
    found = _found(
        type__torch__Tensor__count=_rising(200),
        tensors__count=[10 + 200 * g if g in graphs else None for g in range(12)],
        tensors__graph_count=[graphs.get(g) for g in range(12)],
    )
    kept = graphs[3] > 0
    assert found == ([("torch.Tensor", "type", pytest.approx(100.0, rel=0.05))] if kept else [])
