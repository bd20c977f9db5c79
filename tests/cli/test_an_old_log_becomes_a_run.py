"""`leakline import FILE`: files as other programs wrote them, through the real command, to a real server or a spool."""

from __future__ import annotations

import os
import re
import sqlite3
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Said
from tests.cli.old_logs import FILES, leaking, table

from leakline.delivery import request_json

Leakline = Callable[..., Said]
MIB = 2**20


# -- each form ---------------------------------------------------------------------------------------------


def test_printed_blocks_give_the_leak_and_what_does_not_add_up(
    read: Callable[..., dict[str, Any]],
) -> None:
    answer = read(FILES / "blocks_leaking.txt", "--binary")
    verdict = answer["verdict"]
    assert (answer["format"], verdict["unit"], verdict["generations"]) == (
        "blocks",
        "generation",
        6,
    )
    finding = verdict["findings"][0]
    assert finding["phase"] == "evaluate_population"
    assert finding["suspects"][0]["name"] == "MarketEnvironment"
    assert finding["suspects"][0]["count_per_generation"] == 8
    growth = finding["growth_bytes_per_generation"]["estimate"]
    assert growth == pytest.approx(2.45 * 2**30, rel=0.01)
    lines = {slip["line"]: slip["sentence"] for slip in answer["slips"]}
    assert lines[238].startswith("the change is printed as +3.40 GB; the figures give +2.40 GB")
    assert lines[257] == "growth is printed as +412 %; from 3.10 GB to 16.60 GB it is +435.5 %"
    assert lines[262] == "ndarray from 902 to 1,102 is +200, not +220"
    assert lines[272] == "dict of 12.75 MB stands in a list of objects from 50 MB"
    assert lines[39].startswith("MarketEnvironment is 10, and beside it stands that it should be 2")
    assert len(lines) == 10
    assert any("0 in 'Generation' (line 26) and 1 in 'Gen'" in note for note in answer["notes"])


