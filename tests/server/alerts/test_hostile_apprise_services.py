"""Services that alerts reach by way of apprise can be hostile, as can their addresses: no harm is done, none shown."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine, select
from starlette.testclient import TestClient
from tests.server.alerts.test_by_apprise import FACTS, MESSAGE, address

from leakline_server import logs
from leakline_server.alerts import by_apprise
from leakline_server.alerts.post import Delivered, GiveUp, TryAgain
from leakline_server.config import Config
from leakline_server.store.alerts import Alert, add
from leakline_server.store.engine import writing
from leakline_server.store.tables import deliveries
from leakline_server.workers.deliver import Deliverer, Seams

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def service(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a service that reads a request and then does as ``answer`` says, to each who comes."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"json://127.0.0.1:{listener.getsockname()[1]}/SECRET"


def endless(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"x" * 2**20)


def trickle(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def says(*pieces: bytes) -> Callable[[socket.socket], object]:
    return lambda connection: [connection.sendall(piece) for piece in pieces]


def assert_nothing_is_left() -> None:
    """Neither a process of ours nor a thread."""
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "apprise_process.py" in " ".join(child.cmdline())]
    assert not [each for each in threading.enumerate() if "apprise" in each.name]


@pytest.mark.parametrize(
    "url",
    [
        "tgram://SECRET", "slack://SECRET/x", "mailto://me:SECRET@", "json://[::SECRET", "pigeon://SECRET",
        "json://me:SECRET@127.0.0.1:1/SECRET",
    ],
)  # fmt: skip
def test_an_address_that_leads_nowhere_is_not_shown(
    url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """apprise itself logs some of them with all they hold."""
    outcome = by_apprise.notify(url, MESSAGE)
    assert isinstance(outcome, (GiveUp, TryAgain)), outcome
    assert "SECRET" not in outcome.reason
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_a_redirect_is_not_followed(receiver: Any) -> None:
    """Else a service could have us post inside our own network."""
    for status in (302, 307, 308):
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {receiver.url}\r\nContent-Length: 0\r\n\r\n"
        with service(says(moved.encode())) as url:
            outcome = by_apprise.notify(url, MESSAGE)
        assert isinstance(outcome, TryAgain)
    assert receiver.received == []


@pytest.mark.parametrize("answer", [endless, trickle])
def test_an_answer_without_end_takes_neither_our_memory_nor_a_thread(
    answer: Callable[[socket.socket], object],
) -> None:
    with service(answer) as url:
        outcome = by_apprise.notify(url, MESSAGE, total_seconds=60.0 if answer is endless else 3.0)
    assert isinstance(outcome, TryAgain)
    # The one ends at its memory, which apprise may take for a refusal, the other at its time.
    is_at_its_time = outcome.reason == "no answer within 3 s"
    assert is_at_its_time == (answer is trickle), outcome
    assert_nothing_is_left()


@pytest.mark.parametrize(
    "answer",
    [
        says(b""), says(b"\x00\xff\x00"), says(b"SSH-2.0-OpenSSH\r\n"), says(HEAD),
        says(HEAD + b"X: " + b"y" * 200_000),
        says(HEAD + b"Content-Length: -1\r\n\r\n"), says(HEAD + b"Content-Encoding: gzip\r\n\r\nnot gzip"),
        says(b"HTTP/1.1 99999 What\r\n\r\n"),
        says(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_tried_again(
    answer: Callable[[socket.socket], object], capfd: pytest.CaptureFixture[str]
) -> None:
    with service(answer) as url:
        outcome = by_apprise.notify(url, MESSAGE, total_seconds=20.0)
    # What has a good status line was taken; nothing else is asked of it.
    assert isinstance(outcome, (TryAgain, Delivered)), outcome
    if isinstance(outcome, TryAgain):
        assert "SECRET" not in outcome.reason and "\n" not in outcome.reason
    assert capfd.readouterr() == ("", "")


def test_texts_of_any_size_and_kind_become_a_bounded_message(receiver: Any) -> None:
    hostile = "\ud800\x00\x1b[2J\u202e" + "\N{GRINNING FACE}@everyone " * 2_000
    facts = {**FACTS, "title": hostile, "summary": hostile, "advice": [hostile] * 50}
    parts = by_apprise.parts(replace(MESSAGE, facts=facts))
    assert len(parts["title"]) <= by_apprise.MAX_TITLE
    assert len(parts["body"]) <= by_apprise.MAX_BODY
    assert parts["body"].endswith("\nhttps://leakline.example/runs/r1")
    for text in (parts["title"], parts["body"].replace("\n", "")):
        assert text.replace("\u200b", "").isprintable()
        assert "@everyone" not in text
    told = replace(MESSAGE, facts=facts)
    assert isinstance(by_apprise.notify(address(receiver), told), Delivered)
    # Facts of other kinds than texts have no line.
    odd = replace(MESSAGE, facts={"title": 7, "summary": ["x"], "advice": {"a": 1}, "link": None})
    assert by_apprise.parts(odd)["title"] == odd.event


def test_a_hostile_service_costs_no_other_its_alert(
    engine: Engine, alert: Alert, receiver: Any
) -> None:
    moved = f"HTTP/1.1 307 Moved\r\nLocation: {receiver.url}\r\nContent-Length: 0\r\n\r\n"
    with service(says(moved.encode())) as url:
        config = Config(apprise_urls=(url, address(receiver)))
        sending = Deliverer(engine, config, Seams(dice=lambda: 0.0))
        sending.start()
        sending.stop()
        now = time.time()
        with writing(engine) as connection:
            assert add(connection, [replace(alert, created_at=now)]) == 2
        sending.run_once(now)
    with engine.connect() as connection:
        rows = list(connection.execute(select(deliveries).order_by(deliveries.c.id)))
    # The one is kept for the next attempt, the other has arrived once.
    assert [row.state for row in rows] == ["pending", "delivered"]
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "url",
    ["json://169.254.169.254/latest", "mailto://me:SECRET@127.0.0.1", "syslog://", "file:///etc/passwd"],
)  # fmt: skip
def test_nobody_adds_an_address_of_apprise_over_the_network(
    shared_api: TestClient, url: str
) -> None:
    for form in ("apprise", "standard"):
        answer = shared_api.post("/api/v1/webhooks", json={"url": url, "format": form})
        assert answer.status_code == 422
        assert "SECRET" not in answer.text and "\n" not in answer.json()["error"]["message"]
    assert shared_api.get("/api/v1/webhooks").json()["items"] == []


def test_the_process_knows_no_setting_of_the_server(
    receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_ADMIN_PASSWORD", "SECRET")
    assert not [name for name in by_apprise._environment() if name.startswith("LEAKLINE_")]
    assert isinstance(by_apprise.notify(address(receiver), MESSAGE), Delivered)
    assert logs.without_secrets(receiver.received[0].body.decode()).count("SECRET") == 0
