"""Nothing is acknowledged that would not be found again where the database is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

READ = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM sqlite_master').fetchone()"

Loss = Callable[[Path], Callable[[], Any]]


def _file_deleted(path: Path) -> Callable[[], Any]:
    kept = path.rename(path.with_name("kept"))
    return lambda: kept.rename(path)


def _folder_moved(path: Path) -> Callable[[], Any]:
    kept = path.parent.rename(path.parent.with_name("elsewhere"))
    return lambda: kept.rename(path.parent)


def _replaced(path: Path) -> Callable[[], Any]:
    kept = path.with_name("kept")
    path.rename(kept)
    shutil.copy(kept, path)
    return lambda: kept.replace(path)


def _log_deleted(path: Path) -> Callable[[], Any]:
    log = Path(f"{path}-wal")
    kept = log.rename(log.with_name("kept-log"))
    return lambda: kept.rename(log)


@pytest.mark.long
@pytest.mark.parametrize("lose", [_file_deleted, _folder_moved, _replaced, _log_deleted])
def test_a_database_that_vanishes_takes_nothing_until_it_is_back(
    serve: Any, make_run: Any, tmp_path: Path, eventually: Any, lose: Loss
) -> None:
    path = tmp_path / "data" / "leakline.db"
    server = serve(arguments=["--database-url", f"sqlite:///{path}"])
    run, batches = make_run(), "/api/v1/runs/r1/batches"
    assert server.request("POST", "/api/v1/runs", run.header)[0] in (200, 201)
    assert server.request("POST", batches, run.wire(0, 10))[0] == 200
    bring_back = lose(path)
    status, said = server.request("POST", batches, run.wire(10, 10))
    assert (status, said["error"]["code"]) == (503, "database_moved")
    # Also what is a row of its own, and whoever connects anew.
    assert server.request("POST", "/api/v1/runs", make_run(id="r2").header)[0] == 503
    assert server.request("GET", "/readyz")[0] == 503
    bring_back()
    eventually(lambda: server.request("GET", "/readyz")[0] == 200)
    assert server.request("POST", batches, run.wire(10, 10))[0] == 200
    server.interrupt()
    again = serve(arguments=["--database-url", f"sqlite:///{path}"])
    _, found = again.request("GET", "/api/v1/runs/r1/export.json")
    assert [row["sequence"] for row in found["snapshots"]] == list(range(20))


@pytest.mark.long
def test_a_database_that_another_program_made_anew_takes_nothing_and_loses_nothing(
    serve: Any, make_run: Any, tmp_path: Path
) -> None:
    """Whoever opens what was deleted makes an empty one, and SQLite takes the write-ahead log for one left behind."""
    path = tmp_path / "leakline.db"
    server = serve(arguments=["--database-url", f"sqlite:///{path}"])
    run, batches = make_run(), "/api/v1/runs/r1/batches"
    server.request("POST", "/api/v1/runs", run.header)
    assert server.request("POST", batches, run.wire(0, 10))[0] == 200
    bring_back = _file_deleted(path)
    subprocess.run([sys.executable, "-c", READ, path], check=True)
    assert not Path(f"{path}-wal").exists()
    path.unlink(missing_ok=True)
    bring_back()
    status, said = server.request("POST", batches, run.wire(10, 10))
    assert (status, said["error"]["code"]) == (503, "database_moved")
    server.interrupt()
    again = serve(arguments=["--database-url", f"sqlite:///{path}"])
    assert again.request("POST", batches, run.wire(10, 10))[0] == 200
    _, found = again.request("GET", "/api/v1/runs/r1/export.json")
    assert [row["sequence"] for row in found["snapshots"]] == list(range(20))
