"""`POST /v1/metrics`: what an SDK of OpenTelemetry exports becomes a run; what cannot be is refused as a batch is."""

from __future__ import annotations

import gzip
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from starlette.testclient import TestClient
from tests.server.databases import Copies
from tests.server.otlp_requests import (
    JSON,
    MIB,
    PROTOBUF,
    WHO,
    Points,
    memory,
    post,
    refusal,
    request,
    rows_of,
    run_of,
)

from leakline.analysis.results import SEVERITY
from leakline_server import limits, otlp
from leakline_server.app import create_app
from leakline_server.config import Config


@pytest.fixture
def database_url(sqlite_copies: Copies, tmp_path: Path) -> Iterator[str]:
    """What a request is made into is the same on every database; `test_otlp_is_stored_once.py` asks both."""
    with sqlite_copies.new(tmp_path) as url:
        yield url


@pytest.fixture(scope="module")
def shared_api(
    sqlite_copies: Copies, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    with (
        sqlite_copies.new(tmp_path_factory.mktemp("shared")) as url,
        TestClient(create_app(Config(database_url=url)), base_url="http://127.0.0.1") as client,
    ):
        yield client


# -- what is refused ---------------------------------------------------------------------------------------


def test_without_the_extra_it_is_named(
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
        (b'{"resourceMetrics": 7}', JSON, 400, "malformed_otlp"),
        (b"\xff\xfe{}", JSON, 400, "malformed_otlp"),
        (b'{"resourceMetrics":' * 500, JSON, 400, "malformed_otlp"),
        (b"x", {**PROTOBUF, "content-encoding": "gzip"}, 400, "bad_compression"),
        (b"", {**PROTOBUF, "content-encoding": "br"}, 415, "unsupported_encoding"),
        (b"", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"", {}, 415, "unsupported_media_type"),
        (b"\x00" * (2 * MIB + 1), PROTOBUF, 413, "request_too_large"),
        (gzip.compress(b"\x00" * (3 * MIB)), {**PROTOBUF, "content-encoding": "gzip"}, 413, "request_too_large"),
        (bytes(range(256)) * 1025, {**PROTOBUF, "content-encoding": "gzip"}, 413, "request_too_large"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    shared_api: TestClient, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    error = refusal(shared_api.post("/v1/metrics", content=body, headers=headers), status)
    assert error["code"] == code
    assert shared_api.get("/api/v1/runs").json()["items"] == []
    assert f'leakline_batches_refused_total{{code="{code}"}}' in shared_api.get("/metrics").text


def test_a_resource_that_nothing_tells_from_others_is_refused(shared_api: TestClient) -> None:
    error = refusal(post(shared_api, memory([1], who={"service.name": "trainer"})), 422)
    assert error["details"]["field"] == "resourceMetrics[0].resource.service.instance.id"
    assert "OTEL_RESOURCE_ATTRIBUTES=service.instance.id" in error["message"]


def test_a_negative_size_is_refused_as_in_a_batch(shared_api: TestClient) -> None:
    error = refusal(
        post(shared_api, memory([-5], who={**WHO, "service.instance.id": "negative"})), 422
    )
    assert error["details"]["field"] == "columns.series.process.rss_bytes"


def test_too_many_points_and_resources_are_refused(
    shared_api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MAX_POINTS", 9)
    assert "at most 9" in refusal(post(shared_api, memory([1] * 10)), 413)["message"]
    monkeypatch.setattr(otlp, "MAX_RESOURCES", 1)
    two = memory([1])
    two.MergeFrom(memory([1]))
    assert "2 resources" in refusal(post(shared_api, two), 413)["message"]


def test_what_a_resource_tells_of_itself_is_cut_where_a_run_may_tell_no_more(
    api: TestClient,
) -> None:
    # Each character takes four bytes as JSON.
    more = {f"{i}" + "\U0001f600" * 190: "\U0001f600" * 400 for i in range(60)}
    assert post(api, memory([1], who={**WHO, **more})).status_code == 200
    told = run_of(api)["environment"]
    assert 50_000 < len(msgspec.json.encode(told)) <= limits.MAX_ENVIRONMENT_BYTES
    assert told["otlp"]["host.name"] == "node"


def test_a_page_of_another_site_may_not_send(shared_api: TestClient) -> None:
    refusal(post(shared_api, memory([1]), origin="http://evil.example"), 403)


# -- what becomes of it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["protobuf", "json", "gzip", "zstd"])
def test_each_form_is_the_same_run(api: TestClient, form: str) -> None:
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
        assert (
            ExportMetricsServiceResponse.FromString(answer.content)
            == ExportMetricsServiceResponse()
        )
    run = run_of(api)
    assert (run["project"], run["name"], run["tags"], run["state"]) == (
        "trainer",
        "trainer worker-7",
        ["otlp"],
        "running",
    )
    (process,) = run["processes"]
    assert (process["host"], process["pid"]) == ("node", 4711)
    assert [(row["sequence"], row["samples"]["process.rss_bytes"]) for row in rows_of(api, run["id"])] == [
        (1, 100 * MIB), (2, 110 * MIB),
    ]  # fmt: skip


def test_each_instance_is_a_run(api: TestClient) -> None:
    both = memory([MIB])
    both.MergeFrom(memory([2 * MIB], who={**WHO, "service.instance.id": "worker-8"}))
    without = {"service.name": "trainer", "host.name": "node", "process.pid": 7}
    both.MergeFrom(memory([3 * MIB], who=without))
    assert post(api, both).status_code == 200
    names = {run["name"]: run["rss_bytes"] for run in api.get("/api/v1/runs").json()["items"]}
    assert names == {
        "trainer worker-7": MIB,
        "trainer worker-8": 2 * MIB,
        "trainer node:7": 3 * MIB,
    }


def test_names_of_the_conventions_become_ours(api: TestClient) -> None:
    one = [(0.0, 5, {})]
    made = request({
        "process.memory.usage": one, "process.memory.virtual": one, "process.thread.count": one,
        "process.unix.file_descriptor.count": one, "container.memory.usage": one, "system.memory.limit": one,
        "system.memory.linux.available": one, "leakline.torch.cuda.reserved": [(0.0, 5, {"leakline.device": 1})],
        "hw.gpu.memory.usage": [(0.0, 5, {"hw.id": "2"})], "leakline.tensors.count": one,
        "leakline.type.app.Env.count": one, "http.server.active_requests": one, "leakline.secrets": one,
    })  # fmt: skip
    assert post(api, made).status_code == 200
    (row,) = rows_of(api, run_of(api)["id"])
    assert row["samples"] == dict.fromkeys(
        (
            "process.rss_bytes", "process.vms_bytes", "process.threads", "process.open_files", "cgroup.used_bytes",
            "system.total_bytes", "system.available_bytes", "cuda.1.reserved_bytes", "gpu.2.used_bytes",
            "tensors.count", "type.app.Env.count",
        ), 5,
    )  # fmt: skip


@pytest.mark.parametrize(("unit", "factor"), [("By", 1), ("MiBy", MIB), ("MBy", 10**6), ("", 1)])
def test_units_are_bytes(api: TestClient, unit: str, factor: int) -> None:
    assert post(api, memory([3], unit=unit, kind="sum")).status_code == 200
    assert run_of(api)["rss_bytes"] == 3 * factor


def test_metrics_that_tell_no_memory_are_answered_so(api: TestClient) -> None:
    made = request({"http.server.duration": [(0.0, 1.5, {})]})
    answer = api.post("/v1/metrics", content=json_format.MessageToJson(made), headers=JSON)
    assert "none of these metrics tells memory" in answer.json()["partialSuccess"]["errorMessage"]
    assert api.get("/api/v1/runs").json()["items"] == []
    # Values that are none are no points.
    nothing = memory([MIB])
    nothing.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].as_double = float(
        "nan"
    )
    assert post(api, nothing).status_code == 200
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
    assert post(api, made).status_code == 200
    run = run_of(api)
    assert (run["project"], run["name"], run["unit"]) == ("erl", "before", "episode")
    assert run["phases_seen"] == ["evaluate", "train"]
    deadline = time.monotonic() + 20
    while (verdict := api.get(f"/api/v1/runs/{run['id']}/verdict").json())["generations"] < 20:
        assert time.monotonic() < deadline
    assert SEVERITY.index(verdict["status"]) >= SEVERITY.index("suspected")
    assert verdict["growth_bytes_per_generation"]["estimate"] == pytest.approx(50 * MIB, rel=0.02)


def test_a_gauge_tells_the_generation_of_what_comes_with_it(api: TestClient) -> None:
    """As an SDK exports: every set of attributes that there ever was, with the time of the export."""
    evaluate, train = {"leakline.phase": "evaluate"}, {"leakline.phase": "train"}
    for g in range(3):
        at = 10.0 * g
        sizes: Points = [(at, (g + 1) * MIB, evaluate)]
        if g:
            # Set in the generation before, and not yet in this one.
            sizes.append((at, g * 10 * MIB, train))
        assert (
            post(
                api,
                request(
                    {"leakline.generation": [(at + 0.1, g, {})], "process.memory.usage": sizes}
                ),
            ).status_code
            == 200
        )
        sizes = [(at + 5, (g + 1) * MIB, evaluate), (at + 5, (g + 1) * 10 * MIB, train)]
        assert (
            post(
                api,
                request({"leakline.generation": [(at + 5, g, {})], "process.memory.usage": sizes}),
            ).status_code
            == 200
        )
    rows = rows_of(api, run_of(api)["id"])
    ends = {(row["generation"], row["phase"]): row["samples"]["process.rss_bytes"] for row in rows}
    assert ends == {
        **{(g, "evaluate"): (g + 1) * MIB for g in range(3)},
        **{(g, "train"): (g + 1) * 10 * MIB for g in range(3)},
    }  # fmt: skip
    assert len([row for row in rows if row["phase"] == "evaluate"]) == 3


def test_of_generations_as_attributes_the_newest_of_a_moment_counts(api: TestClient) -> None:
    for g in range(4):
        points: Points = [
            (10.0 * g, (i + 1) * MIB, {"leakline.generation": i}) for i in range(g + 1)
        ]
        assert post(api, request({"process.memory.usage": points})).status_code == 200
    rows = rows_of(api, run_of(api)["id"])
    assert [(row["generation"], row["samples"]["process.rss_bytes"]) for row in rows] == [
        (g, (g + 1) * MIB) for g in range(4)
    ]  # fmt: skip


def test_names_are_text(api: TestClient) -> None:
    who = {
        **WHO,
        "service.name": "<b>\x1b[2J\x00",
        "service.instance.id": "x" * 5_000,
        "deep": "\x00" * 9_000,
    }
    assert post(api, memory([1], who=who)).status_code == 200
    assert run_of(api)["project"] == "<b>[2J"


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '[{"resource": "\\ud800"}]', '[{"\\udfff": 1}]', '"x"']
)
def test_half_a_surrogate_is_no_failure_of_ours(text: str, api: TestClient) -> None:
    body = f'{{"resourceMetrics": {text}}}'.encode()
    refusal(api.post("/v1/metrics", content=body, headers=JSON), 400)


def test_every_status_of_the_route_is_described(api: TestClient) -> None:
    operation = api.get("/api/v1/openapi.json").json()["paths"]["/v1/metrics"]["post"]
    assert set(operation["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "404",
        "409",
        "413",
        "415",
        "422",
        "429",
        "501",
        "503",
    }
    assert set(operation["requestBody"]["content"]) == {*PROTOBUF.values(), *JSON.values()}


def test_a_wrong_method_is_answered_in_json(shared_api: TestClient) -> None:
    error = refusal(shared_api.get("/v1/metrics"), 405)
    assert error["code"] == "method_not_allowed"


def test_the_page_has_every_name_that_is_taken() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "otlp.md").read_text()
    table = page.partition("| OpenTelemetry | here |")[2]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    told = {name: here for names, here in rows for name in re.findall(r"`([a-z_.]+)`", names)}
    for (name, _, wanted), series in otlp.NAMES.items():
        assert name in told, name
        (names, here) = next(row for row in rows if f"`{name}`" in row[0] and wanted in row[0])
        assert series.replace(".0.", ".<i>.") in here, names
