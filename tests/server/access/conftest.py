"""A server with authentication on and cheap password hashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.server.access.people import ADDRESS, asking, bearer, engine_of, token
from tests.server.databases import Copies

from leakline_server.app import create_app
from leakline_server.security import credentials


@pytest.fixture
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make password hashing a thousand times cheaper; one test checks the real settings."""
    from argon2 import PasswordHasher

    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(credentials, "_hasher", lambda: cheap)


@pytest.fixture
def asked(cheap_hashes: None, sqlite_copies: Copies, tmp_path: Path) -> Iterator[TestClient]:
    with (
        sqlite_copies.new(tmp_path) as url,
        TestClient(create_app(asking(url)), base_url=ADDRESS) as client,
    ):
        yield client


@pytest.fixture
def admin(asked: TestClient) -> dict[str, str]:
    return bearer(token(engine_of(asked), "admin")[1])


@pytest.fixture
def adding(asked: TestClient, admin: dict[str, str]) -> dict[str, str]:
    """Return the headers of an ingest token for the project "mine"; "mine" and another project have runs."""
    for project, run in (("mine", "m1"), ("other", "o1")):
        body = {"id": run, "project": project}
        assert asked.post("/api/v1/runs", json=body, headers=admin).status_code == 201
    return bearer(token(engine_of(asked), "ingest", "mine")[1])
