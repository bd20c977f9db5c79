"""Hostile OTLP: each request is refused as a whole in one line, or taken for what it is; nothing stored changes."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from starlette.testclient import TestClient
from tests.server.databases import Copies
from tests.server.otlp_requests import (
    JSON,
    MIB,
    PROTOBUF,
    STARTED,
    WHO,
    memory,
    post,
    request,
    rows_of,
    run_of,
)

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.redaction import HIDDEN

RSS = "process.memory.usage"
MUTATIONS = 400
_numbers = itertools.count()


@pytest.fixture(scope="module")
def hostile_api(
    sqlite_copies: Copies, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """A server with a run, which every test of hostile requests looks at before and after."""
    with (
        sqlite_copies.new(tmp_path_factory.mktemp("hostile")) as url,
        TestClient(
            create_app(Config(database_url=url)),
            base_url="http://127.0.0.1",
            raise_server_exceptions=False,
        ) as client,
    ):
        assert post(client, memory([MIB, 2 * MIB, 3 * MIB])).status_code == 200
        yield client


def stored(api: TestClient) -> dict[str, Any]:
    """Everything that can be read of all runs."""
    found = {run["id"]: run for run in api.get("/api/v1/runs?limit=200").json()["items"]}
    return {
        run: (found[run]["name"], found[run]["project"], rows_of(api, run)) for run in sorted(found)
    }


def value_of(value: Any) -> dict[str, Any]:
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return value if isinstance(value, dict) else {kinds[type(value)]: value}


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value_of(value)} for key, value in given.items()]


def exported(
    name: str = RSS, who: dict[str, Any] | None = None, kind: str = "gauge", **point: Any
) -> dict[str, Any]:
    """A request in JSON of one point, of an instance that no other has."""
    told = {"service.instance.id": f"hostile-{next(_numbers)}", **(who or {})}
    one = {"timeUnixNano": f"{STARTED}000000000", "asInt": "5", **point}
    metric = {"name": name, "unit": "By", kind: {"dataPoints": [one]}}
    resource = {"attributes": attributes(told)}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}


def deep(levels: int) -> bytes:
    """A request in protobuf with an attribute of lists in lists."""
    value = AnyValue()
    inner = value
    for _ in range(levels):
        inner = inner.array_value.values.add()
    made = memory([MIB])
    made.resource_metrics[0].resource.attributes.add(key="deep").value.CopyFrom(value)
    return made.SerializeToString()


GOOD = memory([MIB] * 5, first=100.0).SerializeToString()
REFUSED: dict[str, tuple[bytes | dict[str, Any], dict[str, str]]] = {
    "nothing": (b"", JSON), "a zero": (b"\0", JSON), "a list": (b"[]", JSON), "null": (b"null", JSON),
    "a text": (b'"x"', JSON), "a text of a list": (b'"[]"', JSON), "UTF-16": ("{}".encode("utf-16"), JSON),
    "a byte order mark": (b"\xef\xbb\xbf{}", JSON), "not UTF-8": (b'{"a": "\xff"}', JSON),
    "NaN": (b'{"resourceMetrics": NaN}', JSON), "a key twice": (b'{"a": 1, "a": 2}', JSON),
    "a line in a key": (b'{"resourceMetrics": [{"a\\nb\\u001b[2J": 1, "resource": 7}]}', JSON),
    "lists in lists": (b'{"resourceMetrics":' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON),
    "objects in objects": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, JSON),
    "a text for a list": ({"resourceMetrics": "SECRET"}, JSON), "a number in a list": ({"resourceMetrics": [1]}, JSON),
    "half a surrogate": (b'{"resourceMetrics": [{"resource": {"attributes": [{"key": "\\ud800"}]}}]}', JSON),
    "400 digits": (exported(asInt="9" * 400), JSON), "time below zero": (exported(timeUnixNano="-5"), JSON),
    "time of 70 bits": (exported(timeUnixNano=str(2**70)), JSON),
    "a fraction as time": (exported(timeUnixNano=1.5), JSON),
    "not finite": (exported(asInt=None, asDouble=1e999), JSON), "no instance": ({"resourceMetrics": [{}]}, JSON),
    "an instance of zeros": (exported(who={"service.instance.id": "\0\0"}), JSON),
    "an instance that is empty": (exported(who={"service.instance.id": "  "}), JSON),
    "below zero": (exported(asInt="-1"), JSON), "more than any memory": (exported(asInt=str(2**62)), JSON),
    "garbage": (b"\xff" * 4096, PROTOBUF), "JSON as protobuf": (json.dumps(exported()).encode(), PROTOBUF),
    "protobuf as JSON": (GOOD, JSON), "cut off": (GOOD[:-3], PROTOBUF),
    "a length that lies": (b"\x0a\xff\xff\xff\xff\x0f", PROTOBUF),
    "deep protobuf": (deep(90), PROTOBUF), "very deep protobuf": (deep(500), PROTOBUF),
    "no type": (GOOD, {}), "another type": (GOOD, {"content-type": "text/plain"}),
    "a long type": (GOOD, {"content-type": "a" * 5000}),
    "another encoding": (GOOD, {**PROTOBUF, "content-encoding": "br"}),
    "no gzip": (GOOD, {**PROTOBUF, "content-encoding": "gzip"}),
    "gzip cut off": (gzip.compress(GOOD)[:-4], {**PROTOBUF, "content-encoding": "gzip"}),
    "gzip twice": (gzip.compress(gzip.compress(GOOD)), {**PROTOBUF, "content-encoding": "gzip, gzip"}),
    "a bomb": (gzip.compress(bytes(50_000_000)), {**PROTOBUF, "content-encoding": "gzip"}),
    "too large": (bytes(3 * MIB), PROTOBUF),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_as_a_whole_in_one_line(
    hostile_api: TestClient, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    body, headers = REFUSED[what]
    before = stored(hostile_api)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = hostile_api.post("/v1/metrics", content=content, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    message = answer.json()["error"]["message"]
    assert message.isprintable() and len(message) < 500
    assert caplog.text == ""
    # Not even a run without anything in it.
    assert stored(hostile_api) == before


def test_damaged_requests_never_fail_in_the_server(hostile_api: TestClient) -> None:
    before = stored(hostile_api)
    dice = random.Random(26)
    statuses = set()
    for _ in range(MUTATIONS):
        body = bytearray(GOOD)
        for _ in range(dice.choice([1, 1, 2, 5, 20])):
            at, kind = dice.randrange(len(body) + 1), dice.randrange(4)
            if kind == 0 and at < len(body):
                body[at] = dice.randrange(256)
            elif kind == 1:
                del body[at : at + dice.randrange(1, 30)]
            elif kind == 2:
                body[at:at] = dice.randbytes(8)
            elif kind == 3:
                del body[at:]
        answer = hostile_api.post("/v1/metrics", content=bytes(body), headers=PROTOBUF)
        statuses.add(answer.status_code)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"].isprintable()
    assert {200, 400} <= statuses <= {200, 400, 413, 422}
    after = stored(hostile_api)
    # What was stored is there as it was; of its own instance there may be more behind it.
    assert before.keys() <= after.keys()
    for run, (name, project, rows) in before.items():
        assert after[run][:2] == (name, project) and after[run][2][: len(rows)] == rows


@pytest.mark.parametrize(
    ("point", "row"),
    [
        ({"attributes": attributes({"leakline.generation": True})}, {"generation": None}),
        ({"attributes": attributes({"leakline.generation": 1.5})}, {"generation": None}),
        ({"attributes": attributes({"leakline.generation": "7"})}, {"generation": None}),
        ({"attributes": attributes({"leakline.generation": 2**63 - 1})}, {"generation": None}),
        ({"attributes": attributes({"leakline.generation": {"arrayValue": {}}})}, {"generation": None}),
        ({"attributes": attributes({"leakline.phase": "\0\x1b[2J\u202e"})}, {"generation": None}),
        ({"timeUnixNano": "0"}, {"time": 0.0}),
    ],
)  # fmt: skip
def test_what_is_of_the_wrong_kind_is_left_out(
    api: TestClient, point: dict[str, Any], row: dict[str, Any]
) -> None:
    answer = api.post("/v1/metrics", content=json.dumps(exported(**point)), headers=JSON)
    assert answer.status_code == 200, answer.text
    (found,) = rows_of(api, run_of(api)["id"])
    assert found["samples"] == {"process.rss_bytes": 5}
    assert {key: found[key] for key in row} == row
    assert (found["phase"] or "").isprintable()


def test_secrets_among_the_attributes_of_a_resource_are_not_stored(api: TestClient) -> None:
    """As of a program that uses our client: whoever sends them."""
    who = {
        "api_key": "SECRET", "db.password": "SECRET", "process.pid": True,
        "process.command_line": "train.py --password SECRET --lr 0.1", "url": "postgresql://ann:SECRET@db/x",
        "steers\x1b[2J": "\u202etext", "harmless": "seed 7",
    }  # fmt: skip
    answer = api.post("/v1/metrics", content=json.dumps(exported(who=who)), headers=JSON)
    assert answer.status_code == 200
    run = run_of(api)
    assert "SECRET" not in json.dumps(run)
    told = run["environment"]["otlp"]
    assert (told["api_key"], told["db.password"], told["harmless"]) == (HIDDEN, HIDDEN, "seed 7")
    assert told["process.command_line"] == "train.py --password *** --lr 0.1"
    assert told["steers[2J"] == "text"
    assert run["processes"][0]["pid"] == 0
    for path in (f"/runs/{run['id']}", f"/api/v1/runs/{run['id']}/export.json"):
        assert "SECRET" not in api.get(path).text


def test_a_run_does_not_begin_with_what_is_refused(api: TestClient) -> None:
    assert post(api, memory([MIB, 2 * MIB, -5])).status_code == 422
    assert api.get("/api/v1/runs").json()["items"] == []
    assert post(api, memory([MIB, 2 * MIB])).status_code == 200
    # Neither is a part of it stored where the run is there: 300 snapshots are more than a batch.
    assert post(api, memory([MIB] * 300 + [-5], first=50.0)).status_code == 422
    assert len(rows_of(api, run_of(api)["id"])) == 2
    assert post(api, memory([MIB] * 3, first=50.0)).status_code == 200
    assert len(rows_of(api, run_of(api)["id"])) == 5


def test_one_point_of_the_far_future_makes_no_later_one_late(api: TestClient) -> None:
    future = request({RSS: [(500_000_000.0, MIB, {})]})
    assert post(api, future).status_code == 200
    for at in (0.0, 10.0):
        answer = post(api, memory([2 * MIB], first=at))
        assert (answer.status_code, answer.content) == (200, b"")
    run = run_of(api)["id"]
    found = sorted(row["samples"]["process.rss_bytes"] for row in rows_of(api, run))
    assert found == [MIB, 2 * MIB, 2 * MIB]
    # Sent again, it counts once.
    assert post(api, memory([2 * MIB], first=10.0)).content == b""
    assert len(rows_of(api, run)) == 3


def test_a_point_that_is_not_stored_is_reported_as_rejected(api: TestClient) -> None:
    """Also where all that is stored of the run is newer."""
    assert post(api, memory([MIB], first=3_600.0)).status_code == 200
    who = attributes(WHO)
    early = {"timeUnixNano": f"{STARTED}000000000"}
    body = exported(**early)
    body["resourceMetrics"][0]["resource"]["attributes"] = [
        {**pair, "value": value_of(WHO[pair["key"]])} for pair in who
    ]
    answer = api.post("/v1/metrics", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["rejectedDataPoints"] == "1"
    assert len(rows_of(api, run_of(api)["id"])) == 1
