"""What is known of a count that grows: its kind, its phase, its bytes, and who holds more and more of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

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
    _without_graphs,
    describe,
    family_of,
    find_candidates,
    gained_since,
    place_of,
    rate_of,
)
from leakline.analysis.run_history import RunHistory, Value
from leakline.analysis.series_facts import Facts
from leakline.analysis.timeline import timelines_of
from leakline.snapshot import CYCLIC_GARBAGE, Holder

TENSORS = "tensors.count"
LATE = [0, 50, 100, 100, 100, 110, 120, 130]


def _phased(
    generations: int,
    added: Mapping[str, Sequence[float] | float],
    at_ends: Mapping[str, Sequence[Value]] | None = None,
    series: str = TENSORS,
) -> RunHistory:
    """A count read after each phase, with what each adds in each generation; ``""`` after the last of them."""
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
def test_bytes_have_a_rate_from_three_readings_since_the_start_on(
    start: float, end: int, rate: float | None
) -> None:
    """The one before the start is where they begin."""
    assert rate_of(ends_timeline({"x": LATE}), "x", start, end) == rate


@pytest.mark.parametrize(
    ("values", "start", "gained"),
    [
        ([10, 10, 10, 40, 60], 5, None), ([50, 50, 0], 2, 0.0), ([None, None, None, None, 60], 3, 30.0),
        ([None, None], 0, None),
    ],
    ids=["none since", "falls", "one look", "no look"],
)  # fmt: skip
def test_one_look_after_the_start_tells_what_was_gained_in_each_generation(
    values: list[Value], start: float, gained: float | None
) -> None:
    assert gained_since(ends_timeline({"x": values}), "x", start, len(values)) == gained


@pytest.mark.parametrize(
    ("added", "place"),
    [
        ({"train/step": 0.5, "train": 0.125}, Place("train", "train/step", 1.0)),
        ({"train": 2, "": 8}, Place(None, None, 0.8)), ({"train": 0}, NOWHERE),
        ({"train": 6, "evolve": -2}, Place("train", "train", 1.0)),
        ({"train/step": 59, "train": 41}, Place("train", "train", 1.0)),
        ({"train/a": 8, "train/b": 2, "evolve": 5}, Place("train", "train/a", 10 / 15)),
    ],
    ids=["nested, less than one", "between", "still", "evolve gives back", "less of it", "nested beside another"],
)  # fmt: skip
def test_a_count_stays_in_the_phase_that_keeps_three_fifths_of_its_rise(
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
def test_what_a_phase_added_before_the_start_is_set_against_what_it_adds_since(
    before: int, usual: float, kept: float
) -> None:
    """Where it grew as fast before, the start is not where it began."""
    history = _phased(before + 4, {"train": [usual] * before + [10.0] * 4})
    tops, rates = _by_phases(timeline_of(history), TENSORS, before, before + 4)
    assert tops["train"] == rates["train"] == kept


def test_phases_are_told_from_the_newest_64_generations_and_as_many_before_the_start() -> None:
    history = _phased(70, {"train": [100.0] * 6 + [0.0] * 64, "evolve": 1.0})
    assert _by_phases(timeline_of(history), TENSORS, 0, 70)[0] == {
        "train": 0.0,
        "evolve": 1.0,
        "": 0.0,
    }
    history = _phased(70, {"train": [640.0] * 6 + [0.0] * 60 + [50.0] * 4})
    # Of the six that added most, two lie further back.
    assert _by_phases(timeline_of(history), TENSORS, 66, 70)[0]["train"] == 50.0
    history = _phased(70, {"train": [64.0] * 6 + [0.0] * 60 + [50.0] * 4})
    assert _by_phases(timeline_of(history), TENSORS, 66, 70)[0]["train"] == 46.0


RISING = candidate("torch.Tensor", "tensor", 100.0, slope=40, start=0, place=NOWHERE, deep=True)


@pytest.mark.parametrize(
    ("added", "parts"),
    [
        ({"train": 30, "evolve": 10}, [("evolve", 10.0, 25.0), ("train", 30.0, 75.0)]),
        ({"train": 0.375, "evolve": 0.125}, [("evolve", 10.0, 25.0), ("train", 30.0, 75.0)]),
        ({"train": 31, "evolve": 9}, [(None, 40.0, 100.0)]),
    ],
    ids=["a quarter", "of less than one", "less"],
)  # fmt: skip
def test_tensors_have_a_place_in_each_phase_that_keeps_a_quarter_of_them(
    added: dict[str, float], parts: list[tuple[str | None, float, float]]
) -> None:
    found = _by_phase(_facts(_phased(8, added)), RISING, 8)
    assert [(c.place.phase, c.growth.slope, c.bytes_rate) for c in found] == parts
    if len(parts) > 1:
        assert found[0].place == EVOLVE


def test_parts_of_a_growth_nobody_measured_have_no_bytes() -> None:
    facts = _facts(_phased(8, {"train": 30, "evolve": 10}))
    assert [c.bytes_rate for c in _by_phase(facts, replace(RISING, bytes_rate=None), 8)] == [
        None
    ] * 2


@pytest.mark.parametrize(
    ("name", "role", "family"),
    [
        ("dict", "type", "plain"), ("collections.deque", "type", "plain"), ("torch.nn.Linear", "type", "library"),
        ("json.decoder.JSONDecoder", "type", "library"), ("AddmmBackward0", "type", "library"),
        ("AccumulateGrad", "type", "library"), ("__main__.Env", "type", "object"), ("app.Env", "type", "object"),
        ("torch", "type", "object"), ("app.AddmmBackward0", "type", "object"),
    ],
)  # fmt: skip
def test_what_kind_of_thing_a_name_stands_for(name: str, role: str, family: Family) -> None:
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
def test_bytes_per_generation_and_whether_they_have_all_in_them_that_is_held(
    name: str, family: Family, series: dict[str, list[Value]], rate: tuple[float | None, bool]
) -> None:
    facts = _facts(ends_history({"process.anon_bytes": LATE, **series}, holders=(HOLDER,)))
    role = "container" if family == "container" else "type"
    assert _bytes_rate(facts, name, role, family, growing(2, start=6), 8) == rate


@pytest.mark.parametrize(
    "other", [candidate("torch.Tensor", "object"), candidate("Parameter", "tensor")]
)
def test_graphs_take_nothing_from_what_they_are_not(other: Candidate) -> None:
    assert _without_graphs([other], candidate("torch.Tensor", "graph", slope=10)) == [other]


def _graphs_of(
    count: int, size: int = 0, found: Sequence[Candidate] = (replace(RISING, growth=growing(10, 1)),)
) -> Candidate | None:  # fmt: skip
    """Graphs looked at once, in generation 19, of tensors that rise by 10 in each since the first."""
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
def test_graphs_are_kept_where_one_look_finds_three_tenths_of_the_tensors_in_them(
    count: int, slope: float | None
) -> None:
    graph = _graphs_of(count)
    assert (None if graph is None else graph.growth.slope) == slope


OWNER = candidate("app.Env", "object", place=EVOLVE)
TENSOR = replace(RISING, growth=growing(10, 1))


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ([], Place("evolve", "evolve", 0.6)), ([replace(OWNER, deep=True)], Place("train", "train", 1.0)),
        ([replace(OWNER, deep=True), replace(OWNER, deep=True, place=TRAIN)], Place("evolve", "evolve", 0.6)),
    ],
    ids=["no owner", "measured", "owners everywhere"],
)  # fmt: skip
def test_graphs_are_kept_where_no_class_of_the_program_owns_the_tensors(
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
def test_graphs_whose_number_grows_are_kept_where_it_does(
    found: tuple[Candidate, ...], name: str
) -> None:
    facts = _facts(_phased(12, {"train": 5}, series="tensors.graph_count"))
    graph = _kept_graphs(facts, found, 12)
    assert graph is not None
    assert (graph.name, graph.growth.slope, graph.place) == (name, 5.0, TRAIN)


def test_what_was_there_before_the_first_generation_was_not_gained() -> None:
    assert gained_since(timeline_of(_phased(4, {"train": 10})), TENSORS, 0, 4) == 10.0


FILLING = {
    "tracked.replay.length": [100 * g for g in range(12)],
    "tracked.replay.capacity": [9999] * 12,
}


def _found(**series: Sequence[Value]) -> list[tuple[str, str, float]]:
    named = {name.replace("__", "."): values for name, values in series.items()}
    history = ends_history({"process.anon_bytes": [1000] * 12, **FILLING, **named})
    return [(c.name, c.role, c.growth.slope) for c in find_candidates(_facts(history), 12)]


def _rising(each: int) -> list[Value]:
    return [10 + each * g for g in range(12)]


def test_everything_that_grows_is_found_once() -> None:
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
def test_nameless_objects_that_come_with_the_items_of_a_store_are_excused(
    name: str, each: int, excused: bool
) -> None:
    found = _found(**{f"type__{name.replace('.', '__')}__count": _rising(each)})
    assert found == ([] if excused else [(name, "type", float(each))])


def test_a_container_that_grows_in_step_with_a_store_is_not_excused() -> None:
    assert _found(container__app__log__length=_rising(100)) == [("app.log", "container", 100.0)]


def test_tensors_that_all_hold_a_graph_are_graphs() -> None:
    assert _found(tensors__count=_rising(5), tensors__graph_count=_rising(5)) == [
        ("torch.Tensor", "type", 5.0)
    ]
    two = _found(tensors__count=_rising(10), tensors__graph_count=_rising(5))
    assert two == [("torch.Tensor", "type", 5.0)] * 2


@pytest.mark.parametrize(
    "late",
    [
        [5, None, 15, 20, 21, 25], [5, None, 15, 20, 20, 25], [5, None, 15, 20, None, 20, 25],
        [None, 5, None, 20], [None, 5],
    ],
)  # fmt: skip
def test_graphs_that_are_read_late_grow_at_the_rate_of_their_tensors(late: list[Value]) -> None:
    """A look in slices reports the previous generation, of graphs and of tensors; each end counts tensors."""
    late = [*late, *[None] * (12 - len(late))]
    tensors = [None if graphs is None else 2 * graphs for graphs in late]
    found = _found(
        type__torch__Tensor__count=_rising(10), tensors__count=tensors, tensors__graph_count=late
    )
    assert found == [("torch.Tensor", "type", pytest.approx(5.0, rel=0.01))] * 2


@pytest.mark.parametrize("graphs", [{0: 0, 3: 300}, {3: 300}, {3: 0}])
def test_a_store_excuses_its_tensors_and_not_the_graphs_that_they_keep(
    graphs: dict[int, int],
) -> None:
    """Each of 100 new items of the store is a tensor, with another one that its graph keeps; rarely read."""
    found = _found(
        type__torch__Tensor__count=_rising(200),
        tensors__count=[10 + 200 * g if g in graphs else None for g in range(12)],
        tensors__graph_count=[graphs.get(g) for g in range(12)],
    )
    kept = graphs[3] > 0
    assert found == ([("torch.Tensor", "type", pytest.approx(100.0, rel=0.05))] if kept else [])


def test_one_look_that_finds_many_older_tensors_is_compared_with_the_new_ones() -> None:
    late: list[Value] = [None, None, 15, *[None] * 9]
    found = _found(
        type__torch__Tensor__count=_rising(10),
        tensors__count=[None if graphs is None else 1_000 for graphs in late],
        tensors__graph_count=late,
    )
    assert found == [("torch.Tensor", "type", pytest.approx(5.0, rel=0.01))] * 2


def test_garbage_is_named_as_a_holder_where_cycles_hold_a_class() -> None:
    holder = Holder(7, "app.Env", CYCLIC_GARBAGE, 100, None)
    history = ends_history({"type.app.Env.count": LATE}, holders=(holder,))
    kind: Literal["type"] = "type"
    env = describe(_facts(history), "type.app.Env.count", "app.Env", kind, growing(2, start=6), 8)
    assert env.holder == CYCLIC_GARBAGE


ENV = "type.app.Env.count"
# Two of the type were there before, and three more come in each generation.
COUNTS: list[Value] = [2 + 3 * g for g in range(20)]


def named(
    *held: tuple[int, str, int], lengths: Sequence[Value] = (), container: str = "app.last"
) -> str | None:
    """Return the holder named for (sequence, path, objects held), with lengths of a container where they were read."""
    series: dict[str, Sequence[Value]] = {ENV: COUNTS}
    if lengths:
        series[f"container.{container}.length"] = lengths
    holders = tuple(Holder(at, "app.Env", path, count) for at, path, count in held)
    history = ends_history(series, holders=holders)
    return Facts(history, timeline_of(history)).holders.get("app.Env")


@pytest.mark.parametrize("path", ["app.last[*]", "app.Trainer.last[*]", "app.last[*][*]"])
def test_a_container_that_stays_as_long_is_no_holder(path: str) -> None:
    container = path.rpartition("[*]")[0]
    flat: list[Value] = [None] * 6 + [3] * 14
    assert named((5, path, 15), lengths=flat, container=container) is None


def test_a_container_that_grows_is_a_holder() -> None:
    longer: list[Value] = [3 * g for g in range(20)]
    assert named((5, "app.kept[*]", 2), lengths=longer, container="app.kept") == "app.kept[*]"


def test_of_two_containers_the_one_that_grows_is_named() -> None:
    flat: list[Value] = [None] * 6 + [3] * 14
    found = named((5, "app.last[*]", 15), (5, "app.f.<defaults>[*]", 6), lengths=flat)
    assert found == "app.f.<defaults>[*]"


@pytest.mark.parametrize(("held", "holder"), [(5, "app.Trainer.best"), (4, None)])
def test_after_one_search_a_holder_holds_a_real_share_of_what_was_gained(
    held: int, holder: str | None
) -> None:
    """By the search at the fifth generation the type has gained 15."""
    assert named((5, "app.Trainer.best", held)) == holder


@pytest.mark.parametrize(("later", "holder"), [(15, "app.Trainer.best"), (13, None), (6, None)])
def test_after_two_searches_a_holder_has_gained_with_the_type(
    later: int, holder: str | None
) -> None:
    """Between the two searches the type has gained 30."""
    assert named((5, "app.Trainer.best", 6), (15, "app.Trainer.best", later)) == holder


def test_what_only_a_search_before_had_found_is_not_named() -> None:
    assert named((5, "app.Trainer.best", 15), (15, "app.f.<closure>.x", 40)) == "app.f.<closure>.x"


def test_searches_of_several_processes_are_not_compared() -> None:
    """A search does not say whose it is: one that found constant objects says nothing of a process that leaks."""
    holders = (
        Holder(5, "app.Env", "app.kept", 15), Holder(15, "app.Env", "app.kept", 45),
        Holder(16, "app.Env", "app.kept", 2),
    )  # fmt: skip
    history = ends_history({ENV: COUNTS}, holders=holders)
    (process,) = history.processes
    constant = replace(process, instance="q", rank=1, series={ENV: [2] * 20})
    both = replace(history, processes=(process, constant))
    assert Facts(history, timelines_of(history)[0]).holders == {}
    assert Facts(both, timelines_of(both)[0]).holders == {"app.Env": "app.kept"}


@pytest.mark.parametrize(("counts", "holder"), [(9, "app.Cache.keys[*]"), (None, None)])
def test_a_list_of_as_many_tensors_that_grow_larger_is_a_holder(
    counts: int | None, holder: str | None
) -> None:
    """Tensors that are made anew, more of them each time, are not held by a list of four."""
    series: dict[str, Sequence[Value]] = {
        "type.torch.Tensor.count": [9 + 3 * g if counts is None else counts for g in range(20)],
        "type.torch.Tensor.bytes": [g * 2**22 if g % 4 == 2 else None for g in range(20)],
        "container.app.Cache.keys.length": [None] * 10 + [4] * 10,
    }
    history = ends_history(series, holders=(Holder(11, "torch.Tensor", "app.Cache.keys[*]", 1),))
    assert Facts(history, timeline_of(history)).holders.get("torch.Tensor") == holder


def test_of_objects_that_grow_larger_the_search_for_the_largest_counts() -> None:
    series: dict[str, Sequence[Value]] = {
        "type.numpy.ndarray.count": [6] * 20,
        "type.numpy.ndarray.bytes": [g * 2**22 for g in range(20)],
    }
    holders = (
        Holder(11, "numpy.ndarray", "app.Dataset.rows", 1),
        Holder(13, "numpy.ndarray", "app.Network.first", 3, bytes_each=2_837),
    )
    history = ends_history(series, holders=holders)
    assert Facts(history, timeline_of(history)).holders == {"numpy.ndarray": "app.Dataset.rows"}


@pytest.mark.parametrize(("each", "holder"), [(104, None), (20 * 2**20, "numpy.ma.masked")])
def test_a_sample_of_next_to_nothing_does_not_hold_what_grows_larger(
    each: int, holder: str | None
) -> None:
    """A census in slices gives their bytes alone: their number is the one counted before."""
    series: dict[str, Sequence[Value]] = {
        "type.numpy.ndarray.count": [None, 2, *[None] * 10],
        "type.numpy.ndarray.bytes": [g * 2**22 if g in (1, 3, 8, 10) else None for g in range(12)],
    }
    holders = (Holder(11, "numpy.ndarray", "numpy.ma.masked", 1, each),)
    history = ends_history(series, holders=holders)
    assert Facts(history, timeline_of(history)).holders.get("numpy.ndarray") == holder


def test_counts_are_those_of_the_newest_reading_before_each_search() -> None:
    history = ends_history({ENV: [None, 4, None, None, 7, None]})
    found = Facts(history, timeline_of(history))._counts_at("app.Env", [0, 1, 2, 3, 4, 9])
    assert found == [None, 4, 4, 4, 7, 7]
