"""Two hundred databases damaged at random: a server starts or says why not, and names what is lost."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of, seal

from leakline.analysis.results import Finding, Interval, Verdict, to_json
from leakline_server.config import Config
from leakline_server.serve import CannotServe, open_app
from leakline_server.store.engine import writing
from leakline_server.store.findings import save
from leakline_server.workers.deliver import Deliverer
from leakline_server.workers.examine import Examiner

RUNS = ("r1", "r2", "r3")
# Of each kind so many, with the seeds that follow each other.
KINDS = {"a byte": 80, "a block": 40, "a page of zeros": 20, "cut off": 30, "a table emptied": 30}
# What something else points to. Nothing says that there was ever an event or an alert.
EMPTIED = (
    "runs",
    "attempts",
    "processes",
    "series",
    "batches",
    "segments",
    "chunks",
    "incidents",
    "alembic_version",
)
# Answers of a server that cannot read something, and says so.
SAYS_SO = ("database_damaged", "stored_data_damaged")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Path:
    """A database of three runs, with sealed and other snapshots and an incident of each."""
    file = tmp_path_factory.mktemp("whole") / "leakline.db"
    with _served(file) as api:
        engine = engine_of(api)
        for name in RUNS:
            run = make_run(id=name, instance=name)
            run.create(api)
            run.send(api, 0, 300)
            seal(engine)
            run.send(api, 300, 60, size=20)
            growth = Interval(7.0, 6.0, 8.0)
            found = Finding("f1", "confirmed", "objects", "train", 0.9, (), growth, None, 0.9)
            verdict = Verdict(
                name, "generation", 9, "confirmed", f"{name} leaks", growth, 0.9, (found,)
            )
            with writing(engine) as connection:
                save(connection, verdict, to_json(verdict), run.started)
            assert api.patch(f"/api/v1/runs/{name}", json={"state": "finished"}).status_code == 200
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture(autouse=True)
def standing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Examiner, "once", lambda self: 60.0)
    monkeypatch.setattr(Deliverer, "_dispatch", lambda self: 60.0)


@contextlib.contextmanager
def _served(file: Path) -> Iterator[TestClient]:
    """Raises CannotServe."""
    with contextlib.ExitStack() as held:
        app = open_app(Config(database_url=f"sqlite:///{file}"), held)
        yield held.enter_context(TestClient(app, "http://127.0.0.1", raise_server_exceptions=False))


def damage(file: Path, kind: str, dice: random.Random) -> str:
    """Returns what was done."""
    if kind == "a table emptied":
        table = dice.choice(EMPTIED)
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
    """What would be missed, by what it is; where an answer says that it is damaged, that."""
    return {
        "runs": _read(
            api, "/api/v1/runs", lambda found: sorted(run["id"] for run in found["items"])
        ),
        **{
            f"{name} {what}": _read(api, f"/api/v1/runs/{name}{path}", take)
            for name in RUNS
            for what, path, take in PARTS
        },
    }


def _read(api: TestClient, path: str, take: Any) -> Any:
    answer = api.get(path)
    if answer.status_code == 200:
        return take(answer.json())
    assert "internal_error" not in answer.text, (path, answer.text)
    return answer.json()["error"]["code"]


PARTS = (
    (
        "series",
        "/series?name=process.rss_bytes&points=20000&x=sequence",
        lambda found: [(item["x"], item["last"]) for item in found["items"]],
    ),
    ("incidents", "/incidents", lambda found: [item["fingerprint"] for item in found["items"]]),
    ("events", "/events", lambda found: len(found["items"])),
    ("processes", "", lambda found: [each["instance"] for each in found["processes"]]),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_silently(
    kind: str,
    whole: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        done = damage(file, kind, random.Random(seed))
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
