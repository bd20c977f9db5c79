"""The receivers of the examples and of docs/alerts.md accept only messages that are signed, fresh and new."""

from __future__ import annotations

import http.client
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from leakline_server.alerts import alert_payload
from leakline_server.alerts.formats import FORMATS, Message
from leakline_server.alerts.sending.address_check import check, networks
from leakline_server.alerts.sending.http_post import Delivered, Outcome, TryAgain
from leakline_server.alerts.sending.send_message import Outgoing, send
from leakline_server.alerts.sending.signing import make_secret, signed_headers

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "webhook_receiver"
LOOPBACK = networks("127.0.0.0/8")
FACTS = {
    "title": "Leak confirmed in erl-trading/before-fix",
    "summary": "evaluate keeps 16 \U0001f40d per generation",
    "where": {"text": "evaluate in rank 0"},
    "what": {"text": "16 trading.TradingEnvironment per generation"},
    "how_much": {"text": "7.10 GiB per generation"},
    "when": {"text": "since generation 1"},
    "forecast": {"text": "not in sight"},
    "advice": ["let go of the environments", "see the holders"],
    "link": "/runs/r1",
}
PRINTED = [
    "[incident.confirmed] Leak confirmed in erl-trading/before-fix",
    "  evaluate keeps 16 \U0001f40d per generation",
    "  where:      evaluate in rank 0",
    "  what:       16 trading.TradingEnvironment per generation",
    "  how much:   7.10 GiB per generation",
    "  since when: since generation 1",
    "  forecast:   not in sight",
    "  advice:     let go of the environments",
    "  advice:     see the holders",
    "  https://leakline.example/runs/r1",
]
BODY = b'{"type":"incident.confirmed","timestamp":"2026-01-01T00:00:00Z","data":{"title":"t","summary":"s","link":"/"}}'


@dataclass
class Receiver:
    """A running receiver; ``printed`` has its lines on stdout so far, ``said`` those on stderr."""

    process: subprocess.Popen[Any]
    port: int = 0
    printed: list[str] = field(default_factory=list)
    said: queue.Queue[str] = field(default_factory=queue.Queue)
    readers: list[threading.Thread] = field(default_factory=list)

    def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", "/", body, dict(headers))
            return connection.getresponse().status
        finally:
            connection.close()

    def all_printed(self) -> list[str]:
        """Stop the receiver and return everything that it printed."""
        self.process.terminate()
        self.process.wait(10)
        for reader in self.readers:
            reader.join(10)
        return self.printed


# Secrets, separated by spaces -> a receiver that listens.
Start = Callable[[str], Receiver]


@dataclass(frozen=True)
class Kind:
    """How to start a receiver; ``by`` is what its first line says about who checks signatures."""

    command: Sequence[str]
    by: str


def node() -> str:
    """Return the node of this machine, or else the one that Playwright installs."""
    found = shutil.which("node")
    if found:
        return found
    from playwright._impl._driver import compute_driver_executable

    return str(compute_driver_executable()[0])


