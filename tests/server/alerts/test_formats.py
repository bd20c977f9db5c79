"""Messages say where, what, how much, since when, the forecast, the advice and the link, and names stay text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.browser.hostile_labels import LABELS
from tests.server.alerts.conftest import FINDING as LEAK
from tests.server.alerts.conftest import GIB
from tests.server.alerts.conftest import RUN as LEAKING_RUN
from tests.server.alerts.conftest import VERDICT as LEAKING

from leakline.analysis.results import (
    AssertionCheck,
    Finding,
    Interval,
    Moment,
    OomForecast,
    Suspect,
)
from leakline_server.alerts.alert_payload import ExaminedRun, incident_facts
from leakline_server.alerts.formats import FORMATS, MAX_BODY_BYTES, Message, escaped, read
from leakline_server.alerts.sending import apprise_sender

FINDING = replace(
    LEAK, suspects=(*LEAK.suspects, Suspect("erl_trainer.Trainer.kept[*]", "holder")),
    evidence=("16 more after each phase",), phase_path="evaluate_population/run_episode",
    advice=("let go of the environments at the end of evaluate_population",),
)  # fmt: skip
OOM = OomForecast(
    "critical", int(64 * GIB), "cgroup", Interval(9.2, 8, 11), Moment("2026-01-01T12:00:00Z", "…", "…"),
    sentence="OOM near generation 9 at this rate (8 to 11), about 2026-01-01 12:00 UTC",
)  # fmt: skip
VERDICT = replace(LEAKING, findings=(FINDING,), oom=OOM)
RUN = replace(LEAKING_RUN, verdict=VERDICT)


def standard(
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
    sent = standard(finding=finding, run=replace(RUN, project=nasty, name=nasty))
    assert sent["data"]["advice"]
    assert sent["data"]["what"]["suspects"]
    assert all(c.isprintable() for c in sent["data"]["run"]["name"])


def test_numbers_that_are_not_finite_become_null() -> None:
    growth = Interval(1.0, -math.inf, math.inf)
    sent = standard(finding=replace(FINDING, growth_bytes_per_generation=growth))
    assert sent["data"]["how_much"]["growth_bytes_per_generation"] == {
        "estimate": 1.0, "low": None, "high": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "gone", ["phase", "phase_path", "phase_share", "started_at_generation", "process"]
)
def test_unknown_values_are_null_and_the_sentence_stays_readable(gone: str) -> None:
    sent = standard(
        finding=replace(FINDING, **{gone: None}),
        run=replace(RUN, verdict=replace(VERDICT, oom=OomForecast())),
    )
    assert "None" not in json.dumps(sent)
    assert sent["data"]["forecast"]["text"] == "not known yet"


@pytest.mark.parametrize(("count", "text"), [(1.0, "1 more entry in"), (2.0, "2 more entries in")])
def test_a_container_grows_by_entries(count: float, text: str) -> None:
    suspect = Suspect("app.History.rows", "container", count, 1e6)
    sent = standard(finding=replace(FINDING, kind="container", suspects=(suspect,)))
    assert sent["data"]["what"]["text"] == f"{text} app.History.rows per generation"
    assert f"{text} app.History.rows per generation" in sent["data"]["summary"]


def test_the_sentence_fits_the_kind_of_the_finding_and_the_event() -> None:
    native = standard(finding=replace(FINDING, suspects=(), kind="native"))
    assert "native memory" in native["data"]["what"]["text"]
    assert standard("incident.recovered")["data"]["summary"].endswith("; the growth has stopped")
    assert standard("incident.resolved")["data"]["title"].startswith("Leak resolved")
    counted = replace(COUNT, evidence=("4 TradingEnvironment, 2 declared",))
    summary = standard("contract.violated", counted)["data"]["summary"]
    assert summary.startswith("4 TradingEnvironment, 2 declared")


def budget(scope: str, newest: float, phase: str | None = None) -> AssertionCheck:
    return AssertionCheck(
        "budget", phase or scope, f"{scope}.kept_bytes", phase, leak=5 * GIB, state="broken",
        measured=Interval(newest, newest, newest), sentence="kept more than it may",
    )  # fmt: skip


def accepted(name: str) -> AssertionCheck:
    return AssertionCheck(
        "accepted", name, f"type.{name}.count", low=2, high=2, state="broken", sentence="3 now"
    )


COUNT = replace(FINDING, kind="count_contract")
ORIGINS: list[tuple[Finding, tuple[AssertionCheck, ...], str | None]] = [
    (COUNT, (), "expect"),
    (COUNT, (accepted("other.Env"),), "expect"),
    (COUNT, (accepted(COUNT.suspects[0].name),), "accepted"),
    (FINDING, (), None),
    (FINDING, (budget("phase", 6 * GIB, "evaluate_population"),), "budget"),
    (FINDING, (budget("phase", 4 * GIB, "evaluate_population"),), None),
    (FINDING, (budget("phase", 6 * GIB, "evolve_population"),), None),
    (FINDING, (budget("run", 6 * GIB),), "budget"),
]


@pytest.mark.parametrize(("finding", "assertions", "origin"), ORIGINS)
def test_a_violated_bound_names_its_origin(
    finding: Finding, assertions: tuple[AssertionCheck, ...], origin: str | None
) -> None:
    run = replace(RUN, verdict=replace(VERDICT, assertions=assertions, findings=(finding,)))
    assert standard(finding=finding, run=run)["data"].get("origin") == origin


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("expect", "declared with run.expect"),
        ("accepted", "accepted by a person"),
        ("budget", "above its run.budget"),
        ("rule", "a rule of this server"),
    ],
)
def test_chat_messages_say_in_words_where_a_bound_comes_from(origin: str, words: str) -> None:
    facts = {"title": "t", "summary": "s", "what": {"text": "17 Agent"}, "origin": origin}
    message = Message("contract.violated", 1.0, facts, "https://leakline.example")
    assert f"17 Agent ({words})" in FORMATS["slack"](message).decode()
    assert f"What: 17 Agent ({words})" in apprise_sender.parts(message)["body"]


def test_a_message_has_everything_that_the_contract_requires() -> None:
    sent = standard()
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
        "id": "i1", "fingerprint": "f1", "status": "confirmed", "confidence": 0.99,
    }  # fmt: skip


DATA = Path(__file__).resolve().parents[2] / "data"
SAID = {
    "where": "evaluate_population/run_episode in rank 0",
    "what": "16 trading.TradingEnvironment per generation",
    "how_much": "7.10 GiB per generation (6.90 GiB to 7.30 GiB)",
    "when": "since generation 1",
    "forecast": "OOM near generation 9 at this rate (8 to 11), about 2026-01-01 12:00 UTC",
}
ADVICE = "let go of the environments at the end of evaluate_population"
LINK = "https://leakline.example/runs/r1"
# Text that would mention people, make links, change the formatting or call a function in some service.
HOSTILE = [
    "<!channel> wake up", "<!here|x>", "<@U012ABCDEF>", "<#C012AB3CD>", "@everyone", "@here", "<@&123456789012345678>",
    "<@123456789012345678>", "</leave:123456789012345678>", "<t:0:R>", "<https://evil.example|Open in Leakline>",
    "[Open in Leakline](https://evil.example)", "![i](https://evil.example/i.png)", "https://evil.example/login",
    "*bold* **bold** _slanted_ __under__ ~struck~ ~~struck~~ ||hidden||", "`code` ```block```", "> quoted",
    ">>> quoted",
    "# heading", "-# small", "- list", ":rotating_light:", "<at>Everyone</at>", "{{DATE(2026-01-01T00:00:00Z)}}",
    "{{{TIME(2026-01-01T00:00:00Z)}}}", "\\*still bold*", "\\", "&lt;!channel&gt;", "<script>alert(1)</script>",
    "a\r\n\r\n# b\u202ec\x1b[31m",
    *LABELS,
]  # fmt: skip


def facts(**more: Any) -> dict[str, Any]:
    said = {name: {"text": text} for name, text in SAID.items()}
    head = {"title": "Leak confirmed in erl-trading/before-fix", "summary": "it keeps 16 of them"}
    return {**head, **said, "advice": [ADVICE], "link": "/runs/r1", **more}


def hostile_facts(text: str) -> dict[str, Any]:
    said = {name: {"text": text} for name in SAID}
    return {"title": text, "summary": text, **said, "advice": [text] * 20, "link": "/runs/r1"}


def slack(
    told: Mapping[str, Any], event: str = "incident.confirmed",
    server_url: str = "https://leakline.example",
) -> dict[str, Any]:  # fmt: skip
    body = FORMATS["slack"](Message(event, 1_760_000_000.0, told, server_url))
    assert len(body) <= MAX_BODY_BYTES
    found = json.loads(body)
    published().validate(found)
    return dict(found)


@cache
def published() -> Draft202012Validator:
    schema = json.loads((DATA / "slack_message.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def texts(value: Any) -> Iterator[str]:
    """Yield every string that is shown."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts(entry)


