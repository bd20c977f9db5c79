"""Of a run of thousands of generations every one of the newest is read, and fewer of the others: the verdict stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from builder import MIB

from leakline.analysis import RunHistory, examine
from leakline.analysis.generation_axis import WHOLE, positions_to_read, rows_to_read, thinned
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.run_history import Expectation, ProcessHistory
from leakline.analysis.timeline import (
    timelines_of,
)
from leakline.snapshot import Event

PHASES = ("collect", "train", "evolve")
MOST = 16 + 256 + 512


def never(generation: int) -> float:
    return 0.0


def since(start: int, mib: float = 8.0) -> Callable[[int], float]:
    """Private bytes that training keeps in a generation."""
    return lambda generation: mib * MIB if generation >= start else 0.0


def process(
    generations: Iterable[int], kept: Callable[[int], float], *, attempt: int = 1, saves: int = -1
) -> ProcessHistory:
    """Four snapshots in each generation; training keeps ``kept``, four rows of it. One generation saves a model."""
    rng, level, rows = random.Random(attempt), 4096.0 * MIB, 0
    columns: dict[str, list[Any]] = {
        "generation": [],
        "phase": [],
        "kind": [],
        "memory": [],
        "rows": [],
    }
    for generation in generations:
        for phase in (*PHASES, *(["save"] if generation == saves else []), None):
            if phase == "train" and kept(generation):
                level, rows = level + kept(generation), rows + 4
            columns["generation"].append(generation)
            columns["phase"].append(phase)
            columns["kind"].append("phase_end" if phase else "generation_end")
            columns["memory"].append(round(level + rng.gauss(0, 6 * MIB)))
            columns["rows"].append(40 + rows)
    n = len(columns["kind"])
    moments = [15.0 * (i + 1_000_000 * attempt) for i in range(n)]
    series = {
        "process.anon_bytes": columns["memory"],
        "type.app.Row.count": columns["rows"],
        "type.app.Row.bytes": [2 * MIB * rows for rows in columns["rows"]],
    }
    return ProcessHistory(
        f"p{attempt}", 0, "main", attempt, range(n), moments, moments, columns["generation"],
        columns["phase"], [""] * n, columns["kind"], series,
    )  # fmt: skip


def run(*processes: ProcessHistory, events: tuple[Event, ...] = ()) -> RunHistory:
    return RunHistory("r", phases=PHASES, processes=processes, events=events)


def kept_of(generations: int) -> set[int]:
    found = rows_to_read(range(generations), [0.0], [None] * generations)
    return set(range(generations)) if found is None else set(found.rows)


@pytest.mark.parametrize("generations", [769, 1_000, 5_000, 100_000])
def test_the_newest_and_the_first_are_read_and_not_too_many_of_the_others(generations: int) -> None:
    kept = kept_of(generations)
    assert len(kept) <= MOST
    assert set(range(16)) <= kept
    assert set(range(generations - 384, generations)) <= kept
    older = sorted(kept - set(range(16)) - set(range(generations - 512, generations)))
    distances = {b - a for a, b in pairwise(older[1:-1])}
    assert len(distances) == 1


@pytest.mark.long
def test_what_is_left_out_stays_left_out_and_changes_seldom() -> None:
    assert len(kept_of(WHOLE)) == WHOLE
    changes = 0
    for generations in range(WHOLE, 3_000):
        before = set(range(generations)) - kept_of(generations)
        after = set(range(generations + 1)) - kept_of(generations + 1)
        assert before <= after
        changes += before != after
    assert changes == pytest.approx((3_000 - WHOLE) / 128, abs=1)


def test_a_run_that_is_not_long_is_read_as_it_is() -> None:
    short = run(process(range(WHOLE), never))
    assert thinned(short) is short
    long = thinned(run(process(range(WHOLE + 1), never)))
    assert thinned(long) is long
    assert len(timelines_of(long)[0]) < WHOLE


@pytest.mark.parametrize("start", [0, 500, 2_950])
def test_a_leak_of_a_long_run_is_told_as_of_a_short_one(start: int) -> None:
    verdict = examine(run(process(range(3_000), since(start))))
    assert verdict.status == "confirmed"
    assert verdict.generations == 3_000
    if start == 0:
        assert "holds over 3000 generations" in str(verdict.findings[0].evidence)
    (finding,) = [f for f in verdict.findings if f.status == "confirmed"]
    assert (finding.phase, finding.suspects[0].name) == ("train", "app.Row")
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(8 * MIB, rel=0.05)
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate == pytest.approx(
        start, abs=8 + 0.01 * (3_000 - start)
    )


def test_a_long_run_that_does_not_leak_is_fine() -> None:
    verdict = examine(run(process(range(3_000), never)))
    assert (verdict.status, verdict.generations) == ("ok", 3_000)


def test_the_minutes_of_a_program_without_generations_are_thinned_too() -> None:
    whole = process(range(4_000), since(1_000))
    n = len(whole)
    silent = replace(
        whole, generation=[None] * n, phase=[None] * n, kind=["sample"] * n,
        series={"process.anon_bytes": whole.series["process.anon_bytes"]},
    )  # fmt: skip
    assert len(timelines_of(thinned(run(silent)))[0]) <= MOST
    assert examine(run(silent)).status == "confirmed"


def test_a_phase_that_ran_where_nothing_is_read_did_run() -> None:
    history = replace(
        run(process(range(2_000), never, saves=301)), phases=(*PHASES, "save", "load")
    )
    assert "save" not in {path for p in thinned(history).processes for path in p.phase}
    (never_ran,) = [r.phase for r in examine(history).ruled_out if r.reason == "never ran"]
    assert never_ran == "load"


def test_plans_and_budgets_are_held_against_every_generation() -> None:
    whole = process(range(2_000), never)
    memory = list(whole.series["process.anon_bytes"])
    for row in range(4 * 301, 4 * 302):
        memory[row] = 9 * 1024 * MIB
    off = replace(whole, series={**whole.series, "process.anon_bytes": memory})
    events = (
        Event(0, 0.0, "budget", "run", 0, None, {"leak_bytes": 2048 * MIB}),
        Event(0, 0.0, "band", "process.anon_bytes", 0, None,
              {"first": 0, "last": 1_999, "high_bytes": 8 * 1024 * MIB}),
    )  # fmt: skip
    assert 301 not in thinned(run(off)).processes[0].generation
    verdict = examine(run(off, events=events))
    band, budget = verdict.assertions
    assert (budget.state, budget.worst_generation) == ("broken", 301)
    assert [d.generation for d in band.deviations] == [301]


def test_a_count_of_a_long_run_says_how_many_readings_it_is_about() -> None:
    whole = process(range(2_000), never)
    counts = [2] * len(whole.generation)
    for generation in (301, 1_999):
        counts[4 * generation + 3] = 3
    counted = replace(whole, series={**whole.series, "type.app.Env.count": counts})
    history = replace(run(counted), expectations=(Expectation("app.Env", 2, 2),))
    assert 301 not in thinned(history).processes[0].generation
    (check,) = examine(history).assertions
    assert check.judged < len(counts)
    read = f"1 reading of the {check.judged:,} that are read of this long run"
    assert (
        check.sentence
        == f"3 at the newest reading; other numbers at {read}, first in generation 1999."
    )


@pytest.mark.long
def test_a_run_that_grows_long_keeps_its_verdict_and_what_is_kept_changes_nothing() -> None:
    whole, kept = process(range(910), since(200)), Kept()
    told = set()
    for generations in (*range(764, 774), *range(892, 902)):
        rows = 4 * generations
        so_far = replace(
            whole,
            **{name: getattr(whole, name)[:rows] for name in
               ("sequence", "time", "monotonic", "generation", "phase", "label", "kind")},
            series={name: column[:rows] for name, column in whole.series.items()},
        )  # fmt: skip
        verdict = examine(run(so_far), kept)
        assert verdict == examine(run(so_far))
        assert verdict.generations == generations
        told |= {(f.fingerprint, f.status) for f in verdict.findings}
    assert len(told) == 1


def test_a_resumed_run_is_whole_from_where_it_was_repeated() -> None:
    first = process(range(2_000), since(1_400), attempt=1)
    second = process(range(1_500, 1_900), since(1_400), attempt=2)
    history = thinned(run(first, second))
    (timeline,) = timelines_of(history)
    assert timeline.generations[timeline.whole_from] <= 1_500
    missing = set(range(1_900)) - set(timeline.generations)
    assert missing
    assert max(missing) < timeline.generations[timeline.whole_from]
    verdict = examine(run(first, second))
    assert verdict.status == "confirmed"
    assert verdict.findings[0].phase == "train"


def _x(n: int, first: int = 0) -> list[float]:
    return [float(first + i) for i in range(n)]


def test_up_to_768_generations_all_are_read() -> None:
    assert positions_to_read(768) is None
    assert rows_to_read([0] * 769, _x(769), [None] * 769) is None
    thin = rows_to_read([None, *range(769)], _x(770), ["x"] * 770)
    assert thin is not None
    # The row of no generation is read in any case.
    assert (thin.rows[0], thin.rows[-1]) == (0, 769)
    assert thin.left_out.phases == {"x"}
    assert len(thin.left_out.generations) == 770 - len(thin.rows)
