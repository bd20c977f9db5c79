"""Requests as an OpenTelemetry SDK exports them, and their results."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from starlette.testclient import TestClient

PROTOBUF: Final = {"content-type": "application/x-protobuf"}
JSON: Final = {"content-type": "application/json"}
STARTED: Final = 1_760_000_000
MIB: Final = 2**20
Attributes = dict[str, Any]
Points = list[tuple[float, float, Attributes]]
WHO: Final[Attributes] = {
    "service.name": "trainer", "service.instance.id": "worker-7", "host.name": "node", "process.pid": 4711,
}  # fmt: skip


def _attributes(pairs: Any, given: Attributes) -> None:
    for key, value in given.items():
        pair = pairs.add(key=key)
        kind = "int_value" if isinstance(value, int) else "string_value"
        setattr(pair.value, kind, value)


def request(
    metrics: dict[str, Points], who: Attributes = WHO, unit: str = "By", kind: str = "gauge"
) -> ExportMetricsServiceRequest:
    made = ExportMetricsServiceRequest()
    resource = made.resource_metrics.add()
    _attributes(resource.resource.attributes, who)
    scope = resource.scope_metrics.add()
    for name, points in metrics.items():
        metric = scope.metrics.add(name=name, unit=unit)
        for seconds, value, attributes in points:
            point = getattr(metric, kind).data_points.add(
                time_unix_nano=int((STARTED + seconds) * 10**9)
            )
            if isinstance(value, int):
                point.as_int = value
            else:
                point.as_double = value
            _attributes(point.attributes, attributes)
    return made


def memory(values: list[int], first: float = 0.0, **more: Any) -> ExportMetricsServiceRequest:
    points: Points = [(first + 10.0 * i, value, {}) for i, value in enumerate(values)]
    return request({"process.memory.usage": points}, **more)


def post(api: TestClient, made: ExportMetricsServiceRequest, **headers: str) -> Any:
    return api.post(
        "/v1/metrics", content=made.SerializeToString(), headers={**PROTOBUF, **headers}
    )


def run_of(api: TestClient) -> dict[str, Any]:
    (item,) = api.get("/api/v1/runs").json()["items"]
    found: dict[str, Any] = api.get(f"/api/v1/runs/{item['id']}").json()
    return found


def rows_of(api: TestClient, run: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.get(f"/api/v1/runs/{run}/snapshots?name=*&limit=200").json()[
        "items"
    ]
    return items[::-1]


def refusal(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert "\n" not in error["message"]
    return error
