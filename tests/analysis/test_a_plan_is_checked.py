"""Each generation of a planned band is below it, within it or above it; what is open or not measured says so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builder import GIB, MIB, Training
from test_promises_of_a_fix_are_checked import crashed_at_13

from leakline.analysis import RunHistory, examine, history_from_batches, verdict_json
from leakline.analysis.history import ProcessHistory
from leakline.analysis.plan import band_title, plain_number
from leakline.analysis.results import BandCheck
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

GB = 10**9
RSS = "process.rss_bytes"
# Report 002: generations 1 to 5 at 30-40 GB, 6 to 10 at 40-50, from 11 on flat at 40-50.
OF_REPORT_002 = ((1, 5, 30 * GB, 40 * GB), (6, 10, 40 * GB, 50 * GB), (11, None, 40 * GB, 50 * GB))


def band(first: Any, last: Any, low: Any, high: Any, series: str = RSS) -> Event:
    data = {"first": first, "last": last, "low_bytes": low, "high_bytes": high}
    return Event(0, 0.0, "band", series, data=data)


def planned(history: RunHistory, *events: Event) -> RunHistory:
    return replace(history, events=(*history.events, *events))


def of_readings(
    readings: dict[int, float | None], *events: Event, series: str = RSS, ended: bool = False
) -> RunHistory:
    """A run of one reading per generation."""
    n = len(readings)
    process = ProcessHistory(
        "p", 0, "main", 1, range(n), [60.0 * i for i in range(n)], [60.0 * i for i in range(n)],
        list(readings), [None] * n, [""] * n, ["generation_end"] * n, {series: list(readings.values())},
    )  # fmt: skip
    return RunHistory("r", processes=(process,), events=events, ended=ended)


def checked(history: RunHistory) -> list[BandCheck]:
    return list(examine(history).bands)


def counts(check: BandCheck) -> tuple[int, int, int]:
    return check.below, check.within, check.above


def test_report_001_s_run_lies_above_each_band_of_report_002() -> None:
    """As the crash says: 175 GB after 13 generations. The first one is still within."""
    scale = (175 * GB - 8.5 * GB) / 13 / 26.5 / GB
    found = checked(planned(crashed_at_13(scale), *(band(*each) for each in OF_REPORT_002)))
    assert [(c.first, counts(c)) for c in found] == [
        (1, (0, 1, 4)),
        (6, (0, 0, 5)),
        (11, (0, 0, 2)),
    ]
    assert {c.state for c in found} == {"outside"}
    assert not any(c.open for c in found)
    worst = found[-1].deviations[-1]
    assert worst.generation == 12
    assert worst.off_by == pytest.approx(125 * GB, rel=0.01)
    assert found[0].sentence.startswith("Above in generations 2 to 5 by up to 42.")
    assert found[0].sentence.endswith("GiB (generation 5); 1 of 5 within.")


def test_a_run_as_report_002_expected_it_lies_within_but_for_how_fast_it_fills() -> None:
    training = Training(
        generations=25, total=25, resident=31 * GB, noise=50 * MIB, warm_up=(0.5 * GB,),
        buffer_bytes=13 * GB, buffer_full_after=13,
    )  # fmt: skip
    history = replace(training.history(), ended=True)
    found = checked(planned(history, *(band(*each) for each in OF_REPORT_002)))
    assert [c.state for c in found] == ["within", "outside", "within"]
    assert [counts(c) for c in found] == [(0, 5, 0), (2, 3, 0), (0, 14, 0)]
    assert found[0].sentence == "Within in all 5 generations."
    assert "; 3 of 5 within." in found[1].sentence


def test_the_scenario_of_report_004_lies_below_all_of_it() -> None:
    """Scenario 4's readings: a guide that plans 30 GB for a run of 15 would have noticed."""
    rss = (8.52, 10.23, 11.89, 13.45, 14.23, 14.89, 15.12)
    history = of_readings(
        {g: value * GB for g, value in enumerate(rss, 1)}, *(band(*each) for each in OF_REPORT_002)
    )
    early, later, last = checked(history)
    assert counts(early) == (5, 0, 0)
    assert early.sentence == (
        "Below in generations 1 to 5 by up to 20.00 GiB (generation 1); 0 of 5 within."
    )
    assert (counts(later), later.open) == ((2, 0, 0), True)
    assert later.sentence.endswith("0 of 2 within; 3 generations still to come.")
    assert (last.state, last.sentence) == ("open", "Not reached yet.")


