"""Alerts are sent through apprise when it is installed, on the schedule of webhooks; hostile services do no harm."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient
from tests.browser.hostile_labels import LABELS
from tests.server.alerts.conftest import HEAD, rows, service

from leakline_server.alerts.formats import Message
from leakline_server.alerts.sending import apprise_process, apprise_sender
from leakline_server.alerts.sending.http_post import Delivered, GiveUp, TryAgain
from leakline_server.app import create_app
from leakline_server.config import Config, WrongSettings, from_environment
from leakline_server.store.alerts import webhooks
from leakline_server.store.alerts.alert_rows import Alert, add
from leakline_server.store.engine import writing
from leakline_server.workers.delivery_worker import Deliverer, Seams

FACTS = {
    "title": "Leak confirmed in erl/before-fix",
    "summary": "evaluate keeps 16 Environment per generation",
    "advice": ["Call close()."],
    "link": "/runs/r1",
}
MESSAGE = Message("incident.confirmed", 0.0, FACTS, "https://leakline.example")


def address(receiver: Any, path: str = "") -> str:
    """Return the address of the test receiver for apprise's json service."""
    return receiver.url.replace("http://", "json://") + path


def test_a_message_arrives_as_title_text_and_link(receiver: Any) -> None:
    outcome = apprise_sender.notify(address(receiver), MESSAGE)
    assert isinstance(outcome, Delivered)
    assert outcome.status is None
    (got,) = receiver.received
    sent = json.loads(got.body)
    assert (sent["title"], sent["type"]) == (FACTS["title"], "failure")
    for part in (FACTS["summary"], "Advice: Call close().", "https://leakline.example/runs/r1"):
        assert part in sent["message"]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)


@pytest.mark.parametrize("shows", ["text", "html", "markdown"])
def test_text_of_a_training_is_neither_markup_nor_a_mention(receiver: Any, shows: str) -> None:
    labels = LABELS if shows == "html" else ()
    for label in ("<a href='//evil'>x</a> @everyone <@123>", *labels):
        hostile = replace(MESSAGE, facts={"title": label, "summary": label, "advice": [label]})
        # This runs in the test process, because a subprocess takes a second to start.
        assert apprise_process.hand_over(
            address(receiver, f"?format={shows}"), **apprise_sender.parts(hostile)
        )
        sent = json.loads(receiver.received[-1].body)
        for text in (sent["title"], sent["message"]):
            assert "@everyone" not in text
            assert "@123" not in text
        # The title is a separate line, such as the subject of an email.
        assert shows != "html" or Tags(sent["message"]).seen <= {"br"}, label


def test_an_alert_goes_to_each_address_on_the_schedule_of_webhooks(
    engine: Engine, alert: Alert, receiver: Any
) -> None:
    receiver.answers = [500, 204]
    config = Config(apprise_urls=(address(receiver, "/1"), address(receiver, "/2")))
    sending = Deliverer(engine, config, Seams(dice=lambda: 0.0))
    sending.start()
    sending.stop()
    now = time.time()
    with writing(engine) as connection:
        assert add(connection, [replace(alert, created_at=now)]) == 2
    assert sending.run_once(now)
    assert {(row.state, row.last_error) for row in rows(engine)} == {
        ("pending", "the service refused the message from apprise"), ("delivered", None),
    }  # fmt: skip
    # The first attempt took as long as a subprocess takes to start.
    assert sending.run_once(now + 60)
    assert [row.state for row in rows(engine)] == ["delivered", "delivered"]
    assert sorted(r.path for r in receiver.received) == ["/hook/1", "/hook/1", "/hook/2"]


def test_without_the_package_one_line_is_logged_and_nothing_is_written(
    engine: Engine, alert: Alert, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(apprise_urls=("json://hook.example/token",))
    Deliverer(engine, config)._register()
    assert caplog.text == ""
    monkeypatch.setattr(apprise_sender, "find_spec", lambda _name: None)
    Deliverer(engine, config)._register()
    (record,) = caplog.records
    assert "pip install 'leakline[notify]'" in record.message
    assert "token" not in record.message
    with writing(engine) as connection:
        assert add(connection, [alert]) == 0
    outcome = apprise_sender.notify("json://hook.example/token", MESSAGE)
    assert isinstance(outcome, TryAgain)
    assert "not installed" in outcome.reason


def test_an_address_removed_from_the_environment_gets_no_alerts(
    engine: Engine,
) -> None:
    url = "mailto://me:password@mail.example"
    (hook,) = webhooks.register_apprise(engine, [url, url], 0.0)
    assert webhooks.register_apprise(engine, [], 1.0) == []
    (gone,) = webhooks.list_webhooks(engine)
    assert gone.left_out
    assert webhooks.register_apprise(engine, [url], 2.0) == [hook]
    # The webhook of the other variable is not touched.
    webhooks.unregister(engine)
    assert webhooks.list_webhooks(engine) == [hook]


def test_the_page_shows_the_service_and_hides_the_rest_of_the_address(
    database_url: str, receiver: Any
) -> None:
    config = Config(database_url=database_url, apprise_urls=(address(receiver, "/very-secret"),))
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        page = client.get("/alerts").text
        assert "very-secret" not in page
        assert "apprise json" in page
        (own,) = client.get("/api/v1/webhooks").json()["items"]
        assert (own["origin"], own["source"], own["format"]) == (
            "apprise json", "environment", "apprise",
        )  # fmt: skip
        tested = client.post("/api/v1/webhooks/1/test").json()
        assert (tested["delivered"], tested["status"]) == (True, None)
        refused = client.delete("/api/v1/webhooks/1")
        assert "LEAKLINE_APPRISE_URLS" in refused.json()["error"]["message"]
        assert "Last test on" in client.get("/alerts").text


@pytest.mark.parametrize("text", ["me@mail.example", ",".join(["json://x/"] * 33)])
def test_a_wrong_setting_is_named_without_its_value(text: str) -> None:
    with pytest.raises(WrongSettings) as refused:
        from_environment({"LEAKLINE_APPRISE_URLS": text})
    assert "LEAKLINE_APPRISE_URLS" in str(refused.value)
    assert "me@mail" not in str(refused.value)


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
    """Assert that no apprise process and no thread is left."""
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "apprise_process.py" in " ".join(child.cmdline())]
    assert not [each for each in threading.enumerate() if "apprise" in each.name]


