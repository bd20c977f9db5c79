"""From a rule to a signed message, through a real server process; and the examples of docs/rules.md as they stand."""

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
from standardwebhooks import Webhook as Verifier

from leakline.snapshot import Batch, ProcessIdentity, Snapshot, batch_to_wire
from leakline_server.alerts.presets import PRESETS, SETS
from leakline_server.alerts.rule_fields import FIELDS, new_rules
from leakline_server.alerts.rules_file import read_rules
from leakline_server.alerts.signing import make_secret

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "rules.md"
MIB = 2**20
STARTED = time.time() - 600


@pytest.fixture
def secret(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Servers of this test send to the receiver, signed with this."""
    made = make_secret()
    monkeypatch.setenv("LEAKLINE_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("LEAKLINE_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("LEAKLINE_WEBHOOK_SECRET", made)
    return made


def batch(generation: int, samples: Mapping[str, float]) -> dict[str, Any]:
    """The end of one generation of a training whose memory stays as it is."""
    steady = {"process.rss_bytes": 200 * MIB, "process.anon_bytes": 150 * MIB}
    snapshot = Snapshot(
        generation, STARTED + generation, float(generation), generation, None, f"generation {generation}: end",
        "generation_end", {**steady, **samples},
    )  # fmt: skip
    wire: dict[str, Any] = batch_to_wire(Batch(ProcessIdentity("p1", pid=1, host="h"), (snapshot,)))
    return wire


class Training:
    """Sends a generation and waits until the server has looked at it."""

    def __init__(self, server: Any, eventually: Any, project: str = "erl-trading") -> None:
        self.server, self.eventually, self.generation = server, eventually, 0
        run = {"id": "r1", "project": project, "name": "before-fix"}
        assert server.request("POST", "/api/v1/runs", run)[0] in (200, 201)

    def end_generation(self, **samples: float) -> None:
        named = {name.replace("__", "."): value for name, value in samples.items()}
        path = "/api/v1/runs/r1"
        sent = batch(self.generation, named)
        assert self.server.request("POST", f"{path}/batches", sent)[0] == 200
        self.generation += 1
        seen = self.generation
        self.eventually(
            lambda: self.server.request("GET", f"{path}/verdict")[1]["generations"] == seen
        )


@pytest.mark.flow
def test_a_rule_fires_and_ends_once_through_a_killed_server_and_repeated_batches(
    serve: Any, receiver: Any, secret: str, eventually: Any
) -> None:
    server = serve()
    wanted = {
        "name": "Queue",
        "series": "gauge.queue",
        "above": 50,
        "hold": 2,
        "advice": "bound it",
    }
    status, rule = server.request("POST", "/api/v1/rules", wanted)
    assert status == 201
    training = Training(server, eventually)
    training.end_generation(gauge__queue=50)
    training.end_generation(gauge__queue=51)
    assert receiver.received == []
    training.end_generation(gauge__queue=70)
    known_at = time.time()
    (fired,) = receiver.wait_for(1)
    assert fired.at - known_at < 5
    told = Verifier(secret).verify(fired.body, fired.headers)
    assert told["type"] == "rule.fired"
    data = told["data"]
    assert data["title"] == "Rule fired: Queue in erl-trading/before-fix"
    assert data["summary"] == "gauge.queue is 70 at generation 2: above 50"
    assert data["advice"] == ["bound it"]
    assert data["rule"]["id"] == rule["id"] and data["rule"]["status"] == "firing"
    assert data["link"].endswith("/runs/r1")
    (firing,) = server.request("GET", f"/api/v1/rules/{rule['id']}")[1]["firing"]
    assert (firing["run"], firing["generation"], firing["value"]) == ("r1", 2, 70)

    server.kill()
    training.server = server = serve(server.port)
    for generation, queue in enumerate((50, 51, 70)):
        again = batch(generation, {"gauge.queue": queue})
        status, answer = server.request("POST", "/api/v1/runs/r1/batches", again)
        assert status == 200, answer
        assert answer["accepted"] == 0
    training.end_generation(gauge__queue=90)
    for _ in range(3):
        training.end_generation(gauge__queue=1)
    fired, over = receiver.wait_for(2)
    told = Verifier(secret).verify(over.body, over.headers)
    assert told["data"]["title"] == "Rule over: Queue in erl-trading/before-fix"
    assert told["data"]["rule"]["status"] == "resolved"
    assert server.request("GET", f"/api/v1/rules/{rule['id']}")[1]["firing"] == []
    assert len(receiver.received) == 2


@pytest.mark.flow
def test_rules_of_a_file_are_there_after_the_start_and_go_with_it(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\npreset = "tensors"\n')
    monkeypatch.setenv("LEAKLINE_RULES", str(file))
    server = serve()
    before = server.request("GET", "/api/v1/rules")[1]["items"]
    assert [rule["name"] for rule in before] == [PRESETS[n].name for n in SETS["tensors"].names]
    server.interrupt()
    file.write_text('[[rule]]\npreset = "tensors.critical"\nabove = 600\n')
    server = serve(server.port)
    (after,) = server.request("GET", "/api/v1/rules")[1]["items"]
    assert (after["id"], after["above"]) == (before[2]["id"], 600)
    server.interrupt()
    monkeypatch.delenv("LEAKLINE_RULES")
    assert serve(server.port).request("GET", "/api/v1/rules")[1]["items"] == []


@pytest.mark.flow
def test_a_server_with_a_wrong_file_says_so_in_one_line_and_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import sys

    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nname = "Host"\nseries = "process.rss_bytes"\nabove = "much"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"], cwd=tmp_path, timeout=60,
        env={**os.environ, "LEAKLINE_RULES": str(file)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert "rule 1 'Host'" in line and "above='much'" in line and "LEAKLINE_RULES" in line


def code(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert len(found) == 1
    return str(found[0])


def page_example(page: str) -> dict[str, str]:
    """The table of the document as the form on the page sends it: labels to fields, words to choices."""
    section = DOCUMENT.read_text().split("**On the page**")[1].split("**With the API**")[0]
    rows = dict(re.findall(r"^\| (\w[^|]*?) \| `?([^|`]*?)`? \|$", section, re.M))
    rows.pop("field")
    form = re.search(r'<form method="post" action="/alerts/rules" class="fields".*?</form>', page, re.S)  # fmt: skip
    assert form is not None
    labels = {
        label.strip(): (name, rest)
        for label, name, rest in re.findall(
            r'<label[^>]*>([^<]+)<(?:input|select)[^>]*?name="(\w+)"(.*?)</label>', form[0], re.S
        )
    }
    sent = {}
    for label, value in rows.items():
        name, rest = labels[label]
        choices = dict(re.findall(r'<option value="(\w+)"[^>]*>([^<]+)<', rest))
        words = {unescape(word): choice for choice, word in choices.items()}
        sent[name] = words.get(value, value)
    return sent


@pytest.mark.flow
def test_the_three_examples_of_the_document_work_as_they_stand(
    serve: Any, receiver: Any, secret: str, eventually: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "rules.toml").write_text(code("toml"))
    monkeypatch.setenv("LEAKLINE_RULES", "rules.toml")
    server = serve()

    form = page_example(server.request("GET", "/alerts")[1])
    assert len(form) == 5
    status, _ = server.request(
        "POST", "/alerts/rules", urlencode(form).encode(),
        {"content-type": "application/x-www-form-urlencoded", "origin": server.url},
    )  # fmt: skip
    assert status == 303

    (command,) = re.findall(r"```sh\n(curl.*?)```", DOCUMENT.read_text(), re.S)
    ran = subprocess.run(
        ["bash", "-c", command.replace("http://127.0.0.1:8765", server.url)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert json.loads(ran.stdout)["project"] == "erl-trading"

    rules = {rule["name"]: rule for rule in server.request("GET", "/api/v1/rules")[1]["items"]}
    assert set(rules) == {
        "GPU of the small machine", "Ten generations left", "Tensors elevated", "Tensors high",
        "Tensors critical", "Host memory", "Upload queue",
    }  # fmt: skip
    assert (rules["Host memory"]["above"], rules["Host memory"]["hold"]) == (50e9, 2)
    assert rules["Ten generations left"]["measure"] == "forecast"

    training = Training(server, eventually)
    training.end_generation(gauge__pending_uploads=50, tensors__count=99)
    training.end_generation(gauge__pending_uploads=51, tensors__count=612)
    bodies = [Verifier(secret).verify(m.body, m.headers)["data"] for m in receiver.wait_for(2)]
    assert {body["rule"]["name"] for body in bodies} == {"Upload queue", "Tensors critical"}


def test_what_the_document_says_of_fields_presets_and_messages_is_so() -> None:
    text = DOCUMENT.read_text()
    fields, presets = text.split("## Ready-made ones")
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", fields, re.M))))
    assert told == set(FIELDS)
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)?)`", presets.split("Several rules")[0]))
    assert {*SETS, *PRESETS} <= named
    example = json.loads(code("json"))
    assert set(example["rule"]) == {
        "id", "name", "status", "series", "measure", "above", "below", "hold", "grace",
    }  # fmt: skip


def test_the_file_in_the_docstring_is_one(tmp_path: Path) -> None:
    from leakline_server.alerts import rules_file

    assert rules_file.__doc__ is not None
    lines = [line[4:] for line in rules_file.__doc__.splitlines() if line.startswith("    ")]
    (tmp_path / "rules.toml").write_text("\n".join(lines))
    found = read_rules(tmp_path / "rules.toml")
    assert len(found) == 4
    assert found[1:] == tuple(new_rules({"preset": "tensors", "project": "erl-trading"}))
