"""Snapshots go in and one signed message per change comes out, through a real server that is killed meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import Engine, select
from standardwebhooks import Webhook as Verifier
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, ProcessIdentity, Snapshot
from leakline_server.alerts.rules.rule_fields import RuleChanges
from leakline_server.alerts.rules.rule_presets import PRESETS, SETS
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.store.engine import writing
from leakline_server.store.schema import deliveries

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "alerts.md"
RULES_SECTION = DOCUMENT.read_text().split("\n## Rules\n")[1].split("\n## ")[0]
MIB = 2**20
RULES = "/api/v1/rules"
SUSPECTED, CONFIRMED = "incident.suspected", "incident.confirmed"


class Messages:
    """The messages that the receiver got, in order, each verified."""

    def __init__(self, receiver: Any, secret: str) -> None:
        self.receiver, self._verifier = receiver, Verifier(secret)

    def wait_for(self, count: int, seconds: float = 10) -> list[dict[str, Any]]:
        received = self.receiver.wait_for(count, seconds)
        return [self._verifier.verify(each.body, each.headers) for each in received]

    def of(self, run: str) -> list[dict[str, Any]]:
        return [message for message in self.wait_for(0) if message["data"]["run"]["id"] == run]

    def leaks(self, run: str) -> list[dict[str, Any]]:
        """Return the messages about a leak; the first one may say suspected or confirmed."""
        return [
            message["data"] for message in self.of(run) if message["type"] in (SUSPECTED, CONFIRMED)
        ]

    def rules(self, run: str) -> list[dict[str, Any]]:
        return [
            message["data"]["rule"] for message in self.of(run) if message["type"] == "rule.fired"
        ]


@pytest.fixture
def messages(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> Messages:
    """Make the servers of this test send signed messages to the receiver."""
    secret = make_secret()
    monkeypatch.setenv("LEAKLINE_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("LEAKLINE_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("LEAKLINE_WEBHOOK_SECRET", secret)
    return Messages(receiver, secret)


# A snapshot: the phase if it is the end of one, and the measured values.
End = tuple[str | None, Mapping[str, float]]


class Training:
    """Sends generations and waits until the server has examined them."""

    def __init__(self, server: Any, eventually: Any, run: str = "r1", **more: Any) -> None:
        self.server, self._eventually, self._run = server, eventually, run
        self.generations, self._began = 0, time.time() - 600
        wanted = {"id": run, "project": "erl-trading", "name": "before-fix", **more}
        assert self.ask("POST", "/runs", wanted)[0] in (200, 201)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return self.server.request(method, f"/api/v1{path}", body)

    @property
    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/runs/{self._run}/verdict")[1]
        return found

    def batch(self, generation: int, *ends: End) -> dict[str, Any]:
        first = generation * len(ends)
        process = ProcessIdentity(f"p-{self._run}", pid=1, host="h")
        snapshots = tuple(
            Snapshot(
                at, self._began + at, float(at), generation, phase, f"generation {generation}",
                "phase_end" if phase else "generation_end", dict(samples),
            )
            for at, (phase, samples) in enumerate(ends, first)
        )  # fmt: skip
        wire: dict[str, Any] = batch_to_wire(Batch(process, snapshots))
        return wire

    def send(self, *ends: End) -> None:
        sent = self.batch(self.generations, *ends)
        assert self.ask("POST", f"/runs/{self._run}/batches", sent)[0] == 200
        self.generations += 1

    def look(self) -> str:
        """Return the status once the server has examined all generations."""
        self._eventually(lambda: self.verdict["generations"] == self.generations, 90)
        return str(self.verdict["status"])

    def finish(self) -> None:
        assert self.ask("PATCH", f"/runs/{self._run}", {"state": "finished"})[0] == 200


def keeping(generation: int) -> list[End]:
    """Return the ends of two phases and of the generation; the first phase keeps 100 MiB."""
    growth_bytes = 100 * MIB
    anon_bytes = 150 * MIB + (generation + 1) * growth_bytes
    alive = (generation + 1) * 16
    samples = {
        "process.rss_bytes": anon_bytes + 50 * MIB,
        "process.anon_bytes": anon_bytes,
        "type.trading.TradingEnvironment.count": alive,
        "type.trading.TradingEnvironment.bytes": alive * 6 * MIB,
    }
    sums = {
        "phase.evaluate_population.bytes": growth_bytes, "phase.train_population.bytes": 0,
        "phase.evaluate_population.executions": 1, "phase.train_population.executions": 1,
        "phase.between.bytes": 0, "phase.leakline.bytes": 0, "generation.seconds": 3.0,
    }  # fmt: skip
    return [
        ("evaluate_population", samples),
        ("train_population", samples),
        (None, {**samples, **sums}),
    ]


def leak(training: Training, generations: int) -> str:
    """Send generations up to this total and return the status after them."""
    while training.generations < generations:
        training.send(*keeping(training.generations))
    return training.look()


@pytest.fixture
def on_database(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Make the servers of this test use this database."""
    url = engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("LEAKLINE_DATABASE_URL", url)
    return engine


