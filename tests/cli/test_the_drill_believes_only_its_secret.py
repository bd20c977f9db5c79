"""The receiver checks signatures by itself; the library that signs them is asked here what is right."""

from __future__ import annotations

import http.client
import json
import time
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from standardwebhooks import Webhook

from leakline.drill.receiver import Receiver, signature_holds

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
OTHER = "whsec_" + "YWJjZGVmR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
BODY = json.dumps({"type": "incident.suspected", "data": {"run": {"id": "r1"}}}).encode()
AT = 1_760_000_000


def signed(secret: str = SECRET, body: bytes = BODY, at: int = AT) -> dict[str, str]:
    moment = datetime.fromtimestamp(at, tz=UTC)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(at),
        "webhook-signature": Webhook(secret).sign("msg_1", moment, body.decode()),
    }


@pytest.mark.parametrize(
    "headers",
    [
        signed(OTHER),
        signed(body=b"{}"),
        {**signed(), "webhook-id": "msg_2"},
        {**signed(), "webhook-timestamp": str(AT + 1)},
        {**signed(), "webhook-timestamp": "now"},
        {**signed(), "webhook-signature": "v1,é"},
        {name: text for name, text in signed().items() if name != "webhook-signature"},
        {},
    ],
    ids=["secret", "body", "id", "time", "no time", "no base64", "no signature", "nothing"],
)
def test_what_was_not_signed_so_is_not_believed(headers: dict[str, str]) -> None:
    assert not signature_holds(SECRET, headers, BODY, AT)


def test_a_message_signed_long_ago_is_not_believed() -> None:
    assert not signature_holds(SECRET, signed(), BODY, AT + 301)


def test_a_signed_message_is_believed_also_with_a_second_signature() -> None:
    headers = signed()
    assert signature_holds(SECRET, headers, BODY, AT + 5)
    both = f"{signed(OTHER)['webhook-signature']} {headers['webhook-signature']}"
    assert signature_holds(SECRET, {**headers, "webhook-signature": both}, BODY, AT)


def _post(receiver: Receiver, headers: dict[str, str], body: bytes) -> int:
    address = urlsplit(receiver.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    connection.request("POST", address.path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_what_is_posted_is_kept_by_run_with_what_its_signature_was_worth() -> None:
    with Receiver() as receiver:
        now = int(time.time())
        assert _post(receiver, signed(receiver.secret, at=now), BODY) == 204
        assert _post(receiver, signed(OTHER, at=now), BODY) == 401
        assert _post(receiver, {}, b"not JSON") == 401
        receiver.wait("r1", lambda messages: len(messages) == 2, 5)
        found = receiver.of_run("r1")
        assert [one.signature_valid for one in found] == [True, False]
        assert [one.event for one in found] == ["incident.suspected"] * 2
        assert receiver.of_run("r2") == []


def test_waiting_for_what_does_not_come_ends() -> None:
    with Receiver() as receiver:
        receiver.wait("r1", lambda messages: bool(messages), 0.05)
        assert receiver.of_run("r1") == []
