"""Webhooks are created, tested, rotated, disabled and removed, through the API and on the page."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apprise
import pytest
from sqlalchemy import Engine, update
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from starlette.testclient import TestClient
from tests.server.alerts.conftest import rows
from tests.server.stored import engine_of, put_run

from leakline_server.alerts.sending import apprise_sender
from leakline_server.alerts.sending.address_check import AddressUnknown, networks
from leakline_server.alerts.sending.http_post import GiveUp
from leakline_server.alerts.sending.send_message import Chosen, chosen_by, send, trial
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.app import create_app
from leakline_server.config import Config, from_environment
from leakline_server.store.alerts import webhooks
from leakline_server.store.alerts.alert_rows import Alert, add
from leakline_server.store.engine import writing
from leakline_server.store.schema import deliveries as delivery_rows
from leakline_server.web import webhook_api
from leakline_server.workers.delivery_worker import Deliverer

HOOKS = "/api/v1/webhooks"


LOOPBACK = networks("127.0.0.0/8")


def served(database_url: str, **settings: Any) -> TestClient:
    app = create_app(Config(database_url=database_url, **settings))
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


@pytest.fixture
def client(database_url: str) -> Iterator[TestClient]:
    with served(database_url, webhook_allow=LOOPBACK) as made:
        yield made


def make(client: TestClient, url: str, **more: Any) -> dict[str, Any]:
    answer = client.post(HOOKS, json={"url": url, **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


def deliver(client: TestClient) -> None:
    client.app.state.services.deliver()  # type: ignore[attr-defined]


def write_alert(client: TestClient, title: str = "Leak 1") -> None:
    """Write an alert about a run, due now."""
    now = time.time()
    with writing(engine_of(client)) as connection:
        put_run(connection, "r1", name="before-fix", state="running", last_seen_at=now)
        facts = {"title": title, "link": "/runs/r1"}
        add(connection, [Alert("msg_1", "r1", None, "incident.confirmed", now, facts)])
    deliver(client)


def items(client: TestClient, path: str = HOOKS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(path).json()["items"]
    return found


def deliveries(client: TestClient, hook: int) -> list[dict[str, Any]]:
    return items(client, f"{HOOKS}/{hook}/deliveries")


def state(client: TestClient, hook: int) -> list[str]:
    return [item["state"] for item in deliveries(client, hook)]


def test_a_new_webhook_shows_its_secret_once_and_its_address_never(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url + "/very-secret-path", name="our chat")
    origin = receiver.url.removesuffix("/hook")
    assert made["secret"].startswith("whsec_")
    told = (made["name"], made["origin"], made["enabled"], made["source"])
    assert told == ("our chat", origin, True, "api")
    for path in (HOOKS, f"{HOOKS}/{made['id']}"):
        text = client.get(path).text
        assert made["secret"].removeprefix("whsec_") not in text
        assert "whsec_" not in text
        assert "very-secret-path" not in text
    assert items(client)[0]["origin"] == origin


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({}, "url", "required"),
        ({"url": "ftp://hook.example/"}, "url", "https://"),
        ({"url": "http://10.0.0.1/secret"}, "url", "LEAKLINE_WEBHOOK_ALLOW=10.0.0.1/32"),
        ({"url": "https://me:password@hook.example/"}, "url", "must not contain a user"),
        ({"url": "https://nowhere.invalid/secret"}, "url", "cannot be looked up"),
        ({"url": "http://127.0.0.1:9000/", "format": "pigeon"}, "format", "standard"),
        ({"url": "http://127.0.0.1:9000/", "name": "x" * 81}, "name", "80"),
        ({"url": "http://127.0.0.1:9000/", "secret": "mine"}, "secret", "not permitted"),
    ],
)
def test_a_wrong_webhook_is_refused_by_field_and_not_created(
    shared_api: TestClient, body: dict[str, Any], field: str, said: str
) -> None:
    answer = shared_api.post(HOOKS, json=body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["details"]["field"] == field
    assert said in error["message"]
    assert "/secret" not in error["message"]
    assert "password@" not in error["message"]
    assert items(shared_api) == []


def test_every_enabled_webhook_gets_an_alert_signed_with_its_own_secret(
    client: TestClient, receiver: Any, eventually: Any
) -> None:
    first = make(client, receiver.url + "/1")
    second = make(client, receiver.url + "/2", format="slack")
    silent = make(client, receiver.url + "/3")
    disabled = client.patch(f"{HOOKS}/{silent['id']}", json={"enabled": False}).json()
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "by hand")
    write_alert(client)
    by_path = {r.path: r for r in receiver.wait_for(2)}
    assert set(by_path) == {"/hook/1", "/hook/2"}
    for path, hook in (("/hook/1", first), ("/hook/2", second)):
        got = by_path[path]
        Verifier(hook["secret"]).verify(got.body, got.headers)
    assert json.loads(by_path["/hook/1"].body)["type"] == "incident.confirmed"
    eventually(lambda: state(client, first["id"]) == ["delivered"])
    assert state(client, silent["id"]) == []


def test_a_rotated_secret_is_shown_once_and_both_secrets_are_accepted(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url)
    rotated = client.post(f"{HOOKS}/{made['id']}/rotate")
    assert rotated.headers["cache-control"] == "no-store"
    new = rotated.json()["secret"]
    assert new != made["secret"]
    assert rotated.json()["previous_until"] is not None
    assert "whsec_" not in client.get(HOOKS).text
    write_alert(client)
    (got,) = receiver.wait_for(1)
    for secret in (new, made["secret"]):
        assert Verifier(secret).verify(got.body, got.headers)["data"]["title"] == "Leak 1"
    # After another rotation, the first of the three secrets is no longer accepted.
    again = client.post(f"{HOOKS}/{made['id']}/rotate").json()["secret"]
    client.post(f"{HOOKS}/{made['id']}/test")
    tested = receiver.wait_for(2)[1]
    for secret in (again, new):
        assert Verifier(secret).verify(tested.body, tested.headers)["type"] == "webhook.test"
    with pytest.raises(WebhookVerificationError):
        Verifier(made["secret"]).verify(tested.body, tested.headers)


def test_a_test_reports_its_outcome_and_is_shown_afterwards(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url)
    test = f"{HOOKS}/{made['id']}/test"
    assert made["last_test"] is None
    arrived = client.post(test).json()
    assert (arrived["delivered"], arrived["status"], arrived["error"]) == (True, 204, None)
    (got,) = receiver.received
    assert Verifier(made["secret"]).verify(got.body, got.headers)["type"] == "webhook.test"
    receiver.answers = [500]
    refused = client.post(test).json()
    told = (refused["delivered"], refused["status"], refused["error"])
    assert told == (False, 500, "answered 500")
    assert client.get(f"{HOOKS}/{made['id']}").json()["last_test"] == refused
    # A test is not an alert: it is not listed and does not count as a failure of the receiver.
    assert state(client, made["id"]) == []
    assert client.get(f"{HOOKS}/{made['id']}").json()["failures"] == 0


def test_a_webhook_keeps_its_secret_when_it_is_renamed_or_moved(
    client: TestClient, receiver: Any
) -> None:
    made = make(client, receiver.url)
    path = f"{HOOKS}/{made['id']}"
    changed = client.patch(path, json={"name": "new", "url": receiver.url + "/new"})
    assert changed.json()["name"] == "new"
    client.post(f"{path}/test")
    (got,) = receiver.received
    assert got.path == "/hook/new"
    assert Verifier(made["secret"]).verify(got.body, got.headers)
    refused = client.patch(path, json={"name": "x", "url": "http://10.0.0.1/"})
    assert refused.status_code == 422
    assert client.get(path).json()["name"] == "new"


def test_a_webhook_disabled_by_410_is_enabled_with_one_call(
    client: TestClient, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    receiver.answers = [410, 204]
    write_alert(client)
    eventually(lambda: not client.get(f"{HOOKS}/{made['id']}").json()["enabled"])
    assert "410" in client.get(f"{HOOKS}/{made['id']}").json()["disabled_reason"]
    (failed,) = deliveries(client, made["id"])
    again = f"/api/v1/deliveries/{failed['id']}/redeliver"
    assert client.post(again).json()["error"]["code"] == "webhook_disabled"
    assert client.post(f"{HOOKS}/{made['id']}/enable").json()["enabled"]
    assert client.post(again).json()["state"] == "pending"
    eventually(lambda: state(client, made["id"]) == ["delivered"])
    assert {r.headers["webhook-id"] for r in receiver.wait_for(2)} == {"msg_1"}
    (item,) = deliveries(client, made["id"])
    assert [each["status"] for each in item["history"]] == [410, 204]
    path = f"{HOOKS}/{made['id']}/deliveries"
    assert client.get(path, params={"cursor": "x"}).json()["error"]["details"]["field"] == "cursor"
    assert client.get(path, params={"limit": 0}).status_code == 422


def test_a_pending_delivery_cannot_be_sent_again_by_hand(
    client: TestClient, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    receiver.answers = [(503, {"Retry-After": "60"})]
    write_alert(client)
    receiver.wait_for(1)
    eventually(lambda: state(client, made["id"]) == ["pending"])
    (item,) = deliveries(client, made["id"])
    assert item["next_attempt_at"] > item["created_at"]
    refused = client.post(f"/api/v1/deliveries/{item['id']}/redeliver")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "delivery_waiting")


def test_deleting_a_webhook_deletes_its_deliveries(
    client: TestClient, receiver: Any, eventually: Any
) -> None:
    made = make(client, receiver.url)
    client.post(f"{HOOKS}/{made['id']}/test")
    write_alert(client)
    eventually(lambda: state(client, made["id"]) == ["delivered"])
    answer = client.delete(f"{HOOKS}/{made['id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert items(client) == []
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
def test_an_unknown_id_is_named(shared_api: TestClient, method: str, path: str) -> None:
    answer = shared_api.request(method, f"/api/v1{path}", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("webhook_not_found", "delivery_not_found")
    huge = shared_api.request(method, f"/api/v1{path.replace('9', str(2**70))}", json={})
    assert huge.status_code == 422


def test_a_form_that_is_sent_again_adds_no_second_webhook(database_url: str) -> None:
    with served(database_url) as client:
        sent = {"url": DISCORD, "name": "", "format": ""}
        assert client.post("/alerts/webhooks", data=sent).status_code == 200
        again = client.post("/alerts/webhooks", data=sent)
        assert (again.status_code, "already receives every alert" in again.text) == (200, True)
        assert len(items(client)) == 1
        # In another format it is another webhook; one that is unknown is refused all the same.
        assert client.post("/alerts/webhooks", data={**sent, "format": "bogus"}).status_code == 422
        assert (
            client.post("/alerts/webhooks", data={**sent, "format": "standard"}).status_code == 200
        )
        assert len(items(client)) == 2
        assert client.get("/alerts/webhooks").headers["location"] == "/alerts#webhooks"
        # A program may add it on purpose, for example in another format.
        assert client.post(HOOKS, json={"url": sent["url"]}).status_code == 201


def test_the_webhook_of_the_environment_cannot_be_changed_elsewhere(
    database_url: str, receiver: Any
) -> None:
    settings = {"webhook_url": receiver.url, "webhook_allow": LOOPBACK}
    with served(database_url, **settings) as client:
        (own,) = items(client)
        assert (own["source"], own["enabled"]) == ("environment", True)
        assert "from the environment" in text(client)
        assert sorted(actions(client)) == [
            "/alerts/webhooks", "/alerts/webhooks/1/disable", "/alerts/webhooks/1/test",
        ]  # fmt: skip
        path = f"{HOOKS}/{own['id']}"
        for answer in (
            client.delete(path),
            client.post(f"{path}/rotate"),
            client.patch(path, json={"url": "http://127.0.0.1:9000/"}),
        ):
            assert answer.status_code == 409
            assert "LEAKLINE_WEBHOOK_" in answer.json()["error"]["message"]
        assert client.post(f"{path}/test").json()["delivered"]
        assert client.patch(path, json={"name": "ops"}).json()["name"] == "ops"
        assert not client.patch(path, json={"enabled": False}).json()["enabled"]
    # A restart does not undo what a person did.
    with served(database_url, **settings) as client:
        (own,) = items(client)
        assert (own["name"], own["disabled_reason"]) == ("ops", "by hand")
        assert client.patch(f"{HOOKS}/{own['id']}", json={"enabled": True}).json()["enabled"]
    with served(database_url) as client:
        (gone,) = items(client)
        assert not gone["enabled"]
        assert "Disabled: no longer in LEAKLINE_WEBHOOK_URL." in text(client)
        assert "/alerts/webhooks/1/delete" in actions(client)


def text(client: TestClient) -> str:
    """Return the text of the page as a person reads it."""
    answer = client.get("/alerts")
    assert answer.status_code == 200
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<wbr>|<[^>]*>", "", answer.text)))


def actions(client: TestClient) -> list[str]:
    found = re.findall(r'<form method="post" action="([^"]+)"', client.get("/alerts").text)
    return [action for action in found if not action.startswith("/alerts/rules")]


def secrets_in(answer: Any) -> list[str]:
    """Return the secrets that a page shows once, which browsers do not cache."""
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    return re.findall(r"whsec_[\w+/=]+", html.unescape(answer.text))


def press(client: TestClient, action: str) -> str:
    """Press the button of a form on the page and return the address that it leads to."""
    assert action in actions(client)
    answer = client.post(action, headers={"origin": "http://127.0.0.1"})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def send_test(client: TestClient, hook: int) -> str:
    """Send a test and return what the page says about it, including the message."""
    assert f"/alerts/webhooks/{hook}/test" in actions(client)
    answer = client.post(f"/alerts/webhooks/{hook}/test", headers={"origin": "http://127.0.0.1"})
    assert answer.status_code == 200, answer.text
    (notice,) = re.findall(r'role="status">(.*?)</section>', answer.text, re.DOTALL)
    return html.unescape(re.sub(r"<wbr>|<[^>]*>", "", notice)).strip()


@pytest.mark.parametrize("form", ["standard", "slack"])
def test_a_test_shows_the_message_as_the_receiver_got_it(
    client: TestClient, receiver: Any, form: str
) -> None:
    make(client, receiver.url, format=form)
    said = send_test(client, 1)
    body = json.loads(receiver.received[0].body)
    if form == "standard":
        assert json.loads(said[said.index("{") :]) == body
    else:
        texts = ("Leakline test message", "Alerts from this server arrive here.", "webhook.test")
        assert all(each in said for each in texts) and "plain_text" not in said


SLACK = "https://hooks.slack.com/services/T0/B0/very-secret"
DISCORD = "https://discord.com/api/webhooks/1234/very-secret"
AZURE = "https://prod-1.westeurope.logic.azure.com:443/workflows/0a"
INVOKED = "/triggers/manual/paths/invoke"
TEAMS = (
    f"{AZURE}{INVOKED}?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=very-secret"
)
POWER = "https://default0.b.environment.api.powerplatform.com/powerautomate/automations/direct"


@pytest.mark.parametrize(
    ("url", "form", "service"),
    [
        (SLACK, "slack", "Slack"), (DISCORD, "apprise", "Discord"), (TEAMS, "apprise", "Teams"),
        ("https://hook.example/x", "standard", ""), ("http://discord.com/api/webhooks/1/x", "standard", ""),
        ("https://hooks.slack.com.evil.example/x", "standard", ""), ("https://discord.com:8443/", "apprise", "Discord"),
        ("https://evil.example/logic.azure.com", "standard", ""), ("https://discord.com@evil.example/", "standard", ""),
        ("https://[/x", "standard", ""),
    ],
)  # fmt: skip
def test_an_address_selects_the_format(url: str, form: str, service: str) -> None:
    assert chosen_by(url) == Chosen(form, service)


@pytest.mark.parametrize(
    ("url", "form", "service"),
    [(SLACK, "slack", "Slack"), (DISCORD, "apprise", "Discord"), (TEAMS, "apprise", "Teams")],
)
def test_a_pasted_chat_address_gets_the_format_of_that_chat(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, url: str, form: str, service: str
) -> None:
    monkeypatch.setattr(webhook_api, "check", lambda *_: None)
    monkeypatch.setattr(apprise_sender, "installed", lambda: True)
    made = make(client, url)
    assert made["format"] == form
    assert make(client, url, format="standard")["format"] == "standard"
    answer = client.post("/alerts/webhooks", data={"url": url, "back": "/runs/r1?tab=info"})
    said = html.unescape(re.sub("<wbr>", "", answer.text))
    assert f"in {service}'s format, because the address belongs to {service}." in said
    assert '<a href="/runs/r1?tab=info">Back to the run</a>' in said
    assert "very-secret" not in said and "whsec_" not in said
    assert [each["format"] for each in items(client)] == [form, "standard"]


@pytest.mark.parametrize(
    ("url", "more", "form"),
    [
        (SLACK, {}, "slack"), (DISCORD, {}, "apprise"), (TEAMS, {}, "apprise"),
        ("https://hook.example/x", {}, "standard"), (TEAMS, {"LEAKLINE_WEBHOOK_FORMAT": "standard"}, "standard"),
        ("https://hook.example/x", {"LEAKLINE_WEBHOOK_FORMAT": "slack"}, "slack"),
    ],
)  # fmt: skip
def test_the_webhook_of_the_environment_gets_its_format_from_the_address(
    engine: Engine, database_url: str, url: str, more: dict[str, str], form: str
) -> None:
    # Older servers stored it in the standard format.
    webhooks.register(engine, url, "standard", None, make_secret, time.time())
    environment = {"LEAKLINE_DATABASE_URL": database_url, "LEAKLINE_WEBHOOK_URL": url, **more}
    with TestClient(create_app(from_environment(environment))):
        (hook,) = webhooks.list_webhooks(engine)
    assert (hook.url, hook.format, hook.disabled_reason) == (url, form, None)


def test_chat_addresses_are_stored_and_known_to_apprise(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    monkeypatch.setattr(webhook_api, "check", lambda *_: None)
    for url in (
        DISCORD, f"{DISCORD}?thread=12", DISCORD.replace("discord.com", "discordapp.com"), TEAMS,
        f"{AZURE}{INVOKED}?sig=s",
        f"{POWER}/workflows/0a{INVOKED}?api-version=1&sig=s", f"{POWER}/cu/12/workflows/0a{INVOKED}?sig=s",
    ):  # fmt: skip
        hook = webhooks.get_webhook(engine, make(client, url)["id"])
        assert hook is not None and (hook.url, hook.format) == (url, "apprise")
        assert apprise.Apprise().add(url)


def test_a_chat_address_can_be_added_while_its_host_cannot_be_resolved(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(url: str, allowed: Any) -> None:
        raise AddressUnknown("the name server is away")

    monkeypatch.setattr(webhook_api, "check", away)
    assert make(client, SLACK)["format"] == "slack"
    assert client.post(HOOKS, json={"url": "https://hook.example/x"}).status_code == 422
    assert [each["format"] for each in items(client)] == ["slack"]


# Parts that apprise would read from an address, and that addresses of these services never have.
REFUSED = (
    f"{DISCORD}?template=/etc/x.json", f"{DISCORD}?template=http://127.0.0.1:1/", f"{DISCORD}?verify=no",
    f"{DISCORD}?thread=x", f"{DISCORD}?thread=1&verify=no",
    f"{DISCORD}?", f"{DISCORD}#x", f"{DISCORD}/slack", f"{DISCORD}/?verify=no",
    f"{DISCORD}%3Fverify=no", f"{DISCORD},json://127.0.0.1/", f"{DISCORD} json://127.0.0.1/", f"{DISCORD}\n",
    "https://discord.com/api/v10/webhooks/1/very-secret", "https://discord.com/api/webhooks/x/very-secret",
    "https://discord.com/", "https://dis\tcord.com/api/webhooks/1/very-secret",
    DISCORD.replace("discord.com", "me:very-secret@discord.com"), DISCORD.replace("discord.com", "@discord.com"),
    DISCORD.replace("discord.com", "discord.com:8443"), DISCORD.replace("discord.com", "discord.com:443"),
    f"{TEAMS}&template=/etc/x.json", f"{TEAMS}&template=http://127.0.0.1:1/", f"{TEAMS}&verify=no",
    f"{TEAMS}&Template=/etc/x.json", f"{TEAMS}&%74emplate=/etc/x.json", f"{TEAMS};template=/etc/x.json",
    f"{TEAMS}&:name=x", f"{TEAMS}&id=x", f"{TEAMS}&sig=x", f"{TEAMS}&sv=1.0", f"{TEAMS}%26template%3D/etc/x.json",
    f"{TEAMS}%2526verify%253Dno", f"{TEAMS}&", f"{TEAMS}#x", f"{AZURE}{INVOKED}", f"{AZURE}{INVOKED}?sv=1.0",
    f"{AZURE}{INVOKED}?sig=", f"{AZURE}{INVOKED}/x?sig=s", f"{AZURE}/x{INVOKED}?sig=s",
    f"{AZURE}/triggers/manual?sig=s", f"{POWER}/cu/x/workflows/0a{INVOKED}?sig=s", TEAMS.replace(":443", ":8443"),
    TEAMS.replace("https://", "https://me:very-secret@"), TEAMS.replace("https://", "https://127.0.0.1\\."),
)  # fmt: skip


def test_a_chat_address_with_extra_parts_is_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_api, "check", lambda *_: None)
    for url in REFUSED:
        answer = client.post(HOOKS, json={"url": url})
        assert answer.status_code == 422, url
        error = answer.json()["error"]
        assert (error["code"], error["details"]["field"]) == ("invalid_field", "url"), url
        assert "not allowed" in error["message"] and "\n" not in error["message"], url
        assert "very-secret" not in answer.text, url
    page = client.post("/alerts/webhooks", data={"url": REFUSED[0]})
    assert page.status_code == 422 and "not allowed" in page.text
    assert items(client) == []


@pytest.mark.parametrize(
    "url",
    [
        *REFUSED, "json://127.0.0.1/", "https://x.powerplatform.evil.example/workflows/0a" + INVOKED + "?sig=s", SLACK,
        "https://hook.example/x",
    ],
)  # fmt: skip
def test_a_stored_address_with_extra_parts_gets_no_request(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(apprise_sender, "notify", lambda *_: pytest.fail("it was handed over"))
    outcome = send(trial(url, "apprise", "", "http://127.0.0.1", 0.0, ""), LOOPBACK, 0.0)
    assert isinstance(outcome, GiveUp)
    assert "very-secret" not in outcome.reason
    assert "not allowed" in outcome.reason or "LEAKLINE_APPRISE_URLS" in outcome.reason


def test_a_stored_address_with_a_template_fails_without_a_request(
    database_url: str, engine: Engine, alert: Alert, receiver: Any
) -> None:
    url = f"{DISCORD}?template={receiver.url}"
    webhooks.make(engine, "", url, "apprise", "", time.time())
    now = time.time()
    with writing(engine) as connection:
        assert add(connection, [replace(alert, created_at=now)]) == 1
    assert Deliverer(engine, Config()).run_once(now)
    (row,) = rows(engine)
    assert row.state == "failed" and "query" in row.last_error and "not allowed" in row.last_error
    with served(database_url) as client:
        tested = client.post(f"{HOOKS}/1/test").json()
    assert not tested["delivered"] and "not allowed" in tested["error"]
    assert receiver.received == []


def test_a_chat_that_needs_apprise_is_refused_without_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apprise_sender, "installed", lambda: False)
    answer = client.post("/alerts/webhooks", data={"url": DISCORD, "back": "/runs/r1"})
    assert answer.status_code == 422
    said = html.unescape(answer.text).replace("<wbr>", "")
    assert "messages to Discord are sent with apprise" in said and "leakline[notify]" in said
    assert 'name="back" value="/runs/r1"' in said
    elsewhere = client.post("/alerts/webhooks", data={"url": DISCORD, "back": "//evil.example"})
    assert "evil.example" not in elsewhere.text
    assert items(client) == []


def test_the_page_of_a_run_says_where_its_alerts_are_sent(
    client: TestClient, receiver: Any
) -> None:
    client.post("/api/v1/runs", json={"id": "r1", "project": "erl"})
    page = client.get("/runs/r1").text
    assert "not sent anywhere yet" in page
    assert 'name="back" value="/runs/r1"' in page and 'name="url"' in page
    make(client, receiver.url, name="our chat")
    page = client.get("/runs/r1").text
    assert "our chat</b>" in page and 'name="url"' not in page
    assert 'href="/alerts"' in page


def test_an_empty_page_says_what_to_do(client: TestClient) -> None:
    said = text(client)
    assert "Add the webhook address of your chat" in said
    assert "LEAKLINE_WEBHOOK_URL" in said
    assert "Nothing has been sent yet" in said
    assert client.head("/alerts").status_code == 200
    assert '<a href="/alerts" aria-current="page">' in client.get("/alerts").text
    assert "/alerts/webhooks" in actions(client)


def test_a_webhook_added_on_the_page_shows_its_secret_once(
    client: TestClient, receiver: Any
) -> None:
    form = {"url": receiver.url + "/very-secret", "name": "our chat"}
    added = client.post("/alerts/webhooks", data=form)
    (secret,) = secrets_in(added)
    assert "very-secret" not in added.text
    page = client.get("/alerts").text
    assert "whsec_" not in page
    assert "very-secret" not in page
    assert "our chat" in page
    client.post(f"{HOOKS}/1/test")
    (got,) = receiver.received
    assert Verifier(secret).verify(got.body, got.headers)["type"] == "webhook.test"


def test_a_refused_address_is_explained_at_the_form(client: TestClient) -> None:
    answer = client.post("/alerts/webhooks", data={"url": "http://10.0.0.1/x", "name": "inside"})
    assert answer.status_code == 422
    assert "LEAKLINE_WEBHOOK_ALLOW=10.0.0.1/32" in html.unescape(answer.text).replace("<wbr>", "")
    # The typed values are still in the form.
    assert 'value="inside"' in answer.text
    assert 'value="http://10.0.0.1/x"' in answer.text
    assert items(client) == []


def test_a_page_of_another_site_cannot_press_a_button(client: TestClient, receiver: Any) -> None:
    answer = client.post(
        "/alerts/webhooks", data={"url": receiver.url}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert items(client) == []


def test_the_buttons_test_disable_enable_rotate_and_delete(
    client: TestClient, receiver: Any
) -> None:
    make(client, receiver.url, name="chat")
    assert send_test(client, 1).startswith("The test message reached chat: answered 204 in ")
    assert len(receiver.received) == 1
    assert re.search(r"Last test on .+ UTC: answered 204 in ", text(client))
    receiver.answers = [503]
    assert "did not reach chat: answered 503 (" in send_test(client, 1)
    assert re.search(r"Last test on .+ UTC: answered 503 \(", text(client))
    assert "/alerts/webhooks/1/enable" not in actions(client)
    press(client, "/alerts/webhooks/1/disable")
    assert "Disabled: by hand." in text(client)
    press(client, "/alerts/webhooks/1/enable")
    assert "Disabled" not in text(client)
    assert "/alerts/webhooks/1/rotate" in actions(client)
    assert len(secrets_in(client.post("/alerts/webhooks/1/rotate"))) == 1
    said = text(client)
    assert "whsec_" not in said
    assert "Messages are also signed with the previous secret until" in said
    press(client, "/alerts/webhooks/1/delete")
    assert (
        "chat" not in text(client).partition("Webhooks")[2].partition("Add the webhook address")[0]
    )
    gone = client.post("/alerts/webhooks/1/test")
    assert gone.status_code == 404
    assert "webhook 1 was not found" in html.unescape(gone.text)


def test_a_delivery_shows_its_state_and_attempts_and_can_be_sent_again(
    client: TestClient, receiver: Any, eventually: Any
) -> None:
    make(client, receiver.url, name="chat")
    receiver.answers = [500, (200, {})]
    write_alert(client, title="Leak confirmed in erl/before-fix")
    receiver.wait_for(1)
    eventually(lambda: "waiting" in text(client))
    said = text(client)
    assert "Leak confirmed in erl/before-fix" in said
    assert "1 attempt" in said
    assert re.search(r"after a wait of [\d.]+ m?s: answered 500", said)
    assert "failing" in said
    assert "1 failed attempt" in said
    assert "/alerts/deliveries/1/redeliver" not in actions(client)
    with writing(engine_of(client)) as connection:
        connection.execute(update(delivery_rows).values(due_at=0.0))
    deliver(client)
    eventually(lambda: "arrived" in text(client).partition("Deliveries")[2])
    assert press(client, "/alerts/deliveries/1/redeliver") == "/alerts#deliveries"
    assert {r.headers["webhook-id"] for r in receiver.wait_for(3)} == {"msg_1"}


def test_names_and_titles_are_shown_as_text(client: TestClient, receiver: Any) -> None:
    script = "<script>alert(1)</script>"
    form = {"url": receiver.url, "name": script + '"><img src=x onerror=alert(1)>'}
    answer = client.post("/alerts/webhooks", data=form).text
    write_alert(client, title=script)
    receiver.wait_for(1)
    for page in (answer, client.get("/alerts").text):
        assert script not in page
        assert "<img" not in page
    assert "<script>alert(1)</script>" in text(client)
