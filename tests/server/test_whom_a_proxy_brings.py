"""From which address a request comes: that of the connection, or what a proxy says that a setting names. Real nginx."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.server import nginx
from tests.server.conftest import StartServer

from leakline_server.config import Config, WrongSettings, from_environment
from leakline_server.serve import believed
from leakline_server.web.callers import MAX_WRONG_PASSWORDS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "tests" / "client" / "tls" / "server.pem"
AUTHORITY = CERTIFICATE.with_name("authority.pem")
PASSWORD = "correct horse battery"
SNIPPETS = re.findall(
    r"^```nginx\n(.*?)^```", (ROOT / "docs" / "operations.md").read_text(), re.M | re.S
)
ASK_AS = "127.0.0.1"


@pytest.fixture(autouse=True)
def asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKLINE_ADMIN_PASSWORD", PASSWORD)
    # What uvicorn would listen to by itself.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")


def sign_in(
    port: int, secret: str, *, source: str = ASK_AS, tls: bool = False, **headers: str
) -> http.client.HTTPResponse:
    """``source``: from which of the addresses of this machine."""
    to, scheme = ("127.0.0.1", port), "https" if tls else "http"
    connection = http.client.HTTPConnection(*to, timeout=20, source_address=(source, 0))
    if tls:
        trusted = ssl.create_default_context(cafile=str(AUTHORITY))
        connection = http.client.HTTPSConnection(*to, timeout=20, context=trusted)
    said = {"origin": f"{scheme}://127.0.0.1:{port}"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    said["content-type"] = "application/x-www-form-urlencoded"
    with contextlib.closing(connection):
        connection.request("POST", "/sign-in", urlencode({"secret": secret, "next": "/"}), said)
        answer = connection.getresponse()
        answer.read()
    return answer


def shut_out(port: int, **more: str) -> None:
    """Ten wrong passwords, and the eleventh try is none."""
    found = [sign_in(port, "wrong", **more).status for _ in range(MAX_WRONG_PASSWORDS + 1)]  # type: ignore[arg-type]
    assert found[:-1] == [401] * MAX_WRONG_PASSWORDS and found[-1] == 429


@pytest.mark.parametrize("trusted", [None, "10.9.9.9"], ids=["nobody", "another"])
def test_who_says_of_itself_that_it_is_another_is_not_believed(
    trusted: str | None, serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any program on the machine could try passwords for ever."""
    if trusted:
        monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", trusted)
    port = serve().port
    for n in range(MAX_WRONG_PASSWORDS):
        answer = sign_in(port, "wrong", x_forwarded_for=f"192.0.2.{n}")
        assert answer.status == 401
    answer = sign_in(port, PASSWORD, x_forwarded_for="192.0.2.99", x_forwarded_proto="https")
    assert answer.status == 429 and int(answer.headers["retry-after"]) > 0
    # Another address of this machine is another.
    answer = sign_in(port, PASSWORD, source="127.0.0.2", x_forwarded_proto="https")
    assert answer.status == 303
    assert "secure" not in answer.headers["set-cookie"].lower()


@pytest.fixture
def behind(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[nginx.Proxy]:
    """A server behind nginx, which it believes."""
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1")
    port = serve().port
    with nginx.running([port, port]) as proxy:
        yield proxy


def test_a_proxy_that_is_named_brings_each_viewer_by_its_own_address(behind: nginx.Proxy) -> None:
    # Whoever says to nginx that it is another is not believed there.
    shut_out(behind.port, source="127.0.0.2", x_forwarded_for="127.0.0.1")
    assert sign_in(behind.port, PASSWORD, source="127.0.0.3").status == 303
    assert sign_in(behind.port, PASSWORD).status == 303


def test_behind_a_proxy_that_nobody_named_all_share_their_failures_and_are_let_in_else(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = serve().port
    with nginx.running([port, port]) as proxy:
        assert sign_in(proxy.port, PASSWORD, source="127.0.0.3").status == 303
        shut_out(proxy.port, source="127.0.0.2")
        assert sign_in(proxy.port, PASSWORD, source="127.0.0.3").status == 429


def with_tls(plain: int) -> nginx.Change:
    """As docs/operations.md says it, with the certificate and the port of the test."""
    of_tls, redirect = SNIPPETS

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


def test_behind_tls_as_the_documents_make_it_the_cookie_goes_by_https_alone(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_TRUSTED_PROXIES", "127.0.0.1/32")
    server, plain = serve(), free_port()
    with nginx.running([server.port, server.port], with_tls(plain)) as proxy:
        answer = sign_in(proxy.port, PASSWORD, tls=True)
        assert answer.status == 303
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-") and "secure" in cookie.lower()
        assert answer.headers["strict-transport-security"].startswith("max-age=")
        for path, status, to in (
            ("/healthz", 200, None),
            ("/runs/r1?x=1", 308, "https://127.0.0.1/runs/r1?x=1"),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", plain, timeout=20)
            with contextlib.closing(connection):
                connection.request("GET", path)
                found = connection.getresponse()
                assert (found.status, found.getheader("location")) == (status, to)


@pytest.mark.parametrize("trusted", ["", "127.0.0.1"])
def test_a_start_behind_https_says_that_all_viewers_are_one(trusted: str, tmp_path: Path) -> None:
    settings = {"LEAKLINE_PUBLIC_URL": "https://a.example", "LEAKLINE_TRUSTED_PROXIES": trusted}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # It says what is to be said, and ends because the port is taken.
        ended = subprocess.run(
            [sys.executable, "-m", "leakline", "serve", "--port", f"{taken.getsockname()[1]}"],
            cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert "cannot listen" in ended.stderr
    words = (
        "set LEAKLINE_TRUSTED_PROXIES to the proxy's address (such as 127.0.0.1); without it ten wrong passwords of "
        "one person keep everybody from signing in"
    )
    assert (words in ended.stderr) == (not trusted)
    assert ("LEAKLINE_TRUSTED_PROXIES" in ended.stderr) == (not trusted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1", ["127.0.0.1/32", "::ffff:127.0.0.1/128"]),
        ("10.0.0.0/8, fd00::/8", ["10.0.0.0/8", "fd00::/8", "::ffff:10.0.0.0/104"]),
        ("*", ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"]),
        ("", []),
    ],
)
def test_whom_the_setting_names(text: str, expected: list[str]) -> None:
    found = from_environment({"LEAKLINE_TRUSTED_PROXIES": text}).trusted_proxies
    assert believed(found) == expected


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.1/8", "*,127.0.0.1", "127.0.0.1:80"])
def test_what_is_no_address_is_told_at_the_start(text: str) -> None:
    with pytest.raises(WrongSettings, match=r"LEAKLINE_TRUSTED_PROXIES.*10\.0\.0\.0/8"):
        from_environment({"LEAKLINE_TRUSTED_PROXIES": text})


def test_a_server_believes_nobody_by_itself() -> None:
    assert believed(Config().trusted_proxies) == []
