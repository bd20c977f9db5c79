"""Settings come from the environment, the command line wins, and every wrong value is told at once."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from leakline.errors import BadArgument
from leakline_server.app import create_app
from leakline_server.config import Config, WrongSettings, from_arguments, from_environment
from leakline_server.serve import refuse_beyond_loopback
from leakline_server.store.engine import BadDatabaseUrl, open_engine


def test_every_wrong_value_is_named_with_its_variable() -> None:
    wrong = {
        "LEAKLINE_PORT": "http", "LEAKLINE_SYNCHRONOUS": "off", "LEAKLINE_WEBHOOK_URL": "ftp://x",
        "LEAKLINE_WEBHOOK_FORMAT": "fax", "LEAKLINE_WEBHOOK_ALLOW": "10.0.0.0/99",
        "LEAKLINE_INSECURE": "maybe", "LEAKLINE_PUBLIC_URL": "leakline.example",
    }  # fmt: skip
    with pytest.raises(WrongSettings) as caught:
        from_environment(wrong)
    for name, value in wrong.items():
        assert name in str(caught.value)
        # The address of a webhook is a secret in itself.
        assert (repr(value) in str(caught.value)) == (name != "LEAKLINE_WEBHOOK_URL")
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("port", ["-1", "65536", "8765.0", "٣"])
def test_a_port_is_a_number_of_sixteen_bits(port: str) -> None:
    with pytest.raises(WrongSettings, match="LEAKLINE_PORT"):
        from_environment({"LEAKLINE_PORT": port})


def test_nothing_set_is_the_default() -> None:
    assert from_environment({}) == from_environment({"LEAKLINE_PORT": ""}) == Config()


def test_the_command_line_wins() -> None:
    found = from_arguments({"LEAKLINE_PORT": "1", "LEAKLINE_HOST": "::1"}, None, "2", None)
    assert (found.host, found.port) == ("::1", 2)
    assert found.address == "http://[::1]:2"


def test_networks_and_origins_are_lists() -> None:
    found = from_environment(
        {
            "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8, fd00::/8",
            "LEAKLINE_ALLOWED_ORIGINS": "http://a.example,http://b.example",
            "LEAKLINE_PUBLIC_URL": "https://leaks.example/",
        }
    )
    assert found.webhook_allow == (
        ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("fd00::/8"),
    )  # fmt: skip
    assert found.allowed_origins == ("http://a.example", "http://b.example")
    assert found.address == "https://leaks.example"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_listening_beyond_loopback_is_refused_without_a_login(host: str) -> None:
    with pytest.raises(BadArgument, match="LEAKLINE_INSECURE"):
        refuse_beyond_loopback(Config(host=host))
    refuse_beyond_loopback(Config(host=host, insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_login(host: str) -> None:
    refuse_beyond_loopback(Config(host=host))


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://x/y", "postgresql+asyncpg://x/y", "sqlite://", ""]
)
def test_a_database_we_cannot_use_is_named(url: str) -> None:
    with pytest.raises(BadDatabaseUrl):
        open_engine(url)


def test_only_the_origins_named_may_send_from_a_browser(tmp_path: Path) -> None:
    app = create_app(
        Config(database_url=f"sqlite:///{tmp_path}/x.db", allowed_origins=("http://a.example",))
    )
    ask = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    with TestClient(app, base_url="http://127.0.0.1") as api:
        for origin, allowed in (
            ("http://a.example", "http://a.example"),
            ("http://b.example", None),
        ):
            answer = api.options("/api/v1/runs/r1/batches", headers={"origin": origin, **ask})
            assert answer.headers.get("access-control-allow-origin") == allowed
