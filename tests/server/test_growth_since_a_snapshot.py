"""Growth on the page of a run, from a snapshot that the viewer names to the newest."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.web.growth_since import growth_since

GIB = 2**30


def row(label: str, size: float | None, **counts: int) -> dict[str, Any]:
    samples: dict[str, Any] = {} if size is None else {"process.rss_bytes": round(size * GIB)}
    samples |= {f"type.app.{name}.count": count for name, count in counts.items()}
    return {"label": label, "kind": "manual", "samples": samples}


# Report 004: the newest first.
ROWS = [
    row("generation 2: after evolve_population", 11.12, Env=2, Agent=17),
    row("Debug checkpoint 1", 8.52, Env=2, Agent=16),
    row("baseline", 4.23, Env=2, Agent=16),
]


def told(asked: str, ends: dict[int, float] | None = None) -> tuple[str, list[list[str]]]:
    section = growth_since(ROWS, ends or {}, "generation", {"since": asked, "process": "rank 0"})
    assert section is not None and section.ask is not None
    assert section.ask.kept == (("process", "rank 0"),)
    rows = section.table.rows if section.table is not None else ()
    return section.note, [[cell.text for cell in each.cells] for each in rows]


@pytest.mark.parametrize("found", [[], ROWS[:1], [row("a", None), row("b", 1.0)]])
def test_one_reading_of_memory_is_no_growth(found: list[dict[str, Any]]) -> None:
    assert growth_since(found, {}, "generation", {}) is None


@pytest.mark.parametrize("asked", ["Debug checkpoint 9", "7", "-1", "9" * 30, "²", "<b>"])
def test_what_nothing_is_called_is_said(asked: str) -> None:
    note, rows = told(asked, {3: 5.0 * GIB})
    assert note == f"No snapshot is called {asked}, and no generation has that number."
    assert rows == []


def test_without_a_choice_it_is_since_the_oldest_of_them() -> None:
    note, rows = told("")
    assert note.startswith("From baseline to generation 2: after evolve_population: ")
    assert note.endswith("+6.89 GiB (+162.9 %).")
    assert rows == [["app.Agent", "16", "17", "+1"], ["app.Env", "2", "2", "+0"]]


def test_it_is_since_the_snapshot_of_that_label() -> None:
    note, _ = told("Debug checkpoint 1")
    assert note.endswith("8.52 GiB to 11.12 GiB, +2.60 GiB (+30.5 %).")


def test_it_is_since_the_end_of_any_generation() -> None:
    note, rows = told("3", {3: 10.12 * GIB})
    assert note.startswith("From generation 3: end to ")
    assert note.endswith("+1.00 GiB (+9.9 %).")
    assert rows == []


def test_the_page_works_it_out_from_its_address(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 90)
    page = api.get("/runs/r1").text
    assert 'id="since"' in page
    newest = api.get("/api/v1/runs/r1/snapshots?limit=1").json()["items"][0]["label"]
    found = api.get("/runs/r1", params={"since": newest}).text
    assert f"From {newest} to {newest}: " in found
    assert "From generation 0: end to " in api.get("/runs/r1?since=0").text
    assert 'value="&lt;b&gt;"' in api.get("/runs/r1?since=%3Cb%3E").text
