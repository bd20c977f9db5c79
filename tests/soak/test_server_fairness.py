"""How long others wait beside a project that sends thousands of new names, on each kind of database."""

from __future__ import annotations

from typing import Any

from tests.server.under_load import beside_a_crowd

P99_SECONDS = 0.25


def test_others_wait_no_quarter_of_a_second(serve: Any, database_url: str, tell: Any) -> None:
    beside = beside_a_crowd(serve(arguments=["--database-url", database_url]).port)
    tell(
        f"99 % of the answers to others within {beside.crowded:.3f} s, {beside.alone:.3f} s without the crowd, half of "
        f"whose batches took {beside.of_the_crowd:.1f} s; {len(beside.refused)} refused"
    )
    assert beside.refused == []
    assert beside.crowded < P99_SECONDS
