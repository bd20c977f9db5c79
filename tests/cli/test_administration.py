"""Commands for server administrators: `leakline token`, `password`, `webhook`, `db` and `serve`."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier
from tests.cli.conftest import banner_of_server

from leakline_server.alerts.sending import send_message
from leakline_server.alerts.sending.http_post import Delivered
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.paths import MIGRATIONS
from leakline_server.security.credentials import digest_of, is_password
from leakline_server.store import access
from leakline_server.store.alerts import webhooks
from leakline_server.store.engine import open_engine, writing
from leakline_server.store.migrate import current, downgrade, revisions, upgrade
from leakline_server.store.schema import webhooks as webhook_table


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database URL that the commands use, in a separate folder."""
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path}/there/leakline.db"
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("LEAKLINE_DATABASE_URL", address)
    return address


def test_a_missing_database_is_named_and_not_created(leakline: Any, tmp_path: Path) -> None:
    said = leakline("token", "list", "--database-url", "sqlite:///nowhere.db")
    assert said.status == 1
    assert "not found" in said.error
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("db upgrade --database-url=nonsense", "argument --database-url"),
        ("serve --port=99999", "argument --port='99999': must be "),
        ("serve --host='a b'", "argument --host='a b': must be "),
    ],
)
def test_a_wrong_argument_is_not_reported_as_a_variable(
    leakline: Any, command: str, argument: str
) -> None:
    said = leakline(*shlex.split(command))
    assert said.status == 2
    assert argument in said.errors
    assert "LEAKLINE_" not in said.errors


def test_the_database_of_an_older_server_is_not_changed(leakline: Any, url: str) -> None:
    # That server may be running, and could not write to an upgraded database.
    engine = open_engine(url)
    upgrade(engine, MIGRATIONS)
    before = revisions(MIGRATIONS)[-2]
    downgrade(engine, MIGRATIONS, before)
    said = leakline("token", "create")
    assert said.status == 1
    assert before in said.error and "leakline serve" in said.error
    assert current(engine) == before
    assert not access.can_sign_in(engine, 0.0)
    engine.dispose()


def stored(address: str, secret: str) -> Any:
    engine = open_engine(address)
    found = access.find_token(engine, digest_of(secret))
    engine.dispose()
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        "--expires=soon", "--expires=-1d", "--expires=0", "--expires=11y", "--expires=nan",
        "--scope read --project erl", "--scope admin --browser",
    ],
)  # fmt: skip
def test_a_token_that_cannot_be_is_refused(leakline: Any, wrong: str) -> None:
    said = leakline("token", "create", *wrong.split())
    assert said.status in (1, 2)
    assert said.output == "" and said.error


