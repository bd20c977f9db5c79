"""Events, censuses, large objects and holders come back as they were sent."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def api(shared_api: TestClient, make_run: Any) -> TestClient:
    """Details at the snapshots 2, 32, 62 and 92, which are the generations 0, 10, 20 and 30."""
    run = make_run()
    run.create(shared_api)
    run.send(shared_api, 0, 100, size=25)
    return shared_api


def get(api: TestClient, path: str) -> Any:
    answer = api.get(f"/api/v1/runs/r1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_events_come_in_order_of_time_with_their_data(api: TestClient) -> None:
    events = get(api, "events")["items"]
    assert [e["sequence"] for e in events] == [2, 2, 32, 32, 62, 62, 92, 92]
    assert events[1] | {"time": 0} == {
        "process": "p1", "sequence": 2, "time": 0, "kind": "expect", "name": "app.Env", "generation": 0,
        "phase": None, "data": {"low": 2, "high": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "generation"),
    [
        ("", 30),
        ("?generation=30", 30),
        ("?generation=29", 20),
        ("?generation=0", 0),
        ("?generation=999", 30),
    ],
)
def test_a_census_is_the_newest_at_or_before_a_generation(
    query: str, generation: int, api: TestClient
) -> None:
    census = get(api, f"census{query}")
    assert census["generation"] == generation
    assert census["types"] == [["dict", 900, 64_000], ["app.Env", 18 + generation, None]]
    assert (census["mode"], census["coverage"], census["objects"]) == ("full", 1.0, 1000)


def test_before_the_first_census_there_is_none(api: TestClient) -> None:
    answer = api.get("/api/v1/runs/r1/census?generation=-1")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "no_census"


def test_large_objects_are_those_of_the_newest_look_largest_first(api: TestClient) -> None:
    found = get(api, "large-objects")["items"]
    assert [(o["sequence"], o["type"], o["bytes"]) for o in found] == [
        (92, "torch.Tensor", 2**25 + 92),
        (92, "numpy.ndarray", 2**24),
    ]
    assert found[1]["detail"] == "(2048, 1024) float64"


def test_a_holder_is_told_once_with_its_newest_count(api: TestClient) -> None:
    (holder,) = get(api, "holders")["items"]
    assert holder == {
        "process": "p1", "sequence": 92, "type": "app.Env", "path": "app.Trainer.history[*]", "count": 482,
        "bytes_each": 4096,
    }  # fmt: skip
