"""Where a series begins is found without reading what follows."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of, seal

from leakline_server.store import columns, starts
from leakline_server.store.starts import first_generations


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many snapshots were read, each time."""
    counts: list[int] = []
    plain = columns.read

    def counted(*arguments: Any) -> Any:
        block = plain(*arguments)
        counts.append(len(block))
        return block

    monkeypatch.setattr(starts, "read", counted)
    return counts


@pytest.mark.parametrize("sealed", [False, True], ids=["as it came", "sealed"])
def test_the_first_snapshots_tell(
    sealed: bool, api: TestClient, make_run: Any, read: list[int]
) -> None:
    """Three snapshots a generation, the third of which is its end."""
    run = make_run(
        extra={"late": lambda i: i if i > 700 else None, "other": lambda i: 1 if i % 3 else None}
    )
    run.create(api)
    run.send(api, 0, 1_500, size=50)
    engine = engine_of(api)
    if sealed:
        seal(engine)
    assert first_generations(engine, "r1", ("process.rss_bytes",), "generation_end") == {"p1": 0}
    assert sum(read) <= (1_500 if sealed else 50)
    assert first_generations(engine, "r1", ("late",), "generation_end") == {"p1": 233}
    assert first_generations(engine, "r1", ("late", "other"), "generation_end") == {"p1": 0}
    assert first_generations(engine, "r1", ("la*",), "generation_end") == {"p1": 233}


def test_what_is_not_there_begins_nowhere(api: TestClient, make_run: Any) -> None:
    run = make_run(extra={"never": lambda i: i if i % 3 == 0 else None})
    run.create(api)
    run.send(api, 0, 30)
    engine = engine_of(api)
    for names, kind in (
        (("never",), "generation_end"),
        (("none",), "generation_end"),
        (("never",), "other"),
    ):
        assert first_generations(engine, "r1", names, kind) == {}
    assert first_generations(engine, "nobody", ("never",), "generation_end") == {}


def test_what_came_late_may_be_the_first(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 300, 300)
    seal(engine_of(api))
    run.send(api, 90, 60)
    found = first_generations(engine_of(api), "r1", ("process.rss_bytes",), "generation_end")
    assert found == {"p1": 30}