def test_the_same_blocks_add_up_once_they_are_put_right(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    text = (FILES / "blocks_leaking.txt").read_text()
    for wrong, right in (
        ("+3.40", "+2.40"),
        ("+412.0", "+435.5"),
        ("+220", "+200"),
        (">= 50", ">= 10"),
        ("must stay at 2", "grows"),
    ):
        assert wrong in text
        text = text.replace(wrong, right)
    assert read(table(tmp_path, text, "right.txt"))["slips"] == []


REPORT = """\
Root cause: {told} memory leaks, as report 001 told them above a table and a list of fixes.
| class | component | size | file |
| --- | --- | --- | --- |
| CRITICAL | histories | 15-20 GB/gen | a.py |
| CRITICAL | environments | 5-8 GB/gen | b.py |
| MAJOR | populations | 2-3 GB/gen | b.py |
| MAJOR | clones | 3-5 GB/gen | c.py |
| MINOR | figures | ~100 MB/gen | b.py |
| MINOR | losses | 10-20 MB/gen | c.py |
| **TOTAL** | | 25-35 GB/gen | |
{fixes}
Generation 12, RAM: 35.2 GB
Generation 13, RAM: 36.1 GB
"""


@pytest.mark.parametrize(
    ("told", "fixes", "said"),
    [
        (
            "7 distinct", 8,
            "7 leaks are told; 8 fixes are numbered from line 11 on, and the table that ends in line 10 has 6 rows",
        ),
        ("seven", 7, "7 leaks are told; the table that ends in line 10 has 6 rows"),
        ("6", 8, "6 leaks are told; 8 fixes are numbered from line 11 on"),
        ("6", 6, None),
        # One line that names a fix is no list of them.
        ("6", 1, None),
    ],
)  # fmt: skip
def test_leaks_that_are_told_are_counted_beside_fixes_and_rows(
    read: Callable[..., dict[str, Any]], tmp_path: Path, told: str, fixes: int, said: str | None
) -> None:
    numbered = "\n".join(f"### Fix #{n}: something else" for n in range(1, fixes + 1))
    text = REPORT.format(told=told, fixes=numbered)
    slips = read(table(tmp_path, text, "report.txt"))["slips"]
    assert [slip["sentence"] for slip in slips if "leaks are told" in slip["sentence"]] == (
        [] if said is None else [said]
    )


@pytest.mark.parametrize(
    ("sentence", "slip"),
    [
        ("- Large objects: the 20 largest, >= 10MB each", True),
        ("- Large objects: the 20 largest from 50 MB on", False),
        ("- Large objects: the 20 largest", False),
    ],
)
def test_two_limits_of_one_list_are_noticed(
    read: Callable[..., dict[str, Any]], tmp_path: Path, sentence: str, slip: bool
) -> None:
    """Report 004 lists objects from 10 MB in its introduction, and from 50 MB in its table."""
    blocks = (FILES / "blocks_leaking.txt").read_text()
    slips = read(table(tmp_path, f"{sentence}\n{blocks}", "guide.txt"), "--binary")["slips"]
    found = [each["sentence"] for each in slips if "large objects are listed" in each["sentence"]]
    assert found == ["large objects are listed from 50 MB here and from 10 MB in line 1"] * slip


def test_generations_are_moved_by_an_offset(read: Callable[..., dict[str, Any]]) -> None:
    first = read(FILES / "blocks_leaking.txt", "--offset", "-1")["verdict"]["findings"][0]
    assert first["started_at_generation"]["estimate"] == 0


def test_three_rows_of_a_trend_are_enough(read: Callable[..., dict[str, Any]]) -> None:
    answer = read(FILES / "rows_train.txt")
    finding = answer["verdict"]["findings"][0]
    assert (finding["phase"], finding["kind"]) == ("train_population", "tensors")
    assert answer["slips"] == [
        {
            "line": 3,
            "sentence": "the change is printed as +8.56 GB; the figures give +7.56 GB against "
            "the line above and +9.33 GB against the same phase before",
        }
    ]


def test_a_declared_count_names_the_leak_in_two_rows(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = table(
        tmp_path,
        "Gen 1: After evolve_population      9.45 GB\n"
        "Gen 2: After evolve_population     20.12 GB  (+10.67 GB)\n\n"
        "Object Count Changes:\n   Learner : 17 -> 33 (+16)\n",
        "rows.txt",
    )
    finding = read(path, "--expect", "Learner=16-17")["verdict"]["findings"][0]
    assert (finding["phase"], finding["suspects"][0]["name"]) == ("evolve_population", "Learner")


def test_status_lines_count_episodes_and_check_sums(read: Callable[..., dict[str, Any]]) -> None:
    answer = read(FILES / "episodes.log")
    assert (answer["format"], answer["verdict"]["unit"], answer["readings"]) == (
        "status",
        "episode",
        20,
    )
    assert answer["verdict"]["growth_bytes_per_generation"]["estimate"] == pytest.approx(
        250e6, rel=0.05
    )
    by_line = {slip["line"]: slip["sentence"] for slip in answer["slips"]}
    assert "off by a factor of about 1,000 (too high; MB, not GB)" in by_line[142]
    assert "'9-12 GB per episode' is said; the readings of this file grow by" in by_line[143]
    assert len(by_line) == 2


def test_a_unit_that_changes_within_a_file_is_noticed(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    lines = [f"Generation {i}\nRSS: {8.5 + i / 10} {'MB' if i == 3 else 'GB'}" for i in range(6)]
    slips = read(table(tmp_path, "\n".join(lines), "train.log"))["slips"]
    assert [slip["line"] for slip in slips] == [8, 10]
    assert "are both in one unit?" in slips[0]["sentence"]


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (leaking(), ()),
        (leaking().replace(",", ";"), ()),
        (leaking().replace(",", "\t"), ()),
        (leaking().replace("rss_mb", "RSS (MB)"), ()),
        (leaking().replace("rss_mb", "memory"), ("--size-unit", "MB")),
        (leaking().replace("rss_mb", "heap_mb"), ("--memory", "heap_mb")),
        (leaking().split("\n", 1)[1], ("--columns", "epoch,rss_mb")),
        ("epoch,rss\n" + "".join(f"{i},{500 + 20 * i} MB\n" for i in range(30)), ()),
    ],
)
def test_a_table_is_read_by_its_heads(
    read: Callable[..., dict[str, Any]], tmp_path: Path, text: str, more: tuple[str, ...]
) -> None:
    answer = read(table(tmp_path, text), "--format", "csv", *more)
    verdict = answer["verdict"]
    assert (verdict["status"], verdict["unit"], verdict["generations"]) == (
        "confirmed",
        "epoch",
        30,
    )
    assert verdict["growth_bytes_per_generation"]["estimate"] == pytest.approx(20e6, rel=0.001)


def test_a_table_of_times_alone_grows_per_minute(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    rows = "".join(f"2026-01-31 12:{i // 6:02}:{i % 6 * 10:02},{500 + 2 * i}\n" for i in range(300))
    answer = read(table(tmp_path, "timestamp,RSS (MiB)\n" + rows))
    assert answer["verdict"]["status"] == "confirmed"
    assert answer["verdict"]["growth_bytes_per_generation"]["estimate"] == pytest.approx(
        12 * MIB, rel=0.01
    )
    assert (
        "no column counts generations, so growth is told per second up to ten minutes, and per minute beyond "
        "(--unit minute to have minutes)" in answer["notes"]
    )
    assert "column 'timestamp' is the time, in dates (UTC where they do not say)" in answer["notes"]


def test_a_flat_table_is_no_leak(read: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    rows = "".join(f"{i},{500 + i % 3}\n" for i in range(60))
    assert read(table(tmp_path, "epoch,rss_mb\n" + rows))["verdict"]["status"] == "ok"


@pytest.mark.parametrize(("name", "form"), [("psrecord.txt", "psrecord"), ("mprof.dat", "mprof")])
def test_what_two_recorders_wrote_is_read(
    read: Callable[..., dict[str, Any]], tmp_path: Path, name: str, form: str
) -> None:
    answer = read(FILES / name)
    assert (answer["format"], answer["readings"]) == (form, 17)
    assert "growth is told per second up to ten minutes" in " ".join(answer["notes"])


def test_a_psrecord_of_an_hour_has_a_verdict(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    head = (FILES / "psrecord.txt").read_text().splitlines()[0]
    rows = "".join(
        f"{20.0 * i:12.3f} {99.0:12.3f} {100 + i:12.3f} {900.0:12.3f}\n" for i in range(180)
    )
    verdict = read(table(tmp_path, f"{head}\n{rows}", "ps.txt"))["verdict"]
    assert verdict["status"] == "confirmed"
    assert verdict["growth_bytes_per_generation"]["estimate"] == pytest.approx(3 * MIB, rel=0.01)


def left_out(report: str) -> int:
    return sum(int(found) for found in re.findall(r"\.\.\. (\d+) rows left out", report))


def test_a_recording_of_a_minute_is_judged_by_the_second(
    read: Callable[..., dict[str, Any]], leakline: Leakline, tmp_path: Path
) -> None:
    rows = "".join(f"{0.5 * i},{100 + 2 * i}\n" for i in range(120))
    path = table(tmp_path, f"seconds,rss_mib\n{rows}")
    assert read(path, "--unit", "minute")["verdict"]["status"] == "learning"
    verdict = read(path)["verdict"]
    assert (verdict["status"], verdict["unit"]) == ("confirmed", "second")
    assert verdict["growth_bytes_per_generation"]["estimate"] == pytest.approx(4 * MIB, rel=0.01)
    # A second ends with its last reading: the report's trend has a row of each, and the growth is of all.
    report = leakline("report", str(tmp_path / "out.spool")).output
    assert re.search(r"^line 121 +0\.33 GiB +\+0\.00 GiB$", report, re.M), report
    assert len(re.findall(r"^line \d+ ", report, re.M)) + left_out(report) == 61
    assert re.search(r"^ +growth: +\+0\.23 GiB +\(\+238\.0 %\)$", report, re.M), report


def test_functions_of_mprof_are_phases(
    read: Callable[..., dict[str, Any]], leakline: Leakline, tmp_path: Path
) -> None:
    lines = ["CMDLINE python train.py"]
    for i in range(40):
        start = 1_760_000_000 + 60 * i
        before, after = f"{100 + 5 * i}.0 {start}.0", f"{105 + 5 * i}.0 {start + 50}.0"
        lines += [f"MEM {before}", f"FUNC __main__.evaluate {before} {after}"]
    answer = read(table(tmp_path, "\n".join(lines), "mprofile.dat"))
    assert answer["name"] == "train.py"
    assert answer["verdict"]["findings"][0]["phase"] == "__main__.evaluate"


def test_five_seconds_are_told_with_how_little_they_say(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    memory = [13, 21, 21, 25, 29, 29, 33, 37, 37, 41, 45, 45, 49, 53, 53, 53, 53, 53]
    lines = [f"MEM {mib}.0 {1_760_000_000.05 + 0.24 * i:.4f}" for i, mib in enumerate(memory)]
    verdict = read(table(tmp_path, "\n".join(["CMDLINE python keeps.py", *lines])))["verdict"]
    assert verdict["status"] == "ok"
    assert re.fullmatch(
        r"No leak seen: memory changes by \+4\.\d+ MiB per second \(\+?0 B to \+12\.00 MiB\) over only 5 seconds",
        verdict["summary"],
    ), verdict["summary"]


def test_a_wandb_run_has_its_name_and_its_epochs(
    read: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    answer = read(FILES / "run-recorded.wandb")
    assert (answer["project"], answer["name"], answer["format"]) == ("leaky", "before-fix", "wandb")
    assert answer["verdict"]["unit"] == "epoch"
    assert answer["verdict"]["growth_bytes_per_generation"]["estimate"] == pytest.approx(
        8 * MIB, rel=0.05
    )
    # One that was cut off while it was written is read as far as it goes, from its folder too.
    folder = tmp_path / "offline-run-x"
    folder.mkdir()
    whole = (FILES / "run-recorded.wandb").read_bytes()
    (folder / "run-x.wandb").write_bytes(whole[: len(whole) * 2 // 3])
    assert 2 <= read(folder, "--name", "cut")["readings"] < answer["readings"]


def test_mlflow_prefers_what_the_program_logged_of_itself(
    read: Callable[..., dict[str, Any]], mlflow: Path
) -> None:
    answer = read(mlflow)
    assert (answer["project"], answer["name"], answer["verdict"]["unit"]) == (
        "leaky",
        "before-fix",
        "step",
    )
    assert answer["verdict"]["growth_bytes_per_generation"]["estimate"] == pytest.approx(
        8e6, rel=0.01
    )
    assert any("rss_mb" in note for note in answer["notes"])


def test_mlflow_of_the_whole_machine_says_so(
    read: Callable[..., dict[str, Any]], mlflow: Path
) -> None:
    with sqlite3.connect(mlflow) as database:
        database.execute("DELETE FROM metrics WHERE key = 'rss_mb'")
    database.close()
    answer = read(mlflow)
    assert answer["readings"] == 7
    assert any("memory of the whole machine" in note for note in answer["notes"])


# -- where it goes -----------------------------------------------------------------------------------------


def test_the_verdict_is_printed_and_the_spool_reports_the_same(
    leakline: Leakline, tmp_path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_SERVER", nowhere)
    out = tmp_path / "out.spool"
    said = leakline("import", str(FILES / "blocks_leaking.txt"), "--out", str(out))
    assert said.status == 0 and said.errors == ""
    assert "what does not add up:\n   line 39: " in said.output
    summary = next(line for line in said.output.splitlines() if line.startswith("suspected: "))
    report = leakline("report", str(out))
    assert summary.removeprefix("suspected: ") in report.output
    assert said.output.rstrip().endswith(f"leakline report {out}")


def test_the_server_has_the_run_once_however_often_it_is_imported(
    leakline: Leakline, server: str, tmp_path: Path
) -> None:
    path = table(tmp_path, leaking())
    first = leakline(
        "import", str(path), "--server", server, "--project", "old", "--name", "before"
    )
    assert first.status == 0, first.errors
    run = first.output.rstrip().rpartition("/")[2]
    stored = request_json(server, "GET", f"/runs/{run}")
    assert (stored["project"], stored["name"], stored["unit"], stored["state"]) == (
        "old",
        "before",
        "epoch",
        "finished",
    )
    assert stored["tags"] == ["imported", "csv"]
    # A copy with another date, which is all that this file tells of its time.
    copy = tmp_path / "copy.csv"
    copy.write_bytes(path.read_bytes())
    os.utime(copy, (1_700_000_000, 1_700_000_000))
    again = leakline(
        "import", str(copy), "--server", server, "--project", "old", "--name", "before"
    )
    assert (again.status, again.output.rpartition("/")[2]) == (0, first.output.rpartition("/")[2])
    (process,) = request_json(server, "GET", f"/runs/{run}")["processes"]
    assert process["stored"] == 30 and process["lost"] == {}
    items = request_json(server, "GET", "/runs?project=old")["items"]
    assert [item["id"] for item in items] == [run]


def test_a_log_of_long_ago_lasted_as_long_as_it_says(
    leakline: Leakline, server: str, tmp_path: Path
) -> None:
    rows = "".join(f"2025-01-31 12:{i:02}:00,{500 + i}\n" for i in range(50))
    said = leakline("import", str(table(tmp_path, f"time,rss_mb\n{rows}")), "--server", server)
    address = said.output.split()[-1]
    deadline = time.monotonic() + 20
    # Until it is examined nobody knows that it counts no generations.
    while "minutes since the start" not in (page := _page(address)) or "49 min" not in page:
        assert time.monotonic() < deadline, page


def _page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read().decode())


def test_generations_are_not_moved_beyond_reason(leakline: Leakline) -> None:
    said = leakline("import", str(FILES / "rows_train.txt"), "--offset", str(10**13))
    assert said.status == 2 and "--offset" in said.errors


def test_without_a_server_it_says_what_to_do(
    leakline: Leakline, nowhere: str, tmp_path: Path
) -> None:
    said = leakline("import", str(table(tmp_path, leaking())), "--server", nowhere)
    assert said.status == 1 and "start one with: leakline serve" in said.errors
