"""A leak of TensorFlow.js, a run with its fix, and a run in which it is back: told again, with nothing set anew."""

from __future__ import annotations

import time
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from leakline.snapshot import Batch, ProcessIdentity, Snapshot, batch_to_wire
from leakline_server.alerts.signing import make_secret

PROJECT = "tfjs"
# As report 003 had them: 87 tensors of 12.4 MB where it is well; each of the others weighs 38,700 bytes.
NORMAL, BASE_BYTES, EACH_BYTES = 87, 12_400_000, 38_700
KEPT = 158
# After this many the leak holds more than 500 tensors, and the verdict has seen enough.
GENERATIONS = 14
ROLLOUT, TRAIN = "rollout", "train"


class Page:
    """What a page in a browser tells the server of its training."""

    def __init__(self, server: Any, eventually: Any, run: str, keeps: int) -> None:
        self._server, self._eventually, self._run, self._keeps = server, eventually, run, keeps
        self._begun, self._sent, self._held = time.time(), 0, 0
        new = {"id": run, "project": PROJECT, "name": run, "unit": "episode"}
        assert self.ask("POST", "/runs", new)[0] in (200, 201)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return self._server.request(method, f"/api/v1{path}", body)

    def verdict(self) -> dict[str, Any]:
        told: dict[str, Any] = self.ask("GET", f"/runs/{self._run}/verdict")[1]
        return told

    def train(self) -> str:
        """The status once the server has looked at all generations."""
        for generation in range(GENERATIONS):
            rollout = self._snapshot(generation, ROLLOUT, "phase_end")
            self._held += self._keeps
            train = self._snapshot(generation, TRAIN, "phase_end")
            snapshots = (rollout, train, self._snapshot(generation, None, "generation_end"))
            process = ProcessIdentity(f"page-{self._run}", pid=1, host="browser")
            wire = batch_to_wire(Batch(process, snapshots))
            assert self.ask("POST", f"/runs/{self._run}/batches", wire)[0] == 200
        self._eventually(lambda: self.verdict()["generations"] == GENERATIONS)
        return str(self.verdict()["status"])

    def finish(self) -> None:
        assert self.ask("PATCH", f"/runs/{self._run}", {"state": "finished"})[0] == 200

    def _snapshot(self, generation: int, phase: str | None, kind: Any) -> Snapshot:
        count = NORMAL + self._held
        samples = {
            "tfjs.tensors": count,
            "tfjs.buffers": count,
            "tfjs.bytes": BASE_BYTES + self._held * EACH_BYTES,
        }
        at, self._sent = self._sent, self._sent + 1
        return Snapshot(at, self._begun + at, float(at), generation, phase, "", kind, samples)


class Told:
    """What the receiver has got of each run, in order, each verified."""

    def __init__(self, receiver: Any, secret: str) -> None:
        self._receiver, self._verifier = receiver, Verifier(secret)

    def of(self, run: str) -> list[dict[str, Any]]:
        all_told = [
            self._verifier.verify(each.body, each.headers) for each in self._receiver.received
        ]
        return [told for told in all_told if told["data"]["run"]["id"] == run]

    def events(self, run: str) -> list[str]:
        return [told["type"] for told in self.of(run)]

    def leaks(self, run: str) -> list[dict[str, Any]]:
        """That it leaks; the first message may have it suspected, or confirmed at once."""
        wanted = ("incident.suspected", "incident.confirmed")
        return [told["data"] for told in self.of(run) if told["type"] in wanted]

    def reached(self, run: str, band: int) -> bool:
        return any(each["above"] == band for each in self.rules(run))

    def rules(self, run: str) -> list[dict[str, Any]]:
        return [told["data"]["rule"] for told in self.of(run) if told["type"] == "rule.fired"]


@pytest.fixture
def told(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    secret = make_secret()
    monkeypatch.setenv("LEAKLINE_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("LEAKLINE_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("LEAKLINE_WEBHOOK_SECRET", secret)
    return Told(receiver, secret)


@pytest.mark.flow
def test_a_leak_that_is_back_after_its_fix_is_told_again_with_nothing_set_anew(
    serve: Any, told: Told, eventually: Any
) -> None:
    server = serve()
    rule = {"preset": "tfjs", "project": PROJECT}
    assert server.request("POST", "/api/v1/rules", rule)[0] == 201

    before = Page(server, eventually, "before", KEPT)
    assert before.train() in ("suspected", "confirmed")
    eventually(lambda: told.leaks("before") and told.reached("before", 500))
    before.finish()
    (leak,) = _leaks(server)
    assert leak["state"] == "open"
    closing = {"project": PROJECT, "reason": "tf.tidy around the step"}
    path = f"/api/v1/incidents/{leak['fingerprint']}/close"
    assert server.request("POST", path, closing)[1]["state"] == "closed"

    fixed = Page(server, eventually, "fixed", 0)
    assert fixed.train() == "ok"
    fixed.finish()
    eventually(lambda: told.events("fixed") != [])
    assert told.events("fixed") == ["run.finished"]
    (leak,) = _leaks(server)
    assert (leak["state"], [seen["name"] for seen in leak["runs"]]) == ("closed", ["before"])

    again = Page(server, eventually, "again", KEPT)
    assert again.train() in ("suspected", "confirmed")
    eventually(lambda: told.leaks("again") and told.reached("again", 500))
    (leak,) = _leaks(server)
    assert leak["state"] == "open"
    assert leak["sentence"] == (
        "Seen in before, closed by note “tf.tidy around the step”, back in again"
    )
    newest = told.leaks("again")[-1]
    assert newest["incident"]["closed_before"] == "tf.tidy around the step"
    assert newest["summary"].startswith("Back in again; closed before with: tf.tidy around")
    for run in ("before", "again"):
        # Its rules were set before the first run, and never again; a look on the way may have told a milder band.
        assert {each["status"] for each in told.rules(run)} == {"firing"}


def _leaks(server: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = server.request("GET", f"/api/v1/incidents?project={PROJECT}")[1][
        "items"
    ]
    return items
