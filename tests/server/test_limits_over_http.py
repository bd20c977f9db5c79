"""Each bound of `limits.py` is crossed over real HTTP: refused in one line, or folded, cut, left out and told."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import pytest
import zstandard
from tests.server.access.people import token
from tests.server.conftest import DATABASES, copies_of
from tests.server.otlp_requests import memory, request
from tests.server.stored import Answer, Client, listening

from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.config import from_environment

WHOLE = "LEAKLINE_FUZZ_BODIES" in os.environ
NAMES = {name for name in vars(limits) if name.isupper()}
RSS = "process.rss_bytes"
PATH = "/api/v1/runs/{}/batches"
FORM = "application/x-www-form-urlencoded"
PROTOBUF = "application/x-protobuf"
Cross = Callable[[Client, Any], Answer]


@pytest.fixture(scope="module", params=DATABASES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with copies_of(request).new(tmp_path_factory.mktemp("limits")) as url:
        settings = {
            "LEAKLINE_DATABASE_URL": url, "LEAKLINE_RUNS_PER_DAY": "few=1", "LEAKLINE_BYTES_PER_DAY": "small=1 KiB",
            "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8",
        }  # fmt: skip
        with listening(create_app(from_environment(settings))) as found:
            yield found


@pytest.fixture(scope="module")
def stored(client: Client, make_run: Any) -> Any:
    """A run with ten snapshots, which must be there after whatever is refused."""
    run = make_run(id="stored")
    client.post("/api/v1/runs", run.header)
    client.post(PATH.format("stored"), run.wire(0, 10))
    return run


def batch(change: Callable[[dict[str, Any]], Any]) -> Cross:
    """What the stored run would send next, with ``change`` made to it."""

    def cross(client: Client, run: Any) -> Answer:
        wire = run.wire(32, 3)
        change(wire)
        return client.ask("POST", PATH.format("stored"), wire)

    return cross


def sends(method: str, path: str, body: Any = None, **headers: str) -> Cross:
    return lambda client, run: client.ask(method, path, body, **headers)


def right(client: Client, run: Any) -> Answer:
    """Nothing is wrong with it but that it comes now."""
    return client.ask("POST", PATH.format("stored"), run.wire(10, 3))


def changes(**fields: Any) -> Cross:
    return sends("PATCH", "/api/v1/runs/stored", fields)


def rule(**fields: Any) -> Cross:
    return sends("POST", "/api/v1/rules", {"series": RSS, "above": 5} | fields)


def rows(kind: str, count: int, /, **row: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda wire: wire.update({kind: [{"sequence": 32, **row}] * count})


def series(**values: Any) -> Callable[[dict[str, Any]], Any]:
    named = {name.replace("__", "."): [value, 1, 1] for name, value in values.items()}
    return lambda wire: wire["columns"]["series"].update(named)


def column(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda wire: wire["columns"].update({name: [value, *wire["columns"][name][1:]]})


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def attribute(depth: int) -> Any:
    """Of OpenTelemetry."""
    return {"arrayValue": {"values": [attribute(depth - 1)]}} if depth else {"intValue": "1"}


def wide_window(client: Client, run: Any) -> Answer:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = packer.compress(json.dumps(run.wire(10, 3)).encode()) + packer.flush()
    return client.ask("POST", PATH.format("stored"), body, content_encoding="zstd")


def raw(*parts: str) -> Cross:
    """What is sent as it is, and the first answer to it."""

    def cross(client: Client, run: Any) -> Answer:
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
            for part in parts:
                connection.sendall(part.encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return Answer(answer.status, answer.headers, answer.read())

    return cross


TRICKLING = (
    f"POST {PATH.format('stored')} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{"
)


def another_run(client: Client, run: Any) -> Answer:
    client.post("/api/v1/runs", {"id": "few-1", "project": "few"})
    return client.ask("POST", "/api/v1/runs", {"id": "few-2", "project": "few"})


def another_batch(client: Client, run: Any) -> Answer:
    client.post("/api/v1/runs", {"id": "small", "project": "small"})
    client.post(PATH.format("small"), run.wire(0, 200))
    return client.ask("POST", PATH.format("small"), run.wire(200, 3))


@contextlib.contextmanager
def a_server_that_asks(client: Client, *who: str, **more: Any) -> Iterator[Client]:
    """Who each is, for what one sends whose token has this scope and project, or who has none."""
    sends = {}
    if who:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("leakline_server.store.access.MAX_TOKENS", limits.MAX_TOKENS)
            sends = {"authorization": f"Bearer {token(client.services.engine, *who, **more)[1]}"}
    client.services.callers.asked = True
    try:
        yield replace(client, sends=sends)
    finally:
        client.services.callers.asked = False


def asking(cross: Cross, *who: str, **more: Any) -> Cross:
    """By default as an administrator."""

    def asked(client: Client, run: Any) -> Answer:
        with a_server_that_asks(client, *(who or ("admin",)), **more) as asks:
            return cross(asks, run)

    return asked


def browsing(cross: Cross) -> Cross:
    """With a browser token of its project."""
    return asking(cross, "ingest", "browsed", browser=True)


def another_page(client: Client, run: Any) -> Answer:
    client.post("/api/v1/runs", {"id": "page-1"})
    return client.ask("POST", "/api/v1/runs", {"id": "page-2"})


def another_note_of_a_page(client: Client, run: Any) -> Answer:
    client.post("/api/v1/runs", {"id": "page-1"})
    return client.ask("PATCH", "/api/v1/runs/page-1", {"notes": [{"text": "once more"}]})


def another_attempt(client: Client, run: Any) -> Answer:
    client.post("/api/v1/runs", {"id": "resumed"})
    assert client.ask("PATCH", "/api/v1/runs/resumed", {"state": "failed"}).status == 200
    return client.ask("POST", "/api/v1/runs", {"id": "resumed"})


def phase_ends(count: int) -> Any:
    ends = [(0.0, 5, {"leakline.phase": f"phase {i}"}) for i in range(count)]
    return request({"process.memory.usage": ends})


def otlp(made: Any) -> Cross:
    return sends("POST", "/v1/metrics", made.SerializeToString(), content_type=PROTOBUF)


def resources(count: int) -> Any:
    made = memory([1])
    for _ in range(count - 1):
        made.resource_metrics.append(made.resource_metrics[0])
    return made


def boxes(count: int) -> bytes:
    return urlencode([("run", f"r{i}") for i in range(count)]).encode()


def signing_in(client: Client, run: Any) -> Answer:
    """Of a server that asks: another reads no form to sign in."""
    with a_server_that_asks(client) as asks:
        return asks.ask("POST", "/sign-in", b"secret=" + b"a" * limits.MAX_SIGN_IN_BYTES)


@dataclass(frozen=True)
class Way:
    """How a bound is crossed. ``smaller``: where it is made smaller for the test, since the real one takes too long."""

    status: int
    cross: Cross
    smaller: Mapping[str, float] = field(default_factory=dict)


REFUSED: dict[str, Way] = {
    # A request
    "MAX_BODY_BYTES": Way(413, sends("POST", "/api/v1/runs", b" " * (limits.MAX_BODY_BYTES + 1))),
    "MAX_INFLATED_BYTES": Way(413, sends("POST", PATH.format("stored"), b" " * (limits.MAX_INFLATED_BYTES + 1))),
    "MAX_WINDOW_BYTES": Way(400, wide_window),
    "BODY_SECONDS": Way(400, raw(TRICKLING), {"web.request_bodies.BODY_SECONDS": 0.2}),
    "MAX_BODIES_BYTES": Way(429, right, {"web.request_bodies.MAX_BODIES_BYTES": 100}),
    "MAX_DEPTH": Way(400, batch(rows("events", 1, time=1.0, kind="mark", name="m", data=nested(12)))),
    "MAX_JSON_DEPTH": Way(400, sends("POST", "/api/v1/runs", {"config": nested(17)})),
    "MAX_JSON_VALUES": Way(400, sends("POST", "/api/v1/runs", {"config": {"a": [1] * limits.MAX_JSON_VALUES}})),
    "MAX_FORM_BYTES": Way(413, sends("POST", "/deletions", b"run=" + b"x" * limits.MAX_FORM_BYTES, content_type=FORM)),
    "MAX_SIGN_IN_BYTES": Way(413, signing_in),
    "MAX_FORM_FIELDS": Way(400, sends("POST", "/alerts/rules", boxes(limits.MAX_FORM_FIELDS + 1), content_type=FORM)),
    "MAX_FORM_BOXES": Way(400, sends("POST", "/deletions", boxes(limits.MAX_FORM_BOXES + 1), content_type=FORM)),
    # A connection
    "MAX_CONNECTIONS": Way(429, raw(), {"limits.MAX_CONNECTIONS": 0}),
    "MAX_HEAD_BYTES": Way(413, sends("GET", f"/healthz?{'x' * limits.MAX_HEAD_BYTES}")),
    # A batch
    "MAX_SNAPSHOTS": Way(422, lambda client, run: client.ask(
        "POST", PATH.format("stored"), run.wire(10, limits.MAX_SNAPSHOTS + 1))),
    "MAX_BATCH_SERIES": Way(422, batch(series(**{f"gauge__{i}": i for i in range(limits.MAX_BATCH_SERIES + 1)}))),
    "MAX_BATCH_EVENTS": Way(422, batch(
        rows("events", limits.MAX_BATCH_EVENTS + 1, time=1.0, kind="mark", name="m"))),
    "MAX_LARGE_OBJECTS": Way(422, batch(
        rows("large_objects", limits.MAX_LARGE_OBJECTS + 1, type="T", bytes=1, detail="", holder=""))),
    "MAX_HOLDERS": Way(422, batch(
        rows("holders", limits.MAX_HOLDERS + 1, type="T", path="p", count=1, bytes_each=None))),
    "MAX_CENSUS_TYPES": Way(422, batch(rows(
        "census", 1, mode="full", coverage=1.0, objects=1,
        types=[[f"T{i}", 1, None] for i in range(limits.MAX_CENSUS_TYPES + 1)]))),
    "MAX_LOST_REASONS": Way(422, batch(
        lambda wire: wire.update({"lost": {f"why{i}": 1 for i in range(limits.MAX_LOST_REASONS + 1)}}))),
    # Numbers and texts
    "MAX_INTEGER": Way(422, batch(series(gauge__x=limits.MAX_INTEGER + 1))),
    "MAX_FLOAT": Way(422, batch(series(gauge__x=limits.MAX_FLOAT * 1.5 + 0.5))),
    "MAX_RSS_BYTES": Way(422, batch(series(process__rss_bytes=limits.MAX_RSS_BYTES + 1))),
    "MAX_TIME_SECONDS": Way(422, batch(column("time", limits.MAX_TIME_SECONDS * 2))),
    "MAX_NAME_LENGTH": Way(422, batch(series(**{"x" * (limits.MAX_NAME_LENGTH + 1): 1}))),
    "MAX_LABEL_LENGTH": Way(422, batch(column("label", "x" * (limits.MAX_LABEL_LENGTH + 1)))),
    "MAX_PATH_LENGTH": Way(422, batch(
        rows("holders", 1, type="T", path="p" * (limits.MAX_PATH_LENGTH + 1), count=1, bytes_each=None))),
    "MAX_INSTANCE_LENGTH": Way(422, batch(
        lambda wire: wire["process"].update({"instance": "x" * (limits.MAX_INSTANCE_LENGTH + 1)}))),
    "MAX_RANK": Way(422, batch(lambda wire: wire["process"].update({"rank": limits.MAX_RANK + 1}))),
    "MAX_ROW_ID": Way(422, sends("DELETE", f"/api/v1/rules/{limits.MAX_ROW_ID + 1}")),
    "MAX_RUN_ID_LENGTH": Way(422, sends("POST", "/api/v1/runs", {"id": "x" * (limits.MAX_RUN_ID_LENGTH + 1)})),
    "MAX_TAG_LENGTH": Way(422, changes(tags=["x" * (limits.MAX_TAG_LENGTH + 1)])),
    "MAX_FINGERPRINT_LENGTH": Way(422, sends(
        "POST", f"/api/v1/incidents/{'x' * (limits.MAX_FINGERPRINT_LENGTH + 1)}/acknowledge", {"project": "p"})),
    "MAX_NOTE_LENGTH": Way(422, changes(notes=[{"text": "x" * (limits.MAX_NOTE_LENGTH + 1)}])),
    "MAX_LINK_LENGTH": Way(422, changes(notes=[{"text": "x", "link": "https://" + "x" * limits.MAX_LINK_LENGTH}])),
    "MAX_REASON_LENGTH": Way(422, changes(state="failed", reason="x" * (limits.MAX_REASON_LENGTH + 1))),
    "MAX_TITLE_LENGTH": Way(422, sends("POST", "/api/v1/webhooks", {
        "url": "http://127.0.0.1:9/", "name": "x" * (limits.MAX_TITLE_LENGTH + 1)})),
    "MAX_WEBHOOK_LENGTH": Way(422, sends(
        "POST", "/api/v1/webhooks", {"url": "http://127.0.0.1:9/" + "x" * limits.MAX_WEBHOOK_LENGTH})),
    "MAX_ADVICE_LENGTH": Way(422, rule(advice="x" * (limits.MAX_ADVICE_LENGTH + 1))),
    "MAX_WORD_LENGTH": Way(422, rule(above="1" * (limits.MAX_WORD_LENGTH + 1))),
    "MAX_QUERY_LENGTH": Way(422, sends("GET", f"/api/v1/runs?q={'x' * (limits.MAX_QUERY_LENGTH + 1)}")),
    "MAX_SECRET_LENGTH": Way(422, sends(
        "GET", f"/sign-in?next={'x' * (limits.MAX_SECRET_LENGTH + 1)}", accept="application/json")),
    "MAX_LINE_LENGTH": Way(422, batch(rows(
        "events", 1, time=1.0, kind="log", name="log", data={"lines": ["x" * (limits.MAX_LINE_LENGTH + 1)]}))),
    # A run, a project, what waits
    "MAX_RUN_PROCESSES": Way(
        409, batch(lambda wire: wire["process"].update({"instance": "one more"})),
        {"store.ingest.inbox.MAX_RUN_PROCESSES": 1}),
    "MAX_RUN_ATTEMPTS": Way(409, another_attempt, {"store.runs.run_registration.MAX_RUN_ATTEMPTS": 1}),
    "MAX_CONFIG_BYTES": Way(422, sends("POST", "/api/v1/runs", {"config": {"a": "x" * limits.MAX_CONFIG_BYTES}})),
    "MAX_ENVIRONMENT_BYTES": Way(
        422, sends("POST", "/api/v1/runs", {"environment": {"a": "x" * limits.MAX_ENVIRONMENT_BYTES}})),
    "MAX_TOLD_NAMES": Way(422, sends(
        "POST", "/api/v1/runs", {"config": {f"a{i}": 1 for i in range(limits.MAX_TOLD_NAMES + 1)}})),
    "MAX_NOTES_AT_ONCE": Way(422, changes(notes=[{"text": "x"}] * (limits.MAX_NOTES_AT_ONCE + 1))),
    "RUNS_PER_DAY": Way(429, another_run),
    "BYTES_PER_DAY": Way(429, another_batch),
    "BROWSER_RUNS_PER_DAY": Way(429, browsing(another_page), {"store.ingest.project_quota.BROWSER_RUNS_PER_DAY": 1}),
    "BROWSER_BYTES_PER_DAY": Way(429, browsing(another_note_of_a_page),
        {"store.ingest.project_quota.BROWSER_BYTES_PER_DAY": 1}),
    "PROJECTS_PER_DAY": Way(
        429, sends("POST", "/api/v1/runs", {"project": "one more"}),
        {"store.ingest.project_quota.PROJECTS_PER_DAY": 1}),
    "MAX_WAITING_BATCHES": Way(429, right, {"ingest.writer.MAX_WAITING_BATCHES": 0}),
    "MAX_WAITING_SNAPSHOTS": Way(429, right, {"ingest.writer.MAX_WAITING_SNAPSHOTS": 0}),
    "MAX_WAITING_BYTES": Way(429, right, {"ingest.writer.MAX_WAITING_BYTES": 0}),
    "MAX_LIVE_STREAMS": Way(429, sends("GET", "/api/v1/runs/stored/live"),
        {"web.event_stream.MAX_LIVE_STREAMS": 0}),
    "MAX_IN_A_ROW": Way(422, rule(hold=limits.MAX_IN_A_ROW + 1)),
    "MAX_SNOOZE_SECONDS": Way(422, sends("POST", "/api/v1/incidents/f1/acknowledge", {
        "project": "p", "expires_in_seconds": limits.MAX_SNOOZE_SECONDS + 1})),
    "MAX_TOKENS": Way(409, asking(sends("POST", "/api/v1/tokens", {"project": "p"})),
        {"store.access.MAX_TOKENS": 0}),
    "MAX_TOKEN_DAYS": Way(422, sends("POST", "/api/v1/tokens", {"expires_in_days": limits.MAX_TOKEN_DAYS + 1})),
    "MAX_REQUESTS": Way(
        429, sends("POST", "/api/v1/runs/stored/requests", {"kind": "census"}),
        {"store.request_rows.MAX_REQUESTS": 0}),
    "MAX_ACCEPTED_COUNTS": Way(
        409, sends("POST", "/api/v1/runs/stored/expectations", {"type": "app.Env", "low": 2, "high": 2}),
        {"store.alerts.assertions.MAX_ACCEPTED_COUNTS": 0}),
    "MAX_RULES": Way(
        409, sends("POST", "/api/v1/rules", {"series": RSS, "above": 5}),
        {"store.alerts.assertions.MAX_RULES": 0}),
    "MAX_WEBHOOKS": Way(
        409, sends("POST", "/api/v1/webhooks", {"url": "http://127.0.0.1:9/"}),
        {"store.alerts.webhooks.MAX_WEBHOOKS": 0}),
    # An answer
    "MAX_NAMES_ASKED": Way(422, sends(
        "GET", "/api/v1/runs/stored/series?" + urlencode([("name", "x")] * (limits.MAX_NAMES_ASKED + 1)))),
    "MAX_RUNS_OVERLAID": Way(422, sends("GET", f"/api/v1/series?name={RSS}&" + urlencode(
        [("run", f"r{i}") for i in range(limits.MAX_RUNS_OVERLAID + 1)]))),
    "MAX_RUNS_PICKED": Way(422, sends(
        "GET", "/compare?" + "&pick=r" * (limits.MAX_RUNS_PICKED + 1), accept="application/json")),
    "MAX_PAGE": Way(422, sends("GET", f"/api/v1/runs?limit={limits.MAX_PAGE + 1}")),
    "MAX_POINTS": Way(422, sends("GET", f"/api/v1/runs/stored/series?name=*&points={limits.MAX_POINTS + 1}")),
    # OpenTelemetry
    "MAX_OTLP_RESOURCES": Way(413, otlp(resources(limits.MAX_OTLP_RESOURCES + 1))),
    "MAX_OTLP_POINTS": Way(413, otlp(memory([1] * (limits.MAX_OTLP_POINTS + 1)))),
    "MAX_OTLP_SERIES": Way(413, otlp(request(
        {f"leakline.gauge.g{i}": [(0.0, 1, {})] for i in range(limits.MAX_OTLP_SERIES + 1)}))),
    "MAX_OTLP_SNAPSHOTS": Way(413, otlp(phase_ends(limits.MAX_OTLP_SNAPSHOTS + 1))),
    "MAX_OTLP_DEPTH": Way(400, sends("POST", "/v1/metrics", {"resourceMetrics": [{"resource": {
        "attributes": [{"key": "a", "value": attribute(limits.MAX_OTLP_DEPTH)}]}}]})),
}  # fmt: skip


BUSY = {"MAX_BODIES_BYTES", "MAX_WAITING_BATCHES", "MAX_WAITING_SNAPSHOTS", "MAX_WAITING_BYTES"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_beyond_is_refused_and_nothing_is_lost(
    name: str, client: Client, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = REFUSED[name]
    with monkeypatch.context() as patched:
        for where, value in way.smaller.items():
            assert where.endswith(name)
            patched.setattr(f"leakline_server.{where}", value)
        answer = way.cross(client, stored)
    assert answer.status == way.status, answer.body[:500]
    if name == "MAX_SIGN_IN_BYTES":
        assert re.search(rb'role="alert">[^<\n]{10,300}</p>', answer.body)
    elif answer.body.startswith(b"<!doctype"):
        assert re.search(rb'<p class="quiet">[^<\n]{10,300}</p>', answer.body)
    else:
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "details"}
        assert 10 < len(error["message"]) < 500 and "\n" not in error["message"]
    if way.status == 429:
        assert 1 <= int(answer.headers["retry-after"]) <= 3_600
    if name in BUSY:
        assert (answer.json()["error"]["code"], answer.headers["retry-after"]) == ("too_busy", "1")
    if name == "MAX_LIVE_STREAMS":
        assert answer.json()["error"]["code"] == "too_many_streams"
    there = client.get("/api/v1/runs/stored/snapshots?limit=200")["items"]
    assert [row["sequence"] for row in there] == list(range(9, -1, -1))
    assert client.services.coming.size == 0
    # What was refused left no room taken.
    assert client.post(PATH.format("stored"), stored.wire(0, 10))["accepted"] == 0


# -- what is folded, clamped, cut or paged instead


def sent(client: Client, make_run: Any, name: str, **columns: Any) -> dict[str, Any]:
    """A run of its own, as it is after it has sent one batch with these columns."""
    count = len(next(iter(columns.values())))
    run = make_run(id=name, started=time.time() - 3_600)
    client.post("/api/v1/runs", run.header)
    wire = run.wire(0, count) | {"events": [], "census": [], "large_objects": [], "holders": []}
    wire["columns"]["series"] |= columns.pop("series", {})
    wire["columns"] |= columns
    assert client.post(PATH.format(name), wire)["accepted"] == count
    found: dict[str, Any] = client.get(f"/api/v1/runs/{name}")
    return found


def of_series(client: Client, make_run: Any, name: str, names: list[str]) -> dict[str, Any]:
    """As it is after one snapshot with each of these series."""
    run = make_run(id=name)
    client.post("/api/v1/runs", run.header)
    for at in range(0, len(names), 3_000):
        wire = run.wire(at // 3_000, 1)
        wire["columns"]["series"] = {each: [7] for each in names[at : at + 3_000]}
        wire["events"] = wire["census"] = wire["large_objects"] = wire["holders"] = []
        client.post(PATH.format(name), wire)
    found: dict[str, Any] = client.get(f"/api/v1/runs/{name}")
    return found


def lost(run: dict[str, Any]) -> dict[str, int]:
    (process,) = run["processes"]
    found: dict[str, int] = process["lost"]
    return found


def clocks(client: Client, make_run: Any) -> None:
    ahead = time.time() + limits.MAX_SKEW_SECONDS + 60
    run = sent(client, make_run, "ahead", time=[ahead, ahead + 1])
    assert lost(run) == {"clock_ahead": 2}
    there = client.get("/api/v1/runs/ahead/snapshots")["items"]
    assert all(row["time"] <= time.time() for row in there) and len(there) == 2


def types(client: Client, make_run: Any) -> None:
    names = [f"type.a.T{i}.count" for i in range(limits.MAX_RUN_TYPES + 2)]
    run = of_series(client, make_run, "types", names)
    assert lost(run) == {"types_over_limit": 2}
    (item,) = client.get("/api/v1/runs/types/series?name=type.other.count&x=sequence")["items"]
    assert item["last"] == [14]


def phases(client: Client, make_run: Any) -> None:
    told = [f"phase {i}" for i in range(limits.MAX_RUN_PHASES + 2)]
    run = sent(client, make_run, "phases", phase=told)
    assert run["phases_seen"][-2:] == [told[-3], "other"]
    assert lost(run) == {"phases_over_limit": 2}


def many_series(client: Client, make_run: Any) -> None:
    names = [f"gauge.{i}" for i in range(limits.MAX_RUN_SERIES + 3)]
    run = of_series(client, make_run, "series", names)
    assert len(run["series"]) == limits.MAX_RUN_SERIES
    assert lost(run) == {"series_over_limit": 3}
    assert len(client.get("/api/v1/runs/series/snapshots")["items"]) == 3


def items(client: Client, make_run: Any) -> None:
    names = [f"gauge.{i}" for i in range(limits.MAX_ITEMS + 4)]
    of_series(client, make_run, "items", names)
    found = client.get("/api/v1/runs/items/series?name=*&x=sequence")
    assert (len(found["items"]), found["left_out"]) == (limits.MAX_ITEMS, 4)


def tags(client: Client, make_run: Any) -> None:
    for n in range(2):
        header = {"id": "tags", "tags": [f"tag {n} {i}" for i in range(limits.MAX_RUN_TAGS)]}
        client.post("/api/v1/runs", header)
    assert len(client.get("/api/v1/runs/tags")["tags"]) == limits.MAX_RUN_TAGS


def declared(client: Client, make_run: Any) -> None:
    for n in range(2):
        told = [f"phase {n} {i}" for i in range(limits.MAX_DECLARED_PHASES)]
        client.post("/api/v1/runs", {"id": "declared", "phases": told})
    assert len(client.get("/api/v1/runs/declared")["phases"]) == limits.MAX_DECLARED_PHASES


def notes(client: Client, make_run: Any) -> None:
    client.post("/api/v1/runs", {"id": "notes"})
    for n in range(limits.MAX_NOTES // 100 + 1):
        told = [{"text": f"note {100 * n + i}"} for i in range(100)]
        assert client.ask("PATCH", "/api/v1/runs/notes", {"notes": told}).status == 200
    there = client.get("/api/v1/runs/notes")["notes"]
    assert len(there) == limits.MAX_NOTES
    assert there[-1]["text"] == f"note {limits.MAX_NOTES + 99}"


def long_notes(client: Client, make_run: Any) -> None:
    client.post("/api/v1/runs", {"id": "long"})
    for n in range(6):
        told = [{"text": f"{n} " + "x" * 3_990} for _ in range(60)]
        assert client.ask("PATCH", "/api/v1/runs/long", {"notes": told}).status == 200
    there = client.get("/api/v1/runs/long")["notes"]
    size = len(json.dumps(there))
    assert limits.MAX_NOTES_BYTES * 0.99 < size < limits.MAX_NOTES_BYTES * 1.01
    assert there[-1]["text"].startswith("5 ")


def attempts(client: Client, make_run: Any) -> None:
    for n in range(limits.MAX_ATTEMPTS_TOLD + 2):
        client.post("/api/v1/runs", {"id": "often", "environment": {"commit": f"{n}"}})
        assert client.ask("PATCH", "/api/v1/runs/often", {"state": "failed"}).status == 200
    run = client.get("/api/v1/runs/often")
    told = [each["number"] for each in run["attempts"]]
    assert told == list(range(3, limits.MAX_ATTEMPTS_TOLD + 3))
    assert run["attempts_left_out"] == 2
    page = client.ask("GET", "/runs/often").body.decode()
    assert "52 attempts, the newest first, 50 of them." in page


def told_processes(client: Client, make_run: Any) -> None:
    count = limits.MAX_PROCESSES_TOLD + 3
    for rank in range(count):
        process = {"instance": f"crowd-{rank}", "rank": rank}
        client.post("/api/v1/runs", {"id": "crowd", "process": process})
    end = {"state": "failed", "reason": "ValueError", "instance": f"crowd-{count - 1}"}
    assert client.ask("PATCH", "/api/v1/runs/crowd", end).status == 200
    run = client.get("/api/v1/runs/crowd")
    ranks = [each["rank"] for each in run["processes"]]
    # The one that people look for is there, and the others from the first on.
    assert ranks == [*range(limits.MAX_PROCESSES_TOLD - 1), count - 1]
    assert run["processes_left_out"] == 3
    page = client.ask("GET", "/runs/crowd").body.decode()
    assert "1,000 of 1,003 processes are shown" in page


def told_bytes(client: Client, make_run: Any) -> None:
    long = {"host": "\u4e00" * limits.MAX_LABEL_LENGTH, "role": "\u4e00" * limits.MAX_LABEL_LENGTH}
    client.post("/api/v1/runs", {"id": "wordy"})
    reasons = {f"{i} " + "\u4e00" * 500: 1 for i in range(limits.MAX_LOST_REASONS)}
    for rank in range(60):
        run = make_run(id="wordy", instance=f"wordy-{rank}", rank=rank)
        wire = run.wire(0, 1) | {"lost": reasons}
        wire["process"] |= long
        client.post(PATH.format("wordy"), wire)
    answer = client.ask("GET", "/api/v1/runs/wordy")
    found = answer.json()
    assert 0 < found["processes_left_out"] == 60 - len(found["processes"])
    assert len(answer.body) < limits.MAX_PROCESSES_TOLD_BYTES + 100_000


def told_lines(client: Client, make_run: Any) -> None:
    lines = ["\u4e00" * (limits.MAX_LINE_LENGTH - 2) + f"{i:02}" for i in range(50)]
    for rank in range(9):
        run = make_run(id="loud", instance=f"loud-{rank}", rank=rank)
        client.post("/api/v1/runs", run.header)
        wire = run.wire(0, 1)
        wire["events"] = [
            {"sequence": 0, "time": 1.0, "kind": "log", "name": "log", "data": {"lines": lines}}
        ]
        client.post(PATH.format("loud"), wire)
    end = {"state": "failed", "reason": "ValueError", "instance": "loud-8"}
    assert client.ask("PATCH", "/api/v1/runs/loud", end).status == 200
    answer = client.ask("GET", "/api/v1/runs/loud")
    assert len(answer.body) < limits.MAX_LINES_TOLD_BYTES + 100_000
    told = {each["rank"]: each for each in answer.json()["processes"]}
    # Of the one that failed all, of one the newest, of the last none; and each says how many are missing.
    assert told[8]["log_lines"] == lines
    assert told[0]["log_lines"] == lines
    some = told[6]["log_lines"]
    assert 0 < len(told[5]["log_lines"] + some) < 100 and told[7]["log_lines"] == []
    for each in told.values():
        kept, missing = each["log_lines"], each["log_lines_left_out"]
        assert len(kept) + missing == 50 and kept == lines[missing:]
    missing = sum(each["log_lines_left_out"] for each in told.values())
    page = client.ask("GET", "/runs/loud").body.decode()
    assert f"{missing:,} more are not shown here" in page


def throng(client: Client, make_run: Any) -> int:
    """A run of two processes more than are studied and read, of one snapshot each; how many it has."""
    count = max(limits.MAX_PROCESSES_STUDIED, limits.MAX_PROCESSES_READ) + 2
    if client.ask("GET", "/api/v1/runs/throng").status == 404:
        client.post("/api/v1/runs", {"id": "throng"})
        for rank in range(count):
            run = make_run(id="throng", instance=f"throng-{rank}", rank=rank)
            client.post(PATH.format("throng"), run.wire(0, 1))
    return count


def studied(client: Client, make_run: Any) -> None:
    left_out = throng(client, make_run) - limits.MAX_PROCESSES_STUDIED
    found = client.get("/api/v1/compare?before=throng&after=throng")
    said = f"of the {limits.MAX_PROCESSES_STUDIED:,} largest processes; {left_out:,} more are not studied"
    assert found["summary"].endswith(f"({said})")


def read(client: Client, make_run: Any) -> None:
    left_out = throng(client, make_run) - limits.MAX_PROCESSES_READ
    found = client.get("/api/v1/runs/throng/series?name=process.rss_bytes")
    assert found["left_out"] == limits.MAX_PROCESSES_READ - limits.MAX_ITEMS
    assert found["processes_left_out"] == left_out
    assert client.get("/api/v1/runs/throng/snapshots")["processes_left_out"] == left_out


def listed(client: Client, make_run: Any) -> None:
    run = make_run(id="listed")
    client.post("/api/v1/runs", run.header)
    for at in range(3):
        wire = run.wire(at, 1)
        event = {"sequence": at, "kind": "mark", "name": "m"}
        wire["events"] = [event | {"time": 1e9 + at * 2_000 + i} for i in range(2_000)]
        client.post(PATH.format("listed"), wire)
    there = client.get("/api/v1/runs/listed/events")["items"]
    assert len(there) == limits.MAX_LISTED
    assert there[-1]["time"] == 1e9 + 5_999


ABSORBED: dict[str, Callable[[Client, Any], None]] = {
    "MAX_SKEW_SECONDS": clocks, "MAX_RUN_TYPES": types, "MAX_RUN_PHASES": phases, "MAX_RUN_SERIES": many_series,
    "MAX_RUN_TAGS": tags, "MAX_DECLARED_PHASES": declared, "MAX_NOTES": notes, "MAX_NOTES_BYTES": long_notes,
    "MAX_ATTEMPTS_TOLD": attempts, "MAX_PROCESSES_TOLD": told_processes, "MAX_PROCESSES_TOLD_BYTES": told_bytes,
    "MAX_LINES_TOLD_BYTES": told_lines, "MAX_PROCESSES_STUDIED": studied, "MAX_PROCESSES_READ": read,
    "MAX_ITEMS": items, "MAX_LISTED": listed,
}  # fmt: skip


# These close the connection without an answer: `test_connections.py`.
CLOSED = {"HEAD_SECONDS", "MAX_PIPELINED", "UNREAD_SECONDS", "ANSWER_SECONDS", "MIN_READ_BYTES"}


# Rows of which the oldest go: `test_limits.py`.
KEPT = {
    "MAX_SESSIONS", "MAX_SESSIONS_OF_ONE", "MAX_PAST", "MAX_RUN_INCIDENTS", "MAX_RUN_ALERTS", "MAX_DAMAGED",
}  # fmt: skip


# A thousand processes each, which is most of the time of this file: on Postgres `make test-weekly` has them.
LONG = {"MAX_PROCESSES_TOLD", "MAX_PROCESSES_STUDIED", "MAX_PROCESSES_READ"}


@pytest.mark.long
@pytest.mark.parametrize("name", ABSORBED)
def test_what_is_beyond_is_folded_cut_or_left_out_and_that_is_told(
    name: str, client: Client, make_run: Any
) -> None:
    if name in LONG and client.services.engine.dialect.name != "sqlite" and not WHOLE:
        pytest.skip("make test-weekly crosses it on Postgres")
    ABSORBED[name](client, make_run)


def test_every_bound_is_crossed() -> None:
    assert not REFUSED.keys() & ABSORBED.keys()
    assert REFUSED.keys() | ABSORBED.keys() | CLOSED | KEPT == NAMES