def test_only_the_token_is_on_standard_output(
    leakline: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = leakline("token", "create", "--project", "erl")
    assert said.status == 0
    assert re.fullmatch(r"leakline_ingest_[\w-]{43}\n", said.output)
    assert "writes to project erl" in said.errors and "shown only this once" in said.errors
    assert f"stored in {url.removeprefix('sqlite:///')}." in said.errors
    found = stored(url, said.output.strip())
    assert (found.scope, found.project, found.browser) == ("ingest", "erl", False)
    assert found.expires_at == pytest.approx(time.time() + 365 * 86_400, abs=60)
    monkeypatch.setenv("LEAKLINE_PROJECT", "rl")
    assert "writes to project rl" in leakline("token", "create").errors


def test_tokens_are_listed_without_their_secret_and_revoked(leakline: Any, url: str) -> None:
    more = ("--scope", "admin", "--name", "me", "--expires", "12h")
    made = json.loads(leakline("token", "create", *more, "--json").output)
    said = leakline("token", "list")
    assert "me" in said.output and made["prefix"] in said.output and "never" in said.output
    assert made["token"] not in said.output
    (listed,) = json.loads(leakline("token", "list", "--json").output)["items"]
    assert listed == {name: value for name, value in made.items() if name != "token"}
    assert leakline("token", "revoke", str(made["id"])).status == 0
    assert stored(url, made["token"]).state_at(time.time()) == "revoked"
    nobody = leakline("token", "revoke", "999")
    assert (nobody.status, nobody.output) == (1, "")
    assert "token 999 not found" in nobody.errors


def test_a_password_is_set_and_removed(
    leakline: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    refused = leakline("password", "--stdin")
    assert refused.status == 2
    assert "8 characters" in refused.errors and "short" not in refused.errors
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse\n"))
    place = url.removeprefix("sqlite:///")
    assert f"the password is set in {place};" in leakline("password", "--stdin").output
    engine = open_engine(url)
    hashed = access.password_hash(engine)
    assert hashed is not None and hashed.startswith("$argon2id$")
    assert is_password(hashed, "correct horse")
    assert access.can_sign_in(engine, 0.0)
    assert f"removed from {place}" in leakline("password", "--remove").output
    assert f"no password was set in {place}" in leakline("password", "--remove").output
    assert not access.can_sign_in(engine, 0.0)
    engine.dispose()


def test_a_password_in_another_database_is_found_by_the_names_of_both(
    leakline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEAKLINE_DATABASE_URL")
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse\n"))
    written = leakline("password", "--stdin").output
    assert f"in {tmp_path}/.leakline-server/leakline.db;" in written
    refused = subprocess.run(
        [sys.executable, "-m", "leakline", "serve", "--port", "0", "--database-url", "sqlite:///served.db"],
        env={**os.environ, "LEAKLINE_LOGIN": "1"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert f"no login exists in {tmp_path}/served.db: create" in refused.stderr
    assert not (tmp_path / "served.db").exists()


def test_password_does_not_prompt_without_a_terminal(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = leakline("password")
    assert said.status == 1
    assert "--stdin" in said.errors


# -- `leakline webhook test` -------------------------------------------------------------------------------


@pytest.fixture
def webhook_test(leakline: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that calls the command with webhook settings such as ``URL``."""

    def call(*arguments: str, **settings: str) -> Any:
        for name, value in settings.items():
            monkeypatch.setenv(f"LEAKLINE_WEBHOOK_{name}", value)
        return leakline("webhook", "test", *arguments)

    return call


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "LEAKLINE_WEBHOOK_URL"),
        ({"URL": "https://hook.example/", "SECRET": "not a good secret"}, "LEAKLINE_WEBHOOK_SECRET"),
        ({"URL": "https://user:password@hook.example/"}, "LEAKLINE_WEBHOOK_URL"),
        ({"URL": "https://discord.com/api/webhooks/1/password@"}, "LEAKLINE_WEBHOOK_URL"),
    ],
)  # fmt: skip
def test_a_wrong_webhook_setting_is_named_without_secrets(
    webhook_test: Any, settings: dict[str, str], named: str
) -> None:
    said = webhook_test(**settings)
    assert said.status == 2
    assert named in said.error
    assert "good secret" not in said.error
    assert "password@" not in said.error


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "apprise"),
        ("https://hook.example/x", "standard"),
    ],
)
def test_a_test_has_the_format_that_the_address_implies(
    webhook_test: Any, monkeypatch: pytest.MonkeyPatch, url: str, form: str
) -> None:
    sent: list[send_message.Outgoing] = []

    def keep(outgoing: send_message.Outgoing, *_: Any) -> Delivered:
        sent.append(outgoing)
        return Delivered(None, 0.1)

    monkeypatch.setattr(send_message, "send", keep)
    assert f"accepted the message after 0.10 s (format: {form}, " in webhook_test(URL=url).output
    assert [(each.url, each.form) for each in sent] == [(url, form)]
    assert "LEAKLINE_PUBLIC_URL" in str(sent[0].message.facts["summary"])


def test_a_private_address_is_refused_naming_the_setting(webhook_test: Any, receiver: Any) -> None:
    said = webhook_test(URL=receiver.url)
    assert said.status == 1
    assert "LEAKLINE_WEBHOOK_ALLOW=127.0.0.1/32" in said.errors
    assert receiver.received == []


def test_a_webhook_cannot_be_tested_without_its_database(webhook_test: Any, receiver: Any) -> None:
    said = webhook_test("--database-url", "mysql://x/y", URL=receiver.url)
    assert said.status == 1
    assert "database" in said.error


def test_a_generated_secret_is_printed_once_and_signs_every_test(
    webhook_test: Any, receiver: Any
) -> None:
    settings = {"URL": receiver.url, "ALLOW": "127.0.0.0/8"}
    first = webhook_test(**settings)
    assert first.status == 0, first.errors
    made, sent = first.output.splitlines()
    assert "answered 204 after" in sent
    second = webhook_test(**settings)
    assert len(second.output.splitlines()) == 1
    for received in receiver.received:
        signed = Verifier(made.rpartition(" ")[2]).verify(received.body, received.headers)
        assert signed["type"] == "webhook.test"


def test_a_disabled_receiver_that_accepts_the_test_is_enabled_again(
    webhook_test: Any, receiver: Any, url: str
) -> None:
    engine = open_engine(url)
    upgrade(engine, MIGRATIONS)

    def registered() -> webhooks.Webhook:
        return webhooks.register(engine, receiver.url, "standard", None, make_secret, 0.0).webhook

    of = webhook_table.c.id == registered().id
    with writing(engine) as connection:
        webhooks.disable_where(connection, of, "answered 410 Gone")
    receiver.answers = [503, 410, 204]
    for said, status, reason in (
        ("answered 503\n", 1, "answered 410 Gone"),
        ("answered 410 Gone: the receiver wants no more messages\n", 1, "answered 410 Gone"),
        ("", 0, None),
    ):
        ended = webhook_test(URL=receiver.url, ALLOW="127.0.0.0/8")
        assert ended.status == status
        assert ended.errors.endswith(said) and "/hook" not in ended.errors
        assert registered().disabled_reason == reason
    engine.dispose()


# -- `leakline serve` --------------------------------------------------------------------------------------


def test_the_banner_shows_the_address_and_the_variable_for_trainings(
    banner: tuple[str, str],
) -> None:
    first, second = banner
    found = re.match(
        r"Leakline is running at (http://127\.0\.0\.1:\d+)\S*  \(Ctrl-C stops it\)", first
    )
    assert found is not None, first
    assert second == f"training runs and commands need: export LEAKLINE_SERVER={found[1]}\n"


def test_the_banner_of_a_server_behind_a_proxy_shows_both_addresses_and_the_token(
    tmp_path: Path,
) -> None:
    public = {"LEAKLINE_PUBLIC_URL": "https://leaks.example", "LEAKLINE_LOGIN": "1"}
    public |= {"LEAKLINE_ADMIN_PASSWORD": "of nobody else"}
    with banner_of_server(tmp_path, **public) as (first, second):
        listening = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert listening is not None, first
        assert first == (
            f"Leakline is running at https://leaks.example, listening on {listening[0]}  (Ctrl-C stops it)\n"
        )
        assert second == (
            "training runs and commands need: export LEAKLINE_SERVER=https://leaks.example LEAKLINE_TOKEN=…  "
            "(create a token with: leakline token create)\n"
        )


def test_a_server_keeps_running_if_its_banner_cannot_be_printed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = (
        "import sys; from leakline.cli.commands.serve import _say_where; "
        "from leakline_server.config import Config; "
        "_say_where(Config(port=1)); print('serves', file=sys.stderr)"
    )
    served = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (served.returncode, served.stderr) == (0, "serves\n")
