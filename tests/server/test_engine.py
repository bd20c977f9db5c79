"""Nothing is acknowledged that would not be found again; `/readyz` says when nothing can be written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url
from tests.server.stored import engine_of, serving

from leakline.errors import LeaklineError
from leakline_server.admin import opened_at
from leakline_server.ingest import writer
from leakline_server.store.engine import DatabaseMoved, Engine, open_engine, ping, writing

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


def test_a_connection_that_would_make_another_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leakline.db"
    engine = open_engine(f"sqlite:///{path}")
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE kept (number INTEGER)")
    with engine.connect() as held:
        held.exec_driver_sql("SELECT * FROM kept").all()
        bring_back = _log_deleted(path)
        for act in (
            lambda: engine.connect().close(),
            lambda: ping(engine),
            lambda: _add(engine, 1),
        ):
            with pytest.raises(DatabaseMoved):
                act()
        bring_back()
    ping(engine)
    _add(engine, 2)
    # Once all are closed SQLite takes the log away, and whoever opens the file makes another.
    engine.dispose()
    _add(engine, 3)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT number FROM kept").scalars().all() == [2, 3]
    engine.dispose()


def _add(engine: Engine, number: int) -> None:
    with writing(engine) as connection:
        connection.exec_driver_sql(f"INSERT INTO kept VALUES ({number})")


@pytest.mark.postgres
@pytest.mark.long
def test_a_refused_login_to_postgres_gives_its_reason_in_one_line(postgres_url: str) -> None:
    url = make_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(LeaklineError) as refused, opened_at(url, new=False):
        pass
    assert 'database "nowhere" does not exist' in str(refused.value)
    assert "\n" not in str(refused.value)


class Refusing:
    """Every transaction may only read, as on a standby of Postgres or on a file system that was mounted so."""

    def __init__(self, engine: Engine) -> None:
        self._sqlite, self._refusing = engine.dialect.name == "sqlite", True
        event.listen(engine, "begin", self._begin)

    def _begin(self, connection: Any) -> None:
        if self._sqlite:
            connection.exec_driver_sql(f"PRAGMA query_only={int(self._refusing)}")
        elif self._refusing:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def end(self) -> None:
        self._refusing = False


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def test_a_database_that_refuses_to_write_is_not_ready_until_it_does(
    database_url: str,
    make_run: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(writer, "REFUSED_WAIT_SECONDS", 0.05)
    run = make_run()
    with serving(database_url, raises=False) as api:
        run.create(api)
        run.send(api, 0, 5)
        assert code(api.get("/readyz")) == (200, "")
        refusing = Refusing(engine_of(api))
        for _ in range(5):
            answer = api.post("/api/v1/runs/r1/batches", json=run.wire(5, 5))
            assert code(answer) == (503, "database_unavailable")
            refused = api.get("/readyz")
            assert code(refused) == (503, "database_refuses")
            assert int(refused.headers["retry-after"]) >= 1
        # The process is well, and what is stored can be read.
        assert api.get("/healthz").status_code == api.get("/api/v1/runs/r1").status_code == 200
        said = [r.getMessage() for r in caplog.records if "could not write" in r.getMessage()]
        assert len(said) == 1 and "not ready" in said[0], caplog.text
        refusing.end()
        # Nobody sends anything to a server that is not ready.
        eventually(lambda: api.get("/readyz").status_code == 200)
        assert "takes what is written again" in caplog.text
        assert run.send(api, 5, 5) == 5


def test_a_batch_that_cannot_be_stored_says_nothing_of_the_database(
    database_url: str, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    with serving(database_url) as api:
        run.create(api)

        def poisoned(*_: object) -> None:
            raise OverflowError("Python int too large")

        monkeypatch.setattr(api.app.state.services.writer._inbox, "store", poisoned)
        answer = api.post("/api/v1/runs/r1/batches", json=run.wire(0, 5))
        assert code(answer) == (400, "batch_cannot_be_stored")
        assert code(api.get("/readyz")) == (200, "")
