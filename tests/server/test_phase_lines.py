"""Lines of one phase or kind of a long run: exact, and the same before and after compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import LATER, engine_of, make_idle

from leakline_server.store.engine import Engine
from leakline_server.store.series import chart_points, compaction, sealing, summary_tree
from leakline_server.store.series.column_reader import Key

pytestmark = pytest.mark.long

COUNT = 6_000
SPIKE_AT = 3_000
EXTRA: dict[str, Callable[[int], Any]] = {
    "spike": lambda i: 10**12 if i == SPIKE_AT + 1 else 7,
    "float": lambda i: i / 8,
    "sparse": lambda i: i if i % 97 == 0 else None,
}
ASKED = "name=spike&name=float&name=sparse&phase=*&kind=phase_end&points=4"


@pytest.fixture
def api(api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Two phases and an end a generation, and one spike of a single snapshot, in the second phase."""
    monkeypatch.setattr(chart_points, "CHUNK_RATIO", 16)
    monkeypatch.setattr(summary_tree, "GROUP", 1_000)
    run = make_run(extra=EXTRA)
    run.create(api)
    run.send(api, 0, COUNT)
    return api


def series(api: TestClient, query: str = ASKED) -> list[dict[str, Any]]:
    answer = api.get(f"/api/v1/runs/r1/series?{query}")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def compact(engine: Engine) -> None:
    make_idle(engine)
    key = Key("r1", 1)
    while sealing.seal_one(engine, key, LATER).snapshots:
        continue
    while compaction.compact(engine, key, LATER):
        continue


@pytest.mark.parametrize("compacted", [False, True], ids=["as it came", "compacted"])
def test_a_line_of_a_phase_is_made_of_its_snapshots_alone(compacted: bool, api: TestClient) -> None:
    if compacted:
        compact(engine_of(api))
    items = series(api)
    assert [(item["name"], item["phase"]) for item in items] == [
        (name, phase) for phase in ("evaluate", "train") for name in ("spike", "float", "sparse")
    ]
    for item in items:
        assert {name: item[name] for name in ("x", "first", "last", "min", "max")} == under(
            item["name"], ("evaluate", "train").index(item["phase"])
        )


def under(name: str, place: int, width: int = 2_048) -> dict[str, list[float]]:
    """The points of a line, of the snapshots at this place of each generation."""
    found: dict[str, list[float]] = {"x": [], "first": [], "last": [], "min": [], "max": []}
    for low in range(0, COUNT, width):
        mine = [i for i in range(low, min(COUNT, low + width)) if i % 3 == place]
        values = [v for v in map(EXTRA[name], mine) if v is not None]
        numbers = (mine[0] // 3, values[0], values[-1], min(values), max(values))
        for column, number in zip(found.values(), numbers, strict=True):
            column.append(number)
    return found


@pytest.mark.parametrize(
    "asked",
    [f"{ASKED}&from=10&to={COUNT // 3 - 10}", "name=float&kind=phase_end&points=4"],
    ids=["a stretch", "several phases"],
)
def test_compaction_changes_no_line(asked: str, api: TestClient) -> None:
    before = series(api, asked)
    assert before
    compact(engine_of(api))
    assert series(api, asked) == before


@pytest.mark.parametrize("asked", ["phase=never", "kind=never", "phase=train&kind=never"])
def test_what_is_not_there_has_no_line(asked: str, api: TestClient) -> None:
    compact(engine_of(api))
    assert series(api, f"name=float&{asked}&points=4") == []
