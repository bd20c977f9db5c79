"""The live stream of a run: each message once, in order, and none lost after a reconnect."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.flow


class Stream:
    """Reads server-sent events from a real connection."""

    def __init__(
        self,
        port: int,
        query: str = "",
        headers: dict[str, str] | None = None,
        path: str = "/api/v1/runs/r1/live",
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", path + query, headers=headers or {})
        self.answer = self._connection.getresponse()
        self.last_id: str | None = None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        event: dict[str, str] = {}
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value
            elif not line and "event" in event:
                self.last_id = event.get("id", self.last_id)
                yield event["event"], json.loads(event["data"])
                event = {}

    def until(self, kind: str) -> tuple[list[tuple[str, Any]], Any]:
        """(what came before, the first message of a kind)"""
        before = []
        for name, data in self:
            if name == kind:
                return before, data
            before.append((name, data))
        raise AssertionError(f"the stream ended before a {kind}")

    def rows_until(self, sequence: int) -> list[int]:
        """Sequence numbers of all rows, until this one came."""
        seen: list[int] = []
        while sequence not in seen:
            _, data = self.until("snapshots")
            seen += [row["sequence"] for row in data["rows"]]
        return seen

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def server(serve: Any, make_run: Any) -> Any:
    server = serve()
    run = make_run()
    assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
    return server


@pytest.fixture
def either(serve: Any, make_run: Any, database_url: str) -> Any:
    """The same on SQLite and on Postgres."""
    server = serve(arguments=["--database-url", database_url])
    assert server.request("POST", "/api/v1/runs", make_run().header)[0] == 201
    return server


def send(server: Any, run: Any, first: int, count: int) -> None:
    status, answer = server.request("POST", "/api/v1/runs/r1/batches", run.wire(first, count))
    assert (status, answer["accepted"]) == (200, count)


def test_a_stream_begins_with_what_the_run_is_now(server: Any, make_run: Any) -> None:
    send(server, make_run(), 0, 6)
    stream = Stream(server.port)
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    before, run = stream.until("run")
    assert [kind for kind, _ in before] == ["verdict"]
    assert (run["id"], run["state"]) == ("r1", "running")
    assert stream.last_id == str(run["revision"])
    stream.close()


def test_a_stream_waits_for_no_compression(server: Any) -> None:
    stream = Stream(server.port, headers={"accept-encoding": "gzip, deflate, br, zstd"})
    assert stream.answer.getheader("content-encoding") is None
    stream.until("run")
    stream.close()


def test_new_snapshots_come_with_the_samples_asked_for(server: Any, make_run: Any) -> None:
    run = make_run()
    stream = Stream(server.port, "?name=type.*.count&name=process.rss_bytes")
    stream.until("run")
    send(server, run, 0, 3)
    _, data = stream.until("snapshots")
    assert data["process"] == "p1"
    expected = run.snapshot(2)
    assert data["rows"][2] == {
        "sequence": 2, "time": expected.time, "generation": 0, "phase": None, "kind": "generation_end",
        "label": expected.label,
        "samples": {name: expected.samples[name] for name in ("type.app.Env.count", "process.rss_bytes")},
    }  # fmt: skip
    stream.close()


def test_a_verdict_comes_when_it_changes(server: Any, make_run: Any) -> None:
    run = make_run(leak_bytes=300 * 2**20)
    stream = Stream(server.port)
    stream.until("run")
    send(server, run, 0, 60)
    while True:
        _, verdict = stream.until("verdict")
        if verdict["status"] in ("suspected", "confirmed"):
            break
    assert verdict["run"] == "r1"
    stream.close()


@pytest.mark.parametrize("how", ["header", "query"])
def test_coming_back_with_the_last_id_misses_nothing(how: str, either: Any, make_run: Any) -> None:
    run = make_run()
    stream = Stream(either.port)
    stream.until("run")
    send(either, run, 0, 5)
    assert stream.rows_until(4) == [0, 1, 2, 3, 4]
    stream.until("run")
    stream.close()
    send(either, run, 5, 5)
    send(either, run, 10, 5)
    if how == "header":
        again = Stream(either.port, headers={"Last-Event-ID": str(stream.last_id)})
    else:
        again = Stream(either.port, f"?since={stream.last_id}")
    assert again.rows_until(14) == list(range(5, 15))
    again.close()


def test_coming_back_after_sealing_misses_nothing(
    either: Any, make_run: Any, eventually: Any
) -> None:
    run = make_run()
    stream = Stream(either.port)
    stream.until("run")
    send(either, run, 0, 100)
    stream.rows_until(99)
    stream.until("run")
    stream.close()
    for first in range(100, 4100, 100):
        send(either, run, first, 100)
    sealed = "snapshots_sealed_total 4096.0"
    eventually(lambda: sealed in either.request("GET", "/metrics")[1], 60.0)
    again = Stream(either.port, headers={"Last-Event-ID": str(stream.last_id)})
    assert set(again.rows_until(4099)) >= set(range(100, 4100))
    again.close()


@pytest.mark.parametrize("last", ["99999", "hello", "-1", "9" * 30])
def test_an_id_that_is_not_ours_is_answered_with_what_the_run_is_now(
    last: str, server: Any
) -> None:
    stream = Stream(server.port, headers={"Last-Event-ID": last})
    before, run = stream.until("run")
    assert run["id"] == "r1"
    assert {kind for kind, _ in before} <= {"reload", "verdict"}
    stream.close()


def test_a_reader_that_was_away_for_too_long_is_told_to_read_anew(
    server: Any, make_run: Any, eventually: Any
) -> None:
    run = make_run()
    revision = server.request("GET", "/api/v1/runs/r1")[1]["revision"]
    for first in range(0, 12_200, 200):
        send(server, run, first, 200)
    stream = Stream(server.port, f"?since={revision}")
    before, _ = stream.until("run")
    assert "reload" in [kind for kind, _ in before]
    assert "snapshots" not in [kind for kind, _ in before]
    stream.close()


def test_many_batches_in_a_moment_are_few_messages(server: Any, make_run: Any) -> None:
    run = make_run()
    stream = Stream(server.port)
    stream.until("run")
    sender = threading.Thread(target=lambda: [send(server, run, i, 1) for i in range(60)])
    sender.start()
    messages, rows = 0, 0
    while rows < 60:
        _, data = stream.until("snapshots")
        messages, rows = messages + 1, rows + len(data["rows"])
    sender.join()
    assert rows == 60
    assert messages < 30
    stream.close()


def test_seven_open_streams_leave_room_for_everybody_else(server: Any) -> None:
    streams = [Stream(server.port) for _ in range(7)]
    for stream in streams:
        stream.until("run")
    assert server.request("GET", "/healthz") == (200, {"status": "ok"})
    assert "leakline_live_streams 7.0" in server.request("GET", "/metrics")[1]
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_ends_the_server_and_its_streams_within_two_seconds(
    how: signal.Signals, status: int, server: Any, make_run: Any
) -> None:
    send(server, make_run(), 0, 30)
    streams = [Stream(server.port) for _ in range(3)]
    for stream in streams:
        stream.until("run")
    seconds, said = server.interrupt(how)
    assert seconds < 2.0
    assert server.process.returncode == status
    assert "Traceback" not in said
    assert "error" not in said.lower()
    for stream in streams:
        # The stream ended as a stream ends, not as a broken connection.
        assert all(kind in ("verdict", "run", "snapshots") for kind, _ in stream)
        stream.close()
