"""What docker-compose.yml makes, without containers: two servers on one Postgres behind nginx, configured alike."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.server import nginx
from tests.server.alerts.conftest import receiver  # noqa: F401
from tests.server.round_robin import forward
from tests.server.server_kills import SIZES, Figures, Sender, check
from tests.server.test_live import Stream

pytestmark = [pytest.mark.flow, pytest.mark.postgres, pytest.mark.long]


@dataclass
class Site:
    """Two servers, and the one address that people know."""

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
        """Of its own /metrics, which the proxy does not pass on."""
        told = server.request("GET", "/metrics")[1]
        return sum(
            float(line.split()[1]) for line in told.splitlines() if line.startswith(f"{name} ")
        )


@pytest.fixture
def site(
    serve: Any,
    postgres_copies: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    receiver: Any,  # noqa: F811
) -> Iterator[Site]:
    monkeypatch.setenv("LEAKLINE_WEBHOOK_URL", receiver.url)
    monkeypatch.setenv("LEAKLINE_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("LEAKLINE_WEBHOOK_SECRET", "whsec_" + "QUJD" * 8)
    monkeypatch.setenv("LEAKLINE_LOG_FORMAT", "json")
    # As docker-compose.yml has it for the network that the proxy is on.
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1")
    with postgres_copies.new(tmp_path) as url:
        arguments = ["--database-url", url]
        servers = [serve(arguments=arguments), serve(arguments=arguments)]
        with nginx.running([server.port for server in servers]) as proxy:
            yield Site(servers, proxy, lambda port: serve(port, arguments))
        for server in servers:
            if server.process.poll() is None:
                server.kill()


def test_a_run_that_is_posted_through_one_server_is_live_on_the_other(
    site: Site, make_run: Any
) -> None:
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
    # Held back by the proxy, nothing would come before much more had been written.
    assert sorted(waits)[len(waits) // 2] < 1.0, waits
    (watched,) = [s for s in site.servers if site.figure(s, "leakline_live_streams") == 1]
    (other,) = [server for server in site.servers if server is not watched]
    # The proxy gives a request to the server with fewer under way, which is never the one with the stream.
    assert site.figure(other, "leakline_batches_accepted_total") >= 5
    stream.close()
    page = site.call("GET", "/runs/r1")
    assert page[0] == 200 and b"before-fix" in page[1]


def test_each_alert_is_sent_once(site: Site, make_run: Any, receiver: Any) -> None:  # noqa: F811
    run = make_run(leak_bytes=300 * 2**20)
    assert site.call("POST", "/api/v1/runs", run.header)[0] == 201
    for first in range(0, 90, 3):
        # By turns, so that both look at the run.
        status, _ = site.servers[first % 2].request(
            "POST", "/api/v1/runs/r1/batches", run.wire(first, 3)
        )
        assert status == 200
    receiver.wait_for(1, 30)
    assert site.call("PATCH", "/api/v1/runs/r1", {"state": "finished"})[0] == 200
    seen = 1
    while not any(event(each)["type"] == "run.finished" for each in receiver.received):
        seen = len(receiver.wait_for(seen + 1, 30))
    told = [event(each) for each in receiver.received]
    ids = [each.headers["webhook-id"] for each in receiver.received]
    assert len(set(ids)) == len(ids)
    findings = [
        (each["type"], each["data"].get("fingerprint"))
        for each in told
        if each["type"].startswith("incident.")
    ]
    assert findings and len(set(findings)) == len(findings), findings
    assert [each["type"] for each in told].count("run.finished") == 1


def event(received: Any) -> dict[str, Any]:
    return dict(json.loads(received.body))


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_server_that_goes_takes_nothing_with_it(site: Site, make_run: Any, how: str) -> None:
    senders = [
        Sender(make_run(id=f"k-{size}", instance=f"i-{size}"), size, site.port) for size in SIZES
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        assert sender.began.wait(60), sender.refusal
    victim, other = site.servers
    if how == "killed":
        victim.kill()
    else:
        victim.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert victim.process.wait(10) == 0
        assert time.monotonic() - began < 5
    # With one of two they go on.
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
    assert figures.wrong == []


def test_a_page_whose_server_goes_comes_back_to_the_other_and_misses_nothing(
    site: Site, make_run: Any
) -> None:
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
        # It ends rather than hangs.
        list(stream)
    known = stream.last_id
    stream.close()
    assert site.call("POST", "/api/v1/runs/r1/batches", run.wire(10, 10))[0] == 200
    stream = Stream(site.port, headers={"Last-Event-ID": str(known)})
    seen += stream.rows_until(19)
    stream.close()
    assert sorted(set(seen)) == list(range(20))


PASSWORD = "correct horse battery"


def asked(
    port: int, method: str, path: str, body: str = "", viewer: str = "127.0.0.1", **headers: str
) -> tuple[int, Any, str]:
    """Status, headers and text of what a viewer at this address is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, 20, source_address=(viewer, 0))
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def signed_in(port: int, secret: str, viewer: str = "127.0.0.1") -> tuple[int, Any, str]:
    form = urlencode({"secret": secret, "next": "/"})
    kind = "application/x-www-form-urlencoded"
    origin = f"http://127.0.0.1:{port}"
    return asked(port, "POST", "/sign-in", form, viewer, origin=origin, **{"content-type": kind})


