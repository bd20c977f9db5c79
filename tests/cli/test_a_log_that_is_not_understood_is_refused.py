"""`leakline import FILE` with what it cannot read: refused whole, in one line, with the line of the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Said
from tests.cli.old_logs import FILES, leaking, table

from leakline.errors import LeaklineError
from leakline.importing import Wishes, read_log, recorded
from leakline.report import report_text
from leakline.snapshot import batch_to_wire
from leakline_server import ingest

Leakline = Callable[..., Said]


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("", None, "is empty"),
        ("hello\nworld\n", None, "is none of the forms known"),
        ("epoch,loss\n1,2\n2,3\n", 1, "none of its columns is known as memory (epoch, loss)"),
        ("epoch,rss\n1,2\n2,3\n", 1, "column 'rss' does not say its unit"),
        ("epoch,rss_mb\n1,2\n2,many\n", 3, "'many' in column 'rss_mb' is no size"),
        ("epoch,rss_mb\n1,2\n2,-3\n", 3, "'-3' in column 'rss_mb' is no size that a process has"),
        ("epoch,rss_mb\n1,2\n2,1e300\n", 3, "no size that a process has"),
        ("epoch,rss_mb\n1,2\n2,3,4\n", None, "is none of the forms known"),
        ("epoch,rss_mb\n" + "1,2\n" * 9 + "2,3,4\n", 11, "has 3 cells, the rows before it 2"),
        ("epoch,rss_mb\nlater,2\n2,3\n", 2, "'later' in column 'epoch' is not a number"),
        ("time,rss_mb\n20,2\n10,3\n", 3, "time goes back, from 20 to 10"),
        ("time,rss_mb\nyesterday,2\n10,3\n", 2, "'yesterday' in column 'time' is no time"),
        ("1,2\n2,3\n", 1, "has no heads; name its columns"),
        ("epoch,rss_mb\n1,\n2,\n", None, "holds no reading of memory"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_whole(
    leakline: Leakline, tmp_path: Path, content: str, line: int | None, why: str
) -> None:
    path, out = table(tmp_path, content), tmp_path / "out.spool"
    said = leakline("import", str(path), "--out", str(out))
    where = f"{path}" if line is None else f"{path}, line {line}"
    assert (said.status, said.output) == (1, "")
    assert said.errors.startswith(f"leakline: {where}: ") and why in said.errors
    assert said.errors.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00\x01\x02 binary", "is neither text nor"),
        (b"LEAKSPL1", "is a spool of Leakline; upload it with: leakline sync"),
        (b":W&B\xe1\xbe\x01", "is no W&B log of the version that is read here"),
        (b":W&B\xe1\xbe\x00" + b"\x09" * 40, "at byte 7: no W&B record begins here"),
        (b"SQLite format 3\x00" + b"\x00" * 200, "is no database of MLflow that can be read"),
    ],
)
def test_other_files_are_refused(
    leakline: Leakline, tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    said = leakline("import", str(path), "--out", str(tmp_path / "out.spool"))
    assert said.status == 1 and why in said.errors and said.errors.count("\n") == 1


def test_a_damaged_byte_of_a_wandb_log_is_found(leakline: Leakline, tmp_path: Path) -> None:
    content = bytearray((FILES / "run-recorded.wandb").read_bytes())
    content[len(content) // 2] ^= 0xFF
    path = tmp_path / "run-x.wandb"
    path.write_bytes(content)
    said = leakline("import", str(path), "--out", str(tmp_path / "out.spool"))
    assert said.status == 1 and "it is damaged" in said.errors


def test_what_is_missing_is_said(leakline: Leakline, tmp_path: Path, mlflow: Path) -> None:
    said = leakline("import", str(tmp_path / "nothing.csv"))
    assert said.status == 1 and "nothing.csv: does not exist" in said.errors
    said = leakline("import", str(mlflow), "--run", "other")
    assert "has no run 'other'" in said.errors
    said = leakline("import", str(mlflow), "--memory", "ram", "--out", str(tmp_path / "x.spool"))
    assert "has no metric 'ram'; it has loss, rss_mb" in said.errors
    said = leakline("import", str(mlflow), "--size-unit", "furlongs")
    assert said.status == 2 and "--size-unit='furlongs'" in said.errors


def test_a_spool_of_another_run_is_not_overwritten(leakline: Leakline, tmp_path: Path) -> None:
    out = tmp_path / "out.spool"
    assert leakline("import", str(table(tmp_path, leaking())), "--out", str(out)).status == 0
    before = out.read_bytes()
    said = leakline("import", str(table(tmp_path, leaking(20))), "--out", str(out))
    assert said.status == 1 and "is the spool of another run" in said.errors
    assert out.read_bytes() == before and list(tmp_path.glob("*.new")) == []


def test_a_file_with_too_many_readings_says_how_to_join_them(
    leakline: Leakline,
    tmp_path: Path,
    read: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakline.importing.log.MAX_READINGS", 1_000)
    rows = "".join(f"{i},{100 + (900 if i == 5 else 0)}\n" for i in range(1_001))
    path = table(tmp_path, "time,rss_mb\n" + rows)
    said = leakline("import", str(path), "--out", str(tmp_path / "x.spool"))
    assert said.status == 1
    assert "has 1,001 readings, 1,000 are taken; join them with --every 2" in said.errors
    assert read(path, "--every", "50")["readings"] == 21
    # The highest of those that were joined is not lost.
    report = report_text(tmp_path / "out.spool")
    (peak,) = [line for line in report.splitlines() if line.strip().startswith("peak:")]
    assert peak.endswith(f"{1_000 * 10**6 / 2**30:.2f} GiB")


def test_text_that_would_move_a_cursor_is_shown_as_text(leakline: Leakline, tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;x\x07<script>"
    rows = "".join(f"{i},{500 + 20 * i},{evil}phase\n" for i in range(12))
    path = table(tmp_path, f"epoch,rss_mb,phase,{evil}\n".replace(f",{evil}", "") + rows)
    said = leakline("import", str(path), "--out", str(tmp_path / "out.spool"))
    assert said.status == 0
    assert all(c.isprintable() or c == "\n" for c in said.output)
    assert all(c.isprintable() or c == "\n" for c in report_text(tmp_path / "out.spool"))


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
    "name", [*sorted(p.name for p in FILES.iterdir() if p.suffix != ".sql"), "mlflow.db", "a.csv"]
)
def test_a_damaged_file_is_refused_in_a_line_or_is_a_run_that_a_server_takes(
    tmp_path: Path, mlflow: Path, name: str
) -> None:
    known = {"mlflow.db": mlflow, "a.csv": table(tmp_path, leaking(), "a.csv")}
    content, path = known.get(name, FILES / name).read_bytes(), tmp_path / "damaged"
    chance = random.Random(name)
    for _ in range(40):
        path.write_bytes(_damaged(content, chance))
        try:
            log = read_log(path, Wishes(size_unit=1024))
        except LeaklineError as error:
            assert str(error).isprintable()
            continue
        for batch in recorded(log, "0" * 64, "run", "p", None, None, 1.76e9).batches():
            ingest.check("run", json.dumps(batch_to_wire(batch)).encode(), 1.76e9)
