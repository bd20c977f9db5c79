"""Short runs of `make bench-server`, `bench-client`, `bench-pages` and `bench-detection`.

They check that the benchmarks measure what they claim, and that their checks can fail.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
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
from benchmarks.server import (
    bodies,
    kills,
    latency,
    rows,
)
from benchmarks.server.__main__ import PROGRAM
from benchmarks.server.samples import NAMES, Samples, samples, stream
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from leakline.analysis import examine
from leakline.snapshot import CONTENT_TYPE, batch_to_bytes
from leakline.transport.http_delivery import pack

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
STARTED = 1_760_000_000.0


def bench(package: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("CHECK", "ROWS", "FRESH")
    }
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{package}", *arguments],
        cwd=ROOT, env={**kept, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("package", "setting"), [("server", "ROWS"), ("client", "PARTS"), ("detection", "FAMILIES")]
)
def test_an_unknown_name_is_reported(package: str, setting: str) -> None:
    ended = bench(package, SHORT="1", **{setting: "reeds"})
    assert ended.returncode != 0
    assert f"bench-{package}: {setting} has 'reeds'" in ended.stderr


# -- bench-server: every server receives the same numbers ----------------------------------------------------


@pytest.fixture(scope="module")
def part() -> Samples:
    return samples(3, 20, STARTED)


def test_a_snapshot_has_65_numbers_and_stream_pieces_are_continuous() -> None:
    pieces = list(stream(1, 50, STARTED, piece=20))
    assert len(NAMES) == 65
    assert [piece.first for piece in pieces] == [0, 20, 40]
    assert [piece.count for piece in pieces] == [20, 20, 10]
    steps = [int(b.columns["python.objects"][0]) - int(a.columns["python.objects"][-1])
             for a, b in itertools.pairwise(pieces)]  # fmt: skip
    assert all(abs(step) < 1_000 for step in steps)


def test_our_bodies_are_those_of_the_client(part: Samples) -> None:
    batch = bodies.leakline_batch(part)
    assert [snapshot.time for snapshot in batch.snapshots] == part.times.tolist()
    columns = {n: [s.samples[n] for s in batch.snapshots] for n in NAMES}
    assert columns == {name: values.tolist() for name, values in part.columns.items()}
    named = replace(batch, process=replace(batch.process, instance="r1"))
    assert bodies.Written(batch).body("r1") == pack(batch_to_bytes(named), CONTENT_TYPE)


def test_remote_write_has_the_same_numbers_and_times(part: Samples) -> None:
    series = [_series(each) for _, each in _fields(bodies.write_request("r1", part))]
    assert [labels for labels, _ in series] == [
        {"__name__": name.replace(".", "_"), "run": "r1"} for name in NAMES
    ]
    milliseconds = [round(time * 1e3) for time in part.times.tolist()]
    for name, (_, points) in zip(NAMES, series, strict=True):
        assert points == list(zip(part.columns[name].tolist(), milliseconds, strict=True))


def test_an_influx_line_has_the_same_numbers(part: Samples) -> None:
    body = bodies.lines("r1", part).partition(b"\r\n\r\n")[2].decode().splitlines()
    assert len(body) == part.count
    key, fields, moment = body[7].split(" ")
    given = dict(field.split("=") for field in fields.split(","))
    assert (key, int(moment)) == ("snapshot,run=r1", round(float(part.times[7]) * 1e3))
    assert {name: float(text.rstrip("i")) for name, text in given.items()} == {
        name: float(values[7]) for name, values in part.columns.items()
    }


def test_a_figure_fails_below_its_target_or_without_a_measurement() -> None:
    assert rows.Figure("a", 2.5, 2.6, at_least=True).verdict() == "ok"
    assert rows.Figure("a", 2.5, 2.4, at_least=True).verdict() == "SHORT"
    assert rows.Figure("a", 10.0, 10.1).verdict() == "SHORT"
    absent = rows.Figure("a", 10.0, missing="influxd is not installed")
    assert (absent.holds, absent.verdict()) == (False, "not measured: influxd is not installed")


def test_a_latency_without_sealing_is_not_measured() -> None:
    probed = latency.Probed([0.001] * 200, 0.5, sealed=0.0, sent=40_000)
    assert not latency.figure([probed], 1.0, "").holds
    assert latency.figure([replace(probed, sealed=39_000.0)], 1.0, "").holds


@pytest.mark.parametrize(
    ("status", "last", "failed"),
    [
        (0, "3 passed, 2 warnings in 61.20s (0:01:01)", 0),
        (1, "1 failed, 2 passed in 61.20s", 1),
        (0, "1 passed, 2 skipped in 61.20s", None),
        (0, "2 passed in 61.20s", None),
        (2, "3 passed in 61.20s", None),
    ],
)
def test_kills_count_only_when_all_their_tests_ran(
    status: int, last: str, failed: int | None
) -> None:
    assert kills.failures(status, last) == failed


def test_the_check_names_what_it_did_not_check(capsys: pytest.CaptureFixture[str]) -> None:
    whole, good = replace(PROGRAM, shortened=False), rows.Figure("a", 10.0, 1.0)
    assert whole.check([good], ["ingest", "disk"]) == 0
    warned = capsys.readouterr().err
    assert "kills" in warned
    assert "disk" not in warned
    assert replace(PROGRAM, shortened=True).check([good], ["ingest"]) == 1
    assert "SHORT=1" in capsys.readouterr().err
    assert whole.check([], ["loggers"]) == 1
    assert whole.check([good, rows.Figure("b", 1.0, missing="gone")], ["ingest"]) == 1


def test_a_server_part_runs_and_the_check_fails_for_a_missed_target(
    tmp_path: Path,
) -> None:
    written = tmp_path / "rows.json"
    short = {"SHORT": "1", "CHECK": "1", "LEAKLINE_BENCH_SCALE": "0.0001"}
    ended = bench("server", "--json", str(written), ROWS="list", **short)
    assert ended.returncode == 1, ended.stderr
    assert "bench-server: list of 300 runs: a page of 100 with sparklines: " in ended.stderr
    assert "bench-server: SHORT=1 measures less than what is held" in ended.stderr
    (part,) = json.loads(written.read_text())["parts"]
    assert [line["note"] for line in part["lines"][:2]] == ["100 runs, 100 with a sparkline"] * 2
    assert part["figures"][0]["verdict"] == "SHORT"


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """Return (number, payload) of each field of a protocol buffer message."""
    unknown = Empty()
    unknown.ParseFromString(message)
    return [(each.field_number, each.data) for each in UnknownFieldSet(unknown)]


def _series(message: bytes) -> tuple[dict[str, str], list[tuple[Any, int]]]:
    labels: dict[str, str] = {}
    points = []
    for number, payload in _fields(message):
        inner = dict(_fields(payload))
        if number == 1:
            labels[inner[1].decode()] = inner[2].decode()
        else:
            (value,) = struct.unpack("<d", struct.pack("<Q", inner[1]))
            points.append((value, inner[2]))
    return labels, points


# -- bench-client ------------------------------------------------------------------------------------------

SMALLEST = {"HEAPS": "100000", "PARTS": "census", "REPEATS": "3"}


def test_every_scan_is_measured_and_the_check_fails_for_a_missed_target(
    tmp_path: Path,
) -> None:
    out_of_reach = {"CHECK": "1", "LEAKLINE_BENCH_SCALE": "0.001"}
    ended = bench("client", "--json", str(tmp_path / "rows.json"), **SMALLEST, **out_of_reach)
    assert ended.returncode == 1
    assert "a phase end: CPU ms" in ended.stderr
    found = {row["name"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert all(name in ended.stdout for name in found)
    assert found["reference"]["figures"]["ratio"] == 1.0
    ours = {"a phase end", "a nested phase end", "full census, native", "full census, in slices"}
    assert ours < found.keys() and any(name.startswith("holders of ") for name in found)
    assert all(row["missing"] or row["figures"]["cpu_ms"] > 0 for row in found.values())
    # The pure Python census has the same counts as brute force.
    figures = found["full census, pure Python"]["figures"]
    assert (figures["arrays_found"], figures["classes_off"]) == (15_000, 0)


# -- bench-pages, in a real browser ------------------------------------------------------------------------


@pytest.mark.soak
def test_every_page_row_is_measured_and_the_check_fails_for_a_missed_target(
    tmp_path: Path,
) -> None:
    written = tmp_path / "rows.json"
    short = {"SHORT": "1", "CHECK": "1", "LEAKLINE_BENCH_SCALE": "0.0001"}
    ended = bench("pages", "--json", str(written), **short)
    assert ended.returncode == 1, ended.stderr
    assert "bench-pages: SHORT=1 measures less than what is held" in ended.stderr
    parts = json.loads(written.read_text())["parts"]
    figures = {each["name"]: each for part in parts for each in part["figures"]}
    for name in ("first chart after the navigation", "main thread per update, charts in view",
                 "300 runs listed by a search", "page weight, compressed, in all"):  # fmt: skip
        assert figures[name]["value"] > 0, figures[name]["missing"]
        assert figures[name]["verdict"] == "SHORT"
    assert figures["charts out of view that an update draws"]["value"] == 0


# -- bench-detection: its output, its check, and the ground truth of its corpus


SMOKE = {"RUNS": "1", "FAMILIES": "flat,linear", "JOBS": "1", "SOAK": "40"}
# Families in which other memory changes besides the leak.
NOT_ALONE = (
    "rising sawtooth", "fill and leak", "readable fill and leak", "after full", "warm-up and leak",
)  # fmt: skip
ALL = [family.name for family in (*HEALTHY, *LEAKING)]


def test_bench_detection_prints_a_line_for_each_family_and_figure(tmp_path: Path) -> None:
    document = tmp_path / "all.md"
    written = tmp_path / "all.json"
    files = ("--json", str(written), "--markdown", str(document))
    ended = bench("detection", *files, **SMOKE, FRESH="word")
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
    ended = bench("detection", **{**SMOKE, "CHECK": "1", "FAMILIES": "flat"})
    assert ended.returncode == 1
    assert "bench-detection: A2, leaks of >= 0.5 %/generation confirmed" in ended.stderr
    assert "was not measured" in ended.stderr


@cache
def theirs() -> tuple[str, ...]:
    return tuple(evaluated(Draw(PUBLIC, "flat", 0)).baselines)


def outcome(family: str, number: int, suspects: int | None, sure: float, **more: Any) -> Outcome:
    """Return the outcome of a run that all baselines suspect at the same reading with the same strength."""
    if family == "linear":
        more = {"start": 0, **more}
    baselines, strongest = dict.fromkeys(theirs(), suspects), dict.fromkeys(theirs(), sure)
    return Outcome(family, number, 90, baselines=baselines, strongest=strongest, **more)


def test_a_false_alarm_and_a_missed_leak_miss_their_targets() -> None:
    alarmed = outcome("flat", 0, None, 1.0, suspected=20)
    missed = outcome("linear", 0, 40, 1.0, slope=0.03)
    short = {(f.code, f.name): f.failure() for f in figures([alarmed, missed]) if f.failure()}
    named = "healthy runs ever suspected, bounds declared where the code has them"
    assert short["A1", named] == "100.0 % is not <= 5.0 %"
    assert any(code == "A2" and "0.0 % is not >= 98.0 %" in why for (code, _), why in short.items())
    assert any(code == "A3" for code, _ in short)


def test_fewer_false_alarms_do_not_beat_a_detector_that_finds_more_leaks() -> None:
    runs = [outcome("flat", 0, 9, 1.0), outcome("linear", 0, 40, 1.0, slope=0.03)]
    held = [f for f in figures(runs) if f.is_held and "no fewer leaks found" in f.name]
    assert [f.failure() for f in held] == ["they find more leaks than either of our levels"] * 5


@pytest.mark.parametrize(
    ("ours", "others", "ratio"), [(1, 4, 4.0), (0, 4, float("inf")), (2, 0, 0.0)]
)
def test_detectors_are_compared_at_equal_recall(ours: int, others: int, ratio: float) -> None:
    """We find three of four leaks, so the baselines are compared at their strength for the third."""
    leaks = [outcome("linear", i, None, 2.0 + i, suspected=30 if i else None) for i in range(4)]
    healthy = [
        outcome("flat", i, None, 3.5 if i < others else 2.9, suspected=40 if i < ours else None)
        for i in range(8)
    ]
    found = [f for f in figures([*healthy, *leaks]) if "finds as many" in f.name]
    assert [f.value for f in found] == [ratio] * 5


def test_recorded_memory_is_read_from_files_and_split_into_runs(tmp_path: Path) -> None:
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


def test_a_folder_without_series_is_reported() -> None:
    ended = bench("detection", **{**SMOKE, "FAMILIES": "flat", "SOAK": "0", "RECORDED": "nowhere"})
    assert (ended.returncode, ended.stdout.count("bench-detection")) == (1, 0)
    assert ended.stderr.strip() == "bench-detection: RECORDED: nowhere holds no .csv file"


@pytest.mark.parametrize("family", ALL)
def test_the_same_word_draws_the_same_run(family: str) -> None:
    case = drawn(Draw(PUBLIC, family, 3))
    assert case == drawn(Draw(PUBLIC, family, 3))
    assert case.private != drawn(Draw("another word", family, 3)).private
    assert 30 <= len(case) <= 150
    assert len(case.clean) == len(case.generation) == len(case.attempt) == len(case)
    assert all(len(values) == len(case) for values in (*case.others.values(), *case.inside))
    if case.leak is None:
        assert case.out_at is None and max(case.clean) < case.limit_bytes


def test_several_processes_return_the_same_outcomes_as_one() -> None:
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


@pytest.mark.parametrize(
    "family", ["steps", "declared fill", "resume", "late start", "two at once", "children"]
)
def test_each_incremental_result_equals_a_full_examination(family: str) -> None:
    case = FAMILIES[family].make(random.Random(f"looks {family}"), 36)
    recording = Recording(case, witness=True)
    for i, look in enumerate(looks(case, witness=True)):
        verdict = examine(recording.until(i + 1))
        active = verdict.status if verdict.status in ("suspected", "confirmed") else ""
        assert (look.level, look.warned) == (active, verdict.oom.risk != "none"), i


def _readings(seed: int, n: int, digits: int) -> list[float]:
    rng = random.Random(seed)
    found, last = [], 0.0
    for i in range(n):
        last = 0.5 * last + rng.gauss(0, 1)
        found.append(round(last + 0.02 * i, digits))
    return found


@pytest.mark.parametrize(("seed", "n", "digits"), [(1, 12, 6), (2, 40, 6), (3, 90, 1), (4, 40, 0)])
def test_kendalls_score_and_p_value_match_scipy(seed: int, n: int, digits: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    readings, test = _readings(seed, n, digits), MannKendall()
    for value in readings:
        test.add(value)
    pairs = [(a, b) for i, a in enumerate(readings) for b in readings[i + 1 :]]
    assert test.score == sum((b > a) - (b < a) for a, b in pairs)
    asymptotic = stats.kendalltau(range(n), readings, method="asymptotic")
    p = 2 * stats.norm.sf(abs(test.score) / test.variance() ** 0.5)
    assert p == pytest.approx(asymptotic.pvalue, rel=1e-9)


@pytest.mark.parametrize(("hits", "runs"), [(0, 5), (3, 80), (79, 80), (40, 2040)])
def test_bounds_of_shares_match_the_beta_distribution(hits: int, runs: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    share = Share(hits, runs)
    assert share.upper() == pytest.approx(stats.beta.ppf(0.95, hits + 1, runs - hits), rel=1e-6)
    lower = stats.beta.ppf(0.05, hits, runs - hits + 1) if hits else 0.0
    assert share.lower() == pytest.approx(lower, rel=1e-6, abs=1e-9)