@pytest.fixture
def with_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docker-compose.yml has it: the password alone makes servers on loopback ask, too."""
    monkeypatch.setenv("LEAKLINE_ADMIN_PASSWORD", PASSWORD)


@pytest.mark.usefixtures("with_login")
def test_who_signs_in_at_one_server_is_known_to_both_and_failures_count_by_viewer(
    site: Site, make_run: Any
) -> None:
    port = site.port
    assert asked(port, "GET", "/", accept="text/html")[0] == 303
    assert site.call("GET", "/api/v1/runs")[0] == 401
    status, headers, text = signed_in(port, PASSWORD)
    assert status == 303, text
    cookie = headers["set-cookie"].partition(";")[0]
    assert [asked(port, "GET", "/", cookie=cookie)[0] for _ in range(4)] == [200] * 4
    token = json.dumps({"scope": "ingest", "project": "p"})
    origin = f"http://127.0.0.1:{port}"
    status, _, text = asked(
        port,
        "POST",
        "/api/v1/tokens",
        token,
        cookie=cookie,
        origin=origin,
        **{"content-type": "application/json"},
    )
    assert status == 201, text
    bearer = {
        "authorization": f"Bearer {json.loads(text)['token']}",
        "content-type": "application/json",
    }
    for number in range(4):
        header = make_run(id=f"r{number}").header | {"project": "p"}
        status, _, text = asked(port, "POST", "/api/v1/runs", json.dumps(header), **bearer)
        assert status == 201, text
    # Ten at each of the two servers.
    tries = [signed_in(port, "a guess", "127.0.0.2")[0] for _ in range(24)]
    assert tries.count(401) == 20 and tries[-1] == 429, tries
    assert signed_in(port, PASSWORD)[0] == 303


def test_the_proxy_passes_on_what_the_servers_say_and_keeps_their_figures_to_itself(
    site: Site, eventually: Any
) -> None:
    assert site.call("GET", "/healthz") == (200, {"status": "ok"})
    assert site.call("GET", "/readyz") == (200, {"status": "ok"})
    assert site.call("GET", "/metrics")[0] == 404
    status, answer = site.call("POST", "/api/v1/runs", {"id": "x" * 400_000})
    assert (status, "error" in answer) == (413, True), answer
    status, answer = site.call("GET", "/api/v1/runs/nobody")
    assert (status, answer["error"]["code"]) == (404, "run_not_found")
    # What went wrong is in its log, an object a line, and nothing else is. nginx writes a line after its answer.
    assert eventually(lambda: "GET /api/v1/runs/nobody 404" in site.proxy.access_log)
    told = [json.loads(line) for line in site.proxy.access_log.splitlines()]
    assert not [line for line in told if line["message"].endswith(" 200")]
    assert all(len(line["request"]) == 32 for line in told)


HELD = {"content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy"}


def test_what_the_proxy_answers_itself_is_in_the_form_of_the_servers_and_nothing_is_said_twice(
    site: Site,
) -> None:
    def check(status: int, headers: Any, text: str, code: str) -> None:
        assert json.loads(text)["error"]["code"] == code, (status, text)
        assert headers["content-type"] == "application/json"
        assert all(len(headers.get_all(name, [])) == 1 for name in HELD), headers.items()

    port = site.port
    # Of the servers, then of the proxy.
    status, headers, _ = asked(port, "GET", "/")
    assert status == 200 and all(len(headers.get_all(name)) == 1 for name in HELD)
    status, *said = asked(port, "GET", "/metrics")
    assert status == 404
    check(status, *said, "not_found")
    for path, size in (("/api/v1/runs", 600_000), ("/api/v1/runs/r/batches", 3_200_000)):
        status, *said = asked(port, "POST", path, "x" * size)
        assert status == 413
        check(status, *said, "body_too_large")
    for server in site.servers:
        server.kill()
    status, headers, text = asked(port, "GET", "/api/v1/runs")
    assert status == 502 and int(headers["retry-after"]) >= 1
    check(status, headers, text, "server_unreachable")


def test_one_address_has_so_many_requests_under_way_and_others_go_on(site: Site) -> None:
    def trickles() -> socket.socket:
        held = socket.create_connection(("127.0.0.1", site.port), 20)
        held.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000\r\n\r\nx"
        )
        return held

    with contextlib.ExitStack() as held:
        for _ in range(256):
            held.enter_context(trickles())
        time.sleep(1)
        status, headers, text = asked(site.port, "GET", "/healthz")
        assert (status, json.loads(text)["error"]["code"]) == (429, "too_busy"), text
        assert int(headers["retry-after"]) >= 1
        assert asked(site.port, "GET", "/healthz", viewer="127.0.0.2")[0] == 200


def test_with_both_servers_gone_a_training_is_told_to_come_back(site: Site, make_run: Any) -> None:
    for server in site.servers:
        server.kill()
    # Nothing that a client takes for the last word.
    assert site.call("POST", "/api/v1/runs", make_run().header)[0] == 502
    site.servers[0] = site.start(site.servers[0].port)
    deadline = time.monotonic() + 10
    while site.call("POST", "/api/v1/runs", make_run().header)[0] != 201:
        assert time.monotonic() < deadline, site.proxy.access_log
