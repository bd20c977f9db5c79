"""What is told of a run besides its leaks, how often, and until when it is of use."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from leakline.analysis.results import Interval, Moment, OomForecast, Verdict
from leakline.transport.oom_inference import UNWATCHED
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.run_alerts import (
    DAY_SECONDS,
    OomTold,
    end_alert,
    oom_alert,
    oom_told,
    silent_alert,
    vanished_alert,
)
from leakline_server.store.alerts.alert_rows import Alert, Telling, Told
from leaks import FINDING, GIB, RUN, VERDICT

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


def told(risk: str, ago: float = 60.0, attempt: int = 1) -> OomTold:
    return OomTold(risk, attempt, NOW - ago, 1)


@pytest.mark.parametrize(
    ("before", "risk", "is_told"),
    [
        (None, "low", False),
        (None, "high", True),
        (None, "critical", True),
        (told("high"), "high", False),
        (told("high"), "critical", True),
        (told("critical"), "critical", False),
        # It swings between the two: the worse was told.
        (told("critical"), "high", False),
        (told("high", DAY_SECONDS - 1), "high", False),
        (told("high", DAY_SECONDS), "high", True),
        (told("critical", DAY_SECONDS), "critical", True),
        # What was told of an attempt before says nothing of this one.
        (told("critical", attempt=0), "high", True),
    ],
)
def test_a_risk_is_told_when_it_rises_and_once_a_day(
    before: OomTold | None, risk: str, is_told: bool
) -> None:
    assert (oom_alert(at_risk(risk), before) is not None) == is_told


@pytest.mark.parametrize("state", ["finished", "failed", "killed", "silent"])
def test_the_forecast_of_a_run_that_does_not_go_on_is_not_told(state: str) -> None:
    assert oom_alert(at_risk("critical", state=state), None) is None


def test_a_forecast_says_what_brings_it_about_and_expires_when_its_time_has_come() -> None:
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
def test_a_forecast_lives_long_enough_to_arrive_and_one_without_a_time_does_not_expire(
    at: str | None, expires: float | None
) -> None:
    alert = oom_alert(at_risk("critical", at), None)
    assert alert is not None and alert.expires_at == expires


def test_what_was_told_last_is_read_from_its_facts() -> None:
    alert = oom_alert(at_risk("high", attempt=2), None)
    assert alert is not None
    assert oom_told(alert.payload, NOW, 3) == OomTold("high", 2, NOW, 3)


def ended(state: str, **more: Any) -> ExaminedRun:
    return replace(RUN, state=state, ended_at=NOW - 1, **more)


def test_a_run_that_has_not_ended_or_ended_long_ago_is_not_told() -> None:
    for state in ("running", "silent"):
        assert end_alert(replace(RUN, state=state)) is None
    assert end_alert(replace(RUN, state="finished", ended_at=NOW - DAY_SECONDS - 1)) is None


@pytest.mark.parametrize(
    ("state", "event", "urgent"),
    [("killed", "run.killed", True), ("finished", "run.finished", False), ("failed", "run.finished", False)],
)  # fmt: skip
def test_an_end_is_told_with_its_reason(state: str, event: str, urgent: bool) -> None:
    alert = end_alert(ended(state, reason="SIGTERM\n<b>"))
    assert alert is not None
    assert (alert.event, alert.subject, alert.urgent) == (event, "run", urgent)
    assert alert.expires_at is None
    assert set(alert.payload) >= KEYS
    assert alert.payload["title"] == f"Run {state}: erl-trading/before-fix"
    said = f"{state.capitalize()} (SIGTERM <b>) after 25 generations."
    assert alert.payload["summary"].startswith(said)


@pytest.mark.parametrize(
    ("state", "event"), [("interrupted", "run.finished"), ("killed", "run.killed")]
)
def test_ctrl_c_is_told_as_such_and_without_advice(state: str, event: str) -> None:
    alert = end_alert(ended(state, reason="KeyboardInterrupt"))
    assert alert is not None
    assert alert.event == event
    assert alert.payload["title"] == "Run interrupted: erl-trading/before-fix"
    assert alert.payload["summary"].startswith("Interrupted by Ctrl-C after 25 generations. ")
    assert "last checkpoint" not in str(alert.payload)
    failed = end_alert(ended("failed", reason="ValueError"))
    assert failed is not None and "last checkpoint" in str(failed.payload)


def test_a_program_that_is_watched_no_longer_is_not_told_as_finished_nor_as_killed() -> None:
    alert = end_alert(ended("finished", reason=UNWATCHED))
    assert alert is not None
    assert (alert.event, alert.urgent) == ("run.finished", False)
    assert alert.payload["title"] == "Run watched no longer: erl-trading/before-fix"
    assert alert.payload["summary"].startswith(
        "After 25 generations watched no longer; the program was still running. "
    )


def test_a_killed_rank_and_a_silence_are_told_once_whatever_their_attempt_is_called() -> None:
    moved = replace(RUN, attempt=2)
    assert vanished_alert(RUN, 1, "memory").id == vanished_alert(moved, 1, "memory").id
    assert vanished_alert(RUN, 1, "memory").id != vanished_alert(RUN, 2, "memory").id
    assert silent(QUIET).id == silent(replace(QUIET, attempt=2)).id


def silent(run: ExaminedRun, *silences: float, end: float | None = None) -> Alert:
    """What is told after these silences and an end were, each so many seconds ago."""
    alert = silent_alert(run, told_silences(*silences, end=end))
    assert alert is not None
    return alert


def told_silences(*ago: float, end: float | None = None, quiet_for: float | None = None) -> Told:
    """The last of them a digest that stands for so many seconds from NOW."""
    past = [Telling("run.silent", NOW - seconds) for seconds in ago]
    if quiet_for is not None:
        past[-1] = replace(past[-1], quiet_until=NOW + quiet_for)
    if end is not None:
        past.append(Telling("run.finished", NOW - end))
    past.sort(key=lambda telling: telling.at)
    return Told(past[-1].event if past else None, len(past), tuple(past))


@pytest.mark.parametrize(
    ("silences", "end", "is_digest"),
    [
        ((), None, False),
        ((600, 300), None, False),
        ((900, 600, 300), None, True),
        ((3_600, 600, 300), None, False),
        ((3_599, 600, 300), None, True),
        # Of the attempt before.
        ((900, 600, 300), 200, False),
        ((900, 600, 300), 1_000, True),
    ],
)
def test_a_fourth_silence_within_an_hour_is_told_as_a_digest(
    silences: tuple[float, ...], end: float | None, is_digest: bool
) -> None:
    alert = silent(QUIET, *silences, end=end)
    assert alert.quiet_until == (NOW + 3_600 if is_digest else None)
    assert alert.payload["summary"].startswith("Fell silent 4 times in ") == is_digest
    assert alert.subject == "run"


@pytest.mark.parametrize(("quiet_for", "is_told"), [(1.0, False), (0.0, True), (-60.0, True)])
def test_a_digest_of_silences_stands_until_it_is_over(quiet_for: float, is_told: bool) -> None:
    before = told_silences(9_000, 8_700, 8_400, 8_000, quiet_for=quiet_for)
    alert = silent_alert(QUIET, before)
    assert (alert is not None) == is_told
    assert alert is None or alert.quiet_until is None


def test_silence_is_told_again_after_the_run_has_spoken() -> None:
    first, again = silent(QUIET), silent(replace(QUIET, at=NOW + 60))
    later = silent(replace(QUIET, last_seen_at=NOW - 60))
    assert first.id == again.id != later.id
    assert (first.event, first.urgent) == ("run.silent", True)
    said = "Nothing heard for 61 seconds, after 25 generations."
    assert first.payload["summary"].startswith(said)
    assert first.payload["advice"]


@pytest.mark.parametrize(
    ("growth", "ends"), [(None, "generations."), (2.0 * 2**20, "+2.00 MiB per generation.")]
)
def test_silence_before_a_verdict_says_how_memory_changed(growth: float | None, ends: str) -> None:
    rate = None if growth is None else Interval(growth, growth, growth)
    said = "3 generations seen, too few to judge"
    early = Verdict("r1", "generation", 3, "learning", said, rate, None)
    summary = silent(replace(RUN, verdict=early, state="silent")).payload["summary"]
    assert summary.endswith(ends) and "too few" not in summary


def test_silence_before_memory_would_run_out_says_so() -> None:
    near = at_risk("critical", state="silent", last_seen_at=NOW - 600)
    said = "10 minutes, after 25 generations. Its memory was about to run out."
    assert said in silent(near).payload["summary"]


def test_a_run_of_which_nothing_is_known_has_all_facts_with_empty_texts() -> None:
    nothing = Verdict("r1", "generation", 0, "learning", "nothing to say yet", None, None)
    facts = silent(replace(RUN, verdict=nothing, state="silent")).payload
    assert set(facts) >= KEYS
    assert [facts[key]["text"] for key in ("where", "what", "how_much", "when")] == [""] * 4


def test_a_run_with_two_leaks_is_told_with_the_worst() -> None:
    suspected = replace(FINDING, status="suspected", phase="train")
    verdict = replace(VERDICT, findings=(suspected, FINDING))
    facts = silent(replace(RUN, verdict=verdict, state="silent")).payload
    assert facts["where"]["phase"] == "evaluate_population"
