"""`leakline report` and `run.report()`: tables like those of printed profiler output, and Markdown."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from tests.browser.hostile_labels import LABELS

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
from leakline.report.document import Origin, issue_text, run_markdown
from leakline.report.document_blocks import bullets, code, escape, one_line, table
from leakline.report.html_fragment import html_fragment
from leakline.report.report_data import run_report, trend
from leakline.report.terminal_text import render, signed_gib
from leakline.report.verdict_facts import change_interval, forecast, graph_rates, with_graphs
from leakline.snapshot import (
    Batch,
    Event,
    LargeObject,
    Number,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)
from leakline.text_format import format_count, format_gib, format_rate, short_name
from leakline.transport.spool_file import SpoolFile
from leakline.transport.spool_format import read_batches

GIB = 2**30
RUNS = Path(__file__).resolve().parents[1] / "data" / "runs"
HEADER = RunHeader("run-1", "erl", "before-fix", "generation", 3, 1.0)
PROCESS = ProcessIdentity("instance-1", pid=7, host="box")


class Story:
    """Writes a spool row by row."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "run-1" / "instance-1.spool"
        self.file = SpoolFile(self.path, HEADER, PROCESS)
        self.sequence = 0

    def row(
        self, generation: int | None, phase: str | None, size: float, count: int, kind: str = "phase_end",
        label: str | None = None, large: tuple[LargeObject, ...] = (), events: tuple[Event, ...] = (),
    ) -> None:  # fmt: skip
        """Append a snapshot. ``size``: resident GiB; ``count``: number of environments."""
        text = label or f"generation {generation}: " + (f"after {phase}" if phase else "end")
        samples: dict[str, Number] = {
            "process.rss_bytes": int(size * GIB), "process.vms_bytes": int(12.45 * GIB),
            "process.anon_bytes": int(size * GIB), "type.trading.Environment.count": count,
        }  # fmt: skip
        self.append(samples, generation, phase, text, kind, events, large)

    def end(self, generation: int, samples: dict[str, Number], *events: Event) -> None:
        self.append(samples, generation, None, f"{generation}: end", "generation_end", events, ())

    def append(
        self, samples: dict[str, Number], generation: int | None, phase: str | None, label: str, kind: str,
        events: tuple[Event, ...], large: tuple[LargeObject, ...],
    ) -> None:  # fmt: skip
        self.sequence += 1
        snapshot = Snapshot(
            self.sequence, self.sequence, self.sequence, generation, phase, label, kind,
            {"process.rss_bytes": GIB, **samples}, events, large,
        )  # fmt: skip
        self.file.append(Batch(PROCESS, (snapshot,), {"thinned": 4}))

    def lines(self) -> list[str]:
        """Return the report's lines with runs of blanks reduced to one."""
        return [" ".join(line.split()) for line in report_text(self.path).splitlines()]


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
    large = (
        LargeObject(7, "numpy.ndarray", round(2345.67 * 2**20), "(50000, 96) float32", "train.replay"),
        LargeObject(7, "dict", round(89.45 * 2**20), ""),
    )  # fmt: skip
    story.row(1, None, 11.12, 34, "generation_end", large=large)
    return story


