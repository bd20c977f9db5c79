from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import GENERATIONS, MIB, STARTED, made_snapshots, wait_for_verdict

from leakline.cli.asking import Asker
from leakline.delivery import request_json
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, batch_to_wire, header_to_wire


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
        later = (
            "fixes", "checklist", "bands", "budgets", "settled_at_generation", "forecast_score", "processes",
            "duration",
        )  # fmt: skip
        return {k: v for k, v in ask(self, path, query).items() if k not in later}

    monkeypatch.setattr(Asker, "get", older)
    said = leakline("verdict", "run1", "--server", server)
    assert said.status == 0
    assert "promised" not in said.output
    assert "planned" not in said.output


def test_the_checklist_is_told_with_a_mark_for_each_question(leakline: Any, server: str) -> None:
    output = leakline("verdict", "app/leaking", "--server", server).output
    told = output[output.index("checklist:") :].splitlines()
    assert told[1] == "   [-] GPU memory stays within its pattern: not measured"
    assert told[3] == "   [!] Memory does not keep growing: failed"
    assert "Environment" in told[4]
    assert told[5] == "   [x] The run passes the point where it died before: done"
    assert told[6].strip() == "14 generations complete, held against the 14 that the fix promised."


def test_what_was_planned_is_told_band_by_band_and_budget_by_budget(
    leakline: Any, server: str
) -> None:
    output = leakline("verdict", "app/leaking", "--server", server).output
    told = output[output.index("what was planned:") :].splitlines()
    assert told[1] == "   process.rss_bytes, generations 0 to 4: up to 460.00 MiB"
    assert told[2] == (
        "      not as planned: Above in generations 3 to 4 by up to 40.00 MiB (generation 4); 3 of 5 within."
    )
    assert told[3] == "   budget of the whole run"
    assert told[4].startswith("      more than normal: Memory has grown by 260.00 MiB since")


def test_since_when_memory_is_flat_and_how_right_forecasts_were(leakline: Any, server: str) -> None:
    fixed = leakline("verdict", "app/fixed", "--server", server).output
    assert "Memory is flat from generation 0 on." in fixed
    assert "orecast" not in fixed
    leaking = leakline("verdict", "app/leaking", "--server", server).output
    assert "flat" not in leaking
    assert "2 forecasts could be checked" in leaking


def test_the_rank_that_leaks_is_named_in_every_form(leakline: Any, server: str) -> None:
    header = RunHeader("two-ranks", "ranks", "two", "generation", GENERATIONS, STARTED)
    request_json(server, "POST", "/runs", header_to_wire(header))
    for rank, leak in enumerate((0, 20 * MIB)):
        batch = Batch(ProcessIdentity(f"rank {rank}", rank=rank), tuple(made_snapshots(leak)))
        request_json(server, "POST", "/runs/two-ranks/batches", batch_to_wire(batch))
    request_json(server, "PATCH", "/runs/two-ranks", {"state": "finished"})
    asked = ("verdict", "ranks/two", "--server", server)
    wait_for_verdict(server, "two-ranks", lambda found: bool(found["findings"]))
    lines = leakline(*asked).output.splitlines()
    assert lines[0].endswith("(rank 1 main)")
    assert "   where     evaluate, rank 1 main" in lines
    markdown = leakline(*asked, "--markdown").output
    assert "| where | `evaluate`, 100 % of the growth, `rank 1 main` |" in markdown
    assert "- where: `evaluate`, `rank 1 main`" in markdown


def test_it_says_of_which_run_it_is_and_how_that_ended(leakline: Any, server: str) -> None:
    assert (
        f"\napp/leaking, finished\n{server}/runs/run1\n"
        in leakline("verdict", "run1", "--server", server).output
    )
    header = RunHeader("died", "short", "died", "minute", None, STARTED)
    request_json(server, "POST", "/runs", header_to_wire(header))
    request_json(server, "PATCH", "/runs/died", {"state": "failed", "reason": "ValueError"})
    output = leakline("verdict", "short/died", "--server", server).output
    assert output.startswith("learning: Failed (ValueError) before the first minute ended\n")
    assert "\nshort/died, failed: ValueError\n" in output
