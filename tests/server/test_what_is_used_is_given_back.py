"""A server that runs for months keeps what it knows, and nothing of what it did: no page, no buffer."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store.engine import open_engine
from leakline_server.store.history import load_for_examination

PAGES = ("/", "/runs/r1", "/alerts", "/runs/r1/report.html", "/settings", "/runs/nobody")
SHOWN = re.compile(r"leakline_server\.web\.\w+\.\w*(Row|Form|Page|Section|Choice)'")
# One of 4 MiB; then many of 1 MiB, with something of 100 kB behind each that stays.
BUFFERS = """
import sys
from pathlib import Path
from leakline_server import allocator

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "given back" and not allocator.give_back():
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


def shown_and_alive() -> Counter[str]:
    """What pages are made of, by class."""
    names = (repr(type(each)) for each in gc.get_objects())
    return Counter(name for name in names if SHOWN.search(name))


@pytest.fixture
def client(tmp_path: Path, make_run: Any) -> Any:
    config = Config(database_url=f"sqlite:///{tmp_path}/leakline.db")
    with TestClient(create_app(config), base_url="http://127.0.0.1") as made:
        run = make_run()
        run.create(made)
        run.send(made, 0, 60)
        for above in range(20):
            rule = {"name": f"n{above}", "series": "gauge.queue", "above": above}
            assert made.post("/api/v1/rules", json=rule).status_code == 201
        yield made


def test_nothing_that_a_page_showed_waits_for_the_collector(client: TestClient) -> None:
    for path in PAGES:
        client.get(path)
    gc.collect()
    gc.disable()
    try:
        before = shown_and_alive()
        for path in PAGES:
            for _ in range(3):
                assert client.get(path).status_code == (404 if path.endswith("nobody") else 200)
        refused = client.post("/alerts/rules", data={"series": "", "above": "x"})
        assert refused.status_code == 422 and "gauge.queue" in refused.text
        assert shown_and_alive() - before == Counter()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_buffers_go_back_to_the_system() -> None:
    found = kept_after_buffers("given back")
    if found == "not here":
        pytest.skip("the C library is not glibc, or people have set it")
    assert int(found) < 8e6
    # Else this shows nothing.
    assert int(kept_after_buffers("as it is")) > 30e6


def test_a_look_at_many_small_batches_makes_no_columns_of_what_they_lack(
    client: TestClient, make_run: Any, tmp_path: Path
) -> None:
    """A run by the minute waits hours until it is sealed, in batches of one snapshot each."""
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
    # It was 12 MB when each of 20,000 empty columns had arrays of its own.
    assert peak < 3e6


def test_connections_that_are_not_needed_at_once_fill_no_caches(tmp_path: Path) -> None:
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
