"""What is told beside growth: gauges and handles that rise with it, who holds it, and where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pieces import ends_history, study_of

from leakline.analysis import RunHistory
from leakline.analysis.attribution.candidates import NOWHERE, Candidate, Place
from leakline.analysis.attribution.causes import Cause, Memory
from leakline.analysis.attribution.growth_split import (
    _once_each,
    native_growth,
    other_channels,
    retained,
    with_garbage,
)
from leakline.analysis.attribution.native_owners import _goes_with, with_handles
from leakline.analysis.comparison.comparison_results import GaugeChange
from leakline.analysis.findings.code_locations import code_link, commit_link, located
from leakline.analysis.findings.gauges import (
    _change,
    _median,
    companions,
    compared,
    gauges_of,
    title,
    with_companions,
)
from leakline.analysis.memory.memory_kinds import Channel
from leakline.analysis.results import Finding, Interval
from leakline.analysis.run_history import Holders, Value, most_of
from leakline.analysis.statistics.count_evidence import CountGrowth, Pattern
from leakline.analysis.statistics.memory_evidence import Rise, Scale
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.timeline import Timeline
from leakline.analysis.timeline_analysis import Assessed, TimelineAnalysis
from leakline.snapshot import CYCLIC_GARBAGE, Event, Holder


def timeline(
    series: Mapping[str, Sequence[Value]], *, segment: Sequence[int] | None = None, generations: Sequence[int] = ()
) -> Timeline:  # fmt: skip
    n = max(map(len, series.values()), default=0)
    named, rows = tuple(generations or range(n)), tuple(range(n))
    return Timeline(
        "rank 0 main", "p", ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], named, series,
        segment or [0] * n, named, rows, None, {g: i for i, g in enumerate(named)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "percent", "same"),
    [
        (100, 104.9, 4.9, True), (100, 105, 5.0, False), (100, 95, -5.0, False), (0, 0, 0.0, True),
        (None, 1, None, None),
    ],
)  # fmt: skip
def test_a_gauge_is_the_same_within_five_percent(
    old: float | None, new: float | None, percent: float | None, same: bool | None
) -> None:
    assert _change("gauge.x", old, new) == GaugeChange("x", old, new, percent, same)


def test_a_gauge_is_the_middle_of_the_shared_generations_of_all_processes() -> None:
    timelines = [
        timeline({"gauge.x": [1, 2, 3, None]}),
        timeline({"gauge.x": [10, 20, 30, 40]}),
        timeline({"y": [5]}),
    ]
    assert _median(timelines, "gauge.x", {1, 2, 3}) == 20
    assert _median(timelines, "gauge.x", {9}) is None
    assert gauges_of(timeline({"gauge.b": [1], "js.frames_per_second": [1], "gauge.a": [1], "x": [1]})) == [
        "gauge.a", "gauge.b", "js.frames_per_second",
    ]  # fmt: skip
    assert title("js.frames_per_second") == "frames per second"


def test_forty_gauges_are_compared() -> None:
    many = timeline({f"gauge.g{i:02}": [1] for i in range(45)})
    assert [c.gauge for c in compared([many], [], {0})] == [f"g{i:02}" for i in range(40)]


def beside_memory(
    values: Sequence[Value], memory: Sequence[Value] | None = None, name: str = "gauge.x"
) -> Timeline:
    rising = [100 + 10 * i for i in range(len(values))]
    return timeline({"process.rss_bytes": rising if memory is None else memory, name: values})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([60, 57, 54, 51, 48, 45, 42, 39], "x fell from 58.5 to 40.5 while memory rose (rank correlation -1.00)."),
        ([10, 11, 12, 13, 14, 15, 16, 17], "x rose from 10.5 to 16.5 while memory rose (rank correlation +1.00)."),
        # Eight readings at least,
        ([60, 57, 54, 51, 48, 45, 42], None),
        # that have changed by a fifth of the larger end,
        ([100, 100, 99, 98, 97, 96, 80, 80], "x fell from 100 to 80 while memory rose (rank correlation -0.99)."),
        # and go with memory nearly always.
        ([60, 57, 42, 39, 48, 45, 54, 51], None),
    ],
)  # fmt: skip
def test_a_gauge_that_moves_with_memory_is_told(values: list[Value], told: str | None) -> None:
    assert companions(beside_memory(values)) == (() if told is None else (told,))


def test_a_gauge_beside_memory_that_falls_or_stands_is_not_told() -> None:
    falling = [60, 57, 54, 51, 48, 45, 42, 39]
    assert companions(beside_memory(falling, [200 - i for i in range(8)])) == ()
    assert companions(beside_memory(falling, [200] * 8)) == ()


def test_gauges_are_evidence_of_what_leaks_and_the_clearest_two_are_told() -> None:
    memory = [100 + 10 * i for i in range(8)]
    falls, rises = [80, 70, 60, 50, 40, 30, 20, 10], [1, 2, 3, 4, 5, 6, 8, 7]
    told = timeline({
        "process.rss_bytes": memory, "gauge.a": rises, "gauge.b": falls, "gauge.c": falls, "gauge.d": falls,
    })  # fmt: skip
    leak = Finding(
        "f", "suspected", "native", None, None, (), Interval(1, 1, 1), None, 1, ("Before.",)
    )
    found = with_companions(leak, told).evidence
    assert [line.split()[0] for line in found] == ["Before.", "b", "c"]
    watched = replace(leak, status="watch")
    assert with_companions(watched, told) is watched
    assert with_companions(leak, timeline({"process.rss_bytes": memory})) is leak


def test_only_the_newest_readings_of_a_gauge_are_looked_at() -> None:
    # Of the newest 64 it stands still; what it was before is long ago.
    assert companions(beside_memory([float(i) for i in range(20)] + [20.0] * 64)) == ()
    assert len(companions(beside_memory([float(i) for i in range(20)] + [20.0] * 20))) == 1


def holder(kind: str, path: str, count: int, sequence: int = 0, each: int | None = None) -> Holder:
    return Holder(sequence, kind, path, count, each)


def test_holders_are_those_of_the_newest_look() -> None:
    told = Holders([
        holder("Env", "a", 5, 1), holder("Env", "b", 9, 1), holder("Env", "a", 3, 2), holder("Env", "a", 4, 2),
        holder("Env", "old", 99, 1), holder("Agent", "c", 1, 0), holder("Env", CYCLIC_GARBAGE, 7, 2),
    ])  # fmt: skip
    assert told.newest == {"Env": {"a": 4, CYCLIC_GARBAGE: 7}, "Agent": {"c": 1}}
    assert told.newest_kept == {"Env": {"a": 4}, "Agent": {"c": 1}}
    assert told.best == {"Env": CYCLIC_GARBAGE, "Agent": "c"}
    # Of those that hold as many the last by name.
    assert most_of({"a": 2, "c": 2, "b": 2, "d": 1}) == "c"


def test_garbage_is_that_of_the_newest_look_with_the_most_first() -> None:
    told = Holders([
        holder("A", CYCLIC_GARBAGE, 9, 2), holder("A", CYCLIC_GARBAGE, 1, 1), holder("B", CYCLIC_GARBAGE, 5, 1),
        holder("B", CYCLIC_GARBAGE, 6, 1), holder("C", CYCLIC_GARBAGE, 6, 1), holder("D", "kept", 99, 3),
    ])  # fmt: skip
    assert list(told.garbage_types.items()) == [("A", 9), ("B", 6), ("C", 6)]


def test_the_size_of_an_object_is_the_newest_and_that_of_no_thread() -> None:
    told = Holders([
        holder("A", "x", 1, 2, 50), holder("A", "y", 1, 1, 90), holder("A", "z", 1, 2, 60), holder("A", "w", 1, 3),
        holder("Worker", "threading._active[*]", 1, 1), holder("Worker", "x", 1, 1, 500),
    ])  # fmt: skip
    assert told.bytes_each == {"A": 60}


def growth(
    slope: float = 2.0, *, start: float = 10.0, rises: int = 9, pattern: Pattern = "irregular"
) -> CountGrowth:
    return CountGrowth(pattern, slope, slope, slope, start, start - 1, start + 1, rises, 9, 1.0)


def candidate(
    name: str = "io.FileIO", *, phase: str | None = None, role: Any = "type", grown: CountGrowth | None = None
) -> Candidate:  # fmt: skip
    place = NOWHERE if phase is None else Place(phase, phase, 1.0)
    return Candidate(name, role, "library", grown or growth(), place, None, False, False)


def assessed(
    *members: Candidate, kind: Any = "native", phase: str | None = None, start: float | None = 10.0,
    window: float = 20.0, rate: float = 9.0, rise: Rise | None = None,
) -> Assessed:  # fmt: skip
    place = NOWHERE if phase is None else Place(phase, phase, 1.0)
    cause = Cause(kind, place, members, None, Slope(rate, rate, rate, 9))
    at = None if start is None else (start, start, start)
    return Assessed(cause, at, window, rise or Rise(), frozenset(), Scale(1_000), "rank 0 main")


def test_a_handle_has_risen_three_times() -> None:
    assert _goes_with(assessed(), candidate(grown=growth(rises=3)))
    assert not _goes_with(assessed(), candidate(grown=growth(rises=2)))
    assert not _goes_with(assessed(start=None), candidate())


def names_of(found: Sequence[Assessed]) -> list[list[str]]:
    return [[member.name for member in a.cause.members] for a in found]


def merged(found: Sequence[Assessed], candidates: Sequence[Candidate]) -> list[Assessed]:
    """With no memory read, so that nothing speaks against a candidate that begins in time."""
    return with_handles(study_of(ends_history({"x": [1, 2, 3]})), found, candidates, 3)


def test_of_several_handles_the_one_that_owns_the_others_is_named() -> None:
    file, socket = candidate(), candidate("socket.socket", grown=growth(9))
    assert names_of(merged([assessed()], [socket, file])) == [["io.FileIO"]]
    # Of those alike, an owner has several of the others: fewer of it come in each generation.
    for grown, named in ((3, "io.FileIO"), (1, "socket.socket"), (2, "io.FileIO")):
        other = candidate("socket.socket", grown=growth(grown))
        assert names_of(merged([assessed()], [other, file])) == [[named]]
    session = replace(
        candidate("app.Session", grown=growth(2)), family="object", holder="app.all[*]"
    )
    inner = replace(
        candidate("db.Cursor", grown=growth(1)), family="object", holder="app.Session.cursor"
    )
    assert names_of(merged([assessed()], [file, inner, session])) == [["app.Session"]]


@pytest.mark.parametrize(
    ("kept", "kind", "named"),
    [
        ({"name": "cv2.VideoCapture", "family": "object", "holder": "app.all[*]"}, "native", True),
        ({"name": "float", "family": "plain"}, "native", False),
        (
            {"name": "torch.Tensor", "family": "tensor", "deep": True, "bytes_rate": 64.0},
            "allocator_retained",
            True,
        ),
        ({"name": "torch.Tensor", "family": "graph"}, "native", True),
        ({"name": "app.opened", "family": "container", "role": "container"}, "native", True),
    ],
    ids=["a handle", "numbers", "that pin holes", "graphs", "a list of handles"],
)
def test_what_is_known_whole_is_not_named_for_memory_nobody_sees(
    kept: dict[str, Any], kind: str, named: bool
) -> None:
    one = replace(candidate(), **kept)
    expected = [[one.name]] if named else [[]]
    assert names_of(merged([assessed(kind=kind)], [one])) == expected


def test_what_a_handle_stands_for_is_told_once_and_with_its_container() -> None:
    file = candidate(phase="train", grown=growth(pattern="constant", start=11))
    kept = replace(candidate("app.files", role="container"), family="container")
    other = replace(candidate("app.others", role="container", grown=growth(3)), family="container")
    idle = assessed(file, kind="objects", rate=0.1)
    (named,) = merged([assessed(), idle], [file, kept, other])
    assert names_of([named]) == [["io.FileIO"]]
    (named,) = merged([assessed()], [file, kept, other])
    assert names_of([named]) == [["io.FileIO", "app.files"]]
    assert (named.cause.kind, named.cause.place.phase, named.cause.behind) == (
        "objects", "train", "native",
    )  # fmt: skip
    assert named.start == (11, 10, 12)
    assert named.witnesses == frozenset({"counts", "steady"})
    # What nothing stands for stays, however little it is.
    assert merged([idle], [file]) == [idle]
    (unsteady,) = merged([assessed(phase="evolve", kind="shared_memory")], [candidate("x.mmap")])
    assert (unsteady.cause.kind, unsteady.cause.place.phase) == ("shared_memory", "evolve")
    assert unsteady.witnesses == frozenset({"counts"})


def test_what_was_measured_and_what_lies_behind_it_are_one_growth() -> None:
    file = candidate(phase="train")
    (one,) = merged([assessed(file, kind="objects", rate=2.0), assessed(rate=9.0)], [file])
    assert one.cause.rate.estimate == 11.0


FORGES = {"repository": "https://github.com/a/b.git", "commit": "0123abc"}


def at_forge(**more: Any) -> dict[str, Any]:
    return {**FORGES, **more}


@pytest.mark.parametrize(
    ("environment", "link"),
    [
        (FORGES, "https://github.com/a/b/commit/0123abc"),
        (at_forge(repository="git@gitlab.com:a/b/c.git"), "https://gitlab.com/a/b/c/-/commit/0123abc"),
        (at_forge(repository="ssh://git@codeberg.org:22/a/b"), "https://codeberg.org/a/b/commit/0123abc"),
        (at_forge(repository="https://me@bitbucket.org/a/b/"), "https://bitbucket.org/a/b/commits/0123abc"),
        (at_forge(repository="https://example.org/a/b"), None),
        (at_forge(repository="https://github.com/a/../b"), None), (at_forge(commit=None), None),
    ],
)  # fmt: skip
def test_a_commit_is_linked_on_forges_that_are_known(
    environment: dict[str, Any], link: str | None
) -> None:
    assert commit_link(environment) == link


@pytest.mark.parametrize(
    ("location", "below"),
    [
        ("training/trainer.py:281", "training/trainer.py#L281"), ("a.py:1234567", "a.py#L1234567"),
        ("a.py:12345678", None), ("a.py", None),
    ],
)  # fmt: skip
def test_a_line_of_code_is_linked_at_its_commit(location: object, below: str | None) -> None:
    link = None if below is None else f"https://github.com/a/b/blob/0123abc/{below}"
    assert code_link(FORGES, location) == link


def fixed(phase: str | None, location: str | None) -> Event:
    return Event(0, 0.0, "fix", f"{phase}{location}", data={"phase": phase, "location": location})


@pytest.mark.parametrize(
    ("phase", "path", "location"),
    [
        # The nested phase says more than the one around it.
        ("train", "train/fit", "fit.py:1"), (None, "train/add", "train.py:1"), (None, None, None),
    ],
)  # fmt: skip
def test_a_finding_is_where_the_fix_of_its_phase_says(
    phase: str | None, path: str | None, location: str | None
) -> None:
    events = (
        fixed("train", "train.py:1"), fixed("train/fit", "fit.py:1"), fixed("evolve", None), fixed(None, "none.py:1"),
    )  # fmt: skip
    rate = Interval(1, 1, 1)
    leak = Finding("f", "confirmed", "objects", phase, None, (), rate, None, 1, phase_path=path)
    (found,) = located([leak], RunHistory("r", events=events, environment=FORGES))
    assert found.location == location
    assert (found.location_link is not None) is (location is not None)


def study(
    *, bend: float | None = None, series: Mapping[str, Sequence[Value]] | None = None
) -> TimelineAnalysis:
    at = None if bend is None else (bend, bend, bend)
    told = timeline(series or {"process.rss_bytes": [100] * 20})
    return cast(TimelineAnalysis, SimpleNamespace(timeline=told, bend=lambda end: at))


@pytest.mark.parametrize(
    ("rate", "total", "measured", "kept"),
    [
        # Half of a growth is most of it.
        (5.0, 10.0, (), 5.0), (0.5, 1.0, (), 0.5), (9.0, 10.0, (3.0, None), 7.0),
        # What was measured of live objects is not kept by the allocator.
        (9.0, 10.0, (3.0, 2.5), 0.0),
    ],
)  # fmt: skip
def test_the_allocator_keeps_what_is_half_of_the_growth_at_least(
    monkeypatch: pytest.MonkeyPatch, rate: float | None, total: float, measured: Sequence[float | None], kept: float
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "leakline.analysis.attribution.growth_split.allocator_rate",
        lambda timeline, begin, end: rate,
    )
    causes = [Cause("objects", NOWHERE, (), each) for each in measured]
    assert retained(study(), Memory(Slope(total, 0, 0, 9)), causes, 20) == kept


@pytest.mark.parametrize(
    ("left", "kept", "kind"),
    [(10, 5, "allocator_retained"), (10, 4.9, "native"), (10, 0, "native")],
)
def test_what_is_left_is_called_after_the_allocator_from_half_of_it_on(
    left: float, kept: float, kind: str
) -> None:
    memory = Memory(Slope(20, 10, 40, 9))
    found = native_growth(study(), memory, left, kept, Rise(), Scale(1_000), (8, 8, 8), 20)
    assert (found.cause.kind, found.cause.rate) == (kind, Slope(10, 5, 20, 9))
    # From generation 8 to 19, both of them with it; where memory bends goes before.
    assert (found.start, found.window) == ((8, 8, 8), 12)
    bent = native_growth(study(bend=5), memory, left, kept, Rise(), Scale(1_000), (8, 8, 8), 20)
    assert (bent.start, bent.window) == ((5, 5, 5), 15)
    page = study(series={"tfjs.bytes": [1] * 20})
    tensors = native_growth(page, memory, left, kept, Rise(), Scale(1_000), None, 20)
    assert tensors.cause.kind == "tensors"


def test_of_what_is_beside_the_tensors_the_clearest_of_a_phase_stays() -> None:
    weak, clear = Rise(window=20, strict=8), Rise(window=12, strict=12)
    a, b = assessed(kind="external", rise=weak), assessed(kind="external", rise=clear)
    elsewhere = assessed(kind="external", phase="train", rise=weak)
    assert _once_each([a, elsewhere, b]) == [elsewhere, b]
    # Of those that are as clear the first.
    assert _once_each([a, replace(a)])[0] is a


def channel(
    name: str = "cuda.0.allocated_bytes", kind: Any = "gpu", placed_by: str = ""
) -> Channel:
    return Channel(name, kind, tuple(100.0 + 10 * i for i in range(20)), placed_by=placed_by)


def with_channel(told: Channel, rise: Rise, *, garbage: object = None) -> TimelineAnalysis:
    return cast(
        TimelineAnalysis,
        SimpleNamespace(
            timeline=timeline({"process.rss_bytes": [100] * 20, told.name: told.values}), channels=(told,),
            channel_rise=lambda c, end: rise,
            channel_stands=lambda c, end: end, remaining=lambda end: None, scale=lambda end: Scale(1_000),
            waiting=SimpleNamespace(objects=garbage, growth=None), history=RunHistory("r"), facts=None,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rise", "found"),
    [
        (Rise(), 0), (Rise(window=12), 1), (Rise(visible=True), 1), (Rise(window=12, visible=True), 1),
    ],
)  # fmt: skip
def test_a_channel_is_told_where_its_rise_is_lasting_or_visible(rise: Rise, found: int) -> None:
    assert len(other_channels(with_channel(channel("children", "children"), rise), 20, ())) == found


def test_a_device_that_grows_has_the_tensors_that_grow_as_members() -> None:
    tensor = replace(candidate("torch.Tensor", phase="train"), family="tensor")
    rise = Rise(window=12)
    (device,) = other_channels(with_channel(channel(), rise), 20, (candidate(), tensor))
    assert (device.cause.members, device.witnesses) == ((tensor,), frozenset({"counts"}))
    (children,) = other_channels(with_channel(channel("children", "children"), rise), 20, (tensor,))
    assert (children.cause.members, children.witnesses) == ((), frozenset())
    assert children.cause.rate.estimate == 10


@pytest.mark.parametrize(("bend", "begin"), [((10, 9, 11), 9), (None, None)])
def test_the_rate_of_a_channel_is_told_from_the_generation_before_its_bend(
    monkeypatch: pytest.MonkeyPatch, bend: tuple[float, float, float] | None, begin: float | None
) -> None:
    asked: list[float | None] = []

    def position_of(told: Timeline, generation: float | None, end: int) -> int:
        asked.append(generation)
        return 0

    monkeypatch.setattr("leakline.analysis.attribution.growth_split.position_of", position_of)
    monkeypatch.setattr(
        "leakline.analysis.attribution.growth_split.bend_of", lambda told, values, end: bend
    )
    children = with_channel(channel("children", "children"), Rise(window=12))
    assert [a.start for a in other_channels(children, 20, ())] == [bend]
    assert asked == [begin]


@pytest.mark.parametrize(
    ("grows", "named", "witnesses"),
    [(True, False, {"counts"}), (False, False, set()), (True, True, set())],
)
def test_memory_of_no_name_has_counts_as_a_witness_where_what_waits_is_counted(
    monkeypatch: pytest.MonkeyPatch, grows: bool, named: bool, witnesses: set[str]
) -> None:
    monkeypatch.setattr(
        "leakline.analysis.attribution.growth_split.garbage_of", lambda cause, *_: cause
    )
    monkeypatch.setattr("leakline.analysis.attribution.growth_split.may_pass", lambda *_: False)
    monkeypatch.setattr(
        "leakline.analysis.attribution.growth_split.together", lambda first, other: first
    )
    told = with_channel(channel(), Rise())
    told.waiting = cast(Any, SimpleNamespace(objects=None, growth=growth() if grows else None))
    own = replace(
        assessed(candidate("Env")) if named else assessed(), witnesses=frozenset({"steady"})
    )
    (found,) = with_garbage(told, [own], 20)
    assert found.witnesses == frozenset({"steady", *witnesses})
    # What joins it brings its own.
    other = replace(own, witnesses=frozenset({"budget"}))
    (joined,) = with_garbage(told, [own, other], 20)
    assert joined.witnesses == frozenset({"steady", "budget", *witnesses})
