"""What a stranger can do with a connection, and a page of another site with a server that listens on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import Client, listening, serving

from leakline_server import limits
from leakline_server.app import create_app
from leakline_server.config import Config

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
PIECES = (
    b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)

MANY = 400


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    url = f"sqlite:///{tmp_path_factory.mktemp('connections')}/x.db"
    with listening(create_app(Config(database_url=url))) as found:
        yield found


@contextlib.contextmanager
def connected(client: Client, window: int = 2**20) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", client.port))
        yield connection


def all_said(connection: socket.socket) -> bytes:
    """Until the server closes; what it takes back with a reset counts as not said."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            said += part
    return said


def statuses(said: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+)", said)]


def status(connection: socket.socket) -> int:
    """Of the next answer, which is read to its end."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def refused(said: bytes, status: int) -> str:
    """The code of the one answer, which is the contract's error, with what every answer says to browsers."""
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
    """How many bytes went out until the server had enough."""
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
def test_what_never_ends_and_is_no_body_is_cut(what: str, client: Client) -> None:
    begin, piece = ENDLESS[what]
    with connected(client) as connection:
        connection.sendall(begin)
        sent = sent_without_end(connection, piece, 64 * 2**20)
    # What the two kernels hold between them goes out without being read.
    assert sent < 16 * 2**20
    still_answers(client)


