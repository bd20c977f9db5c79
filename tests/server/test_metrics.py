"""`/metrics`: bounded key figures of live runs, names that stay text, and documents that match what is exported."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from leakline_server.web import metrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "static" / "grafana-dashboard.json").read_text())
DOCUMENT = (ROOT / "docs" / "other-tools.md").read_text()
PAGE = DOCUMENT.partition("\n## Prometheus and Grafana\n")[2]
NAME = re.compile(r"\b(?:leakline|process)_[a-z_]+")
# Metrics of the analysis process, which starts with the first examination, and of the server process.
APART = ("leakline_analysis_", "process_")
# The package and a pytest fixture, which are not metrics.
NO_NUMBERS = {"leakline_server", "leakline_run"}


def exported(client: TestClient) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def of_run(client: TestClient, run: str) -> dict[str, float]:
    return {name: value for name, labels, value in exported(client) if labels.get("run") == run}


def verdict_of(client: TestClient, run: str, generations: int) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while True:
        found: dict[str, Any] = client.get(f"/api/v1/runs/{run}/verdict").json()
        if found["generations"] >= generations:
            return found
        assert time.monotonic() < deadline, found


@pytest.fixture(scope="module")
def leaking(shared_api: TestClient, make_run: Any) -> Any:
    """Return an examined run with a plan and a limit that leaks 64 MiB per generation."""
    run = make_run(leak_bytes=64 * 2**20, extra={"cgroup.limit_bytes": lambda sequence: LIMIT})
    shared_api.post("/api/v1/runs", json={**run.header, "total": 500})
    run.send(shared_api, 0, 90)
    verdict_of(shared_api, run.id, 30)
    return run


LIMIT = 4 * 2**30


def test_unknown_values_and_ended_runs_have_no_sample(api: TestClient) -> None:
    api.post("/api/v1/runs", json={"id": "empty", "project": "p", "name": "n"})
    found = of_run(api, "empty")
    unknown = {
        "rss_bytes", "peak_bytes", "growth_bytes_per_generation", "oom_generation", "oom_timestamp_seconds",
        "generations_planned",
    }  # fmt: skip
    assert not {f"leakline_run_{name}" for name in unknown} & set(found)
    assert found["leakline_run_severity"] == 0.0 and found["leakline_run_status"] == 1.0
    api.patch("/api/v1/runs/empty", json={"state": "finished"})
    assert of_run(api, "empty") == {}


@pytest.mark.parametrize(
    ("unit", "is_told"), [("minute", False), ("second", False), ("epoch", True)]
)
def test_only_counted_generations_are_exported(
    shared_api: TestClient, unit: str, is_told: bool
) -> None:
    shared_api.post("/api/v1/runs", json={"id": unit, "project": "p", "name": "n", "unit": unit})
    found = of_run(shared_api, unit)
    assert found["leakline_run_severity"] == 0.0
    assert ("leakline_run_generations" in found) is is_told


def test_a_leaking_run_exports_its_key_figures(shared_api: TestClient, leaking: Any) -> None:
    verdict = verdict_of(shared_api, leaking.id, 30)
    found = of_run(shared_api, leaking.id)
    assert found["leakline_run_rss_bytes"] == leaking.snapshot(89).samples["process.rss_bytes"]
    assert found["leakline_run_generations"] == verdict["generations"]
    growth = verdict["growth_bytes_per_generation"]
    for suffix, end in (("", "estimate"), ("_low", "low"), ("_high", "high")):
        assert found[f"leakline_run_growth_bytes_per_generation{suffix}"] == growth[end]
    assert growth["estimate"] == pytest.approx(64 * 2**20, rel=0.05)
    assert found["leakline_run_severity"] == 6.0 and verdict["status"] == "confirmed"
    assert found["leakline_run_oom_limit_bytes"] == LIMIT
    assert found["leakline_run_oom_risk"] == metrics.RISKS.index(verdict["oom"]["risk"])
    assert found["leakline_run_oom_generation"] == verdict["oom"]["generation"]["estimate"]
    (status,) = [
        labels for name, labels, _ in exported(shared_api)
        if name == "leakline_run_status" and labels["run"] == leaking.id
    ]  # fmt: skip
    assert (status["status"], status["unit"]) == ("confirmed", "generation")


def test_a_name_cannot_add_a_line(api: TestClient) -> None:
    name = 'a"} 1 \\ {run="fake'
    answer = api.post("/api/v1/runs", json={"id": "r", "project": name, "name": name})
    assert answer.status_code == 201
    of_status = [labels for metric, labels, _ in exported(api) if metric == "leakline_run_status"]
    assert {(labels["run"], labels["name"]) for labels in of_status} == {("r", name)}


def test_the_number_of_runs_is_bounded(api: TestClient, patch: Any) -> None:
    patch("web.metrics.MAX_RUNS", 3)
    for i in range(5):
        api.post("/api/v1/runs", json={"id": f"r{i}"})
    found = list(exported(api))
    assert {labels["run"] for _, labels, _ in found if "run" in labels} == {"r2", "r3", "r4"}
    counts = {name: value for name, _, value in found if name.startswith("leakline_live_runs")}
    assert counts == {"leakline_live_runs": 5.0, "leakline_live_runs_left_out": 2.0}


def test_values_of_a_newer_version_affect_only_their_own_metrics(
    api: TestClient, patch: Any
) -> None:
    patch("web.metrics.SEVERITY", ())
    patch("web.metrics.RISKS", ())
    api.post("/api/v1/runs", json={"id": "r"})
    found = {name for name, *_ in exported(api)}
    assert "leakline_run_last_seen_timestamp_seconds" in found
    assert not {"leakline_run_severity", "leakline_run_oom_risk"} & found


@pytest.fixture(scope="module")
def names(shared_api: TestClient, leaking: Any) -> dict[str, set[str]]:
    """Return the labels of every metric that a server with a leaking run exports."""
    shared_api.post("/api/v1/runs/nobody/batches", json={})
    shared_api.post("/api/v1/runs", json={"id": "planned", "total": 25})
    found: dict[str, set[str]] = {}
    for name, labels, _ in exported(shared_api):
        found.setdefault(name, set()).update(labels)
    return found


def queries() -> Sequence[str]:
    panels = [
        target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
    ]
    return [*panels, *(v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query")]


def test_the_dashboard_queries_only_exported_metrics(names: dict[str, set[str]]) -> None:
    asked = queries()
    assert len(asked) > 20
    for query in asked:
        used = NAME.findall(query)
        assert used, query
        assert set(used) <= set(names), query
        selectors = re.findall(r"((?:leakline|process)_[a-z_]+)\{([^}]*)\}", query)
        for name, selector in selectors:
            # Prometheus adds the label job.
            assert set(re.findall(r"(\w+)\s*=", selector)) <= names[name] | {"job"}, query
        for label in re.findall(r"by \((\w+)\)", query):
            assert label in names[used[0]], query
    for target in (target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())):
        (name, *_) = NAME.findall(target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= names[name]


def test_the_dashboard_is_complete_and_served(api: TestClient) -> None:
    assert api.get("/static/grafana-dashboard.json").json() == DASHBOARD
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24 and panel["title"]
        if panel["type"] != "row":
            assert panel["description"] and panel["datasource"]["uid"] == "${datasource}"


def test_the_document_lists_exactly_the_exported_metrics(names: dict[str, set[str]]) -> None:
    named = {name for name in NAME.findall(PAGE) if not name.startswith(APART)}
    ours = {name for name in names if name.startswith("leakline_") and not name.startswith(APART)}
    ours = {name for name in ours if not name.endswith("_created")}
    short = {f"leakline_run_growth_bytes_per_generation{end}" for end in ("_low", "_high")}
    assert named == ours - short


def test_other_documents_name_only_exported_metrics(names: dict[str, set[str]]) -> None:
    named = {
        (page.name, name)
        for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
        for name in re.findall(r"`(leakline_[a-z_]*[a-z])[`{]", page.read_text())
        if not name.startswith(APART)
    }
    known = names.keys() | NO_NUMBERS
    assert len(named) > 10
    assert {(page, name) for page, name in named if name not in known} == set()
