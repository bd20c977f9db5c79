from __future__ import annotations

import json
from typing import Any

import pytest

from leakline.cli.asking import Asker


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


def test_what_the_fix_promised_is_told_promise_by_promise(leakline: Any, server: str) -> None:
    output = leakline("verdict", "app/leaking", "--server", server).output
    told = output[output.index("what the fix promised:") :].splitlines()
    assert told[1] == "   let them go (train, app.py:7)"
    assert told[2].startswith("      refuted: Memory grows by 20.00 MiB per generation")
    assert told[2].endswith("20 times the 1.00 MiB promised.")
    assert told[3] == "      not yet testable: train never ran: the claim was never tested."
    assert told[4] == "      held: 14 generations complete; 14 were promised."


def test_a_verdict_of_a_server_that_checks_no_promises_is_told(
    leakline: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Asker.get

    def older(self: Asker, path: str, query: Any = None) -> Any:
        return {k: v for k, v in ask(self, path, query).items() if k != "fixes"}

    monkeypatch.setattr(Asker, "get", older)
    said = leakline("verdict", "run1", "--server", server)
    assert said.status == 0
    assert "promised" not in said.output