def test_a_folder_without_spools_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "contains no spool" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "gone")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_an_unknown_label_is_an_error_that_names_it(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(story.path), "--since", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_damaged_spool_does_not_hide_a_good_one_next_to_it(story: Story) -> None:
    (story.path.parent / "torn.spool").write_bytes(b"LEAKSPL1")
    assert "before-fix" in report_text(story.path.parent)


def test_the_trend_shows_changes_to_the_previous_row_and_same_phase(story: Story) -> None:
    (history,) = load([story.path]).history.processes
    rows = trend(history)
    changes = [None if r.since_previous is None else round(r.since_previous / GIB, 2) for r in rows]
    assert changes == [None, 4.29, 0.60, 0.33, 0.78, 0.89]
    same = {r.label: r.since_same_phase for r in rows}
    assert round((same["generation 1: after evaluate_population"] or 0) / GIB, 2) == 1.71
    assert all("run_episode" not in r.label for r in rows)


def test_growth_since_the_first_snapshot_is_in_bytes_and_percent(story: Story) -> None:
    text = report_text(story.path)
    assert "+6.89 GiB   (+162.9 %)" in text
    assert "trading.Environment" in text
    assert "2 ->         34         +32" in text


def test_growth_can_be_measured_from_a_named_snapshot(story: Story) -> None:
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
    assert "4 thinned" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    largest = lines.index("2,345.67 MiB numpy.ndarray (50000, 96) float32 train.replay")
    assert lines[largest + 1] == "89.45 MiB dict"


def test_the_report_shows_devices_buffers_gauges_times_and_cleanups(tmp_path: Path) -> None:
    story = Story(tmp_path)
    samples: dict[str, Number] = {
        "cuda.0.allocated_bytes": round(0.15 * GIB), "cuda.0.reserved_bytes": GIB // 2,
        "tracked.agent_memory.length": 15_680, "tracked.agent_memory.capacity": 50_000,
        "tracked.agent_memory.bytes": 120 * 2**20, "tracked.agent_memory.device_bytes": 20 * 2**20,
        "tracked.experience.length": 1_200, "tracked.experience.capacity": 2_000,
        "gauge.pending_uploads": 3, "generation.seconds": 940.4,
    }  # fmt: skip
    freed = {"before_bytes": 3 * 2**20, "after_bytes": 2**20, "freed_bytes": 2**21, "seconds": 0.1}
    story.end(1, samples, Event(1, 1.0, "cleanup", "agent", 1, None, freed))
    story.end(2, {**samples, "generation.seconds": 945.2})
    lines = story.lines()
    for line in (
        "GPU 0 allocated, live tensors: 0.15 GiB", "GPU 0 reserved by torch: 0.50 GiB",
        "agent_memory: 15,680 of 50,000 (31 %) 120.00 MiB, 100.00 MiB of it on the host, 20.00 MiB on devices",
        "experience: 1,200 of 2,000 (60 %)", "pending_uploads: 3",
        "Time per generation: 945.20 s, 942.80 s on average", "agent ran once and freed 2.00 MiB.",
    ):  # fmt: skip
        assert line in lines, line


def test_each_changed_count_shows_old_new_difference_and_rating(tmp_path: Path) -> None:
    """After three generations it is unknown whether undeclared counts that rose are a leak."""
    story = Story(tmp_path)
    counts = {
        "app.TradingEnvironment": (2, 2, "+0 expected (expected 2)"),
        "app.DDPGAgent": (16, 17, "+1 expected (expected 16 to 17)"),
        "numpy.ndarray": (1234, 15_678, "+14,444 not known yet"),
        "app.Gone": (3, 1, "-2 good"),
        "app.Leaked": (1, 18, "+17 problem (expected 1)"),
    }
    bounds = (("app.TradingEnvironment", 2, 2), ("app.DDPGAgent", 16, 17), ("app.Leaked", 1, 1))
    declared = [
        Event(1, 1.0, "expect", name, data={"low": low, "high": high, "after": None})
        for name, low, high in bounds
    ]
    for number in (1, 2, 3):
        samples = {f"type.{name}.count": each[number > 1] for name, each in counts.items()}
        story.end(number, samples, *(declared if number == 1 else ()))
    lines = story.lines()
    for name, (old, new, rest) in counts.items():
        assert f"{name} {old:,} -> {new:,} {rest}" in lines, lines


def test_a_long_trend_shows_its_beginning_and_end(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for generation in range(200):
        story.row(generation, None, 1 + generation / 100, 2, "generation_end")
    text = render(build(load([story.path])))
    assert "generation 0: end" in text
    assert "generation 199: end" in text
    assert "140 rows left out" in text


def test_sizes_have_two_decimals_and_a_unit() -> None:
    assert format_gib(4.234 * GIB) == "4.23 GiB"
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


def test_the_exit_summary_of_a_long_run_reads_a_bounded_part(tmp_path: Path) -> None:
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
    seen = [s.generation for batch in _generation_ends(file.path) for s in batch.snapshots]
    assert 300 < len(seen) <= GENERATION_ENDS_READ
    assert seen[-1] == 899


def graphs_of(name: str, rate: float | None, status: str = "confirmed") -> dict[str, Any]:
    suspect = {"name": name, "role": "type", "count_per_generation": rate}
    return {"kind": "graph", "status": status, "suspects": [suspect]}


def test_graphs_of_one_type_in_several_findings_are_added_up() -> None:
    tensor = "torch.Tensor"
    findings = [
        graphs_of(tensor, 20.0), graphs_of(tensor, 16.0, "watch"), graphs_of(tensor, None),
        graphs_of(tensor, 9.0, "recovered"), graphs_of("torch.nn.Parameter", 2.0),
    ]  # fmt: skip
    rates = graph_rates({"findings": findings})
    assert rates == {tensor: 36.0, "torch.nn.Parameter": 2.0}
    assert with_graphs("+36", tensor, rates) == "+36, 36 with a graph"


@pytest.mark.parametrize(
    ("risk", "limit", "generation", "said"),
    [
        ("critical", 2**30, {"estimate": 1414.6, "low": 1400.0, "high": 1500.0}, "OOM near epoch 1,415, critical risk"),
        ("none", 2**30, None, "not in sight"),
        ("low", 2**30, None, "not known, low risk"),
        ("none", None, None, "not known"),
    ],
)  # fmt: skip
def test_a_forecast_of_an_older_server_keeps_its_known_end(
    risk: str, limit: int | None, generation: Any, said: str
) -> None:
    oom = {"risk": risk, "limit_bytes": limit, "generation": generation}
    assert forecast(oom, "epoch") == said


def test_a_difference_shows_its_interval_if_the_ends_differ() -> None:
    mib = 2**20
    wide = {"estimate": -20.0 * mib, "low": -24.0 * mib, "high": -16.0 * mib}
    said = "-20.00 MiB per generation (-24.00 MiB to -16.00 MiB)"
    assert change_interval(wide, " per generation") == said
    narrow = dict.fromkeys(("estimate", "low", "high"), -20.0 * mib)
    assert change_interval(narrow, " per generation") == "-20.00 MiB per generation"
    assert change_interval(None) == "not measured"


@pytest.mark.parametrize(
    ("state", "reason", "how"),
    [
        ("failed", "ValueError", "failed: ValueError"), ("failed", "MemoryError", "failed: MemoryError"),
        ("terminated", "SIGTERM", "killed by SIGTERM"), (None, "", "without notice"),
    ],
)  # fmt: skip
def test_the_report_shows_how_each_process_ended_and_its_last_lines(
    tmp_path: Path, state: str | None, reason: str, how: str
) -> None:
    story = Story(tmp_path)
    story.end(1, {}, Event(1, 1.0, "log", "", data={"lines": ["epoch 0: loss 0.5"]}))
    if state:
        story.file.append_end({"state": state, "ended_at": 2.0, "reason": reason})
    story.file.close()
    lines = story.lines()
    told = lines.index("HOW IT ENDED") + 2
    assert lines[told : told + 3] == [
        f"rank 0, process 7 on box, attempt 1: {how}", "last lines:", "| epoch 0: loss 0.5",
    ]  # fmt: skip


def test_the_report_of_a_live_or_finished_run_has_no_endings(spool_directory: Path) -> None:
    run = leakline.init(mode="offline", quiet=True)
    run.generation(0)
    assert "HOW IT ENDED" not in run.report()
    run.finish()
    assert "HOW IT ENDED" not in report_text(spool_directory)


DATA = Path(__file__).parents[1] / "data"


def device_lines(samples: dict[str, Number], tmp_path: Path) -> list[str]:
    """Return the lines of the report between process memory and objects."""
    story = Story(tmp_path)
    story.end(0, samples)
    lines = report_text(story.path).splitlines()
    if "GPU memory:" not in lines:
        return []
    return lines[lines.index("GPU memory:") + 1 : lines.index("Objects:")]


def test_each_device_shows_memory_and_failures_in_numeric_order(
    tmp_path: Path,
) -> None:
    samples = json.loads((DATA / "gpu_two_h200.json").read_text(encoding="utf-8"))["expected"]
    metal = {"mps.allocated_bytes": 2 * GIB, "mps.limit_bytes": 48 * GIB}
    lines = device_lines({"gpu.10.used_bytes": GIB, **samples, **metal}, tmp_path)
    assert "   GPU 0 allocated, live tensors:           61.50 GiB" in lines
    assert "   GPU 0 outside torch:                      1.50 GiB" in lines
    assert f"   {'GPU 0 allocation retries:':<36}{2:>10}" in lines
    assert "   GPU 1 all processes, driver:             12.50 GiB" in lines
    assert "   Metal allocated, live tensors:            2.00 GiB" in lines
    assert "   Metal recommended limit:                 48.00 GiB" in lines
    assert not any("GPU 1 out of memory" in line for line in lines)
    assert sum("torch sees only its own allocator" in line for line in lines) == 1
    numbers = [int(line.split()[1]) for line in lines if line.startswith("   GPU ")]
    assert numbers == sorted(numbers) and set(numbers) >= {0, 1, 10}


@pytest.mark.parametrize(
    "samples", [{}, {"cuda.0.retries": 0}, {"gpu.mine.used_bytes": 1, "gpu.x": 2}]
)
def test_without_a_device_the_report_has_no_device_part(samples: Any, tmp_path: Path) -> None:
    assert device_lines(samples, tmp_path) == []


HOSTILE = (
    "[click](javascript:alert(1))",
    "![x](https://evil.example/x.png)",
    "a | b | c",
    "`tick` and ``two``",
    "back\\slash \\| bar",
    "**bold** __init__ _a_ *b* ~~gone~~",
    "first\nsecond\r\n# heading\n\n- point",
    "# heading",
    "- point",
    "1. point",
    "2) point",
    "> quote",
    "=== rule",
    "--- rule",
    "&lt;b&gt; &amp; &#60;",
    "trailing \\",
    "\u202eturned round\u202c",
    "$x$ and <https://evil.example>",
    "[label]: https://evil.example",
    "thanks @octocat and @github/security",
    "`@octocat`",
    *LABELS,
)
PLAIN = (
    "evaluate_population keeps 16 TradingEnvironment per generation: 6.88 GiB since generation 1",
    "torch 2.13.0 -> 2.13.1",
    "erl-trading",
)


def parsed(text: str) -> list[Any]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def shown(text: str) -> str:
    """Return the visible text; fail on anything but text, code spans and the frame around them."""
    said = []
    for token in parsed(text):
        for part in token.children or ():
            assert part.type in ("text", "text_special", "code_inline"), part.type
            # The character that prevents a mention is invisible.
            said.append(part.content.replace("@\u2060", "@"))
    return "".join(said)


def frames(text: str) -> list[str]:
    return [token.type for token in parsed(text)]


@pytest.mark.parametrize("write", (escape, code))
def test_names_are_shown_literally(write: Any) -> None:
    for name in (*HOSTILE, *PLAIN):
        assert frames(write(name)) == ["paragraph_open", "inline", "paragraph_close"], name
        assert shown(write(name)) == one_line(name)


@pytest.mark.parametrize("write", (escape, code))
def test_a_name_in_a_table_stays_in_its_cell(write: Any) -> None:
    for name in HOSTILE:
        text = "\n".join(table(("name", "#count"), [(write(name), "7"), (write("next"), "8")]))
        cells = [token.content for token in parsed(text) if token.type == "inline"]
        assert len(cells) == 6, name
        assert (cells[0], cells[1], cells[3], cells[5]) == ("name", "count", "7", "8")
        assert shown(text) == f"namecount{one_line(name)}7next8"


def test_a_name_in_a_list_is_one_item() -> None:
    for name in HOSTILE:
        text = "\n".join(bullets([name, f"   {name}"]))
        assert frames(text).count("list_item_open") == 2, name
        assert shown(text) == one_line(name) * 2


def test_harmless_text_is_not_escaped() -> None:
    assert [escape(name) for name in PLAIN] == [*PLAIN]
    assert shown(escape("me@example.org, a @ b")) == "me@example.org, a @ b"


@pytest.mark.parametrize(
    "name", ("https://evil.example", "see www.evil.example", "WWW.evil.example")
)
def test_an_address_does_not_become_a_link(name: str) -> None:
    assert "://" not in escape(name) and "www." not in escape(name).lower()
    assert shown(escape(name)) == name


@pytest.mark.parametrize(
    "name", ("@octocat", "by @octocat: done", "`@octocat`", "(@github/security)")
)
@pytest.mark.parametrize("write", (escape, code))
def test_a_pasted_name_mentions_nobody(write: Any, name: str) -> None:
    """GitHub looks for mentions in the visible text, but not in code spans."""
    told = (part for token in parsed(write(name)) for part in token.children or ())
    text = "".join(part.content for part in told if part.type != "code_inline")
    assert not re.search(r"(?:^|\W)@[A-Za-z0-9]", text)


def test_a_missing_name_is_a_dash_and_an_empty_table_is_omitted() -> None:
    assert code("") == code("\n") == "–"
    assert list(table(("a", "b"), [])) == []


def test_a_notebook_shows_the_first_screen_of_a_run(tmp_path: Path) -> None:
    program = """
import leakline

class Kept:
    def __init__(self):
        self.data = bytearray(300_000)

kept = []
run = leakline.init("demo", mode="offline", name="<b>night</b>", quiet=True, watch=[Kept])
for generation in range(12):
    with run.generation(generation), run.phase("evaluate"):
        kept += [Kept() for _ in range(20)]
print(run._repr_html_())
run.finish()
assert "Kept" in run._repr_html_()
assert leakline.current()._repr_html_() is None
"""
    environment = {**os.environ, "LEAKLINE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )  # fmt: skip
    shown = ran.stdout
    for words in (
        "evaluate keeps 20 Kept per generation",
        "Growth by phase",
        "Memory from",
        "12 generations",
    ):
        assert words in shown
    assert "&lt;b&gt;night&lt;/b&gt;" in shown and "<b>night" not in shown
    assert not re.search(r"<script|\bsrc=|https?://|url\(", shown)
    assert ran.stderr == ""


def test_a_notebook_shows_unknown_values_as_unknown(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.row(None, None, GIB, 1, "baseline")
    story.file.close()
    shown = html_fragment(load([story.path]))
    assert "Learning" in shown and "not measured" in shown
    assert "<svg" not in shown and "Growth by phase" not in shown and "Cause" not in shown


@pytest.mark.parametrize(
    ("name", "growing"),
    [
        ("gradient_hooks", {"GradientRecorder": "1", "Tensor": "8", "RemovableHandle": "1"}),
        # Of 40 tensors, 22 have a graph.
        ("kept_losses", {"Tensor": "22"}),
    ],
)
def test_a_recorded_run_has_one_rate_per_type_everywhere(
    name: str, growing: dict[str, str]
) -> None:
    recording = load([RUNS / f"{name}.spool"])
    report = run_report(recording, Origin("", ""))
    assert report.verdict is not None
    finding = report.verdict["findings"][0]
    counted = {
        suspect["name"]: suspect["count_per_generation"]
        for suspect in finding["suspects"]
        if suspect["role"] == "type"
    }
    assert {short_name(each): format_count(rate) for each, rate in counted.items()} == growing
    (first, number), *_ = growing.items()
    assert re.search(rf" keeps {number} {first}\b.* per generation", report.verdict["summary"])
    assert f" {number} more" in issue_text(report)
    assert f" +{number} per generation" in html_fragment(recording)
    graphs = graph_rates(report.verdict)
    rows = {
        each["name"]: each["count_per_generation"]["estimate"]
        for each in report.types
        if each["name"] in counted
    }
    markdown = run_markdown(report)
    for each, rate in counted.items():
        number = f"grows by {format_rate(rate, 'generation')}"
        lines = [line for line in finding["evidence"] if f" {short_name(each)} " in line]
        assert number in lines[0]
        # A finding on graphs names a part of the tensors; the row has all of them.
        parts = [float(re.findall(r"grows by ([\d.]+)", line)[0]) for line in lines]
        assert graphs.get(each, rows[each]) == rate
        assert format_count(rows[each]) == format_count(sum(parts))
        assert with_graphs(f"+{format_count(rows[each])}", each, graphs) in markdown