@pytest.fixture(scope="module")
def with_the_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example with the published package next to it."""
    if (EXAMPLE / "node_modules" / "standardwebhooks").is_dir():
        return EXAMPLE
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("the published JavaScript library needs npm, and there is none")
    folder = tmp_path_factory.mktemp("with_the_library")
    for name in ("receiver.mjs", "package.json"):
        shutil.copy(EXAMPLE / name, folder)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        pytest.skip(f"npm cannot install standardwebhooks here: {why}")
    return folder


@pytest.fixture(params=["python", "node:crypto", "standardwebhooks"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "python":
        return Kind([sys.executable, str(EXAMPLE / "receiver.py")], "")
    if request.param == "standardwebhooks":
        folder = request.getfixturevalue("with_the_library")
        return Kind([node(), str(folder / "receiver.mjs")], request.param)
    # A copy, so that a library installed next to the example is not found.
    shutil.copy(EXAMPLE / "receiver.mjs", tmp_path)
    return Kind([node(), str(tmp_path / "receiver.mjs")], request.param)


@pytest.fixture
def start(kind: Kind) -> Iterator[Start]:
    started: list[Receiver] = []

    def begin(secrets: str) -> Receiver:
        process = subprocess.Popen(
            kind.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
            env={**os.environ, "WEBHOOK_SECRET": secrets, "PORT": "0", "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        receiver = Receiver(process)
        started.append(receiver)
        outputs = ((process.stdout, receiver.printed.append), (process.stderr, receiver.said.put))
        receiver.readers += [_read(stream, take) for stream, take in outputs]
        first = receiver.said.get(timeout=20)
        assert "listening on http://127.0.0.1:" in first, first
        assert kind.by in first
        receiver.port = int(first.split("127.0.0.1:")[1].split("/")[0])
        return receiver

    yield begin
    for receiver in started:
        receiver.process.kill()
        receiver.process.wait(10)
        for reader in receiver.readers:
            reader.join(10)


def _read(stream: IO[str] | None, take: Callable[[str], None]) -> threading.Thread:
    def read() -> None:
        assert stream is not None
        for line in stream:
            take(line.rstrip("\n"))
        stream.close()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def deliver(
    receiver: Receiver, secret: str, message_id: str = "msg_1", previous: str | None = None
) -> Outcome:
    """Deliver a message with the sender of the server."""
    message = Message("incident.confirmed", time.time(), FACTS, "https://leakline.example")
    url = f"http://127.0.0.1:{receiver.port}/"
    outgoing = Outgoing(message_id, url, "standard", secret, message, previous)
    return send(outgoing, LOOPBACK, time.time())


def refused(outcome: Outcome) -> bool:
    return isinstance(outcome, TryAgain) and outcome.status == 400


@pytest.mark.flow
def test_only_a_fresh_and_unchanged_message_is_accepted(start: Start) -> None:
    secret = make_secret()
    receiver = start(secret)
    assert refused(deliver(receiver, make_secret()))
    good = signed_headers(secret, "msg_1", time.time(), BODY)
    signature = good["webhook-signature"]
    for body, changed in (
        (BODY.replace(b"confirmed", b"recovered"), {}),
        (BODY + b" ", {}),
        (BODY[:-1], {}),
        (b"\xff\xfe", {}),
        (b"", {}),
        (BODY, {"webhook-id": "msg_2"}),
        (BODY, {"webhook-timestamp": str(int(time.time()) + 60)}),
        (BODY, {"webhook-timestamp": "soon"}),
        (BODY, {"webhook-timestamp": "-1"}),
        (BODY, {"webhook-signature": signature.replace("v1,", "v2,")}),
        (BODY, {"webhook-signature": signature.removeprefix("v1,")}),
        (BODY, {"webhook-signature": signature[:-5]}),
        (BODY, {"webhook-signature": "v1,!!!"}),
    ):
        assert receiver.post(body, {**good, **changed}) == 400, (body, changed)
    for name in good:
        assert receiver.post(BODY, {n: v for n, v in good.items() if n != name}) == 400
    # Signing cuts off fractions of a second, and time passes before the check.
    for seconds in (-301, 303):
        signed = signed_headers(secret, "msg_1", time.time() + seconds, BODY)
        assert receiver.post(BODY, signed) == 400, seconds
    # None of these attempts prevents the delivery of the message itself.
    assert receiver.post(BODY, signed_headers(secret, "msg_1", time.time() - 290, BODY)) == 204
    assert receiver.all_printed() == ["[incident.confirmed] t", "  s", "  /"]


@pytest.mark.flow
def test_each_message_is_printed_once(start: Start) -> None:
    secret = make_secret()
    receiver = start(secret)
    large = b'{"type":"' + b"a" * 20_000 + b'"}'
    assert receiver.post(large, signed_headers(secret, "msg_1", time.time(), large)) == 413
    recorded = signed_headers(secret, "msg_1", time.time(), BODY)
    assert [receiver.post(BODY, recorded) for _ in range(3)] == [204, 204, 204]
    # A later attempt is signed again and has the same id.
    assert isinstance(deliver(receiver, secret, "msg_1"), Delivered)
    assert isinstance(deliver(receiver, secret, "msg_2"), Delivered)
    odd = (b"{}", b'{"data":[]}', b'{"type":1,"data":{"where":7,"advice":"x"}}')
    for number, body in enumerate((*odd, b'{"data":{"advice":{}}}')):
        signed = signed_headers(secret, f"odd_{number}", time.time(), body)
        assert receiver.post(body, signed) == 204, body
    assert isinstance(deliver(receiver, secret, "msg_3"), Delivered)
    printed = receiver.all_printed()
    assert printed[: 3 + len(PRINTED)] == ["[incident.confirmed] t", "  s", "  /", *PRINTED]
    assert printed[-len(PRINTED) :] == PRINTED


@pytest.mark.flow
@pytest.mark.parametrize("knows", ["old", "old new"])
def test_during_a_rotation_a_receiver_with_either_secret_works(start: Start, knows: str) -> None:
    secret = {"old": make_secret(), "new": make_secret()}
    receiver = start(" ".join(secret[name] for name in knows.split()))
    taken = [
        not refused(deliver(receiver, secret["old"], "before")),
        not refused(deliver(receiver, secret["new"], "meanwhile", previous=secret["old"])),
        not refused(deliver(receiver, secret["new"], "after")),
    ]
    assert taken == [True, True, "new" in knows]
    assert len(receiver.all_printed()) == sum(taken) * len(PRINTED)


@pytest.mark.flow
def test_without_a_secret_a_receiver_says_what_to_set(kind: Kind) -> None:
    done = subprocess.run(
        kind.command, capture_output=True, text=True, timeout=20, env={**os.environ, "WEBHOOK_SECRET": ""}
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("set WEBHOOK_SECRET")


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "alerts.md"


@pytest.mark.flow
def test_the_documented_receiver_accepts_a_signed_message_once(
    tmp_path: Path, eventually: Any
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    secret = make_secret()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "WEBHOOK_SECRET": secret, "PORT": str(port), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    receiver = Receiver(process, port)
    try:
        eventually(listens, 20)
        assert refused(deliver(receiver, make_secret(), "msg_0"))
        assert isinstance(deliver(receiver, secret, "msg_1"), Delivered)
        assert isinstance(deliver(receiver, secret, "msg_1"), Delivered)
    finally:
        process.terminate()
        printed, _ = process.communicate(timeout=10)
    said = f"incident.confirmed {FACTS['summary']} https://leakline.example/runs/r1\n"
    assert printed.decode() == said


def test_every_event_and_every_format_is_documented() -> None:
    text = DOCUMENT.read_text()
    event = r"(incident|oom|contract|run|rule)\.[a-z]+"
    events = {v for v in vars(alert_payload).values() if re.fullmatch(event, str(v))}
    assert len(events) == 10
    for word in (*events, *FORMATS):
        assert f"| `{word}` |" in text


def test_the_example_address_is_allowed() -> None:
    (url,) = re.findall(r"LEAKLINE_WEBHOOK_URL=(\S+)", DOCUMENT.read_text())
    assert check(url, resolve=lambda _host: ["1.1.1.1"]).url.secure
