"""The services of docker-compose.yml without containers: two servers on one Postgres behind nginx; proxy headers."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.server import nginx
from tests.server.conftest import StartServer, copies_of
from tests.server.server_kills import SIZES, Figures, Sender, check, forward
from tests.server.test_live_updates import Stream

from leakline.cli import main
from leakline_server.config import from_environment
from leakline_server.serve import believed
from leakline_server.web.auth.authenticator import MAX_WRONG_PASSWORDS

pytestmark = pytest.mark.long


@dataclass
class Site:
    """Two servers, and the one address that people use."""

    servers: list[Any]
    proxy: nginx.Proxy
    start: Callable[..., Any]

    @property
    def port(self) -> int:
        return self.proxy.port

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        status, answer = forward(self.port, method, path, data or b"")
        return status, json.loads(answer) if answer[:1] in (b"{", b"[") else answer

    def figure(self, server: Any, name: str) -> float:
        """Return a metric from the server's own /metrics, which the proxy does not forward."""
        told = server.request("GET", "/metrics")[1]
        return sum(
            float(line.split()[1]) for line in told.splitlines() if line.startswith(f"{name} ")
        )


@pytest.fixture(params=[pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.flow])])
def site(
    request: pytest.FixtureRequest, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setenv("LEAKLINE_LOG_FORMAT", "json")
    # The setting of docker-compose.yml for the network of the proxy.
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1")
    with copies_of(request).new(tmp_path) as url:
        arguments = ["--database-url", url]
        servers = [serve(arguments=arguments), serve(arguments=arguments)]
        with nginx.running([server.port for server in servers]) as proxy:
            yield Site(servers, proxy, lambda port: serve(port, arguments))
        for server in servers:
            if server.process.poll() is None:
                server.kill()


def test_a_run_is_live_on_the_other_server(site: Site, make_run: Any) -> None:
    run = make_run()
    assert site.call("POST", "/api/v1/runs", run.header)[0] == 201
    stream = Stream(site.port, headers={"accept-encoding": "gzip"})
    assert stream.answer.getheader("content-type", "").startswith("text/event-stream")
    assert stream.answer.getheader("content-encoding") is None
    stream.until("run")
    waits = []
    for first in range(0, 60, 10):
        status, answer = site.call("POST", "/api/v1/runs/r1/batches", run.wire(first, 10))
        assert (status, answer["accepted"]) == (200, 10)
        began = time.monotonic()
        assert stream.rows_until(first + 9) == list(range(first, first + 10))
        waits.append(time.monotonic() - began)
    # If the proxy buffered the stream, nothing would arrive before much more had been written.
    assert sorted(waits)[len(waits) // 2] < 1.0, waits
    (watched,) = [s for s in site.servers if site.figure(s, "leakline_live_streams") == 1]
    (other,) = [server for server in site.servers if server is not watched]
    # The proxy prefers the server with fewer active requests, which is never the one with the stream.
    assert site.figure(other, "leakline_batches_accepted_total") >= 5
    stream.close()
    page = site.call("GET", "/runs/r1")
    assert page[0] == 200 and b"before-fix" in page[1]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_stopped_server_loses_nothing(site: Site, make_run: Any, how: str) -> None:
    senders = [
        Sender(make_run(id=f"k-{size}", instance=f"i-{size}"), size, site.port) for size in SIZES
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        assert sender.began.wait(60), sender.refusal
    victim, other = site.servers
    page = Stream(other.port, path="/api/v1/runs/k-1/live?since=0")
    if how == "killed":
        victim.kill()
    else:
        victim.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert victim.process.wait(10) == 0
        assert time.monotonic() - began < 5
    # They continue with one of the two servers.
    before = [sender.acknowledged for sender in senders]
    deadline = time.monotonic() + 30
    while any(s.acknowledged < was + 2 * s.size for s, was in zip(senders, before, strict=True)):
        assert time.monotonic() < deadline, [(s.acknowledged, s.refusal) for s in senders]
        senders[0].stopping.wait(0.02)
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join(30)
    figures = Figures()
    for sender in senders:
        check(figures, sender, other, exactly=False)
    again = site.start(victim.port)
    for sender in senders:
        sender.send_more(2, site.port)
        for server in (other, again):
            check(figures, sender, server, exactly=True)
    seen = page.rows_until(senders[0].acknowledged - 1)
    page.close()
    assert sorted(set(seen)) == list(range(senders[0].acknowledged))
    assert figures.wrong == []


def test_a_page_of_a_lost_server_misses_nothing(site: Site, make_run: Any) -> None:
    run = make_run()
    assert site.call("POST", "/api/v1/runs", run.header)[0] == 201
    stream = Stream(site.port)
    stream.until("run")
    assert site.call("POST", "/api/v1/runs/r1/batches", run.wire(0, 10))[0] == 200
    seen = stream.rows_until(9)
    stream.until("run")
    (watched,) = [s for s in site.servers if site.figure(s, "leakline_live_streams") == 1]
    watched.kill()
    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
        # The stream ends rather than hangs.
        list(stream)
    known = stream.last_id
    stream.close()
    assert site.call("POST", "/api/v1/runs/r1/batches", run.wire(10, 10))[0] == 200
    stream = Stream(site.port, headers={"Last-Event-ID": str(known)})
    seen += stream.rows_until(19)
    stream.close()
    assert sorted(set(seen)) == list(range(20))


PASSWORD = "correct horse battery"
FORM = "application/x-www-form-urlencoded"


def asked(
    port: int, method: str, path: str, body: str = "", viewer: str = "127.0.0.1", tls: bool = False, **headers: str
) -> tuple[int, Any, str]:  # fmt: skip
    """Send a request from this address of the machine; return status, headers and text of the response."""
    to: Any = {"port": port, "timeout": 20, "source_address": (viewer, 0)}
    connection = http.client.HTTPConnection("127.0.0.1", **to)
    if tls:
        trusted = ssl.create_default_context(cafile=str(AUTHORITY))
        connection = http.client.HTTPSConnection("127.0.0.1", context=trusted, **to)
    with contextlib.closing(connection):
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def sign_in(
    port: int, secret: str, viewer: str = "127.0.0.1", tls: bool = False, **headers: str
) -> tuple[int, Any, str]:
    form = urlencode({"secret": secret, "next": "/"})
    said = {"origin": f"http{'s' if tls else ''}://127.0.0.1:{port}", "content_type": FORM}
    return asked(port, "POST", "/sign-in", form, viewer, tls, **said | headers)


@pytest.fixture
def with_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the password as docker-compose.yml does, which turns authentication on for loopback, too."""
    monkeypatch.setenv("LEAKLINE_ADMIN_PASSWORD", PASSWORD)
    # uvicorn would trust this setting by default.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")


@pytest.mark.usefixtures("with_login")
def test_a_session_works_on_both_servers_and_failures_count_by_viewer(
    site: Site, make_run: Any
) -> None:
    port = site.port
    assert asked(port, "GET", "/", accept="text/html")[0] == 303
    assert site.call("GET", "/api/v1/runs")[0] == 401
    status, headers, text = sign_in(port, PASSWORD)
    assert status == 303, text
    cookie = headers["set-cookie"].partition(";")[0]
    assert [asked(port, "GET", "/", cookie=cookie)[0] for _ in range(4)] == [200] * 4
    token = json.dumps({"scope": "ingest", "project": "p"})
    origin = f"http://127.0.0.1:{port}"
    kind = {"content-type": "application/json"}
    who = {"cookie": cookie, "origin": origin, **kind}
    status, _, text = asked(port, "POST", "/api/v1/tokens", token, **who)
    assert status == 201, text
    bearer = {"authorization": f"Bearer {json.loads(text)['token']}", **kind}
    for number in range(4):
        header = make_run(id=f"r{number}").header | {"project": "p"}
        status, _, text = asked(port, "POST", "/api/v1/runs", json.dumps(header), **bearer)
        assert status == 201, text
    # Ten on each of the two servers.
    tries = [sign_in(port, "a guess", "127.0.0.2")[0] for _ in range(24)]
    assert tries.count(401) == 20 and tries[-1] == 429, tries
    assert sign_in(port, PASSWORD)[0] == 303


HELD = {"content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy"}


def test_the_proxy_forwards_all_but_metrics_and_answers_like_the_servers(
    site: Site, eventually: Any
) -> None:
    for path in ("/healthz", "/readyz"):
        assert site.call("GET", path) == (200, {"status": "ok"})
    status, answer = site.call("GET", "/api/v1/runs/nobody")
    assert (status, answer["error"]["code"]) == (404, "run_not_found")
    # The proxy logs failures, one object per line, and nothing else. nginx writes a line after its response.
    assert eventually(lambda: "GET /api/v1/runs/nobody 404" in site.proxy.access_log)
    told = [json.loads(line) for line in site.proxy.access_log.splitlines()]
    assert not [line for line in told if line["message"].endswith(" 200")]
    assert all(len(line["request"]) == 32 for line in told)

    def check(status: int, headers: Any, text: str, code: str) -> None:
        assert json.loads(text)["error"]["code"] == code, (status, text)
        assert headers["content-type"] == "application/json"
        assert all(len(headers.get_all(name, [])) == 1 for name in HELD), headers.items()

    port = site.port
    # Responses of the servers first, then of the proxy.
    status, headers, _ = asked(port, "GET", "/")
    assert status == 200 and all(len(headers.get_all(name)) == 1 for name in HELD)
    status, *said = asked(port, "GET", "/metrics")
    assert status == 404
    check(status, *said, "not_found")
    status, answer = site.call("POST", "/api/v1/runs", {"id": "x" * 400_000})
    assert (status, "error" in answer) == (413, True), answer
    for path, size in (("/api/v1/runs", 600_000), ("/api/v1/runs/r/batches", 3_200_000)):
        status, *said = asked(port, "POST", path, "x" * size)
        assert status == 413
        check(status, *said, "body_too_large")
    for server in site.servers:
        server.kill()
    # The client does not take this response as final.
    status, headers, text = asked(port, "GET", "/api/v1/runs")
    assert status == 502 and int(headers["retry-after"]) >= 1
    check(status, headers, text, "server_unreachable")
    site.servers[0] = site.start(site.servers[0].port)
    eventually(lambda: asked(port, "GET", "/api/v1/runs")[0] == 200)


def test_the_concurrent_requests_of_one_address_are_bounded(site: Site, eventually: Any) -> None:
    def trickles() -> socket.socket:
        held = socket.create_connection(("127.0.0.1", site.port), 20)
        held.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000\r\n\r\nx"
        )
        return held

    with contextlib.ExitStack() as held:
        for _ in range(256):
            held.enter_context(trickles())
        # This happens once nginx has read them all.
        eventually(lambda: asked(site.port, "GET", "/healthz")[0] == 429)
        status, headers, text = asked(site.port, "GET", "/healthz")
        assert (status, json.loads(text)["error"]["code"]) == (429, "too_busy"), text
        assert int(headers["retry-after"]) >= 1
        assert asked(site.port, "GET", "/healthz", viewer="127.0.0.2")[0] == 200


ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "tests" / "client" / "tls" / "server.pem"
AUTHORITY = CERTIFICATE.with_name("authority.pem")
SNIPPETS = re.findall(
    r"^```nginx\n(.*?)^```", (ROOT / "docs" / "operating.md").read_text(), re.M | re.S
)


def shut_out(port: int, **more: str) -> None:
    """Try ten wrong passwords; the eleventh attempt is refused unchecked."""
    found = [sign_in(port, "wrong", **more)[0] for _ in range(MAX_WRONG_PASSWORDS + 1)]
    assert found[:-1] == [401] * MAX_WRONG_PASSWORDS and found[-1] == 429


@pytest.mark.parametrize("trusted", [None, "10.9.9.9"], ids=["nobody", "another"])
@pytest.mark.usefixtures("with_login")
def test_a_forged_address_is_not_trusted(
    trusted: str | None, serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise any program on the machine could guess passwords forever."""
    if trusted:
        monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", trusted)
    port = serve().port
    for n in range(MAX_WRONG_PASSWORDS):
        assert sign_in(port, "wrong", x_forwarded_for=f"192.0.2.{n}")[0] == 401
    proxied = {"x_forwarded_for": "192.0.2.99", "x_forwarded_proto": "https"}
    status, headers, _ = sign_in(port, PASSWORD, **proxied)
    assert status == 429 and int(headers["retry-after"]) > 0
    # Another address of this machine is another client.
    status, headers, _ = sign_in(port, PASSWORD, viewer="127.0.0.2", x_forwarded_proto="https")
    assert status == 303
    assert "secure" not in headers["set-cookie"].lower()


@pytest.fixture
def behind(
    with_login: None, serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[nginx.Proxy]:
    """Yield a server behind nginx, which it trusts."""
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1")
    port = serve().port
    with nginx.running([port, port]) as proxy:
        yield proxy


def test_a_trusted_proxy_passes_on_the_addresses_of_viewers(behind: nginx.Proxy) -> None:
    # nginx does not trust a client that claims another address.
    shut_out(behind.port, viewer="127.0.0.2", x_forwarded_for="127.0.0.1")
    assert sign_in(behind.port, PASSWORD, viewer="127.0.0.3")[0] == 303
    assert sign_in(behind.port, PASSWORD)[0] == 303


@pytest.mark.usefixtures("with_login")
def test_behind_an_untrusted_proxy_all_viewers_share_their_failures(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = serve().port
    with nginx.running([port, port]) as proxy:
        assert sign_in(proxy.port, PASSWORD, viewer="127.0.0.3")[0] == 303
        shut_out(proxy.port, viewer="127.0.0.2")
        assert sign_in(proxy.port, PASSWORD, viewer="127.0.0.3")[0] == 429


def with_tls(plain: int) -> nginx.Change:
    """Return the change that docs/operating.md describes, with the certificate and the port of the test."""
    _, of_tls, redirect = SNIPPETS

    def change(text: str) -> str:
        listens = re.search(r"listen (127\.0\.0\.1:\d+);", text)
        assert listens is not None
        tls = of_tls.strip().replace("listen 8443", f"listen {listens[1]}")
        for name in ("fullchain", "privkey"):
            path = f"/etc/nginx/certificates/{name}.pem"
            assert path in tls
            tls = tls.replace(path, str(CERTIFICATE))
        text = text.replace(listens[0], tls)
        before, server, rest = text.partition("    server {\n")
        return before + redirect.replace("listen 8080", f"listen 127.0.0.1:{plain}") + server + rest

    return change


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.usefixtures("with_login")
def test_behind_the_documented_tls_the_cookie_is_only_sent_over_https(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1/32")
    server, plain = serve(), free_port()
    with nginx.running([server.port, server.port], with_tls(plain)) as proxy:
        status, headers, _ = sign_in(proxy.port, PASSWORD, tls=True)
        assert status == 303
        cookie = headers["set-cookie"]
        assert cookie.startswith("__Host-") and "secure" in cookie.lower()
        assert headers["strict-transport-security"].startswith("max-age=")
        for path, expected, to in (
            ("/healthz", 200, None),
            ("/runs/r1?x=1", 308, "https://127.0.0.1/runs/r1?x=1"),
        ):
            status, headers, _ = asked(plain, "GET", path)
            assert (status, headers["location"]) == (expected, to)


@pytest.mark.usefixtures("with_login")
def test_the_documented_server_block_is_enough_for_one_server(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1")
    server = serve()

    def change(text: str) -> str:
        listens = re.search(r"listen (127\.0\.0\.1:\d+);", text)
        assert listens is not None
        block = SNIPPETS[0].replace("127.0.0.1:8765", f"127.0.0.1:{server.port}")
        block = block.replace("listen 443", f"listen {listens[1]}")
        block = re.sub(r"/etc/nginx/certificates/\w+\.pem", str(CERTIFICATE), block)
        return f"{text.partition('    server {')[0]}{block}}}\n"

    with nginx.running([1, 2], change) as proxy:
        status, headers, _ = sign_in(proxy.port, PASSWORD, tls=True)
        assert status == 303
        assert headers["set-cookie"].startswith("__Host-")
        assert asked(proxy.port, "GET", "/metrics", tls=True)[0] == 404


@pytest.mark.parametrize("trusted", ["", "127.0.0.1"])
@pytest.mark.usefixtures("with_login")
def test_a_start_behind_https_names_the_missing_setting(
    trusted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEAKLINE_PUBLIC_URL", "https://a.example")
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", trusted)
    # Leave the switch interval of this process alone.
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr("leakline_server.serve._serve", lambda *_: pytest.fail("it serves"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # The server warns, and then ends because the port is taken.
        assert main(["serve", "--port", f"{taken.getsockname()[1]}"]) == 1
    errors = capsys.readouterr().err
    assert "cannot listen" in errors
    words = (
        "set LEAKLINE_TRUSTED_PROXIES to the proxy's address (such as 127.0.0.1); otherwise ten wrong passwords from "
        "one person block sign-in for everybody"
    )
    assert (words in errors) == (not trusted)
    assert ("LEAKLINE_TRUSTED_PROXIES" in errors) == (not trusted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("127.0.0.1", ["127.0.0.1/32", "::ffff:127.0.0.1/128"]),
        ("10.0.0.0/8, fd00::/8", ["10.0.0.0/8", "fd00::/8", "::ffff:10.0.0.0/104"]),
        ("*", ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"]),
        ("", []),
    ],
)
def test_the_setting_names_the_trusted_proxies(text: str | None, expected: list[str]) -> None:
    given = {} if text is None else {"LEAKLINE_TRUSTED_PROXIES": text}
    assert believed(from_environment(given).trusted_proxies) == expected
