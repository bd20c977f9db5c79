"""`leakline import FILE`: files as other programs wrote them are read, or refused entirely with one line."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DOCS, LOGS, MIB, Leakline, page_at
from tests.json_batches import batch_to_wire

from leakline.analysis import examine
from leakline.analysis.results import Verdict
from leakline.analysis.run_history import history_from_batches
from leakline.errors import LeaklineError
from leakline.importing import FORMS, ImportRefused, Log, Wishes, imported_log, read_log, recorded
from leakline.importing.formats import printed_blocks
from leakline.importing.imported_log import MAX_LINE_LENGTH
from leakline.report import report_text
from leakline.transport.http_delivery import request_json
from leakline_server.ingest import decode

Read = Callable[..., dict[str, Any]]
TITLE = "MEMORY SNAPSHOT: Gen 1: After evaluate\n"
BLOCK = f"{TITLE}RSS: 8.52 GB\n"


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a text file."""

    def write(text: str, name: str = "memory.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def leaking(rows: int = 30) -> str:
    return "epoch,rss_mb\n" + "".join(f"{i},{500 + 20 * i}\n" for i in range(rows))


def growth_of(verdict: dict[str, Any]) -> float:
    return float(verdict["growth_bytes_per_generation"]["estimate"])


def samples_of(log: Log | Path, series: str = "process.rss_bytes") -> list[Any]:
    log = read_log(log, Wishes()) if isinstance(log, Path) else log
    return [reading.samples[series] for reading in log.readings if series in reading.samples]


@pytest.fixture
def refused(leakline: Leakline, tmp_path: Path) -> Callable[..., str]:
    def call(path: Path, *more: str) -> str:
        out = tmp_path / "refused.spool"
        said = leakline("import", str(path), "--out", str(out), *more)
        assert (said.status, said.output, out.exists()) == (1, "", False)
        return said.error

    return call


@pytest.fixture
def at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that limits the number of readings."""
    return lambda count: monkeypatch.setattr(imported_log, "MAX_READINGS", count)


# -- each format -------------------------------------------------------------------------------------------


def test_printed_blocks_reveal_the_leak(read: Read) -> None:
    answer = read(LOGS / "blocks_leaking.txt", "--binary")
    verdict = answer["verdict"]
    seen = (answer["format"], verdict["unit"], verdict["generations"])
    assert seen == ("blocks", "generation", 6)
    finding = verdict["findings"][0]
    assert finding["phase"] == "evaluate_population"
    assert finding["suspects"][0]["name"] == "MarketEnvironment"
    assert finding["suspects"][0]["count_per_generation"] == 8
    assert growth_of(finding) == pytest.approx(2.45 * 2**30, rel=0.01)
    assert any("0 in 'Generation' (line 26) and 1 in 'Gen'" in note for note in answer["notes"])
    # A comment in the log says how many there should be.
    assert read_log(LOGS / "blocks_leaking.txt", Wishes()).expected["MarketEnvironment"] == (2, 2)


def test_generation_numbers_are_shifted_by_an_offset(read: Read) -> None:
    first = read(LOGS / "blocks_leaking.txt", "--offset", "-1")["verdict"]["findings"][0]
    assert first["started_at_generation"]["estimate"] == 0


def test_three_rows_of_a_trend_suffice(read: Read) -> None:
    answer = read(LOGS / "rows_train.txt")
    finding = answer["verdict"]["findings"][0]
    assert (finding["phase"], finding["kind"]) == ("train_population", "tensors")


def test_a_declared_count_reveals_the_leak_in_two_rows(read: Read, file: Any) -> None:
    text = """\
Gen 1: After evolve_population      9.45 GB
Gen 2: After evolve_population     20.12 GB  (+10.67 GB)

Object Count Changes:
   Learner : 17 -> 33 (+16)
"""
    finding = read(file(text, "rows.txt"), "--expect", "Learner=16-17")["verdict"]["findings"][0]
    assert (finding["phase"], finding["suspects"][0]["name"]) == ("evolve_population", "Learner")


def test_status_lines_count_episodes(read: Read) -> None:
    answer = read(LOGS / "episodes.log")
    verdict = answer["verdict"]
    assert (answer["format"], verdict["unit"], answer["readings"]) == ("status", "episode", 20)
    assert growth_of(verdict) == pytest.approx(250e6, rel=0.05)


def test_a_unit_that_changes_within_a_file_is_handled(read: Read, file: Any) -> None:
    lines = [f"Generation {i}\nRSS: {8.5 + i / 10} {'MB' if i == 3 else 'GB'}" for i in range(6)]
    notes = read(file("\n".join(lines), "train.log"))["notes"]
    assert (
        "memory is 8.10 GiB in line 6 and 8.39 MiB in line 8; check that both sizes have the same unit"
        in notes
    )


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (leaking(), ""),
        (leaking().replace(",", ";"), ""),
        (leaking().replace(",", "\t"), ""),
        (leaking().replace("rss_mb", "RSS (MB)"), ""),
        (leaking().replace("rss_mb", "memory"), "--size-unit MB"),
        (leaking().replace("rss_mb", "heap_mb"), "--memory heap_mb"),
        (leaking().split("\n", 1)[1], "--columns epoch,rss_mb"),
        ("epoch,rss\n" + "".join(f"{i},{500 + 20 * i} MB\n" for i in range(30)), ""),
    ],
)
def test_a_table_is_read_by_its_column_names(read: Read, file: Any, text: str, more: str) -> None:
    verdict = read(file(text), "--format", "csv", *more.split())["verdict"]
    seen = (verdict["status"], verdict["unit"], verdict["generations"])
    assert seen == ("confirmed", "epoch", 30)
    assert growth_of(verdict) == pytest.approx(20e6, rel=0.001)


def test_a_table_with_only_times_grows_per_minute(read: Read, file: Any) -> None:
    rows = "".join(f"2026-01-31 12:{i // 6:02}:{i % 6 * 10:02},{500 + 2 * i}\n" for i in range(300))
    answer = read(file("timestamp,RSS (MiB)\n" + rows))
    assert answer["verdict"]["status"] == "confirmed"
    assert growth_of(answer["verdict"]) == pytest.approx(12 * MIB, rel=0.01)
    assert {
        "no column counts generations, so growth is given per second for runs of up to ten minutes, "
        "and per minute for longer runs (always per minute with --unit minute)",
        "column 'timestamp' is the time, in dates (UTC if they have no time zone)",
    } <= set(answer["notes"])


@pytest.mark.parametrize(("name", "form"), [("psrecord.txt", "psrecord"), ("mprof.dat", "mprof")])
def test_psrecord_and_mprof_files_are_read(read: Read, name: str, form: str) -> None:
    answer = read(LOGS / name)
    assert (answer["format"], answer["readings"]) == (form, 17)
    assert "growth is given per second for runs of up to ten minutes" in " ".join(answer["notes"])


def test_a_recording_of_one_minute_is_judged_per_second(
    read: Read, leakline: Leakline, file: Any, tmp_path: Path
) -> None:
    path = file("seconds,rss_mib\n" + "".join(f"{0.5 * i},{100 + 2 * i}\n" for i in range(120)))
    assert read(path, "--unit", "minute")["verdict"]["status"] == "learning"
    verdict = read(path)["verdict"]
    assert (verdict["status"], verdict["unit"]) == ("confirmed", "second")
    assert growth_of(verdict) == pytest.approx(4 * MIB, rel=0.01)
    # A second ends with its last reading: the trend has a row for each second, and the growth covers all.
    report = leakline("report", str(tmp_path / "out.spool")).output
    assert re.search(r"^line 121 +0\.33 GiB +\+0\.00 GiB$", report, re.M), report
    left_out = sum(int(found) for found in re.findall(r"\.\.\. (\d+) rows left out", report))
    assert len(re.findall(r"^line \d+ ", report, re.M)) + left_out == 61
    assert re.search(r"^ +growth: +\+0\.23 GiB +\(\+238\.0 %\)$", report, re.M), report


def test_mprof_functions_become_phases(read: Read, file: Any) -> None:
    lines = ["CMDLINE python train.py"]
    for i in range(40):
        start = 1_760_000_000 + 60 * i
        before, after = f"{100 + 5 * i}.0 {start}.0", f"{105 + 5 * i}.0 {start + 50}.0"
        lines += [f"MEM {before}", f"FUNC __main__.evaluate {before} {after}"]
    answer = read(file("\n".join(lines), "mprofile.dat"))
    assert answer["name"] == "train.py"
    assert answer["verdict"]["findings"][0]["phase"] == "__main__.evaluate"


def test_a_recording_of_five_seconds_is_reported_as_too_short(read: Read, file: Any) -> None:
    memory = [13, 21, 21, 25, 29, 29, 33, 37, 37, 41, 45, 45, 49, 53, 53, 53, 53, 53]
    lines = [f"MEM {mib}.0 {1_760_000_000.05 + 0.24 * i:.4f}" for i, mib in enumerate(memory)]
    verdict = read(file("\n".join(["CMDLINE python keeps.py", *lines])))["verdict"]
    assert verdict["status"] == "ok"
    assert re.fullmatch(
        r"No leak seen: memory changes by \+4\.\d+ MiB per second \(\+?0 B to \+12\.00 MiB\) over only 5 seconds",
        verdict["summary"],
    ), verdict["summary"]


def test_a_wandb_run_keeps_its_name_and_epochs(read: Read, tmp_path: Path) -> None:
    answer = read(LOGS / "run-recorded.wandb")
    assert (answer["project"], answer["name"], answer["format"]) == ("leaky", "before-fix", "wandb")
    assert answer["verdict"]["unit"] == "epoch"
    assert growth_of(answer["verdict"]) == pytest.approx(8 * MIB, rel=0.05)
    # A run cut off while being written is read as far as possible, also from its folder.
    folder = tmp_path / "offline-run-x"
    folder.mkdir()
    whole = (LOGS / "run-recorded.wandb").read_bytes()
    (folder / "run-x.wandb").write_bytes(whole[: len(whole) * 2 // 3])
    assert 2 <= read(folder, "--name", "cut")["readings"] < answer["readings"]


def test_mlflow_prefers_metrics_logged_by_the_program(read: Read, mlflow: Path) -> None:
    answer = read(mlflow)
    seen = (answer["project"], answer["name"], answer["verdict"]["unit"])
    assert seen == ("leaky", "before-fix", "step")
    assert growth_of(answer["verdict"]) == pytest.approx(8e6, rel=0.01)
    assert any("rss_mb" in note for note in answer["notes"])
    with sqlite3.connect(mlflow) as database:
        database.execute("DELETE FROM metrics WHERE key = 'rss_mb'")
    database.close()
    answer = read(mlflow)
    assert answer["readings"] == 7
    assert any("memory of the entire machine" in note for note in answer["notes"])


# -- destinations ------------------------------------------------------------------------------------------


def test_the_verdict_is_printed_and_the_spool_reports_the_same(
    leakline: Leakline, tmp_path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_SERVER", nowhere)
    out = tmp_path / "out.spool"
    said = leakline("import", str(LOGS / "blocks_leaking.txt"), "--out", str(out))
    assert said.status == 0 and said.errors == ""
    summary = next(line for line in said.output.splitlines() if line.startswith("suspected: "))
    assert summary.removeprefix("suspected: ") in leakline("report", str(out)).output
    assert said.output.rstrip().endswith(f"leakline report {out}")


def test_importing_a_file_twice_gives_one_run(ask: Leakline, server: str, file: Any) -> None:
    path = file(leaking())
    first = ask("import", str(path), "--project", "old", "--name", "before")
    assert first.status == 0, first.errors
    run = first.output.rstrip().rpartition("/")[2]
    stored = request_json(server, "GET", f"/runs/{run}")
    seen = (stored["project"], stored["name"], stored["unit"], stored["state"], stored["tags"])
    assert seen == ("old", "before", "epoch", "finished", ["imported", "csv"])
    # A copy with another modification date, the only time information in this file.
    copy = file(leaking(), "copy.csv")
    os.utime(copy, (1_700_000_000, 1_700_000_000))
    again = ask("import", str(copy), "--project", "old", "--name", "before")
    assert (again.status, again.output.rpartition("/")[2]) == (0, first.output.rpartition("/")[2])
    (process,) = request_json(server, "GET", f"/runs/{run}")["processes"]
    assert process["stored"] == 30 and process["lost"] == {}
    items = request_json(server, "GET", "/runs?project=old")["items"]
    assert [item["id"] for item in items] == [run]


def test_an_old_log_keeps_its_own_duration(ask: Leakline, file: Any) -> None:
    rows = "".join(f"2025-01-31 12:{i:02}:00,{500 + i}\n" for i in range(50))
    address = ask("import", str(file(f"time,rss_mb\n{rows}"))).output.split()[-1]
    deadline = time.monotonic() + 20
    # Only the analysis reveals that the run counts no generations.
    while "minutes since the start" not in (page := page_at(address)) or "49 min" not in page:
        assert time.monotonic() < deadline, page


def test_without_a_server_the_import_explains_what_to_do(
    leakline: Leakline, nowhere: str, file: Any
) -> None:
    said = leakline("import", str(file(leaking())), "--server", nowhere)
    assert said.status == 1 and "start one with: leakline serve" in said.errors


# -- the examples on its page ------------------------------------------------------------------------------

DOCUMENT = (DOCS / "other-tools.md").read_text()
PAGE = DOCUMENT.split("\n## Old logs\n")[1].split("\n## ")[0]


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow: Path, file: Callable[..., Path]
) -> None:
    """Create the files named on the page and make their folder the current one."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(LOGS / "blocks_leaking.txt", tmp_path / "train.log")
    shutil.copy(LOGS / "psrecord.txt", tmp_path / "psrecord.txt")
    shutil.copy(LOGS / "mprof.dat", tmp_path / "mprofile.dat")
    rows = leaking().partition("\n")[2]
    file(leaking(), "memory.csv")
    file(f"step,heap\n{rows}", "usage.csv")
    file(rows, "plain.csv")
    wandb = tmp_path / "wandb" / "offline-run-20261123_093106-0ou48dlu"
    wandb.mkdir(parents=True)
    shutil.copy(LOGS / "run-recorded.wandb", wandb / "run-0ou48dlu.wandb")


@pytest.mark.usefixtures("folder")
def test_every_example_of_the_page_works(
    leakline: Leakline, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_SERVER", server)
    found = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    assert len(lines) == 10
    for line in lines:
        said = leakline(*shlex.split(line)[1:])
        assert said.status == 0, f"{line}: {said.errors}"
    assert "before-fix" in leakline("runs", "--project", "erl-trading").output
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(FORMS)


# -- commas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gb", "may_be_either"),
    [("35,23 GB", 35.23, False), ("1,5 GB", 1.5, False), ("35.23 GB", 35.23, False), ("1,234.5 GB", 1234.5, False),
     ("0,500 GB", 0.5, False), ("12,345,678 KB", 12.345678, False), ("1,234 MB", 1.234, True)],
)  # fmt: skip
@pytest.mark.parametrize(("form", "title"), [("status", ""), ("blocks", TITLE)])
def test_a_comma_separates_thousands_only_in_groups_of_three(
    read: Read, file: Any, text: str, gb: float, may_be_either: bool, form: str, title: str
) -> None:
    path = file(f"{title}RSS: {text}\n", "train.log")
    answer = read(path)
    assert answer["format"] == form
    assert samples_of(path) == [pytest.approx(gb * 1e9)]
    either = f"the comma in 1,234 MB (line {1 + bool(title)}) is read as a thousands separator"
    warned = [note[: len(either)] for note in answer["notes"] if "comma" in note]
    assert warned == [either] * may_be_either


@pytest.mark.parametrize(
    ("cells", "bytes_of_one"),
    [
        (("1,234", "1,5"), 1_234_000),
        (("0,500", "1,234"), 500_000),
        (("1,234", "1,234,567"), 1_234_000_000),
        (("1,234", "999.5"), 1_234_000_000),
        (("12,34", "1,5"), 12_340_000),
        (("1,234", "5,678"), None),
        (("1,234", "1,5", "2.5"), None),
    ],
)
def test_the_meaning_of_commas_is_inferred_or_the_table_is_refused(
    refused: Any, file: Any, cells: tuple[str, ...], bytes_of_one: int | None
) -> None:
    rows = "".join(f"{i};{cell}\n" for i, cell in enumerate(cells))
    path = file(f"epoch;rss (MB)\n{rows}")
    if bytes_of_one is None:
        said = "line 2: '1,234' in column 'rss (MB)' can mean 1234 or 1.234; replace it"
        assert said in refused(path)
    else:
        assert samples_of(path)[0] == bytes_of_one


# -- long files --------------------------------------------------------------------------------------------


def test_steps_without_memory_are_not_readings(read: Read, file: Any, at_most: Any) -> None:
    at_most(100)
    lines = [f"step {i}" + (f" RAM: {500 + i} MB" if i % 20 == 0 else "") for i in range(2_000)]
    assert read(file("\n".join(lines), "train.log"))["readings"] == 100


def test_readings_are_joined_before_they_are_limited(
    read: Read, refused: Any, file: Any, at_most: Any
) -> None:
    at_most(100)
    lines = [f"epoch {i // 200}\nRAM: {1500 - i} MB" for i in range(1_000)]
    path = file("\n".join(lines), "train.log")
    assert "has 1,000 readings, but at most 100 are read; merge them with --every 10" in refused(
        path
    )
    assert read(path, "--every", "10")["readings"] == 100
    # The maximum of joined readings is kept.
    joined = read_log(path, Wishes(every=10))
    assert samples_of(joined, "process.peak_bytes")[0] == 1_500 * 10**6
    at_most(4)
    said = refused(path, "--every", "10")
    assert "has 100 readings of 5 generations, but at most 4 are read; split the file" in said


@pytest.mark.parametrize("name", ["mprof.dat", "psrecord.txt", "run-recorded.wandb", "mlflow.db"])
def test_every_format_enforces_the_limit_while_reading(
    refused: Any, at_most: Any, mlflow: Path, name: str
) -> None:
    at_most(2)
    assert "at most 2 are read" in refused(mlflow if name == mlflow.name else LOGS / name)


def test_the_number_of_generation_names_is_bounded(
    refused: Any, read: Read, file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed_blocks, "MAX_MARKS", 10)
    again = BLOCK + "Generation 1\n" * 50
    many = again + "".join(f"Generation {i}\n" for i in range(20))
    assert "names generations more than 10 times" in refused(file(many, "train.log"))
    read(file(again, "x.log"))


# Repetitions of one line; each may take some milliseconds.
SLOW_LINES = 20
SLOW_SECONDS = 2.5


@pytest.mark.parametrize(
    "before",
    [BLOCK, BLOCK + "MEMORY GROWTH\n", BLOCK + "Object Count Changes:\n", BLOCK + "LARGE OBJECTS\n", "RAM: 8.52 GB\n"],
)  # fmt: skip
@pytest.mark.parametrize(
    "line",
    [
        "a" + " " * 100 + ": 1" + " " * 1_800,
        "RSS" + " " * 900 + ": 1" + " " * 900,
        "1," * 900,
        "1" * 1_900,
        "1," * 900 + " / 5 per step",
        "grows by 1 to " * 130,
        "after " * 300,
    ],
    ids=lambda line: line[:12].strip(),
)
def test_no_line_takes_long(file: Any, before: str, line: str) -> None:
    # A backtracking pattern would take minutes.
    assert len(line) <= MAX_LINE_LENGTH
    path = file(before + f"{line}\n" * SLOW_LINES, "train.log")
    started = time.process_time()
    read_log(path, Wishes())
    assert time.process_time() - started < SLOW_SECONDS


# -- GPUs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "rest"),
    [("memory.used [MiB], memory.total [MiB]", "{0} MiB, 5"), ("memory.used [MiB], name", "{0} MiB, 5"),
     ("memory.used [MiB], utilization.gpu [%]", "{0} MiB, 5"), ("index, memory.used [MiB]", "{1}, {0} MiB")],
)  # fmt: skip
def test_nvidia_smi_memory_is_assigned_to_its_gpu(file: Any, heads: str, rest: str) -> None:
    gpus = (0, 1) if "index" in heads else (0,)
    rows = [
        f"2026/11/23 10:00:{i:02}.000, {rest.format(1000 * (gpu + 1), gpu)}\n"
        for i in range(20)
        for gpu in gpus
    ]
    path = file(f"timestamp, {heads}\n{''.join(rows)}")
    assert samples_of(path) == []
    for gpu in gpus:
        assert samples_of(path, f"gpu.{gpu}.used_bytes") == [1000 * (gpu + 1) * MIB] * 20
    # Next to anything else the column is memory of the process.
    rows = [f"{i},{500 + i}\n" for i in range(12)]
    assert len(samples_of(file(f"epoch,memory used (MB)\n{''.join(rows)}"))) == 12


