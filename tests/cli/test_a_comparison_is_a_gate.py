from __future__ import annotations

import json
from typing import Any

GATE = "--fail-on=leaking,worse"


def test_a_leak_after_closes_the_gate(leakline: Any, server: str) -> None:
    said = leakline("compare", "app/fixed", "app/leaking", "--server", server, GATE)
    assert said.status == 3
    assert "failed on: leaking" in said.output


def test_a_leak_that_stays_closes_the_gate(leakline: Any, server: str) -> None:
    assert leakline("compare", "run1", "run1", "--server", server, GATE).status == 3


def test_without_a_condition_the_gate_is_open(leakline: Any, server: str) -> None:
    assert leakline("compare", "app/fixed", "app/leaking", "--server", server).status == 0


def test_a_fix_passes_and_is_told_in_percent(leakline: Any, server: str) -> None:
    said = leakline("compare", "app/leaking", "app/fixed", "--server", server, GATE)
    assert said.status == 0
    assert said.output.startswith("fixed: ")
    assert "-100.0 %" in said.output


def test_the_json_alone_is_printed(leakline: Any, server: str) -> None:
    said = leakline("compare", "run2", "run1", "--json", "--server", server, GATE)
    assert json.loads(said.output)["after"] == "run1"
    assert said.status == 3
