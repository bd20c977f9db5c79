"""`leakline drill`: how answers are scored, which alerts are accepted, and what is refused."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from standardwebhooks import Webhook
from tests.cli.conftest import DOCS, MIB

from leakline.cli import child_programs
from leakline.cli.child_programs import Children, start_server, wait_for_verdict
from leakline.cli.commands import drill
from leakline.cli.commands.drill import KINDS, Alert, Answer, Receiver
from leakline.cli.server_queries import Asker
from leakline.errors import ServerRefused

OBJECTS = KINDS["objects"]


def finding(
    *names: str,
    role: str = "type",
    estimate: float = 4 * MIB,
    start: int | None = 0,
    **changed: Any,
) -> Any:
    """Return a finding that answers `objects` correctly except for the given changes."""
    return {
        "status": "confirmed", "kind": "objects", "phase": "collect", "phase_path": None,
        "suspects": [{"name": name, "role": role} for name in names or ("__main__.Environment",)],
        "growth_bytes_per_generation": {"estimate": estimate},
        "started_at_generation": None if start is None else {"estimate": start},
        **changed,
    }  # fmt: skip


def answers(*findings: Any, kind: drill.Kind = OBJECTS) -> dict[str, Answer]:
    verdict = {"status": "confirmed", "summary": "…", "generations": 30, "findings": findings}
    return {each.question: each for each in drill._answers(kind, 4 * MIB, verdict)}


@pytest.mark.parametrize(
    ("findings", "wrong", "said"),
    [
        ([finding()], "", "what: objects; __main__.Environment at rank 1"),
        ([finding("__main__.Trainer.environments[*]", role="holder", kind="container")], "", "what: at rank 1"),
        ([], "found", "found: not found within 30 generations"),
        ([finding(status="watch")], "found", ""),
        ([finding(status="recovered")], "found", ""),
        ([finding(), finding("__main__.Model")], "found", "found: 1 other finding"),
        ([finding(), finding("__main__.Model", status="watch")], "", ""),
        ([finding(phase="train")], "where", "where: train"),
        ([finding(phase=None)], "where", "where: no single phase"),
        ([finding("__main__.Model")], "what", "what: objects; __main__.Model"),
        ([finding("__main__.Environment.prices")], "what", ""),
        ([finding("dict", "list", "__main__.Environment")], "", "what: at rank 3"),
        ([finding("dict", "list", "set", "__main__.Environment")], "what", "what: at rank 4"),
        ([finding(kind="native", suspects=[])], "what", "what: native; nothing named"),
        ([finding(kind="tensors")], "what", ""),
        ([finding(estimate=5 * MIB)], "", "how much: off by 25.0%"),
        ([finding(estimate=5.1 * MIB)], "how much", ""),
        ([finding(estimate=3 * MIB)], "", ""),
        ([finding(estimate=2.9 * MIB)], "how much", "how much: off by 27.5%"),
        ([finding(start=2)], "", ""),
        ([finding(start=3)], "since when", "since when: generation 3, planted since generation 0"),
        ([finding(start=None)], "since when", "since when: start unknown"),
    ],
)  # fmt: skip
def test_each_answer_is_scored_as_right_or_wrong(
    findings: list[Any], wrong: str, said: str
) -> None:
    found = answers(*findings)
    assert ", ".join(name for name, answer in found.items() if not answer.right) == wrong
    question, _, text = said.partition(": ")
    assert not said or text in found[question].text


def test_graphs_must_not_be_called_tensors() -> None:
    called = finding("torch.Tensor", kind="tensors", phase="train")
    assert not answers(called, kind=KINDS["graph"])["what"].right
    document = (DOCS / "operating.md").read_text()
    assert all(f"`{kind}`" in document for kind in KINDS)
    assert all(f"| {question} |" in document for question in (*answers(finding()), "alert"))


BODY = json.dumps({"type": "incident.suspected", "data": {"run": {"id": "r1"}}}).encode()
OTHER = "whsec_" + "YWJjZGVmR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="


def signed(secret: str, body: bytes = BODY, ago: int = 0) -> dict[str, str]:
    at = datetime.now(tz=UTC) - timedelta(seconds=ago)
    signature = Webhook(secret).sign("msg_1", at, body.decode())
    when = str(int(at.timestamp()))
    return {"Webhook-Id": "msg_1", "Webhook-Timestamp": when, "Webhook-Signature": signature}


def _post(receiver: Receiver, headers: dict[str, str], body: bytes = BODY) -> int:
    address = urlsplit(receiver.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    connection.request("POST", address.path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_an_alert_counts_only_with_a_valid_signature() -> None:
    with Receiver() as receiver:
        right = signed(receiver.secret)
        wrong = [
            signed(OTHER), signed(receiver.secret, b"{}"), signed(receiver.secret, ago=301), {},
            {**right, "Webhook-Id": "msg_2"}, {**right, "Webhook-Signature": "no comma"},
            {**right, "Webhook-Timestamp": "now"},
        ]  # fmt: skip
        assert {_post(receiver, headers) for headers in wrong} == {401}
        assert _post(receiver, signed(receiver.secret, b"not JSON"), b"not JSON") == 401
        assert _post(receiver, right) == 204
        assert receiver.alerts == [Alert("incident.suspected", "r1", i == 7) for i in range(8)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("leaky", "must be one of objects, graph, container"),
        ("objects --generations 0", "from 1 to"),
        ("objects --generations 100000", "from 1 to"),
    ],
)
def test_usage_errors_are_refused_before_anything_starts(
    leakline: Any, arguments: str, said: str
) -> None:
    answer = leakline("drill", *arguments.split())
    assert (answer.status, answer.output) == (2, "")
    assert said in answer.errors.splitlines()[-1]


def test_without_torch_a_graph_drill_explains_how_to_install_it(
    leakline: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drill, "find_spec", lambda name: None)
    said = leakline("drill", "graph")
    assert said.status == 1
    assert "pip install torch" in said.error
    options = argparse.Namespace(kind="objects", generations=30)
    assert (drill._chosen(options), capsys.readouterr().out) == (["objects"], "")
    options.kind = None
    assert drill._chosen(options) == ["objects", "container"]
    assert "graph: skipped" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["confirmed", "ok"])
def test_the_end_of_a_run_is_not_an_alert_on_its_leak(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(drill, "ALERT_SECONDS", 0.05)
    with Receiver() as receiver:
        receiver.alerts.append(Alert("run.finished", "r1", True))
        answer = drill._alert(receiver, "r1", {"status": status})
        assert (answer.right, answer.text) == (False, "no alert arrived")
        receiver.alerts.append(Alert("incident.confirmed", "r1", False))
        assert not drill._alert(receiver, "r1", {"status": status}).right
        receiver.alerts.append(Alert("incident.confirmed", "r2", True))
        assert drill._alert(receiver, "r2", {"status": status}).right


@pytest.fixture
def fake_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a script in place of the server the command starts."""

    def write(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return write


def test_the_drill_uses_its_own_server_and_not_that_of_the_shell(
    fake_server: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_PUBLIC_URL", "https://leakline.example")
    fake_server(
        'echo "Leakline is running at ${LEAKLINE_PUBLIC_URL:-http://127.0.0.1:7}  (Ctrl-C)"'
    )
    with Children() as children:
        assert start_server(children, 0).server == "http://127.0.0.1:7"


def test_the_drill_waits_until_the_server_knows_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdict = {"generations": 3}
    unknown = ServerRefused(404, "not_found", "no such run")
    early, late = {"state": "running"}, {"state": "finished"}
    answers: list[Any] = [unknown, unknown, early, unknown, late, verdict]

    def get(self: Asker, path: str, query: Any = None) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, ServerRefused):
            raise answer
        return answer

    monkeypatch.setattr(Asker, "get", get)
    monkeypatch.setattr(child_programs, "POLL_SECONDS", 0.0)
    found = wait_for_verdict(Asker(None), "r1", 3)
    assert found == {"state": "finished", "verdict": verdict}


def test_a_server_that_does_not_start_is_reported_in_one_line(
    leakline: Any, fake_server: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "leakline_server.config", None)
    why = leakline("serve").error
    assert "not installed" in why and "pip install 'leakline[server]'" in why
    fake_server(f'echo "{why}" >&2; exit 1')
    said = leakline("drill", "objects")
    assert said.status == 1
    assert said.error.endswith(f"the server did not start: {why}")