# -- refused files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("", None, "is empty"),
        ("hello\nworld\n", None, "has no known format"),
        ("epoch,loss\n1,2\n2,3\n", 1, "none of its columns is recognized as memory (epoch, loss)"),
        ("epoch,rss\n1,2\n2,3\n", 1, "column 'rss' has no unit"),
        ("epoch,rss_mb\n1,2\n2,many\n", 3, "'many' in column 'rss_mb' is not a size"),
        ("epoch,rss_mb\n1,2\n2,-3\n", 3, "'-3' in column 'rss_mb' is not a size that a process can have"),
        ("epoch,rss_mb\n1,2\n2,1e300\n", 3, "not a size that a process can have"),
        ("epoch,rss_mb\n1,2\n2,3,4\n", None, "has no known format"),
        ("epoch,rss_mb\n" + "1,2\n" * 9 + "2,3,4\n", 11, "has 3 cells, but the previous rows have 2"),
        ("epoch,rss_mb\nlater,2\n2,3\n", 2, "'later' in column 'epoch' is not a whole number"),
        ("time,rss_mb\n20,2\n10,3\n", 3, "time goes backwards, from 20 to 10"),
        ("time,rss_mb\nyesterday,2\n10,3\n", 2, "'yesterday' in column 'time' is not a time"),
        ("1,2\n2,3\n", 1, "has no header row; name its columns"),
        ("epoch,rss_mb\n1,\n2,\n", None, "contains no memory readings"),
        ("CMDLINE python x.py\nFUNC m.f 1.0 1.0 1.2.3 2.0\n", 2, "'1.2.3' is not a valid number here"),
    ],
)  # fmt: skip
def test_unparsable_files_are_refused_entirely(
    refused: Any, file: Any, content: str, line: int | None, why: str
) -> None:
    path = file(content)
    said = refused(path)
    assert said.startswith(f"leakline: {path}{'' if line is None else f', line {line}'}: ")
    assert why in said


