"""Facts of a verdict in the shapes of the API, that of an older server too."""

from __future__ import annotations

from typing import Any

import pytest

from leakline.report.facts import change_interval, forecast, graph_rates, with_graphs


def graphs_of(name: str, rate: float | None, status: str = "confirmed") -> dict[str, Any]:
    suspect = {"name": name, "role": "type", "count_per_generation": rate}
    return {"kind": "graph", "status": status, "suspects": [suspect]}


def test_graphs_of_one_type_in_several_findings_are_added_up() -> None:
    tensor = "torch.Tensor"
    findings = [
        graphs_of(tensor, 20.0), graphs_of(tensor, 16.0, "watch"), graphs_of(tensor, None),
        graphs_of(tensor, 9.0, "recovered"), graphs_of("torch.nn.Parameter", 2.0),
    ]  # fmt: skip
    rates = graph_rates({"findings": findings})
    assert rates == {tensor: 36.0, "torch.nn.Parameter": 2.0}
    assert with_graphs("+36", tensor, rates) == "+36, 36 with a graph"


@pytest.mark.parametrize(
    ("risk", "limit", "generation", "said"),
    [
        ("critical", 2**30, {"estimate": 1414.6, "low": 1400.0, "high": 1500.0}, "OOM near epoch 1,415, critical risk"),
        ("none", 2**30, None, "not in sight"),
        ("low", 2**30, None, "not known, low risk"),
        ("none", None, None, "not known"),
    ],
)  # fmt: skip
def test_a_forecast_of_an_older_server_has_its_known_end(
    risk: str, limit: int | None, generation: Any, said: str
) -> None:
    oom = {"risk": risk, "limit_bytes": limit, "generation": generation}
    assert forecast(oom, "epoch") == said


def test_a_difference_shows_its_interval_where_the_ends_differ() -> None:
    mib = 2**20
    wide = {"estimate": -20.0 * mib, "low": -24.0 * mib, "high": -16.0 * mib}
    said = "-20.00 MiB per generation (-24.00 MiB to -16.00 MiB)"
    assert change_interval(wide, " per generation") == said
    narrow = dict.fromkeys(("estimate", "low", "high"), -20.0 * mib)
    assert change_interval(narrow, " per generation") == "-20.00 MiB per generation"
    assert change_interval(None) == "not measured"