def as_shown(body: Any) -> str:
    """Return the text that a person reads after Slack has unescaped it."""
    shown = "\n".join(texts(body))
    return shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_training_script_stays_text(text: str) -> None:
    body = slack(hostile_facts(text))
    marked = [t for t in objects(body) if t.get("type") == "mrkdwn"]
    labels = {"*Where*", "*What*", "*How much*", "*Since when*", "*Forecast*"}
    assert {t["text"] for t in marked} == labels | {f"<{LINK}|Open in Leakline>"}
    assert all(t["verbatim"] for t in marked)
    assert not any(t.get("emoji") for t in objects(body))
    assert re.findall(r"[<>]", "".join(texts(body))) == ["<", ">"]
    for link in re.findall(r"https?://[^\s\"\\|)>]+", json.dumps(body, ensure_ascii=False)):
        assert link.startswith(LINK), link


def objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for entry in value.values() if isinstance(value, dict) else value:
        if isinstance(entry, (dict, list)):
            yield from objects(entry)


@pytest.mark.parametrize(
    "text", ["<&>" * 4_000, "*" * 9_000, "\U0001f40d" * 9_000, "界" * 9_000, "{" * 9_000]
)
def test_long_and_wide_texts_are_cut_and_the_link_is_kept(text: str) -> None:
    body = slack(hostile_facts(text))
    assert LINK in json.dumps(body)


