"""What is exported as OTLP is stored once and whole, however it is cut into requests, on both databases."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from starlette.testclient import TestClient
from tests.server.otlp_requests import (
    MIB,
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

from leakline_server import otlp
from leakline_server.web.otlp_streams import FEW_POINTS, Stream, Streams


def test_what_is_sent_again_counts_once(api: TestClient) -> None:
    for _ in range(3):
        assert post(api, memory([MIB, 2 * MIB])).status_code == 200
    # An exporter that sends the rest of it and more.
    assert post(api, memory([2 * MIB, 3 * MIB], first=10.0)).status_code == 200
    run = run_of(api)
    assert [row["samples"]["process.rss_bytes"] for row in rows_of(api, run["id"])] == [
        MIB,
        2 * MIB,
        3 * MIB,
    ]
    (process,) = run["processes"]
    assert (process["taken"], process["stored"], process["lost"]) == (3, 3, {})


def test_a_server_that_was_started_again_goes_on_where_it_was(api: TestClient) -> None:
    post(api, memory([MIB]))
    api.app.state.otlp = Streams()  # type: ignore[attr-defined]
    assert post(api, memory([MIB, 2 * MIB])).status_code == 200
    assert [row["sequence"] for row in rows_of(api, run_of(api)["id"])] == [1, 2]


def test_two_servers_number_in_turns(api: TestClient) -> None:
    one, two = Streams(), Streams()
    for i in range(6):
        api.app.state.otlp = (one, two)[i % 2]  # type: ignore[attr-defined]
        assert post(api, memory([(i + 1) * MIB], first=10.0 * i)).status_code == 200
    rows = rows_of(api, run_of(api)["id"])
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["samples"]["process.rss_bytes"] for row in rows] == [
        (i + 1) * MIB for i in range(6)
    ]


def taken(answer: Any) -> ExportMetricsServiceResponse:
    assert answer.status_code == 200, answer.text
    return ExportMetricsServiceResponse.FromString(answer.content)


def columns(api: TestClient) -> list[dict[str, Any]]:
    return [row["samples"] for row in rows_of(api, run_of(api)["id"])]


RSS, VMS = "process.memory.usage", "process.memory.virtual"


@pytest.mark.parametrize("again", [False, True], ids=["same server", "started again"])
def test_a_collection_that_comes_in_two_requests_is_stored_whole(
    api: TestClient, again: bool
) -> None:
    for at in (0.0, 10.0):
        # The second part is of the same moment, or a little earlier.
        parts = (request({RSS: [(at, 5, {})]}), request({VMS: [(at - 0.1, 7, {})]}))
        for part in (*parts, *parts):
            assert taken(post(api, part)) == ExportMetricsServiceResponse()
            if again:
                api.app.state.otlp = Streams()  # type: ignore[attr-defined]
    assert columns(api) == [{"process.rss_bytes": 5}, {"process.vms_bytes": 7}] * 2


def test_the_end_of_a_phase_in_two_requests_counts_once(api: TestClient) -> None:
    for at in (0.0, 10.0, 20.0):
        for name, value in ((RSS, 5), (VMS, 7)):
            points: Points = [(at, value, {"leakline.phase": "train"})]
            assert taken(post(api, request({name: points}))) == ExportMetricsServiceResponse()
    assert columns(api) == [{"process.rss_bytes": 5}, {"process.vms_bytes": 7}]


def test_points_that_come_too_late_are_told(api: TestClient) -> None:
    post(api, memory([MIB], first=0.0))
    post(api, memory([MIB], first=20.0))
    # Those that are stored are repeated, and the one between them cannot be.
    told = taken(post(api, memory([MIB, 2 * MIB, MIB], first=0.0))).partial_success
    assert told.rejected_data_points == 1
    assert "older than what is stored" in told.error_message
    assert len(columns(api)) == 2


def test_what_keeps_a_run_from_being_joined_is_a_refusal(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = memory([2 * MIB], who={**WHO, "service.instance.id": "worker-8"})
    for name in ("PROCESSES", "ATTEMPTS"):
        with monkeypatch.context() as patched:
            patched.setattr(f"leakline_server.store.joining.MAX_RUN_{name}", 0)
            refusal(post(api, others), 409)
    assert taken(post(api, others)) == ExportMetricsServiceResponse()


def seconds_to_remember(count: int, apart_seconds: float) -> float:
    """CPU for so many snapshots, of phases of their own."""
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
    # Measured: 9 times; where each snapshot looked at all before it 64 times.
    assert many <= 24 * few


def test_what_is_long_gone_is_forgotten() -> None:
    stream = Stream()
    for i in range(10_000):
        stream.remember(i + 1, STARTED + i, i, None, {"process.rss_bytes": i})
    assert len(stream.points) <= FEW_POINTS


def test_a_resource_that_is_refused_keeps_no_other_out(api: TestClient) -> None:
    post(api, memory([MIB]))
    both = memory([2 * MIB], first=10.0, who={**WHO, "leakline.project": "another"})
    # Somebody has begun a run of that very id elsewhere.
    (told,) = otlp.read_request(both.SerializeToString(), otlp.PROTOBUF)
    assert (
        api.post(
            "/api/v1/runs", json={"id": told.header.id, "project": "erl", "name": "squats"}
        ).status_code
        == 201
    )
    both.MergeFrom(memory([3 * MIB], who={**WHO, "service.instance.id": "worker-8"}))
    api.app.state.otlp = Streams()  # type: ignore[attr-defined]
    assert refusal(post(api, both), 409)["code"] == "run_in_other_project"
    sizes = {run["name"]: run["rss_bytes"] for run in api.get("/api/v1/runs").json()["items"]}
    assert sizes == {"trainer worker-7": MIB, "trainer worker-8": 3 * MIB, "squats": None}


def test_the_same_instance_in_two_projects_is_two_runs(api: TestClient) -> None:
    for size, project in enumerate(("one", "two"), 1):
        made = memory([size * MIB], who={**WHO, "leakline.project": project})
        assert post(api, made).status_code == 200
    runs = api.get("/api/v1/runs").json()["items"]
    assert {run["project"]: run["rss_bytes"] for run in runs} == {"one": MIB, "two": 2 * MIB}
    assert len({run["id"] for run in runs}) == 2
