"""Write a database with the server of an older version, and the answers of that server.

`tests/server/test_old_databases.py` upgrades `schema_NNNN.db.xz` and compares its answers with `schema_NNNN.json.xz`.

    git archive COMMIT agent_client server migrations templates static | tar -x -C OLD
    PYTHONPATH=OLD/agent_client:OLD/server python tests/data/record_schema.py 0009 FOLDER

That test lists the commits. The data that is sent comes from `schema_0004.json.xz`.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import from_environment

HERE = Path(__file__).parent
STARTED = 1_760_000_000.0
RUNS = (
    {"id": "grows", "project": "erl"},
    {"id": "gaps", "project": "erl"},
    {"id": "fresh", "project": "other"},
)
HEADER = {
    "total": 200,
    "started_at": STARTED,
    "phases": ["evaluate", "train"],
    "config": {"population": 16},
}
WAIT_SECONDS = 60.0


def main(schema: str, folder: Path) -> None:
    known = json.loads(lzma.decompress((HERE / "schema_0004.json.xz").read_bytes()))
    file = folder / f"schema_{schema}.db"
    config = from_environment(
        {
            "LEAKLINE_DATABASE_URL": f"sqlite:///{file}",
            "LEAKLINE_WEBHOOK_URL": "http://127.0.0.1:9/hook",
            "LEAKLINE_WEBHOOK_SECRET": "whsec_" + "QUJD" * 8,
        }
    )
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        write(api, known["sent"])
    # Its workers never run, so that the answers depend only on the stored data.
    api = TestClient(create_app(config), base_url="http://127.0.0.1")
    answers = {
        path: answer for path in questions(known, api) if (answer := asked(api, path)) is not None
    }
    copy = folder / "copy.db"
    with (
        contextlib.closing(sqlite3.connect(file)) as found,
        contextlib.closing(sqlite3.connect(copy)) as one,
    ):
        found.backup(one)
        one.execute("PRAGMA journal_mode=DELETE")
    (folder / f"{file.name}.xz").write_bytes(lzma.compress(copy.read_bytes(), preset=9))
    copy.unlink()
    told = json.dumps({"answers": answers}).encode()
    (folder / f"schema_{schema}.json.xz").write_bytes(lzma.compress(told, preset=9))


def write(api: TestClient, sent: list[tuple[str, Any]]) -> None:
    for run in RUNS:
        answer = api.post("/api/v1/runs", json={**HEADER, **run, "name": f"the {run['id']} one"})
        assert answer.status_code == 201, answer.text
    for path, batch in sent:
        answer = api.post(path, json=batch)
        assert answer.status_code == 200 and answer.json()["accepted"], (path, answer.text)
    answer = api.patch("/api/v1/runs/gaps", json={"tags": ["ten", "keep"], "state": "finished"})
    assert answer.status_code == 200, answer.text
    pause, deadline = threading.Event(), time.monotonic() + WAIT_SECONDS
    while (status := api.get("/api/v1/runs/grows/verdict").json()["status"]) == "learning":
        assert time.monotonic() < deadline, status
        pause.wait(0.1)


def questions(known: dict[str, Any], api: TestClient) -> list[str]:
    """Return the paths of the other recordings, with the incident of this one; one query per sample is enough."""
    paths = [
        path for path in known["answers"] if "?name=*&" not in path and "/incidents/" not in path
    ]
    items = api.get("/api/v1/incidents").json()["items"]
    return paths + [f"/api/v1/incidents/{item['fingerprint']}?project=erl" for item in items]


def asked(api: TestClient, path: str) -> Any:
    """Return the answer with all pages joined, or None if this version does not have the path."""
    answer = api.get(path)
    if answer.status_code != 200:
        return None
    found = answer.json()
    if "/snapshots?" in path:
        rows = found["items"]
        while found["next"]:
            found = api.get(f"{path}&cursor={found['next']}").json()
            rows += found["items"]
        return {"items": rows}
    return found


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1], Path(sys.argv[2]))