def states(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(deliveries.c.state)))


@pytest.mark.long
@pytest.mark.flow
def test_a_leak_becomes_a_signed_message_within_five_seconds_once_per_change(
    serve: Any, messages: Messages, on_database: Engine, eventually: Any
) -> None:
    server = serve()
    training = Training(server, eventually)
    assert leak(training, 10) == "suspected"
    known_at = time.time()
    (suspected,) = messages.wait_for(1)
    assert messages.receiver.received[0].at - known_at < 5
    data = suspected["data"]
    assert suspected["type"] == SUSPECTED
    assert data["where"]["phase"] == "evaluate_population"
    assert data["what"]["suspects"][0]["name"] == "trading.TradingEnvironment"
    growth = data["how_much"]["growth_bytes_per_generation"]["estimate"]
    assert growth == pytest.approx(100 * MIB, rel=0.1)
    assert data["when"]["started_at_generation"]["estimate"] <= 1
    assert data["advice"]
    assert data["forecast"]["risk"] == "none"
    assert data["link"] == f"{server.url}/runs/r1"

    # A server killed before it records a delivery would send the message again, under the same id.
    eventually(lambda: states(on_database) == ["delivered"])
    server.kill()
    training.server = serve(server.port)
    assert leak(training, 24) == "confirmed"
    assert [each["type"] for each in messages.wait_for(2)] == [SUSPECTED, CONFIRMED]


@pytest.mark.long
@pytest.mark.flow
def test_snapshots_and_messages_from_before_a_kill_are_handled_after_it(
    serve: Any, messages: Messages, on_database: Engine, eventually: Any
) -> None:
    messages.receiver.answers = [500, 204]
    server = serve()
    training = Training(server, eventually)
    for generation in range(12):
        # All but the first arrive before the run may be examined again.
        training.send(*keeping(generation))
    server.kill()
    server = serve(server.port)
    messages.wait_for(1, seconds=60)
    eventually(lambda: states(on_database) == ["pending"])
    server.kill()
    with writing(on_database) as connection:
        # End the wait before the second attempt.
        connection.execute(deliveries.update().values(due_at=0.0))
    serve(server.port)
    refused, taken = messages.receiver.wait_for(2, seconds=40)
    assert refused.headers["webhook-id"] == taken.headers["webhook-id"]


# From this generation on, the inner lists are measured too; they explain slightly more of the growth.
INNER_FROM = 8


def keeping_lists(generation: int) -> list[End]:
    """Return the ends of a phase that appends a list of five objects to a list, and of the generation."""
    kept = (generation + 1) * MIB
    anon_bytes = 150 * MIB + kept
    samples = {
        "process.rss_bytes": anon_bytes + 50 * MIB,
        "process.anon_bytes": anon_bytes,
        "container.app.history.length": generation + 1,
        "container.app.history.bytes": kept,
    }
    if generation >= INNER_FROM:
        samples |= {
            "container.app.history[*].length": 5 * (generation + 1),
            "container.app.history[*].bytes": kept + kept // 1000,
        }
    sums = {
        "phase.fit.bytes": MIB, "phase.fit.executions": 1, "phase.between.bytes": 0, "phase.leakline.bytes": 0,
        "generation.seconds": 3.0,
    }  # fmt: skip
    return [("fit", samples), (None, {**samples, **sums})]


