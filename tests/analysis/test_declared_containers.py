"""A declared container explains its contents, however often it is cleared, and nothing beyond its capacity."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builder import EVALUATE, MIB, Leak, Training, curve, history_of
from pieces import ends_history

from leakline.analysis import RunHistory, examine
from leakline.analysis.assertions.expected_counts import (
    PREALLOCATED,
    Bounded,
    _bytes_per_item,
    _going_on,
    _with_kept,
    bounded_containers,
    capacity_of,
    tracked_names,
    without_bounded,
)
from leakline.analysis.attribution.candidates import (
    NOWHERE,
    Candidate,
    comes_with_a_store,
    fills_a_container,
    is_stored,
    overshooting,
)
from leakline.analysis.results import Verdict
from leakline.analysis.run_history import Value
from leakline.analysis.series_facts import Facts
from leakline.analysis.statistics.count_evidence import CountGrowth
from leakline.analysis.timeline import Timeline
from leakline.snapshot import Holder

ACTIVE = ("suspected", "confirmed")
CAPACITY, ADDED, EACH = 4_800, 320, 40_000
ITEM = "app.Experience"


def lengths(generations: int, cleared_every: int, capacity: int = CAPACITY) -> list[float]:
    found, held = [], 0
    for g in range(generations):
        held = 0 if g % cleared_every == cleared_every - 1 else min(capacity, held + ADDED)
        found.append(float(held))
    return found


def memory_of(length: list[float], *, given_back: bool, leak: float = 0.0) -> list[float]:
    live = [EACH * n / MIB for n in length]
    taken = live if given_back else list(accumulate(live, max))
    return curve(lambda i: taken[i] + leak * i, len(length), noise=0.5)


def run(
    length: list[float], private: list[float], capacity: int = CAPACITY, *,
    sized: bool = True, counted_every: int = 1,
) -> RunHistory:  # fmt: skip
    series: dict[str, list[float | None]] = {"tracked__experience__length": [*length]}
    series[f"type__{ITEM}__count"] = [
        n if i % counted_every == 0 else None for i, n in enumerate(length)
    ]
    if sized:
        series["tracked__experience__bytes"] = [EACH * n for n in length]
    # Little other memory, so that the container matters.
    history = history_of([p - 800 * MIB for p in private], **series)
    holder = Holder(0, ITEM, "app.Collector.experience_buffer[*]", 800, EACH)
    return replace(history, holders=(holder,), capacities={"experience": capacity})


@pytest.mark.parametrize(
    ("cleared_every", "capacity", "generations", "given_back", "sized", "counted_every"),
    [
        (10, 800, 30, True, True, 1), (10, 800, 30, False, False, 3), (20, 4_800, 50, True, False, 1),
        (20, 4_800, 50, False, True, 3), (30, 9_600, 65, True, False, 3), (30, 9_600, 65, False, True, 1),
    ],
)  # fmt: skip
def test_a_store_that_is_cleared_and_refilled_is_never_suspected(
    cleared_every: int, capacity: int, generations: int, given_back: bool, sized: bool, counted_every: int
) -> None:  # fmt: skip
    length = lengths(generations, cleared_every, capacity)
    private = memory_of(length, given_back=given_back)
    for end in range(5, generations + 1, 5):
        history = run(
            length[:end], private[:end], capacity, sized=sized, counted_every=counted_every
        )
        verdict = examine(history)
        assert verdict.status not in ACTIVE, f"{end}: {verdict.summary}"


@pytest.mark.parametrize("given_back", [True, False])
def test_a_leak_next_to_a_refilling_store_is_found_at_its_rate(given_back: bool) -> None:
    length = lengths(50, 20)
    verdict = examine(run(length, memory_of(length, given_back=given_back, leak=4.0)))
    assert verdict.status == "confirmed", verdict.summary
    rate = verdict.findings[0].growth_bytes_per_generation
    assert rate.estimate == pytest.approx(4.0 * MIB, rel=0.15)


def test_a_class_growing_with_a_store_is_named_if_memory_grows_more() -> None:
    length = lengths(30, 100, 20_000)
    # As many objects as items, and as much additional memory as those need.
    private = memory_of(length, given_back=True, leak=EACH * ADDED / MIB)
    verdict = examine(run(length, private, 20_000))
    assert verdict.status == "confirmed", verdict.summary
    assert verdict.findings[0].suspects[0].name == ITEM


def test_a_store_beyond_its_capacity_is_named() -> None:
    length = lengths(20, 100, 10**6)
    history = run(length, memory_of(length, given_back=True), 800)
    (process,) = history.processes
    series = {k: v for k, v in process.series.items() if not k.startswith("type.")}
    verdict = examine(replace(history, processes=(replace(process, series=series),), holders=()))
    assert verdict.status in ACTIVE, verdict.summary
    finding = verdict.findings[0]
    assert [(s.name, s.role) for s in finding.suspects] == [("experience", "container")]
    # It exceeds its capacity from the third generation on; growth within the capacity is not a leak.
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate == pytest.approx(2, abs=1)


def container(name: str, entries: int, size: float) -> dict[str, float]:
    return {f"container.{name}.length": entries, f"container.{name}.bytes": size}


@pytest.mark.parametrize("entries", [320, 100])
def test_two_leaking_containers_are_two_findings(entries: int) -> None:
    both = {**container("app.A.log", 320, 4 * MIB), **container("app.B.trace", entries, 4 * MIB)}
    verdict = examine(Training(leaks=(Leak(EVALUATE, 8 * MIB, both),)).history())
    rates = {
        f.suspects[0].name: f.growth_bytes_per_generation.estimate
        for f in verdict.findings
        if f.status in ACTIVE
    }
    each = pytest.approx(4 * MIB, rel=0.1)
    assert rates == {"app.A.log": each, "app.B.trace": each}


def imported(length: list[float], private: list[float]) -> RunHistory:
    """Return a run as imported from a log: memory and the fill of a buffer, without types."""
    history = history_of(private, tracked__experience__length=[*length])
    return replace(history, capacities={"experience": CAPACITY})


def filling(generations: int, full_from: int) -> list[float]:
    return [float(min(CAPACITY, (g + 1) * CAPACITY / full_from)) for g in range(generations)]


@pytest.mark.parametrize("full_from", [3, 5])
def test_growth_that_continues_after_a_store_is_full_is_not_its_own(
    full_from: int,
) -> None:
    """Report 000: memory rises by half a gigabyte per episode, also after the buffer is full."""
    length, private = filling(16, full_from), curve(lambda g: 500 * g, 16, noise=5.0)
    verdict = examine(imported(length, private))
    assert verdict.status in ACTIVE, verdict.summary
    grows = verdict.findings[0].growth_bytes_per_generation.estimate
    assert grows == pytest.approx(500 * MIB, rel=0.1)
    early = examine(imported(length[:8], private[:8]))
    assert early.status != "ok", early.summary
    # If memory is flat once the store is full, the store explains all of it.
    still = examine(imported(length, [800.0 * MIB + 0.5 * MIB * n for n in length]))
    assert still.status not in ACTIVE, still.summary


GENERATIONS, FULL, EPISODES = 36, 20, 3
ARRAYS = "type.numpy.ndarray.count"


def episodes(
    parts: tuple[int, int] = (2, 2), *, leak: int = 0, size: float = MIB, path: str = "app.episodes[*][*]",
    counted: str = ARRAYS, census_every: int = 4, declared: bool = True,
) -> RunHistory:  # fmt: skip
    """Return a run with a store of episodes, each with parts of this size; ``leak`` more parts are kept elsewhere."""
    rng = random.Random(3)
    items: list[tuple[int, float]] = []
    private: list[Value] = []
    length: list[Value] = []
    inner: list[Value] = []
    tracked_bytes: list[Value] = []
    counts: list[Value] = []
    for generation in range(GENERATIONS):
        items += [(rng.randint(*parts), size * rng.uniform(0.8, 1.2)) for _ in range(EPISODES)]
        items = items[-FULL * EPISODES :]
        within = sum(count for count, _ in items)
        private.append(round(300 * MIB + sum(s for _, s in items) + leak * generation * MIB / 2))
        length.append(len(items))
        inner.append(within)
        tracked_bytes.append(round(len(items) * 0.93 * size))
        kept = within + leak * generation
        counts.append(400 + kept if generation % census_every == 0 else None)
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": private, counted: counts,
        "container.app.episodes.length": length, "container.app.episodes[*].length": inner,
    }  # fmt: skip
    if declared:
        series |= {
            "tracked.episodes.length": length, "tracked.episodes.bytes": tracked_bytes,
            "tracked.episodes.capacity": [FULL * EPISODES] * GENERATIONS,
        }  # fmt: skip
    name = counted.removeprefix("type.").removesuffix(".count")
    return ends_history(series, holders=(Holder(9, name, path, 60),))


def named(verdict: Verdict) -> set[str]:
    return {suspect.name for finding in verdict.findings for suspect in finding.suspects}


@pytest.mark.parametrize(
    ("parts", "counted"),
    [((2, 2), ARRAYS), ((1, 9), "type.app.Frame.count"), ((20, 60), "type.torch.Tensor.count")],
    ids=["dicts", "lists", "long lists"],
)
def test_a_declared_store_explains_its_contents(parts: tuple[int, int], counted: str) -> None:
    verdict = examine(episodes(parts, counted=counted))
    assert verdict.status in ("ok", "filling")
    assert verdict.findings == ()
    undeclared = examine(episodes(parts, counted=counted, declared=False))
    assert "app.episodes" in " ".join(named(undeclared))


@pytest.mark.parametrize("counted", [ARRAYS, "type.app.Frame.count"])
def test_parts_that_grow_after_the_store_is_full_are_a_leak(counted: str) -> None:
    verdict = examine(episodes(leak=2, counted=counted, census_every=1))
    assert verdict.status in ("suspected", "confirmed")
    assert counted.removeprefix("type.").removesuffix(".count") in named(verdict)


def tokens(
    *, full: int = 8, grows: int = 0, uncounted: int = 0, generations: int = 30
) -> RunHistory:
    """Return a run with a store of documents of varying length, counted until it is full.

    ``grows``: MiB of numbers per generation that are kept elsewhere; ``uncounted``: MiB that no count covers.
    """
    rng = random.Random(4)
    length = [min(40 * (i + 1), 40 * full) for i in range(generations)]
    held = 0.0
    inside: list[float] = []
    for i in range(generations):
        held += rng.uniform(40_000, 60_000) if i < full else 0.0
        inside.append(held)
    read = (0, 3, 4, 5, 6, full)
    kept = [grows * MIB * i for i in range(generations)]
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [
            round(33 * MIB + 36 * n + more + (uncounted * i + rng.uniform(0, 4)) * MIB)
            for i, (n, more) in enumerate(zip(inside, kept, strict=True))
        ],
        "type.int.count": [
            round(9_000 + n + more / 28) if i in read else None
            for i, (n, more) in enumerate(zip(inside, kept, strict=True))
        ],
        "type.int.bytes": [
            round(28 * (9_000 + n) + more) if i in read else None
            for i, (n, more) in enumerate(zip(inside, kept, strict=True))
        ],
        "tracked.tokens.length": length,
        "tracked.tokens.bytes": [round(36 * n) for n in inside],
        "tracked.tokens.capacity": [40 * full] * generations,
    }
    return ends_history(series)


@pytest.mark.parametrize("generations", [8, 16, 30])
def test_numbers_that_grow_only_while_a_store_fills_are_its_contents(
    generations: int,
) -> None:
    assert examine(tokens(generations=generations)).findings == ()
    assert examine(tokens(grows=2)).status in ACTIVE
    # Memory that filled the store is not part of another leak.
    leak = examine(tokens(uncounted=3))
    assert leak.status in ACTIVE
    assert "int" not in named(leak)


def store(
    *length: float, capacity: float = 1_000, size: Sequence[float] = (), gained: Sequence[float] = (),
    name: str = "replay",
) -> Bounded:  # fmt: skip
    return Bounded(name, length, capacity, tuple(size), tuple(gained))


@pytest.mark.parametrize(
    ("length", "end", "filling"),
    [
        # It fills if it gained more than a thousandth of its capacity over the last three generations.
        ([0, 0, 0, 1], 4, False), ([0, 0, 0, 1.1], 4, True), ([0, 5, 5, 5, 5], 5, False), ([0, 5, 5, 5, 5], 4, True),
        # A full store no longer fills.
        ([0, 999], 2, True), ([0, 1_000], 2, False), ([0, 1_001], 2, False),
    ],
)  # fmt: skip
def test_a_store_fills_while_it_gains_items_and_has_room(
    length: list[float], end: int, filling: bool
) -> None:
    assert store(*length).is_filling(end) is filling


def test_items_beyond_the_capacity_are_counted_per_generation() -> None:
    assert store(900, 1_000, 1_003, 950, 2_000).overshoot(4) == [0, 0, 3, 0]


@pytest.mark.parametrize(
    ("length", "size", "left"),
    [
        ([0, 250], [0, 500], 1_500), ([0, 1_200], [0, 500], 0), ([0, 0.5], [0, 1], 1_999), ([0, 250], [], 0),
        ([9, 9, 250, 500], [1, 1, 500, 2_000], 2_000),
    ],
)  # fmt: skip
def test_a_store_may_gain_the_bytes_of_its_remaining_items(
    length: list[float], size: list[float], left: float
) -> None:
    assert store(*length, size=size).remaining_bytes(len(length)) == left


@pytest.mark.parametrize(
    ("length", "size", "rate"),
    [
        ([0, 50], [0, 200], 200), ([0, 50, 100], [0, 200, 800], 8 * 50),
        # Nothing while it does not fill or its size is unknown.
        ([0, 1_000], [0, 400], 0),
        # Less than one item counts as one.
        ([-5, 0.5], [0, 4], 4 * 5.5),
    ],
)  # fmt: skip
def test_bytes_per_generation_are_those_of_the_new_items(
    length: list[float], size: list[float], rate: float
) -> None:
    assert store(*length, size=size).fill_rate(len(length)) == rate


def timeline(
    private: Sequence[float] = (), *, segment: Sequence[int] | None = None,
    series: dict[str, Sequence[Value]] | None = None, generations: int | None = None,
) -> Timeline:  # fmt: skip
    columns = series or {}
    n = (
        generations
        if generations is not None
        else max(len(private), *map(len, columns.values()), 0)
    )
    fake = SimpleNamespace(
        private=list(private), segment=segment or [0] * n, end_rows=range(n), generations=tuple(range(n)),
        series=columns, readings=lambda name: list(columns[name]), has=lambda name: name in columns,
        spacing=lambda end: 1, newest_reading=lambda name, end: None,
        points=lambda name, end: (range(end), columns[name][:end]),
    )  # fmt: skip
    return cast(Timeline, fake)


def test_sizes_continue_across_a_resume() -> None:
    resumed = timeline([0] * 6, segment=[0, 0, 0, 1, 1, 2])
    # The fourth and the sixth reading start empty.
    assert _going_on(resumed, [10, 20, 30, 0, 5, 1]) == (10, 20, 30, 30, 35, 35)
    assert _going_on(timeline([0] * 3, segment=[0, 1, 1]), [10, 4, 5]) == (10, 10, 11)
    # The first known generation resumes nothing.
    assert _going_on(timeline([0] * 2, segment=[1, 1]), [10, 20]) == (10, 20)


def test_memory_not_released_after_a_fall_counts_as_kept() -> None:
    # The store gave up 30, of which memory shows 10; it may refill up to there.
    assert _with_kept([50, 20, 30, 45], [100, 90, 90, 90]) == (50, 40, 40, 45)
    assert _with_kept([50, 20], [100, 60]) == (50, 20)
    assert _with_kept([50, 20], [100, 120]) == (50, 50)
    assert _with_kept([50, 20], [100]) == (50, 20)
    # Memory shows all of the 20 given up; a fall of memory while the store gave up nothing is not its own.
    assert _with_kept([50, 40, 20], [100, 100, 0]) == (50, 50, 30)
    assert _with_kept([50, 20, 20], [100, 100, 0]) == (50, 50, 50)
    assert _with_kept([50, 60], [100, 0]) == (50, 60)
    assert _with_kept([], []) == ()


@pytest.mark.parametrize(
    ("length", "private", "each"),
    [
        # Two bytes per item, in every generation.
        ([0, 10, 20, 30], [100, 120, 140, 160], 2),
        # Memory gained three times while the store added no item belongs to something else.
        ([0, 10, 10, 10, 10, 20], [100, 125, 130, 135, 140, 165], 2),
        ([0, 10, 10, 10, 20], [100, 125, 130, 135, 160], 2.5),
        # Refilling of kept memory gives no information.
        ([0, 10], [100, 90], 0), ([5], [100], 0),
    ],
)  # fmt: skip
def test_bytes_per_item_are_measured_at_new_maxima(
    length: list[float], private: list[float], each: float
) -> None:
    assert _bytes_per_item(timeline(private), length) == each
    # The store starts empty in each attempt.
    resumed = timeline([100, 120, 100, 130], segment=[0, 0, 1, 1])
    assert _bytes_per_item(resumed, [0, 10, 0, 10]) == 2.5


def test_the_gain_of_a_store_is_subtracted_if_memory_shows_half_of_it() -> None:
    filling = store(0, 10, 20, gained=[3, 13, 23])
    assert without_bounded([100, 105, 110], [filling], 3) == [100, 95, 90]
    assert without_bounded([100, 105, 109], [filling], 3) == [100, 105, 109]
    # From its maximum on, and equally in all generations.
    emptied = store(0, 20, 5, gained=[0, 20, 20])
    assert without_bounded([100, 120, 130, 999], [emptied], 3) == [100, 100, 110]


def tracked(**columns: Sequence[Value]) -> dict[str, Sequence[Value]]:
    return {f"tracked.replay.{name}": column for name, column in columns.items()}


def test_a_capacity_is_declared_or_the_last_one_read() -> None:
    read = timeline(series=tracked(length=[1, 2], capacity=[50, 60, 70, None]))
    assert capacity_of(read, "replay", {"replay": 9}) == 9
    assert capacity_of(read, "replay", {"replay": None}) == 70
    assert capacity_of(read, "other", {}) is None
    assert tracked_names(read) == {"replay"}
    assert (
        tracked_names(timeline(series={"tracked.a.bytes": [1], "container.a.length": [1]})) == set()
    )


def found_by_reading(
    length: Sequence[Value],
    capacity: Sequence[Value],
    limit_bytes: float | None = 1_000,
    *,
    segment: Sequence[int] = (0, 0, 0),
    **others: Sequence[Value],
) -> tuple[Bounded, ...]:
    columns = {
        "container.app.ring.length": length, "container.app.ring.bytes": [10 * (n or 0) for n in length],
        "container.app.ring.capacity": capacity,
        **{name.replace("__", "."): column for name, column in others.items()},
    }  # fmt: skip
    read = timeline([100, 200, 300], series=columns, segment=segment)
    return bounded_containers(read, {"replay": 50}, limit_bytes)


def test_a_capacity_that_was_read_bounds_a_container_that_stays_below_it() -> None:
    (found,) = found_by_reading([10, 20, 30], [50, 50, 50])
    assert (found.name, found.capacity, found.declared) == ("app.ring", 50, False)
    assert (found.bytes, found.series("bytes")) == ((100, 200, 300), "container.app.ring.bytes")
    # The program does not enforce the bound.
    assert found_by_reading([10, 20, 51], [50, 50, 50]) == ()
    # More instances have more room together, without end.
    assert found_by_reading([10, 20, 30], [50, 100, 150]) == ()
    assert found_by_reading([None, None, None], [50, 50, 50]) == ()
    # The newest reading found no capacity any more.
    assert found_by_reading([10, 20, 30], [50, 50, None]) == ()
    # A resumed program may have another capacity.
    assert found_by_reading([10, 5, 15], [50, 40, 40], segment=[0, 1, 1])[0].capacity == 40
    assert found_by_reading([10, 5, 15], [50, 40, 45], segment=[0, 1, 1]) == ()


def test_a_container_is_bounded_once() -> None:
    (declared,) = found_by_reading(
        [10, 20, 30], [50, 50, 50], tracked__replay__length=[10, 20, 30],
        tracked__replay__bytes=[100, 200, 300],
    )  # fmt: skip
    assert (declared.name, declared.declared) == ("replay", True)
    # Another name of the same container comes without a size, which is not derived from memory then.
    one, other = found_by_reading(
        [10, 20, 30], [50, 50, 50], container__app__alias__length=[10, 20, 30],
        container__app__alias__capacity=[50, 50, 50],
    )  # fmt: skip
    assert (one.name, other.name) == ("app.ring", "app.alias")
    assert (sum(one.bytes), other.bytes, other.gained) == (600, (), ())
    # A container of another length may hold the same objects. Memory that was subtracted is not subtracted again.
    private = [1_000.0, 1_100.0, 1_200.0]
    chunks = replace(one, length=(1, 2, 3), capacity=5)
    assert (
        without_bounded(private, (replace(declared, gained=(100, 200, 300)), chunks), 3)
        == [1_000] * 3
    )
    assert without_bounded(private, (chunks,), 3) == [1_000] * 3


def test_a_container_that_was_read_is_the_reason_of_growth_if_memory_shows_it() -> None:
    (found,) = found_by_reading([10, 20, 30], [50, 50, 50])
    assert found.is_reason_of_growth([1_000, 1_200, 1_400], 3)
    assert not found.is_reason_of_growth([1_000, 1_200, 1_401], 3)
    assert not found.is_reason_of_growth([1_000, 1_000, 1_000], 3)
    assert replace(found, declared=True).is_reason_of_growth([1_000, 2_000, 3_000], 3)


def test_a_capacity_beyond_the_memory_limit_bounds_nothing() -> None:
    # 300 bytes now, and 20 more items of 10 bytes each.
    assert found_by_reading([10, 20, 30], [50, 50, 50], 500) != ()
    assert found_by_reading([10, 20, 30], [50, 50, 50], 499) == ()
    assert found_by_reading([10, 20, 30], [50, 50, 50], None) == ()


def test_preallocated_arrays_are_a_container_of_bytes() -> None:
    def found(
        written: Sequence[Value], unwritten: Sequence[Value], limit: float | None = 1_000
    ) -> Any:
        columns = {"arrays.written_bytes": written, "arrays.unwritten_bytes": unwritten}
        return bounded_containers(timeline([100, 200, 300], series=columns), {}, limit)

    (arrays,) = found([10, 110, 210], [490, 390, 290])
    assert (arrays.name, arrays.capacity, arrays.bytes) == (PREALLOCATED, 500, (10, 110, 210))
    assert (arrays.gained, arrays.remaining_bytes(3)) == ((10, 110, 210), 290)
    assert arrays.series("bytes") == "arrays.written_bytes"
    assert arrays.is_reason_of_growth([100, 200, 300], 3)
    # More and more such arrays are not bounded by their size.
    assert found([10, 110, 210], [490, 490, 490]) == ()
    # A full array would not fit into memory, or that is unknown.
    assert found([10, 110, 210], [490, 390, 290], 589) == ()
    assert found([10, 110, 210], [490, 390, 290], None) == ()
    assert found([None, None, None], [None, None, None]) == ()


def test_contents_on_devices_are_not_process_memory() -> None:
    columns = tracked(length=[10, 20], bytes=[100, 200], device_bytes=[40, None])
    (found,) = bounded_containers(timeline([1_000, 2_000], series=columns), {"replay": 50})
    assert (found.bytes, found.estimated, found.capacity) == ((60, 200), False, 50)
    more = tracked(length=[10], bytes=[100], device_bytes=[140])
    assert bounded_containers(timeline([1_000], series=more), {"replay": 50})[0].bytes == (0,)


def test_an_unknown_size_is_estimated_up_to_the_capacity() -> None:
    read = timeline([100, 120, 140], series=tracked(length=[0, 10, 20]))
    (found,) = bounded_containers(read, {"replay": 15})
    assert (found.bytes, found.estimated, found.each) == ((0, 20, 30), True, 2)
    (flat,) = bounded_containers(
        timeline([5, 5, 5], series=tracked(length=[0, 10, 20])), {"replay": 15}
    )
    assert (flat.bytes, flat.gained) == ((), ())


def test_without_a_capacity_or_a_reading_there_is_no_store() -> None:
    read = timeline([1, 1], series=tracked(length=[5, 6]))
    assert bounded_containers(read, {}) == ()
    assert bounded_containers(read, {"replay": 0}) == ()
    assert bounded_containers(timeline([1], series=tracked(length=[None])), {"replay": 5}) == ()


def facts(
    *stores: Bounded, each: dict[str, int] | None = None, counts: Sequence[Value] = ()
) -> Facts:
    column: dict[str, Sequence[Value]] = {"type.Item.count": counts}
    fake = SimpleNamespace(
        bounded=stores,
        bytes_each=each or {},
        series_of=lambda name, role: f"type.{name}.count",
        timeline=timeline(series=column, generations=len(stores[0].length)),
    )
    return cast(Facts, fake)


def growth(slope: float) -> CountGrowth:
    return CountGrowth("constant", slope, slope, slope, 0, 0, 0, 9, 9, slope)


@pytest.mark.parametrize(
    ("slope", "comes"),
    [
        (10, True), (80, True),
        # Nine per item are too many.
        (90, False), (4, False),
        # The tolerance is two percent.
        (20.3, True), (20.5, False), (19.7, True), (19.5, False), (15, False), (-10, False),
    ],
)  # fmt: skip
def test_up_to_eight_objects_per_item_are_excused(slope: float, comes: bool) -> None:
    filling = store(0, 10, 20, 30)

    def check(*stores: Bounded) -> bool:
        return comes_with_a_store(facts(*stores), "s", growth(slope), 4)

    assert check(filling) is comes
    # One of two stores is enough; a full store takes in nothing.
    assert check(store(5, 5, 5, 5), filling) is comes
    assert not check(replace(filling, capacity=30))
    # Containers whose capacity was only read are compared by size, too.
    assert not check(replace(filling, declared=False))


@pytest.mark.parametrize(
    ("holder", "fills"),
    [
        (None, True), ("replay[*]", True), ("app.Trainer.frames[*]", False),
        # The container may hold the results.
        ("app.Result.scores", True),
    ],
)  # fmt: skip
def test_a_type_that_is_held_elsewhere_does_not_fill_a_container(
    holder: str | None, fills: bool
) -> None:
    ring = replace(store(0, 10, 20, 30, size=[0, 1_000, 2_000, 3_000]), declared=False)
    candidate = Candidate(
        "Item", "type", "object", growth(10), NOWHERE, 1_000, False, False, holder=holder
    )
    assert fills_a_container(facts(ring), candidate, 4, rises=True) is fills


@pytest.mark.parametrize(
    ("slope", "bytes_rate", "rises", "fills"),
    [
        (10, 1_500, True, True), (10, 1_501, True, False), (20, 1_000, True, True), (15, 1_000, True, False),
        # Without a size, memory decides.
        (10, None, False, True), (10, None, True, False),
    ],
)  # fmt: skip
def test_a_type_fills_a_container_in_step_and_without_being_larger(
    slope: float, bytes_rate: float | None, rises: bool, fills: bool
) -> None:
    """The container takes in 10 items of 100 bytes per generation."""
    ring = replace(store(0, 10, 20, 30, size=[0, 1_000, 2_000, 3_000]), declared=False)
    candidate = Candidate(
        "Item", "type", "object", growth(slope), NOWHERE, bytes_rate, False, False
    )
    assert fills_a_container(facts(ring), candidate, 4, rises=rises) is fills
    assert not fills_a_container(facts(replace(ring, declared=True)), candidate, 4, rises=rises)
    # Once the container is full, a count that goes on rising is not excused.
    full = replace(ring, length=(0, 10, 20, 30, 30, 30), capacity=30)
    is_small = not rises if bytes_rate is None else bytes_rate <= 1_500
    for counts, is_excused in (
        ([0, 9, 20, 30, 30, 30], is_small),
        ([0, 10, 20, 30, 40, 50], False),
    ):
        assert (
            fills_a_container(facts(full, counts=counts), candidate, 6, rises=rises) is is_excused
        )


@pytest.mark.parametrize(
    ("length", "counts", "size", "stored"),
    [
        ([10, 20, 30], [10, 20, 30], 15, True),
        # At most half more than an item takes.
        ([10, 20, 30], [10, 20, 30], 16, False),
        # Three lengths must agree within two percent.
        ([10, 20, 20], [10, 20, 20], 10, False), ([50, 100, 200], [51, 102, 196], 10, True),
        ([50, 100, 200], [51, 102.5, 196], 10, False), ([50, 100, 200], [51, 102, 195], 10, False),
        # Beyond its capacity it holds more than declared.
        ([10, 20, 1_000], [10, 20, 1_000], 10, True), ([10, 20, 1_001], [10, 20, 1_001], 10, False),
    ],
)  # fmt: skip
def test_objects_equal_in_number_and_size_may_be_the_items_of_a_store(
    length: list[float], counts: list[Value], size: int, stored: bool
) -> None:
    sized = store(*length, size=[10 * n for n in length])
    assert is_stored(facts(sized, each={"Item": size}, counts=counts), "Item", 3) is stored
    # Without a known size neither the objects nor the store are excused.
    assert not is_stored(facts(sized, counts=counts), "Item", 3)
    assert not is_stored(facts(store(*length), each={"Item": size}, counts=counts), "Item", 3)


def test_only_a_store_beyond_its_capacity_now_overshoots() -> None:
    over = store(*(10.0 * i for i in range(8)), capacity=30)
    pruned = store(*(10.0 * i for i in range(7)), 5, capacity=30, name="pruned")
    found: list[Any] = list(overshooting(facts(over, pruned), 8))
    assert [(name, grown.slope) for name, grown in found] == [("replay", 10)]
