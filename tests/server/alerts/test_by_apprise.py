"""Alerts go out by way of apprise when it is installed: with a row, a schedule and a line on the page as webhooks."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from sqlalchemy import Engine, select
from starlette.testclient import TestClient
from tests.browser.hostile_labels import LABELS

from leakline_server.alerts import apprise_process, by_apprise
from leakline_server.alerts.formats.message import Message
from leakline_server.alerts.post import Delivered, GiveUp, TryAgain
from leakline_server.app import create_app
from leakline_server.config import Config, WrongSettings, from_environment
from leakline_server.store import webhooks
from leakline_server.store.alerts import Alert, add
from leakline_server.store.engine import writing
from leakline_server.store.tables import deliveries
from leakline_server.workers.deliver import Deliverer, Seams

FACTS = {
    "title": "Leak confirmed in erl/before-fix",
    "summary": "evaluate keeps 16 Environment per generation",
    "advice": ["Call close()."],
    "link": "/runs/r1",
}
MESSAGE = Message("incident.confirmed", 0.0, FACTS, "https://leakline.example")


def address(receiver: Any, path: str = "") -> str:
    """That of the test's receiver in the words of apprise, for its service json."""
    return receiver.url.replace("http://", "json://") + path


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(deliveries).order_by(deliveries.c.id)))


def test_a_message_arrives_as_title_text_and_link(receiver: Any) -> None:
    outcome = by_apprise.notify(address(receiver), MESSAGE)
    assert isinstance(outcome, Delivered)
    assert outcome.status is None
    (got,) = receiver.received
    sent = json.loads(got.body)
    assert (sent["title"], sent["type"]) == (FACTS["title"], "failure")
    for part in (FACTS["summary"], "Advice: Call close().", "https://leakline.example/runs/r1"):
        assert part in sent["message"]


@pytest.mark.parametrize("shows", ["text", "html", "markdown"])
def test_text_of_a_training_script_is_no_markup_and_calls_nobody(receiver: Any, shows: str) -> None:
    hostile = "<a href='//evil'>x</a> @everyone <@123>"
    told = replace(MESSAGE, facts={**FACTS, "title": hostile, "summary": hostile})
    assert isinstance(by_apprise.notify(address(receiver, f"?format={shows}"), told), Delivered)
    (got,) = receiver.received
    sent = json.loads(got.body)
    for text in (sent["title"], sent["message"]):
        assert "@everyone" not in text
        assert "@123" not in text
    # The title is a line of its own, such as the subject of a mail.
    assert shows != "html" or "<a" not in sent["message"]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)


def test_no_label_is_markup_in_a_mail(receiver: Any) -> None:
    for label in LABELS:
        told = replace(MESSAGE, facts={**FACTS, "summary": label, "advice": [label]})
        # Here and not in a process of its own, which takes a second to start.
        assert apprise_process.hand_over(
            address(receiver, "?format=html"), **by_apprise.parts(told)
        )
        sent = json.loads(receiver.received[-1].body)
        assert Tags(sent["message"]).seen <= {"br"}, label


def test_what_the_service_refuses_is_tried_again(receiver: Any) -> None:
    receiver.answers = [500]
    outcome = by_apprise.notify(address(receiver), MESSAGE)
    assert isinstance(outcome, TryAgain)
    assert outcome.reason == "apprise: the service refused it"


def test_an_address_apprise_does_not_know_is_given_up() -> None:
    outcome = by_apprise.notify("pigeon://token-of-mine", MESSAGE)
    assert isinstance(outcome, GiveUp)
    assert "token-of-mine" not in outcome.reason


@pytest.mark.alone
def test_a_service_that_hangs_is_left_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"json://127.0.0.1:{hanging.getsockname()[1]}/"
        started = time.monotonic()
        outcome = by_apprise.notify(url, MESSAGE, total_seconds=0.3)
        assert time.monotonic() - started < 2
    assert isinstance(outcome, TryAgain)
    assert outcome.reason == "no answer within 0.3 s"


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
    first, second = rows(engine)
    assert {first.state, second.state} == {"pending", "delivered"}
    # The first attempt took as long as a process of its own takes to start.
    assert sending.run_once(now + 60)
    assert [row.state for row in rows(engine)] == ["delivered", "delivered"]
    assert sorted(r.path for r in receiver.received) == ["/hook/1", "/hook/1", "/hook/2"]


def test_without_the_package_one_line_says_so_and_nothing_is_written(
    engine: Engine, alert: Alert, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(apprise_urls=("json://hook.example/token",))
    Deliverer(engine, config)._register()
    assert caplog.text == ""
    monkeypatch.setattr(by_apprise, "find_spec", lambda _name: None)
    Deliverer(engine, config)._register()
    (record,) = caplog.records
    assert "pip install 'leakline[apprise]'" in record.message
    assert "token" not in record.message
    with writing(engine) as connection:
        assert add(connection, [alert]) == 0
    outcome = by_apprise.notify("json://hook.example/token", MESSAGE)
    assert isinstance(outcome, GiveUp)
    assert "not installed" in outcome.reason


def test_an_address_taken_out_of_the_environment_gets_nothing_more_until_it_is_back(
    engine: Engine,
) -> None:
    url = "mailto://me:password@mail.example"
    (hook,) = webhooks.register_apprise(engine, [url, url], 0.0)
    assert webhooks.register_apprise(engine, [], 1.0) == []
    (gone,) = webhooks.list_webhooks(engine)
    assert gone.left_out
    assert webhooks.register_apprise(engine, [url], 2.0) == [hook]
    # The webhook of the other variable is left alone.
    webhooks.unregister(engine)
    assert webhooks.list_webhooks(engine) == [hook]


def test_the_page_shows_the_service_and_never_what_follows(
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
        assert (tested["arrived"], tested["status"]) == (True, None)
        refused = client.delete("/api/v1/webhooks/1")
        assert "LEAKLINE_APPRISE_URLS" in refused.json()["error"]["message"]
        assert "Last test on" in client.get("/alerts").text


@pytest.mark.parametrize("text", ["me@mail.example", ",".join(["json://x/"] * 33)])
def test_a_wrong_setting_is_named_and_its_value_is_not(text: str) -> None:
    with pytest.raises(WrongSettings) as refused:
        from_environment({"LEAKLINE_APPRISE_URLS": text})
    assert "LEAKLINE_APPRISE_URLS" in str(refused.value)
    assert "me@mail" not in str(refused.value)
