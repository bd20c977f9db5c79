"""A single HTTP request: accepted, retry later, or refused; bounded in time and memory; also via proxy and TLS.

`tls/server.pem` is signed by `tls/authority.pem`, for localhost, 127.0.0.1 and leakline.example.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import select
import socket
import socketserver
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tests.client.faults import ANSWERS, FaultServer

import leakline
from leakline.cli import main
from leakline.errors import ServerRefused, ServerUnreachable
from leakline.transport.http_delivery import (
    Accepted,
    Body,
    Delivery,
    Outcome,
    Refused,
    RetryLater,
    encode,
    request_json,
)

SECONDS = 0.3
Raw = Callable[[Iterable[bytes]], str]


@pytest.fixture
def raw_server() -> Iterator[Raw]:
    """Return a function that starts a server: it answers each connection with the next bytes and closes it."""
    listening: list[socket.socket] = []

    def serve(answers: Iterable[bytes]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener)

        def loop() -> None:
            for answer in answers:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(ConnectionError):
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    # Closing a socket that has unread data would reset the connection and discard the answer.
                    connection.recv(1)

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for listener in listening:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def post(address: str, timeout_seconds: float = 5.0) -> Outcome:
    return Delivery(address, timeout_seconds=timeout_seconds).request("POST", "/runs", {"id": "a"})


def test_a_refused_connection_is_retry_later_and_one_line_in_a_command(server: Any) -> None:
    server.stop()
    outcome = post(server.address)
    assert isinstance(outcome, RetryLater)
    assert "refused" in outcome.why.lower()
    with pytest.raises(ServerUnreachable, match="leakline serve"):
        request_json(server.address, "GET", "/runs")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 two hundred\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20000,
    ],
)  # fmt: skip
def test_an_answer_that_is_not_a_json_object_is_retry_later(raw_server: Raw, answer: bytes) -> None:
    assert isinstance(post(raw_server([answer] * 2)), RetryLater)


def test_some_statuses_are_retry_later_and_others_are_final(server: Any) -> None:
    for status in (408, 425, 429, 500, 502, 507, 599):
        server.answer(status, {"error": {"message": "busy"}}, Retry_After="7")
        assert post(server.address) == RetryLater("busy", 7.0, status)
    for status in (301, 400, 404, 413, 501):
        server.answer(status, {"error": {"code": "wrong", "message": "said in a sentence"}})
        assert post(server.address) == Refused(status, "wrong", "said in a sentence")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("0", 0.0), ("120", 120.0), (" 7 ", 7.0),
        # Dates are relative to the server's own clock; a date in the past means no delay.
        ("Sun, 22 Nov 2026 12:00:30 GMT", 30.0), ("Sun, 22 Nov 2026 11:59:00 GMT", 0.0),
        ("-5", None), ("soon", None), ("9" * 400, float("inf")), ("Sun, 99 Nov 2026", None),
        ("Sun, 22 Nov 99999999999999999999 12:00:30 GMT", None), ("1.5", None), ("\xb2", None), ("", None),
    ],
)  # fmt: skip
def test_retry_after_may_be_seconds_or_a_date(
    raw_server: Raw, said: str, seconds: float | None
) -> None:
    answer = (
        "HTTP/1.1 503 Busy\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\n"
        f"Retry-After: {said}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    assert post(raw_server([answer.encode("latin-1")])) == RetryLater("status 503", seconds, 503)


def test_a_retry_after_date_uses_our_clock_without_a_date_header(
    raw_server: Raw,
) -> None:
    at = formatdate(time.time() + 60, usegmt=True)
    answer = f"HTTP/1.1 429 Slow\r\nRetry-After: {at}\r\nContent-Length: 0\r\n\r\n".encode()
    outcome = post(raw_server([answer]))
    assert isinstance(outcome, RetryLater)
    assert outcome.after_seconds == pytest.approx(60, abs=3)


def test_error_text_from_any_server_is_safe_for_a_terminal(server: Any) -> None:
    server.answer(400, {"error": {"code": "a\x1bb", "message": "\x1b[2J\n\ud800 wiped"}})
    assert post(server.address) == Refused(400, "a b", "[2J   wiped")
    server.answer(403, b"<html>go away</html>")
    assert post(server.address) == Refused(403, "unknown", "status 403")


def test_the_connection_is_kept_and_a_closed_one_is_opened_again(
    make_server: Any,
) -> None:
    first = make_server()
    delivery = Delivery(first.address)
    assert isinstance(delivery.request("POST", "/runs", {}), Accepted)
    kept = delivery._connection
    assert isinstance(delivery.request("POST", "/runs", {}), Accepted)
    assert delivery._connection is kept
    assert kept is not None
    # Servers that time out idle connections do this.
    kept.sock._sock.shutdown(socket.SHUT_RDWR)
    assert isinstance(delivery.request("POST", "/runs", {}), Accepted)
    assert len(first.requests) == 3


def test_large_bodies_are_compressed_and_nan_is_never_sent() -> None:
    small, large = encode({"a": 1}), encode({"a": [0] * 2000})
    assert not small.compressed
    assert json.loads(small.data) == {"a": 1}
    assert large.compressed
    assert len(large.data) < 200
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"x": float("nan")})


def test_a_command_gets_the_answer_or_the_refusal_of_the_server(server: Any) -> None:
    server.answer(200, {"items": []})
    assert request_json(server.address, "GET", "/runs") == {"items": []}
    server.answer(404, {"error": {"code": "no_such_run", "message": "no run x"}})
    with pytest.raises(ServerRefused, match="no run x") as caught:
        request_json(server.address, "GET", "/runs/x")
    assert (caught.value.status, caught.value.code) == (404, "no_such_run")


@pytest.mark.parametrize("mode", ["black hole", "dripping", "slow", *ANSWERS])
def test_every_fault_is_retry_later_within_bounded_time_and_memory(
    faulty: FaultServer, mode: str
) -> None:
    delivery = Delivery(faulty.address, timeout_seconds=SECONDS)
    assert isinstance(delivery.request("POST", "/runs", {"id": "a"}), Accepted)
    faulty.set(mode)
    tracemalloc.start()
    started = time.monotonic()
    outcome = delivery.request("POST", "/runs", {"id": "a"})
    seconds = time.monotonic() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(outcome, RetryLater)
    assert len(outcome.why) <= 500
    assert seconds < SECONDS + 0.5
    assert peak < 2 * 2**20
    faulty.set("healthy")
    assert isinstance(delivery.request("POST", "/runs", {"id": "a"}), Accepted)


def test_a_server_that_reads_too_slowly_times_out() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    done = threading.Event()

    def read_slowly() -> None:
        connection, _ = listener.accept()
        with connection:
            while not done.wait(0.05) and connection.recv(1):
                pass

    threading.Thread(target=read_slowly, daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    started = time.monotonic()
    # More than the buffers of both sockets can hold.
    body = Body(bytes(16_000_000), False, 16_000_000)
    outcome = Delivery(address, timeout_seconds=SECONDS).request("POST", "/runs", body)
    done.set()
    listener.close()
    assert isinstance(outcome, RetryLater)
    assert time.monotonic() - started < SECONDS + 2


@pytest.mark.alone
def test_a_network_that_drops_connections_times_out() -> None:
    """Nothing accepts and the backlog is full: the kernel answers no further connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(address)
        started = time.monotonic()
        outcome = post(f"http://127.0.0.1:{address[1]}", SECONDS)
        for connection in waiting:
            connection.close()
    assert isinstance(outcome, RetryLater)
    assert time.monotonic() - started < SECONDS + 0.5


