"""Control characters and marks are removed from names, which stay distinct; secrets are replaced."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from starlette.testclient import TestClient

from leakline_server.limits import MAX_NAME_LENGTH
from leakline_server.store.engine import open_engine
from leakline_server.text_cleaning import (
    HIDDEN,
    all_without_control,
    all_without_marks,
    redacted,
    without_control,
)

SIGNED = "~[0-9a-f]{12}"
MARKED = st.text(st.sampled_from(["a", "b", "\u200f", "\u202e", "\ufeff", "\x00", "~"]), max_size=6)


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    run = make_run()
    run.create(api)
    return run


def becomes(name: str) -> str:
    (found,) = all_without_control({name: 0})
    return str(found)


def test_a_clean_name_is_unchanged() -> None:
    sent = {"a\u202e": 1, "a": 2, "\ufeffa": 3, "": 4, "\x00": 5, "b\x7f": [{"c\x1b": "d\x9b"}]}
    found = all_without_control(sent)
    assert list(found.values()) == [1, 2, 3, 4, 5, [{becomes("c\x1b"): "d"}]]
    assert (found["a"], found[""]) == (2, 4)
    assert all(re.fullmatch(f"a?b?({SIGNED})?a?", name) for name in found)
    assert becomes("\u202d") != becomes("\u202e")
    found = all_without_marks({"a\u200f": 1, "a": 2, "a\x00": 3})
    assert (found["a"], found["a\x00"], len(found)) == (2, 3, 3)


def test_the_sign_is_where_something_was_removed() -> None:
    assert re.fullmatch(rf"type\.a{SIGNED}b\.count", becomes("type.a\x00\x01b\x02.count"))


@given(st.dictionaries(MARKED, st.integers(), max_size=8), st.randoms())
def test_a_name_becomes_the_same_whatever_other_names_there_are(
    sent: dict[str, int], random: Any
) -> None:
    together = all_without_control(sent)
    assert len(together) == len(sent)
    names = list(sent)
    random.shuffle(names)
    cut = random.randint(0, len(names))
    apart = [
        all_without_control({name: sent[name] for name in part})
        for part in (names[:cut], names[cut:])
    ]
    assert apart[0] | apart[1] == together
    # A name that was cleaned once stays the same.
    assert all_without_control(together) == together
    assert all(without_control(name) == name for name in together)


def test_a_name_does_not_become_too_long() -> None:
    mark, whole = "\u200f", "n" * MAX_NAME_LENGTH
    for name in (whole + mark, mark + whole, whole[:-1] + mark, whole[:300] + mark + whole[300:]):
        assert len(becomes(name)) == MAX_NAME_LENGTH
        assert re.search(SIGNED, becomes(name))
        assert becomes(name) != becomes(name + "\u200e")
    assert len(becomes(whole + "n" + mark)) > MAX_NAME_LENGTH


def values_of(api: TestClient, run: Any, name: str) -> list[int]:
    path = f"/api/v1/runs/{run.id}/series"
    (item,) = api.get(path, params={"name": name, "x": "sequence"}).json()["items"]
    return list(item["last"])


def test_two_series_keep_their_values_however_they_are_sent(api: TestClient, run: Any) -> None:
    marked, path = "gauge.q\u200f", f"/api/v1/runs/{run.id}/batches"
    for first, series in (
        (0, {"gauge.q": 1, marked: 2}),
        (2, {marked: 2}),
        (4, {marked: 2, "gauge.q": 1}),
    ):
        wire = run.wire(first, 2)
        wire["columns"]["series"] |= {name: [value] * 2 for name, value in series.items()}
        assert api.post(path, json=wire).json()["accepted"] == 2
    for name, value, count in (("gauge.q", 1, 4), (becomes(marked), 2, 6)):
        assert values_of(api, run, name) == [value] * count
    # One snapshot of the batch, again and alone.
    alone = run.wire(1, 1)
    alone["columns"]["series"] |= {"gauge.q": [1], marked: [2]}
    answer = api.post(path, json=alone)
    assert (answer.status_code, answer.json()["accepted"]) == (200, 0)


def test_similar_names_cost_no_more_than_others() -> None:
    def spent(sent: dict[str, int]) -> float:
        began = time.thread_time()
        assert len(all_without_control(sent)) == len(sent)
        return time.thread_time() - began

    marks = ["\u202e" * (i % 200) + "\u202d" * (i // 200) for i in range(20_000)]
    alike = spent({f"{mark}a": 0 for mark in marks})
    apart = spent({f"{mark}{number}": 0 for number, mark in enumerate(marks)})
    assert alike < 20 * apart


HUSH = "hunter2-hunter2"
SENT: dict[str, Any] = {
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


def test_no_secret_is_stored_or_answered(api: TestClient, database_url: str, make_run: Any) -> None:
    run = make_run()
    assert api.post("/api/v1/runs", json=run.header | SENT).status_code == 201
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
    assert HUSH not in api.get("/runs/r1?tab=all").text
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
        ("password", 12_345_678), ("password", 0), ("api_key", 1.5), ("passwords", ["hunter2a"]),
        ("secrets", {"db": "hunter2"}), ("private_key", ["-----BEGIN"]), ("credentials", ({"user": "ann"},)),
        ("client_secret", "hunter2"), ("SecretArn", "arn:aws:x")],
)  # fmt: skip
def test_secrets_of_any_kind_are_replaced(key: str, value: Any) -> None:
    assert redacted({"a": [{key: value}], "b": 1}) == {"a": [{key: HIDDEN}], "b": 1}


def test_values_that_only_resemble_secrets_stay() -> None:
    assert redacted(HARMLESS) == HARMLESS


@pytest.mark.parametrize("kind", ["config", "environment"])
def test_redacting_twice_changes_nothing(kind: str) -> None:
    once = redacted(SENT[kind])
    assert redacted(once) == once and HUSH not in json.dumps(once)
