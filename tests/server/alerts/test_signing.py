"""Messages are signed so that the published library of the specification accepts them, and nothing else does."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from leakline_server.alerts.signing import check_secret, make_secret, signed_headers

BODY = '{"type":"incident.confirmed","data":{"name":"Füllstand"}}'.encode()


def _of_bytes(size: int) -> str:
    return "whsec_" + base64.b64encode(bytes(size)).decode()


def test_a_body_changed_by_one_byte_is_not_accepted() -> None:
    secret = make_secret()
    headers = signed_headers(secret, "msg_1", time.time(), BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY.replace(b"confirmed", b"recovered"), headers)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_changed_header_is_not_accepted(name: str) -> None:
    secret = make_secret()
    headers = signed_headers(secret, "msg_1", time.time(), BODY)
    changed = {"webhook-id": "msg_2", "webhook-timestamp": str(int(time.time()) - 10)}
    signature = "v1," + base64.b64encode(bytes(32)).decode()
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY, {**headers, name: changed.get(name, signature)})


def test_another_secret_does_not_accept_it() -> None:
    headers = signed_headers(make_secret(), "msg_1", time.time(), BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(make_secret()).verify(BODY, headers)


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
    old, new = make_secret(), make_secret()
    headers = signed_headers(new, "msg_1", time.time(), BODY, previous=old)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        assert Webhook(secret).verify(BODY, headers)["type"] == "incident.confirmed"
    with pytest.raises(WebhookVerificationError):
        Webhook(make_secret()).verify(BODY, headers)


def test_the_newest_signature_comes_first() -> None:
    old, new, now = make_secret(), make_secret(), time.time()
    alone = signed_headers(new, "msg_1", now, BODY)["webhook-signature"]
    both = signed_headers(new, "msg_1", now, BODY, previous=old)["webhook-signature"]
    assert both.split(" ")[0] == alone
