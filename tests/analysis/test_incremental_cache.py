"""The incremental cache between examinations saves work and never changes an answer."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.detection.generators import FAMILIES, PUBLIC, Draw, drawn
from benchmarks.detection.histories import Recording
from builder import (
    EVALUATE,
    MIB,
    Training,
    best_agents,
    curve,
    figures,
    history_of,
    kept_environments,
    loss_graph,
    old_population,
)

from leakline.analysis import RunHistory, assessment, examine, history_from_batches
from leakline.analysis.assessment import moment_of
from leakline.analysis.forecast.forecast_score import grid
from leakline.analysis.forecast.memory_outlook import outlook_of
from leakline.analysis.generation_axis import in_its_unit
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.run_history import ProcessHistory
from leakline.analysis.status import moments_of, walk
from leakline.analysis.timeline import timelines_of
from leakline.analysis.timeline_analysis import TimelineAnalysis
from leakline.snapshot import Event


def begun(process: ProcessHistory, rows: int) -> ProcessHistory:
    columns = {
        name: getattr(process, name)[:rows]
        for name in ("sequence", "time", "monotonic", "generation", "phase", "label", "kind")
    }
    series = {name: column[:rows] for name, column in process.series.items()}
    return replace(
        process,
        **columns,
        series={n: c for n, c in series.items() if any(v is not None for v in c)},
    )


def growing(history: RunHistory, rng: random.Random, most: int) -> Iterator[RunHistory]:
    """Yield the run in steps of up to ``most`` snapshots, also within generations, and finally in full."""
    end, rows = 0, sum(map(len, history.processes))
    while end < rows:
        end = min(rows, end + rng.randint(1, most))
        left, shown = end, []
        for process in history.processes:
            if left > 0:
                shown.append(begun(process, min(left, len(process))))
                left -= len(process)
        yield replace(history, processes=tuple(shown))


def moments(history: RunHistory, kept: Kept) -> list[object]:
    """Return the assessments of each process at all moments that a verdict uses."""
    studies = [TimelineAnalysis(history, timeline) for timeline in timelines_of(history)]
    for study in studies:
        kept.give(study)
    found: list[object] = []
    for study in studies:
        found += [moment_of(study, end) for end in moments_of(len(study.timeline))]
        found += [
            outlook_of(study, end) for end, _ in grid(len(study.timeline)) if study.timeline.private
        ]
    kept.take(studies)
    return found


def assert_the_same(
    histories: Iterator[RunHistory], forget: Callable[[], bool] = lambda: False
) -> None:
    kept, of_moments = Kept(), Kept()
    for history in histories:
        if forget():
            kept, of_moments = Kept(), Kept()
        assert examine(history, kept) == examine(history)
        assert moments(history, of_moments) == moments(history, Kept())


# Every sixth family in the normal test run, all of them in the long one.
FAMILY = [
    pytest.param(family, marks=[] if i % 6 == 0 else pytest.mark.long)
    for i, family in enumerate(FAMILIES)
]


@pytest.mark.parametrize("family", FAMILY)
def test_incremental_and_full_analyses_agree_for_every_family(family: str) -> None:
    case = drawn(Draw(PUBLIC, family, 3))
    history = Recording(case, witness=True).until(min(len(case), 50))
    assert_the_same(growing(history, random.Random(family), most=30))


PLANTED = (kept_environments, loss_graph, old_population, best_agents, figures)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_reordered_and_repeated_batches_give_the_same_verdicts(
    seed: int,
) -> None:
    rng = random.Random(seed)
    leaks = tuple(plant() for plant in rng.sample(PLANTED, k=rng.randint(0, 2)))
    first = Training(
        leaks=leaks, generations=26, expectations=(("agents.DDPGAgent", 17, 17, None),), seed=seed
    )
    second = Training(generations=14, instance="p2", rank=1, seed=seed + 50)
    batches = [*first.batches(), *second.batches()]
    # Six arrive up to four positions late, and five arrive twice.
    late = set(rng.sample(range(len(batches)), k=6))
    order = sorted(range(len(batches)), key=lambda i: i + (rng.randint(1, 4) + 0.5) * (i in late))
    order += rng.sample(order, k=5)

    def arriving() -> Iterator[RunHistory]:
        arrived = []
        for i in order:
            arrived.append(batches[i])
            yield history_from_batches(first.header(), arrived)

    assert_the_same(arriving(), forget=lambda: rng.random() < 0.1)


def test_a_resume_that_repeats_generations_replaces_their_cache() -> None:
    first = Training(leaks=(kept_environments(),), generations=18)
    again = replace(first, generations=16, instance="p2", attempt=2, first_generation=12, seed=4)
    batches = [*first.batches(), *again.batches()]
    assert_the_same(
        history_from_batches(first.header(), batches[: n + 1]) for n in range(1, len(batches), 3)
    )


def attempt(start: float, wanted: range, growth: float) -> list[tuple[Any, ...]]:
    """Return (time, generation, phase, kind, bytes) of two phases per generation and its end; 12 has no end."""
    found: list[tuple[Any, ...]] = [(None, None, "baseline", 300 * MIB + growth)]
    level = found[0][-1]
    for generation in wanted:
        for phase, more in (("a", 3 * MIB), ("b", MIB)):
            level += more
            found.append((generation, phase, "phase_end", level))
        if generation != 12:
            found.append((generation, None, "generation_end", level))
    return [(start + i, *row) for i, row in enumerate(found)]


def process_of(name: str, number: int, rows: Sequence[tuple[Any, ...]]) -> ProcessHistory:
    time, generation, phase, kind, level = (list(column) for column in zip(*rows, strict=True))
    sequence = [round(each) for each in time]
    return ProcessHistory(
        name, 0, "main", number, sequence, time, time, generation, phase, [""] * len(rows), kind,
        {"process.anon_bytes": level},
    )  # fmt: skip


@pytest.mark.parametrize("generations", [5, 9, 20])
def test_late_rows_may_replace_those_of_an_earlier_attempt(generations: int) -> None:
    """The number of rows and the position of each end stay the same; only rows in between differ."""
    first = attempt(0.0, range(13), 0.0)
    second = attempt(1000.0, range(12, 12 + generations), 400 * MIB)
    early = [row for row in second if row[1] != 12]

    def history(later: Sequence[tuple[Any, ...]]) -> RunHistory:
        processes = (process_of("p1", 1, first), process_of("p2", 2, later))
        return RunHistory("r", phases=("a", "b"), processes=processes)

    kept = Kept()
    moments(history(early), kept)
    assert moments(history(second), kept) == moments(history(second), Kept())


@pytest.mark.long
def test_rarely_read_children_and_programs_without_generations() -> None:
    rng, n = random.Random(8), 60
    children = [None if i % 7 else 200 * MIB + 4 * MIB * i for i in range(n)]
    gone = [value if i < 20 else None for i, value in enumerate(children)]
    for column in (children, gone):
        history = history_of(curve(lambda i: 0.0, n), children__pss_bytes=column)
        assert_the_same(growing(history, rng, most=3))
    minutes = history_of(curve(lambda i: 3.0 * (i > 20) * i, n))
    process = minutes.processes[0]
    changed = replace(
        process, generation=[None] * n, kind=["sample"] * n, monotonic=[20.0 * i for i in range(n)]
    )
    assert_the_same(growing(replace(minutes, processes=(changed,)), rng, most=4))


def counted_by_seconds(minutes: int) -> RunHistory:
    """Return two growing processes, read each second for ten minutes and each minute afterwards."""
    at = [float(second) for second in (*range(600), *range(600, 60 * minutes, 60))]
    n = len(at)
    rng = random.Random(minutes)
    processes = tuple(
        ProcessHistory(
            f"p{rank}", rank, "main", 1, range(n), at, at, [None] * n, [None] * n, [""] * n, ["sample"] * n,
            {
                "process.anon_bytes": [
                    300 * MIB + round(t * (rank + 1) * MIB + rng.uniform(0, 9 * MIB)) for t in at
                ],
                "type.app.Env.count": [int(t) for t in at],
            },
        )
        for rank in range(2)
    )  # fmt: skip
    return in_its_unit(RunHistory("r", unit="second", processes=processes))


def until(history: RunHistory, seconds: float) -> RunHistory:
    shown = (begun(p, sum(t <= seconds for t in p.monotonic)) for p in history.processes)
    return in_its_unit(
        replace(history, unit="second", began_by_seconds=False, processes=tuple(shown))
    )


def test_minutes_after_seconds_have_the_same_verdict() -> None:
    whole = counted_by_seconds(13)
    kept = Kept()
    for minute in (9, 12):
        history = until(whole, 60.0 * minute)
        assert history.unit == ("second" if minute < 10 else "minute")
        assert examine(history, kept) == examine(history)


def test_the_first_seconds_are_assessed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = counted_by_seconds(22)
    assessed: list[int] = []
    real = assessment.assess

    def count(study: TimelineAnalysis, end: int) -> object:
        assessed.append(end)
        return real(study, end)

    monkeypatch.setattr(assessment, "assess", count)
    kept = Kept()
    examine(until(whole, 1200.0), kept)
    assert sum(end > 60 for end in assessed) > 40
    assessed.clear()
    examine(until(whole, 1260.0), kept)
    assert sum(end > 60 for end in assessed) <= 2 * len(whole.processes)


def test_an_unfinished_minute_is_not_cached() -> None:
    """Children are read by only some snapshots of a minute, whose last value counts."""
    n = 120
    children: list[float | None] = [200.0 * MIB if i < 30 else None for i in range(n)]
    children[90] = 2_200.0 * MIB
    history = history_of(curve(lambda i: 0.0, n), children__pss_bytes=children)
    process = replace(
        history.processes[0], generation=[None] * n, kind=["sample"] * n,
        monotonic=[20.0 * i for i in range(n)],
    )  # fmt: skip
    whole = replace(history, processes=(process,))
    assert_the_same(
        replace(whole, processes=(begun(process, rows),)) for rows in range(85, n + 1, 5)
    )


def test_a_reading_long_after_the_others_changes_no_earlier_moment() -> None:
    n = 64
    children = [9 * MIB * (i + 1) if i < 7 or i == 50 else None for i in range(n)]
    history = history_of(curve(lambda i: 5.0 * i, n), children__uss_bytes=children)
    assert_the_same(growing(history, random.Random(5), most=16))


def test_phases_that_run_after_the_end_of_a_generation() -> None:
    """Like ``with run.generation(n):`` followed by a checkpoint; results are still cached."""
    history = Training(leaks=(kept_environments(),), generations=24).history()
    process = history.processes[0]
    order = [row for i in range(1, len(process), 5) for row in (*range(i, i + 5), i)]
    columns = {
        name: [getattr(process, name)[row] for row in order]
        for name in ("generation", "phase", "label", "kind")
    }
    again = [i % 6 == 5 for i in range(len(order))]
    columns["phase"] = [
        "checkpoint" if a else p for a, p in zip(again, columns["phase"], strict=True)
    ]
    columns["kind"] = ["phase_end" if a else k for a, k in zip(again, columns["kind"], strict=True)]
    times = [float(i) for i in range(len(order))]
    series = {name: [column[row] for row in order] for name, column in process.series.items()}
    changed = replace(
        process, **columns, sequence=range(len(order)), time=times, monotonic=times, series=series
    )
    whole = replace(history, processes=(changed,))
    assert_the_same(growing(whole, random.Random(5), most=24))
    kept = Kept()
    for rows in range(60, 110, 7):
        shown = replace(whole, processes=(begun(changed, rows),))
        (timeline,) = timelines_of(shown)
        study = TimelineAnalysis(shown, timeline)
        kept.give(study)
        assert rows == 60 or timeline.known.once(8, "growths", lambda: None) is not None
        walk(study)
        kept.take([study])


@pytest.mark.long
def test_a_series_may_replace_another() -> None:
    """`figures.open` replaces the class of the same name once it exists."""
    training = Training(leaks=(figures(),), generations=40, noise=0.1 * MIB, warm_up=())
    history = training.history()
    process = history.processes[0]
    counts = process.series["figures.open"]
    late = {
        **process.series,
        "figures.open": [None if i < 150 else v for i, v in enumerate(counts)],
    }
    whole = replace(history, processes=(replace(process, series=late),))
    assert_the_same(growing(whole, random.Random(1), most=6))


@pytest.mark.long
def test_a_series_may_change_where_it_is_read() -> None:
    history = Training(leaks=(kept_environments(),), generations=44).history()
    process, name = history.processes[0], "type.trading.TradingEnvironment.count"
    column = [
        v if i > 75 or process.phase[i] == EVALUATE else None
        for i, v in enumerate(process.series[name])
    ]
    changed = replace(process, series={**process.series, name: column})
    assert_the_same(growing(replace(history, processes=(changed,)), random.Random(2), most=8))


def test_garbage_that_accumulates() -> None:
    n = 60
    looks = [None if i % 3 else 5_000 + 900 * i for i in range(n)]
    history = history_of(
        curve(lambda i: 6.0 * i, n), python__garbage_objects=looks,
        python__garbage_bytes=[None if v is None else 6_000 * v for v in looks],
        python__garbage_is_whole=[1] * n, python__collector_enabled=[0] * n,
    )  # fmt: skip
    assert_the_same(growing(history, random.Random(4), most=16))


def test_a_process_may_replace_another() -> None:
    """Two processes of one rank, with exactly equal clocks."""
    flat = history_of(curve(lambda i: 0.0, 40)).processes[0]
    rising = history_of(curve(lambda i: 20.0 * max(0, i - 5), 40)).processes[0]
    first = replace(rising, instance="b")
    both = (replace(flat, instance="a"), first)
    history = RunHistory("r", processes=(first,))
    assert_the_same(iter([history, replace(history, processes=both)]))


def test_later_declarations_apply_to_all_moments() -> None:
    training = Training(leaks=(kept_environments(),), generations=24)
    history = training.history()
    budget = Event(0, 0.0, "budget", "generation", data={"leak_bytes": 2 * MIB})

    def shown() -> Iterator[RunHistory]:
        for end in range(20, 121, 8):
            # Each search improves what is known of one of them.
            searched = [
                replace(h, bytes_each=(h.bytes_each or 0) + 1_000 * h.sequence)
                for h in history.holders
                if h.sequence < end // 25 * 25
            ]
            yield replace(
                history, events=(*history.events, *[budget] * (end > 60)), holders=tuple(searched),
                processes=(begun(history.processes[0], end),), total=200 if end > 80 else None,
                limit_bytes=900 * MIB if end > 100 else None,
            )  # fmt: skip

    assert_the_same(shown())


@pytest.mark.long
@pytest.mark.alone
def test_one_more_generation_costs_a_fraction_of_a_full_analysis() -> None:
    history = Training(leaks=(kept_environments(), loss_graph()), generations=120).history()
    process, kept = history.processes[0], Kept()
    per_generation = 5
    first, later = [], []
    for generation in range(100, 120):
        shown = replace(history, processes=(begun(process, 1 + per_generation * generation),))
        for costs, memory in ((first, None), (later, kept)):
            began = time.process_time()
            examine(shown, memory)
            costs.append(time.process_time() - began)
    sys.stdout.write(
        f"\nexamine: {min(first) * 1e3:.0f} ms at first, {min(later[1:]) * 1e3:.1f} ms with what is kept\n"
    )
    assert min(later[1:]) < min(first) / 8