@pytest.mark.parametrize(
    ("reading", "off_by"),
    [(30 * GIB - 1, -1), (30 * GIB, 0), (35 * GIB, 0), (40 * GIB, 0), (40 * GIB + 1, 1)],
)
def test_the_bounds_belong_to_the_band(reading: float, off_by: float) -> None:
    (check,) = checked(of_readings({1: reading}, band(1, 1, 30 * GIB, 40 * GIB)))
    assert [d.off_by for d in check.deviations] == ([off_by] if off_by else [])
    assert counts(check) == (int(off_by < 0), int(off_by == 0), int(off_by > 0))
    assert check.state == ("outside" if off_by else "within")


@pytest.mark.parametrize(("low", "high", "below", "above"), [(5, None, 2, 0), (None, 6, 0, 1)])
def test_a_band_may_have_one_bound(low: Any, high: Any, below: int, above: int) -> None:
    history = of_readings({1: 3, 2: 4, 3: 5, 4: 6, 5: 7}, band(1, 5, low, high))
    (check,) = checked(history)
    assert (check.below, check.above) == (below, above)


def test_a_band_goes_from_its_first_to_its_last_generation_and_not_beyond() -> None:
    readings: dict[int, float | None] = {g: 50.0 if g in (1, 6) else 5.0 for g in range(1, 8)}
    (check,) = checked(of_readings(readings, band(2, 5, 0, 10)))
    assert (check.state, counts(check), check.open) == ("within", (0, 4, 0), False)


def test_generations_not_reached_are_open_until_the_run_ends() -> None:
    readings: dict[int, float | None] = {1: 5.0, 2: 5.0}
    (check,) = checked(of_readings(readings, band(1, 4, 0, 10)))
    assert (check.state, check.open) == ("open", True)
    assert check.sentence == "Within in all 2 generations; 2 generations still to come."
    (check,) = checked(of_readings(readings, band(1, 4, 0, 10), ended=True))
    assert (check.state, check.open) == ("within", False)
    assert check.sentence.endswith("; the run ended 2 generations before its end.")
    (check,) = checked(of_readings(readings, band(3, 4, 0, 10), ended=True))
    assert (check.state, check.sentence) == ("open", "The run ended at generation 2.")


def test_a_band_without_an_end_stays_open_while_the_run_goes_on() -> None:
    readings: dict[int, float | None] = {1: 5.0, 2: 5.0}
    assert checked(of_readings(readings, band(1, None, 0, 10)))[0].state == "open"
    (check,) = checked(of_readings(readings, band(1, None, 0, 10), ended=True))
    assert (check.state, check.sentence) == ("within", "Within in all 2 generations.")


def test_a_series_that_is_not_measured_says_so_and_is_never_within() -> None:
    (check,) = checked(of_readings({1: 5.0}, band(1, 1, 0, 10, "gauge.pending")))
    assert (check.state, counts(check)) == ("not_measured", (0, 0, 0))
    assert check.sentence == "gauge.pending is not measured in this run."


def test_a_generation_without_a_reading_is_not_within() -> None:
    (check,) = checked(of_readings({1: 5.0, 2: None, 3: 5.0}, band(1, 3, 0, 10)))
    assert (counts(check), check.unread, check.state) == ((0, 2, 0), 1, "within")
    assert check.sentence == "Within in all 2 generations, 1 generation without a reading."
    (check,) = checked(of_readings({1: 5.0, 2: None}, band(2, 2, 0, 10)))
    assert (check.state, check.sentence) == ("not_measured", "No reading in 1 generation.")


def test_units_are_told_by_the_name_of_the_series() -> None:
    gauge = of_readings({1: 60, 2: 20.25}, band(1, 2, 0, 20, "gauge.x"), series="gauge.x")
    (check,) = checked(gauge)
    assert (
        check.sentence == "Above in generations 1 to 2 by up to 40 (generation 1); 0 of 2 within."
    )
    (row,) = verdict_json(examine(gauge))["bands"]
    assert band_title(row, "generation") == "gauge.x, generations 1 to 2: 0 to 20"
    (row,) = verdict_json(examine(of_readings({1: 5}, band(3, None, None, 2 * GIB))))["bands"]
    assert band_title(row, "epoch") == f"{RSS}, from epoch 3 on: up to 2.00 GiB"
    assert [plain_number(v) for v in (16, 0.25, 3072.0, 0.12345, 99.95)] == [
        "16", "0.25", "3,072", "0.123", "100",
    ]  # fmt: skip


