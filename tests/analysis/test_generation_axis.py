"""What a run is counted by, and how its generations are numbered: the verdict depends on the readings alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import corpus
import pytest
from builder import MIB, TRAIN, Leak, Training, kept_environments, loss_graph

from leakline.analysis import RunHistory, compare, examine
from leakline.analysis.forecast.memory_outlook import settling_of
from leakline.analysis.generation_axis import _is_young, generations_of, in_its_unit, passed
from leakline.analysis.results import Verdict
from leakline.analysis.run_history import ProcessHistory, Spans, by_instance, history_from_batches
from leakline.analysis.statistics.memory_evidence import Scale
from leakline.analysis.timeline import (
    spacing_of,
)
from leakline.snapshot import (
    Batch,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)


def batch(
    seconds: range,
    *,
    grows: int = 0,
    generations: bool = False,
    instance: str = "a",
    attempt: int = 1,
) -> Batch:
    """One reading at each of these seconds."""
    snapshots = tuple(
        Snapshot(
            sequence=number, time=1e9 + at, monotonic=float(at), generation=number if generations else None,
            phase=None, label="", kind="generation_end",
            samples={"process.rss_bytes": 300 * MIB + grows * number, "process.anon_bytes": 200 * MIB + grows * number},
        )
        for number, at in enumerate(seconds)
    )  # fmt: skip
    return Batch(ProcessIdentity(instance, attempt=attempt), snapshots)


def history(unit: str, *batches: Batch) -> RunHistory:
    return history_from_batches(RunHeader("r", "p", "n", unit, None, 1e9), batches)


@pytest.mark.parametrize("unit", ["generation", "epoch", "minute"])
def test_minutes_are_never_told_as_generations(unit: str) -> None:
    verdict = examine(history(unit, batch(range(0, 1200, 60), grows=20 * MIB)))
    assert (verdict.unit, verdict.generations) == ("minute", 20)
    assert verdict.status in ("suspected", "confirmed", "watch")
    assert "per minute" in verdict.summary
    assert unit == "minute" or unit not in verdict.summary


def test_generations_are_never_told_as_minutes() -> None:
    verdict = examine(history("minute", batch(range(20), generations=True)))
    assert (verdict.unit, verdict.generations) == ("generation", 20)


def test_seconds_are_counted_where_that_is_asked() -> None:
    read = batch(range(20), grows=8 * MIB)
    assert examine(history("second", read)).generations == 20
    assert "per second" in examine(history("second", read)).summary
    assert examine(history("minute", read)).generations == 1


@pytest.mark.parametrize("unit", ["minute", "second"])
def test_before_a_minute_has_ended_there_is_nothing_to_say(unit: str) -> None:
    said = f"Nothing to say yet: no {unit} has ended"
    assert examine(history(unit)).summary == said
    seconds = range(12) if unit == "minute" else range(1)
    verdict = examine(history(unit, batch(seconds)))
    assert (verdict.status, verdict.generations, verdict.summary) == ("learning", 1, said)
    assert f"No {unit} has ended yet." in {each.sentence for each in verdict.checklist}
    assert examine(history("minute", batch(range(0, 61, 12)))).summary == (
        "Learning: 2 minutes seen, too few to judge"
    )


def test_time_passes_where_nothing_was_read_and_generations_do_not() -> None:
    every_ten = examine(history("second", batch(range(0, 40, 10))))
    assert (every_ten.generations, every_ten.generations_passed) == (4, 31)
    assert every_ten.summary == "Learning: 4 readings in 31 seconds, too few to judge"
    assert examine(history("second", batch(range(20)))).generations_passed is None
    generations = history("generation", batch(range(0, 40, 10), generations=True))
    assert examine(generations).generations_passed is None


def test_an_older_run_goes_on_by_the_minute() -> None:
    assert examine(history("second", batch(range(601)))).unit == "second"
    grown = examine(history("second", batch(range(1260))))
    assert (grown.unit, grown.generations) == ("minute", 21)


def test_a_leak_found_by_the_second_stands_while_it_goes_on_by_the_minute() -> None:
    """As the client reads: each second for ten minutes, then each minute."""
    for minutes, unit in (
        (11, "second"),
        (12, "minute"),
        (17, "minute"),
        (40, "minute"),
        (62, "minute"),
    ):
        seconds = [*range(600), *range(600, minutes * 60, 60)]
        read = replace_seconds(batch(range(len(seconds))), seconds, lambda at: at * 8 * MIB)
        verdict = examine(history("second", read))
        assert (verdict.unit, verdict.status) == (unit, "confirmed"), minutes
        rate = 8 * MIB * (60 if unit == "minute" else 1)
        found = verdict.findings[0].growth_bytes_per_generation.estimate
        assert found == pytest.approx(rate, rel=0.05)


def test_a_leak_found_by_the_second_recovers_after_flat_minutes() -> None:
    seen = {}
    for minutes in (12, 24):
        seconds = [*range(600), *range(600, minutes * 60, 60)]
        read = replace_seconds(
            batch(range(len(seconds))), seconds, lambda at: min(at, 560) * 8 * MIB
        )
        seen[minutes] = examine(history("second", read)).status
    assert (seen[12], seen[24]) == ("confirmed", "recovered")
    healthy = replace_seconds(batch(range(620)), [*range(600), *range(600, 1800, 60)], lambda at: 0)
    assert examine(history("second", healthy)).status == "ok"


def replace_seconds(read: Batch, seconds: list[int], gained: Callable[[int], int]) -> Batch:
    """The same snapshots at these seconds, with the memory that was gained by then."""
    snapshots = tuple(
        replace(
            s, time=1e9 + at, monotonic=float(at),
            samples={"process.rss_bytes": 300 * MIB + gained(at), "process.anon_bytes": 200 * MIB + gained(at)},
        )
        for s, at in zip(read.snapshots, seconds, strict=True)
    )  # fmt: skip
    return replace(read, snapshots=snapshots)


def test_what_came_before_the_first_generation_is_not_counted() -> None:
    """`leakline run` has looked at a program for minutes before that called init itself."""
    before = batch(range(0, 600, 60), grows=50 * MIB, instance="beside")
    own = batch(range(700, 712), generations=True, instance="own", attempt=2)
    verdict = examine(history("epoch", before, own))
    assert (verdict.unit, verdict.generations, verdict.status) == ("epoch", 12, "ok")


def test_a_run_that_is_counted_by_the_minute_is_the_same_object() -> None:
    """What looks keep of earlier ones rests on that."""
    read = history("minute", batch(range(0, 300, 60)))
    from leakline.analysis.generation_axis import in_its_unit

    assert in_its_unit(read) is read


def test_seconds_and_generations_have_nothing_in_common() -> None:
    """Per second anything grows by less than per generation, which is no merit of a change."""
    by_generation = history("generation", batch(range(20), grows=8 * MIB, generations=True))
    by_second = history("second", batch(range(120), grows=MIB))
    for before, after in ((by_generation, by_second), (by_second, by_generation)):
        result = compare(before, after)
        assert result.outcome == "undecided"
        told = f"one run counts {before.unit}s, the other {after.unit}s; record both alike"
        assert told in result.summary
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


def test_the_longest_process_says_how_old_a_run_is() -> None:
    old, young, empty = process("a", seconds=700), process("b", seconds=5), process("c", readings=0)
    assert not _is_young(RunHistory("r", processes=(young, old)))
    assert _is_young(RunHistory("r", processes=(young, empty)))
    assert _is_young(RunHistory("r"))


def test_what_a_process_was_before_it_declared_generations_is_not_counted() -> None:
    declares, before, other = process("a", generation=1), process("b"), process("c", rank=1)
    found = in_its_unit(RunHistory("r", unit="minute", processes=(declares, before, other)))
    assert (found.unit, [p.unit_seconds for p in found.processes]) == ("generation", [60, 0, 60])
    named = RunHistory("r", unit="episode", processes=(declares,))
    assert in_its_unit(named) is named
    # The same processes in another unit are no new ones.
    again = RunHistory("r", unit="generation", processes=(process("a"),))
    assert in_its_unit(again).processes is again.processes
    assert list(by_instance([declares, before, declares])["a"]) == [declares, declares]


def test_a_program_without_generations_is_counted_by_time() -> None:
    moments = [5.0, 64.9, 65.0, 125.0]
    assert generations_of([None] * 4, moments) == [0, 0, 1, 2]
    assert generations_of([None] * 4, moments, 30.0) == [0, 1, 2, 4]
    assert generations_of([None] * 4, moments, 0) == [None] * 4
    assert generations_of([None, 7], moments[:2]) == [None, 7]


FAMILIES = (
    corpus.flat, corpus.fill, corpus.saturation, corpus.logarithm, corpus.steps, corpus.sawtooth, corpus.season,
    corpus.warm_up, corpus.linear, corpus.late, corpus.stairs, corpus.accelerating,
)  # fmt: skip


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


@pytest.mark.parametrize("number", [
    lambda g: g, lambda g: 100 * g, lambda g: 10_000 * g, lambda g: 1_764_150_000 + 60 * g, irregular,
], ids=["by one", "by a hundred", "by ten thousand", "Unix seconds", "irregular"])  # fmt: skip
def test_memory_that_doubles_in_a_straight_line_is_a_leak(number: Callable[[int], int]) -> None:
    rng = random.Random(4)
    levels = [2e9 * (1 + i / 59) + rng.gauss(0, 1e7) for i in range(60)]
    verdict = line(levels, number)
    assert verdict.status == "confirmed"
    assert verdict.settled_at_generation is None
    growth = verdict.growth_bytes_per_generation
    assert growth is not None
    whole = growth.estimate * (number(59) - number(0))
    assert whole == pytest.approx(2e9, rel=0.05)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_the_status_is_that_of_the_run_numbered_by_one(
    family: Callable[[random.Random, int], corpus.Case],
) -> None:
    for seed, step in enumerate((100, 10_000)):
        history = corpus.history_of(family(random.Random(seed), 40))
        plain, wide = examine(history), examine(renumbered(history, lambda g, step=step: step * g))  # type: ignore[misc]
        assert wide.status == plain.status
        assert wide.oom.risk == plain.oom.risk
        settled = (plain.settled_at_generation, wide.settled_at_generation)
        assert (settled[0] is None) == (settled[1] is None)
        if settled[0] and settled[1]:
            assert settled[1].estimate == step * settled[0].estimate


@pytest.mark.parametrize("leak", [kept_environments(), loss_graph(start=8)])
def test_a_finding_has_its_kind_place_and_rate_at_any_step(leak: object) -> None:
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


def test_a_healthy_training_stays_healthy_at_any_step() -> None:
    history = Training(30).history()
    for step in (7, 1_000):
        verdict = examine(renumbered(history, lambda g, step=step: step * g))  # type: ignore[misc]
        assert verdict.status == examine(history).status == "ok"
        assert not [f for f in verdict.findings if f.status != "ok"]


def test_a_comparison_is_judged_per_reading() -> None:
    leaking, fixed = (
        renumbered(Training(30, leaks=leaks).history(), lambda g: 100 * g)
        for leaks in ((kept_environments(),), ())
    )
    assert compare(leaking, fixed).outcome == "fixed"
    assert compare(fixed, leaking).outcome == "worse"
    assert compare(fixed, fixed).outcome == "no_effect"


def test_a_few_lost_generations_are_no_step() -> None:
    assert spacing_of(()) == spacing_of((7,)) == 1
    assert spacing_of((0, 1, 2, 5, 6, 7, 19, 20)) == 1
    assert spacing_of((0, 100, 200, 300)) == 100
    assert spacing_of((0, 10, 20, 30, 400, 410)) == 10


def test_readings_and_steps_are_told_apart_where_most_steps_were_not_reported() -> None:
    assert passed("step", Spans.of(range(0, 6000, 100))) == 5901
    assert passed("step", Spans.of(range(60))) is None
    assert passed("generation", Spans.of([0, 1, 2, 4, 5, 7])) is None
    assert "over 60 readings in 5,901 steps" in line([2e9] * 60, lambda g: 100 * g).summary.replace(
        "generation", "step"
    )


@pytest.mark.parametrize("share", [0.0002, 0.0004, 0.002, -0.0004])
@pytest.mark.parametrize("readings", [40, 300])
def test_a_line_that_goes_on_as_before_is_not_flat_from_somewhere(
    share: float, readings: int
) -> None:
    """Too slow to matter within a hundred generations, and never settled."""
    rng = random.Random(9)
    base = 2000 * MIB
    levels = [base * (1 + share * i) + rng.gauss(0, 0.2 * MIB) for i in range(readings)]
    found = settling_of([float(i) for i in range(readings)], levels, Scale(base))
    assert found is None or found.estimate == 0


@pytest.mark.parametrize("spacing", [1, 10, 100])
def test_memory_that_rises_in_other_readings_than_a_handle_is_not_its_growth(spacing: int) -> None:
    training = Training(
        generations=36, noise=0.2 * MIB, census_every=1,
        leaks=(
            Leak(TRAIN, 18 * MIB, times=lambda g: float(g % 3 == 0)),
            Leak(TRAIN, 0.0, {"threading.Thread": 1.0}, times=lambda g: float(g % 3 == 1)),
        ),
    )  # fmt: skip
    training.counts["threading.Thread"] = 0.0
    finding = examine(renumbered(training.history(), lambda g: spacing * g)).findings[0]
    assert (finding.kind, finding.suspects) == ("native", ())
