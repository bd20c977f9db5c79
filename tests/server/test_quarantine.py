"""Damaged values are set aside when a server starts and when reading fails; intact values are never touched."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.conftest import sqlite_url
from tests.server.stored import NOT_UTF8, change_file, engine_of, find, seal, serving

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.security.credentials import hash_password
from leakline_server.serve import CannotServe, open_app
from leakline_server.store import access, leases
from leakline_server.store.alerts import webhooks
from leakline_server.store.engine import Engine
from leakline_server.store.ingest.inbox import Inbox
from leakline_server.store.maintenance import quarantine
from leakline_server.store.schema import damaged, runs, settings, tokens
from leakline_server.worker_thread import Worker
from leakline_server.workers.examination_worker import Examiner, Wakes

database_url = sqlite_url


@pytest.fixture
def engine(api: TestClient, make_run: Any) -> Engine:
    for name in ("r1", "r2"):
        run = make_run(id=name, instance=name)
        run.create(api)
        run.send(api, 0, 60)
    return engine_of(api)


def copies(engine: Engine) -> list[tuple[str | None, str, str, bytes | None]]:
    d = damaged.c
    with engine.connect() as connection:
        found = connection.execute(select(d.run_id, d.table_name, d.column_name, d.value))
        return [tuple(row) for row in found]


def test_an_intact_database_is_not_changed(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    hashed = hash_password("a long password")
    access.set_password(engine, hashed)
    assert access.begin(engine, "digest", hashed, 1.0, 10.0)
    webhooks.note_trial(engine, 1, webhooks.Trial(1.0, 0.1, None, "no answer"))
    assert leases.take(engine, "retain", "me", 1.0, 10.0)
    webhooks.stored_secret(engine, lambda: "made")
    assert quarantine.set_aside(engine) == 0
    assert (copies(engine), caplog.text) == ([], "")


@pytest.mark.usefixtures("standing_back")
def test_a_damaged_value_is_kept_as_it_was_found(engine: Engine) -> None:
    change_file(engine, f"UPDATE runs SET reason = {NOT_UTF8} WHERE id = 'r1'")
    assert quarantine.set_aside(engine) == 1
    assert copies(engine) == [("r1", "runs", "reason", b"\xff[sk-secret")]
    assert quarantine.set_aside(engine) == 0


def test_a_lost_verdict_is_computed_again(
    api: TestClient, engine: Engine, database_url: str, eventually: Any
) -> None:
    def verdict_of(server: TestClient) -> Any:
        return server.get("/api/v1/runs/r1/verdict").json()

    whole = eventually(lambda: (found := verdict_of(api))["generations"] and found)
    change_file(engine, f"UPDATE runs SET verdict = {NOT_UTF8} WHERE id = 'r1'")
    with serving(database_url) as again:
        assert eventually(lambda: (found := verdict_of(again))["generations"] and found) == whole


# The workers read the runs as well, and the first reader sets the value aside.
@pytest.mark.usefixtures("standing_back")
def test_a_reader_is_redirected_to_the_same_address(api: TestClient, engine: Engine) -> None:
    change_file(engine, f"UPDATE runs SET reason = {NOT_UTF8} WHERE id = 'r1'")
    path = "/api/v1/runs?limit=5&q=before%2Dfix"
    answer = api.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, path)
    assert api.get(path, follow_redirects=False).status_code == 200


@pytest.mark.usefixtures("standing_back")
def test_a_reader_is_redirected_once(api: TestClient, engine: Engine, patch: Any) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a bug")

    patch("web.runs.series_api.summarise", fail)
    change_file(engine, f"UPDATE runs SET reason = {NOT_UTF8} WHERE id = 'r1'")
    path = "/api/v1/runs/r1/series?name=process.rss_bytes"
    assert api.get(path, follow_redirects=False).status_code == 307
    with pytest.raises(ValueError, match="a bug"):
        api.get(path)


@pytest.mark.usefixtures("standing_back")
def test_a_writer_is_asked_to_retry(api: TestClient, engine: Engine) -> None:
    change_file(engine, "UPDATE runs SET notes = '[' WHERE id = 'r1'")
    body = {"notes": [{"text": "seen"}]}
    refused = api.patch("/api/v1/runs/r1", json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "damaged_data_set_aside"
    assert api.patch("/api/v1/runs/r1", json=body).status_code == 200


def test_an_error_without_damage_is_checked_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Engine] = []
    monkeypatch.setattr(quarantine, "set_aside", lambda engine: looked.append(engine) or 0)
    assert [quarantine.after(engine, TypeError()) for _ in range(3)] == [False, None, None]
    assert looked == [engine]
    assert quarantine.after(engine, KeyboardInterrupt()) is False


def test_concurrent_readers_share_one_check_and_retry(engine: Engine) -> None:
    change_file(engine, f"UPDATE runs SET reason = {NOT_UTF8} WHERE id = 'r1'")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(partial(quarantine.after, engine), [TypeError()] * 8))
    assert found == [True] * 8
    assert len(copies(engine)) == 1


def test_no_batch_is_refused_permanently_before_a_check(
    api: TestClient, engine: Engine, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damage appears in the pause after a check that found nothing."""
    assert quarantine.after(engine, TypeError()) is False

    def store(*_: Any) -> None:
        raise ValueError

    other = make_run(id="r1", instance="another")
    monkeypatch.setattr(Inbox, "store", store)
    batch = "/api/v1/runs/r1/batches"
    assert api.post(batch, json=other.wire(0, 3)).status_code == 503
    # After the pause, a batch that cannot be stored is refused permanently.
    monkeypatch.setattr(quarantine, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(quarantine, "_checks_of", WeakKeyDictionary())
    refused = api.post(batch, json=other.wire(0, 3))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "batch_cannot_be_stored")


