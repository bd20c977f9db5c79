"""Servers killed under load at random moments, `LEAKLINE_SOAK_SERVER_KILLS` of them (200) on each kind of database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.server.server_kills import kill_and_check


def test_kills_of_a_single_server_lose_and_duplicate_nothing(
    serve: Any, make_run: Any, database_url: str, size: Callable[[str, int], int], report: Any
) -> None:
    def start(port: int) -> Any:
        return serve(port, ["--database-url", database_url])

    figures = kill_and_check(start, make_run, size("LEAKLINE_SOAK_SERVER_KILLS", 200), seed=3)
    report(figures)
    assert figures.wrong == []


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_kills_of_one_of_three_servers_lose_and_duplicate_nothing(
    serve: Any, make_run: Any, database_url: str, size: Callable[[str, int], int], report: Any
) -> None:
    def start(port: int) -> Any:
        return serve(port, ["--database-url", database_url])

    kills = size("LEAKLINE_SOAK_SERVER_KILLS", 200)
    figures = kill_and_check(start, make_run, kills, servers=3, seed=4)
    report(figures)
    assert figures.wrong == []
