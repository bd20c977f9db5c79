"""The real process: what was acknowledged survives its death, and it says in one line why it will not start."""

from __future__ import annotations

import http.client
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flow


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A server that is not expected to stay."""
    return subprocess.run(
        [sys.executable, "-m", "leakline", "serve", *arguments], cwd=folder,
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def said_in_one_line(ended: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("leakline: ")
    for word in words:
        assert word in ended.stderr


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said_in_one_line(start(tmp_path, "--port", port), 1, port, "--port")
    assert not (tmp_path / ".leakline-server").exists()


def test_listening_beyond_this_machine_is_refused(tmp_path: Path) -> None:
    said_in_one_line(start(tmp_path, "--host", "0.0.0.0"), 2, "0.0.0.0", "LEAKLINE_INSECURE")


def test_a_public_address_where_nobody_is_asked_is_told_at_the_start(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "LEAKLINE_PUBLIC_URL": "https://leakline.example"},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline()
    process.terminate()
    _, told = process.communicate(timeout=20)
    assert len(told.splitlines()) == 1 and "set LEAKLINE_LOGIN=1" in told


def test_a_wrong_port_is_one_line(tmp_path: Path) -> None:
    said_in_one_line(start(tmp_path, "--port", "http"), 2, "--port", "http")


def test_each_of_several_wrong_settings_has_a_line(tmp_path: Path) -> None:
    ended = start(tmp_path, "--port", "http", LEAKLINE_KEEP_DAYS="soon", LEAKLINE_LOGN="1")
    assert (ended.returncode, ended.stdout) == (2, "")
    first, *lines = ended.stderr.splitlines()
    assert first == "leakline: 3 settings are wrong:"
    for line, name in zip(lines, ("--port", "LEAKLINE_KEEP_DAYS", "LEAKLINE_LOGN"), strict=True):
        assert line.startswith("  ") and name in line


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"sqlite:///{tmp_path}/file/leakline.db"
    said_in_one_line(start(tmp_path, "--port", "0", "--database-url", url), 1, "database")
    (tmp_path / "not.db").write_text("this is no database" * 100)
    url = f"sqlite:///{tmp_path}/not.db"
    said_in_one_line(start(tmp_path, "--port", "0", "--database-url", url), 1, "database")


def test_a_database_of_a_newer_version_is_one_line(tmp_path: Path, serve: Any) -> None:
    serve().interrupt()
    with sqlite3.connect(tmp_path / ".leakline-server" / "leakline.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999_future'")
    database.close()
    said_in_one_line(start(tmp_path, "--port", "0"), 1, "9999_future", "newer")


def test_a_kill_during_ingest_loses_no_acknowledged_snapshot(serve: Any, make_run: Any) -> None:
    server = serve()
    writers = [make_run(id=f"w{i}", instance=f"i{i}") for i in range(4)]
    acknowledged = {run.id: 0 for run in writers}
    enough = threading.Event()

    def write(run: Any) -> None:
        assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        while True:
            first = acknowledged[run.id]
            try:
                connection.request("POST", f"/api/v1/runs/{run.id}/batches", body(run, first))
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                return
            assert answer.status == 200
            acknowledged[run.id] = first + 25
            if acknowledged[run.id] >= 700:
                # Sealing has begun for at least one of them: the kill comes in the middle of everything.
                enough.set()

    threads = [threading.Thread(target=write, args=(run,)) for run in writers]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    server.kill()
    for thread in threads:
        thread.join(20)

    again = serve(port=server.port)
    for run in writers:
        path = f"/api/v1/runs/{run.id}/series?name=type.app.Env.count&x=sequence&points=20000"
        (item,) = again.request("GET", path)[1]["items"]
        stored = len(item["x"])
        # The batch under way may be there although its answer never came; nothing else may differ.
        assert acknowledged[run.id] <= stored <= acknowledged[run.id] + 25
        assert item["x"] == list(range(stored))
        assert item["last"] == [
            run.snapshot(i).samples["type.app.Env.count"] for i in range(stored)
        ]
        status, answer = again.request(
            "POST", f"/api/v1/runs/{run.id}/batches", body(run, stored - 25)
        )
        assert (status, answer["accepted"]) == (200, 0)
        status, answer = again.request("POST", f"/api/v1/runs/{run.id}/batches", body(run, stored))
        assert (status, answer["accepted"]) == (200, 25)


def body(run: Any, first: int) -> bytes:
    import json

    return json.dumps(run.wire(first, 25)).encode()


def test_more_than_the_writer_can_take_is_sent_away_for_a_second(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    from leakline_server.app import create_app
    from leakline_server.config import Config

    run = make_run()
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.db"))
    with TestClient(app, base_url="http://127.0.0.1") as api:
        run.create(api)
        monkeypatch.setattr("leakline_server.writer.MAX_WAITING_BATCHES", 0)
        answer = api.post("/api/v1/runs/r1/batches", json=run.wire(0, 3))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "too_busy"
        monkeypatch.undo()
        assert run.send(api, 0, 3) == 3


def test_a_database_that_fails_is_503_and_the_batch_is_taken_later(
    tmp_path: Path, make_run: Any
) -> None:
    from starlette.testclient import TestClient

    from leakline_server.app import create_app
    from leakline_server.config import Config

    run = make_run()
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.db"))
    with TestClient(app, base_url="http://127.0.0.1") as api:
        run.create(api)
        run.send(api, 0, 3)
        with sqlite3.connect(tmp_path / "x.db") as database:
            database.execute("ALTER TABLE batches RENAME TO gone")
        answer = api.post("/api/v1/runs/r1/batches", json=run.wire(3, 3))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "database_unavailable"
        with sqlite3.connect(tmp_path / "x.db") as database:
            database.execute("ALTER TABLE gone RENAME TO batches")
        database.close()
        assert run.send(api, 0, 6) == 3


def test_a_server_on_a_database_at_the_former_place_says_so_in_one_line(
    serve: Any, make_run: Any, tmp_path: Path
) -> None:
    first = serve()
    assert first.request("POST", "/api/v1/runs", make_run().header)[0] == 201
    first.interrupt()
    (tmp_path / ".leakline-server").rename(tmp_path / ".leakline")
    assert not (tmp_path / ".leakline-server").exists()
    second = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert second.stdout is not None
        second.stdout.readline()
    finally:
        second.terminate()
        _, errors = second.communicate(timeout=20)
    assert errors.count("move leakline.db* to .leakline-server") == 1
    assert not (tmp_path / ".leakline-server").exists()