def test_damage_is_known_after_a_restart_and_removed_with_the_run(
    api: TestClient, engine: Engine, database_url: str
) -> None:
    change_file(engine, "UPDATE runs SET tags = '{' WHERE id = 'r1'")
    create_app(Config(database_url=database_url)).state.services.engine.dispose()
    said = {run["id"]: run["summary"] for run in api.get("/api/v1/runs").json()["items"]}
    start = "Some of the data stored for this run is damaged (tags): delete the run, or restore a backup."
    assert (said["r1"].startswith(start), "damaged" in said["r2"]) == (True, False)
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM runs WHERE id = 'r1'")
    assert copies(engine) == []


def test_a_row_with_a_damaged_key_is_kept(
    api: TestClient, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    change_file(engine, f"UPDATE runs SET id = {NOT_UTF8} WHERE id = 'r1'")
    caplog.set_level(logging.ERROR, "leakline")
    assert [run["id"] for run in api.get("/api/v1/runs").json()["items"]] == ["r2"]
    found = copies(engine)
    assert (None, "runs", "id", b"\xff[sk-secret") in found
    assert {column for _, _, column, _ in found} == {*_columns("runs")}
    assert "stored data of project erl is damaged: row 1 of runs cannot be read" in caplog.text
    assert "sk-secret" not in caplog.text


def _columns(table: str) -> list[str]:
    return list(damaged.metadata.tables[table].c.keys())


@pytest.mark.usefixtures("standing_back")
def test_damage_gives_nobody_access(engine: Engine) -> None:
    access.set_password(engine, hash_password("a long password"))
    with engine.begin() as connection:
        row = {
            "name": "t", "scope": "ingest", "browser": False, "prefix": "b", "digest": "d", "created_at": 1.0,
        }  # fmt: skip
        connection.execute(tokens.insert().values(**row, project="p", revoked_at=2.0))
    change_file(engine, f"UPDATE settings SET value = {NOT_UTF8} WHERE key = 'password'")
    change_file(engine, f"UPDATE tokens SET project = {NOT_UTF8}")
    assert quarantine.set_aside(engine) == 2
    assert access.password_hash(engine) == ""
    with engine.connect() as connection:
        assert connection.execute(select(tokens)).all() == []
        assert connection.execute(select(settings.c.key)).scalars().all().count("password") == 1


@pytest.mark.usefixtures("standing_back")
@pytest.mark.parametrize(
    "change_to",
    [f"key = {NOT_UTF8}", "key = 'passwosd'", "key = X'70'", f"key = {NOT_UTF8}, value = '{{'",
     f"key = X'70', value = {NOT_UTF8}"],
)  # fmt: skip
def test_a_password_with_a_damaged_key_stays_closed(engine: Engine, change_to: str) -> None:
    access.set_password(engine, hash_password("a long password"))
    change_file(engine, f"UPDATE settings SET {change_to} WHERE key = 'password'")
    assert quarantine.set_aside(engine) == 1
    assert access.password_hash(engine) == ""
    assert quarantine.set_aside(engine) == 0


@pytest.mark.usefixtures("standing_back")
@pytest.mark.parametrize("key", ["lease.retain", "webhook_test:7"])
def test_an_unreadable_setting_is_removed(engine: Engine, key: str) -> None:
    change_file(engine, f"INSERT INTO settings (key, value) VALUES ('{key}', '{{}}')")
    assert quarantine.set_aside(engine) == 1
    assert leases.take(engine, "retain", "me", 1.0, 10.0)
    assert webhooks.last_trials(engine) == {}
    assert access.password_hash(engine) is None


@pytest.mark.usefixtures("standing_back")
def test_settings_of_a_newer_version_stay(engine: Engine) -> None:
    change_file(engine, "INSERT INTO settings (key, value) VALUES ('theme', '{\"dark\": true}')")
    assert leases.take(engine, "retain", "me", 1.0, 10.0)
    change_file(engine, f"UPDATE settings SET key = {NOT_UTF8} WHERE key = 'lease.retain'")
    assert quarantine.set_aside(engine) == 1
    assert access.password_hash(engine) is None
    with engine.connect() as connection:
        assert "theme" in connection.execute(select(settings.c.key)).scalars().all()


def test_the_examiner_continues_after_damage(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    change_file(engine, "UPDATE runs SET phases = '{', revision = revision + 1 WHERE id = 'r1'")
    clock = [100.0]
    examiner = Examiner(engine, 60.0, Wakes(lambda run: None, lambda: None), lambda: clock[0])
    working = Worker("examine", examiner.once, partial(quarantine.after, engine), examiner.failed)
    examiner.news("r1")
    caplog.set_level(logging.INFO, "leakline")
    for _ in range(5):
        working.attempt()
        clock[0] += 60.0
    assert "run r1 is damaged: its phases cannot be read" in caplog.text
    assert "Traceback" not in caplog.text
    with engine.connect() as connection:
        examined = select(runs.c.verdict).where(runs.c.id == "r1")
        assert connection.scalar(examined) is not None


RUNS = ("r1", "r2", "r3")
# Tables that other rows refer to. Nothing indicates that there ever was an event or an alert.
EMPTIED = (
    "runs", "attempts", "processes", "series", "batches", "segments", "chunks", "incidents", "alembic_version",
)  # fmt: skip
# The number of seeds for each kind of damage.
KINDS = {
    "a byte": 40,
    "a block": 20,
    "a page of zeros": 10,
    "cut off": 15,
    "a table emptied": len(EMPTIED),
}

# Error codes of a server that cannot read something and says so.
SAYS_SO = ("database_damaged", "stored_data_damaged")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Path:
    """Return a database of three runs, with sealed and unsealed snapshots and an incident of each."""
    file = tmp_path_factory.mktemp("whole") / "leakline.db"
    with _served(file) as api:
        engine = engine_of(api)
        for name in RUNS:
            run = make_run(id=name, instance=name)
            run.create(api)
            run.send(api, 0, 300)
            seal(engine)
            run.send(api, 300, 60, size=20)
            find(engine, name, when=run.started)
            assert api.patch(f"/api/v1/runs/{name}", json={"state": "finished"}).status_code == 200
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@contextlib.contextmanager
def _served(file: Path) -> Iterator[TestClient]:
    """Serve the file, or raise CannotServe."""
    with contextlib.ExitStack() as held:
        app = open_app(Config(database_url=f"sqlite:///{file}"), held)
        yield held.enter_context(TestClient(app, "http://127.0.0.1", raise_server_exceptions=False))


def damage(file: Path, kind: str, seed: int) -> str:
    """Damage the file and return what was done."""
    dice = random.Random(seed)
    if kind == "a table emptied":
        table = EMPTIED[seed]
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute(f"DELETE FROM {table}")
            database.commit()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return f"{table} emptied"
    data = bytearray(file.read_bytes())
    at = dice.randrange(len(data))
    if kind == "a byte":
        data[at] ^= 1 << dice.randrange(8)
    elif kind == "a block":
        data[at : at + 512] = dice.randbytes(len(data[at : at + 512]))
    elif kind == "a page of zeros":
        at -= at % 4096
        data[at : at + 4096] = bytes(4096)
    else:
        del data[at:]
    file.write_bytes(data)
    return f"{kind} at {at}"


def contents(api: TestClient) -> dict[str, Any]:
    """Return everything that could be lost, by kind, or the error of an answer that reports damage."""
    found = {
        "runs": _read(api, "/api/v1/runs", lambda told: sorted(run["id"] for run in told["items"]))
    }
    for name, (what, path, take) in itertools.product(RUNS, PARTS):
        found[f"{name} {what}"] = _read(api, f"/api/v1/runs/{name}{path}", take)
    return found


def _read(api: TestClient, path: str, take: Any) -> Any:
    answer = api.get(path)
    if answer.status_code == 200:
        return take(answer.json())
    assert "internal_error" not in answer.text, (path, answer.text)
    return answer.json()["error"]["code"]


SERIES = "/series?name=process.rss_bytes&points=20000&x=sequence"
PARTS = (
    ("series", SERIES, lambda found: [(item["x"], item["last"]) for item in found["items"]]),
    ("incidents", "/incidents", lambda found: [item["fingerprint"] for item in found["items"]]),
    ("events", "/events", lambda found: len(found["items"])),
    ("processes", "", lambda found: [each["instance"] for each in found["processes"]]),
)


@pytest.mark.long
@pytest.mark.usefixtures("standing_back")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_silently(
    kind: str, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    crashed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", crashed.append)
    caplog.set_level(logging.INFO, "leakline")
    file = tmp_path / "leakline.db"
    shutil.copy(whole, file)
    with _served(file) as api:
        before = contents(api)
    wrong: list[Any] = []
    for seed in range(KINDS[kind]):
        for old in tmp_path.iterdir():
            old.unlink()
        shutil.copy(whole, file)
        done = damage(file, kind, seed)
        caplog.clear()
        try:
            with _served(file) as api:
                found = contents(api)
                page = api.get("/")
                assert page.status_code in (200, 503), (done, page.text)
        except CannotServe as error:
            if "\n" in str(error):
                wrong.append((done, str(error)))
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a crash
            wrong.append((done, repr(error)))
            continue
        differs = {what for what in before if found.get(what) != before[what]}
        silent = {what for what in differs if found[what] not in SAYS_SO}
        if silent and "stored data of" not in caplog.text:
            wrong.append((done, silent))
        if "Traceback" in caplog.text or crashed:
            wrong.append((done, "crash", crashed, caplog.text[-1500:]))
            crashed.clear()
    assert wrong == []
