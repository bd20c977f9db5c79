"""A database that vanishes, refuses writes or has no space: nothing is acknowledged that is not stored."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from sqlalchemy import event, insert, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient
from tests.server.stored import engine_of, put_run, serving

from leakline.errors import LeaklineError
from leakline_server.admin import opened_at
from leakline_server.store.engine import (
    DATABASE_ERRORS,
    DatabaseMoved,
    Engine,
    is_out_of_space,
    open_engine,
    ping,
    pinging,
    writing,
)
from leakline_server.store.maintenance import disk_space, run_deletion, storage_sizes
from leakline_server.store.schema import Key, batches, runs
from leakline_server.store.series import sealing
from leakline_server.workers.examination_worker import Examiner, Wakes
from leakline_server.workers.storage_upkeep import Compactor, Sealer

READ = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM sqlite_master').fetchone()"


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
def test_a_missing_database_accepts_nothing_until_it_is_back(
    serve: Any, make_run: Any, tmp_path: Path, eventually: Any
) -> None:
    path = tmp_path / "data" / "leakline.db"
    server = serve(arguments=["--database-url", f"sqlite:///{path}"])
    run, batches = make_run(), "/api/v1/runs/r1/batches"
    assert server.request("POST", "/api/v1/runs", run.header)[0] in (200, 201)
    assert server.request("POST", batches, run.wire(0, 10))[0] == 200

    def is_refused(wire: Any) -> bool:
        status, said = server.request("POST", batches, wire)
        return (status, said["error"]["code"]) == (503, "database_moved")

    for number, lose in enumerate((_file_deleted, _folder_moved, _replaced, _log_deleted), 1):
        wire = run.wire(10 * number, 10)
        bring_back = lose(path)
        assert is_refused(wire)
        # The same holds for other rows and for new connections.
        assert server.request("POST", "/api/v1/runs", make_run(id="r2").header)[0] == 503
        assert server.request("GET", "/readyz")[0] == 503
        bring_back()
        eventually(lambda: server.request("GET", "/readyz")[0] == 200)
        assert server.request("POST", batches, wire)[0] == 200
    # Opening a deleted file creates an empty one, and SQLite then takes the write-ahead log for a leftover.
    bring_back = _file_deleted(path)
    subprocess.run([sys.executable, "-c", READ, path], check=True)
    assert not Path(f"{path}-wal").exists()
    path.unlink(missing_ok=True)
    bring_back()
    wire = run.wire(50, 10)
    assert is_refused(wire)
    server.interrupt()
    again = serve(arguments=["--database-url", f"sqlite:///{path}"])
    assert again.request("POST", batches, wire)[0] == 200
    _, found = again.request("GET", "/api/v1/runs/r1/export.json")
    assert [row["sequence"] for row in found["snapshots"]] == list(range(60))


def test_a_connection_that_would_create_another_log_is_refused(tmp_path: Path) -> None:
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
    # When the last connection closes, SQLite removes the log; the next one that opens the file creates another.
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
    """Makes every transaction read-only, as on a Postgres standby or a file system mounted read-only."""

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


@pytest.mark.parametrize("error", [PermissionError, RuntimeError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_waiting_ping_is_answered_whatever_ends_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def broken(_engine: Engine) -> None:
        raise error

    opened = open_engine(sqlite_url)
    with monkeypatch.context() as patched:
        patched.setattr("leakline_server.store.engine.ping", broken)
        assert isinstance(pinging(opened).exception(60.0), error)
    assert pinging(opened).result(60.0) is None


def test_a_database_that_refuses_writes_is_not_ready(
    database_url: str, make_run: Any, eventually: Any, patch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    patch("ingest.writer.REFUSED_WAIT_SECONDS", 0.05)
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
        # The process is healthy, and stored data can be read.
        assert api.get("/healthz").status_code == api.get("/api/v1/runs/r1").status_code == 200
        said = [r.getMessage() for r in caplog.records if "could not write" in r.getMessage()]
        assert len(said) == 1 and "not ready" in said[0], caplog.text
        refusing.end()
        # No requests are sent to a server that is not ready.
        eventually(lambda: api.get("/readyz").status_code == 200)
        assert "the database accepts writes again" in caplog.text
        assert run.send(api, 5, 5) == 5


def test_a_batch_that_cannot_be_stored_does_not_change_readiness(
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


# Numbers that compress badly, so that a few batches fill a small disk.
SERIES = 60
MIB = 2**20


def wide(make_run: Any, name: str = "r1") -> Any:
    noise = random.Random(name)
    values = {f"gauge.g{i}": noise.random() for i in range(SERIES)}
    extra = {name: lambda s, v=value: v * (s + 1) / 7 for name, value in values.items()}
    return make_run(id=name, instance=name, extra=extra)


class Limited:
    """Limits the growth of the database to a number of pages, as a disk does."""

    def __init__(self, engine: Engine, more: int) -> None:
        self._engine = engine
        self._most: int | None = None
        event.listen(engine, "begin", self._limit)
        with engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        self._most = pages + more

    def _limit(self, connection: Any) -> None:
        driver = connection.connection.driver_connection
        driver.execute(f"PRAGMA max_page_count={self._most or 2**30}").fetchone()

    def end(self) -> None:
        self._most = None


def until_refused(post: Callable[[int], Any]) -> tuple[int, Any]:
    """Send batches of 50 until one is refused; return the number of accepted snapshots and the refusal."""
    for first in range(0, 20_000, 50):
        answer = post(first)
        if answer.status_code != 200:
            return first, answer
    raise AssertionError("the disk never became full")


def test_only_a_full_disk_is_reported_as_one(engine: Engine) -> None:
    with pytest.raises(DATABASE_ERRORS) as caught, engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM nowhere")
    assert not is_out_of_space(caught.value)
    assert not is_out_of_space(ValueError("disk is full"))
    psycopg = pytest.importorskip("psycopg")
    assert is_out_of_space(OperationalError("INSERT", None, psycopg.errors.DiskFull()))


@pytest.mark.long
def test_batches_and_runs_are_refused_while_the_disk_is_full(
    sqlite_url: str,
    make_run: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(disk_space, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run = wide(make_run)
    with serving(sqlite_url) as api:
        run.begin(api, 50)

        def post(first: int) -> Any:
            return api.post("/api/v1/runs/r1/batches", json=run.wire(first, 50))

        def is_full() -> bool:
            said = "The disk is full" in api.get("/settings").text
            assert f"leakline_disk_full {float(said)}" in api.get("/metrics").text
            return said

        for name in ("r2", "r3"):
            disk = Limited(engine_of(api), more=40)
            assert not is_full()
            stored, _ = until_refused(post)
            many = {"id": name, "config": {f"k{i}": "v" * 900 for i in range(60)}}
            for answer in (*map(post, [stored] * 5), api.post("/api/v1/runs", json=many)):
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (503, "disk_full")
                assert "disk" in error["message"] and int(answer.headers["retry-after"]) >= 1
            # Reading still works, and the server reports its state.
            assert is_full() and count(api) == stored
            for path in ("/runs/r1", "/", "/readyz"):
                assert api.get(path).status_code == 200
            disk.end()
            assert post(stored).json()["accepted"] == 50
            assert api.post("/api/v1/runs", json=many).status_code == 201
            assert count(api) == stored + 50 and not is_full()
            now[0] += disk_space.SENT_AGAIN_SECONDS
    told = [r.getMessage() for r in caplog.records if " disk " in r.getMessage()]
    full, room = "the database disk is full", "the database disk has space again"
    assert [line[: line.index(":")] for line in told] == [full, room] * 2


class Full:
    """Fails every writing statement for lack of space, whatever the transaction did before."""

    def __init__(self, engine: Engine) -> None:
        self.met = 0
        event.listen(engine, "before_cursor_execute", self._refuse)

    def _refuse(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith(("INSERT", "UPDATE", "DELETE")):
            self.met += 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = 13
            raise OperationalError(statement, None, error)


def test_workers_report_a_full_disk_once_and_retry_later(
    sqlite_url: str,
    make_run: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["r1", "r2", "r3"]
    with serving(sqlite_url) as api:
        for name in names:
            make_run(id=name, instance=name).begin(api, 600)
    engine, clock = open_engine(sqlite_url), [1_000.0]
    wakes = Wakes(lambda _: None, lambda: None)
    examiner = Examiner(engine, 20.0, wakes, clock=lambda: clock[0], now=lambda: 2_000_000_000.0)
    full = Full(engine)
    for name in names:
        examiner.news(name)
    while clock[0] < 1_060.0:
        clock[0] += max(0.1, examiner.once())
    # Each run had its turn and none had many; from the 20th second on, all are marked silent every five seconds.
    assert 3 <= full.met <= 8 + 9
    monkeypatch.setattr(sealing, "ENOUGH_BATCHES", 1)
    sealer, met = Sealer(engine, lambda *_: None), full.met
    sealer.want(Key(name, 1) for name in names)
    while sealer.once() == 0.0:
        pass
    assert full.met >= met + 3
    # Nothing was sealed, so there is nothing to compact yet.
    assert Compactor(engine).once() > 0
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(told) == 1 and "the database disk is full" in told[0], told
    engine.dispose()


def count(api: Any) -> int:
    path = "/api/v1/runs/r1/series?name=gauge.g0&x=sequence&points=20000"
    (item,) = api.get(path).json()["items"]
    assert item["x"] == list(range(len(item["x"])))
    return len(item["x"])


# Other processes enter its mount namespace while it sleeps.
HELD_DISK = 'mount -t tmpfs -o size=6m leakline "$1" && echo there && exec sleep 600'


class Disk(contextlib.AbstractContextManager["Disk"]):
    """A small disk of its own, on which programs start and end."""

    def __init__(self, folder: Path) -> None:
        if os.getuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("only root can mount a small disk")
        self.folder = folder / "disk"
        self.folder.mkdir()
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", HELD_DISK, "sh", str(self.folder)], stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "there\n":
            pytest.skip("mounts are not permitted here")
        self.inside = Path(f"/proc/{self._holder.pid}/root{self.folder}")
        self.url = f"sqlite:///{self.folder}/leakline.db"

    def start(self, *command: str, **pipes: Any) -> subprocess.Popen[str]:
        entered = ["nsenter", "-m", "-t", str(self._holder.pid), sys.executable, "-m", "leakline"]
        return subprocess.Popen(
            [*entered, *command, "--database-url", self.url], text=True, **pipes
        )

    def fill(self) -> None:
        """Fill the disk to its last byte with a file."""
        with (self.inside / "junk").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4_096))

    def make_room(self) -> None:
        (self.inside / "junk").unlink()

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()


@contextlib.contextmanager
def served(disk: Disk, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server on the disk and yield its process and address."""
    with log.open("w") as errors:
        process = disk.start("serve", "--port", "0", stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, log.read_text()
        yield process, "http://" + line.split("http://")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def connected(address: str) -> httpx2.Client:
    return httpx2.Client(base_url=address, timeout=60)


def read_at_once(address: str, readers: int = 30) -> list[int]:
    """Read with more clients in parallel than a connection pool keeps open; return the statuses."""
    paths = ["/api/v1/runs/r1", "/runs/r1", "/api/v1/runs", "/api/v1/runs/r1/export.csv"]

    def read(number: int) -> int:
        with connected(address) as api:
            return api.get(paths[number % len(paths)]).status_code

    with ThreadPoolExecutor(readers) as pool:
        return list(pool.map(read, range(readers)))


@pytest.mark.long
@pytest.mark.flow
def test_many_clients_read_from_a_full_disk_and_ingest_resumes_with_space(
    tmp_path: Path, make_run: Any
) -> None:
    with Disk(tmp_path) as disk:
        run, batches = wide(make_run), "/api/v1/runs/r1/batches"
        with served(disk, tmp_path / "log") as (process, address):
            with connected(address) as api:
                run.create(api)
                run.send(api, 0, 200, 50)
            disk.fill()
            with connected(address) as api:

                def post(first: int) -> Any:
                    return api.post(batches, json=run.wire(200 + first, 50))

                taken, answer = until_refused(post)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "disk_full")
                # With space, ingest continues where it was, and nothing acknowledged is lost.
                disk.make_room()
                assert run.send(api, 200 + taken, 50) == 50
                stored = count(api)
                assert stored == 250 + taken
            said = (tmp_path / "log").read_text().splitlines()
            assert len(said) == 2, said
            assert "the database disk is full" in said[0]
            assert "the database disk has space again" in said[1]
            disk.fill()
            assert set(read_at_once(address)) == {200}
            # Killing the server leaves SQLite's files next to the database, which are then read.
            process.kill()
            process.wait(10)
        disk.fill()
        with served(disk, tmp_path / "again") as (_, address):
            assert set(read_at_once(address)) == {200}
            with connected(address) as api:
                assert count(api) == stored
        backup = disk.start(
            "db", "backup", str(tmp_path / "b.db"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = backup.communicate(timeout=60)
        assert backup.returncode == 0, said
        # After an orderly shutdown these files are gone, and SQLite must create them again.
        for shared in disk.inside.glob("leakline.db-shm"):
            shared.unlink()
        disk.fill()
        refused = disk.start("serve", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _, told = refused.communicate(timeout=60)
        assert refused.returncode == 1
        assert "disk is full" in told and len(told.splitlines()) == 1, told


def fill(engine: Engine, run_id: str, mib: int) -> None:
    """Insert a run that ended, with this many MiB of data."""
    with writing(engine) as connection:
        put_run(connection, run_id)
        of = {"run_id": run_id, "process_id": 0, "count": 1, "revision": 1, "received_at": 1.0}
        rows = [{**of, "first_sequence": i, "body": os.urandom(MIB // 16)} for i in range(mib * 16)]
        connection.execute(insert(batches), rows)


def test_space_of_a_removed_run_is_released_in_small_steps(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "SLACK_BYTES", MIB // 2)
    engine = open_engine(sqlite_url)
    file = Path(engine.url.database or "")

    def size() -> int:
        """Return the size of the file after a checkpoint."""
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return file.stat().st_size

    fill(engine, "old", 4)
    fill(engine, "new", 1)
    assert not disk_space.give_back(engine)
    before = size()
    run_deletion.remove(engine, "old", 1.0)
    while run_deletion.sweep(engine, 1.0):
        continue
    free = disk_space.space(engine).free
    assert free > 4 * MIB
    steps = 0
    while disk_space.give_back(engine):
        assert 0 < free - disk_space.space(engine).free <= disk_space.PAGES_PER_STEP * 4096
        free = disk_space.space(engine).free
        steps += 1
    assert steps > 10
    assert free <= MIB // 2
    assert before > 5 * MIB
    assert size() < 2.5 * MIB
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
        assert list(connection.scalars(select(runs.c.id))) == ["new"]
    engine.dispose()


def test_the_space_of_the_database_is_reported(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 300)
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    storage_sizes.measure(engine_of(api), 4e9)
    (project,) = api.get("/api/v1/projects").json()["items"]
    assert (project["name"], project["runs"]) == ("erl", 1)
    assert 1_000 < project["bytes"] < 100_000
    told = {
        line.split(" ")[0]: float(line.split(" ")[-1])
        for line in api.get("/metrics").text.splitlines()
        if not line.startswith("#")
    }
    assert told['leakline_project_bytes{project="erl"}'] == project["bytes"]
    assert told["leakline_database_bytes"] > project["bytes"]
    assert told["leakline_removals_waiting"] == 0
