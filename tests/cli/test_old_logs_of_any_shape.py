"""Logs as they really come: long, with commas in their numbers, of GPUs, and lines that are made to be slow."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Said
from tests.cli.old_logs import FILES, leaking, table

from leakline.importing import log, printed_blocks, slips
from leakline.importing.reading import read_log
from leakline.importing.text import MAX_LINE_LENGTH

Leakline = Callable[..., Said]
Read = Callable[..., dict[str, Any]]
BLOCK = "MEMORY SNAPSHOT: Gen 1: After evaluate\nRSS: 8.52 GB\n"
# Each is of one line, over and over; a line may take some milliseconds.
SLOW_LINES = 50
SLOW_SECONDS = 2.5


def refused(leakline: Leakline, tmp_path: Path, path: Path, *more: str) -> str:
    said = leakline("import", str(path), "--out", str(tmp_path / "x.spool"), *more)
    assert said.status == 1 and said.errors.count("\n") == 1, said
    return said.errors


# -- lines that are made to be slow ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before",
    [
        BLOCK,
        BLOCK + "MEMORY GROWTH\n",
        BLOCK + "Object Count Changes:\n",
        BLOCK + "LARGE OBJECTS\n",
        "RAM: 8.52 GB\n",
    ],
)
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
def test_no_line_takes_long(tmp_path: Path, before: str, line: str) -> None:
    assert len(line) <= MAX_LINE_LENGTH
    path = table(tmp_path, before + f"{line}\n" * SLOW_LINES, "train.log")
    started = time.process_time()
    read_log(path, log.Wishes())
    assert time.process_time() - started < SLOW_SECONDS


# -- commas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gb"),
    [("35,23 GB", 35.23), ("1,5 GB", 1.5), ("35.23 GB", 35.23), ("1,234.5 GB", 1234.5),
     ("0,500 GB", 0.5), ("12,345,678 KB", 12.345678)],
)  # fmt: skip
@pytest.mark.parametrize("form", ["status", "blocks"])
def test_a_comma_counts_thousands_in_groups_of_three_alone(
    read: Read, tmp_path: Path, text: str, gb: float, form: str
) -> None:
    title = "MEMORY SNAPSHOT: Gen 1: After evaluate\n" if form == "blocks" else ""
    path = table(tmp_path, f"{title}RSS: {text}\n", "train.log")
    answer = read(path)
    assert answer["format"] == form
    assert rss_of(path) == [pytest.approx(gb * 1e9)]
    assert not any("comma" in note for note in answer["notes"])


@pytest.mark.parametrize("title", ["", "MEMORY SNAPSHOT: Gen 1: After evaluate\n"])
def test_a_comma_that_may_be_either_is_told(read: Read, tmp_path: Path, title: str) -> None:
    path = table(tmp_path, f"{title}RSS: 1,234 MB\n", "train.log")
    answer = read(path)
    assert rss_of(path) == [1_234_000_000]
    (note,) = [note for note in answer["notes"] if "comma" in note]
    assert note.startswith(f"1,234 MB in line {1 + bool(title)} is read with its comma as a")


@pytest.mark.parametrize(
    ("cells", "bytes_of_one"),
    [
        (("1,234", "1,5"), 1_234_000),
        (("0,500", "1,234"), 500_000),
        (("1,234", "1,234,567"), 1_234_000_000),
        (("1,234", "999.5"), 1_234_000_000),
        (("12,34", "1,5"), 12_340_000),
    ],
)
def test_a_table_says_itself_what_its_commas_are(
    tmp_path: Path, cells: tuple[str, ...], bytes_of_one: int
) -> None:
    rows = "".join(f"{i};{cell}\n" for i, cell in enumerate(cells))
    assert rss_of(table(tmp_path, f"epoch;rss (MB)\n{rows}"))[0] == bytes_of_one


@pytest.mark.parametrize("rows", ["0;1,234\n1;5,678\n", "0;1,234\n1;1,5\n2;2.5\n"])
def test_a_table_whose_commas_may_be_either_is_refused(
    leakline: Leakline, tmp_path: Path, rows: str
) -> None:
    said = refused(leakline, tmp_path, table(tmp_path, f"epoch;rss (MB)\n{rows}"))
    assert "line 2: '1,234' in column 'rss (MB)' may be 1234 or 1.234; write it as one" in said


def rss_of(path: Path) -> list[Any]:
    return samples_of(path, "process.rss_bytes")


def samples_of(path: Path, series: str) -> list[Any]:
    readings = read_log(path, log.Wishes()).readings
    return [reading.samples[series] for reading in readings if series in reading.samples]


# -- long ones ---------------------------------------------------------------------------------------------


def test_steps_that_tell_no_memory_are_no_readings(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_READINGS", 100)
    lines = [f"step {i}" + (f" RAM: {500 + i} MB" if i % 20 == 0 else "") for i in range(2_000)]
    assert read(table(tmp_path, "\n".join(lines), "train.log"))["readings"] == 100


def test_readings_of_a_log_are_joined_before_they_are_counted(
    read: Read, leakline: Leakline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_READINGS", 100)
    lines = [f"epoch {i // 200}\nRAM: {500 + i} MB" for i in range(1_000)]
    path = table(tmp_path, "\n".join(lines), "train.log")
    said = refused(leakline, tmp_path, path)
    assert "has 1,000 readings, 100 are taken; join them with --every 10" in said
    assert read(path, "--every", "10")["readings"] == 100


def test_what_no_joining_helps_is_to_be_cut(
    leakline: Leakline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_READINGS", 20)
    said = refused(leakline, tmp_path, table(tmp_path, leaking()), "--every", "2")
    assert "has 30 readings of 30 generations, 20 are taken; cut it into parts" in said


@pytest.mark.parametrize("name", ["mprof.dat", "psrecord.txt", "run-recorded.wandb"])
def test_every_form_is_counted_while_it_is_read(
    leakline: Leakline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(log, "MAX_READINGS", 5)
    assert "5 are taken" in refused(leakline, tmp_path, FILES / name)


def test_the_end_of_a_long_run_of_mlflow_is_not_left_out(
    leakline: Leakline, tmp_path: Path, mlflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_READINGS", 2)
    assert "2 are taken" in refused(leakline, tmp_path, mlflow)


def test_slips_and_names_of_generations_are_bounded(
    leakline: Leakline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = slips.Found()
    for i in range(5_000):
        found.add([log.Slip(i, "is off")])
    assert len(found.held) == 1_000
    assert slips.bounded(found.held, found.more)[-1].sentence == "and 4950 more like these"
    monkeypatch.setattr(printed_blocks, "MAX_MARKS", 10)
    again = BLOCK + "Generation 1\n" * 50
    path = table(tmp_path, again + "".join(f"Generation {i}\n" for i in range(20)), "train.log")
    assert "names generations more than 10 times" in refused(leakline, tmp_path, path)
    said = leakline("import", str(table(tmp_path, again, "x.log")), "--out", str(tmp_path / "y"))
    assert said.status == 0, said.errors


# -- GPUs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "timestamp, memory.used [MiB], memory.total [MiB]",
        "timestamp, memory.used [MiB], name",
        "timestamp, memory.used [MiB], utilization.gpu [%]",
    ],
)
def test_what_nvidia_smi_writes_is_of_the_gpu(tmp_path: Path, head: str) -> None:
    rows = "".join(f"2026/11/23 10:00:{i:02}.000, {1000 + i} MiB, 5\n" for i in range(20))
    path = table(tmp_path, f"{head}\n{rows}")
    assert rss_of(path) == []
    assert samples_of(path, "gpu.0.used_bytes")[0] == 1000 * 2**20


def test_each_gpu_has_its_own(tmp_path: Path) -> None:
    rows = "".join(
        f"2026/11/23 10:00:{i:02}.000, {gpu}, {1000 * (gpu + 1)} MiB\n"
        for i in range(20)
        for gpu in (0, 1)
    )
    path = table(tmp_path, f"timestamp, index, memory.used [MiB]\n{rows}")
    assert set(samples_of(path, "gpu.0.used_bytes")) == {1000 * 2**20}
    assert set(samples_of(path, "gpu.1.used_bytes")) == {2000 * 2**20}


def test_memory_used_beside_anything_else_is_that_of_the_process(tmp_path: Path) -> None:
    rows = "".join(f"{i},{500 + i}\n" for i in range(12))
    assert len(rss_of(table(tmp_path, f"epoch,memory used (MB)\n{rows}"))) == 12


# -- what is no number -------------------------------------------------------------------------------------


def test_a_line_of_mprof_with_no_number_is_refused(leakline: Leakline, tmp_path: Path) -> None:
    text = "CMDLINE python x.py\nFUNC m.f 1.0 1.0 1.2.3 2.0\n"
    said = refused(leakline, tmp_path, table(tmp_path, text, "mprofile.dat"))
    assert "line 2: '1.2.3' is no number that belongs here" in said


@pytest.mark.parametrize(
    "change",
    ["step = 'x'", "timestamp = 'x'", "value = 'x'", "timestamp = NULL",
     "step = 1e18", "timestamp = 1e300", "step = x'00'"],
)  # fmt: skip
def test_columns_of_mlflow_of_another_type_are_refused(
    leakline: Leakline, tmp_path: Path, mlflow: Path, change: str
) -> None:
    with sqlite3.connect(mlflow) as database:
        database.execute("CREATE TABLE loose AS SELECT * FROM metrics")
        database.execute("DROP TABLE metrics")
        database.execute("ALTER TABLE loose RENAME TO metrics")
        database.execute(f"UPDATE metrics SET {change}")
    database.close()
    refused(leakline, tmp_path, mlflow)


def test_more_names_than_columns_are_refused(leakline: Leakline, tmp_path: Path) -> None:
    path = table(tmp_path, "1,2\n3,4\n")
    said = refused(leakline, tmp_path, path, "--columns", "epoch,rss_mb,phase")
    assert "has 2 columns, and --columns names 3" in said
