"""`leakline report` and `run.report()`: the tables people know from printed profiler output."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import leakline
from leakline.cli import main
from leakline.report import (
    GENERATION_ENDS_READ,
    WHOLE_UP_TO_BYTES,
    _generation_ends,
    build,
    closing_line,
    load,
    report_text,
    spools_by_run,
)
from leakline.report.build import trend
from leakline.report.render import gib, render, signed_gib
from leakline.snapshot import Batch, Event, LargeObject, ProcessIdentity, RunHeader, Snapshot
from leakline.spool import read_batches
from leakline.spool_file import SpoolFile

GIB = 2**30
HEADER = RunHeader("run-1", "erl", "before-fix", "generation", 3, 1.0)
PROCESS = ProcessIdentity("instance-1", pid=7, host="box")


class Story:
    """Writes a spool row by row: label, phase, GiB, and counts of a class."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "run-1" / "instance-1.spool"
        self.file = SpoolFile(self.path, HEADER, PROCESS)
        self.sequence = 0

    def row(
        self, generation: int | None, phase: str | None, size: float, count: int, kind: str = "phase_end",
        label: str | None = None, large: tuple[LargeObject, ...] = (), events: tuple[Event, ...] = (),
    ) -> None:  # fmt: skip
        self.sequence += 1
        samples = {
            "process.rss_bytes": int(size * GIB), "process.vms_bytes": int(12.45 * GIB),
            "process.anon_bytes": int(size * GIB), "type.trading.Environment.count": count,
        }  # fmt: skip
        text = label or f"generation {generation}: " + (f"after {phase}" if phase else "end")
        now = float(self.sequence)
        snapshot = Snapshot(
            self.sequence, now, now, generation, phase, text, kind, samples, events, large
        )
        self.file.append(Batch(PROCESS, (snapshot,), {"thinned": 4}))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    story = Story(tmp_path)
    bounds = {"low": 2, "high": 2, "after": None}
    expected = Event(1, 1.0, "expect", "trading.Environment", None, None, bounds)
    story.row(None, None, 4.23, 2, "baseline", "Trainer initialized (baseline)", events=(expected,))
    story.row(0, "evaluate_population", 8.52, 18)
    story.row(0, "train_population", 9.12, 18)
    story.row(0, None, 9.45, 18, "generation_end")
    story.row(1, "evaluate_population", 10.23, 34)
    story.row(1, "evaluate_population/run_episode", 10.24, 34)
    large = (LargeObject(7, "numpy.ndarray", int(2345.67 * 2**20), "(50000, 96) float32", "train.replay"),)  # fmt: skip
    story.row(1, None, 11.12, 34, "generation_end", large=large)
    return story


def test_a_folder_without_spools_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no spool" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "gone")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_an_unknown_label_is_told_so(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(story.path), "--since", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_damaged_spool_beside_a_good_one_does_not_hide_it(story: Story) -> None:
    (story.path.parent / "torn.spool").write_bytes(b"LEAKSPL1")
    assert "before-fix" in report_text(story.path.parent)


def test_the_trend_has_the_change_to_the_row_above_and_to_the_same_phase(story: Story) -> None:
    (history,) = load([story.path]).history.processes
    rows = trend(history)
    changes = [None if r.since_previous is None else round(r.since_previous / GIB, 2) for r in rows]
    assert changes == [None, 4.29, 0.60, 0.33, 0.78, 0.89]
    same = {r.label: r.since_same_phase for r in rows}
    assert round((same["generation 1: after evaluate_population"] or 0) / GIB, 2) == 1.71
    assert all("run_episode" not in r.label for r in rows)


def test_growth_is_told_against_the_first_snapshot_in_bytes_and_percent(story: Story) -> None:
    text = report_text(story.path)
    assert "+6.89 GiB   (+162.9 %)" in text
    assert "trading.Environment" in text
    assert "2 ->         34         +32" in text


def test_growth_is_told_against_a_named_snapshot(story: Story) -> None:
    text = report_text(story.path, since="generation 0: end")
    assert "+1.67 GiB" in text
    assert "18 ->         34         +16" in text


