"""Any bad input gets an error of the contract that names what is wrong, and nothing is lost."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import re
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from leakline.snapshot import ProcessIdentity, RunHeader
from leakline_server.errors import Malformed
from leakline_server.ingest import decode
from leakline_server.ingest.writer import Writer
from leakline_server.store.engine import Engine, writing
from leakline_server.store.ingest.inbox import Inbox
from leakline_server.store.ingest.incoming_batch import Accepted
from leakline_server.store.ingest.wire_types import encode
from leakline_server.store.runs.run_registration import join_run

BATCHES = "/api/v1/runs/r1/batches"
PACK = {"gzip": gzip.compress, "zstd": zstandard.compress}
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def api(shared_api: TestClient) -> TestClient:
    return shared_api


@pytest.fixture
def stored(api: TestClient, make_run: Any) -> Any:
    """Return a run with ten snapshots, which must still be stored after every refusal."""
    run = make_run()
    run.create(api)
    run.send(api, 0, 10)
    return run


@pytest.fixture
def other(api: TestClient, make_run: Any) -> Any:
    """Return a run for requests that are accepted."""
    run = make_run(id=f"other-{uuid.uuid4()}")
    run.create(api)
    return run


def refused(api: TestClient, answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "details"}
    assert error["code"] == code
    assert error["message"] and "\n" not in error["message"]
    rows = api.get("/api/v1/runs/r1/snapshots?limit=200").json()["items"]
    assert [row["sequence"] for row in rows] == list(range(9, -1, -1))
    return error


def _at(path: tuple[Any, ...], wire: Any) -> Any:
    for step in path[:-1]:
        wire = wire[step]
    return wire


def set_at(*path: Any, value: Any) -> Change:
    return lambda wire: _at(path, wire).__setitem__(path[-1], value)


def drop(*path: Any) -> Change:
    return lambda wire: _at(path, wire).__delitem__(path[-1])


RSS = "process.rss_bytes"
SERIES = ("columns", "series")


def event(kind: str, name: str = "f", **data: Any) -> Change:
    """Replace the second event."""
    said = {"sequence": 33, "time": 1.76e9, "kind": kind, "name": name, "data": data}
    return set_at("events", 1, value=said)


WRONG_FIELDS: dict[str, tuple[Change, str]] = {
    "a boolean as a number": (set_at(*SERIES, RSS, 1, value=True), f"columns.series.{RSS}[1]"),
    "a text as a number": (set_at(*SERIES, RSS, 0, value="12"), f"columns.series.{RSS}[0]"),
    "a list as a number": (set_at(*SERIES, RSS, 0, value=[1]), f"columns.series.{RSS}[0]"),
    "negative bytes": (set_at(*SERIES, RSS, 2, value=-1), f"columns.series.{RSS}"),
    "a negative count": (set_at(*SERIES, "type.app.Env.count", 2, value=-1), "columns.series.type.app.Env.count"),
    "an integer without end": (set_at(*SERIES, RSS, 0, value=10**30), f"columns.series.{RSS}[0]"),
    "a column that is too short": (set_at(*SERIES, RSS, value=[1, 2]), f"columns.series.{RSS}"),
    "a column that is no list": (set_at(*SERIES, RSS, value=1), f"columns.series.{RSS}"),
    "a name that is too long": (set_at(*SERIES, "x" * 513, value=[1] * 3), f"columns.series.{'x' * 100}"),
    "a name without letters": (set_at(*SERIES, "", value=[1] * 3), "columns.series."),
    "times that are too few": (set_at("columns", "time", value=[1.0]), "columns.time"),
    "a time before 1970": (set_at("columns", "time", 0, value=-5.0), "columns.time[0]"),
    "a time in milliseconds": (set_at("columns", "time", 0, value=1.76e12), "columns.time[0]"),
    "no time": (drop("columns", "time"), "columns"),
    "no columns": (drop("columns"), "columns"),
    "columns and rows": (set_at("snapshots", value=[]), "columns"),
    "a generation that is no integer": (set_at("columns", "generation", 0, value=1.5), "columns.generation[0]"),
    "a phase that is a number": (set_at("columns", "phase", 1, value=3), "columns.phase[1]"),
    "a kind nobody knows": (set_at("columns", "kind", 1, value="guess"), "columns.kind[1]"),
    "a count that does not fit": (set_at("count", value=4), "columns.time"),
    "a count that is true": (set_at("count", value=True), "count"),
    "another version": (set_at("version", value=2), "version"),
    "no version": (drop("version"), "body"),
    "a process that is a text": (set_at("process", value="p1"), "process"),
    "a process without instance": (drop("process", "instance"), "process"),
    "a negative rank": (set_at("process", "rank", value=-1), "process.rank"),
    "attempt zero": (set_at("process", "attempt", value=0), "process.attempt"),
    "a negative sequence number": (set_at("first_sequence", value=-1), "first_sequence"),
    "a sequence number without end": (set_at("first_sequence", value=2**53 + 1), "first_sequence"),
    "an event of another batch": (set_at("events", 0, "sequence", value=99), "events[0].sequence"),
    "an event of unknown kind": (set_at("events", 0, "kind", value="party"), "events[0].kind"),
    "an expectation without numbers": (set_at("events", 1, "data", value={}), "events[1].data.low"),
    "an expectation that is true": (set_at("events", 1, "data", "low", value=True), "events[1].data.low"),
    "promises that are a text": (event("fix", promises="few"), "events[1].data.promises"),
    "a promise without end": (
        event("fix", promises={"generations": 10**300}), "events[1].data.promises.generations"),
    "a band without end": (event("band", RSS, first=10**300), "events[1].data.first"),
    "a census of negative objects": (set_at("census", 0, "objects", value=-1), "census[0].objects"),
    "a census row of two": (set_at("census", 0, "types", 0, value=["x", 1]), "census[0].types[0]"),
    "a coverage of 150 %": (set_at("census", 0, "coverage", value=1.5), "census[0].coverage"),
    "a large object of negative size": (set_at("large_objects", 0, "bytes", value=-1), "large_objects[0].bytes"),
    "a holder without a path": (drop("holders", 0, "path"), "holders[0]"),
    "losses that are negative": (set_at("lost", value={"thinned": -1}), "lost.thinned"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_a_wrong_field_is_named_with_its_value(name: str, api: TestClient, stored: Any) -> None:
    change, field = WRONG_FIELDS[name]
    wire = stored.wire(32, 3)
    change(wire)
    error = refused(api, api.post(BATCHES, json=wire), 422, "invalid_field")
    assert error["details"]["field"] == field
    assert field.split(".")[0] in error["message"]
    assert "value" in error["details"]


MALFORMED = {
    "nothing": b"",
    "not JSON": b"hello",
    "half of it": b'{"version": 1, "process": {',
    "not UTF-8": b'{"version": 1, "process": {"instance": "\xff"}}',
    "half a surrogate": b'{"version": 1, "process": {"instance": "\\ud800"}}',
    "a number that is not one": b'{"version": NaN}',
    "an infinite number": b'{"version": 1, "columns": {"time": [Infinity]}}',
    "a float beyond all floats": b'{"version": 1e999}',
    "a hundred thousand brackets": b'{"a":' + b"[" * 100_000,
    "brackets in an event": b'{"version": 1, "events": [{"data": {"a": ' + b"[" * 5_000,
    "two objects": b"{}{}",
    "a NUL": b"\x00",
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("path", [BATCHES, "/api/v1/runs"])
def test_invalid_json_is_malformed(name: str, path: str, api: TestClient, stored: Any) -> None:
    answer = api.post(path, content=MALFORMED[name], headers={"content-type": "application/json"})
    error = refused(api, answer, 400, answer.json()["error"]["code"])
    if name == "a number that is not one" and path == BATCHES:
        assert error["code"] == "malformed_json" and "null" in error["message"]
    for body in (b"[]", b"1", b'"x"', b"null"):
        refused(api, api.post(path, content=body), 422, "invalid_field")


@pytest.mark.parametrize("digits", [17, 19, 20, 400, 5_000])
@pytest.mark.parametrize("column", ["constant", "moving", "holed"])
def test_a_far_too_long_integer_is_refused(
    column: str, digits: int, api: TestClient, stored: Any
) -> None:
    count = 60
    long = "-" + "9" * digits
    others = {"constant": long, "moving": "7", "holed": "null"}[column]
    body = stored.wire(0, count)
    body["columns"]["series"] = {"gauge.x": [1] * count}
    text = json.dumps(body).replace(
        json.dumps([1] * count), f"[{long},{','.join([others] * (count - 1))}]"
    )
    assert long in text
    answer = api.post("/api/v1/runs/r1/batches", content=text.encode())
    assert 400 <= answer.status_code < 500, answer.text
    assert len(answer.json()["error"]["message"]) < 500


def test_a_refusal_repeats_little_of_the_input(api: TestClient, stored: Any) -> None:
    long = "x" * 100_000
    for change in (
        set_at("events", 0, "kind", value=long),
        event("fix", promises={long: -1}),
        set_at("lost", value={long: -1}),
    ):
        wire = stored.wire(32, 3)
        change(wire)
        answer = api.post(BATCHES, json=wire)
        refused(api, answer, 422, "invalid_field")
        assert len(answer.content) < 2_000
    for header in ({"id": long}, {"tags": [long]}, {"config": {long: "\u202e"}, "total": long}):
        assert len(api.post("/api/v1/runs", json=header).content) < 2_000


@pytest.mark.parametrize("encoding", PACK)
def test_a_damaged_compression_is_malformed(encoding: str, api: TestClient, stored: Any) -> None:
    """The body is not compressed, is truncated, or has trailing data, which is never ignored."""
    headers, pack = {"content-encoding": encoding}, PACK[encoding]
    refused(api, api.post(BATCHES, content=b"not it", headers=headers), 400, "bad_compression")
    whole = pack(json.dumps(stored.wire(10, 3)).encode())
    for body in (whole[: len(whole) // 2], whole + pack(b" x"), whole + b"\x1frest"):
        answer = api.post(BATCHES, content=body, headers=headers)
        refused(api, answer, 400, answer.json()["error"]["code"])


def test_an_unsupported_encoding_is_named(api: TestClient, stored: Any) -> None:
    for encoding in ("br", "deflate", "gzip, gzip", "x" * 1000):
        headers = {"content-encoding": encoding}
        answer = api.post(BATCHES, content=zlib.compress(b"{}"), headers=headers)
        refused(api, answer, 415, "unsupported_encoding")


def test_a_wrong_method_and_an_unknown_route_are_json_errors(api: TestClient, stored: Any) -> None:
    for method in ("GET", "PUT", "DELETE"):
        refused(api, api.request(method, BATCHES), 405, "method_not_allowed")
    routes = ("/api/v1/nothing", "/api/v2/runs", "/api", "/api/v1/runs/r1/nothing", f"{BATCHES}/")
    for path in routes:
        refused(api, api.get(path), 404, "not_found")


WRONG_HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "an id with a slash": ({"id": "a/b"}, "id"), "an id with a NUL": ({"id": "a\x00"}, "id"),
    "an id that is a number": ({"id": 1}, "id"), "a name with a NUL": ({"name": "a\x00b"}, "name"),
    "a project that is too long": ({"project": "x" * 257}, "project"),
    "a project without letters": ({"project": ""}, "project"), "a total that is true": ({"total": True}, "total"),
    "a total that is a text": ({"total": "25"}, "total"), "a total below zero": ({"total": -1}, "total"),
    "a total without end": ({"total": 10**30}, "total"),
    "a start that is a text": ({"started_at": "yesterday"}, "started_at"),
    "a start in milliseconds": ({"started_at": 1.76e12}, "started_at"),
    "tags that are a text": ({"tags": "baseline"}, "tags"), "a tag that is a number": ({"tags": [1]}, "tags.0"),
    "a phase that is null": ({"phases": [None]}, "phases.0"), "a config that is a list": ({"config": []}, "config"),
}  # fmt: skip


WRONG_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a state nobody knows": ({"state": "happy"}, "state"),
    "a field nobody knows": ({"stats": "finished"}, "stats"),
    "an end that is true": ({"ended_at": True}, "ended_at"),
    "a note without text": ({"notes": [{"link": "https://x"}]}, "notes.0.text"),
    "a note of spaces": ({"notes": [{"text": " \n\t"}]}, "notes.0.text"),
    "a note of what is removed": ({"notes": [{"text": "\x80\u202e"}]}, "notes.0.text"),
    "a note with a script as link": ({"notes": [{"text": "x", "link": "javascript:alert(1)"}]}, "notes.0.link"),
    "a reason that is too long": ({"reason": "x" * 1001}, "reason"),
}  # fmt: skip


WRONG_QUERIES = {
    "series": "name", "series?name=a&points=0": "points", "series?name=a&points=x": "points",
    "series?name=a&x=phase": "x", "series?name=a&from=nan": "from", "series?name=a&phase=%00": "phase",
    "census?generation=x": "generation", f"census?generation={10**30}": "generation",
    "snapshots?limit=0": "limit", "snapshots?cursor=!!": "cursor", "snapshots?cursor=bm8": "cursor",
    f"live?since={10**30}": "since",
}  # fmt: skip
ASKED = {
    **{name: ("POST", "", header, field) for name, (header, field) in WRONG_HEADERS.items()},
    **{name: ("PATCH", "/r1", change, field) for name, (change, field) in WRONG_CHANGES.items()},
    **{query: ("GET", f"/r1/{query}", None, field) for query, field in WRONG_QUERIES.items()},
    **{cursor: ("GET", f"?cursor={cursor}", None, "cursor") for cursor in (
        "x", "1/", "nan/r1", "1e999/r1", "1/%00", "9" * 400 + "/x")},
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_a_wrong_field_of_a_run_or_of_a_query_is_named(
    name: str, api: TestClient, stored: Any
) -> None:
    method, path, body, field = ASKED[name]
    answer = api.request(method, f"/api/v1/runs{path}", json=body)
    error = refused(api, answer, 422, "invalid_field")
    assert error["details"]["field"] == field


def test_an_unknown_run_is_not_found_on_any_route(api: TestClient, stored: Any) -> None:
    parts = (
        "", "/verdict", "/phases", "/types", "/containers", "/events", "/census", "/large-objects", "/holders",
    )  # fmt: skip
    for part in (*parts, "/snapshots", "/incidents", "/series?name=a", "/live"):
        refused(api, api.get(f"/api/v1/runs/nobody{part}"), 404, "run_not_found")
    refused(api, api.get("/api/v1/compare?before=r1&after=nobody"), 404, "run_not_found")
    refused(api, api.patch("/api/v1/runs/nobody", json={}), 404, "run_not_found")
    answer = api.post("/api/v1/runs/nobody/batches", json=stored.wire(10, 3))
    error = refused(api, answer, 404, "run_not_found")
    assert "POST /api/v1/runs" in error["message"]


def test_unknown_fields_change_nothing(api: TestClient, other: Any) -> None:
    path = f"/api/v1/runs/{other.id}/batches"
    wire = other.wire(10, 3)
    plain = copy.deepcopy(wire)
    wire["from_the_future"] = {"deep": [[[1]]]}
    wire["columns"]["colour"] = ["red"] * 3
    assert api.post(path, json=wire).json()["accepted"] == 3
    assert api.post(path, json=plain).json()["accepted"] == 0


# Characters that control a terminal or that reverse or hide text, literal and escaped.
CONTROLS = ("\x00", "\x07", "\x1b")
STEERING = ("\u202e", "\u2066", "\u2069", "\u200f", "\u061c", "\x85", "\x9b", "\u2028", "\ufeff")
REMOVED = (*CONTROLS, *STEERING)


@pytest.mark.parametrize("escaped", [True, False])
def test_control_and_bidirectional_characters_are_removed_from_all_text(
    escaped: bool, api: TestClient, other: Any
) -> None:
    path = f"/api/v1/runs/{other.id}"

    def as_json(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=escaped).encode()

    for at, mark in enumerate(REMOVED):
        wire = other.wire(3 * at, 3)
        wire["columns"]["label"][0] = f"a{mark}b"
        wire["columns"]["series"][f"gauge.{mark}x"] = [1, 2, 3]
        wire["events"] = [{"sequence": 3 * at, "time": 1e9, "kind": "mark", "name": f"m{mark}"}]
        wire["process"]["host"] = f"ho{mark}st"
        assert api.post(f"{path}/batches", content=as_json(wire)).json()["accepted"] == 3, at
    for mark in STEERING:
        change = {"name": f"c{mark}d", "notes": [{"text": f"e{mark}f\ng"}], "tags": [f"t{mark}"]}
        changed = api.patch(path, content=as_json(change)).json()
        assert (changed["name"], changed["tags"]) == ("cd", ["t"])
        assert changed["notes"][-1]["text"] == "ef\ng"
    for mark in REMOVED:
        end = {"state": "failed", "reason": f"killed{mark} by hand", "instance": other.instance}
        assert api.patch(path, content=as_json(end)).json()["reason"] == "killed by hand"
    assert api.patch(path, json={**end, "instance": "p\x00"}).status_code == 422
    labels = {row["label"] for row in api.get(f"{path}/snapshots?limit=200").json()["items"]}
    assert "ab" in labels
    found = api.get(path)
    assert not [mark for mark in REMOVED if mark in found.text + "".join(map(str, labels))]
    signed = [n for n in found.json()["series"] if re.fullmatch(r"gauge\.~[0-9a-f]{12}x", n)]
    assert len(signed) == len(REMOVED)
    assert found.json()["processes"][0]["host"] == "host"
    assert {event["name"] for event in api.get(f"{path}/events").json()["items"]} == {"m"}
    for query in ("r%00", "project:a%00b", "tag:%00", "status:%00", "%00"):
        assert api.get(f"/?q={query}").status_code == 200
    # Right-to-left text and emoji stay unchanged.
    for name in ("שלום עולם", "مرحبا", "👩\u200d🔬 \U0001f9ea", "é ü 界"):
        assert api.patch(path, json={"name": name}).json()["name"] == name


def post(api: TestClient, other: Any, wire: dict[str, Any]) -> Any:
    return api.post(f"/api/v1/runs/{other.id}/batches", json=wire)


def refused_field(answer: Any, field: str, status: int = 422) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["details"]["field"] == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("process.peak_bytes", 1e300), ("process.rss_bytes", 1e17), ("phase.train.bytes", -1e17),
        ("type.app.Env.count", 2.0**54), ("gauge.loss", 2e15), ("gauge.loss", -1e300)],
)  # fmt: skip
def test_a_float_beyond_exact_numbers_is_named(
    name: str, value: float, api: TestClient, other: Any
) -> None:
    wire = other.wire(0, 3)
    wire["columns"]["series"][name] = [None, value, 1]
    refused_field(post(api, other, wire), f"columns.series.{name}[1]")
    wire["columns"]["series"][name] = [None, 1e14, 1]
    refuses_rss = name == "process.rss_bytes"
    assert post(api, other, wire).status_code == (422 if refuses_rss else 200)


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        ("budget", {"normal_bytes": "x"}, "normal_bytes"), ("budget", {"leak_bytes": [1]}, "leak_bytes"),
        ("cleanup", {"before_bytes": -1}, "before_bytes"), ("cleanup", {"freed_bytes": "much"}, "freed_bytes"),
        ("cleanup", {"seconds": True}, "seconds"), ("cleanup", {"counts": [1, 2]}, "counts"),
        ("cleanup", {"counts": {"app.Agent": [1]}}, "counts"),
        ("cleanup", {"devices": {"cuda.0.reserved_bytes": [1, -1]}}, "devices"),
        ("cleanup", {"devices": [1, 2]}, "devices"), ("cleanup", {"counts": {"app.Agent": [1, -1]}}, "counts"),
        ("cleanup", {"counts": {"app.Agent": {"before": 1, "after": 0}}}, "counts")],
)  # fmt: skip
def test_a_wrong_number_of_an_event_is_named(
    kind: str, data: dict[str, Any], field: str, api: TestClient, other: Any
) -> None:
    wire = other.wire(2, 1)
    wire["events"] = [{"sequence": 2, "time": 1.0, "kind": kind, "name": "x", "data": data}]
    refused_field(post(api, other, wire), f"events[0].data.{field}")
    # Memory may grow during a cleanup.
    grown = {"before_bytes": 1, "after_bytes": 5, "freed_bytes": -4, "seconds": 0.5}
    wire["events"][0] |= {"kind": "cleanup", "data": grown}
    assert post(api, other, wire).status_code == 200
    assert "freed nothing" in api.get(f"/runs/{other.id}?tab=all").text


def test_an_instance_keeps_its_first_rank(api: TestClient, other: Any) -> None:
    other.send(api, 0, 3)
    wire = other.wire(3, 3)
    wire["process"]["rank"] = 7
    refused_field(post(api, other, wire), "rank", 409)
    joining = other.header | {"process": {"instance": other.instance, "rank": 7}}
    refused_field(api.post("/api/v1/runs", json=joining), "rank", 409)
    assert other.send(api, 3, 3) == 3


def test_losses_never_shrink_and_their_reasons_are_bounded(api: TestClient, other: Any) -> None:
    def lost() -> Any:
        return api.get(f"/api/v1/runs/{other.id}").json()["processes"][0]["lost"]

    post(api, other, other.wire(0, 3) | {"lost": {"thinned": 5}})
    post(api, other, other.wire(3, 3) | {"lost": {"thinned": 2, "dropped": 1}})
    assert lost() == {"thinned": 5, "dropped": 1}
    post(api, other, other.wire(6, 3) | {"lost": {f"reason {i}": 1 for i in range(32)}})
    assert len(lost()) == 32
    post(api, other, other.wire(9, 3) | {"lost": {"thinned": 9}})
    assert lost()["thinned"] == 9


def test_a_pure_repeat_does_not_change_the_run(api: TestClient, other: Any) -> None:
    other.send(api, 0, 3)
    before = api.get(f"/api/v1/runs/{other.id}").json()
    assert other.send(api, 0, 3) == 0
    after = api.get(f"/api/v1/runs/{other.id}").json()
    for name in ("last_seen_at", "state"):
        assert after[name] == before[name]
    assert after["processes"] == before["processes"]


def test_a_batch_that_cannot_be_stored_fails_alone(engine: Engine, make_run: Any) -> None:
    """The checks reject values that cannot be stored; this covers one that they do not know yet."""
    join_run(engine, RunHeader(**make_run().header, unit="generation"), 1.0)
    batches = []
    for i in range(3):
        other = make_run(instance=f"p{i}")
        batches.append(decode.check("r1", encode(other.wire(0, 3)), 1.0))
    who = batches[1].process
    poison = ProcessIdentity(who.instance, who.rank, 2**70, who.host, who.role, who.attempt)
    object.__setattr__(batches[1], "process", poison)

    async def send() -> list[Any]:
        writer = Writer(engine, lambda _run: None, lambda _keys: None)
        waiting = [asyncio.ensure_future(writer.store(batch)) for batch in batches]
        await asyncio.sleep(0)
        writer.start()
        try:
            return await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            writer.stop()

    first, second, third = asyncio.run(send())
    assert first == third == Accepted(3)
    assert isinstance(second, Malformed)
    with writing(engine) as connection:
        outcomes, _ = Inbox().store(connection, [batches[0], batches[2]])
    assert outcomes == [Accepted(0), Accepted(0)]