def test_malformed_answers_never_raise(raw_server: Raw) -> None:
    """Valid answers with parts changed, duplicated, cut and swapped raise nothing."""
    good = [
        b'HTTP/1.1 200 OK\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\nContent-Length: 13\r\n\r\n{"accepted":1}',
        b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b'HTTP/1.0 400 No\r\nContent-Length: 36\r\n\r\n{"error":{"code":"a","message":"b"}}',
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    ]
    dice = random.Random(7)
    answers = [_changed(dice, dice.choice(good)) for _ in range(200)]
    # Some answers cause a second connection.
    address = raw_server(itertools.cycle(answers))
    for _ in answers:
        assert isinstance(post(address), (Accepted, Refused, RetryLater))


def _changed(dice: random.Random, answer: bytes) -> bytes:
    for _ in range(dice.randint(1, 4)):
        at, to = sorted(dice.choices(range(len(answer) + 1), k=2))
        piece = dice.choice(
            [b"", b"\x00", b"\r\n", b"9" * 30, b"-1", b":", b"\xff\xfe", b"\n\n", dice.randbytes(3)]
        )
        answer = dice.choice([answer[:at] + piece + answer[to:], answer[:to] + answer[at:]])
    return answer


def test_answers_over_the_size_limit_are_refused(raw_server: Raw) -> None:
    for length, kind in ((64 * 1024, Accepted), (64 * 1024 + 1, RetryLater)):
        body = b'{"a":"' + b"x" * (length - 8) + b'"}'
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
        assert isinstance(post(raw_server([head + body] * 2)), kind)


