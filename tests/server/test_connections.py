"""What strangers can do with connections and pages of other sites with a server; and headers for browsers."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import json
import os
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import zstandard
from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from tests.server.databases import Copies
from tests.server.stored import Client, listening, serving

from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.client_connections import Connection
from leakline_server.config import Config

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
PIECES = (
    b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
DECODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "zstd": lambda raw: zstandard.ZstdDecompressor().decompressobj().decompress(raw),
}
LARGE = "/static/vendor/plotly/plotly-basic-4.1.1.min.js"

# The number of buffered bytes after which the server under test waits for the client to read.
BUFFER = 2**16
MANY = 400


@pytest.fixture(scope="module")
def client(sqlite_copies: Copies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        sqlite_copies.new(tmp_path_factory.mktemp("connections")) as url,
        listening(create_app(Config(database_url=url))) as found,
    ):
        yield found


@contextlib.contextmanager
def connected(client: Client, window: int = 2**20) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", client.port))
        yield connection


def all_said(connection: socket.socket) -> bytes:
    """Return what arrives until the server closes; data that a reset discards is not included."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            said += part
    return said


def statuses(said: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+)", said)]


def status(connection: socket.socket) -> int:
    """Read the next response to its end and return its status."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def refused(said: bytes, status: int) -> str:
    """Check that the only response is an error of the contract with the security headers; return its code."""
    assert statuses(said) == [status], said[:300]
    top, _, body = said.partition(b"\r\n\r\n")
    assert b"connection: close" in top and b"x-content-type-options: nosniff" in top
    error = json.loads(body)["error"]
    assert 10 < len(error["message"]) < 300
    code: str = error["code"]
    return code


def still_answers(client: Client) -> None:
    assert client.ask("GET", "/healthz").status == 200


def sent_without_end(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send pieces until the server closes the connection; return the number of bytes sent."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    return sent


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "an address": (b"GET /healthz?", b"x" * 4_096),
    "headers": (HEALTH, b"X-Many: of them\r\n" * 256),
    "one header": (HEALTH + b"X-Long: ", b"x" * 4_096),
    "empty lines": (b"", b"\r\n" * 2_048),
    "trailers": (PIECES + b"2\r\n{}\r\n0\r\n", b"X-Many: of them\r\n" * 256),
    "an extension of a piece": (PIECES + b"2;", b"x" * 4_096),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_head_is_cut_off(what: str, client: Client) -> None:
    begin, piece = ENDLESS[what]
    with connected(client) as connection:
        connection.sendall(begin)
        sent = sent_without_end(connection, piece, 64 * 2**20)
    # The buffers of the two kernels accept data that the server does not read.
    assert sent < 16 * 2**20
    still_answers(client)


def test_a_head_over_the_limit_is_refused_and_one_below_is_accepted(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(HEALTH + b"X-Long: " + b"x" * limits.MAX_HEAD_BYTES + b"\r\n\r\n")
        assert refused(all_said(connection), 413) == "head_too_large"
    still_answers(client)
    fits = "x" * (limits.MAX_HEAD_BYTES - 300)
    assert client.ask("GET", f"/healthz?{fits}").status == 200


@pytest.mark.parametrize(
    ("answered", "what"),
    [(False, b""), *product((False, True), (HEALTH * 10, b"\r\n" * 200))],
)
def test_a_missing_or_trickling_head_times_out(
    what: bytes, answered: bool, client: Client, patch: Any
) -> None:
    patch("limits.HEAD_SECONDS", 0.3)
    with connected(client) as connection:
        if answered:
            connection.sendall(HEALTH + b"\r\n")
            assert status(connection) == 200
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in what:
                connection.send(bytes([byte]))
                if select.select([connection], [], [], 0.02)[0]:
                    break
        assert all_said(connection) == b""
        assert time.monotonic() - began < 3


def test_a_body_may_arrive_slowly_after_its_head(client: Client, patch: Any) -> None:
    patch("limits.HEAD_SECONDS", 0.1)
    patch("limits.UNREAD_SECONDS", 0.1)
    with connected(client) as connection:
        connection.sendall(PIECES + b"1\r\n{\r\n")
        connection.settimeout(0.4)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        connection.sendall(b"1\r\n}\r\n0\r\n\r\n")
        assert status(connection) == 201


def test_pipelined_requests_are_accepted_up_to_the_limit(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(client) as connection:
        connection.sendall((HEALTH + b"\r\n") * 20)
        said = b""
        while statuses(said) != [200] * 20:
            part = connection.recv(65_536)
            assert part, said
            said += part
    with connected(client) as connection:
        sent_without_end(connection, (HEALTH + b"\r\n") * (limits.MAX_PIPELINED + 50), 2**20)
        assert len(statuses(all_said(connection))) <= limits.MAX_PIPELINED + 1
    still_answers(client)
    assert not [each for each in caplog.records if each.exc_info]


def test_a_live_stream_with_a_pipelined_request_ends_with_its_connection(
    client: Client, eventually: Callable[..., Any]
) -> None:
    client.post("/api/v1/runs", {"id": "live"})
    page = b"GET /api/v1/runs/live/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(client) as connection:
        connection.sendall(page + HEALTH + b"\r\n")
        eventually(lambda: client.services.live.listeners == 1)
    eventually(lambda: client.services.live.listeners == 0)


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n" + b"x" * 100_000]
)
def test_invalid_http_is_refused_as_json(client: Client, said: bytes) -> None:
    with connected(client) as connection:
        connection.sendall(said)
        assert refused(all_said(connection), 400) == "malformed_http"


def test_a_response_before_the_end_of_the_body_keeps_the_connection(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(PIECES)
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(limits.MAX_BODY_BYTES // 0x10000 + 4):
            connection.sendall(piece)
        assert status(connection) == 413
        # The rest of the body is read, and the connection stays usable.
        connection.sendall(b"0\r\n\r\n" + HEALTH + b"\r\n")
        assert status(connection) == 200


def test_a_body_that_continues_after_the_response_is_not_read_forever(
    client: Client, patch: Any
) -> None:
    patch("limits.UNREAD_SECONDS", 0.3)
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    began = time.monotonic()
    with connected(client) as connection, pytest.raises(ConnectionError):
        connection.sendall(PIECES)
        while time.monotonic() - began < 5:
            connection.sendall(piece)
    still_answers(client)


@pytest.mark.parametrize("ends", [True, False])
def test_a_refused_body_that_ends_late_or_never_is_not_waited_for(
    client: Client, patch: Any, ends: bool
) -> None:
    patch("limits.UNREAD_SECONDS", 0.3)
    too_long = limits.MAX_BODY_BYTES + 1
    head = f"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {too_long}\r\n\r\n"
    began = time.monotonic()
    with connected(client) as connection:
        connection.sendall(head.encode())
        assert status(connection) == 413
        connection.sendall(b" " * (too_long if ends else 1))
        assert all_said(connection) == b""
    # The server under test keeps idle connections for 5 seconds.
    assert time.monotonic() - began < 4


@pytest.fixture
def app(sqlite_url: str) -> FastAPI:
    return create_app(Config(database_url=sqlite_url))


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return why each connection ended, on a server whose kernel buffers little of a response."""
    found: list[Any] = []

    class Small(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            transport.set_write_buffer_limits(BUFFER)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            found.append(exc)

    monkeypatch.setattr("tests.server.stored.Connection", Small)
    return found


# With the larger buffer the entire response fits, and nothing waits for the client.
@pytest.mark.parametrize(("version", "buffer"), [("1.1", 2**16), ("1.1", 2**24), ("1.0", 2**24)])
def test_a_response_that_nobody_reads_does_not_keep_its_connection(
    version: str, buffer: int, app: FastAPI, lost: list[Any], patch: Any,
    monkeypatch: pytest.MonkeyPatch, eventually: Any,
) -> None:  # fmt: skip
    patch("limits.ANSWER_SECONDS", 0.3)
    monkeypatch.setitem(globals(), "BUFFER", buffer)
    ask = f"GET {LARGE} HTTP/{version}\r\nHost: localhost\r\n\r\n".encode()
    with listening(app, 0.3) as client, connected(client, window=4_096) as connection:
        connection.sendall(ask)
        eventually(lambda: lost)


@pytest.mark.parametrize(("ends", "path"), [("keep-alive", LARGE), ("close", "/large")])
def test_a_slow_but_steady_reader_may_take_longer_than_the_deadline(
    app: FastAPI, lost: list[Any], patch: Any, ends: str, path: str
) -> None:
    """Read a file that is sent in pieces and a response that is written at once; each read extends the deadline."""
    patch("limits.ANSWER_SECONDS", 0.5)
    body = Path(LARGE[1:]).read_bytes() if path == LARGE else b"x" * 3_000_000
    app.router.routes.insert(0, Route("/large", lambda _: Response(body)))
    ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {ends}\r\n\r\n".encode()
    with listening(app) as client, connected(client, window=65_536) as connection:
        connection.sendall(ask)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        read, slowly, began = b"", threading.Event(), time.monotonic()
        while part := answer.read(len(body) // 60):
            read += part
            slowly.wait(0.02)
        assert read == body
        assert time.monotonic() - began > 2 * limits.ANSWER_SECONDS
        if ends == "keep-alive":
            # The deadline ended with the response.
            slowly.wait(0.7)
            connection.sendall(HEALTH + b"\r\n")
            assert status(connection) == 200


# A third of them is more than the number of server threads.
SLOW = 150


@contextlib.contextmanager
def slow_connections(client: Client) -> Iterator[list[socket.socket]]:
    """Yield connections with incomplete heads, incomplete bodies and unread responses, a third of each."""
    unread = f"GET {LARGE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    begun = (HEALTH + b"X-Slow: ", PIECES + b"1\r\n{\r\n", unread * 2)
    with contextlib.ExitStack() as held:
        found = [held.enter_context(connected(client, window=4_096)) for _ in range(SLOW)]
        for connection, said in zip(found, itertools.cycle(begun), strict=False):
            connection.sendall(said)
        yield found


def trickle(connections: list[socket.socket]) -> None:
    """Send one more byte of each head and each body."""
    for number, connection in enumerate(connections):
        with contextlib.suppress(OSError):
            connection.send((b"x", b"1\r\n \r\n", b"")[number % 3])


@pytest.mark.long
def test_slow_connections_do_not_block_others_and_are_closed(
    app: FastAPI, lost: list[Any], patch: Any, eventually: Any
) -> None:
    for deadline in (
        "limits.HEAD_SECONDS",
        "limits.ANSWER_SECONDS",
        "web.request_bodies.BODY_SECONDS",
    ):
        patch(deadline, 8.0)
    with listening(app) as client, slow_connections(client) as connections:
        for number in range(5):
            trickle(connections)
            assert client.ask("POST", "/api/v1/runs", {"id": f"r{number}"}).status == 201
            assert client.ask("GET", f"/api/v1/runs/r{number}").status == 200
        # Only the connections that were answered have ended.
        assert len(lost) <= 2 * 5

        def closed() -> bool:
            trickle(connections)
            return len(lost) >= SLOW + 2 * 5

        eventually(closed, 30.0)


def test_the_installed_uvicorn_version_was_tested() -> None:
    """`client_connections.py` overrides private methods: run this file on a newer version, then add it here."""
    tried = ("0.50", "0.51", "0.52", "0.53", "0.54")
    assert uvicorn.__version__.rpartition(".")[0] in tried


@pytest.mark.flow
def test_a_server_without_free_files_refuses_connections_and_keeps_others(serve: Any) -> None:
    server = serve(files=MANY)
    with contextlib.ExitStack() as held:
        first, *others = [
            held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            for _ in range(MANY + 1)
        ]
        first.sendall(HEALTH + b"\r\n")
        assert status(first) == 200
        readable, _, _ = select.select(others[-MANY // 3 :], [], [], 20)
        assert status(readable[-1]) == 429
        # There are files left for the database.
        first.sendall(b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(first) == 200
        # It shuts down on request although clients are connected.
        server.interrupt(signal.SIGTERM)
    assert server.process.returncode == 0


@pytest.fixture
def make_client(sqlite_url: str) -> Iterator[Callable[..., TestClient]]:
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> TestClient:
            client = serving(sqlite_url, raises=False, **settings)
            client.base_url = client.base_url.copy_with(port=8765)
            return stack.enter_context(client)

        yield make


def status_for(client: TestClient, origin: str, method: str = "POST") -> int:
    answer = client.request(method, "/api/v1/runs", json={}, headers={"origin": origin})
    if answer.status_code == 403:
        assert set(answer.json()["error"]) == {"code", "message", "details"}
    return int(answer.status_code)


def test_pages_of_other_sites_cannot_write_and_allowed_ones_can(make_client: Any) -> None:
    client = make_client()
    others = ("http://evil.example", "null", "", "http://127.0.0.1:9", "file://127.0.0.1:8765")
    for origin in others:
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            assert status_for(client, origin, method) == 403
    # Reading does not require an allowed origin.
    reading = client.get("/api/v1/runs", headers={"origin": "https://b.example"})
    assert reading.json()["items"] == []
    public = {"allowed_origins": ("https://a.example",), "public_url": "https://leakline.example"}
    client = make_client(**public)
    for origin in ("http://127.0.0.1:8765", "https://A.example", "https://leakline.example"):
        assert status_for(client, origin) == 201
    assert status_for(client, "https://b.example") == 403


def test_only_loopback_names_and_the_public_address_are_served(make_client: Any) -> None:
    client = make_client()
    for host in ("evil.example", "evil.example:8765", "10.0.0.1", "[::1", "::"):
        answer = client.get("/api/v1/runs", headers={"host": host})
        assert answer.status_code == 403, host
        assert "LEAKLINE_PUBLIC_URL" in answer.json()["error"]["message"]
    for host in ("localhost", "LOCALHOST:1", "127.0.0.2:8765", "[::1]:8765"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200, host
    named = {"host": "leakline.example"}
    public = make_client(public_url="https://leakline.example")
    assert public.get("/healthz", headers=named).status_code == 200
    assert make_client(insecure=True).get("/healthz", headers=named).status_code == 200


def test_head_works_wherever_get_works(site: TestClient) -> None:
    for path in ("/", "/runs/r1", "/healthz", "/readyz"):
        assert site.head(path).status_code == 200
    assert site.head("/runs/nobody").status_code == 404


def test_wildcards_are_matched_in_linear_time(api: TestClient, make_run: Any) -> None:
    run = make_run(extra={"gauge." + "a" * 500: lambda _: 1})
    run.create(api)
    run.send(api, 0, 6)

    def names(*patterns: str) -> set[str]:
        query = [("name", p) for p in patterns] + [("x", "sequence")]
        answer = api.get("/api/v1/runs/r1/series", params=query)
        return {item["name"] for item in answer.json()["items"]}

    started = time.monotonic()
    assert names(*["*a" * 200 + "*b"] * 50) == set()
    assert time.monotonic() - started < 5
    assert names("process.*rss*s") == {"process.rss_bytes"}
    assert names("process.rss_bytes*rss_bytes") == set()


NEEDED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}


@pytest.fixture(scope="module")
def site(
    sqlite_copies: Copies, tmp_path_factory: pytest.TempPathFactory, make_run: Any
) -> Iterator[TestClient]:
    with (
        sqlite_copies.new(tmp_path_factory.mktemp("headers")) as url,
        serving(url, raises=False, allowed_origins=("https://a.example",)) as client,
    ):
        make_run().begin(client, 9)
        yield client


ANSWERS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "a page": ("GET", "/", 200, {}),
    "a page that is not there": ("GET", "/runs/nobody", 404, {}),
    "a report as a file": ("GET", "/runs/r1/report.html", 200, {}),
    "JSON": ("GET", "/api/v1/runs", 200, {}),
    "an export": ("GET", "/api/v1/runs/r1/export.csv", 200, {}),
    "the description": ("GET", "/api/v1/openapi.json", 200, {}),
    "metrics": ("GET", "/metrics", 200, {}),
    "a head": ("HEAD", "/", 200, {}),
    "a picture": ("GET", "/static/images/favicon.svg", 200, {}),
    "a file that is not there": ("GET", "/static/nothing.js", 404, {}),
    "a batch": ("POST", "/api/v1/runs/r1/batches", 422, {"content": b"{}"}),
    "a wrong method": ("PUT", "/api/v1/runs", 405, {}),
    "a wrong field": ("GET", "/api/v1/runs?limit=0", 422, {}),
    "a page of another site": ("POST", "/api/v1/runs", 403, {"headers": {"origin": "https://evil.example"}}),
    "a foreign name": ("GET", "/", 403, {"headers": {"host": "evil.example"}}),
    "what a browser asks first": ("OPTIONS", "/api/v1/runs", 200, {
        "headers": {"origin": "https://a.example", "access-control-request-method": "POST"},
    }),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_every_kind_of_response_has_the_security_headers(what: str, site: TestClient) -> None:
    method, path, status, more = ANSWERS[what]
    answer = site.request(method, path, **more)
    assert answer.status_code == status, answer.text
    has_them(answer.headers)


def test_a_bug_is_an_error_of_the_contract_or_a_page(site: TestClient, patch: Any) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    patch("store.runs.runs.list_runs", broken)
    answer, page = site.get("/api/v1/runs"), site.get("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert page.status_code == 500
    assert page.headers["content-type"].startswith("text/html")
    assert "nobody foresaw" not in page.text + answer.text
    has_them(answer.headers)


def test_a_bug_during_ingest_is_answered_and_logged(
    site: TestClient, api: TestClient, patch: Any
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    patch("ingest.decode.check", broken)
    path = "/api/v1/runs/r1/batches"
    answer = site.post(path, content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    has_them(answer.headers)
    # The server logs the exception with its traceback.
    with pytest.raises(RuntimeError, match="nobody foresaw"):
        api.post(path, content=b"{}")


def has_them(headers: Any) -> None:
    for name, value in NEEDED.items():
        assert headers.get_list(name) == [value], name
    (policy,) = headers.get_list("content-security-policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    scripts = rules.get("script-src", rules["default-src"])
    assert scripts in ("'none'", "'self'")
    assert "unsafe" not in policy


def test_responses_that_are_not_pages_may_load_nothing(site: TestClient) -> None:
    of_api = ("/api/v1/runs", "/api/v1/runs/r1/export.json")
    for path in (*of_api, "/static/images/favicon.svg", "/metrics"):
        policy = site.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'"), path
    css = site.get("/static/css/base.css").headers
    assert css["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "zstd"), ("gzip, zstd;q=0.5", "zstd"),
        ("gzip", "gzip"), ("gzip, zstd;q=0", "gzip"), ("gzip, zstd; q=0.0", "gzip"), ("gzip, x-zstd", "gzip"),
    ],
)  # fmt: skip
def test_pages_and_scripts_are_compressed_and_cached(
    site: TestClient, accepted: str, encoding: str
) -> None:
    etag = site.get(LARGE).headers["etag"]
    again = site.get(LARGE, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/", LARGE, "/static/css/pages.css"):
        with site.stream("GET", path, headers={"accept-encoding": accepted}) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == encoding
        assert "Accept-Encoding" in answer.headers["vary"]
        plain = site.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert len(raw) < len(plain.content) / 2
        decoded = DECODE[encoding](raw)
        assert decoded == plain.content