def test_the_report_has_all_its_parts(story: Story) -> None:
    text = report_text(story.path.parent.parent)
    for part in ("MEMORY SNAPSHOT", "MEMORY TREND", "MEMORY GROWTH", "LARGE OBJECTS", "VERDICT"):
        assert part in text
    assert "RSS (actual RAM):            11.12 GiB" in text
    assert "VMS (virtual):               12.45 GiB" in text
    assert "should be 2" in text
    assert "2,345.67 MiB   numpy.ndarray (50000, 96) float32   train.replay" in text
    assert "4 thinned" in text


def test_a_long_trend_shows_its_beginning_and_its_end(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for generation in range(200):
        story.row(generation, None, 1 + generation / 100, 2, "generation_end")
    text = render(build(load([story.path])))
    assert "generation 0: end" in text
    assert "generation 199: end" in text
    assert "140 rows left out" in text


def test_sizes_have_two_decimals_and_say_their_unit() -> None:
    assert gib(4.234 * GIB) == "4.23 GiB"
    assert (signed_gib(-0.5 * GIB), signed_gib(None)) == ("-0.50 GiB", "")


def test_a_running_program_prints_its_own_report(offline: leakline.Run) -> None:
    for generation in range(3):
        offline.generation(generation)
        with offline.phase("train"):
            pass
    text = offline.report()
    assert "generation 1: end" in text
    offline.snapshot("before the crash")
    banner = offline.report().partition("MEMORY SNAPSHOT: ")[2].partition("MEMORY TREND")[0]
    assert banner.startswith("before the crash\n")
    for line in ("RSS (actual RAM):", "VMS (virtual):", "Objects:"):
        assert line in banner
    offline.finish()
    assert "generation 2: end" in offline.report()


def test_two_runs_in_one_folder_are_both_reported(spool_directory: Path) -> None:
    for name in ("first", "second"):
        leakline.init(mode="offline", quiet=True, name=name).finish()
    text = report_text(spool_directory)
    assert text.index("Run first") < text.index("Run second")
    assert len(spools_by_run(spool_directory)) == 2


def test_reporting_needs_no_server_and_no_heavy_library(story: Story) -> None:
    code = (
        "import sys; from leakline.cli import main; main(['report', sys.argv[1]]);"
        "assert not {'fastapi', 'numpy', 'torch', 'http.client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(story.path)], check=True, capture_output=True)


def test_the_closing_line_of_a_long_run_reads_a_bounded_part_up_to_the_end(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for generation in range(1500):
        story.row(generation, "train", 2.0 + generation / 100, 18)
        story.row(generation, None, 2.0 + generation / 100, 18, "generation_end")
    assert story.path.stat().st_size > WHOLE_UP_TO_BYTES
    seen = [s for batch in _generation_ends(story.path) for s in batch.snapshots]
    assert GENERATION_ENDS_READ // 2 < len(seen) <= GENERATION_ENDS_READ
    assert {s.kind for s in seen} == {"generation_end"}
    numbers = sorted({s.generation for s in seen if s.generation is not None})
    assert numbers[-1] == 1499
    assert max(b - a for a, b in itertools.pairwise(numbers)) <= 8
    assert closing_line(story.path).startswith(("confirmed", "suspected"))


def test_a_bounded_reading_keeps_the_last_generation_end_of_every_batch(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for generation in range(900):
        story.row(generation, None, 2.0, 18, "generation_end")
    rows = tuple(s for batch in read_batches(story.path) for s in batch.snapshots)
    file = SpoolFile(tmp_path / "run-1" / "instance-2.spool", HEADER, PROCESS)
    for start in range(0, 900, 150):
        file.append(Batch(PROCESS, rows[start : start + 150], {}))
    seen = [
        s.generation
        for batch in _generation_ends(tmp_path / "run-1" / "instance-2.spool")
        for s in batch.snapshots
    ]
    assert 300 < len(seen) <= GENERATION_ENDS_READ
    assert seen[-1] == 899
