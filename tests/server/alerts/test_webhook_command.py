"""`leakline webhook test` sends a signed message and says in one line what came back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from leakline_server.alerts.signing import make_secret
from leakline_server.paths import MIGRATIONS
from leakline_server.store import webhooks
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.migrate import upgrade
from leakline_server.store.tables import webhooks as webhook_table


def webhook_test(
    folder: Path, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
    return subprocess.run(
        [sys.executable, "-m", "leakline", "webhook", "test", *arguments],
        cwd=folder, env={**clean, **{f"LEAKLINE_WEBHOOK_{k}": v for k, v in settings.items()}},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_without_an_address_it_says_which_setting_is_missing(tmp_path: Path) -> None:
    ended = webhook_test(tmp_path)
    assert ended.returncode == 2
    assert "LEAKLINE_WEBHOOK_URL" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"SECRET": "not a good secret"}, "LEAKLINE_WEBHOOK_SECRET"), ({"FORMAT": "pigeon"}, "LEAKLINE_WEBHOOK_FORMAT"),
     ({"ALLOW": "here"}, "LEAKLINE_WEBHOOK_ALLOW"),
     ({"URL": "https://user:password@hook.example/"}, "LEAKLINE_WEBHOOK_URL"),
     ({"URL": "hook.example"}, "LEAKLINE_WEBHOOK_URL")],
)  # fmt: skip
def test_a_wrong_setting_is_named_and_no_secret_repeated(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    ended = webhook_test(tmp_path, **{"URL": "https://hook.example/", **settings})
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "good secret" not in ended.stderr
    assert "password@" not in ended.stderr


def test_a_private_address_is_refused_and_the_setting_named(tmp_path: Path, receiver: Any) -> None:
    ended = webhook_test(tmp_path, URL=receiver.url)
    assert ended.returncode == 1
    assert "LEAKLINE_WEBHOOK_ALLOW=127.0.0.1/32" in ended.stderr
    assert receiver.received == []


def test_a_refusal_is_told_with_its_status(tmp_path: Path, receiver: Any) -> None:
    receiver.answers = [503]
    ended = webhook_test(tmp_path, URL=receiver.url, ALLOW="127.0.0.0/8", SECRET=make_secret())
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith("answered 503\n")
    assert len(ended.stderr.splitlines()) == 1
    assert "/hook" not in ended.stderr


def test_a_database_that_cannot_be_used_is_told(tmp_path: Path, receiver: Any) -> None:
    ended = webhook_test(tmp_path, "--database-url", "mysql://x/y", URL=receiver.url)
    assert ended.returncode == 1
    assert "database" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_message_arrives_signed_and_the_answer_is_one_line(
    tmp_path: Path, receiver: Any
) -> None:
    secret = make_secret()
    ended = webhook_test(tmp_path, URL=receiver.url, ALLOW="127.0.0.0/8", SECRET=secret)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 1
    assert "answered 204 after" in ended.stdout
    (received,) = receiver.received
    assert Verifier(secret).verify(received.body, received.headers)["type"] == "webhook.test"


def test_a_made_secret_is_printed_once_and_used_ever_after(tmp_path: Path, receiver: Any) -> None:
    first = webhook_test(tmp_path, URL=receiver.url, ALLOW="127.0.0.0/8")
    second = webhook_test(tmp_path, URL=receiver.url, ALLOW="127.0.0.0/8")
    secret = first.stdout.splitlines()[0].rpartition(" ")[2]
    assert "whsec_" not in second.stdout
    for received in receiver.received:
        Verifier(secret).verify(received.body, received.headers)


def test_a_receiver_that_had_enough_and_takes_the_test_is_enabled_again(
    tmp_path: Path, receiver: Any
) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/leakline.db")
    upgrade(engine, MIGRATIONS)
    hook = webhooks.register(engine, receiver.url, "standard", None, make_secret, 0.0).webhook
    with writing(engine) as connection:
        webhooks.disable_where(connection, webhook_table.c.id == hook.id, "answered 410 Gone")
    settings = {"URL": receiver.url, "ALLOW": "127.0.0.0/8"}
    receiver.answers = [410, 204]
    assert webhook_test(tmp_path, "--database-url", str(engine.url), **settings).returncode == 1
    assert _reason(engine, receiver.url) == "answered 410 Gone"
    assert webhook_test(tmp_path, "--database-url", str(engine.url), **settings).returncode == 0
    assert _reason(engine, receiver.url) is None


def _reason(engine: Engine, url: str) -> str | None:
    return webhooks.register(
        engine, url, "standard", None, make_secret, 0.0
    ).webhook.disabled_reason