TLS = Path(__file__).parent / "tls"
AUTHORITY = TLS / "authority.pem"
HTTP = "http://leakline.example"


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def secure(server: Any) -> str:
    """Wrap the small server in TLS and return its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    return str(server.address.replace("http://", "https://"))


class Proxy(socketserver.ThreadingTCPServer):
    """Proxy that forwards every host to one local port, since a proxy resolves names itself."""

    daemon_threads = True

    def __init__(self, port: int, login: str | None) -> None:
        self.port, self.login = port, login
        # The request lines received.
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Forwarding)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Forwarding(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy: Any = self.server
        said = b""
        while b"\r\n\r\n" not in said:
            data = self.request.recv(65536)
            if not data:
                return
            said += data
        asked, *headers = said.decode("latin-1").split("\r\n")
        proxy.asked.append(asked.removesuffix(" HTTP/1.1"))
        if proxy.login and f"Proxy-Authorization: {proxy.login}" not in headers:
            self.request.sendall(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", proxy.port)) as server:
            if asked.startswith("CONNECT "):
                self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                server.sendall(said)
            _join(self.request, server)


def _join(one: socket.socket, other: socket.socket) -> None:
    """Forward data both ways until one side closes."""
    while True:
        ready, _, _ = select.select([one, other], [], [], 20)
        for end in ready:
            data = end.recv(65536)
            if not data:
                return
            (other if end is one else one).sendall(data)
        if not ready:
            return


@pytest.fixture
def proxy(server: Any) -> Iterator[Callable[..., Proxy]]:
    made: list[Proxy] = []

    def make(login: str | None = None) -> Proxy:
        made.append(Proxy(int(server.address.rpartition(":")[2]), login))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
        one.server_close()


Between = Callable[..., Proxy]


def ask(address: str, ca_file: Path | None = None) -> Outcome:
    delivery = Delivery(address, "the token", timeout_seconds=10, ca_file=ca_file)
    try:
        # Request twice: the second time on the kept connection.
        assert isinstance(delivery.request("GET", "/runs"), type(delivery.request("GET", "/runs")))
        return delivery.request("POST", "/runs", {"id": "a"})
    finally:
        delivery.close()


def test_localhost_is_never_reached_through_a_proxy(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.address)
    for host in ("127.0.0.1", "localhost", "127.0.0.2", "[::1]"):
        Delivery(f"http://{host}:9", timeout_seconds=1).request("GET", "/runs")
    assert server.requests == []


@pytest.mark.parametrize(
    "setting", ["http_proxy=", "HTTP_PROXY=http://", "all_proxy=http://", "ALL_PROXY="]
)
def test_another_host_is_reached_through_the_proxy_of_the_environment(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    between = proxy()
    monkeypatch.setenv(*f"{setting}{between.address}".split("=", 1))
    assert isinstance(ask(HTTP), Accepted)
    assert between.asked[0] == f"GET {HTTP}/api/v1/runs"
    assert server.headers == [{"id": "a"}]


@pytest.mark.parametrize("exempt", ["leakline.example", "a.b, leakline.example:80"])
def test_hosts_in_no_proxy_are_reached_directly(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    between = proxy()
    monkeypatch.setenv("http_proxy", between.address)
    monkeypatch.setenv("no_proxy", exempt)
    assert isinstance(Delivery(HTTP, timeout_seconds=1).request("GET", "/runs"), RetryLater)
    assert between.asked == []


def test_proxy_credentials_are_sent_to_the_proxy(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The header below decodes to "ann:p@ss".
    between = proxy("Basic YW5uOnBAc3M=")
    monkeypatch.setenv("http_proxy", f"http://ann:p%40ss@{between.address}")
    assert isinstance(ask(HTTP), Accepted)
    monkeypatch.setenv("http_proxy", f"http://ann:wrong@{between.address}")
    outcome = Delivery(HTTP).request("GET", "/runs")
    assert getattr(outcome, "status", None) == 407
    assert "wrong" not in str(outcome)


@pytest.mark.usefixtures("secure")
def test_https_uses_a_tunnel_and_sends_credentials_outside_of_it(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = proxy("Basic YW5uOnBAc3M=")
    monkeypatch.setenv("https_proxy", f"http://ann:p%40ss@{between.address}")
    assert isinstance(ask("https://leakline.example", AUTHORITY), Accepted)
    assert between.asked == ["CONNECT leakline.example:443"]
    assert [path for _, path in server.requests] == ["/api/v1/runs"] * 3
    monkeypatch.setenv("https_proxy", f"http://ann:wrong@{between.address}")
    outcome = Delivery("https://leakline.example", ca_file=AUTHORITY).request("GET", "/runs")
    assert isinstance(outcome, RetryLater)
    assert "407" in outcome.why
    assert "wrong" not in outcome.why


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("socks5://ann:secret@127.0.0.1:9", "cannot use a socks5:// proxy; only http:// proxies are supported"),
        *(
            (f"http://ann:sec{sign}ret@proxy.example:3128", "the proxy address in the environment is not valid")
            for sign in ("#", "\u2100", "[", "\udcff")
        ),
    ],
)  # fmt: skip
def test_an_unusable_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    monkeypatch.setenv("http_proxy", address)
    assert Delivery(HTTP, timeout_seconds=5).request("GET", "/runs") == RetryLater(why)


def test_a_certificate_from_an_unknown_authority_is_refused(server: Any, secure: str) -> None:
    outcome = Delivery(secure, timeout_seconds=5).request("POST", "/runs", {})
    assert isinstance(outcome, RetryLater)
    assert "LEAKLINE_CA_FILE" in outcome.why
    assert server.requests == []


def test_a_certificate_for_another_host_is_refused(server: Any, secure: str) -> None:
    elsewhere = secure.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(leakline.errors.ServerUnreachable):
        request_json(elsewhere, "GET", "/runs", ca_file=AUTHORITY)
    assert server.requests == []


def test_custom_and_openssl_authorities_are_trusted(
    server: Any, secure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(ask(secure, AUTHORITY), Accepted)
    assert isinstance(ask(secure.replace("127.0.0.1", "localhost"), AUTHORITY), Accepted)
    assert len(server.requests) == 6
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))
    assert isinstance(ask(secure), Accepted)


def test_a_tls_server_that_never_answers_times_out(server: Any, secure: str) -> None:
    server.hold = threading.Event()
    outcome = Delivery(secure, timeout_seconds=0.5, ca_file=AUTHORITY).request("GET", "/runs")
    assert isinstance(outcome, RetryLater)
    assert "0.5 s" in outcome.why or "timed out" in outcome.why


def test_a_run_a_sync_and_a_command_trust_the_same_authority(
    server: Any, secure: str, monkeypatch: pytest.MonkeyPatch, spool_directory: Path
) -> None:
    monkeypatch.setenv("LEAKLINE_SERVER", secure)
    monkeypatch.setenv("LEAKLINE_CA_FILE", str(AUTHORITY))
    run = leakline.init(quiet=True)
    run.generation(0)
    run.finish()
    assert server.ends[0]["state"] == "finished"
    sent = sorted(server.sequences)
    server.batches.clear()
    assert main(["sync", str(spool_directory), "--again"]) == 0
    assert sorted(server.sequences) == sent
    server.answer(200, {"items": []})
    assert main(["runs"]) == 0
    assert server.requests[-1][0] == "GET"