@pytest.mark.parametrize("url", ["pigeon://SECRET", "json://me:SECRET@127.0.0.1:1/SECRET"])
def test_an_unreachable_address_is_not_shown(
    url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = apprise_sender.notify(url, MESSAGE)
    assert isinstance(outcome, GiveUp if url.startswith("pigeon") else (GiveUp, TryAgain)), outcome
    assert "SECRET" not in outcome.reason
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_a_redirect_is_not_followed(receiver: Any) -> None:
    moved = f"HTTP/1.1 307 Moved\r\nLocation: {receiver.url}\r\nContent-Length: 0\r\n\r\n"
    with service(says(moved.encode())) as place:
        assert isinstance(apprise_sender.notify(f"json://{place}", MESSAGE), TryAgain)
    assert receiver.received == []


@pytest.mark.parametrize("answer", [endless, trickle])
def test_an_endless_answer_leaves_no_process_and_no_thread(
    answer: Callable[[socket.socket], object],
) -> None:
    with service(answer) as place:
        outcome = apprise_sender.notify(
            f"json://{place}", MESSAGE, total_seconds=60.0 if answer is endless else 1.0
        )
    assert isinstance(outcome, TryAgain)
    # One ends at the memory limit, which apprise may report as a refusal; the other ends at the time limit.
    is_at_its_time = outcome.reason == "no answer within 1 s"
    assert is_at_its_time == (answer is trickle), outcome
    assert_nothing_is_left()


@pytest.mark.parametrize(
    "answer",
    [says(b"\x00\xff\x00"), says(HEAD + b"Content-Encoding: gzip\r\n\r\nnot gzip")],
)
def test_an_invalid_answer_is_retried(
    answer: Callable[[socket.socket], object], capfd: pytest.CaptureFixture[str]
) -> None:
    with service(answer) as place:
        outcome = apprise_sender.notify(f"json://{place}/SECRET", MESSAGE, total_seconds=20.0)
    # A response with a good status line counts as delivered; the rest of it is not checked.
    assert isinstance(outcome, (TryAgain, Delivered)), outcome
    if isinstance(outcome, TryAgain):
        assert "SECRET" not in outcome.reason and "\n" not in outcome.reason
    assert capfd.readouterr() == ("", "")


def test_a_process_that_ends_without_a_result_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "apprise.py").write_text("raise RuntimeError('SECRET')")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = apprise_sender.notify("json://127.0.0.1/SECRET", MESSAGE)
    assert isinstance(outcome, TryAgain)
    assert outcome.reason == "the apprise process ended without a result"
    assert capfd.readouterr() == ("", "")


def test_texts_of_any_size_and_kind_become_a_bounded_message(receiver: Any) -> None:
    hostile = "\ud800\x00\x1b[2J\u202e" + "\N{GRINNING FACE}@everyone " * 2_000
    facts = {**FACTS, "title": hostile, "summary": hostile, "advice": [hostile] * 50}
    parts = apprise_sender.parts(replace(MESSAGE, facts=facts))
    assert len(parts["title"]) <= apprise_sender.MAX_TITLE
    assert len(parts["body"]) <= apprise_sender.MAX_BODY
    assert len(parts["title"]) + len(parts["body"]) <= 2_000, "Discord refuses more"
    assert parts["body"].endswith("\nhttps://leakline.example/runs/r1")
    for text in (parts["title"], parts["body"].replace("\n", "")):
        assert text.replace("\u200b", "").isprintable()
        assert "@everyone" not in text
    assert apprise_process.hand_over(address(receiver), **parts)
    # Facts that are not texts get no line.
    odd = replace(MESSAGE, facts={"title": 7, "summary": ["x"], "advice": {"a": 1}, "link": None})
    assert apprise_sender.parts(odd)["title"] == odd.event


@pytest.mark.parametrize(
    "url",
    ["json://169.254.169.254/latest", "mailto://me:SECRET@127.0.0.1", "syslog://", "file:///etc/passwd"],
)  # fmt: skip
def test_apprise_addresses_cannot_be_added_over_the_network(
    shared_api: TestClient, url: str
) -> None:
    for form in ("apprise", "standard"):
        answer = shared_api.post("/api/v1/webhooks", json={"url": url, "format": form})
        assert answer.status_code == 422
        assert "SECRET" not in answer.text and "\n" not in answer.json()["error"]["message"]
    assert shared_api.get("/api/v1/webhooks").json()["items"] == []


def test_the_process_does_not_see_the_settings_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKLINE_ADMIN_PASSWORD", "SECRET")
    assert "SECRET" not in apprise_sender._environment().values()
