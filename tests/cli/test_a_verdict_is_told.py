from __future__ import annotations

import json
from typing import Any


def test_a_run_without_a_leak_has_no_findings(leakline: Any, server: str) -> None:
    said = leakline("verdict", "app/fixed", "--server", server)
    assert said.status == 0
    assert said.output.startswith("ok: ")
    assert "1. " not in said.output


def test_where_what_how_much_and_when(leakline: Any, server: str) -> None:
    output = leakline("verdict", "app/leaking", "--server", server).output
    for words in (
        "where     evaluate",
        "app.Environment",
        "+20.00 MiB",
        "since generation",
        "/runs/run1",
    ):
        assert words in output


def test_the_json_is_the_servers(leakline: Any, server: str) -> None:
    verdict = json.loads(leakline("verdict", "run1", "--json", "--server", server).output)
    assert verdict["run"] == "run1"
    assert verdict["findings"][0]["phase"] == "evaluate"
