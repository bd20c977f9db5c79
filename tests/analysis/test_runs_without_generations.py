"""What a run that declares no generations is counted by, and what becomes of that once it declares some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from leakline.analysis import compare, examine
from leakline.analysis.history import RunHistory, history_from_batches
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

MIB = 2**20


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
    from leakline.analysis.units import in_its_unit

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
