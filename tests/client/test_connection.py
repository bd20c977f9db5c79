"""Through the proxy of the environment, and over TLS with a certificate of one's own; real sockets, a real small proxy.

`tls/server.pem` is signed by `tls/authority.pem`, for localhost, 127.0.0.1 and leakline.example.
"""

from __future__ import annotations

import os
import select
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.transport.http_delivery import Accepted, Delivery, Outcome, RetryLater, request_json

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
    """The small server, over TLS; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    return str(server.address.replace("http://", "https://"))


class Proxy(socketserver.ThreadingTCPServer):
    """Forwards to one port of this machine whatever host it is asked for, as a proxy resolves names itself."""

    daemon_threads = True

    def __init__(self, port: int, login: str | None) -> None:
        self.port, self.login = port, login
        # Request lines.
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
    """Pass on what either says until one has no more to say."""
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
        # Twice: the second time on the connection that was kept.
        assert isinstance(delivery.request("GET", "/runs"), type(delivery.request("GET", "/runs")))
        return delivery.request("POST", "/runs", {"id": "a"})
    finally:
        delivery.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "[::1]"])
def test_this_machine_is_never_asked_through_a_proxy(
    server: Any, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("http_proxy", server.address)
    Delivery(f"http://{host}:9", timeout_seconds=1).request("GET", "/runs")
    assert server.requests == []


@pytest.mark.parametrize(
    "setting", ["http_proxy=", "HTTP_PROXY=http://", "all_proxy=http://", "ALL_PROXY="]
)
def test_another_host_is_asked_through_the_proxy_of_the_environment(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    between = proxy()
    monkeypatch.setenv(*f"{setting}{between.address}".split("=", 1))
    assert isinstance(ask(HTTP), Accepted)
    assert between.asked[0] == f"GET {HTTP}/api/v1/runs"
    assert server.headers == [{"id": "a"}]


@pytest.mark.parametrize(
    "exempt", ["leakline.example", "example", ".example", "a.b, leakline.example:80", "*"]
)
def test_a_host_that_is_exempt_is_asked_directly(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    between = proxy()
    monkeypatch.setenv("http_proxy", between.address)
    monkeypatch.setenv("no_proxy", exempt)
    assert isinstance(Delivery(HTTP, timeout_seconds=1).request("GET", "/runs"), RetryLater)
    assert between.asked == []


def test_the_login_of_a_proxy_is_told_to_the_proxy(
    server: Any, proxy: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "ann:p@ss"
    between = proxy("Basic YW5uOnBAc3M=")
    monkeypatch.setenv("http_proxy", f"http://ann:p%40ss@{between.address}")
    assert isinstance(ask(HTTP), Accepted)
    monkeypatch.setenv("http_proxy", f"http://ann:wrong@{between.address}")
    outcome = Delivery(HTTP).request("GET", "/runs")
    assert getattr(outcome, "status", None) == 407
    assert "wrong" not in str(outcome)


@pytest.mark.usefixtures("secure")
def test_https_goes_through_a_tunnel_with_the_login_outside_of_it(
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
        (
            "socks5://ann:secret@127.0.0.1:9",
            "cannot use a proxy of the kind socks5://, only http://",
        ),
        ("http://ann:sec#ret@proxy.example:3128", "the proxy's address cannot be read"),
        ("http://ann:sec/ret@proxy.example:3128", "the proxy's address cannot be read"),
        ("http://ann:sec\u2100ret@proxy.example:3128", "the proxy's address cannot be read"),
        ("http://ann:sec[ret@proxy.example:3128", "the proxy's address cannot be read"),
        ("http://ann:sec\udcffret@proxy.example:3128", "the proxy's address cannot be read"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    monkeypatch.setenv("http_proxy", address)
    assert Delivery(HTTP, timeout_seconds=5).request("GET", "/runs") == RetryLater(why)


def test_a_certificate_that_nobody_vouches_for_is_refused(server: Any, secure: str) -> None:
    outcome = Delivery(secure, timeout_seconds=5).request("POST", "/runs", {})
    assert isinstance(outcome, RetryLater)
    assert "LEAKLINE_CA_FILE" in outcome.why
    assert server.requests == []


def test_a_certificate_of_another_name_is_refused(server: Any, secure: str) -> None:
    elsewhere = secure.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(leakline.errors.ServerUnreachable):
        request_json(elsewhere, "GET", "/runs", ca_file=AUTHORITY)
    assert server.requests == []


def test_an_authority_of_ones_own_and_that_of_openssl_are_believed(
    server: Any, secure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(ask(secure, AUTHORITY), Accepted)
    assert isinstance(ask(secure.replace("127.0.0.1", "localhost"), AUTHORITY), Accepted)
    assert len(server.requests) == 6
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))
    assert isinstance(ask(secure), Accepted)


def test_a_black_hole_behind_tls_is_given_up_in_time(server: Any, secure: str) -> None:
    server.hold = threading.Event()
    outcome = Delivery(secure, timeout_seconds=0.5, ca_file=AUTHORITY).request("GET", "/runs")
    assert isinstance(outcome, RetryLater)
    assert "0.5 s" in outcome.why or "timed out" in outcome.why


def test_a_run_a_sync_and_a_command_believe_the_same_authority(
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
    sync = [sys.executable, "-m", "leakline", "sync", str(spool_directory), "--again"]
    done = subprocess.run(sync, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(server.sequences) == sent
    server.answer(200, {"items": []})
    listed = [sys.executable, "-m", "leakline", "runs"]
    subprocess.run(listed, check=True, timeout=60, capture_output=True)
    assert server.requests[-1][0] == "GET"