def test_entire_lines_are_dropped_from_the_end_and_no_escape_is_cut() -> None:
    long = {"what": {"text": "界" * 2_000}, "forecast": {"text": "&" * 2_000}}
    body = slack(facts(**long, advice=["*" * 9_000] * 3))
    assert SAID["where"] in as_shown(body)
    assert not re.search(r"&(?!amp;|lt;|gt;)", "".join(texts(body)))


@pytest.mark.parametrize("missing", ["title", "summary", "where", "advice", "link", None])
def test_a_message_has_all_known_facts_and_no_empty_lines(
    missing: str | None,
) -> None:
    known = facts()
    known.pop(missing or "", None)
    shown = as_shown(slack(known))
    assert "None" not in shown
    texts_of = {**SAID, "advice": ADVICE, "title": "Leak confirmed in erl-trading/before-fix"}
    for name, text in texts_of.items():
        assert (text in shown) == (name != missing)
    assert "incident.confirmed" in shown and ("/runs/r1" in shown) == (missing != "link")


@pytest.mark.parametrize("wrong", [None, 7, [], {}, {"text": None}, [["x"]], True])
def test_facts_of_the_wrong_type_are_left_out(wrong: object) -> None:
    slack(dict.fromkeys(facts(), wrong))


def test_a_message_without_facts_is_the_sentence_of_a_test() -> None:
    told = {"title": "Leakline test message", "summary": "Alerts arrive here.", "link": "/"}
    shown = as_shown(slack(told, "webhook.test", "http://127.0.0.1:8765/"))
    assert "Alerts arrive here." in shown
    assert "http://127.0.0.1:8765/" in shown


def test_special_characters_do_not_end_a_link() -> None:
    body = slack(facts(link="/runs/a)b>c|d e\u00fc%20"))
    assert "/runs/a%29b%3Ec%7Cd%20e%C3%BC%20" in "".join(texts(body))


def test_an_unusable_link_becomes_the_front_page() -> None:
    told = facts(link="/runs/" + "a" * 5_000)
    assert read(Message("oom.risk", 0.0, told, "https://leakline.example")).link == (
        "https://leakline.example/"
    )


def test_the_tone_follows_the_event_and_its_state() -> None:
    def tone(event: str, **more: Any) -> str:
        return read(Message(event, 0.0, facts(**more), "https://leakline.example")).tone

    assert tone("incident.confirmed") == "alarm"
    assert tone("incident.resolved") == "good"
    assert tone("rule.fired", rule={"status": "firing"}) == "warning"
    assert tone("rule.fired", rule={"status": "resolved"}) == "good"
    assert tone("run.finished", run={"state": "finished"}) == "neutral"
    assert tone("run.finished", run={"state": "failed"}) == "warning"


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a&b", 7, "a&amp;b"), ("a&b", 6, "a…"), ("", 3, ""),
     ("\U0001f40d" * 2, 4, "\U0001f40d" * 2), ("\U0001f40d" * 2, 3, "\U0001f40d…")],
)  # fmt: skip
def test_long_text_is_cut_before_an_escape_that_does_not_fit(
    text: str, limit: int, expected: str
) -> None:
    assert escaped(text, limit, {"&": "&amp;"}) == expected
