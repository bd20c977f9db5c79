"""`/readyz` says 503 as long as the database takes nothing that is written, and finds out by itself when it does."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from leakline_server import writer
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store.engine import Engine


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
    app = create_app(Config(database_url=database_url))
    run = make_run()
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as api:
        run.create(api)
        run.send(api, 0, 5)
        assert code(api.get("/readyz")) == (200, "")
        refusing = Refusing(app.state.services.engine)
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
    app = create_app(Config(database_url=database_url))
    run = make_run()
    with TestClient(app, base_url="http://127.0.0.1") as api:
        run.create(api)

        def poisoned(*_: object) -> None:
            raise OverflowError("Python int too large")

        monkeypatch.setattr(app.state.services.writer._inbox, "store", poisoned)
        answer = api.post("/api/v1/runs/r1/batches", json=run.wire(0, 5))
        assert code(answer) == (400, "batch_cannot_be_stored")
        assert code(api.get("/readyz")) == (200, "")
