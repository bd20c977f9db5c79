"""Alerts of a run that are not about its leaks: how often they are sent, and when they expire."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.server.alerts.conftest import FINDING, GIB, RUN, VERDICT

from leakline.analysis.results import Interval, Moment, OomForecast, Verdict
from leakline.transport.oom_inference import UNWATCHED
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.run_alerts import (
    DAY_SECONDS,
    LastOomAlert,
    end_alert,
    last_oom_alert,
    oom_alert,
    silent_alert,
    vanished_alert,
)
from leakline_server.store.alerts.alert_rows import Alert, AlertHistory, SentAlert

NOW = RUN.at
# NOW is 2025-10-09T08:53:20Z.
IN_TEN_MINUTES = "2025-10-09T09:03:20Z"
KEYS = {
    "title",
    "summary",
    "run",
    "where",
    "what",
    "how_much",
    "when",
    "forecast",
    "advice",
    "link",
}
QUIET = replace(RUN, state="silent", last_seen_at=NOW - 61)


def at_risk(risk: Any, at: str | None = IN_TEN_MINUTES, **more: Any) -> ExaminedRun:
    moment = None if at is None else Moment(at, at, at)
    said = "OOM near generation 31 of 40 at this rate (30 to 33)"
    oom = OomForecast(risk, int(64 * GIB), "cgroup", Interval(31, 30, 33), moment, 40, said)
    return replace(RUN, verdict=replace(VERDICT, findings=(FINDING,), oom=oom), **more)


def sent(risk: str, ago: float = 60.0, attempt: int = 1) -> LastOomAlert:
    return LastOomAlert(risk, attempt, NOW - ago, 1)


@pytest.mark.parametrize(
    ("before", "risk", "is_sent"),
    [
        (None, "low", False),
        (None, "high", True),
        (None, "critical", True),
        (sent("high"), "high", False),
        (sent("high"), "critical", True),
        (sent("critical"), "critical", False),
        # The risk alternates between the two, and the higher one was sent.
        (sent("critical"), "high", False),
        (sent("high", DAY_SECONDS - 1), "high", False),
        (sent("high", DAY_SECONDS), "high", True),
        (sent("critical", DAY_SECONDS), "critical", True),
        # Alerts of an earlier attempt do not count.
        (sent("critical", attempt=0), "high", True),
    ],
)
def test_a_risk_is_sent_when_it_rises_and_once_a_day(
    before: LastOomAlert | None, risk: str, is_sent: bool
) -> None:
    assert (oom_alert(at_risk(risk), before) is not None) == is_sent


@pytest.mark.parametrize("state", ["finished", "failed", "killed", "silent"])
def test_the_forecast_of_a_run_that_has_stopped_is_not_sent(state: str) -> None:
    assert oom_alert(at_risk("critical", state=state), None) is None


def test_a_forecast_names_its_cause_and_expires_at_the_predicted_time() -> None:
    alert = oom_alert(at_risk("high"), None)
    assert alert is not None
    assert (alert.event, alert.subject, alert.urgent) == ("oom.risk", "oom", True)
    assert alert.incident_id is None
    assert alert.expires_at == NOW + 600
    facts = json.loads(json.dumps(alert.payload, allow_nan=False))
    assert set(facts) >= KEYS
    said = "Risk high: OOM near generation 31 of 40 at this rate (30 to 33)"
    assert facts["summary"].startswith(said)
    assert facts["where"]["phase"] == "evaluate_population"
    assert facts["what"]["suspects"][0]["name"] == "trading.TradingEnvironment"
    assert facts["forecast"]["risk"] == "high"
    assert facts["advice"]


@pytest.mark.parametrize(("at", "expires"), [("2025-10-09T08:53:21Z", NOW + 60), (None, None)])
def test_a_forecast_expires_late_enough_to_arrive_or_never(
    at: str | None, expires: float | None
) -> None:
    alert = oom_alert(at_risk("critical", at), None)
    assert alert is not None and alert.expires_at == expires


def test_the_last_alert_is_read_from_its_facts() -> None:
    alert = oom_alert(at_risk("high", attempt=2), None)
    assert alert is not None
    assert last_oom_alert(alert.payload, NOW, 3) == LastOomAlert("high", 2, NOW, 3)


def test_no_end_is_sent_for_a_live_run_or_one_that_ended_long_ago() -> None:
    for state in ("running", "silent"):
        assert end_alert(replace(RUN, state=state)) is None
    assert end_alert(replace(RUN, state="finished", ended_at=NOW - DAY_SECONDS - 1)) is None


WATCHED = "After 25 generations watched no longer; the program was still running. "


@pytest.mark.parametrize(
    ("state", "reason", "event", "title", "begins"),
    [
        ("killed", "SIGTERM\n<b>", "run.killed", "killed", "Killed (SIGTERM <b>) after 25 generations."),
        ("finished", "x", "run.finished", "finished", "Finished (x) after 25 generations."),
        ("failed", "ValueError", "run.finished", "failed", "Failed (ValueError) after 25 generations."),
        ("killed", "KeyboardInterrupt", "run.killed", "interrupted", "Interrupted by Ctrl-C after 25 generations. "),
        ("interrupted", "KeyboardInterrupt", "run.finished", "interrupted", "Interrupted by Ctrl-C after 25 "),
        ("finished", UNWATCHED, "run.finished", "no longer watched", WATCHED),
    ],
)  # fmt: skip
def test_an_end_is_sent_with_its_reason(
    state: str, reason: str, event: str, title: str, begins: str
) -> None:
    alert = end_alert(replace(RUN, state=state, ended_at=NOW - 1, reason=reason))
    assert alert is not None
    assert (alert.event, alert.subject) == (event, "run")
    assert alert.urgent == (event == "run.killed")
    assert alert.expires_at is None
    assert set(alert.payload) >= KEYS
    assert alert.payload["title"] == f"Run {title}: erl-trading/before-fix"
    assert alert.payload["summary"].startswith(begins)
    # There is no advice after Ctrl-C.
    assert title != "interrupted" or "last checkpoint" not in str(alert.payload)
    assert state != "failed" or "last checkpoint" in str(alert.payload)


def test_a_killed_rank_and_a_silence_are_sent_once_across_attempts() -> None:
    moved = replace(RUN, attempt=2)
    assert vanished_alert(RUN, 1, "memory").id == vanished_alert(moved, 1, "memory").id
    assert vanished_alert(RUN, 1, "memory").id != vanished_alert(RUN, 2, "memory").id
    assert silent(QUIET).id == silent(replace(QUIET, attempt=2)).id


def silent(run: ExaminedRun, *silences: float, end: float | None = None) -> Alert:
    """Return the alert that follows these silences and an end, each given in seconds ago."""
    alert = silent_alert(run, sent_silences(*silences, end=end))
    assert alert is not None
    return alert


def sent_silences(
    *ago: float, end: float | None = None, quiet_for: float | None = None
) -> AlertHistory:
    """Return a history of silences; with ``quiet_for``, the last is a digest that mutes for so many seconds."""
    past = [SentAlert("run.silent", NOW - seconds) for seconds in ago]
    if quiet_for is not None:
        past[-1] = replace(past[-1], quiet_until=NOW + quiet_for)
    if end is not None:
        past.append(SentAlert("run.finished", NOW - end))
    past.sort(key=lambda telling: telling.at)
    return AlertHistory(past[-1].event if past else None, len(past), tuple(past))


@pytest.mark.parametrize(
    ("silences", "end", "is_digest"),
    [
        ((), None, False),
        ((600, 300), None, False),
        ((900, 600, 300), None, True),
        ((3_600, 600, 300), None, False),
        ((3_599, 600, 300), None, True),
        # The end belongs to the previous attempt.
        ((900, 600, 300), 200, False),
        ((900, 600, 300), 1_000, True),
    ],
)
def test_a_fourth_silence_within_an_hour_is_sent_as_a_digest(
    silences: tuple[float, ...], end: float | None, is_digest: bool
) -> None:
    alert = silent(QUIET, *silences, end=end)
    assert alert.quiet_until == (NOW + 3_600 if is_digest else None)
    assert alert.payload["summary"].startswith("The run fell silent 4 times in ") == is_digest
    assert alert.subject == "run"


@pytest.mark.parametrize(("quiet_for", "is_sent"), [(1.0, False), (0.0, True), (-60.0, True)])
def test_a_digest_of_silences_mutes_until_it_expires(quiet_for: float, is_sent: bool) -> None:
    before = sent_silences(9_000, 8_700, 8_400, 8_000, quiet_for=quiet_for)
    alert = silent_alert(QUIET, before)
    assert (alert is not None) == is_sent
    assert alert is None or alert.quiet_until is None


def test_silence_is_sent_again_after_the_run_has_reported() -> None:
    first, again = silent(QUIET), silent(replace(QUIET, at=NOW + 60))
    later = silent(replace(QUIET, last_seen_at=NOW - 60))
    assert first.id == again.id != later.id
    assert (first.event, first.urgent) == ("run.silent", True)
    said = "No data for 61 seconds, after 25 generations."
    assert first.payload["summary"].startswith(said)
    assert first.payload["advice"]


def test_the_silence_message_says_what_is_known() -> None:
    def summary(**of_run: Any) -> str:
        return str(silent(replace(RUN, state="silent", **of_run)).payload["summary"])

    # Before there is a verdict, the message says how memory changed.
    for growth, ends in ((None, "generations."), (2.0 * 2**20, "+2.00 MiB per generation.")):
        rate = None if growth is None else Interval(growth, growth, growth)
        said = "3 generations seen, too few to judge"
        early = summary(verdict=Verdict("r1", "generation", 3, "learning", said, rate, None))
        assert early.endswith(ends) and "too few" not in early
    near = at_risk("critical", state="silent", last_seen_at=NOW - 600)
    said = "10 minutes, after 25 generations. The run was about to run out of memory."
    assert said in silent(near).payload["summary"]
    # Nothing is known.
    nothing = Verdict("r1", "generation", 0, "learning", "nothing to say yet", None, None)
    facts = silent(replace(RUN, verdict=nothing, state="silent")).payload
    assert set(facts) >= KEYS
    assert [facts[key]["text"] for key in ("where", "what", "how_much", "when")] == [""] * 4
    # The worse of two leaks is named.
    suspected = replace(FINDING, status="suspected", phase="train")
    verdict = replace(VERDICT, findings=(suspected, FINDING))
    facts = silent(replace(RUN, verdict=verdict, state="silent")).payload
    assert facts["where"]["phase"] == "evaluate_population"
