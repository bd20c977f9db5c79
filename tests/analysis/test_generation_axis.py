"""The unit a run is counted in, the numbering of its generations, and which of thousands are analyzed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import corpus
import pytest
from builder import MIB, Training, kept_environments, loss_graph

from leakline.analysis import RunHistory, compare, examine
from leakline.analysis.forecast.memory_outlook import settling_of
from leakline.analysis.generation_axis import (
    WHOLE,
    _is_young,
    generations_of,
    in_its_unit,
    passed,
    positions_to_read,
    rows_to_read,
    thinned,
)
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.results import Verdict
from leakline.analysis.run_history import (
    Expectation,
    ProcessHistory,
    Spans,
    by_instance,
    history_from_batches,
)
from leakline.analysis.statistics.memory_evidence import Scale
from leakline.analysis.timeline import (
    spacing_of,
    timelines_of,
)
from leakline.snapshot import (
    Batch,
    Event,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)


def batch(
    seconds: Sequence[int], gained: Callable[[int], int] = lambda at: 0, *, generations: bool = False,
    instance: str = "a", attempt: int = 1,
) -> Batch:  # fmt: skip
    """Return one reading at each of these seconds, with the memory gained until then."""
    snapshots = tuple(
        Snapshot(
            sequence=number, time=1e9 + at, monotonic=float(at), generation=number if generations else None,
            phase=None, label="", kind="generation_end",
            samples={"process.rss_bytes": 300 * MIB + gained(at), "process.anon_bytes": 200 * MIB + gained(at)},
        )
        for number, at in enumerate(seconds)
    )  # fmt: skip
    return Batch(ProcessIdentity(instance, attempt=attempt), snapshots)


def by_the_client(minutes: int) -> list[int]:
    """Return one reading per second for ten minutes, then one per minute."""
    return [*range(600), *range(600, minutes * 60, 60)]


def history(unit: str, *batches: Batch) -> RunHistory:
    return history_from_batches(RunHeader("r", "p", "n", unit, None, 1e9), batches)


@pytest.mark.parametrize("unit", ["generation", "epoch", "minute"])
def test_generations_are_never_invented_for_a_program_without_any(unit: str) -> None:
    verdict = examine(history(unit, batch(range(0, 1200, 60), lambda at: at // 60 * 20 * MIB)))
    assert (verdict.unit, verdict.generations) == ("minute", 20)
    assert verdict.status in ("suspected", "confirmed", "watch")
    assert "per minute" in verdict.summary
    assert unit == "minute" or unit not in verdict.summary
    own = examine(history("minute", batch(range(20), generations=True)))
    assert (own.unit, own.generations) == ("generation", 20)


def test_seconds_are_counted_if_requested() -> None:
    read = batch(range(20), lambda at: 8 * MIB * at)
    assert examine(history("second", read)).generations == 20
    assert "per second" in examine(history("second", read)).summary
    assert examine(history("minute", read)).generations == 1
    # A run older than ten minutes is counted by the minute.
    assert examine(history("second", batch(range(601)))).unit == "second"
    grown = examine(history("second", batch(range(0, 1260, 4))))
    assert (grown.unit, grown.generations) == ("minute", 21)


@pytest.mark.parametrize("unit", ["minute", "second"])
def test_nothing_is_judged_before_the_first_minute_ends(unit: str) -> None:
    said = f"No verdict yet: no {unit} has ended"
    assert examine(history(unit)).summary == said
    seconds = range(12) if unit == "minute" else range(1)
    verdict = examine(history(unit, batch(seconds)))
    assert (verdict.status, verdict.generations, verdict.summary) == ("learning", 1, said)
    assert f"No {unit} has ended yet." in {each.sentence for each in verdict.checklist}
    assert examine(history("minute", batch(range(0, 61, 12)))).summary == (
        "Learning: 2 minutes seen, too few to judge"
    )


def test_gaps_count_as_time_but_not_as_generations() -> None:
    every_ten = examine(history("second", batch(range(0, 40, 10))))
    assert (every_ten.generations, every_ten.generations_passed) == (4, 31)
    assert every_ten.summary == "Learning: 4 readings in 31 seconds, too few to judge"
    assert examine(history("second", batch(range(20)))).generations_passed is None
    generations = history("generation", batch(range(0, 40, 10), generations=True))
    assert examine(generations).generations_passed is None


@pytest.mark.parametrize(("minutes", "unit"), [(11, "second"), (12, "minute"), (40, "minute")])
def test_a_leak_found_by_the_second_remains_by_the_minute(minutes: int, unit: str) -> None:
    read = batch(by_the_client(minutes), lambda at: at * 8 * MIB)
    verdict = examine(history("second", read))
    assert (verdict.unit, verdict.status) == (unit, "confirmed")
    rate = 8 * MIB * (60 if unit == "minute" else 1)
    found = verdict.findings[0].growth_bytes_per_generation.estimate
    assert found == pytest.approx(rate, rel=0.05)


def statuses(gained: Callable[[int], int], *seconds: int, ended: bool = False) -> list[str]:
    """Return the status of a run that is counted in seconds after these numbers of seconds."""
    return [
        examine(replace(history("second", batch(range(each), gained)), ended=ended)).status
        for each in seconds
    ]


@pytest.mark.parametrize("loaded", [20, 45, 90, 200])
def test_loading_data_is_no_leak(loaded: int) -> None:
    found = statuses(lambda at: min(at, loaded) * 8 * MIB, *range(10, 340, 15))
    assert not {"suspected", "confirmed", "recovered"}.intersection(found)
    assert found[-1] == "ok"


def test_growth_by_the_second_is_a_leak_after_loading_or_at_the_end() -> None:
    grows = lambda at: at * 8 * MIB  # noqa: E731
    assert statuses(grows, 20, 100, 290) == ["watch"] * 3
    assert statuses(grows, 330) == ["confirmed"]
    assert set(statuses(grows, 20, 100, 290, ended=True)) <= {"suspected", "confirmed"}


def test_a_leak_found_by_the_second_recovers_after_flat_minutes() -> None:
    seen = [
        examine(history("second", batch(by_the_client(minutes), lambda at: min(at, 560) * 8 * MIB)))
        for minutes in (12, 24)
    ]
    assert [verdict.status for verdict in seen] == ["confirmed", "recovered"]
    assert examine(history("second", batch(by_the_client(30)))).status == "ok"


def test_readings_before_the_first_generation_are_not_counted() -> None:
    """`leakline run` observed the program for minutes before it called init itself."""
    before = batch(range(0, 600, 60), lambda at: at * MIB, instance="before")
    own = batch(range(700, 712), generations=True, instance="own", attempt=2)
    verdict = examine(history("epoch", before, own))
    assert (verdict.unit, verdict.generations, verdict.status) == ("epoch", 12, "ok")


def test_runs_by_second_and_by_generation_are_not_comparable() -> None:
    """Growth per second is smaller than per generation, which is not an improvement."""
    by_generation = history(
        "generation", batch(range(20), lambda at: 8 * MIB * at, generations=True)
    )
    by_second = history("second", batch(range(120), lambda at: MIB * at))
    for before, after in ((by_generation, by_second), (by_second, by_generation)):
        result = compare(before, after)
        assert result.outcome == "undecided"
        sentence = f"one run is counted in {before.unit}s, the other in {after.unit}s; record both runs the same way"
        assert sentence in result.summary
        assert (result.generations_compared, result.by_phase, result.by_type) == (0, (), ())
        growth = result.growth_bytes_per_generation
        assert (growth.before, growth.after, growth.change_percent) == (None, None, None)
        assert result.peak_bytes.before is not None
        assert not result.findings.gone


def process(
    name: str, *, seconds: float = 0.0, generation: int | None = None, rank: int = 0, readings: int = 2,
    unit: float = 60.0,
) -> ProcessHistory:  # fmt: skip
    times = [100.0, 100.0 + seconds][:readings]
    n = len(times)
    return ProcessHistory(
        name, rank, "main", 1, range(n), times, times, [generation] * n, [None] * n, [""] * n, ["sample"] * n, {},
        unit_seconds=unit,
    )  # fmt: skip


def test_the_longest_process_determines_the_age_of_a_run() -> None:
    old, young, empty = process("a", seconds=700), process("b", seconds=5), process("c", readings=0)
    assert not _is_young(RunHistory("r", processes=(young, old)))
    assert _is_young(RunHistory("r", processes=(young, empty)))
    assert _is_young(RunHistory("r"))


def test_a_process_counts_only_from_its_first_generation_on() -> None:
    declares, before, other = process("a", generation=1), process("b"), process("c", rank=1)
    found = in_its_unit(RunHistory("r", unit="minute", processes=(declares, before, other)))
    assert (found.unit, [p.unit_seconds for p in found.processes]) == ("generation", [60, 0, 60])
    named = RunHistory("r", unit="episode", processes=(declares,))
    assert in_its_unit(named) is named
    # The same processes in another unit are not new ones.
    again = RunHistory("r", unit="generation", processes=(process("a"),))
    assert in_its_unit(again).processes is again.processes
    assert list(by_instance([declares, before, declares])["a"]) == [declares, declares]


def test_a_history_without_generations_is_numbered_by_time() -> None:
    moments = [5.0, 64.9, 65.0, 125.0]
    assert generations_of([None] * 4, moments) == [0, 0, 1, 2]
    assert generations_of([None] * 4, moments, 30.0) == [0, 1, 2, 4]
    assert generations_of([None] * 4, moments, 0) == [None] * 4
    assert generations_of([None, 7], moments[:2]) == [None, 7]


def renumbered(history: RunHistory, number: Callable[[int], int]) -> RunHistory:
    processes = tuple(
        replace(process, generation=[None if g is None else number(g) for g in process.generation])
        for process in history.processes
    )
    return replace(history, processes=processes)


def line(levels: Sequence[float], number: Callable[[int], int] = lambda g: g) -> Verdict:
    case = corpus.Case("line", list(levels))
    return examine(renumbered(corpus.history_of(case), number))


def irregular(generation: int) -> int:
    return 100 * generation + (17, 0, 53, 88)[generation % 4]


@pytest.mark.parametrize(
    "number",
    [lambda g: g, lambda g: 1_764_150_000 + 60 * g, irregular],
    ids=["by one", "Unix seconds", "irregular"],
)
def test_memory_that_doubles_linearly_is_a_leak(number: Callable[[int], int]) -> None:
    rng = random.Random(4)
    levels = [2e9 * (1 + i / 59) + rng.gauss(0, 1e7) for i in range(60)]
    verdict = line(levels, number)
    assert verdict.status == "confirmed"
    assert verdict.settled_at_generation is None
    growth = verdict.growth_bytes_per_generation
    assert growth is not None
    whole = growth.estimate * (number(59) - number(0))
    assert whole == pytest.approx(2e9, rel=0.05)


@pytest.mark.parametrize(
    "family",
    [corpus.fill, corpus.logarithm, corpus.season, corpus.linear, corpus.late, corpus.stairs],
    ids=lambda family: family.__name__,
)
def test_the_status_does_not_depend_on_the_step(
    family: Callable[[random.Random, int], corpus.Case],
) -> None:
    for seed, step in enumerate((7, 10_000)):
        history = corpus.history_of(family(random.Random(seed), 40))
        plain, wide = examine(history), examine(renumbered(history, lambda g, step=step: step * g))  # type: ignore[misc]
        assert wide.status == plain.status
        assert wide.oom.risk == plain.oom.risk
        settled = (plain.settled_at_generation, wide.settled_at_generation)
        assert (settled[0] is None) == (settled[1] is None)
        if settled[0] and settled[1]:
            assert settled[1].estimate == step * settled[0].estimate


@pytest.mark.parametrize("leak", [kept_environments(), loss_graph(start=8)])
def test_kind_place_and_rate_do_not_depend_on_the_step(leak: object) -> None:
    history = Training(30, leaks=(leak,)).history()  # type: ignore[arg-type]
    plain, wide = examine(history), examine(renumbered(history, lambda g: 100 * g))
    assert wide.status == plain.status == "confirmed"
    one, hundred = plain.findings[0], wide.findings[0]
    assert (hundred.kind, hundred.phase, hundred.suspects[0].name) == (
        one.kind, one.phase, one.suspects[0].name,
    )  # fmt: skip
    rates = [f.growth_bytes_per_generation.estimate for f in (one, hundred)]
    assert rates[1] * 100 == pytest.approx(rates[0], rel=0.02)
    counts = [f.suspects[0].count_per_generation or 0.0 for f in (one, hundred)]
    assert counts[1] * 100 == pytest.approx(counts[0], rel=0.02)
    starts = [f.started_at_generation for f in (one, hundred)]
    assert starts[0] and starts[1]
    assert abs(starts[1].estimate - 100 * starts[0].estimate) <= 100


def test_a_comparison_is_judged_per_reading() -> None:
    leaking, fixed = (
        renumbered(Training(30, leaks=leaks).history(), lambda g: 100 * g)
        for leaks in ((kept_environments(),), ())
    )
    assert compare(leaking, fixed).outcome == "fixed"
    assert compare(fixed, leaking).outcome == "worse"


def test_a_few_lost_generations_are_not_a_step() -> None:
    assert spacing_of(()) == spacing_of((7,)) == 1
    assert spacing_of((0, 1, 2, 5, 6, 7, 19, 20)) == 1
    assert spacing_of((0, 100, 200, 300)) == 100
    assert spacing_of((0, 10, 20, 30, 400, 410)) == 10


def test_readings_and_steps_are_distinguished() -> None:
    assert passed("step", Spans.of(range(0, 6000, 100))) == 5901
    assert passed("step", Spans.of(range(60))) is None
    assert passed("generation", Spans.of([0, 1, 2, 4, 5, 7])) is None
    assert "over 60 readings in 5,901 steps" in line([2e9] * 60, lambda g: 100 * g).summary.replace(
        "generation", "step"
    )


@pytest.mark.parametrize(("share", "readings"), [(0.0002, 300), (0.002, 40), (-0.0004, 300)])
def test_a_steady_slow_rise_never_settles(share: float, readings: int) -> None:
    """The growth is too slow to matter within a hundred generations, but never settles."""
    rng = random.Random(9)
    base = 2000 * MIB
    levels = [base * (1 + share * i) + rng.gauss(0, 0.2 * MIB) for i in range(readings)]
    found = settling_of([float(i) for i in range(readings)], levels, Scale(base))
    assert found is None or found.estimate == 0


PHASES = ("collect", "train", "evolve")
MOST = 16 + 256 + 512


def never(generation: int) -> float:
    return 0.0


def since(start: int, mib: float = 8.0) -> Callable[[int], float]:
    """Return a function for the private bytes that training keeps in a generation."""
    return lambda generation: mib * MIB if generation >= start else 0.0


def phased_process(
    generations: Iterable[int], kept: Callable[[int], float], *, attempt: int = 1, saves: int = -1
) -> ProcessHistory:
    """Return a process with four snapshots per generation. Training keeps ``kept``; one generation saves a model."""
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


def long_run(*processes: ProcessHistory, events: tuple[Event, ...] = ()) -> RunHistory:
    return RunHistory("r", phases=PHASES, processes=processes, events=events)


def kept_of(generations: int) -> set[int]:
    found = rows_to_read(range(generations), [0.0], [None] * generations)
    return set(range(generations)) if found is None else set(found.rows)


@pytest.mark.parametrize("generations", [769, 5_000, 100_000])
def test_long_runs_are_thinned_between_first_and_newest_generations(generations: int) -> None:
    kept = kept_of(generations)
    assert len(kept) <= MOST
    assert set(range(16)) <= kept
    assert set(range(generations - 384, generations)) <= kept
    older = sorted(kept - set(range(16)) - set(range(generations - 512, generations)))
    distances = {b - a for a, b in pairwise(older[1:-1])}
    assert len(distances) == 1


@pytest.mark.long
def test_thinned_generations_stay_thinned_and_change_rarely() -> None:
    assert len(kept_of(WHOLE)) == WHOLE
    changes = 0
    for generations in range(WHOLE, 3_000):
        before = set(range(generations)) - kept_of(generations)
        after = set(range(generations + 1)) - kept_of(generations + 1)
        assert before <= after
        changes += before != after
    assert changes == pytest.approx((3_000 - WHOLE) / 128, abs=1)


def test_a_short_run_is_not_thinned() -> None:
    short = long_run(phased_process(range(WHOLE), never))
    assert thinned(short) is short
    long = thinned(long_run(phased_process(range(WHOLE + 1), never)))
    assert thinned(long) is long
    assert len(timelines_of(long)[0]) < WHOLE


@pytest.mark.parametrize("start", [0, 2_950])
def test_a_leak_in_a_long_run_is_found_as_in_a_short_one(start: int) -> None:
    verdict = examine(long_run(phased_process(range(3_000), since(start))))
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


def test_minutes_are_thinned_too() -> None:
    whole = phased_process(range(4_000), since(1_000))
    n = len(whole)
    silent = replace(
        whole, generation=[None] * n, phase=[None] * n, kind=["sample"] * n,
        series={"process.anon_bytes": whole.series["process.anon_bytes"]},
    )  # fmt: skip
    assert len(timelines_of(thinned(long_run(silent)))[0]) <= MOST
    assert examine(long_run(silent)).status == "confirmed"


def test_a_phase_in_thinned_generations_counts_as_having_run() -> None:
    history = replace(
        long_run(phased_process(range(2_000), never, saves=301)), phases=(*PHASES, "save", "load")
    )
    assert "save" not in {path for p in thinned(history).processes for path in p.phase}
    (never_ran,) = [r.phase for r in examine(history).ruled_out if r.reason == "never ran"]
    assert never_ran == "load"


def test_plans_and_budgets_apply_to_every_generation() -> None:
    whole = phased_process(range(2_000), never)
    memory = list(whole.series["process.anon_bytes"])
    for row in range(4 * 301, 4 * 302):
        memory[row] = 9 * 1024 * MIB
    off = replace(whole, series={**whole.series, "process.anon_bytes": memory})
    events = (
        Event(0, 0.0, "budget", "run", 0, None, {"leak_bytes": 2048 * MIB}),
        Event(0, 0.0, "band", "process.anon_bytes", 0, None,
              {"first": 0, "last": 1_999, "high_bytes": 8 * 1024 * MIB}),
    )  # fmt: skip
    assert 301 not in thinned(long_run(off)).processes[0].generation
    verdict = examine(long_run(off, events=events))
    band, budget = verdict.assertions
    assert (budget.state, budget.worst_generation) == ("broken", 301)
    assert [d.generation for d in band.deviations] == [301]


def test_a_count_in_a_long_run_gives_the_number_of_readings() -> None:
    whole = phased_process(range(2_000), never)
    counts = [2] * len(whole.generation)
    for generation in (301, 1_999):
        counts[4 * generation + 3] = 3
    counted = replace(whole, series={**whole.series, "type.app.Env.count": counts})
    history = replace(long_run(counted), expectations=(Expectation("app.Env", 2, 2),))
    assert 301 not in thinned(history).processes[0].generation
    (check,) = examine(history).assertions
    assert check.checked < len(counts)
    read = f"1 reading of the {check.checked:,} used from this long run"
    assert (
        check.sentence
        == f"3 at the newest reading; outside the bounds at {read}, first in generation 1999."
    )


@pytest.mark.long
def test_a_growing_run_keeps_its_verdict_with_and_without_cache() -> None:
    whole, kept = phased_process(range(910), since(200)), Kept()
    seen = set()
    for generations in (*range(764, 774), *range(892, 902)):
        rows = 4 * generations
        so_far = replace(
            whole,
            **{name: getattr(whole, name)[:rows] for name in
               ("sequence", "time", "monotonic", "generation", "phase", "label", "kind")},
            series={name: column[:rows] for name, column in whole.series.items()},
        )  # fmt: skip
        verdict = examine(long_run(so_far), kept)
        assert verdict == examine(long_run(so_far))
        assert verdict.generations == generations
        seen |= {(f.fingerprint, f.status) for f in verdict.findings}
    assert len(seen) == 1


def test_a_resumed_run_is_complete_from_the_repeated_part_on() -> None:
    first = phased_process(range(2_000), since(1_400), attempt=1)
    second = phased_process(range(1_500, 1_900), since(1_400), attempt=2)
    history = thinned(long_run(first, second))
    (timeline,) = timelines_of(history)
    assert timeline.generations[timeline.whole_from] <= 1_500
    missing = set(range(1_900)) - set(timeline.generations)
    assert missing
    assert max(missing) < timeline.generations[timeline.whole_from]
    verdict = examine(long_run(first, second))
    assert verdict.status == "confirmed"
    assert verdict.findings[0].phase == "train"


def _x(n: int, first: int = 0) -> list[float]:
    return [float(first + i) for i in range(n)]


def test_up_to_768_generations_are_read_completely() -> None:
    assert positions_to_read(768) is None
    assert rows_to_read([0] * 769, _x(769), [None] * 769) is None
    thin = rows_to_read([None, *range(769)], _x(770), ["x"] * 770)
    assert thin is not None
    # The row without a generation is always read.
    assert (thin.rows[0], thin.rows[-1]) == (0, 769)
    assert thin.left_out.phases == {"x"}
    assert len(thin.left_out.generations) == 770 - len(thin.rows)
