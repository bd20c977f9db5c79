"""`make bench-detection` on two families: what it prints, that its check can fail, and that its ground is true."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.detection.baselines import MannKendall, least_squares
from benchmarks.detection.evaluate import Outcome, evaluated, leaked_rate, outcomes
from benchmarks.detection.figures import figures
from benchmarks.detection.generators import FAMILIES, HEALTHY, LEAKING, PUBLIC, Draw, drawn
from benchmarks.detection.histories import Recording
from benchmarks.detection.online import looks
from benchmarks.detection.recorded import recorded_figures, recorded_runs
from benchmarks.detection.shares import Share

from leakline.analysis import examine

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SMOKE = {"RUNS": "1", "FAMILIES": "flat,linear", "JOBS": "1", "SOAK": "40"}
# Families in which more than the leak changes.
NOT_ALONE = ("rising sawtooth", "fill and leak", "after full", "warm-up and leak")
ALL = [family.name for family in (*HEALTHY, *LEAKING)]


def _bench(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("CHECK", "FRESH")}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.detection", *arguments],
        cwd=ROOT, env={**kept, **SMOKE, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_prints_a_line_for_each_family_and_each_figure(tmp_path: Path) -> None:
    document = tmp_path / "all.md"
    written = tmp_path / "all.json"
    ended = _bench("--json", str(written), "--markdown", str(document), FRESH="word")
    assert ended.returncode == 0, ended.stderr
    for words in ("flat", "linear", "Hamed-Rao", "healthy runs ever suspected", "fresh seeds", "long run"):  # fmt: skip
        assert words in ended.stdout
        assert words in document.read_text()
    found = json.loads(written.read_text())
    codes = {figure["code"] for figure in found["figures"]}
    assert codes == {"A1", "A2", "A3", "A7", "A8", "A9", "A10"}
    assert [run["family"] for run in found["runs"]] == ["flat", "linear"]
    assert found["runs"][1]["suspected"] is not None
    assert found["runs"] != found["fresh_runs"]


def test_the_check_fails_when_a_figure_could_not_be_measured() -> None:
    ended = _bench(CHECK="1", FAMILIES="flat")
    assert ended.returncode == 1
    assert "bench-detection: A2, leaks of >= 0.5 %/generation confirmed" in ended.stderr
    assert "was not measured" in ended.stderr


@cache
def theirs() -> tuple[str, ...]:
    return tuple(evaluated(Draw(PUBLIC, "flat", 0)).baselines)


def outcome(family: str, number: int, suspects: int | None, sure: float, **more: Any) -> Outcome:
    """A run that each of the baselines suspects at the same moment, as sure as the others."""
    if family == "linear":
        more = {"start": 0, **more}
    baselines, strongest = dict.fromkeys(theirs(), suspects), dict.fromkeys(theirs(), sure)
    return Outcome(family, number, 90, baselines=baselines, strongest=strongest, **more)


def test_a_false_alarm_and_a_missed_leak_fall_short() -> None:
    alarmed = outcome("flat", 0, None, 1.0, suspected=20)
    missed = outcome("linear", 0, 40, 1.0, slope=0.03)
    short = {(f.code, f.name): f.failure() for f in figures([alarmed, missed]) if f.failure()}
    named = "healthy runs ever suspected, bounds declared where the code has them"
    assert short["A1", named] == "100.0 % is not <= 5.0 %"
    assert any(code == "A2" and "0.0 % is not >= 98.0 %" in why for (code, _), why in short.items())
    assert any(code == "A3" for code, _ in short)


def test_a_detector_that_finds_more_leaks_is_not_beaten_by_fewer_false_alarms() -> None:
    runs = [outcome("flat", 0, 9, 1.0), outcome("linear", 0, 40, 1.0, slope=0.03)]
    held = [f for f in figures(runs) if f.is_held and "no fewer leaks found" in f.name]
    assert [f.failure() for f in held] == ["they find more leaks than either of our levels"] * 5


@pytest.mark.parametrize(
    ("ours", "others", "ratio"), [(1, 4, 4.0), (0, 4, float("inf")), (2, 0, 0.0)]
)
def test_others_are_compared_where_they_find_as_many(ours: int, others: int, ratio: float) -> None:
    """Of four leaks we find three; the others must then be as sure as they were of the third."""
    leaks = [outcome("linear", i, None, 2.0 + i, suspected=30 if i else None) for i in range(4)]
    healthy = [
        outcome("flat", i, None, 3.5 if i < others else 2.9, suspected=40 if i < ours else None)
        for i in range(8)
    ]
    found = [f for f in figures([*healthy, *leaks]) if "finds as many" in f.name]
    assert [f.value for f in found] == [ratio] * 5


def test_memory_of_real_machines_is_read_from_files_and_cut_into_runs(tmp_path: Path) -> None:
    rng = random.Random(3)
    calm = [40 + rng.gauss(0, 1) for _ in range(310)]
    rising = [40 + 0.5 * i + rng.gauss(0, 1) for i in range(150)]
    lines = ["timestamp,value", *(f"2014-05-27 12:{i % 60:02d},{v}" for i, v in enumerate(calm))]
    (tmp_path / "calm.csv").write_text("\n".join([*lines, "later,0.0", "lost,"]))
    (tmp_path / "rising.csv").write_text("\n".join(map(str, rising)))
    runs = list(recorded_runs(tmp_path))
    assert [(run.family, run.number, run.readings) for run in runs] == [
        ("calm", 0, 150), ("calm", 1, 150), ("rising", 0, 150),
    ]  # fmt: skip
    suspected, confirmed, *others = recorded_figures(runs)
    assert [run.family for run in runs if run.suspected is not None] == ["rising"]
    assert (suspected.code, suspected.value, confirmed.value) == ("A4", 1 / 3, 1 / 3)
    assert "is not <= 1.0 %" in suspected.failure()
    assert len(others) == 5


def test_a_folder_without_series_is_named() -> None:
    ended = _bench(FAMILIES="flat", SOAK="0", RECORDED="nowhere")
    assert (ended.returncode, ended.stdout.count("bench-detection")) == (1, 0)
    assert ended.stderr.strip() == "bench-detection: RECORDED: nowhere holds no .csv file"


def test_there_are_enough_families() -> None:
    assert len(HEALTHY) >= 12
    assert len(LEAKING) >= 12
    assert len(FAMILIES) == len(HEALTHY) + len(LEAKING)


@pytest.mark.parametrize("family", ALL)
def test_the_same_word_draws_the_same_run_and_another_word_another(family: str) -> None:
    case = drawn(Draw(PUBLIC, family, 3))
    assert case == drawn(Draw(PUBLIC, family, 3))
    assert case.private != drawn(Draw("another word", family, 3)).private
    assert 30 <= len(case) <= 150
    assert len(case.clean) == len(case.generation) == len(case.attempt) == len(case)
    assert all(len(values) == len(case) for values in (*case.others.values(), *case.inside))


def test_several_processes_find_what_one_finds() -> None:
    asked = [Draw(PUBLIC, "flat", 1), Draw(PUBLIC, "steps", 1), Draw(PUBLIC, "flat", 2)]
    assert list(outcomes(asked, 2)) == list(outcomes(asked, 1))


@pytest.mark.parametrize("family", [family.name for family in LEAKING])
def test_the_noiseless_memory_of_every_leak_has_its_slope(family: str) -> None:
    for number in range(12):
        case = drawn(Draw(PUBLIC, family, number))
        leak = case.leak
        assert leak is not None
        assert 0.004 <= leak.slope <= 0.15
        assert not any(leak.shares[: leak.start])
        assert leak.shares[leak.start] > 0
        assert all(b >= a for a, b in pairwise(leak.shares))
        rate = leaked_rate(leak, len(case), case.baseline)
        assert rate == pytest.approx(leak.slope * case.baseline, rel=0.20)
        assert case.out_at is not None
        assert case.out_at > leak.start
        if family == "children":
            assert max(case.clean) == min(case.clean)
            continue
        rest = [c - case.baseline * s for c, s in zip(case.clean, leak.shares, strict=True)]
        assert min(rest) >= 0.999 * case.baseline
        if family not in NOT_ALONE:
            assert least_squares(case.clean[leak.start :])[0] == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("family", [family.name for family in HEALTHY])
def test_every_healthy_run_stays_below_its_limit(family: str) -> None:
    case = drawn(Draw(PUBLIC, family, 5))
    assert case.leak is None
    assert case.out_at is None
    assert max(case.clean) < case.limit_bytes


@pytest.mark.parametrize(
    "family", ["steps", "declared fill", "resume", "late start", "two at once", "children"]
)
def test_each_look_says_what_examine_says_of_the_same_prefix(family: str) -> None:
    case = FAMILIES[family].make(random.Random(f"looks {family}"), 36)
    recording = Recording(case, witness=True)
    for i, look in enumerate(looks(case, witness=True)):
        verdict = examine(recording.until(i + 1))
        active = verdict.status if verdict.status in ("suspected", "confirmed") else ""
        assert (look.level, look.warned) == (active, verdict.oom.risk != "none"), i


def _series(seed: int, n: int, digits: int) -> list[float]:
    rng = random.Random(seed)
    found, last = [], 0.0
    for i in range(n):
        last = 0.5 * last + rng.gauss(0, 1)
        found.append(round(last + 0.02 * i, digits))
    return found


@pytest.mark.parametrize(("seed", "n", "digits"), [(1, 12, 6), (2, 40, 6), (3, 90, 1), (4, 40, 0)])
def test_kendalls_score_and_its_p_are_scipys(seed: int, n: int, digits: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    readings, test = _series(seed, n, digits), MannKendall()
    for value in readings:
        test.add(value)
    pairs = [(a, b) for i, a in enumerate(readings) for b in readings[i + 1 :]]
    assert test.score == sum((b > a) - (b < a) for a, b in pairs)
    asymptotic = stats.kendalltau(range(n), readings, method="asymptotic")
    p = 2 * stats.norm.sf(abs(test.score) / test.variance() ** 0.5)
    assert p == pytest.approx(asymptotic.pvalue, rel=1e-9)


@pytest.mark.parametrize(("hits", "runs"), [(0, 5), (3, 80), (79, 80), (40, 2040)])
def test_the_bounds_are_those_of_the_beta_distribution(hits: int, runs: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    share = Share(hits, runs)
    assert share.upper() == pytest.approx(stats.beta.ppf(0.95, hits + 1, runs - hits), rel=1e-6)
    lower = stats.beta.ppf(0.05, hits, runs - hits + 1) if hits else 0.0
    assert share.lower() == pytest.approx(lower, rel=1e-6, abs=1e-9)
