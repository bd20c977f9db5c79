"""The more batches are refused, the later each should come back; none of them is looked into."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.writer import LONGEST_RETRY_SECONDS, REFUSED_PER_SECOND, TurnedAway


def test_a_few_come_back_after_a_second() -> None:
    turned_away = TurnedAway()
    for at in range(REFUSED_PER_SECOND - 1):
        assert turned_away.one_more(at / REFUSED_PER_SECOND) == 1


def test_many_are_asked_to_wait_longer_until_they_are_few_again() -> None:
    turned_away = TurnedAway()
    for at in range(10 * REFUSED_PER_SECOND):
        last = turned_away.one_more(at / (10 * REFUSED_PER_SECOND))
    assert last == 11
    # The first of the second after: as many may follow.
    assert turned_away.one_more(1.0) == 11
    assert turned_away.one_more(3.5) == 1


def test_nobody_is_sent_away_for_longer_than_a_training_waits_anyway() -> None:
    turned_away = TurnedAway()
    assert {turned_away.one_more(0.5) for _ in range(100 * REFUSED_PER_SECOND)} == set(
        range(1, LONGEST_RETRY_SECONDS + 1)
    )


def test_ten_thousand_come_back_at_a_rate_that_is_cheap_to_refuse() -> None:
    """Each comes back exactly when it was told to, while the server writes nothing at all."""
    turned_away, due = TurnedAway(), {0: 10_000}
    refused = []
    for second in range(120):
        coming = due.pop(second, 0)
        refused.append(coming)
        for i in range(coming):
            wait = turned_away.one_more(second + i / coming)
            due[second + wait] = due.get(second + wait, 0) + 1
    assert sum(refused[60:]) / 60 < 2_000


def test_what_is_refused_is_not_unpacked(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.db"))
    with TestClient(app, base_url="http://127.0.0.1") as api:
        run.create(api)
        path, headers = "/api/v1/runs/r1/batches", {"content-encoding": "gzip"}
        body = gzip.compress(b"not a batch")
        assert api.post(path, content=body, headers=headers).status_code == 400
        monkeypatch.setattr("leakline_server.writer.MAX_WAITING_BATCHES", 0)
        assert api.post(path, content=body, headers=headers).status_code == 429