@pytest.mark.long
@pytest.mark.flow
def test_a_leak_that_goes_on_under_another_name_is_not_reported_as_resolved(
    serve: Any, messages: Messages, eventually: Any
) -> None:
    training = Training(serve(), eventually)

    def leak_at(generations: int) -> str:
        while training.generations < generations:
            training.send(*keeping_lists(training.generations))
        training.look()
        (found,) = training.verdict["findings"]
        return str(found["suspects"][0]["name"])

    assert leak_at(INNER_FROM) == "app.history"
    (suspected,) = messages.wait_for(1)
    assert leak_at(30) == "app.history[*]"
    training.finish()
    eventually(lambda: "run.finished" in [each["type"] for each in messages.wait_for(0)], 60)
    found = messages.wait_for(0)
    assert [each["type"] for each in found] == [SUSPECTED, CONFIRMED, "run.finished"]
    assert found[1]["data"]["incident"]["id"] == suspected["data"]["incident"]["id"]


# A leak of TensorFlow.js from report 003: 87 tensors of 12.4 MB without the leak; each other one has 38,700 bytes.
PROJECT = "tfjs"
NORMAL, BASE_BYTES, EACH_BYTES = 87, 12_400_000, 38_700
KEPT = 158
# After this many generations the leak holds more than 500 tensors, and there is a verdict.
GENERATIONS = 14


def train_page(training: Training, keeps: int) -> str:
    """Send what a page in a browser reports of its training; return the status after it."""

    def holding(many: int) -> Mapping[str, float]:
        count = NORMAL + many
        size = BASE_BYTES + many * EACH_BYTES
        return {"tfjs.tensors": count, "tfjs.buffers": count, "tfjs.bytes": size}

    for generation in range(GENERATIONS):
        before, after = (holding(keeps * n) for n in (generation, generation + 1))
        training.send(("rollout", before), ("train", after), (None, after))
    return training.look()


@pytest.mark.long
@pytest.mark.flow
def test_a_leak_that_returns_after_its_fix_is_reported_again_without_setup(
    serve: Any, messages: Messages, eventually: Any
) -> None:
    server = serve()
    assert server.request("POST", RULES, {"preset": "tfjs", "project": PROJECT})[0] == 201

    def page(run: str) -> Training:
        return Training(server, eventually, run, project=PROJECT, name=run, unit="episode")

    def leak() -> dict[str, Any]:
        (found,) = server.request("GET", f"/api/v1/incidents?project={PROJECT}")[1]["items"]
        return dict(found)

    def is_silent(run: str) -> bool:
        return bool(messages.leaks(run)) and 500 in [each["above"] for each in messages.rules(run)]

    before = page("before")
    assert train_page(before, KEPT) in ("suspected", "confirmed")
    eventually(lambda: is_silent("before"))
    before.finish()
    assert leak()["state"] == "open"
    closing = {"project": PROJECT, "reason": "tf.tidy around the step"}
    path = f"/api/v1/incidents/{leak()['fingerprint']}/close"
    assert server.request("POST", path, closing)[1]["state"] == "closed"

    fixed = page("fixed")
    assert train_page(fixed, 0) == "ok"
    fixed.finish()
    eventually(lambda: messages.of("fixed"))
    assert [each["type"] for each in messages.of("fixed")] == ["run.finished"]
    assert leak()["state"] == "closed"
    assert [seen["name"] for seen in leak()["runs"]] == ["before"]

    assert train_page(page("again"), KEPT) in ("suspected", "confirmed")
    eventually(lambda: is_silent("again"))
    assert leak()["state"] == "open"
    assert leak()["sentence"] == (
        "Seen in before, closed by note “tf.tidy around the step”, back in again"
    )
    newest = messages.leaks("again")[-1]
    assert newest["incident"]["closed_before"] == "tf.tidy around the step"
    assert newest["summary"].startswith(
        "The leak is back in again after it was closed with the note: tf.tidy"
    )
    for run in ("before", "again"):
        # Its rules were set once, before the first run; an earlier examination may have reported a milder band.
        assert {each["status"] for each in messages.rules(run)} == {"firing"}


