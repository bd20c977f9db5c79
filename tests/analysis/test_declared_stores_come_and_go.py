"""A store within its declared capacity is well however often it is cleared; one far beyond it is the leak's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import pytest
from builder import EVALUATE, MIB, Leak, Training, curve, history_of

from leakline.analysis import RunHistory, examine
from leakline.analysis.results import Verdict
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
    # Little beside it, so that the store is what matters.
    history = history_of([p - 800 * MIB for p in private], **series)
    holder = Holder(0, ITEM, "app.Collector.experience_buffer[*]", 800, EACH)
    return replace(history, holders=(holder,), capacities={"experience": capacity})


def prefixes(history: Callable[[int], RunHistory], generations: int) -> Iterator[Verdict]:
    return (examine(history(upto)) for upto in range(5, generations + 1))


@pytest.mark.parametrize("counted_every", [1, 3])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("given_back", [True, False])
@pytest.mark.parametrize(
    ("cleared_every", "capacity", "generations"), [(10, 800, 30), (20, 4_800, 50), (30, 9_600, 65)]
)
def test_a_store_that_fills_is_cleared_and_fills_again_is_never_suspected(
    cleared_every: int,
    capacity: int,
    generations: int,
    given_back: bool,
    sized: bool,
    counted_every: int,
) -> None:
    length = lengths(generations, cleared_every, capacity)
    private = memory_of(length, given_back=given_back)
    for upto, verdict in enumerate(
        prefixes(
            lambda n: run(
                length[:n], private[:n], capacity, sized=sized, counted_every=counted_every
            ),
            generations,
        ),
        5,
    ):
        assert verdict.status not in ACTIVE, f"{upto}: {verdict.summary}"


@pytest.mark.parametrize("given_back", [True, False])
def test_a_leak_beside_such_a_store_is_found_at_its_rate(given_back: bool) -> None:
    length = lengths(50, 20)
    verdict = examine(run(length, memory_of(length, given_back=given_back, leak=4.0)))
    assert verdict.status == "confirmed", verdict.summary
    rate = verdict.findings[0].growth_bytes_per_generation
    assert rate.estimate == pytest.approx(4.0 * MIB, rel=0.15)


def test_a_class_that_grows_in_step_with_a_store_is_told_once_memory_says_so() -> None:
    length = lengths(30, 100, 20_000)
    # As many objects as items, and as much memory beside the store as they take.
    private = memory_of(length, given_back=True, leak=EACH * ADDED / MIB)
    verdict = examine(run(length, private, 20_000))
    assert verdict.status == "confirmed", verdict.summary
    assert verdict.findings[0].suspects[0].name == ITEM


def test_a_store_far_beyond_its_capacity_is_named_with_what_it_holds() -> None:
    length = lengths(20, 100, 10**6)
    verdict = examine(run(length, memory_of(length, given_back=True), 800))
    assert verdict.status in ACTIVE, verdict.summary
    named = [(suspect.name, suspect.role) for suspect in verdict.findings[0].suspects]
    assert ("experience", "container") in named
    assert (ITEM, "type") in named


def test_a_store_beyond_its_capacity_is_named_where_nothing_tells_what_it_holds() -> None:
    length = lengths(20, 100, 10**6)
    history = run(length, memory_of(length, given_back=True), 800)
    (process,) = history.processes
    series = {k: v for k, v in process.series.items() if not k.startswith("type.")}
    verdict = examine(replace(history, processes=(replace(process, series=series),), holders=()))
    assert verdict.status in ACTIVE, verdict.summary
    finding = verdict.findings[0]
    assert [(s.name, s.role) for s in finding.suspects] == [("experience", "container")]
    # It is over from the third generation on; what it may hold is no leak.
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate == pytest.approx(2, abs=1)


def test_a_store_that_overshoots_and_is_pruned_accuses_nobody() -> None:
    length = [float(n) for n in (*range(0, 800, 100), *[801, 802, 803, 800] * 8)]
    verdict = examine(run(length, memory_of(length, given_back=True), 800))
    assert verdict.status not in ACTIVE, verdict.summary


def container(name: str, entries: int, size: float) -> dict[str, float]:
    return {f"container.{name}.length": entries, f"container.{name}.bytes": size}


@pytest.mark.parametrize("second", [(320, 4.0), (100, 4.0), (320, 2.0)])
def test_two_containers_that_keep_what_is_theirs_are_two_findings(
    second: tuple[int, float],
) -> None:
    entries, size = second
    both = {
        **container("app.A.log", 320, (8 - size) * MIB),
        **container("app.B.trace", entries, size * MIB),
    }
    verdict = examine(Training(leaks=(Leak(EVALUATE, 8 * MIB, both),)).history())
    told = {
        f.suspects[0].name: f.growth_bytes_per_generation.estimate
        for f in verdict.findings
        if f.status in ACTIVE
    }
    assert told == {
        "app.A.log": pytest.approx((8 - size) * MIB, rel=0.1),
        "app.B.trace": pytest.approx(size * MIB, rel=0.1),
    }


@pytest.mark.parametrize("size", [4.0, 0.02])
def test_a_second_list_of_the_same_things_is_named_in_the_one_finding(size: float) -> None:
    both = {
        **container("app.A.log", 320, 4 * MIB),
        **container("app.A.index", 320, size * MIB),
    }
    verdict = examine(Training(leaks=(Leak(EVALUATE, 4 * MIB, both),)).history())
    (finding,) = [f for f in verdict.findings if f.status in ACTIVE]
    assert {s.name for s in finding.suspects} == {"app.A.log", "app.A.index"}


def imported(length: list[float], private: list[float]) -> RunHistory:
    """As a log tells it: memory and the fill of a buffer, and nothing of types."""
    history = history_of(private, tracked__experience__length=[*length])
    return replace(history, capacities={"experience": CAPACITY})


def filling(generations: int, full_from: int) -> list[float]:
    return [float(min(CAPACITY, (g + 1) * CAPACITY / full_from)) for g in range(generations)]


@pytest.mark.parametrize("full_from", [3, 5])
def test_what_grows_on_at_the_same_pace_once_a_store_is_full_was_never_the_stores(
    full_from: int,
) -> None:
    """Report 000: memory rises by half a gigabyte an episode while the buffer fills, and no less when it is full."""
    length, private = filling(16, full_from), curve(lambda g: 500 * g, 16, noise=5.0)
    verdict = examine(imported(length, private))
    assert verdict.status in ACTIVE, verdict.summary
    grows = verdict.findings[0].growth_bytes_per_generation.estimate
    assert grows == pytest.approx(500 * MIB, rel=0.1)
    early = examine(imported(length[:8], private[:8]))
    assert early.status != "ok", early.summary


def test_a_store_that_fills_and_then_stands_still_is_all_of_the_growth() -> None:
    length = filling(20, 6)
    private = curve(lambda g: 0.5 * length[g], 20, noise=5.0)
    verdict = examine(imported(length, private))
    assert verdict.status not in ACTIVE, verdict.summary
