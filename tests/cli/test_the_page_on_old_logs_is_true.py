"""The lines to copy from docs/importing.md, run in a folder that has such files."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Said

from leakline.importing import FORMS

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "data" / "imports"
PAGE = (ROOT / "docs" / "importing.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / "blocks_leaking.txt", tmp_path / "train.log")
    shutil.copy(FILES / "psrecord.txt", tmp_path / "psrecord.txt")
    shutil.copy(FILES / "mprof.dat", tmp_path / "mprofile.dat")
    rows = [(i, 500 + 20 * i) for i in range(30)]
    body = "".join(f"{i},{size}\n" for i, size in rows)
    (tmp_path / "memory.csv").write_text(f"epoch,rss_mb\n{body}")
    (tmp_path / "usage.csv").write_text(f"step,heap\n{body}")
    (tmp_path / "plain.csv").write_text(body)
    wandb = tmp_path / "wandb" / "offline-run-20261123_093106-0ou48dlu"
    wandb.mkdir(parents=True)
    shutil.copy(FILES / "run-recorded.wandb", wandb / "run-0ou48dlu.wandb")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.executescript((FILES / "mlflow.sql").read_text())
    database.close()
    return tmp_path


def test_every_line_of_the_page_works(
    leakline: Callable[..., Said], folder: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_SERVER", server)
    found = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    assert len(lines) == 10
    for line in lines:
        said = leakline(*shlex.split(line)[1:])
        assert said.status == 0, f"{line}: {said.errors}"
    listed = leakline("runs", "--project", "erl-trading").output
    assert "before-fix" in listed


def test_the_page_has_every_format_and_no_other() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(FORMS)
