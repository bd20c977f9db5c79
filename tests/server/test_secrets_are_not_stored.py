"""What a program calls a secret is not stored, whoever sends it; what only sounds like one stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from leakline_server.redaction import HIDDEN, redacted
from leakline_server.store.engine import open_engine

HUSH = "hunter2-hunter2"
SECRETS: dict[str, Any] = {
    "config": {
        "db": {"password": HUSH, "url": f"postgresql://ann:{HUSH}@db/x"}, "API_KEY": HUSH, "hf_token": HUSH,
        "aws": [{"secret_access_key": HUSH}], "passwords": [HUSH], "secrets": {"db": HUSH, "of": [{"x": HUSH}]},
        "private_key": ["-----BEGIN", HUSH], "pin": {"password": 71_350_246},
        "note": f"Authorization: Bearer {HUSH}", "authToken": 7,
    },
    "environment": {
        "command_line": ["train.py", "--password", HUSH, f"--api-key={HUSH}", f"wandb_api_key={HUSH}"],
        "credentials": HUSH, "access_token": HUSH,
    },
}  # fmt: skip
HARMLESS: dict[str, Any] = {
    "max_tokens": 4096, "pad_token": "<|endoftext|>", "tokens": "12,000,000", "tokenizer": "gpt2-tokenizer",
    "token": "[MASK_TOKEN]", "eos_token": "</s>", "lr": 1e-3, "secretary": None, "keys": ["a", "b"],
    "url": "https://example.org/data", "n_tokens": "1000000000", "num_tokens": [1, 2], "token_ids": {"pad": 0},
    "bos_token": 1, "secretary_problem": {"n": 100}, "Secretary": "Ann", "passwords": None, "secrets": [],
    "save_password": False, "has_api_key": True, "credentials": "", "private_key": {},
}  # fmt: skip


def test_no_secret_is_in_the_database_nor_in_an_answer(
    api: TestClient, database_url: str, make_run: Any
) -> None:
    run = make_run()
    assert api.post("/api/v1/runs", json=run.header | SECRETS).status_code == 201
    wire = run.wire(0, 3)
    lines = [f"password={HUSH}", f"connecting to redis://u:{HUSH}@h", "loss 0.5 tokens: 12345678"]
    wire["events"] = [
        {"sequence": 0, "time": 1e9, "kind": "log", "name": "log", "data": {"lines": lines}}
    ]
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    end = {"state": "failed", "instance": "p1", "reason": f"OSError: ftp://ann:{HUSH}@h"}
    assert api.patch("/api/v1/runs/r1", json=end).status_code == 200
    found = api.get("/api/v1/runs/r1").json()
    assert HUSH not in json.dumps(found) and "71350246" not in json.dumps(found)
    assert found["config"]["db"] == {"password": HIDDEN, "url": "postgresql://ann:***@db/x"}
    assert found["config"]["authToken"] == 7
    assert found["environment"]["command_line"][:3] == ["train.py", "--password", HIDDEN]
    (process,) = found["processes"]
    assert process["log_lines"][2] == lines[2] and process["end_reason"].endswith("ann:***@h")
    assert HUSH not in api.get("/runs/r1").text
    assert HUSH not in api.get("/api/v1/runs/r1/export.json").text
    engine = open_engine(database_url)
    with engine.connect() as connection:
        for table in ("runs", "attempts", "processes"):
            for row in connection.execute(text(f"SELECT * FROM {table}")):
                assert HUSH not in str(row) and "71350246" not in str(row)
    engine.dispose()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("password", 12_345_678),
        ("password", 0),
        ("api_key", 1.5),
        ("passwords", ["hunter2a"]),
        ("secrets", {"db": "hunter2"}),
        ("private_key", ["-----BEGIN"]),
        ("credentials", ({"user": "ann"},)),
        ("client_secret", "hunter2"),
        ("SecretArn", "arn:aws:x"),
    ],
)
def test_whatever_a_secret_is_made_of(key: str, value: Any) -> None:
    assert redacted({"a": [{key: value}], "b": 1}) == {"a": [{key: HIDDEN}], "b": 1}


def test_what_only_sounds_like_one_stays() -> None:
    assert redacted(HARMLESS) == HARMLESS


@pytest.mark.parametrize("kind", ["config", "environment"])
def test_twice_is_as_once(kind: str) -> None:
    once = redacted(SECRETS[kind])
    assert redacted(once) == once and HUSH not in json.dumps(once)