def damaged_wandb() -> bytes:
    content = bytearray((LOGS / "run-recorded.wandb").read_bytes())
    content[len(content) // 2] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00\x01\x02 binary", "is neither text nor"),
        (b"LEAKSPL1", "is a Leakline spool; upload it with: leakline sync"),
        (b":W&B\xe1\xbe\x01", "is not a W&B log of the supported version"),
        (b":W&B\xe1\xbe\x00" + b"\x09" * 40, "at byte 7: no W&B record starts here"),
        (damaged_wandb(), "the file is damaged"),
        (b"SQLite format 3\x00" + b"\x00" * 200, "is not a readable MLflow database"),
    ],
    ids=["binary", "spool", "version", "record", "one byte", "mlflow"],
)
def test_other_files_are_refused(refused: Any, tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert why in refused(tmp_path / "file")


def test_missing_files_runs_and_columns_are_named(
    leakline: Leakline, refused: Any, file: Any, tmp_path: Path, mlflow: Path
) -> None:
    assert "nothing.csv: does not exist" in refused(tmp_path / "nothing.csv")
    assert "has no run 'other'" in refused(mlflow, "--run", "other")
    assert "has no metric 'ram'; it has loss, rss_mb" in refused(mlflow, "--memory", "ram")
    said = refused(file("1,2\n3,4\n"), "--columns", "epoch,rss_mb,phase")
    assert "has 2 columns, but --columns names 3" in said
    for option, value in (("--size-unit", "furlongs"), ("--offset", str(10**13))):
        wrong = leakline("import", str(mlflow), f"{option}={value}")
        assert wrong.status == 2 and option in wrong.errors


@pytest.mark.parametrize(
    "change",
    ["step = 'x'", "timestamp = 'x'", "value = 'x'", "timestamp = NULL",
     "step = 1e18", "timestamp = 1e300", "step = x'00'"],
)  # fmt: skip
def test_mlflow_columns_of_the_wrong_type_are_refused(
    refused: Any, mlflow: Path, change: str
) -> None:
    with sqlite3.connect(mlflow) as database:
        database.execute("CREATE TABLE loose AS SELECT * FROM metrics")
        database.execute("DROP TABLE metrics")
        database.execute("ALTER TABLE loose RENAME TO metrics")
        database.execute(f"UPDATE metrics SET {change}")
    database.close()
    refused(mlflow)


def test_a_spool_of_another_run_is_not_overwritten(
    leakline: Leakline, file: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out.spool"
    assert leakline("import", str(file(leaking())), "--out", str(out)).status == 0
    before = out.read_bytes()
    said = leakline("import", str(file(leaking(20))), "--out", str(out))
    assert said.status == 1 and "is the spool of another run" in said.errors
    assert out.read_bytes() == before and list(tmp_path.glob("*.new")) == []


def test_control_characters_in_a_file_are_shown_as_text(
    leakline: Leakline, file: Any, tmp_path: Path
) -> None:
    evil = "\x1b[2J\x1b]0;x\x07<script>"
    rows = "".join(f"{i},{500 + 20 * i},{evil}phase\n" for i in range(12))
    out = tmp_path / "out.spool"
    said = leakline("import", str(file(f"epoch,rss_mb,phase\n{rows}")), "--out", str(out))
    assert said.status == 0
    assert all(c.isprintable() or c == "\n" for c in said.output + report_text(out))


DAMAGE = (
    b"1e999", b"nan", b"-1", b"9" * 400, b"\x00", b"\xff", b"\x1b[2J", b"\n", b",", b" GB", b"1 x 2 x 3 GB = 5 GB\n",
    b"Gen 999999999999999999999: After x   1 GB\n", b"MEMORY SNAPSHOT: ", b"RSS: 1e5 TB\n", b"Episode 5/5\n",
    b" <- should be 99999999999999999999999\n",
)  # fmt: skip


def _damaged(content: bytes, chance: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        at, what = chance.randrange(len(found) + 1), chance.random()
        if what < 0.3:
            found[at - 1 : at] = bytes([chance.randrange(256)])
        elif what < 0.5:
            del found[at : at + chance.randrange(200)]
        else:
            found[at:at] = chance.choice(DAMAGE)
    return bytes(found)


@pytest.mark.parametrize(
    "name", [*sorted(p.name for p in LOGS.iterdir() if p.suffix != ".sql"), "mlflow.db", "a.csv"]
)
def test_a_damaged_file_is_refused_or_becomes_a_valid_run(
    tmp_path: Path, mlflow: Path, file: Any, name: str
) -> None:
    known = {"mlflow.db": mlflow, "a.csv": file(leaking(), "a.csv")}
    content, path = known.get(name, LOGS / name).read_bytes(), tmp_path / "damaged"
    chance = random.Random(name)
    for _ in range(20):
        path.write_bytes(_damaged(content, chance))
        try:
            found = read_log(path, Wishes(size_unit=1024))
        except LeaklineError as error:
            assert str(error).isprintable()
            continue
        for batch in recorded(found, "0" * 64, "run", "p", None, None, 1.76e9).batches():
            decode.check("run", json.dumps(batch_to_wire(batch)).encode(), 1.76e9)


# -- logs of common tools: memory that doubles, stays flat, settles, and follows a sawtooth -------------------

READINGS = 60
SHAPES: dict[str, Callable[[int], float]] = {
    "doubles": lambda i: 2000 + 35 * i,
    "flat": lambda i: 2000 + 3 * (i * 7 % 5),
    "settles": lambda i: 1500 + 500 * min(1.0, i / 8) + 2 * (i * 7 % 5),
    "saw": lambda i: 2000 + 60 * (i % 6) + (i * 7 % 5),
}
EXPORTED = "sunny-dust-12 - system/proc.memory.rssMB"
Sizes = Sequence[float]


def of_lines(write: Callable[[int, float], str], head: str = "") -> Callable[[Sizes], str]:
    return lambda sizes: head + "".join(f"{write(i, s)}\n" for i, s in enumerate(sizes))


of_wandb = of_lines(
    lambda i, s: f'"{100 * i}","{s:.2f}","{s - 1:.2f}","{s + 1:.2f}"',
    f'"Step","{EXPORTED}","{EXPORTED}__MIN","{EXPORTED}__MAX"\n',
)
of_tensorboard = of_lines(
    lambda i, s: f"{1764150000 + 30 * i},{50 * i},{s}", "Wall time,Step,Value\n"
)


def mlflow_lines(i: int, size: float) -> str:
    at = f"{1764150000000 + 30000 * i},{10 * i}"
    return f"ab12,loss,0.5,{at}\nab12,train/rss_mb,{size},{at}"


def lightning_lines(i: int, size: float) -> str:
    step = f"{i // 6},{50 * i + 49}"
    return f"{step},0.1,{size}," + (f"\n{step},,,0.5" if i % 6 == 5 else "")


def psutil_line(i: int, size: float) -> str:
    rss = round(size * 1e6)
    return f"batch done\npmem(rss={rss}, vms={3 * rss}, shared=4096, text=1, lib=0, data={rss}, dirty=0)"


def ps_lines(i: int, size: float) -> str:
    head = "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND"
    sizes = f"{3000 * size:.0f} {1000 * size:.0f}"
    return f"{head}\nme          4711 99.0  3.1 {sizes} pts/0    Rl+  10:00   1:02 python train.py"


def top_lines(i: int, size: float) -> str:
    return (
        f"top - 10:{i:02d}:00 up 1 day,  2:03,  1 user,  load average: 1.00, 1.00, 1.00\n"
        f"MiB Mem :  64000.0 total,  {60000 - size:.1f} free,   {size:.1f} used,   4000.0 buff/cache\n\n"
        "    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND\n"
        f"   4711 me        20   0    9.1g {size / 1000:.3f}g  100m R  99.9   3.1   1:00.00 python\n"
    )


def docker_lines(i: int, size: float) -> str:
    head = "CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O   BLOCK I/O   PIDS"
    used = f"{size / 1000:.3f}GiB / 62.8GiB"
    return f"{head}\n0123456789ab   trainer   99.50%    {used}   3.10%     1kB / 0B  0B / 0B     12"


def free_lines(i: int, size: float) -> str:
    head = "               total        used        free      shared  buff/cache   available"
    return (
        f"2026-11-26 10:{i:02d}:00\n{head}\n"
        f"Mem:           64000Mi     {size:.0f}Mi    4000Mi        12Mi       4000Mi        55000Mi\n"
        "Swap:             0B          0B          0B"
    )


def smi_lines(i: int, size: float) -> str:
    return (
        f"Thu Nov 26 10:{i:02d}:00 2026\n"
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "|=========================================+========================+======================|\n"
        "|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:00:04.0 Off |                    0 |\n"
        f"| N/A   34C    P0             58W /  400W |    {size:5.0f}MiB /  40960MiB |     37%      Default |\n"
        f"|    0   N/A  N/A      4711      C   python                                     {size - 8:5.0f}MiB |"
    )


STAMP = "2026-11-26 10:{:02d}:00"
# Format -> (file name, function that writes the text, unit)
TOOLS: dict[str, tuple[str, Callable[[Sizes], str], str]] = {
    "W&B export": ("wandb_export.csv", of_wandb, "step"),
    "W&B export by time": ("wandb_export.csv", of_lines(
        lambda i, s: f'"{60.0 * i + 0.37}","{s:.2f}"', f'"Relative Time (Process)","{EXPORTED}"\n'
    ), "minute"),
    "TensorBoard": ("run-a-tag-memory_rss_mb.csv", of_tensorboard, "step"),
    "MLflow": ("metrics.csv", of_lines(mlflow_lines, "run_id,key,value,timestamp,step\n"), "step"),
    "fractions of an epoch": ("m.csv", of_lines(lambda i, s: f"{i / 100},{s}", "epoch,rss_mb\n"), "step"),
    "Unix seconds called epoch": ("m.csv", of_lines(
        lambda i, s: f"{1764150000 + 60 * i},{s}", "epoch,rss_mb\n"
    ), "minute"),
    "psutil": ("train.log", of_lines(psutil_line), "step"),
    "psutil by epoch": ("train.log", of_lines(lambda i, s: f"Epoch {i}/60\n{psutil_line(i, s)}"), "epoch"),
    "bars": ("train.log", of_lines(lambda i, s: f"epoch {i} | loss 0.1 | rss {s / 1000:.4f} GB"), "epoch"),
    "loguru": ("train.log", of_lines(
        lambda i, s: f"{STAMP.format(i)}.123 | INFO     | __main__:train:12 - epoch {i} | rss {s / 1000:.4f} GB"
    ), "epoch"),
    "rich": ("train.log", of_lines(
        lambda i, s: f"[10:{i:02d}:00] INFO     epoch {i} rss {s / 1000:.4f} GB loss 0.1      train.py:12"
    ), "epoch"),
    "logging": ("train.log", of_lines(
        lambda i, s: f"{STAMP.format(i)},123 - train - INFO - step {100 * i}: loss=0.1, mem={s / 1000:.4f}GB"
    ), "step"),
    "tqdm": ("train.log", of_lines(
        lambda i, s: f"Epoch {i}:  45%|####5     | 45/100 [00:12<00:14,  3.81it/s, loss=0.1, rss={s:.0f}MB]"
    ), "epoch"),
    "JSON lines": ("train.jsonl", of_lines(lambda i, s: f'{{"step": {50 * i}, "loss": 0.1, "rss_mb": {s}}}'), "step"),
    "Prometheus": ("scrapes.txt", of_lines(
        lambda i, s: f"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {s * 1e6:.6e}"
    ), "step"),
    "a letter as unit": ("train.log", of_lines(lambda i, s: f"iter {i} RSS: {s / 1000:.4f}G, params 35M"), "step"),
    "progress bar in one line": ("train.log", lambda s: "".join(
        f"\r {i}%|##   | {i}/60 [00:{i:02d}<00:14,  3.81it/s, rss={v:.0f}MB]" for i, v in enumerate(s)
    ), "step"),
    "memory of a GPU between bars": ("train.log", of_lines(
        lambda i, s: f"epoch {i} | GPU mem {s / 1000:.3f} GB | loss 0.1"
    ), "epoch"),
    "Markdown": ("train.md", of_lines(
        lambda i, s: f"| {i} | 0.1 | {s:.0f} |", "| epoch | loss | rss_mb |\n|---|---|---|\n"
    ), "epoch"),
    "Lightning": ("metrics.csv", of_lines(lightning_lines, "epoch,step,train_loss,rss_mb,val_loss\n"), "step"),
    "TensorBoard, rss of a system": ("run_x-tag-system_rss_mb.csv", of_tensorboard, "step"),
    "/proc/PID/status": ("status.log", of_lines(
        lambda i, s: f"VmPeak:\t {3100 * s:.0f} kB\nVmSize:\t {3000 * s:.0f} kB\nVmRSS:\t {1000 * s:.0f} kB"
    ), "step"),
    "ps aux": ("ps.log", of_lines(ps_lines), "step"),
    "ps aux without heads": ("ps.log", of_lines(lambda i, s: ps_lines(i, s).splitlines()[1]), "step"),
    "top -b": ("top.log", of_lines(top_lines), "step"),
    "docker stats": ("docker.log", of_lines(docker_lines), "step"),
    "docker stats as JSON": ("docker.jsonl", of_lines(
        lambda i, s: f'{{"CPUPerc":"99.5%","MemPerc":"3.1%","MemUsage":"{s / 1000:.3f}GiB / 62.8GiB","Name":"trainer"}}'
    ), "step"),
    "free": ("free.log", of_lines(free_lines), "minute"),
    "nvidia-smi as it is": ("smi.log", of_lines(smi_lines), "minute"),
    "nvidia-smi": ("gpu.csv", of_lines(
        lambda i, s: f"2026/11/26 10:{i:02d}:00.000, {round(s)} MiB, 24576 MiB",
        "timestamp, memory.used [MiB], memory.total [MiB]\n",
    ), "minute"),
}  # fmt: skip


def verdict_of(log: Log) -> Verdict:
    run = recorded(log, "0" * 64, "import-x", "p", None, None, 1764150000.0)
    return examine(history_from_batches(run.header, run.batches(), ended=True))


def refusal(path: Path, **wishes: Any) -> str:
    with pytest.raises(ImportRefused) as refused:
        read_log(path, Wishes(**wishes))
    return str(refused.value)


@pytest.mark.parametrize("form", TOOLS)
def test_doubling_memory_is_a_leak_and_healthy_memory_is_not(file: Any, form: str) -> None:
    name, write, unit = TOOLS[form]
    # Memory that settles and swings looks the same in every format, so one format covers it.
    for shape in SHAPES if form == "W&B export" else ("doubles", "flat"):
        size = SHAPES[shape]
        path = file(write([size(i) for i in range(READINGS)]), name)
        verdict = verdict_of(read_log(path, Wishes()))
        if shape == "doubles":
            assert verdict.status in ("suspected", "confirmed")
            assert (verdict.unit, verdict.settled_at_generation) == (unit, None)
        else:
            assert (verdict.status, len(verdict.findings)) == ("ok", 0), shape


def test_the_unit_comes_from_the_column_name_or_the_option(file: Any) -> None:
    path = file(of_wandb([2000.0] * 9), "export.csv")
    log = read_log(path, Wishes())
    assert log.readings[0].samples == {"process.rss_bytes": 2000 * 2**20}
    assert log.name == "sunny-dust-12"
    log = read_log(path, Wishes(memory=EXPORTED, size_unit=10**6))
    assert log.readings[0].samples == {"process.rss_bytes": 2000 * 10**6}


def test_one_of_several_runs_in_an_export_is_chosen(file: Any) -> None:
    other = "calm - sea - system/proc.memory.rssMB"
    rows = "".join(f"{i},{2000 + i},\n{i}5,,{3000 + i}\n" for i in range(10, 30))
    path = file(f"Step,{EXPORTED},{other}\n{rows}", "export.csv")
    expected = "contains 2 runs (sunny-dust-12, calm - sea); choose one with --run sunny-dust-12"
    assert refusal(path).endswith(expected)
    log = read_log(path, Wishes(run="calm - sea"))
    assert samples_of(log)[:2] == [3010 * 2**20, 3011 * 2**20]
    assert log.name == "calm - sea"
    assert "has no run 'calm'; it has sunny-dust-12, calm - sea" in refusal(path, run="calm")
    rows = "".join(f"{run},{i},{1000 + i}\n" for run in ("a", "b") for i in range(9))
    path = file(f"run,step,rss_mb\n{rows}", "metrics.csv")
    assert "contains 2 runs (a, b); choose one with --run a" in refusal(path)
    assert len(read_log(path, Wishes(run="b")).readings) == 9


def test_an_error_lists_each_column_once_with_its_full_name(file: Any) -> None:
    text = of_wandb([2000.0] * 9)
    said = refusal(file(text.replace("rssMB", "readBytes"), "export.csv"))
    columns = "Step, sunny-dust-12 - system/proc.memory.readBytes"
    assert f"({columns}); choose one with --memory COLUMN" in said
    said = refusal(file(text, "export.csv"), memory="rss")
    assert said.endswith(f"has no column 'rss'; it has Step, {EXPORTED}")


@pytest.mark.parametrize("line", [
    "params: 35M | lr 0.1", "total memory: 64 GB, free memory: 12 GB", "replay memory_mb: 500",
    "available_mb=1200 | step_mb=3", "batch 12 | 3.4 GB/s",
])  # fmt: skip
def test_other_numbers_on_a_line_are_not_taken_for_memory(file: Any, line: str) -> None:
    path = file("".join(f"epoch {i}: {line}; rss: {2000 + i} MB\n" for i in range(9)))
    assert samples_of(read_log(path, Wishes())) == [(2000 + i) * 10**6 for i in range(9)]


def test_one_of_several_processes_is_chosen(file: Any) -> None:
    other = "me          4800  1.0  0.1 9000 8000 ?        S    10:00   0:01 bash -c sleep"
    path = file("".join(f"{ps_lines(i, 2000 + 35 * i)}\n{other}\n" for i in range(30)))
    assert refusal(path).endswith(
        "has rows of 2 processes or containers (4711 python train.py, 4800 bash -c sleep); choose one with --run 4711"
    )
    assert verdict_of(read_log(path, Wishes(run="4711"))).status == "confirmed"
    assert verdict_of(read_log(path, Wishes(run="4800"))).status == "ok"
    assert "contains no rows of '12'; it contains rows of 4711 python train.py" in refusal(
        path, run="12"
    )


def test_each_gpu_has_its_memory(file: Any) -> None:
    second = "|   1  NVIDIA A100-SXM4-40GB          On  |   00000000:00:05.0 Off |                    0 |\n"
    used = "| N/A   34C    P0             58W /  400W |     900MiB /  40960MiB |     37%      Default |\n"
    path = file("".join(f"{smi_lines(i, 2000 + i)}\n{second}{used}" for i in range(9)))
    readings = read_log(path, Wishes()).readings
    assert len(readings) == 9
    expected = {"gpu.0.used_bytes": 2003 * 2**20, "gpu.1.used_bytes": 900 * 2**20}
    assert readings[3].samples == expected


def test_output_of_free_without_a_unit_requires_the_option(file: Any) -> None:
    path = file("".join(free_lines(i, 2000 + i).replace("Mi ", "   ") + "\n" for i in range(9)))
    assert "has no unit; specify --size-unit MiB" in refusal(path)
    log = read_log(path, Wishes(size_unit=2**20))
    assert samples_of(log)[1] == 2001 * 2**20
    assert any("the entire machine" in note for note in log.notes)


def test_plain_numbers_are_read_once_their_meaning_is_given(file: Any) -> None:
    path = file("".join(f"{2_000_000 + 35_000 * i}\n" for i in range(30)))
    assert "name the columns, for example with --columns rss --size-unit KiB" in refusal(path)
    log = read_log(path, Wishes(columns=("rss",), size_unit=1024))
    assert verdict_of(log).status == "confirmed"


@pytest.mark.parametrize("line", [
    "virtual memory: 12.1 GB", "pmem(vms=12100000000, shared=4096)",
    "CPU Virtual Memory:  used = 2.0 GB, percent = 3.1%",
])  # fmt: skip
def test_figures_that_cannot_show_a_leak_are_refused(file: Any, line: str) -> None:
    refusal(file("".join(f"epoch {i}\n{line}\n" for i in range(30))))
