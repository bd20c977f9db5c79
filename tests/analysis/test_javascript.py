"""Trainings with TensorFlow.js in a page and in Node: tensors, other memory of V8, and when V8 collects."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from leakline.analysis import RunHistory, compare, examine, history_from_batches
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.memory.uncollected_memory import (
    YOUNG,
    _Collector,
    _kept_and_native,
    _known_until,
    _lowered,
    final_until,
    is_known,
    outside_tensors,
)
from leakline.analysis.results import Finding
from leakline.analysis.run_history import Value, is_javascript, is_page
from leakline.analysis.timeline import Timeline
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

MIB = 2**20
# As in report 003: 156.3 MB in 4,038 tensors, and 12.4 MB in 87.
EACH = 38_700
KEPT, NORMAL, BASE = 158, 87, 12 * MIB
ROLLOUT, TRAIN = "rollout", "train"


def made(
    generations: int = 25,
    keeps: Callable[[int], float] = lambda generation: 0,
    *,
    grows_bytes: float = 0.0,
    heap: Callable[[int], float] | None = None,
    resident: Callable[[int], float] = lambda generation: 0,
    node: bool = False,
    seed: int = 1,
    run: str = "js",
) -> RunHistory:
    """Return a run with two phases per generation; ``keeps``: tensors that training keeps in a generation."""
    chance, snapshots, held = random.Random(seed), list[Snapshot](), 0.0

    def take(kind: str, generation: int | None, phase: str | None) -> None:
        size = BASE + held * EACH + grows_bytes * max(0, generation or 0)
        samples: dict[str, int | float] = {
            "tfjs.tensors": round(NORMAL + held), "tfjs.buffers": round(NORMAL + held), "tfjs.bytes": round(size),
            "js.frames_per_second": 60.0,
        }  # fmt: skip
        if heap is not None:
            samples["js.heap_bytes"] = round(heap(generation or 0))
        if node:
            samples["process.rss_bytes"] = round(
                150 * MIB + size + resident(generation or 0) + chance.uniform(0, 3 * MIB)
            )
        at = float(len(snapshots))
        snapshots.append(
            Snapshot(len(snapshots), 1e9 + at, at, generation, phase, "", kind, samples)
        )

    take("baseline", None, None)
    for generation in range(generations):
        take("phase_end", generation, ROLLOUT)
        held += keeps(generation)
        take("phase_end", generation, TRAIN)
        take("generation_end", generation, None)
    header = RunHeader(run, "p", run, "generation", None, 1e9)
    return history_from_batches(header, [Batch(ProcessIdentity("i"), tuple(snapshots))])


def leaking(**more: object) -> RunHistory:
    return made(keeps=lambda generation: KEPT, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "statuses"),
    [
        (made(), ("ok",)), (made(node=True), ("ok",)),
        # Optimizers create their moments in the first step.
        (made(keeps=lambda generation: 40 if generation == 0 else 0), ("ok",)),
        (made(40, keeps=lambda generation: (60, -60)[generation % 2]), ("ok", "watch")),
    ],
    ids=["flat in a page", "flat in Node", "built up at the start", "up and down"],
)  # fmt: skip
def test_a_count_that_stops_rising_is_not_a_leak(
    history: RunHistory, statuses: tuple[str, ...]
) -> None:
    verdict = examine(history)
    assert verdict.status in statuses, verdict.summary
    assert verdict.status == "watch" or not verdict.findings


@pytest.mark.parametrize("node", [False, True], ids=["page", "node"])
def test_kept_tensors_are_confirmed_with_phase_count_and_bytes(
    node: bool,
) -> None:
    verdict = examine(leaking(node=node))
    (finding,) = verdict.findings
    assert (verdict.status, finding.status, finding.kind) == ("confirmed", "confirmed", "tensors")
    assert (finding.phase, finding.suspects[0].name) == (TRAIN, "tf.Tensor")
    assert finding.suspects[0].count_per_generation == pytest.approx(KEPT)
    rate = finding.growth_bytes_per_generation
    assert rate.estimate == pytest.approx(KEPT * EACH, rel=0.05)
    assert rate.low <= KEPT * EACH <= rate.high
    assert finding.started_at_generation is not None
    assert round(finding.started_at_generation.estimate) in (0, 1)
    assert verdict.summary.startswith("train keeps 158 Tensor per generation: 5.8")


def test_a_leaking_page_is_suspected_within_eight_generations() -> None:
    early = made(8, keeps=lambda generation: KEPT)
    assert examine(early).status in ("suspected", "confirmed")


def test_the_advice_is_specific_to_tensorflow_js() -> None:
    (finding,) = examine(leaking()).findings
    advice = " ".join(finding.advice)
    assert "tf.tidy()" in advice
    assert "gradients" in advice
    assert not any(word in advice for word in ("detach", "item()", "Python", "collections."))
    assert not any("Python" in line for line in finding.evidence)


def test_growing_tensors_of_constant_number_are_found_in_a_page() -> None:
    verdict = examine(made(32, grows_bytes=1.0 * MIB))
    (finding,) = verdict.findings
    assert (finding.kind, finding.status) == ("tensors", "confirmed")
    assert "ever larger tensors" in verdict.summary
    assert any("grow larger" in line for line in finding.evidence)


def test_a_growing_heap_with_constant_tensors_is_its_own_finding() -> None:
    wave = random.Random(3)
    grows = made(40, heap=lambda g: (40 + 1.5 * g + wave.uniform(0, 6)) * MIB)
    verdict = examine(grows)
    (finding,) = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert finding.kind == "objects"
    assert "memory outside its tensors" in verdict.summary
    level = made(40, heap=lambda g: (40 + 10 * math.sin(g) + wave.uniform(0, 6)) * MIB)
    assert examine(level).status == "ok"


def test_possibly_freed_bytes_are_called_an_upper_bound() -> None:
    # With the CPU backend the count rises and resident memory does not.
    history = leaking(node=True, resident=lambda g: -(g + 1) * KEPT * EACH)
    (finding,) = examine(history).findings
    assert finding.status == "confirmed"
    assert not any("upper bound" in line for line in finding.evidence)
    unreliable = replace(history, environment={"tfjs_memory_unreliable": True})
    (finding,) = examine(unreliable).findings
    assert any("upper bound" in line for line in finding.evidence)


@pytest.mark.parametrize("unreliable", [True, False])
def test_temporarily_unreliable_bytes_are_marked(unreliable: bool) -> None:
    history = leaking(node=True, resident=lambda g: -(g + 1) * KEPT * EACH)
    # An event that bytes are reliable again implies that they were not before, whatever the header said.
    data = {"tfjs_memory_unreliable": unreliable}
    changed = Event(10, 1e9 + 10, "mark", "tfjs bytes", generation=3, data=data)
    (finding,) = examine(replace(history, events=(*history.events, changed))).findings
    (line,) = [line for line in finding.evidence if "upper bound" in line]
    assert line.startswith("For part of this run, ")
    nothing = replace(changed, data={"tfjs_memory_unreliable": "yes"})
    (finding,) = examine(replace(history, events=(*history.events, nothing))).findings
    assert not any("upper bound" in line for line in finding.evidence)


@pytest.mark.parametrize("node", [False, True], ids=["page", "node"])
def test_the_fix_is_reported_with_its_percentage(node: bool) -> None:
    compared = compare(leaking(node=node, run="before"), made(node=node, run="after"))
    assert compared.outcome == "fixed", compared.summary
    (row,) = [row for row in compared.by_type if row.type == "tf.Tensor"]
    assert (row.before_last, row.after_last) == (NORMAL + 25 * KEPT, NORMAL)
    assert [f.kind for f in compared.findings.gone] == ["tensors"]
    train = next(row for row in compared.by_phase if row.phase == TRAIN)
    assert train.before is not None and train.after is not None
    assert train.before.estimate == pytest.approx(KEPT * EACH, rel=0.05)
    assert train.after.estimate == 0
    # Report 003 gives 92 % of its tensors; a process has other memory as well.
    less = compared.peak_bytes.change_percent
    assert less == pytest.approx(-47 if node else -92.4, abs=1 if node else 0.1)


def test_a_cleanup_that_frees_no_tensors_raises_the_priority() -> None:
    history = leaking()
    ran = tuple(
        Event(
            3 * g + 3, 1e9 + 3 * g, "cleanup", "dispose", g, None,
            {"before_bytes": 10, "after_bytes": 10, "freed_bytes": 0, "because": "above",
             "counts": {"tf.Tensor": [600, 600]}},
        )
        for g in (10, 15, 20)
    )  # fmt: skip
    helped = tuple(
        replace(e, data={**e.data, "counts": {"tf.Tensor": [600, 80]}, "freed_bytes": MIB})
        for e in ran
    )
    (plain,) = examine(history).findings
    (deeper,) = examine(replace(history, events=ran)).findings
    assert deeper.priority != plain.priority
    assert any("does not affect the memory that is growing" in line for line in deeper.evidence)
    (reached,) = examine(replace(history, events=helped)).findings
    assert reached.priority == plain.priority


RECORDED: Final = Path(__file__).resolve().parents[1] / "data" / "node"
# Only tensors of four bytes are kept: one network update per generation; seven, whose garbage V8 collects once in 25
# generations, or last when much of it is young; and seven under CPU load.
HEALTHY: Final = (
    "small_steps_healthy",
    "norms_rarely_collected",
    "norms_with_high_floors",
    "fixed_under_load",
)
# Per generation one program keeps Buffers of 1 MiB in total, and one plain objects of 2 MiB.
LEAKING: Final = {"keeps_buffers": 1 * MIB, "keeps_objects": 2 * MIB}
Rows = list[dict[str, Any]]


def recorded(name: str) -> Rows:
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


def history_of_rows(rows: Rows, run: str = "node") -> RunHistory:
    snapshots = []
    for i, row in enumerate(rows):
        samples = {k: v for k, v in row.items() if "." in k and v is not None}
        place = row["generation"], row["phase"]
        snapshots.append(Snapshot(i, 1e9 + i, float(i), *place, "", row["kind"], samples))
    header = RunHeader(run, "p", run, "generation", None, 1e9)
    return history_from_batches(header, [Batch(ProcessIdentity("i"), tuple(snapshots))])


def up_to_each_reading(rows: Rows) -> list[Rows]:
    return [rows[: i + 1] for i, row in enumerate(rows) if row["generation"] is not None]


def objects_of(rows: Rows, kept: Kept | None = None) -> Finding | None:
    """Return the finding next to the tensors; ``kept``: the cache of an analysis of fewer rows."""
    found = [f for f in examine(history_of_rows(rows), kept).findings if f.kind == "objects"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("name", HEALTHY)
def test_uncollected_garbage_of_v8_is_never_suspected(
    name: str,
) -> None:
    kept = Kept()
    for rows in up_to_each_reading(recorded(name))[::6]:
        found = objects_of(rows, kept)
        assert found is None or found.status in ("ok", "watch"), (rows[-1], found.evidence)
    assert examine(history_of_rows(recorded(name))).status == "ok"
    assert objects_of(recorded(name)) is None


@pytest.mark.parametrize("name", LEAKING)
def test_kept_objects_are_confirmed_even_if_resident_memory_is_flat(
    name: str,
) -> None:
    verdict = examine(history_of_rows(recorded(name)))
    (finding,) = [f for f in verdict.findings if f.status != "ok"]
    assert (finding.status, finding.kind, finding.phase) == ("confirmed", "objects", "train")
    assert "memory outside its tensors" in verdict.summary
    assert any("V8 keeps after a collection" in line for line in finding.evidence)
    rate = finding.growth_bytes_per_generation
    assert rate.estimate == pytest.approx(LEAKING[name], rel=0.2)


def test_growth_is_not_reported_before_enough_v8_collections() -> None:
    rows = recorded("keeps_objects")
    early = [row for row in rows if (row["generation"] or 0) < 15]
    found = objects_of(early)
    assert found is None or found.status == "watch"


def test_native_memory_is_found_if_v8_keeps_nothing_more() -> None:
    """V8 does not know these bytes; only resident memory shows them."""
    rows = recorded("fixed_under_load")
    for row in rows:
        row["process.rss_bytes"] += 8 * MIB * (row["generation"] or 0)
    found = objects_of(rows)
    assert found is not None
    assert found.status in ("suspected", "confirmed")
    assert any(
        "Resident memory grows even if tensors are subtracted" in line for line in found.evidence
    )
    assert found.growth_bytes_per_generation.estimate == pytest.approx(8 * MIB, rel=0.15)


@pytest.mark.parametrize("name", ["norms_rarely_collected", "keeps_objects"])
def test_the_cache_of_an_earlier_analysis_does_not_change_the_verdict(name: str) -> None:
    kept = Kept()
    for rows in up_to_each_reading(recorded(name))[::9]:
        history = history_of_rows(rows)
        assert examine(history, kept) == examine(history)


HEAP, OUTSIDE = "js.heap_bytes", "js.external_bytes"
RESIDENT, TENSORS = "process.rss_bytes", "tfjs.bytes"
N = None


@pytest.mark.parametrize(
    ("kept", "lowered"),
    [
        ([5, 4, 3, 9], [3, 3, 3, 9]),
        # At most two collections later.
        ([5, 6, 7, 1], [5, 1, 1, 1]),
        ([N, 5, N, 4, N], [N, 4, N, 4, N]),
        ([], []),
    ],
)
def test_kept_memory_is_at_most_what_the_next_two_collections_find(
    kept: list[Value], lowered: list[Value]
) -> None:
    assert _lowered(kept) == lowered


@pytest.mark.parametrize(
    ("kept", "end"),
    [
        ([1, 1, 1, 1], 3), ([1, N, 1, 1, N, 1, N], 4), ([1, 1, 1], 0),
        # Three are enough if each exceeds the previous one by more than the young objects.
        ([0, YOUNG + 1, 2 * YOUNG + 2], 2), ([0, YOUNG, 2 * YOUNG + 1], 0), ([0, YOUNG + 1, 2 * YOUNG + 1], 0),
        ([0, N, YOUNG + 1], 0), ([], 0),
    ],
)  # fmt: skip
def test_four_floors_or_three_clear_ones_are_a_trend(kept: list[Value], end: int) -> None:
    assert _known_until(kept) == end


def collector(heap: Sequence[float], outside: Sequence[float]) -> _Collector:
    both = [h + o for h, o in zip(heap, outside, strict=True)]
    return _Collector(heap, outside, both)


def after_each(heap: Sequence[float], outside: Sequence[float]) -> list[Value]:
    """Return one value per generation, with one reading before the first."""
    seen = collector(heap, outside)
    return [seen.after(end, end) for end in range(1, len(heap))]


@pytest.mark.parametrize(("fall", "collected"), [(YOUNG, False), (YOUNG + 1, True)])
def test_a_fall_beyond_the_young_objects_is_a_collection(fall: int, collected: bool) -> None:
    heap = [100 * MIB, 100 * MIB, 100 * MIB - fall]
    assert after_each(heap, [0, 0, 0]) == [None, heap[2] if collected else None]


@pytest.mark.parametrize(
    ("outside", "collected"),
    [
        # Half a MiB lower, and below the extrapolation of earlier generations.
        ([0, 10 * MIB, 9.5 * MIB], True),
        ([0, 10 * MIB, 9.5 * MIB + 1], False),
        # After a high reading it returns to its line of 4 MiB per generation.
        ([0, 10 * MIB, 14 * MIB, 18 * MIB, 34 * MIB, 22 * MIB], False),
        ([0, 10 * MIB, 14 * MIB, 18 * MIB, 34 * MIB, 21.9 * MIB], True),
        # Three generations are considered; the line of an older one may be lower.
        ([0, 2 * MIB, 14 * MIB, 15 * MIB, 16 * MIB, 13 * MIB], True),
        ([0, 8 * MIB, 14 * MIB, 12 * MIB], True),
    ],
)
def test_buffers_below_their_extrapolation_were_collected(
    outside: list[float], collected: bool
) -> None:
    assert (after_each([MIB] * len(outside), outside)[-1] is not None) is collected


def test_the_lowest_reading_of_a_collection_is_kept() -> None:
    heap = [100 * MIB, 100 * MIB, 50 * MIB, 40 * MIB, 60 * MIB, 100 * MIB]
    seen = collector(heap, [0.0] * 6)
    assert seen.after(1, 1) is None
    assert seen.after(2, 4) == 40 * MIB
    assert (seen.kept, seen.heap_kept) == (40 * MIB, 40 * MIB)


@pytest.mark.parametrize(
    ("end", "more"),
    [
        # Up to three times the live heap and 64 MiB may be uncollected.
        (3 * 10 * MIB + 64 * MIB + 10 * MIB, None),
        (3 * 10 * MIB + 64 * MIB + 10 * MIB + 1, 10 * MIB + 1),
    ],
)
def test_memory_beyond_v8s_garbage_limit_is_kept(end: int, more: Value) -> None:
    assert after_each([10 * MIB, end], [0, 0]) == [more]


def timeline(
    heap: Sequence[Value], *, tensors: int = 0, resident: int = 1_000 * MIB, segment: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> Timeline:  # fmt: skip
    n = len(heap)
    rows = tuple(range(n))
    return Timeline(
        "rank 0 main", "p", kinds or ["generation_end"] * n, [None] * n, [60.0 * i for i in range(n)], rows,
        {HEAP: heap, OUTSIDE: [0] * n, RESIDENT: [resident] * n, TENSORS: [tensors] * n},
        segment or [0] * n, rows, rows, None, {i: i for i in range(n)},
    )  # fmt: skip


def test_native_memory_is_above_the_maximum_of_v8() -> None:
    heap = [100 * MIB, 80 * MIB, 120 * MIB, 90 * MIB]
    kept, native = _kept_and_native(timeline([h + MIB for h in heap], tensors=MIB))
    highest = [100, 100, 120, 120]
    assert native == [(1_000 - 1 - top) * MIB for top in highest]
    # It fell by more than the young objects in the second and fourth generation.
    assert kept == [None, 80 * MIB, None, 90 * MIB]


def test_collections_are_tracked_per_attempt() -> None:
    heap = [100 * MIB, 100 * MIB, 20 * MIB, 20 * MIB]
    assert _kept_and_native(timeline(heap))[0] == [None, None, 20 * MIB, None]
    resumed = _kept_and_native(timeline(heap, segment=[0, 0, 1, 1]))
    assert resumed[0] == [None] * 4


def test_an_unfinished_generation_is_unknown() -> None:
    heap = [100 * MIB, 100 * MIB, 20 * MIB]
    kinds = ["generation_end", "generation_end", "phase_end"]
    assert _kept_and_native(timeline(heap, kinds=kinds))[0] == [None] * 3
    # The collection of an earlier generation has been seen.
    kinds = ["generation_end", "generation_end", "phase_end", "generation_end"]
    assert _kept_and_native(timeline([*heap, 20 * MIB], kinds=kinds))[0][2] == 20 * MIB


def teeth(floors: Sequence[float]) -> list[Value]:
    """Return values with a collection every second generation, down to these floors in MiB."""
    return [value * MIB for floor in floors for value in (floor + 50, floor)]


def test_nothing_is_known_after_the_last_floor_but_one() -> None:
    outside = outside_tensors(timeline(teeth([10, 20, 30, 40, 50])))
    # Floors at 1, 3, 5, 7 and 9; the one at 7 is the last but one.
    assert (outside.known_until, outside.longest_gap) == (8, 2)
    assert [value / MIB for value in outside.kept] == [10, 10, 15, 20, 25, 30, 35, 40, 40, 40]
    assert final_until(timeline(teeth([10, 20, 30, 40, 50])), 10) == 6
    assert final_until(timeline(teeth([10, 20, 30, 40, 50])), 8) == 4
    assert final_until(timeline(teeth([10, 20])), 4) == 0


def test_with_few_floors_only_the_first_is_known() -> None:
    few = outside_tensors(timeline(teeth([10, 20])))
    assert ([value / MIB for value in few.kept], few.known_until) == ([10] * 4, 0)
    assert outside_tensors(timeline([MIB] * 3)).kept == (0.0, 0.0, 0.0)


def test_a_page_has_no_process_memory() -> None:
    page, node = {TENSORS: [1]}, {TENSORS: [1], RESIDENT: [1]}
    assert [is_javascript(series) for series in (page, node, {RESIDENT: [1]})] == [
        True,
        True,
        False,
    ]
    assert [is_page(series) for series in (page, node, {})] == [True, False, False]
    assert is_known(timeline([1]))
    without = SimpleNamespace(has=lambda name: name != OUTSIDE)
    assert not is_known(cast(Timeline, without))
