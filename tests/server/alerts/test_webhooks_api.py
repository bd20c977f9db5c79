"""Webhooks made, tested, rotated, disabled and removed through the API, on a real receiver."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from starlette.testclient import TestClient

from leakline_server.alerts.address import networks
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store.alerts import Alert, add
from leakline_server.store.engine import writing
from leakline_server.store.tables import runs

HOOKS = "/api/v1/webhooks"
Settings = Callable[..., TestClient]


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    config = Config(database_url=database_url, webhook_allow=networks("127.0.0.0/8"))
    with TestClient(create_app(config), base_url="http://127.0.0.1") as made:
        yield made


@pytest.fixture
def store(client: TestClient) -> Engine:
    found: Engine = client.app.state.services.engine  # type: ignore[attr-defined]
    return found


def make(client: TestClient, url: str, **more: Any) -> dict[str, Any]:
    answer = client.post(HOOKS, json={"url": url, **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


def tell(store: Engine, number: int = 1, **changes: Any) -> None:
    """An alert about a run, due now."""
    now = time.time()
    with writing(store) as connection:
        if number == 1:
            connection.execute(
                insert(runs).values(
                    id="r1", project="erl", name="before-fix", unit="generation", state="running",
                    started_at=now, created_at=now, last_seen_at=now,
                )
            )  # fmt: skip
        facts = {"title": f"Leak {number}", "link": "/runs/r1"}
        values = {"urgent": True, "expires_at": None, **changes}
        add(
            connection,
            [Alert(f"msg_{number}", "r1", None, "incident.confirmed", now, facts, **values)],
        )


def state(client: TestClient, hook: int) -> list[str]:
    items = client.get(f"{HOOKS}/{hook}/deliveries").json()["items"]
    return [item["state"] for item in items]


def test_a_made_webhook_shows_its_secret_once_and_its_address_never(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url + "/very-secret-path", name="our chat")
    origin = receiver.url.removesuffix("/hook")
    assert made["secret"].startswith("whsec_")
    assert (made["name"], made["origin"], made["enabled"], made["source"]) == (
        "our chat", origin, True, "api",
    )  # fmt: skip
    for path in (HOOKS, f"{HOOKS}/{made['id']}"):
        text = client.get(path).text
        assert made["secret"].removeprefix("whsec_") not in text
        assert "whsec_" not in text
        assert "very-secret-path" not in text
    assert client.get(HOOKS).json()["items"][0]["origin"] == origin


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({}, "url", "required"),
        ({"url": "ftp://hook.example/"}, "url", "https://"),
        ({"url": "http://10.0.0.1/secret"}, "url", "LEAKLINE_WEBHOOK_ALLOW=10.0.0.1/32"),
        ({"url": "http://0x7f.1/secret"}, "url", "no usual spelling"),
        ({"url": "https://me:password@hook.example/"}, "url", "must not carry a user"),
        ({"url": "https://nowhere.invalid/secret"}, "url", "cannot be looked up"),
        ({"url": "http://127.0.0.1:9000/", "format": "pigeon"}, "format", "standard"),
        ({"url": "http://127.0.0.1:9000/", "name": "x" * 81}, "name", "80"),
        ({"url": "http://127.0.0.1:9000/", "name": "a\x00b"}, "name", "pattern"),
        ({"url": "http://127.0.0.1:9000/", "secret": "mine"}, "secret", "not permitted"),
    ],
)
def test_what_is_wrong_with_a_webhook_is_said_and_nothing_is_made(
    client: TestClient, body: dict[str, Any], field: str, said: str
) -> None:
    answer = client.post(HOOKS, json=body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["details"]["field"] == field
    assert said in error["message"]
    assert "/secret" not in error["message"]
    assert "password@" not in error["message"]
    assert client.get(HOOKS).json()["items"] == []


def test_every_enabled_webhook_gets_an_alert_signed_with_its_own_secret(
    client: TestClient, store: Engine, receiver: Any, eventually: Any
) -> None:
    first = make(client, receiver.url + "/1")
    second = make(client, receiver.url + "/2", format="slack")
    silent = make(client, receiver.url + "/3")
    answer = client.patch(f"{HOOKS}/{silent['id']}", json={"enabled": False})
    assert (answer.json()["enabled"], answer.json()["disabled_reason"]) == (
        False, "by hand",
    )  # fmt: skip
    tell(store)
    by_path = {r.path: r for r in receiver.wait_for(2)}
    assert set(by_path) == {"/hook/1", "/hook/2"}
    for path, hook in (("/hook/1", first), ("/hook/2", second)):
        got = by_path[path]
        Verifier(hook["secret"]).verify(got.body, got.headers)
    assert json.loads(by_path["/hook/1"].body)["type"] == "incident.confirmed"
    eventually(lambda: state(client, first["id"]) == ["delivered"])
    assert state(client, silent["id"]) == []


def test_a_rotated_secret_is_shown_once_and_both_are_accepted_meanwhile(
    client: TestClient, store: Engine, receiver: Any
) -> None:
    made = make(client, receiver.url)
    rotated = client.post(f"{HOOKS}/{made['id']}/rotate")
    assert rotated.headers["cache-control"] == "no-store"
    new = rotated.json()["secret"]
    assert new != made["secret"]
    assert rotated.json()["previous_until"] is not None
    assert "whsec_" not in client.get(HOOKS).text
    tell(store)
    (got,) = receiver.wait_for(1)
    for secret in (new, made["secret"]):
        assert Verifier(secret).verify(got.body, got.headers)["data"]["title"] == "Leak 1"
    again = client.post(f"{HOOKS}/{made['id']}/rotate").json()["secret"]
    client.post(f"{HOOKS}/{made['id']}/test")
    tested = receiver.wait_for(2)[1]
    for secret in (again, new):
        assert Verifier(secret).verify(tested.body, tested.headers)["type"] == "webhook.test"
    with pytest.raises(WebhookVerificationError):
        Verifier(made["secret"]).verify(tested.body, tested.headers)


def test_a_test_says_what_came_of_it_and_is_shown_afterwards(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url)
    test = f"{HOOKS}/{made['id']}/test"
    assert made["last_test"] is None
    arrived = client.post(test).json()
    assert (arrived["arrived"], arrived["status"], arrived["error"]) == (True, 204, None)
    (got,) = receiver.received
    assert Verifier(made["secret"]).verify(got.body, got.headers)["type"] == "webhook.test"
    receiver.answers = [500]
    refused = client.post(test).json()
    assert (refused["arrived"], refused["status"], refused["error"]) == (
        False, 500, "answered 500",
    )  # fmt: skip
    assert client.get(f"{HOOKS}/{made['id']}").json()["last_test"] == refused
    # A test is no alert: it is neither listed nor counted against the receiver.
    assert state(client, made["id"]) == []
    assert client.get(f"{HOOKS}/{made['id']}").json()["failures"] == 0


def test_a_webhook_is_renamed_and_pointed_elsewhere_with_its_secret(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url)
    changed = client.patch(
        f"{HOOKS}/{made['id']}", json={"name": "new", "url": receiver.url + "/new"}
    )
    assert changed.json()["name"] == "new"
    client.post(f"{HOOKS}/{made['id']}/test")
    (got,) = receiver.received
    assert got.path == "/hook/new"
    assert Verifier(made["secret"]).verify(got.body, got.headers)
    refused = client.patch(f"{HOOKS}/{made['id']}", json={"name": "x", "url": "http://10.0.0.1/"})
    assert refused.status_code == 422
    assert client.get(f"{HOOKS}/{made['id']}").json()["name"] == "new"


def test_one_call_enables_a_webhook_that_was_disabled_because_it_was_gone(
    client: TestClient, store: Engine, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    receiver.answers = [410, 204]
    tell(store)
    eventually(lambda: not client.get(f"{HOOKS}/{made['id']}").json()["enabled"])
    assert "410" in client.get(f"{HOOKS}/{made['id']}").json()["disabled_reason"]
    failed = client.get(f"{HOOKS}/{made['id']}/deliveries").json()["items"][0]
    again = f"/api/v1/deliveries/{failed['id']}/redeliver"
    assert client.post(again).json()["error"]["code"] == "webhook_disabled"
    assert client.post(f"{HOOKS}/{made['id']}/enable").json()["enabled"]
    assert client.post(again).json()["state"] == "pending"
    eventually(lambda: state(client, made["id"]) == ["delivered"])
    assert {r.headers["webhook-id"] for r in receiver.wait_for(2)} == {"msg_1"}


@pytest.mark.alone
def test_a_delivery_that_has_ended_is_sent_again_at_once_with_its_id(
    client: TestClient, store: Engine, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    tell(store)
    eventually(lambda: state(client, made["id"]) == ["delivered"])
    (item,) = client.get(f"{HOOKS}/{made['id']}/deliveries").json()["items"]
    asked = time.monotonic()
    assert client.post(f"/api/v1/deliveries/{item['id']}/redeliver").status_code == 200
    first, second = receiver.wait_for(2)
    assert time.monotonic() - asked < 1
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "msg_1"
    eventually(lambda: state(client, made["id"]) == ["delivered"])
    (item,) = client.get(f"{HOOKS}/{made['id']}/deliveries").json()["items"]
    assert (item["tries"], [t["status"] for t in item["history"]]) == (2, [204, 204])


def test_what_still_waits_is_not_sent_again_by_hand(
    client: TestClient, store: Engine, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    receiver.answers = [(503, {"Retry-After": "60"})]
    tell(store)
    receiver.wait_for(1)
    eventually(lambda: state(client, made["id"]) == ["pending"])
    (item,) = client.get(f"{HOOKS}/{made['id']}/deliveries").json()["items"]
    assert item["next_try_at"] > item["created_at"]
    refused = client.post(f"/api/v1/deliveries/{item['id']}/redeliver")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "delivery_waiting")


def test_deliveries_come_in_pages(client: TestClient, store: Engine, receiver: Any) -> None:
    made = make(client, receiver.url)
    for number in range(1, 6):
        tell(store, number)
    path, seen, cursor = f"{HOOKS}/{made['id']}/deliveries", [], ""
    while cursor is not None:
        found = client.get(path, params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        seen += [item["title"] for item in found.json()["items"]]
        cursor = found.json()["next"]
    assert seen == [f"Leak {number}" for number in (5, 4, 3, 2, 1)]
    assert client.get(path, params={"cursor": "x"}).json()["error"]["details"]["field"] == "cursor"
    assert client.get(path, params={"limit": 0}).status_code == 422


def test_a_deleted_webhook_is_gone_with_its_deliveries(
    client: TestClient, store: Engine, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    client.post(f"{HOOKS}/{made['id']}/test")
    tell(store)
    eventually(lambda: state(client, made["id"]) == ["delivered"])
    answer = client.delete(f"{HOOKS}/{made['id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert client.get(HOOKS).json()["items"] == []
    assert client.get(f"{HOOKS}/{made['id']}").status_code == 404
    assert make(client, receiver.url)["last_test"] is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/webhooks/9"), ("PATCH", "/webhooks/9"), ("DELETE", "/webhooks/9"),
        ("POST", "/webhooks/9/test"), ("POST", "/webhooks/9/rotate"), ("POST", "/webhooks/9/enable"),
        ("GET", "/webhooks/9/deliveries"), ("POST", "/deliveries/9/redeliver"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, f"/api/v1{path}", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("webhook_not_found", "delivery_not_found")
    huge = client.request(method, f"/api/v1{path.replace('9', str(2**70))}", json={})
    assert huge.status_code == 422


def test_the_webhook_of_the_environment_is_changed_there(database_url: str, receiver: Any) -> None:
    config = Config(
        database_url=database_url,
        webhook_url=receiver.url,
        webhook_allow=networks("127.0.0.0/8"),
    )
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        (own,) = client.get(HOOKS).json()["items"]
        assert (own["source"], own["enabled"]) == ("environment", True)
        path = f"{HOOKS}/{own['id']}"
        for answer in (
            client.delete(path),
            client.post(f"{path}/rotate"),
            client.patch(path, json={"url": "http://127.0.0.1:9000/"}),
        ):
            assert answer.status_code == 409
            assert "LEAKLINE_WEBHOOK_" in answer.json()["error"]["message"]
        assert client.post(f"{path}/test").json()["arrived"]
        assert client.patch(path, json={"name": "ops"}).json()["name"] == "ops"
        assert not client.patch(path, json={"enabled": False}).json()["enabled"]
    # A start does not take back what a person did.
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        (own,) = client.get(HOOKS).json()["items"]
        assert (own["name"], own["disabled_reason"]) == ("ops", "by hand")
    with TestClient(create_app(Config(database_url=database_url))) as client:
        client.base_url = "http://127.0.0.1"  # type: ignore[assignment]
        (gone,) = client.get(HOOKS).json()["items"]
        assert not gone["enabled"]
