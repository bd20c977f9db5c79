"""`POST /v1/metrics`: metrics of an OpenTelemetry SDK become a run, stored once; invalid ones are refused."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from starlette.testclient import TestClient
from tests.server.databases import Copies
from tests.server.otlp_requests import (
    JSON,
    MIB,
    PROTOBUF,
    STARTED,
    WHO,
    Points,
    memory,
    post,
    refusal,
    request,
    rows_of,
    run_of,
)
from tests.server.stored import serving

from leakline.analysis.results import SEVERITY
from leakline_server import limits
from leakline_server.ingest import otlp_metrics
from leakline_server.text_cleaning import HIDDEN
from leakline_server.web.ingest.otlp_streams import FEW_POINTS, Stream, Streams


@pytest.fixture
def api(sqlite_url: str) -> Iterator[TestClient]:
    """Yield a server on SQLite, for conversions, which are the same on every database."""
    with serving(sqlite_url) as client:
        yield client


@pytest.fixture
def each_api(database_url: str) -> Iterator[TestClient]:
    """Yield a server on each database, for tests of what is stored."""
    with serving(database_url) as client:
        yield client


@pytest.fixture(scope="module")
def shared_api(
    sqlite_copies: Copies, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """Yield a server with a run, for requests that are refused and change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    with sqlite_copies.new(folder) as url, serving(url, raises=False) as client:
        take(client, memory([MIB, 2 * MIB, 3 * MIB]))
        yield client


def rows(api: TestClient) -> list[dict[str, Any]]:
    """Return the rows of the only run."""
    return rows_of(api, run_of(api)["id"])


def take(api: TestClient, *requests: ExportMetricsServiceRequest) -> ExportMetricsServiceResponse:
    """Send requests and return the response to the last one."""
    for made in requests:
        answer = post(api, made)
        assert answer.status_code == 200, answer.text
    return ExportMetricsServiceResponse.FromString(answer.content)


def instance(name: str, **more: str) -> dict[str, Any]:
    return {**WHO, "service.instance.id": name, **more}


WHOLE = ExportMetricsServiceResponse()


