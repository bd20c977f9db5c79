"""Messages are signed so that the published library of the specification accepts them, and nothing else does."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from leakline_server.alerts.sending.signing import check_secret, make_secret, signed_headers

BODY = '{"type":"incident.confirmed","data":{"name":"Füllstand"}}'.encode()


def _of_bytes(size: int) -> str:
    return "whsec_" + base64.b64encode(bytes(size)).decode()


SECRET = make_secret()


@pytest.mark.parametrize(
    ("secret", "body", "changed"),
    [
        (SECRET, BODY.replace(b"confirmed", b"recovered"), {}),
        (SECRET, BODY, {"webhook-id": "msg_2"}),
        (SECRET, BODY, {"webhook-timestamp": str(int(time.time()) - 10)}),
        (SECRET, BODY, {"webhook-signature": "v1," + base64.b64encode(bytes(32)).decode()}),
        (make_secret(), BODY, {}),
    ],
    ids=["body", "id", "time", "signature", "secret"],
)
def test_what_was_changed_or_is_of_another_secret_is_not_accepted(
    secret: str, body: bytes, changed: dict[str, str]
) -> None:
    headers = signed_headers(SECRET, "msg_1", time.time(), BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, {**headers, **changed})


def test_an_old_message_is_not_accepted() -> None:
    secret = make_secret()
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(secret).verify(BODY, signed_headers(secret, "msg_1", time.time() - 301, BODY))


def test_the_published_library_accepts_what_we_sign() -> None:
    secret = make_secret()
    message = Webhook(secret).verify(BODY, signed_headers(secret, "msg_1", time.time(), BODY))
    assert message["data"]["name"] == "Füllstand"


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of the reference libraries of Standard Webhooks.
    headers = signed_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "password",
        "whsec_" + "A" * 16,
        "whsec_" + "A" * 100,
        "whsec_ÄÄÄÄ",
        "whsec_AAA AA",
        # As long as one is, but for what base64 does not have.
        "whsec_" + "AAAA " * 12,
        _of_bytes(23),
        _of_bytes(65),
    ],
)
def test_a_secret_that_is_none_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="24 to 64") as refused:
        check_secret(secret)
    assert not secret or secret == "whsec_" or secret not in str(refused.value)


@pytest.mark.parametrize("size", [24, 64])
def test_a_secret_of_the_least_and_of_the_most_bytes_is_one(size: int) -> None:
    assert check_secret(_of_bytes(size)) == _of_bytes(size)


def test_a_made_secret_is_of_the_specified_size_and_new_each_time() -> None:
    secret = make_secret()
    assert check_secret(secret) == secret
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert make_secret() != secret


def test_while_secrets_change_both_sign_and_either_receiver_accepts_it() -> None:
    old, new, now = make_secret(), make_secret(), time.time()
    headers = signed_headers(new, "msg_1", now, BODY, previous=old)
    newest, _ = headers["webhook-signature"].split(" ")
    assert newest == signed_headers(new, "msg_1", now, BODY)["webhook-signature"]
    for secret in (old, new):
        assert Webhook(secret).verify(BODY, headers)["type"] == "incident.confirmed"
    with pytest.raises(WebhookVerificationError):
        Webhook(make_secret()).verify(BODY, headers)