def steady(**samples: float) -> End:
    """Return the end of a generation of a training with constant memory."""
    named = {name.replace("__", "."): value for name, value in samples.items()}
    return None, {"process.rss_bytes": 200 * MIB, "process.anon_bytes": 150 * MIB, **named}


def code(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", RULES_SECTION, re.S)
    return str(found)


def page_example(page: str) -> dict[str, str]:
    """Return the table of the document as the form sends it: labels become fields, words become choices."""
    section = RULES_SECTION.split("**On the page**")[1].split("**With the API**")[0]
    rows = dict(re.findall(r"^\| (\w[^|]*?) \| `?([^|`]*?)`? \|$", section, re.M))
    rows.pop("field")
    form = re.search(r'<form method="post" action="/alerts/rules" class="fields".*?</form>', page, re.S)  # fmt: skip
    assert form is not None
    field = r'<label[^>]*>([^<]+)<(?:input|select)[^>]*?name="(\w+)"(.*?)</label>'
    labels = {label.strip(): (name, rest) for label, name, rest in re.findall(field, form[0], re.S)}
    sent = {}
    for label, value in rows.items():
        name, rest = labels[label]
        choices = re.findall(r'<option value="(\w+)"[^>]*>([^<]+)<', rest)
        words = {unescape(word): choice for choice, word in choices}
        sent[name] = words.get(value, value)
    return sent


@pytest.mark.long
@pytest.mark.flow
def test_the_three_examples_of_the_document_work(
    serve: Any, messages: Messages, eventually: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.toml").write_text(code("toml"))
    monkeypatch.setenv("LEAKLINE_RULES", "rules.toml")
    server = serve()

    form = page_example(server.request("GET", "/alerts")[1])
    assert len(form) == 5
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": server.url}
    body = urlencode(form).encode()
    assert server.request("POST", "/alerts/rules", body, headers)[0] == 303

    (command,) = re.findall(r"```sh\n(curl.*?)```", RULES_SECTION, re.S)
    ran = subprocess.run(
        ["bash", "-c", command.replace("http://127.0.0.1:8765", server.url)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert json.loads(ran.stdout)["project"] == "erl-trading"

    rules = {rule["name"]: rule for rule in server.request("GET", RULES)[1]["items"]}
    assert set(rules) == {
        "GPU of the small machine", "Ten generations left", "Tensors elevated", "Tensors high",
        "Tensors critical", "Host memory", "Upload queue",
    }  # fmt: skip
    assert (rules["Host memory"]["above"], rules["Host memory"]["hold"]) == (50e9, 2)
    assert rules["Ten generations left"]["measure"] == "forecast"

    training = Training(server, eventually)
    for uploads, tensors in ((50, 99), (51, 612)):
        training.send(steady(gauge__pending_uploads=uploads, tensors__count=tensors))
        training.look()
    fired = {"Upload queue", "Tensors critical"}
    eventually(lambda: {rule["name"] for rule in messages.rules("r1")} == fired, 60)


def test_the_documented_fields_presets_and_messages_are_right() -> None:
    fields, presets = RULES_SECTION.split("### Presets")
    said = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", fields, re.M))))
    assert said == set(RuleChanges.model_fields)
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)?)`", presets))
    assert {*SETS, *PRESETS} <= named
    example = json.loads(code("json"))
    assert set(example["rule"]) == {
        "id", "name", "status", "series", "measure", "above", "below", "hold", "grace",
    }  # fmt: skip