def test_a_head_beyond_the_bound_is_told_and_one_below_is_taken(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(HEALTH + b"X-Long: " + b"x" * limits.MAX_HEAD_BYTES + b"\r\n\r\n")
        assert refused(all_said(connection), 413) == "head_too_large"
    fits = "x" * (limits.MAX_HEAD_BYTES - 300)
    assert client.ask("GET", f"/healthz?{fits}").status == 200


def test_the_second_head_of_a_connection_has_the_same_bounds(client: Client, patch: Any) -> None:
    patch("connections.HEAD_SECONDS", 0.3)
    with connected(client) as connection:
        connection.sendall(HEALTH + b"\r\n")
        assert status(connection) == 200
        connection.sendall(HEALTH)
        assert refused(all_said(connection), 400) == "head_too_slow"


def test_a_head_that_comes_a_byte_at_a_time_is_late_all_the_same(
    client: Client, patch: Any
) -> None:
    patch("connections.HEAD_SECONDS", 0.3)
    began = time.monotonic()
    with connected(client) as connection:
        connection.settimeout(0.02)
        said = b""
        for byte in HEALTH * 10:
            with contextlib.suppress(ConnectionError):
                connection.send(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                said = connection.recv(65_536)
                break
    assert refused(said, 400) == "head_too_slow"
    assert time.monotonic() - began < 5


def test_who_asks_nothing_is_closed_without_a_word(client: Client, patch: Any) -> None:
    patch("connections.HEAD_SECONDS", 0.2)
    with connected(client) as connection:
        assert all_said(connection) == b""


def test_a_body_may_take_its_time_after_its_head(client: Client, patch: Any) -> None:
    patch("connections.HEAD_SECONDS", 0.1)
    patch("connections.UNREAD_SECONDS", 0.1)
    with connected(client) as connection:
        connection.sendall(PIECES + b"1\r\n{\r\n")
        connection.settimeout(0.4)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        connection.sendall(b"1\r\n}\r\n0\r\n\r\n")
        assert status(connection) == 201


def test_requests_may_be_sent_ahead_and_no_more_than_may_wait(
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


def test_what_is_no_http_is_told_as_json(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert refused(all_said(connection), 400) == "malformed_http"


def test_an_answer_before_the_body_is_read_though_more_of_the_body_comes(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(PIECES)
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(limits.MAX_BODY_BYTES // 0x10000 + 4):
            connection.sendall(piece)
        assert status(connection) == 413
        # The rest is read, and the connection serves on.
        connection.sendall(b"0\r\n\r\n" + HEALTH + b"\r\n")
        assert status(connection) == 200


def test_a_body_that_goes_on_after_its_answer_is_not_read_for_ever(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(PIECES)
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        assert sent_without_end(connection, piece, 256 * 2**20) < 32 * 2**20
    still_answers(client)


def test_a_body_that_stops_after_its_answer_is_not_waited_for(client: Client, patch: Any) -> None:
    patch("connections.UNREAD_SECONDS", 0.2)
    head = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n{"
    with connected(client) as connection:
        connection.sendall(head)
        assert statuses(all_said(connection)) == [413]


def test_who_reads_nothing_of_an_answer_is_let_go(
    client: Client, patch: Any, eventually: Callable[..., Any]
) -> None:
    patch("connections.ANSWER_SECONDS", 0.3)
    ask = b"GET /static/vendor/plotly/plotly-basic-4.1.1.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(client, window=4_096) as connection:
        sent_without_end(connection, ask * 30, len(ask) * 30)
        # Aborted: what the server had not sent yet never comes.
        with pytest.raises(ConnectionError):
            eventually(lambda: connection.send(HEALTH) and None)


def test_a_slow_reader_gets_the_whole(client: Client, patch: Any) -> None:
    patch("connections.ANSWER_SECONDS", 2.0)
    path = next(Path("static/vendor/plotly").glob("*.js"))
    ask = f"GET /static/vendor/plotly/{path.name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with connected(client, window=65_536) as connection:
        connection.sendall(ask)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        read, slowly = b"", threading.Event()
        while part := answer.read(20_000):
            read += part
            slowly.wait(0.01)
        assert read == path.read_bytes()


@pytest.mark.flow
def test_a_server_with_few_files_turns_connections_away_and_serves_those_it_has(serve: Any) -> None:
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
        # The database has files left.
        first.sendall(b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(first) == 200


@pytest.fixture
def make_client(tmp_path: Path) -> Any:
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> TestClient:
            client = serving(f"sqlite:///{tmp_path}/x.db", raises=False, **settings)
            client.base_url = client.base_url.copy_with(port=8765)
            return stack.enter_context(client)

        yield make


def status_for(client: TestClient, origin: str, method: str = "POST") -> int:
    answer = client.request(method, "/api/v1/runs", json={}, headers={"origin": origin})
    if answer.status_code == 403:
        assert set(answer.json()["error"]) == {"code", "message", "details"}
    return int(answer.status_code)


def test_a_page_of_another_site_changes_nothing(make_client: Any) -> None:
    client = make_client()
    others = ("http://evil.example", "null", "", "http://127.0.0.1:9", "file://127.0.0.1:8765")
    for origin in others:
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            assert status_for(client, origin, method) == 403
    assert client.get("/api/v1/runs").json()["items"] == []


def test_our_pages_and_allowed_origins_may(make_client: Any) -> None:
    client = make_client(
        allowed_origins=("https://a.example",), public_url="https://leakline.example"
    )
    for origin in ("http://127.0.0.1:8765", "https://A.example", "https://leakline.example"):
        assert status_for(client, origin) == 201
    assert status_for(client, "https://b.example") == 403


def test_reading_needs_no_origin_of_ours(make_client: Any) -> None:
    headers = {"origin": "https://b.example"}
    assert make_client().get("/api/v1/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "10.0.0.1", "[::1", "::"])
def test_a_foreign_name_for_loopback_is_refused_in_one_sentence(
    host: str, make_client: Any
) -> None:
    answer = make_client().get("/api/v1/runs", headers={"host": host})
    assert answer.status_code == 403
    assert "LEAKLINE_PUBLIC_URL" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.2:8765", "[::1]:8765"])
def test_every_name_of_loopback_is_answered(host: str, make_client: Any) -> None:
    assert make_client().get("/healthz", headers={"host": host}).status_code == 200


def test_a_public_address_and_a_public_server_are_answered(make_client: Any) -> None:
    named = {"host": "leakline.example"}
    public = make_client(public_url="https://leakline.example")
    assert public.get("/healthz", headers=named).status_code == 200
    assert make_client(insecure=True).get("/healthz", headers=named).status_code == 200


def test_a_bug_is_an_error_of_the_contract_and_a_page(make_client: Any, patch: Any) -> None:
    client = make_client()

    def broken(*_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    patch("store.runs.list_runs", broken)
    answer = client.get("/api/v1/runs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    page = client.get("/")
    assert page.status_code == 500
    assert page.headers["content-type"].startswith("text/html")
    assert "nobody foresaw" not in page.text + answer.text


def test_head_is_answered_where_get_is(make_client: Any) -> None:
    client = make_client()
    client.post("/api/v1/runs", json={"id": "r1"})
    for path in ("/", "/runs/r1", "/healthz", "/readyz"):
        assert client.head(path).status_code == 200
    assert client.head("/runs/nobody").status_code == 404


def test_control_characters_reach_no_database(api: TestClient) -> None:
    api.post("/api/v1/runs", json={"id": "r1", "process": {"instance": "p"}})
    end = {"state": "failed", "reason": "killed\x00\x1b by hand", "instance": "p"}
    assert api.patch("/api/v1/runs/r1", json=end).json()["reason"] == "killed by hand"
    wrong = api.patch("/api/v1/runs/r1", json={"state": "failed", "instance": "p\x00"})
    assert wrong.status_code == 422
    for query in ("r%00", "project:a%00b", "tag:%00", "status:%00", "%00"):
        assert api.get(f"/?q={query}").status_code == 200


def test_stars_are_matched_in_linear_time(api: TestClient, make_run: Any) -> None:
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
    assert names("*.anon_*") == {"process.anon_bytes"}
    assert names("process.*rss*s") == {"process.rss_bytes"}
    assert names("process.rss_bytes*rss_bytes") == set()
    assert len(names("*")) > 4
    answer = api.get("/api/v1/runs/r1/series", params={"name": "x" * 513})
    assert answer.status_code == 422


def test_ctrl_c_during_an_upload_is_quiet_and_prompt(serve: Any) -> None:
    server = serve()
    assert server.request("POST", "/api/v1/runs", {"id": "r1"})[0] == 201
    paths = ("/api/v1/runs/r1/batches", "/api/v1/runs")
    with contextlib.ExitStack() as stack:
        for path in paths:
            upload = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            upload.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            # The server asks for the body: it waits for it now.
            assert b"100" in upload.recv(100)
            upload.sendall(b"{")
        seconds, said = server.interrupt()
    assert seconds < 2
    assert not re.search("Traceback|Error|Cancel", said), said
