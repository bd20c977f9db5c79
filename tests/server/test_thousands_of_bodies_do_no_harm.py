"""Thousands of hostile bodies over HTTP: a real server answers each without a failure of its own, and takes no memory.

`make test-weekly` sends ten thousand.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.server.hostile_bodies import Sent, requests

pytestmark = pytest.mark.flow

BODIES: Final = int(os.environ.get("LEAKLINE_FUZZ_BODIES", "300"))
SEED: Final = int(os.environ.get("LEAKLINE_FUZZ_SEED", "10"))
MAX_GROWTH_BYTES: Final = 10_000_000
# Until every part of the server has been used, its caches are filled and its threads are there.
WARM_UP: Final = 500


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Sender:
    """One connection, made again when the server ends it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def send(self, sent: Sent) -> tuple[int, http.client.HTTPMessage, bytes]:
        for last in (False, True):
            try:
                self._connection.request(sent.method, sent.path, sent.body, dict(sent.headers))
                answer = self._connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                if last:
                    raise
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


def check(sent: Sent, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
    assert status < 500, (status, body, sent)
    if status >= 400 and headers.get_content_type() == "application/json":
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message", "details"}, (body, sent)
        assert error["message"] and "\n" not in error["message"], (body, sent)
        assert len(body) < 3_000, (body, sent)


@contextlib.contextmanager
def sender(port: int) -> Iterator[Sender]:
    made = Sender(port)
    try:
        yield made
    finally:
        made.close()


def test_none_is_a_failure_of_ours_and_no_memory_is_kept(
    serve: Any, database_url: str, make_run: Any
) -> None:
    server = serve(arguments=["--database-url", database_url])
    kept = make_run(id="kept")
    for run in (kept, *(make_run(id=name) for name in ("f1", "f2", "f3"))):
        assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
        assert server.request("POST", f"/api/v1/runs/{run.id}/batches", run.wire(0, 60))[0] == 200
    before = server.request("GET", "/api/v1/runs/kept/snapshots?limit=200&name=*")
    answers: Counter[tuple[str, int]] = Counter()
    base = 0
    with sender(server.port) as connection:
        for number, sent in enumerate(requests(SEED, WARM_UP + BODIES, kept.wire(0, 10))):
            if number == WARM_UP:
                base = resident_bytes(server.process.pid)
            status, headers, body = connection.send(sent)
            check(sent, status, headers, body)
            answers[sent.path.rsplit("/")[-1], status] += 1
    growth = resident_bytes(server.process.pid) - base
    sys.stderr.write(f"{BODIES} bodies, {growth / 1e6:.1f} MB: {sorted(answers.items())}\n")
    # It is no test where everything is refused at the door.
    for path, status in (
        ("batches", 200),
        ("batches", 422),
        ("batches", 413),
        ("runs", 200),
        ("rules", 201),
    ):
        assert answers[path, status], answers
    assert growth <= MAX_GROWTH_BYTES
    assert server.request("GET", "/api/v1/runs/kept/snapshots?limit=200&name=*") == before
    for path in ("/readyz", "/api/v1/runs", "/api/v1/runs/f1", "/", "/runs/f1", "/alerts"):
        assert server.request("GET", path)[0] == 200
