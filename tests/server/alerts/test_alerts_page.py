"""The page /alerts with plain forms: what it says, what it never says, and what each button does."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from standardwebhooks import Webhook as Verifier
from starlette.testclient import TestClient

from leakline_server.alerts.address import networks
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store.alerts import Alert, add
from leakline_server.store.engine import writing
from leakline_server.store.tables import runs


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    config = Config(database_url=database_url, webhook_allow=networks("127.0.0.0/8"))
    with TestClient(
        create_app(config), base_url="http://127.0.0.1", follow_redirects=False
    ) as made:
        yield made


@pytest.fixture
def store(client: TestClient) -> Engine:
    found: Engine = client.app.state.services.engine  # type: ignore[attr-defined]
    return found


def text(client: TestClient) -> str:
    """The page as a person reads it."""
    answer = client.get("/alerts")
    assert answer.status_code == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<wbr>|<[^>]*>", "", answer.text)))


def actions(client: TestClient) -> list[str]:
    found = re.findall(r'<form method="post" action="([^"]+)"', client.get("/alerts").text)
    return [action for action in found if not action.startswith("/alerts/rules")]


def press(client: TestClient, action: str) -> str:
    """Press the button of a form that is on the page. Returns where it leads."""
    assert action in actions(client)
    answer = client.post(action, headers={"origin": "http://127.0.0.1"})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def add_webhook(client: TestClient, url: str, **fields: str) -> str:
    """Through the form. Returns the page that answers."""
    answer = client.post("/alerts/webhooks", data={"url": url, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.text


def tell(store: Engine, title: str = "Leak confirmed in erl/before-fix") -> None:
    now = time.time()
    with writing(store) as connection:
        connection.execute(
            insert(runs).values(
                id="r1", project="erl", name="before-fix", unit="generation", state="running",
                started_at=now, created_at=now, last_seen_at=now,
            )
        )  # fmt: skip
        facts = {"title": title, "link": "/runs/r1"}
        add(connection, [Alert("msg_1", "r1", None, "incident.confirmed", now, facts)])


def test_an_empty_page_says_what_to_do(client: TestClient) -> None:
    said = text(client)
    assert "Add the address of your chat" in said
    assert "LEAKLINE_WEBHOOK_URL" in said
    assert "Nothing was sent yet" in said
    assert client.head("/alerts").status_code == 200
    assert '<a href="/alerts" aria-current="page">' in client.get("/alerts").text
    assert "/alerts/webhooks" in actions(client)


def test_a_webhook_added_on_the_page_shows_its_secret_once(
    client: TestClient, store: Engine, receiver: Any
) -> None:
    answer = add_webhook(client, receiver.url + "/very-secret", name="our chat")
    (secret,) = re.findall(r"whsec_[\w+/=]+", html.unescape(answer))
    assert "very-secret" not in answer
    page = client.get("/alerts").text
    assert "whsec_" not in page
    assert "very-secret" not in page
    assert "our chat" in page
    tell(store)
    (got,) = receiver.wait_for(1)
    assert Verifier(secret).verify(got.body, got.headers)["type"] == "incident.confirmed"


def test_an_address_that_is_refused_says_why_at_the_form(client: TestClient) -> None:
    answer = client.post("/alerts/webhooks", data={"url": "http://10.0.0.1/x", "name": "inside"})
    assert answer.status_code == 422
    assert "LEAKLINE_WEBHOOK_ALLOW=10.0.0.1/32" in html.unescape(answer.text).replace("<wbr>", "")
    # What was typed is still there.
    assert 'value="inside"' in answer.text
    assert 'value="http://10.0.0.1/x"' in answer.text
    assert client.get("/api/v1/webhooks").json()["items"] == []


def test_a_page_of_another_site_presses_no_button(client: TestClient, receiver: Any) -> None:
    answer = client.post(
        "/alerts/webhooks", data={"url": receiver.url}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert client.get("/api/v1/webhooks").json()["items"] == []


def test_the_button_for_a_test_sends_one_and_says_what_came(
    client: TestClient, receiver: Any
) -> None:
    add_webhook(client, receiver.url)
    assert press(client, "/alerts/webhooks/1/test") == "/alerts#webhook-1"
    assert len(receiver.received) == 1
    assert re.search(r"Last test on .+ UTC: answered 204 in ", text(client))
    receiver.answers = [503]
    press(client, "/alerts/webhooks/1/test")
    assert re.search(r"Last test on .+ UTC: answered 503 \(", text(client))


def test_a_new_secret_is_shown_once_and_the_page_says_how_long_the_old_one_signs(
    client: TestClient, receiver: Any
) -> None:
    add_webhook(client, receiver.url)
    assert "/alerts/webhooks/1/rotate" in actions(client)
    answer = client.post("/alerts/webhooks/1/rotate")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert len(re.findall(r"whsec_[\w+/=]+", html.unescape(answer.text))) == 1
    said = text(client)
    assert "whsec_" not in said
    assert "The secret before this one signs too until" in said


def test_one_click_disables_and_one_enables_again(client: TestClient, receiver: Any) -> None:
    add_webhook(client, receiver.url)
    assert "/alerts/webhooks/1/enable" not in actions(client)
    press(client, "/alerts/webhooks/1/disable")
    assert "Disabled: by hand." in text(client)
    press(client, "/alerts/webhooks/1/enable")
    assert "Disabled" not in text(client)


def test_a_delivery_shows_its_state_and_tries_in_words_and_is_sent_again(
    client: TestClient, store: Engine, receiver: Any, eventually: Any
) -> None:
    add_webhook(client, receiver.url, name="chat")
    receiver.answers = [500, (200, {})]
    tell(store)
    receiver.wait_for(1)
    eventually(lambda: "waiting" in text(client))
    said = text(client)
    assert "Leak confirmed in erl/before-fix" in said
    assert "1 try" in said
    assert re.search(r"after a wait of [\d.]+ m?s: answered 500", said)
    assert "failing" in said
    assert "Nothing arrived in the last 1 try" in said
    assert "/alerts/deliveries/1/redeliver" not in actions(client)
    eventually(lambda: "arrived" in text(client).partition("Deliveries")[2])
    assert press(client, "/alerts/deliveries/1/redeliver") == "/alerts#deliveries"
    assert {r.headers["webhook-id"] for r in receiver.wait_for(3)} == {"msg_1"}


def test_a_deleted_webhook_leaves_the_page(client: TestClient, receiver: Any) -> None:
    add_webhook(client, receiver.url, name="chat")
    press(client, "/alerts/webhooks/1/delete")
    assert "chat" not in text(client).partition("Webhooks")[2].partition("Add the address")[0]
    gone = client.post("/alerts/webhooks/1/test")
    assert gone.status_code == 404
    assert "there is no webhook 1" in html.unescape(gone.text)


def test_the_webhook_of_the_environment_is_shown_and_not_deleted_here(
    database_url: str, receiver: Any
) -> None:
    config = Config(
        database_url=database_url, webhook_url=receiver.url, webhook_allow=networks("127.0.0.0/8")
    )
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        assert "from the environment" in text(client)
        assert sorted(actions(client)) == [
            "/alerts/webhooks", "/alerts/webhooks/1/disable", "/alerts/webhooks/1/test",
        ]  # fmt: skip
    with TestClient(
        create_app(Config(database_url=database_url)), base_url="http://127.0.0.1"
    ) as client:
        assert "Disabled: no longer in LEAKLINE_WEBHOOK_URL." in text(client)
        assert sorted(actions(client)) == [
            "/alerts/webhooks", "/alerts/webhooks/1/delete", "/alerts/webhooks/1/test",
        ]  # fmt: skip


def test_names_and_titles_are_text_whatever_they_hold(
    client: TestClient, store: Engine, receiver: Any
) -> None:
    script = "<script>alert(1)</script>"
    answer = add_webhook(client, receiver.url, name=script + '"><img src=x onerror=alert(1)>')
    tell(store, title=script)
    receiver.wait_for(1)
    for page in (answer, client.get("/alerts").text):
        assert script not in page
        assert "<img" not in page
    assert "<script>alert(1)</script>" in text(client)
