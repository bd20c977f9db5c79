"""The real process: acknowledged data survives its death, failed starts give a reason, and memory is returned."""

from __future__ import annotations

import contextlib
import gc
import re
import socket
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.conftest import started_in
from tests.server.server_kills import kill_and_check
from tests.server.stored import load_for_examination, serving
from tests.server.under_load import PER_BATCH, SELF, load, watched

from leakline.cli import main
from leakline_server.store.engine import open_engine


def start(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Start a server that fails and return its error output."""
    assert main(["serve", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def start_at_a_taken_port(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Start a server on a taken port; return the port and the error output."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        return port, start(capsys, "--port", port)


def is_one_line(errors: str, *words: str) -> None:
    assert errors.count("\n") == 1, errors
    assert errors.startswith("leakline: ")
    for word in words:
        assert word in errors


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a test folder, and keep the start of a server from changing this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr("leakline_server.serve._serve", lambda *_: pytest.fail("it serves"))
    return tmp_path


def test_a_port_in_use_is_reported_in_one_line(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, errors = start_at_a_taken_port(capsys)
    is_one_line(errors, port, "--port")
    assert not (elsewhere / ".leakline-server").exists()


def test_a_start_warns_of_the_former_path_and_of_a_public_address(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / ".leakline").mkdir()
    (elsewhere / ".leakline" / "leakline.db").touch()
    monkeypatch.setenv("LEAKLINE_PUBLIC_URL", "https://leakline.example")
    to_move, public, *_ = start_at_a_taken_port(capsys)[1].splitlines()
    assert "move leakline.db* to .leakline-server" in to_move
    assert "set LEAKLINE_LOGIN=1" in public


def test_each_of_several_wrong_settings_has_a_line(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEAKLINE_KEEP_DAYS", "soon")
    monkeypatch.setenv("LEAKLINE_LOGN", "1")
    assert main(["serve", "--port", "http"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, *lines = printed.err.splitlines()
    assert first == "leakline: 3 settings are invalid:"
    for line, name in zip(lines, ("--port", "LEAKLINE_KEEP_DAYS", "LEAKLINE_LOGN"), strict=True):
        assert line.startswith("  ") and name in line


def test_a_database_that_cannot_be_opened_is_reported_in_one_line(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "file").write_text("this is no database" * 100)
    for path in ("file/leakline.db", "file"):
        url = f"sqlite:///{elsewhere}/{path}"
        is_one_line(start(capsys, "--port", "0", "--database-url", url), "database")


def test_a_database_of_a_newer_version_is_reported_in_one_line(
    elsewhere: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999_future'")
        database.commit()
    errors = start(capsys, "--port", "0", "--database-url", sqlite_url)
    is_one_line(errors, "9999_future", "newer")


def test_a_failing_database_gives_503_and_batches_arrive_later(
    tmp_path: Path, make_run: Any
) -> None:
    run, file = make_run(), tmp_path / "x.db"

    def rename(old: str, new: str) -> None:
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute(f"ALTER TABLE {old} RENAME TO {new}")

    with serving(f"sqlite:///{file}") as api:
        run.create(api)
        run.send(api, 0, 3)
        rename("batches", "gone")
        answer = api.post("/api/v1/runs/r1/batches", json=run.wire(3, 3))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "database_unavailable"
        rename("gone", "batches")
        assert run.send(api, 0, 6) == 3


def test_the_first_read_after_a_start_waits_for_no_import(
    tmp_path: Path, make_run: Any, eventually: Any
) -> None:
    log, run = tmp_path / "log", make_run("r1")
    with log.open("w") as said, started_in(tmp_path, said, PYTHONPROFILEIMPORTTIME="1") as start:
        server = start()
        server.request("POST", "/api/v1/runs", run.header)
        server.request("POST", "/api/v1/runs/r1/batches", run.wire(0, 200))
        assert server.request("PATCH", "/api/v1/runs/r1", {"state": "finished"})[0] == 200
        # Otherwise the examination imports its modules at the same time.
        eventually(lambda: server.request("GET", "/api/v1/runs/r1")[1]["verdict_is_current"])
        server.interrupt()
        server = start()
        # The server's workers may import something when they begin.
        eventually(lambda: time.time() - log.stat().st_mtime > 0.5)
        before = log.read_text()
        path = "/api/v1/runs/r1/series?name=process.rss_bytes&points=50"
        status, found = server.request("GET", path)
        imported = log.read_text().removeprefix(before)
    assert status == 200 and found["items"]
    assert "numpy" in before and imported == ""


@pytest.mark.long
@pytest.mark.flow
def test_kills_under_load_lose_nothing(serve: Any, make_run: Any, database_url: str) -> None:
    def start(port: int) -> Any:
        return serve(port, ["--database-url", database_url])

    figures = kill_and_check(start, make_run, 3, seed=7)
    assert figures.wrong == []
    assert figures.kills == 3
    assert figures.acknowledged > 0


SECONDS = 12.0
PER_SECOND = 300.0
# The limit of C11.
P99_SECONDS = 0.1


@pytest.mark.long
@pytest.mark.flow
@pytest.mark.alone
def test_under_load_it_answers_in_time_and_finds_no_leak_in_itself(tmp_path: Path) -> None:
    with watched(tmp_path, per="second") as server:
        figures = load(server, PER_SECOND, SECONDS)
        assert figures.refused == []
        assert len(figures.answers) * PER_BATCH >= PER_SECOND * (SECONDS - 1)
        assert figures.p99() <= P99_SECONDS, f"{figures.p99() * 1e3:.0f} ms"
        run = server.get(f"/api/v1/runs/{SELF}")
        (process,) = run["processes"]
        # It received its own readings in addition to the load.
        deadline = time.monotonic() + 20
        while (verdict := server.verdict())["generations"] < SECONDS / 2:
            assert time.monotonic() < deadline, verdict
        assert verdict["status"] in ("learning", "ok"), verdict["summary"]
        assert process["pid"] != server.process.pid
        assert server.stop() in (0, -15, 143), server.log


PAGES = ("/", "/runs/r1", "/alerts", "/runs/r1/report.html", "/settings", "/runs/nobody")
SHOWN = re.compile(r"leakline_server\.web\.\w+\.\w*(Row|Form|Page|Section|Choice)'")
# One buffer of 4 MiB; then many of 1 MiB, each followed by about 100 kB that stay.
BUFFERS = """
import sys
from pathlib import Path

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "given back":
    from leakline_server.workers.analysis_process import return_freed_memory

    if not return_freed_memory():
        print("not here")
        raise SystemExit
del (first := [bytearray(4 * 2**20)])[:]
before = resident_bytes()
buffers, small = [], []
for _ in range(40):
    buffers.append(bytearray(b"x" * 2**20))
    small.append(bytearray(b"x" * 100_000))
buffers.clear()
print(resident_bytes() - before)
"""


def kept_after_buffers(how: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", BUFFERS, how], capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout.strip()


def shown_and_alive() -> Counter[type]:
    """Return the objects that pages are made of, by class."""
    found = Counter(map(type, gc.get_objects()))
    return Counter({kind: count for kind, count in found.items() if SHOWN.search(repr(kind))})


@pytest.fixture
def client(tmp_path: Path, make_run: Any) -> Any:
    with serving(f"sqlite:///{tmp_path}/leakline.db") as made:
        run = make_run()
        run.create(made)
        run.send(made, 0, 60)
        for above in range(20):
            rule = {"name": f"n{above}", "series": "gauge.queue", "above": above}
            assert made.post("/api/v1/rules", json=rule).status_code == 201
        yield made


def test_no_object_of_a_page_waits_for_the_garbage_collector(client: TestClient) -> None:
    for path in PAGES:
        client.get(path)
    gc.collect()
    gc.disable()
    try:
        before = shown_and_alive()
        for path in PAGES:
            assert client.get(path).status_code == (404 if path.endswith("nobody") else 200)
        refused = client.post("/alerts/rules", data={"series": "", "above": "x"})
        assert refused.status_code == 422 and "gauge.queue" in refused.text
        assert shown_and_alive() - before == Counter()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_buffers_are_returned_to_the_system() -> None:
    found = kept_after_buffers("given back")
    if found == "not here":
        pytest.skip("the C library is not glibc, or people have set it")
    assert int(found) < 8e6
    # Otherwise this test shows nothing.
    assert int(kept_after_buffers("as it is")) > 30e6


@pytest.mark.long
def test_small_batches_create_no_columns_for_missing_series(
    client: TestClient, make_run: Any, tmp_path: Path
) -> None:
    """A run by the minute waits for hours until it is sealed, in batches of one snapshot each."""
    run = make_run(id="slow", instance="slow")
    run.create(client)
    for n in range(200):
        body = run.wire(n, 1)
        rare = {f"gauge.g{i}": [n] for i in range(100)} if n % 40 == 0 else {}
        body["columns"]["series"] = {"process.rss_bytes": [2**30], **rare}
        assert client.post("/api/v1/runs/slow/batches", json=body).status_code == 200
    engine = open_engine(f"sqlite:///{tmp_path}/leakline.db")
    load_for_examination(engine, "slow")
    tracemalloc.start()
    try:
        history, _ = load_for_examination(engine, "slow")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        engine.dispose()
    assert len(history.processes[0].series) == 101
    # It was 12 MB when each of 20,000 empty columns had its own arrays.
    assert peak < 3e6


def test_connections_that_are_not_needed_fill_no_caches(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/leakline.db")
    at_once = [engine.connect() for _ in range(4)]
    for connection in at_once:
        connection.close()
    used = set()
    for _ in range(20):
        with engine.connect() as connection:
            used.add(id(connection.connection.driver_connection))
    engine.dispose()
    assert len(used) == 1
