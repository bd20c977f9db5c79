"""A message says where, what, how much, since when, the forecast, the advice and the link, within 20 KB."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from leakline.analysis.results import (
    Finding,
    Interval,
    Moment,
    OomForecast,
    Suspect,
    Verdict,
)
from leakline_server.alerts.formats import FORMATS
from leakline_server.alerts.formats.message import Message
from leakline_server.alerts.payload import ExaminedRun, incident_facts

GIB = 2.0**30
FINDING = Finding(
    fingerprint="3f2a", status="confirmed", kind="objects", phase="evaluate_population", phase_share=0.97,
    suspects=(
        Suspect("trading.TradingEnvironment", "type", 16.0, 7.1 * GIB),
        Suspect("erl_trainer.Trainer.kept[*]", "holder"),
    ),
    growth_bytes_per_generation=Interval(7.1 * GIB, 6.9 * GIB, 7.3 * GIB),
    started_at_generation=Interval(1, 1, 2), confidence=0.99, evidence=("16 more after each phase",),
    advice=("let go of the environments at the end of evaluate_population",),
    phase_path="evaluate_population/run_episode",
)  # fmt: skip
OOM = OomForecast(
    "critical", int(64 * GIB), "cgroup", Interval(9.2, 8, 11), Moment("2026-01-01T12:00:00Z", "…", "…"),
    sentence="OOM near generation 9 at this rate (8 to 11), about 2026-01-01 12:00 UTC",
)  # fmt: skip
VERDICT = Verdict("r1", "generation", 5, "confirmed", "…", None, 0.93, (FINDING,), oom=OOM)
RUN = ExaminedRun("r1", "erl-trading", "before-fix", VERDICT, 1_760_000_000.0)


def message(
    event: str = "incident.confirmed", finding: Finding = FINDING, run: ExaminedRun = RUN
) -> Any:
    facts = json.loads(json.dumps(incident_facts(event, "i1", finding, run), allow_nan=False))
    body = FORMATS["standard"](Message(event, run.at, facts, "https://leakline.example"))
    assert len(body) <= 20_000
    return json.loads(body)


def test_long_and_hostile_names_are_cut_and_the_message_stays_within_20_kb() -> None:
    nasty = "\U0001f40d" * 5_000 + "\x00\x1b[31m\n\u202e\ud800" * 200
    finding = replace(
        FINDING, fingerprint=nasty, phase=nasty, phase_path=nasty, process=nasty,
        suspects=tuple(Suspect(nasty, "type", 1.0, 1.0) for _ in range(500)),
        evidence=(nasty,) * 500, advice=(nasty,) * 500,
    )  # fmt: skip
    sent = message(finding=finding, run=replace(RUN, project=nasty, name=nasty))
    assert sent["data"]["advice"]
    assert sent["data"]["what"]["suspects"]


def test_no_control_character_of_a_name_reaches_a_message() -> None:
    sent = message(run=replace(RUN, name="a\r\nb\x1b[2J\u202ec"))
    assert all(c.isprintable() for c in sent["data"]["run"]["name"])


def test_what_is_not_finite_is_null() -> None:
    growth = Interval(1.0, -math.inf, math.inf)
    sent = message(finding=replace(FINDING, growth_bytes_per_generation=growth))
    assert sent["data"]["how_much"]["growth_bytes_per_generation"] == {
        "estimate": 1.0, "low": None, "high": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "gone", ["phase", "phase_path", "phase_share", "started_at_generation", "process"]
)
def test_what_is_unknown_is_null_and_the_sentence_is_still_one(gone: str) -> None:
    sent = message(
        finding=replace(FINDING, **{gone: None}),
        run=replace(RUN, verdict=replace(VERDICT, oom=OomForecast())),
    )
    assert "None" not in json.dumps(sent)
    assert sent["data"]["forecast"]["text"] == "not known yet"


def test_the_forecast_of_a_message_is_the_sentence_of_the_analysis() -> None:
    oom = OomForecast("none", 64 * 2**30, "cgroup", sentence="not before the planned end")
    sent = message(run=replace(RUN, verdict=replace(VERDICT, oom=oom)))
    assert sent["data"]["forecast"]["text"] == "not before the planned end"


@pytest.mark.parametrize(("count", "text"), [(1.0, "1 more entry in"), (2.0, "2 more entries in")])
def test_a_container_grows_by_entries(count: float, text: str) -> None:
    suspect = Suspect("app.History.rows", "container", count, 1e6)
    sent = message(finding=replace(FINDING, kind="container", suspects=(suspect,)))
    assert sent["data"]["what"]["text"] == f"{text} app.History.rows per generation"
    assert f"{text} app.History.rows per generation" in sent["data"]["summary"]


def test_a_finding_without_a_suspect_is_named_by_its_kind() -> None:
    sent = message(finding=replace(FINDING, suspects=(), kind="native"))
    assert "native memory" in sent["data"]["what"]["text"]


def test_an_end_is_told_as_one() -> None:
    assert message("incident.recovered")["data"]["summary"].endswith("; the growth has stopped")
    assert message("incident.resolved")["data"]["title"].startswith("Leak resolved")


def test_a_violated_count_speaks_with_its_own_evidence() -> None:
    finding = replace(
        FINDING, kind="count_contract", evidence=("4 TradingEnvironment, 2 declared",)
    )
    summary = message("contract.violated", finding)["data"]["summary"]
    assert summary.startswith("4 TradingEnvironment, 2 declared")


def test_everything_the_contract_asks_for_is_there() -> None:
    sent = message()
    data = sent["data"]
    assert (sent["type"], sent["timestamp"]) == ("incident.confirmed", "2025-10-09T08:53:20Z")
    assert data["title"] == "Leak confirmed in erl-trading/before-fix"
    assert data["summary"] == (
        "evaluate_population keeps 16 TradingEnvironment per generation: "
        "7.10 GiB per generation since generation 1"
    )
    assert data["where"]["phase"] == "evaluate_population"
    assert data["what"]["suspects"][0]["name"] == "trading.TradingEnvironment"
    assert data["what"]["suspects"][1]["role"] == "holder"
    assert data["how_much"]["growth_bytes_per_generation"]["estimate"] == 7.1 * GIB
    assert data["when"]["started_at_generation"] == {"estimate": 1, "low": 1, "high": 2}
    assert data["forecast"]["generation"]["estimate"] == 9.2
    assert data["forecast"]["text"] == (
        "OOM near generation 9 at this rate (8 to 11), about 2026-01-01 12:00 UTC"
    )
    assert data["advice"] == ["let go of the environments at the end of evaluate_population"]
    assert data["link"] == "https://leakline.example/runs/r1"
    assert data["incident"] == {
        "id": "i1", "fingerprint": "3f2a", "status": "confirmed", "confidence": 0.99,
    }  # fmt: skip
