"""One POST never does more than it should, however the other side behaves."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakline_server.alerts.sending.address_check import CheckedAddress, WebhookUrl, check, networks
from leakline_server.alerts.sending.http_post import Delivered, GiveUp, TryAgain, post

LOOPBACK = networks("127.0.0.0/8")
# For the name hook.example, signed by itself, valid for a hundred years, with the key it is of no use without.
CERTIFICATE = Path(__file__).with_name("hook.example.pem")


def to(url: str) -> CheckedAddress:
    return check(url, LOOPBACK)


def test_a_redirect_is_not_followed(receiver: Any) -> None:
    receiver.answers = [(302, {"Location": receiver.url + "/internal"})]
    outcome = post(to(receiver.url), b"{}", {})
    assert isinstance(outcome, TryAgain)
    assert (outcome.status, "redirects are not followed" in outcome.reason) == (302, True)
    assert len(receiver.received) == 1


def test_the_connection_goes_to_the_checked_address_and_never_to_the_name(receiver: Any) -> None:
    port = int(receiver.url.split(":")[2].split("/")[0])
    # This name has no address anywhere (RFC 2606); only the checked one can be what is called.
    checked = CheckedAddress(WebhookUrl(False, "hook.invalid", port, "/hook"), ("127.0.0.1",))
    assert isinstance(post(checked, b"{}", {}), Delivered)
    assert receiver.received[0].headers["host"] == f"hook.invalid:{port}"


def test_an_answer_of_a_byte_at_a_time_ends_at_the_deadline(answering: Any) -> None:
    answering.send(
        *[bytes([b]) for b in b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 500], every_seconds=0.02
    )
    started = time.monotonic()
    outcome = post(to(answering.url), b"{}", {}, total_seconds=0.4)
    assert isinstance(outcome, TryAgain)
    assert "no answer within" in outcome.reason
    assert 0.3 < time.monotonic() - started < 3


def test_endless_headers_are_not_read_to_their_end(answering: Any) -> None:
    answering.send(
        b"HTTP/1.1 200 OK\r\n", *[b"X-%d: " % i + b"a" * 16_000 + b"\r\n" for i in range(400)]
    )
    outcome = post(to(answering.url), b"{}", {}, total_seconds=5)
    assert isinstance(outcome, TryAgain)
    assert answering.sent_bytes < 6_000_000


def test_an_endless_body_after_a_good_status_is_a_delivery_and_is_not_read(answering: Any) -> None:
    answering.send(b"HTTP/1.1 200 OK\r\n\r\n", *[b"a" * 65_536] * 400)
    outcome = post(to(answering.url), b"{}", {})
    assert isinstance(outcome, Delivered)
    assert answering.sent_bytes < 20_000_000


def test_an_answer_that_is_no_http_is_named_without_repeating_it(answering: Any) -> None:
    answering.send(b"<script>alert(1)</script>\r\n\r\n")
    outcome = post(to(answering.url), b"{}", {})
    assert isinstance(outcome, TryAgain)
    assert "not HTTP" in outcome.reason
    assert "script" not in outcome.reason


def test_a_connection_that_is_dropped_is_tried_again(answering: Any) -> None:
    answering.send()
    assert isinstance(post(to(answering.url), b"{}", {}), TryAgain)


def test_nobody_listening_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = post(to(f"http://127.0.0.1:{port}/"), b"{}", {})
    assert isinstance(outcome, TryAgain)
    assert outcome.status is None
    assert "refused" in outcome.reason


def test_the_next_checked_address_is_called_when_the_first_takes_no_connection(
    receiver: Any,
) -> None:
    port = int(receiver.url.split(":")[2].split("/")[0])
    checked = CheckedAddress(
        WebhookUrl(False, "hook.invalid", port, "/"), ("127.0.0.2", "127.0.0.1")
    )
    assert isinstance(post(checked, b"{}", {}), Delivered)


@pytest.mark.parametrize("status", [400, 404, 409, 411, 429, 500])
def test_a_refusal_is_tried_again(receiver: Any, status: int) -> None:
    receiver.answers = [status]
    outcome = post(to(receiver.url), b"{}", {})
    assert isinstance(outcome, TryAgain)
    assert (outcome.status, outcome.wait_seconds) == (status, None)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), ("999999999999", 600.0), ("-5", None), ("soon", None), ("", None),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Fri, 01 Jan 2999 00:00:00 GMT", 600.0),
     ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
     ("Mon, 01 Jan 2029 00:00:00 +99999999999999999999", None)],
)  # fmt: skip
def test_what_the_receiver_asks_to_wait_is_honoured_within_reason(
    receiver: Any, header: str, seconds: float | None
) -> None:
    receiver.answers = [(503, {"Retry-After": header})]
    outcome = post(to(receiver.url), b"{}", {})
    assert isinstance(outcome, TryAgain)
    assert outcome.wait_seconds == seconds


def test_gone_is_for_ever(receiver: Any) -> None:
    receiver.answers = [410]
    outcome = post(to(receiver.url), b"{}", {})
    assert isinstance(outcome, GiveUp)
    assert outcome.disable


@pytest.mark.parametrize("status", [200, 204])
def test_any_success_is_a_delivery_with_its_time(receiver: Any, status: int) -> None:
    receiver.answers = [status]
    outcome = post(to(receiver.url), "{ü}".encode(), {"webhook-id": "msg_1"})
    assert isinstance(outcome, Delivered)
    assert outcome.status == status
    assert 0 < outcome.seconds < 5
    (received,) = receiver.received
    assert received.body == "{ü}".encode()
    assert received.headers["webhook-id"] == "msg_1"


@pytest.fixture
def tls_port() -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                    # Whoever closes before all has come resets the connection, and the answer may be lost.
                    received = b"-"
                    while received and not received.endswith(b"{}"):
                        received = connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            except ssl.SSLError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_certificate_nobody_vouches_for_is_not_accepted(tls_port: int) -> None:
    url = WebhookUrl(True, "hook.example", tls_port, "/")
    outcome = post(CheckedAddress(url, ("127.0.0.1",)), b"{}", {})
    assert isinstance(outcome, TryAgain)
    assert outcome.reason.startswith("TLS: ")


@pytest.mark.parametrize(("host", "accepted"), [("hook.example", True), ("other.example", False)])
def test_the_certificate_is_checked_against_the_name_and_not_the_address(
    tls_port: int, host: str, accepted: bool
) -> None:
    outcome = post(
        CheckedAddress(WebhookUrl(True, host, tls_port, "/"), ("127.0.0.1",)), b"{}", {},
        tls=lambda: ssl.create_default_context(cafile=str(CERTIFICATE)),
    )  # fmt: skip
    assert isinstance(outcome, Delivered) == accepted


def test_a_body_whose_length_makes_no_sense_changes_nothing_of_what_arrived(answering: Any) -> None:
    answering.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nxx")
    assert isinstance(post(to(answering.url), b"{}", {}), Delivered)
