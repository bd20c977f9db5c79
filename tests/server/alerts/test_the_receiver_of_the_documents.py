"""The receiver in docs/webhooks.md works as it stands there."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leakline_server.alerts import events
from leakline_server.alerts.address import check, networks
from leakline_server.alerts.formats import FORMATS
from leakline_server.alerts.formats.message import Message
from leakline_server.alerts.outgoing import Outgoing, send
from leakline_server.alerts.post import Delivered, Outcome, TryAgain
from leakline_server.alerts.signing import make_secret

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "webhooks.md"
LOOPBACK = networks("127.0.0.0/8")


def deliver(port: int, secret: str, message_id: str) -> Outcome:
    facts = {"summary": "evaluate keeps 16", "link": "/runs/r1"}
    message = Message("incident.confirmed", 0.0, facts, "https://leakline.example")
    url = f"http://127.0.0.1:{port}/"
    return send(Outgoing(message_id, url, "standard", secret, message), LOOPBACK, time.time())


@pytest.mark.flow
def test_the_receiver_takes_what_is_signed_once_and_refuses_the_rest(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    secret = make_secret()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "WEBHOOK_SECRET": secret, "PORT": str(port)}, cwd=tmp_path,
    )  # fmt: skip
    try:
        _until_it_listens(port)
        refused = deliver(port, make_secret(), "msg_0")
        first = deliver(port, secret, "msg_1")
        again = deliver(port, secret, "msg_1")
        assert isinstance(refused, TryAgain)
        assert refused.status == 400
        assert isinstance(first, Delivered)
        assert isinstance(again, Delivered)
    finally:
        process.terminate()
        printed, _ = process.communicate(timeout=10)
    assert printed == "incident.confirmed evaluate keeps 16 https://leakline.example/runs/r1\n"


def test_every_event_and_every_format_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    told = {value for value in vars(events).values() if isinstance(value, str) and "." in value}
    named = {
        value for value in told if re.fullmatch(r"(incident|oom|contract|run|rule)\.[a-z]+", value)
    }
    assert len(named) == 10
    for word in (*named, *FORMATS):
        assert f"| `{word}` |" in text


def test_the_address_of_the_example_would_be_called() -> None:
    (url,) = re.findall(r"LEAKLINE_WEBHOOK_URL=(\S+)", DOCUMENT.read_text())
    assert check(url, resolve=lambda _host: ["1.1.1.1"]).url.secure


def _until_it_listens(port: int) -> None:
    waiting, deadline = threading.Event(), time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline
            waiting.wait(0.05)
        else:
            return