# -- refused requests ---------------------------------------------------------------------------------------
def test_without_the_extra_the_error_names_it(
    shared_api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
    monkeypatch.setitem(sys.modules, name, None)
    error = refusal(post(shared_api, memory([1])), 501)
    assert error["code"] == "otlp_not_installed"
    assert "pip install 'leakline[otlp]'" in error["message"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"\xff\xff\xff", PROTOBUF, 400, "malformed_otlp"),
        (b"{", JSON, 400, "malformed_otlp"),
        (b"x", {**PROTOBUF, "content-encoding": "gzip"}, 400, "bad_compression"),
        (b"", {**PROTOBUF, "content-encoding": "br"}, 415, "unsupported_encoding"),
        (b"", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"", {}, 415, "unsupported_media_type"),
        (b"\x00" * (2 * MIB + 1), PROTOBUF, 413, "request_too_large"),
        (gzip.compress(b"\x00" * (3 * MIB)), {**PROTOBUF, "content-encoding": "gzip"}, 413, "request_too_large"),
        (bytes(range(256)) * 1025, {**PROTOBUF, "content-encoding": "gzip"}, 413, "request_too_large"),
    ],
)  # fmt: skip
def test_an_unreadable_request_is_refused(
    shared_api: TestClient, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    before = stored(shared_api)
    error = refusal(shared_api.post("/v1/metrics", content=body, headers=headers), status)
    assert error["code"] == code
    assert stored(shared_api) == before
    assert f'leakline_batches_refused_total{{code="{code}"}}' in shared_api.get("/metrics").text


def test_a_resource_without_an_instance_is_refused(shared_api: TestClient) -> None:
    error = refusal(post(shared_api, memory([1], who={"service.name": "trainer"})), 422)
    assert error["details"]["field"] == "resourceMetrics[0].resource.service.instance.id"
    assert "OTEL_RESOURCE_ATTRIBUTES=service.instance.id" in error["message"]


def test_attributes_of_a_resource_are_cut_at_their_bound(api: TestClient) -> None:
    # Each character takes four bytes as JSON.
    more = {f"{i}" + "\U0001f600" * 190: "\U0001f600" * 400 for i in range(60)}
    take(api, memory([1], who={**WHO, **more}))
    told = run_of(api)["environment"]
    assert 50_000 < len(msgspec.json.encode(told)) <= limits.MAX_ENVIRONMENT_BYTES
    assert told["otlp"]["host.name"] == "node"


def test_a_page_of_another_site_may_not_send(shared_api: TestClient) -> None:
    refusal(post(shared_api, memory([1]), origin="http://evil.example"), 403)


# -- conversion ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["protobuf", "json", "gzip", "zstd"])
def test_each_format_gives_the_same_run(api: TestClient, form: str) -> None:
    made = memory([100 * MIB, 110 * MIB])
    body, headers = made.SerializeToString(), dict(PROTOBUF)
    if form == "json":
        body, headers = json_format.MessageToJson(made).encode(), dict(JSON)
    elif form != "protobuf":
        body = gzip.compress(body) if form == "gzip" else zstandard.compress(body)
        headers["content-encoding"] = form
    answer = api.post("/v1/metrics", content=body, headers=headers)
    assert answer.status_code == 200 and answer.headers["content-type"] == headers["content-type"]
    if form == "json":
        assert answer.json() == {}
    else:
        assert ExportMetricsServiceResponse.FromString(answer.content) == WHOLE
    run = run_of(api)
    told = [run[name] for name in ("project", "name", "tags", "state")]
    assert told == ["trainer", "trainer worker-7", ["otlp"], "running"]
    (process,) = run["processes"]
    assert (process["host"], process["pid"]) == ("node", 4711)
    found = [(row["sequence"], row["samples"]["process.rss_bytes"]) for row in rows(api)]
    assert found == [(1, 100 * MIB), (2, 110 * MIB)]


def test_each_instance_is_a_run(api: TestClient) -> None:
    both = memory([MIB])
    both.MergeFrom(memory([2 * MIB], who=instance("worker-8")))
    without = {"service.name": "trainer", "host.name": "node", "process.pid": 7}
    both.MergeFrom(memory([3 * MIB], who=without))
    take(api, both)
    names = {run["name"]: run["rss_bytes"] for run in api.get("/api/v1/runs").json()["items"]}
    sizes = {"worker-7": MIB, "worker-8": 2 * MIB, "node:7": 3 * MIB}
    assert names == {f"trainer {name}": size for name, size in sizes.items()}


def test_names_of_the_conventions_become_our_names(api: TestClient) -> None:
    one = [(0.0, 5, {})]
    made = request({
        "process.memory.usage": one, "process.memory.virtual": one, "process.thread.count": one,
        "process.unix.file_descriptor.count": one, "container.memory.usage": one, "system.memory.limit": one,
        "system.memory.linux.available": one, "leakline.torch.cuda.reserved": [(0.0, 5, {"leakline.device": 1})],
        "hw.gpu.memory.usage": [(0.0, 5, {"hw.id": "2"})], "leakline.tensors.count": one,
        "leakline.type.app.Env.count": one, "http.server.active_requests": one, "leakline.secrets": one,
    })  # fmt: skip
    take(api, made)
    (row,) = rows(api)
    assert row["samples"] == dict.fromkeys(
        (
            "process.rss_bytes", "process.vms_bytes", "process.threads", "process.open_files", "cgroup.used_bytes",
            "system.total_bytes", "system.available_bytes", "cuda.1.reserved_bytes", "gpu.2.used_bytes",
            "tensors.count", "type.app.Env.count",
        ), 5,
    )  # fmt: skip


@pytest.mark.parametrize(("unit", "factor"), [("By", 1), ("MiBy", MIB), ("MBy", 10**6), ("", 1)])
def test_sizes_are_converted_to_bytes(api: TestClient, unit: str, factor: int) -> None:
    take(api, memory([3], unit=unit, kind="sum"))
    assert run_of(api)["rss_bytes"] == 3 * factor


def test_requests_without_memory_metrics_get_a_message(api: TestClient) -> None:
    made = request({"http.server.duration": [(0.0, 1.5, {})]})
    answer = api.post("/v1/metrics", content=json_format.MessageToJson(made), headers=JSON)
    assert (
        "none of these metrics is a supported memory metric"
        in answer.json()["partialSuccess"]["errorMessage"]
    )
    assert api.get("/api/v1/runs").json()["items"] == []
    # NaN is not a point.
    take(api, request({RSS: [(0.0, float("nan"), {})]}))
    assert api.get("/api/v1/runs").json()["items"] == []


def test_generations_and_phases_of_points_give_the_verdict(api: TestClient) -> None:
    def points(phase: str, share: int) -> Points:
        return [
            (
                60.0 * g + share * 10, (500 + 50 * g + share * 30) * MIB,
                {"leakline.generation": g, "leakline.phase": phase},
            )
            for g in range(20)
        ]  # fmt: skip

    made = request(
        {"process.memory.usage": [*points("evaluate", 0), *points("train", 1)]},
        {**WHO, "leakline.project": "erl", "leakline.run_name": "before", "leakline.unit": "episode"},
    )  # fmt: skip
    take(api, made)
    run = run_of(api)
    assert (run["project"], run["name"], run["unit"]) == ("erl", "before", "episode")
    assert run["phases_seen"] == ["evaluate", "train"]
    deadline = time.monotonic() + 20
    while (verdict := api.get(f"/api/v1/runs/{run['id']}/verdict").json())["generations"] < 20:
        assert time.monotonic() < deadline
    assert SEVERITY.index(verdict["status"]) >= SEVERITY.index("suspected")
    assert verdict["growth_bytes_per_generation"]["estimate"] == pytest.approx(50 * MIB, rel=0.02)


def test_a_gauge_gives_the_generation_of_points_sent_with_it(api: TestClient) -> None:
    """An SDK exports every set of attributes that it ever had, with the time of the export."""
    evaluate, train = {"leakline.phase": "evaluate"}, {"leakline.phase": "train"}
    for g in range(3):
        at = 10.0 * g
        # This value is from the previous generation and not yet updated.
        of_before: Points = [(at, g * 10 * MIB, train)] if g else []
        first: Points = [(at, (g + 1) * MIB, evaluate), *of_before]
        later: Points = [(at + 5, (g + 1) * MIB, evaluate), (at + 5, (g + 1) * 10 * MIB, train)]
        for gauge_at, sizes in ((at + 0.1, first), (at + 5, later)):
            take(api, request({"leakline.generation": [(gauge_at, g, {})], RSS: sizes}))
    found = rows(api)
    ends = {(row["generation"], row["phase"]): row["samples"]["process.rss_bytes"] for row in found}
    assert ends == {
        **{(g, "evaluate"): (g + 1) * MIB for g in range(3)},
        **{(g, "train"): (g + 1) * 10 * MIB for g in range(3)},
    }  # fmt: skip
    assert len([row for row in found if row["phase"] == "evaluate"]) == 3


def test_of_generations_in_attributes_the_newest_counts(api: TestClient) -> None:
    for g in range(4):
        points: Points = [
            (10.0 * g, (i + 1) * MIB, {"leakline.generation": i}) for i in range(g + 1)
        ]
        take(api, request({RSS: points}))
    found = [(row["generation"], row["samples"]["process.rss_bytes"]) for row in rows(api)]
    assert found == [(g, (g + 1) * MIB) for g in range(4)]


def test_names_are_text(api: TestClient) -> None:
    who = instance("x" * 5_000, deep="\x00" * 9_000)
    take(api, memory([1], who=who | {"service.name": "<b>\x1b[2J\x00"}))
    assert run_of(api)["project"] == "<b>[2J"


def test_the_document_lists_every_accepted_name() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "other-tools.md").read_text()
    table = page.partition("| OpenTelemetry | here |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    told = {name: here for names, here in rows for name in re.findall(r"`([a-z_.]+)`", names)}
    for (name, _, wanted), series in otlp_metrics.NAMES.items():
        assert name in told, name
        (names, here) = next(row for row in rows if f"`{name}`" in row[0] and wanted in row[0])
        assert series.replace(".0.", ".<i>.") in here, names


def test_repeated_points_count_once(each_api: TestClient) -> None:
    # Then an exporter sends the rest and more.
    take(each_api, *[memory([MIB, 2 * MIB])] * 3, memory([2 * MIB, 3 * MIB], first=10.0))
    assert [row["process.rss_bytes"] for row in columns(each_api)] == [MIB, 2 * MIB, 3 * MIB]
    (process,) = run_of(each_api)["processes"]
    assert (process["taken"], process["stored"], process["lost"]) == (3, 3, {})


def test_two_servers_number_snapshots_in_turn(each_api: TestClient) -> None:
    one, two = Streams(), Streams()
    for i in range(6):
        each_api.app.state.otlp = (one, two)[i % 2]  # type: ignore[attr-defined]
        take(each_api, memory([(i + 1) * MIB], first=10.0 * i))
    found = [(row["sequence"], row["samples"]["process.rss_bytes"]) for row in rows(each_api)]
    assert found == [(i, i * MIB) for i in range(1, 7)]


def columns(api: TestClient) -> list[dict[str, Any]]:
    return [row["samples"] for row in rows(api)]


RSS, VMS = "process.memory.usage", "process.memory.virtual"


@pytest.mark.parametrize("again", [False, True], ids=["same server", "started again"])
def test_a_collection_in_two_requests_is_stored_whole(each_api: TestClient, again: bool) -> None:
    for at in (0.0, 10.0):
        # The second part has the same time, or one slightly earlier.
        parts = (request({RSS: [(at, 5, {})]}), request({VMS: [(at - 0.1, 7, {})]}))
        for part in (*parts, *parts):
            assert take(each_api, part) == WHOLE
            if again:
                each_api.app.state.otlp = Streams()  # type: ignore[attr-defined]
    assert columns(each_api) == [{"process.rss_bytes": 5}, {"process.vms_bytes": 7}] * 2


def test_the_end_of_a_phase_in_two_requests_counts_once(each_api: TestClient) -> None:
    for at in (0.0, 10.0, 20.0):
        for name, value in ((RSS, 5), (VMS, 7)):
            points: Points = [(at, value, {"leakline.phase": "train"})]
            assert take(each_api, request({name: points})) == WHOLE
    assert columns(each_api) == [{"process.rss_bytes": 5}, {"process.vms_bytes": 7}]


def test_points_that_arrive_too_late_are_counted(each_api: TestClient) -> None:
    post(each_api, memory([MIB], first=0.0))
    post(each_api, memory([MIB], first=20.0))
    # Stored points are repeats, and the one between them is too late.
    told = take(each_api, memory([MIB, 2 * MIB, MIB], first=0.0)).partial_success
    assert told.rejected_data_points == 1
    assert "older than their run's stored data" in told.error_message
    # This also holds if everything stored is newer.
    assert take(each_api, memory([MIB], first=-9.0)).partial_success.rejected_data_points == 1
    assert len(columns(each_api)) == 2


def test_a_run_that_cannot_be_joined_is_refused(
    each_api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = memory([2 * MIB], who=instance("worker-8"))
    for name in ("PROCESSES", "ATTEMPTS"):
        with monkeypatch.context() as patched:
            patched.setattr(f"leakline_server.store.runs.run_registration.MAX_RUN_{name}", 0)
            refusal(post(each_api, others), 409)
    assert take(each_api, others) == WHOLE


def seconds_to_remember(count: int, apart_seconds: float) -> float:
    """Return the CPU seconds for remembering snapshots that each have their own phase."""
    stream, began = Stream(), time.process_time()
    for i in range(count):
        at = STARTED + i * apart_seconds
        stream.remember(i + 1, at, 1, f"phase {i}", {"process.rss_bytes": i})
    return time.process_time() - began


@pytest.mark.parametrize("apart_seconds", [0.0, 1e-6])
def test_remembering_many_phases_of_one_moment_is_not_quadratic(apart_seconds: float) -> None:
    few, many = (
        min(seconds_to_remember(count, apart_seconds) for _ in range(3)) for count in (1_000, 8_000)
    )
    # Measured: 9 times; comparing each snapshot with all earlier ones took 64 times.
    assert many <= 24 * few


def test_old_points_are_forgotten() -> None:
    stream = Stream()
    for i in range(10_000):
        stream.remember(i + 1, STARTED + i, i, None, {"process.rss_bytes": i})
    assert len(stream.points) <= FEW_POINTS


def test_a_refused_resource_does_not_block_others(each_api: TestClient) -> None:
    post(each_api, memory([MIB]))
    both = memory([2 * MIB], first=10.0, who={**WHO, "leakline.project": "another"})
    # Somebody has begun a run with this very id elsewhere.
    (told,) = otlp_metrics.read_request(both.SerializeToString(), otlp_metrics.PROTOBUF)
    header = {"id": told.header.id, "project": "erl", "name": "squats"}
    assert each_api.post("/api/v1/runs", json=header).status_code == 201
    both.MergeFrom(memory([3 * MIB], who=instance("worker-8")))
    each_api.app.state.otlp = Streams()  # type: ignore[attr-defined]
    assert refusal(post(each_api, both), 409)["code"] == "run_in_other_project"
    sizes = {run["name"]: run["rss_bytes"] for run in each_api.get("/api/v1/runs").json()["items"]}
    assert sizes == {"trainer worker-7": MIB, "trainer worker-8": 3 * MIB, "squats": None}


MUTATIONS = 150
_numbers = itertools.count()


def stored(api: TestClient) -> dict[str, Any]:
    """Return everything that can be read of all runs."""
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
    """Return a JSON request with one point of a unique instance."""
    told = {"service.instance.id": f"hostile-{next(_numbers)}", **(who or {})}
    one = {"timeUnixNano": f"{STARTED}000000000", "asInt": "5", **point}
    metric = {"name": name, "unit": "By", kind: {"dataPoints": [one]}}
    resource = {"attributes": attributes(told)}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}


def deep(levels: int) -> bytes:
    """Return a protobuf request with an attribute of nested lists."""
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
    "a byte order mark": (b"\xef\xbb\xbf{}", JSON),
    "NaN": (b'{"resourceMetrics": NaN}', JSON), "a key twice": (b'{"a": 1, "a": 2}', JSON),
    "a line in a key": (b'{"resourceMetrics": [{"a\\nb\\u001b[2J": 1, "resource": 7}]}', JSON),
    "lists in lists": (b'{"resourceMetrics":' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON),
    "objects in objects": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, JSON),
    "half a surrogate": (b'{"resourceMetrics": [{"resource": {"attributes": [{"key": "\\ud800"}]}}]}', JSON),
    "no instance": ({"resourceMetrics": [{}]}, JSON),
    "a text for a list": ({"resourceMetrics": "SECRET"}, JSON), "a number in a list": ({"resourceMetrics": [1]}, JSON),
    "400 digits": (exported(asInt="9" * 400), JSON), "time below zero": (exported(timeUnixNano="-5"), JSON),
    "time of 70 bits": (exported(timeUnixNano=str(2**70)), JSON),
    "a fraction as time": (exported(timeUnixNano=1.5), JSON),
    "not finite": (exported(asInt=None, asDouble=1e999), JSON),
    "an instance of zeros": (exported(who={"service.instance.id": "\0\0"}), JSON),
    "an instance that is empty": (exported(who={"service.instance.id": "  "}), JSON),
    "more than any memory": (exported(asInt=str(2**62)), JSON),
    "JSON as protobuf": (json.dumps(exported()).encode(), PROTOBUF),
    "protobuf as JSON": (GOOD, JSON), "cut off": (GOOD[:-3], PROTOBUF),
    "a length that lies": (b"\x0a\xff\xff\xff\xff\x0f", PROTOBUF),
    "deep protobuf": (deep(90), PROTOBUF), "very deep protobuf": (deep(500), PROTOBUF),
    "a long type": (GOOD, {"content-type": "a" * 5000}),
    "gzip cut off": (gzip.compress(GOOD)[:-4], {**PROTOBUF, "content-encoding": "gzip"}),
    "gzip twice": (gzip.compress(gzip.compress(GOOD)), {**PROTOBUF, "content-encoding": "gzip, gzip"}),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_hostile_request_is_refused_as_a_whole(
    shared_api: TestClient, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    body, headers = REFUSED[what]
    before = stored(shared_api)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = shared_api.post("/v1/metrics", content=content, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    message = answer.json()["error"]["message"]
    assert message.isprintable() and len(message) < 500
    assert caplog.text == ""
    # Not even an empty run is created.
    assert stored(shared_api) == before


def test_damaged_requests_never_fail_in_the_server(shared_api: TestClient) -> None:
    before = stored(shared_api)
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
        answer = shared_api.post("/v1/metrics", content=bytes(body), headers=PROTOBUF)
        statuses.add(answer.status_code)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"].isprintable()
    assert {200, 400} <= statuses <= {200, 400, 413, 422}
    after = stored(shared_api)
    # What was stored is unchanged; its own instance may have more rows after it.
    assert before.keys() <= after.keys()
    for run, (name, project, rows) in before.items():
        assert after[run][:2] == (name, project) and after[run][2][: len(rows)] == rows


@pytest.mark.parametrize(
    "told",
    [
        *({"leakline.generation": value} for value in (True, 1.5, "7", 2**63 - 1, {"arrayValue": {}})),
        {"leakline.phase": "\0\x1b[2J\u202e"},
    ],
)  # fmt: skip
def test_attributes_of_the_wrong_kind_are_left_out(api: TestClient, told: dict[str, Any]) -> None:
    body = exported(attributes=attributes(told), timeUnixNano="0")
    answer = api.post("/v1/metrics", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 200, answer.text
    (found,) = rows(api)
    assert found["samples"] == {"process.rss_bytes": 5}
    assert (found["generation"], found["time"]) == (None, 0.0)
    assert (found["phase"] or "").isprintable()


def test_secrets_in_resource_attributes_are_not_stored(each_api: TestClient) -> None:
    """They are hidden as for programs with our client, no matter who sends them."""
    who = {
        "api_key": "SECRET", "db.password": "SECRET", "process.pid": True,
        "process.command_line": "train.py --password SECRET --lr 0.1", "url": "postgresql://ann:SECRET@db/x",
        "steers\x1b[2J": "\u202etext", "harmless": "seed 7",
    }  # fmt: skip
    answer = each_api.post("/v1/metrics", content=json.dumps(exported(who=who)), headers=JSON)
    assert answer.status_code == 200
    run = run_of(each_api)
    assert "SECRET" not in json.dumps(run)
    told = run["environment"]["otlp"]
    assert (told["api_key"], told["db.password"], told["harmless"]) == (HIDDEN, HIDDEN, "seed 7")
    assert told["process.command_line"] == "train.py --password *** --lr 0.1"
    assert told["steers[2J"] == "text"
    assert run["processes"][0]["pid"] == 0
    for path in (f"/runs/{run['id']}", f"/api/v1/runs/{run['id']}/export.json"):
        assert "SECRET" not in each_api.get(path).text


def test_a_refused_request_does_not_begin_a_run(each_api: TestClient) -> None:
    error = refusal(post(each_api, memory([MIB, 2 * MIB, -5])), 422)
    assert error["details"]["field"] == "columns.series.process.rss_bytes"
    assert each_api.get("/api/v1/runs").json()["items"] == []
    take(each_api, memory([MIB, 2 * MIB]))
    # No part is stored in an existing run either: 300 snapshots are more than one batch.
    assert post(each_api, memory([MIB] * 300 + [-5], first=50.0)).status_code == 422
    assert len(rows(each_api)) == 2
    take(each_api, memory([MIB] * 3, first=50.0))
    assert len(rows(each_api)) == 5


def test_a_point_in_the_far_future_does_not_make_later_ones_late(each_api: TestClient) -> None:
    future = request({RSS: [(500_000_000.0, MIB, {})]})
    take(each_api, future)
    # A repeated point counts once.
    for at in (0.0, 10.0, 10.0):
        assert take(each_api, memory([2 * MIB], first=at)) == WHOLE
    assert sorted(row["process.rss_bytes"] for row in columns(each_api)) == [MIB, 2 * MIB, 2 * MIB]
