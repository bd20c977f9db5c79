"""A server that is killed under load has lost nothing it acknowledged, and nothing is there twice afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.server_kills import kill_and_check

pytestmark = pytest.mark.flow


@pytest.mark.long
def test_kills_under_load_lose_and_double_nothing(
    serve: Any, make_run: Any, database_url: str
) -> None:
    def start(port: int) -> Any:
        return serve(port, ["--database-url", database_url])

    figures = kill_and_check(start, make_run, 3, seed=7)
    assert figures.wrong == []
    assert figures.kills == 3
    assert figures.acknowledged > 0
