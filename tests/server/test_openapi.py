"""The description of the API is complete and correct, and needs no other host."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from leakline.analysis.comparison.comparison_results import Comparison
from leakline.analysis.results import PhaseAccounts, Verdict
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.errors import RequestRefused
from leakline_server.store.alerts import webhooks
from leakline_server.store.ingest.wire_types import Batch
from leakline_server.web import api_schemas
from leakline_server.web import webhook_api as webhooks_api
from leakline_server.web.ingest.api import PATH
from leakline_server.web.rules import api as rules_api
from leakline_server.web.runs import api as runs_api


@pytest.fixture(scope="module")
def api(shared_api: TestClient, make_run: Any) -> TestClient:
    for name in ("r1", "r2"):
        make_run(id=name).begin(shared_api, 60)
    engine = shared_api.app.state.services.engine  # type: ignore[attr-defined]
    shared_api.post("/api/v1/rules", json={"series": "gauge.queue", "above": 5})
    webhooks.make(engine, "chat", "http://127.0.0.1:9/", "standard", make_secret(), 0.0)
    return shared_api


@pytest.fixture(scope="module")
def spec(api: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/api/v1/openapi.json").json()
    return found


def test_no_page_of_the_api_loads_from_another_host(api: TestClient) -> None:
    assert api.get("/redoc").status_code == 404
    # This is our page; the page of the framework loads its code from another host.
    ours = api.get("/docs").text
    assert "swagger" not in ours and "Documentation" in ours


def test_every_route_of_the_api_is_described(spec: dict[str, Any], api: TestClient) -> None:
    routes = api.app.routes  # type: ignore[attr-defined]
    ours = {route.path for route in routes if route.path.startswith("/api/v1/")} - {
        "/api/v1/openapi.json"
    }
    assert len(ours) > 30
    assert ours <= set(spec["paths"])
    for path in ("/healthz", "/readyz", "/metrics", "/v1/metrics"):
        assert path in spec["paths"], path


def test_every_operation_describes_itself_its_security_and_its_errors(
    spec: dict[str, Any],
) -> None:
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            assert operation.get("summary"), (method, path)
            asks, responses = path not in ("/healthz", "/readyz"), operation["responses"]
            assert ("security" in operation) == ("401" in responses) == asks, (method, path)
            assert "404" in responses or "{run}" not in path, (method, path)


def test_every_reference_can_be_resolved(spec: dict[str, Any]) -> None:
    names = set(spec["components"]["schemas"])
    text = msgspec.json.encode(spec).decode()
    assert set(re.findall(r"#/components/schemas/([^\"]+)", text)) <= names
    assert "$defs" not in text


def test_the_ingest_entry_is_the_decoded_type(
    spec: dict[str, Any], api: TestClient, make_run: Any
) -> None:
    body = spec["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Batch"}
    described = spec["components"]["schemas"]["Batch"]
    assert set(described["properties"]) == {f.name for f in msgspec.structs.fields(Batch)}
    # The client sends only described fields, and all required ones.
    wire = make_run().wire(0, 3)
    assert set(wire) <= set(described["properties"])
    assert set(described["required"]) <= set(wire)
    for name in ("events", "large_objects", "census", "holders"):
        reference = described["properties"][name]["items"]["$ref"].rsplit("/")[-1]
        assert set(wire[name][0]) == set(spec["components"]["schemas"][reference]["properties"])


def test_the_ingest_entries_name_every_refusal(spec: dict[str, Any]) -> None:
    for path in (PATH, "/v1/metrics"):
        named = set(spec["paths"][path]["post"]["responses"]) - {"200"}
        assert named >= {str(kind.status) for kind in RequestRefused.__subclasses__()}, path
    assert "501" in spec["paths"]["/v1/metrics"]["post"]["responses"]


def test_no_operation_describes_the_errors_of_the_framework(spec: dict[str, Any]) -> None:
    assert not {"HTTPValidationError", "ValidationError"} & set(spec["components"]["schemas"])
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            needed = {"403", "503"} | ({"422"} if operation.get("parameters") else set())
            if "requestBody" in operation:
                needed |= {"400", "413", "415", "422", "429"}
            assert needed <= set(operation["responses"]), (method, path)
            for status, response in operation["responses"].items():
                kinds = {"application/json"} | ({"text/plain"} if status == "400" else set())
                assert status < "400" or set(response["content"]) == kinds, (method, path, status)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/runs", "GET, POST"),
        ("POST", "/api/v1/runs/r1", "DELETE, GET, PATCH"),
        ("GET", PATH.replace("{run}", "r1"), "POST"),
        ("PATCH", "/api/v1/rules/presets", "GET"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("GET", "/v1/metrics", "POST"),
    ],
)
def test_a_wrong_method_is_answered_with_the_allowed_ones(
    method: str, path: str, allowed: str, api: TestClient
) -> None:
    answer = api.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


MODELS: dict[str, Any] = {
    "runs": api_schemas.RunList, "runs/r1": api_schemas.Run, "projects": runs_api.Projects,
    "runs/r1/changes?from=0&to=2": api_schemas.Changes,
    "runs/r1/series?name=*": api_schemas.SeriesList, "series?run=r1&name=*": api_schemas.Overlay,
    "runs/r1/verdict": Verdict, "runs/r1/phases": PhaseAccounts, "runs/r1/types": api_schemas.Types,
    "runs/r1/containers": api_schemas.Containers, "runs/r1/events": api_schemas.Events,
    "runs/r1/census": api_schemas.Census,
    "runs/r1/large-objects": api_schemas.LargeObjects, "runs/r1/holders": api_schemas.Holders,
    "runs/r1/snapshots": api_schemas.Snapshots, "runs/r1/incidents": api_schemas.Incidents,
    "compare?before=r1&after=r2": Comparison, "rules": rules_api.Rules, "rules/presets": rules_api.Presets,
    "webhooks": webhooks_api.Webhooks, "webhooks/1": webhooks_api.Webhook,
    "webhooks/1/deliveries": webhooks_api.Deliveries,
}  # fmt: skip


@pytest.mark.parametrize("path", MODELS)
def test_a_response_matches_the_description(path: str, api: TestClient) -> None:
    answer = api.get(f"/api/v1/{path}")
    assert answer.status_code == 200
    model = TypeAdapter(MODELS[path])
    found = model.validate_json(answer.content)
    # Nothing else is returned: the model contains everything that was in the response.
    assert _keys(model.dump_python(found, mode="json")) == _keys(answer.json())


def _keys(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _keys(value) for key, value in thing.items()}
    return [_keys(item) for item in thing[:3]] if isinstance(thing, list) else None
