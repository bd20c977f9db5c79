"""Settings come from the environment, files and the command line, which wins; errors are reported together."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.server.stored import serving

from leakline.analysis.findings.verdict_summary import Priorities
from leakline.cli import main
from leakline.errors import BadArgument
from leakline_server.config import (
    SECRETS,
    VARIABLES,
    Config,
    WrongSettings,
    from_arguments,
    from_environment,
    misspelt,
)
from leakline_server.serve import refuse_without_a_login
from leakline_server.store.engine import BadDatabaseUrl, open_engine


def test_every_wrong_value_is_named_with_its_variable() -> None:
    wrong = {
        "LEAKLINE_PORT": "http", "LEAKLINE_SYNCHRONOUS": "off", "LEAKLINE_WEBHOOK_URL": "ftp://x",
        "LEAKLINE_WEBHOOK_FORMAT": "fax", "LEAKLINE_WEBHOOK_ALLOW": "10.0.0.0/99",
        "LEAKLINE_INSECURE": "maybe", "LEAKLINE_PUBLIC_URL": "leakline.example",
        "LEAKLINE_DATABASE_URL": "mysql://x:hunter2@y/z", "LEAKLINE_HOST": "http://0.0.0.0",
        "LEAKLINE_WEBHOOK_SECRET": "hunter2", "LEAKLINE_APPRISE_URLS": "hunter2",
        "LEAKLINE_ALLOWED_ORIGINS": "a.example", "LEAKLINE_RULES": "/nowhere/rules.toml",
        "LEAKLINE_PRIORITIES": "urgent=1", "LEAKLINE_KEEP_DAYS": "soon",
        "LEAKLINE_THIN_AFTER_DAYS": "-1", "LEAKLINE_KEEP_BYTES": "much",
        "LEAKLINE_LOG_FORMAT": "xml", "LEAKLINE_LOG_LEVEL": "loud",
        "LEAKLINE_LOGIN": "perhaps", "LEAKLINE_ADMIN_PASSWORD": "hunter2",
        "LEAKLINE_RUNS_PER_DAY": "few", "LEAKLINE_BYTES_PER_DAY": "little",
        "LEAKLINE_TRUSTED_PROXIES": "proxy.example",
    }  # fmt: skip
    # Every new setting needs a wrong value here.
    assert wrong.keys() == VARIABLES.keys()
    with pytest.raises(WrongSettings) as caught:
        from_environment(wrong)
    for name, value in wrong.items():
        assert name in str(caught.value)
        # A webhook address is a secret, and a database URL contains one.
        assert (repr(value) in str(caught.value)) == (name not in SECRETS)
    assert "hunter2" not in str(caught.value)
    assert caught.value.exit_status == 2
    first, *lines = str(caught.value).splitlines()
    assert first == f"{len(wrong)} settings are invalid:"
    assert [line.split()[1].partition("=")[0].rstrip(":") for line in lines] == list(VARIABLES)
    assert all(line.startswith("  environment ") for line in lines)


DOCUMENTED = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text()


def test_a_misspelt_name_is_reported_and_names_of_others_are_not() -> None:
    given = {"LEAKLINE_KEEP_DAY": "3", "LEAKLINE_WEBHOOKS_URL": "x", "LEAKLINE_SERVER": "x", "PORT": "1",
             "LEAKLINE_DIR": "x", "LEAKLINE_RUN_ID": "x", "LEAKLINE_KEEP_DAYS": "3"}  # fmt: skip
    said = misspelt(given)
    assert ["LEAKLINE_KEEP_DAYS" in said[0], "LEAKLINE_WEBHOOK_URL" in said[1]] == [True, True]
    assert len(said) == 2
    documented = re.findall(r"LEAKLINE_[A-Z_]+", DOCUMENTED)
    assert misspelt(dict.fromkeys(documented, "x")) == []
    (of_file,) = misspelt({"LEAKLINE_ADMIN_PASWORD_FILE": "x"})
    assert of_file.endswith("did you mean LEAKLINE_ADMIN_PASSWORD_FILE?")
    with pytest.raises(WrongSettings, match=r"(?s)LEAKLINE_PORT.*did you mean LEAKLINE_KEEP_DAYS"):
        from_environment({"LEAKLINE_PORT": "http", "LEAKLINE_KEEP_DAY": "3"})


# A setting, the expected message, and wrong values.
WRONG = (
    ("PORT", "", ["-1", "65536", "8765.0", "٣"]),
    ("PUBLIC_URL", "http://host:port", ["http://h:99999", "http://h:port", "http://[::1", "https://", "leaks.example"]),
    ("KEEP_BYTES", "must name a project", ["=5 GiB"]),
    ("KEEP_DAYS", "must name a project", ["30, =90"]),
    ("RUNS_PER_DAY", "must name a project", [" =5"]),
    ("KEEP_DAYS", "", ["0", "-1", "a", "30,b=", "nan", "inf", "30,b=x"]),
    ("KEEP_BYTES", "", ["0", "much", "-3 GiB", "1 GiB,a=lots"]),
    ("RUNS_PER_DAY", "unlimited", ["0", "-1", "p=1.5"]),
    ("BYTES_PER_DAY", "unlimited", ["0", "forever"]),
    ("PRIORITIES", "major", [
        "1 GB", "urgent=1 GB", "major", "major=much", "major=0", "major=2 GB,critical=1 GB", "major=6 GB"]),
    ("ALLOWED_ORIGINS", "an origin such as http://localhost:8000", [
        "a.example", "http://a.example/app", "http://", "http://a:b"]),
    ("TRUSTED_PROXIES", r"10\.0\.0\.0/8", ["proxy.example", "10.0.0.1/8", "*,127.0.0.1", "127.0.0.1:80"]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "told", "text"), [(*each, text) for *each, texts in WRONG for text in texts]
)
def test_a_wrong_value_is_reported_with_a_correct_example(name: str, told: str, text: str) -> None:
    with pytest.raises(WrongSettings, match=f"LEAKLINE_{name}.*{told}"):
        from_environment({f"LEAKLINE_{name}": text})


def test_unset_values_are_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    assert from_environment({}) == from_environment({"LEAKLINE_PORT": ""}) == Config()
    named = {"LEAKLINE_DATABASE_URL_FILE": str(tmp_path / "missing")}
    given = {"LEAKLINE_PORT": "1", "LEAKLINE_HOST": "::1", **named}
    found = from_arguments(given, None, "2", "sqlite:///typed.db")
    assert (found.host, found.port, found.database_url) == ("::1", 2, "sqlite:///typed.db")
    assert found.address == "http://[::1]:2"
    # A browser cannot open `http://0.0.0.0`.
    for host in ("0.0.0.0", "::"):
        assert Config(host=host, port=1).address == f"http://{socket.gethostname()}:1"


def test_a_class_that_is_not_named_keeps_its_limit() -> None:
    shares = from_environment({"LEAKLINE_PRIORITIES": "share=5 %,hours=12"}).priorities
    assert shares == Priorities(share=0.05, hours=12)
    found = from_environment({"LEAKLINE_PRIORITIES": "major=200 MB, critical=2 GiB"}).priorities
    assert found == Priorities(200e6, 2 * 2**30)
    found = from_environment({"LEAKLINE_PRIORITIES": "critical=2 GB"}).priorities
    assert found == Priorities(1e9, 2e9)


def test_networks_and_origins_are_lists() -> None:
    # These have no host of their own and stay unchanged.
    origins = ("http://a.example", "*", "null", "chrome-extension://abc", "http://[::1]:8000")
    found = from_environment(
        {
            "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8, fd00::/8",
            "LEAKLINE_ALLOWED_ORIGINS": ",".join(origins),
            "LEAKLINE_PUBLIC_URL": "https://leaks.example/",
        }
    )
    assert found.webhook_allow == tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "fd00::/8")))
    assert (found.allowed_origins, found.address) == (origins, "https://leaks.example")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_listening_beyond_loopback_is_refused_without_a_login(host: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(BadArgument, match="LEAKLINE_INSECURE"):
        refuse_without_a_login(Config(host=host, database_url=url))
    assert list(tmp_path.iterdir()) == []
    refuse_without_a_login(Config(host=host, insecure=True, database_url=url))
    refuse_without_a_login(Config(host=host, admin_password="of somebody", database_url=url))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_login(host: str) -> None:
    refuse_without_a_login(Config(host=host))
    with pytest.raises(BadArgument, match="LEAKLINE_LOGIN"):
        refuse_without_a_login(Config(host=host, login=True))


def test_a_server_authenticates_everybody_or_nobody() -> None:
    assert not from_environment({}).asks_who_it_is
    for given in ({"LEAKLINE_LOGIN": "1"}, {"LEAKLINE_ADMIN_PASSWORD": "correct horse"}):
        assert from_environment(given).asks_who_it_is
        (name,) = given
        with pytest.raises(WrongSettings, match=rf"{name}.*LEAKLINE_INSECURE"):
            from_environment(given | {"LEAKLINE_INSECURE": "1"})


@pytest.mark.parametrize(
    ("url", "also", "told"),
    [
        ("https://leakline.example", {}, True),
        ("http://127.0.0.1:80", {}, False),
        ("https://leakline.example", {"LEAKLINE_LOGIN": "1"}, False),
        ("https://leakline.example", {"LEAKLINE_INSECURE": "1"}, False),
        ("https://leakline.example", {"LEAKLINE_HOST": "0.0.0.0"}, False),
    ],
)
def test_a_public_address_without_a_login_is_detected(
    url: str, also: dict[str, str], told: bool
) -> None:
    config = from_environment({"LEAKLINE_PUBLIC_URL": url} | also)
    assert config.asks_nobody_of_the_public is told


@pytest.mark.parametrize("password", ["p@geheim", "p@geheim/x", "p@geheim:1", "@geheim"])
def test_a_database_url_broken_by_its_password_is_refused_and_not_repeated(
    password: str,
) -> None:
    url = f"postgresql+psycopg://leakline:{password}@postgres:5432/leakline"
    with pytest.raises(BadDatabaseUrl) as caught:
        open_engine(url)
    with pytest.raises(WrongSettings) as told:
        from_environment({"LEAKLINE_DATABASE_URL": url})
    assert "geheim" not in str(caught.value) + str(told.value)


@pytest.mark.skipif(os.name == "nt", reason="rights are those of POSIX")
def test_a_new_database_is_private_and_an_existing_one_keeps_its_rights(tmp_path: Path) -> None:
    def rights(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    old = tmp_path / "old.db"
    old.touch(0o644)
    new = tmp_path / "folder" / "new.db"
    for path in (old, new):
        engine = open_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE x (y)")
            wal = path.with_name(path.name + "-wal")
            assert rights(wal) == rights(path)
        engine.dispose()
    assert [rights(p) for p in (old, new, new.parent)] == [0o644, 0o600, 0o700]


@pytest.mark.parametrize("password", ["short", "a" * 1_001, "leakline_admin_of_somebody"])
def test_a_bad_password_is_refused_and_not_repeated(password: str) -> None:
    with pytest.raises(WrongSettings, match="LEAKLINE_ADMIN_PASSWORD: must") as caught:
        from_environment({"LEAKLINE_ADMIN_PASSWORD": password})
    assert password not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://x/y", "postgresql+asyncpg://x/y", "sqlite://", "", "a://b:c/d"]
)
def test_an_unsupported_database_is_named(url: str) -> None:
    with pytest.raises(BadDatabaseUrl):
        open_engine(url)


def test_an_allowed_origin_is_normalized(sqlite_url: str) -> None:
    for written in ("http://A.example/", "HTTP://a.example:80", "http://a.example"):
        given = {"LEAKLINE_ALLOWED_ORIGINS": f"{written}, https://b.example:8443/"}
        found = from_environment(given)
        assert found.allowed_origins == ("http://a.example", "https://b.example:8443")
    asks = "access-control-request"
    ask = {f"{asks}-method": "POST", f"{asks}-headers": "content-type"}
    with serving(sqlite_url, allowed_origins=found.allowed_origins) as api:
        answer = api.post("/api/v1/runs", json={}, headers={"origin": "http://a.example"})
        # An accepted write is also reported to the page.
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] == "http://a.example"
        # Only the allowed origins may send from a browser.
        for origin, named in (("http://a.example", "http://a.example"), ("http://b.example", None)):
            answer = api.options("/api/v1/runs/r1/batches", headers={"origin": origin, **ask})
            assert answer.headers.get("access-control-allow-origin") == named


def test_only_the_browser_client_is_served_to_every_origin(sqlite_url: str) -> None:
    headers = {"origin": "http://b.example"}
    with serving(sqlite_url) as api:
        client = api.get("/static/js/leakline.js", headers=headers)
        assert client.headers["access-control-allow-origin"] == "*"
        assert client.headers["cross-origin-resource-policy"] == "cross-origin"
        again = api.get(
            "/static/js/leakline.js", headers={**headers, "if-none-match": client.headers["etag"]}
        )
        assert (again.status_code, again.headers["access-control-allow-origin"]) == (304, "*")
        for path in ("/static/js/units.js", "/api/v1/runs", "/"):
            assert "access-control-allow-origin" not in api.get(path, headers=headers).headers


@pytest.mark.parametrize("read", [from_environment, lambda env: from_arguments(env, *[None] * 3)])
def test_a_database_at_the_former_path_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, read: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".leakline").mkdir()
    (tmp_path / ".leakline" / "r1.spool").touch()
    usual = "sqlite:///.leakline-server/leakline.db"
    assert (read({}).database_url, read({}).advice_to_move) == (usual, None)
    (tmp_path / ".leakline" / "leakline.db").touch()
    found = read({})
    assert found.database_url == "sqlite:///.leakline/leakline.db"
    assert found.advice_to_move is not None
    assert "move leakline.db* to .leakline-server" in found.advice_to_move
    # The server writes the warning to its log.
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ([found.advice_to_move] if read is from_environment else [])
    caplog.clear()
    # A path that is set explicitly gets no warning.
    named = read({"LEAKLINE_DATABASE_URL": found.database_url})
    assert (named.database_url, named.advice_to_move) == (found.database_url, None)
    (tmp_path / ".leakline-server").mkdir()
    (tmp_path / ".leakline-server" / "leakline.db").touch()
    assert read({}).database_url == usual
    assert caplog.text == ""


GOOD = {
    "LEAKLINE_DATABASE_URL": "postgresql+psycopg://leakline:SECRET@db.example/leakline",
    "LEAKLINE_WEBHOOK_URL": "https://hooks.example.com/SECRET",
    "LEAKLINE_WEBHOOK_SECRET": "whsec_U0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVU",
    "LEAKLINE_APPRISE_URLS": "json://SECRET.example.com",
    "LEAKLINE_ADMIN_PASSWORD": "SECRET battery staple",
}


def in_files(folder: Path, values: dict[str, str]) -> dict[str, str]:
    """Return the variables that name one file for each value."""
    named = {}
    for variable, value in values.items():
        file = folder / variable.lower()
        file.write_text(f"{value}\n")
        named[f"{variable}_FILE"] = str(file)
    return named


def test_every_secret_can_be_read_from_a_file(tmp_path: Path) -> None:
    # Every new secret setting belongs here and in the documents.
    assert GOOD.keys() == SECRETS
    for variable in (*SECRETS, "LEAKLINE_TOKEN"):
        assert f"`{variable}_FILE`" in DOCUMENTED
    assert from_environment(in_files(tmp_path, GOOD)) == from_environment(GOOD)
    assert misspelt({f"{variable}_FILE": "x" for variable in SECRETS}) == []
    # Other settings cannot be read from files.
    others = {variable: "1" for variable in VARIABLES if variable not in SECRETS}
    assert from_environment(in_files(tmp_path, others)) == from_environment({})


def test_wrong_files_are_named_together_without_their_content(tmp_path: Path) -> None:
    wrong = in_files(tmp_path, dict.fromkeys(SECRETS, "SECRET"))
    # This is too short for a password.
    Path(wrong["LEAKLINE_ADMIN_PASSWORD_FILE"]).write_text("SECRET")
    with pytest.raises(WrongSettings) as caught:
        from_environment(wrong)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{len(SECRETS)} settings are invalid:"
    assert {line.split()[1].rstrip(":") for line in lines} == set(wrong)
    assert "SECRET" not in str(caught.value).replace("WEBHOOK_SECRET", "")


def test_a_setting_and_its_file_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in GOOD.items():
        with pytest.raises(WrongSettings) as caught:
            from_environment({**in_files(tmp_path, {variable: value}), variable: value})
        (said,) = caught.value.problems
        assert said.startswith(f"environment {variable}_FILE=")
        assert said.endswith(f"{variable} is also set; set only one of the two")
        assert value not in said
    # A command reports it in one line.
    monkeypatch.setenv("LEAKLINE_DATABASE_URL_FILE", str(tmp_path / "missing"))
    assert main(["db", "upgrade"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "LEAKLINE_DATABASE_URL_FILE" in said and "No such file" in said