def test_the_newest_bounds_of_the_same_generations_count_and_a_resume_repeats_nothing() -> None:
    first, again, wider = band(1, 2, 0, 4), band(1, 2, 0, 4), band(1, 2, 0, 10)
    assert [c.above for c in checked(of_readings({1: 5, 2: 5}, first, again))] == [2]
    assert [c.above for c in checked(of_readings({1: 5, 2: 5}, first, again, wider))] == [0]


def test_readings_of_a_resume_are_those_that_were_read() -> None:
    """A process that begins anew begins low; the band speaks of memory in use, not of growth."""
    before, after = (
        (ProcessHistory(
            f"p{attempt}", 0, "main", attempt, range(3), times, times, generations, [None] * 3, [""] * 3,
            ["generation_end"] * 3, {RSS: [level] * 3},
        ))
        for attempt, times, generations, level in (
            (1, [0.0, 1.0, 2.0], [1, 2, 3], 9), (2, [10.0, 11.0, 12.0], [4, 5, 6], 4),
        )
    )  # fmt: skip
    history = RunHistory("r", processes=(before, after), events=(band(1, 6, 0, 5),))
    (check,) = checked(history)
    assert [d.generation for d in check.deviations] == [1, 2, 3]


def test_each_process_is_checked_for_itself() -> None:
    one, two = (
        replace(of_readings({1: level, 2: level}).processes[0], instance=f"p{rank}", rank=rank)
        for rank, level in enumerate((5, 50))
    )
    found = checked(RunHistory("r", processes=(one, two), events=(band(1, 2, 0, 10),)))
    assert [(c.process, c.state) for c in found] == [
        ("rank 0 main", "within"), ("rank 1 main", "outside"),
    ]  # fmt: skip


def test_a_peak_is_that_of_the_whole_generation() -> None:
    snapshots = [
        Snapshot(i, float(i), float(i), 1, phase, "", kind, {"process.peak_bytes": peak})
        for i, (phase, kind, peak) in enumerate(
            [("train", "phase_end", 9 * GIB), ("evolve", "phase_end", GIB), (None, "generation_end", GIB)]
        )
    ]  # fmt: skip
    header = RunHeader("r", "p", "r", "generation", None, 0.0)
    history = history_from_batches(header, [Batch(ProcessIdentity("a"), tuple(snapshots))])
    (check,) = checked(planned(history, band(1, 1, 0, 8 * GIB, "process.peak_bytes")))
    assert check.above == 1


def test_what_is_no_band_breaks_no_verdict() -> None:
    wrong = [
        band(None, 5, 0, 1), band("1", 5, 0, 1), band(1, "5", 0, 1), band(1, 5, None, None), band(1, 5, "a", None),
        band(True, 5, 0, 1), band(1, 5, None, 10**400), Event(0, 0.0, "band", RSS), band(1, 5, float("nan"), None),
    ]  # fmt: skip
    assert checked(of_readings({1: 5}, *wrong)) == []


def test_a_long_plan_stays_small() -> None:
    events = [band(g, g, 0, 1) for g in range(500)]
    verdict = examine(of_readings(dict.fromkeys(range(500), 5), *events, band(0, 499, 0, 1)))
    assert len(verdict.bands) <= 40
    whole = next(c for c in verdict.bands if c.last == 499 and c.first == 0)
    assert (whole.above, len(whole.deviations)) == (500, 50)
    assert json.loads(json.dumps(verdict_json(verdict))) == verdict_json(verdict)


def test_before_the_first_generation_ends_a_band_is_open_or_not_measured() -> None:
    snapshot = Snapshot(0, 0.0, 0.0, None, None, "", "baseline", {RSS: 5}, (band(1, 5, 0, 10),))
    header = RunHeader("r", "p", "r", "generation", None, 0.0)
    history = history_from_batches(header, [Batch(ProcessIdentity("a"), (snapshot,))])
    (check,) = checked(history)
    assert (check.state, check.sentence) == ("open", "Not reached yet.")
