"""The growth of a comparison leaves the warm-up out, which the list of runs does not do alike: the page says so."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def pages(shared_api: TestClient, make_run: Any) -> TestClient:
    """Runs of 4, 5 and 20 generations that take 1 GiB in the first two, and nothing after."""
    for generations in (4, 5, 20):
        for side in ("a", "b"):
            memory = {"process.anon_bytes": lambda i: 2**30 + min(i // 3, 2) * 2**29}
            run = make_run(
                id=f"{side}{generations}",
                instance=f"{side}{generations}",
                leak_bytes=0,
                extra=memory,
            )
            run.create(shared_api)
            run.send(shared_api, 0, 3 * generations)
    return shared_api


@pytest.mark.parametrize(
    ("generations", "said"),
    [(4, None), (5, "without the first for warm-up"), (20, "without the first 2 for warm-up")],
)
def test_what_is_left_out_is_said_where_the_figure_stands(
    generations: int, said: str | None, pages: TestClient
) -> None:
    address = f"before=a{generations}&after=b{generations}"
    page = pages.get(f"/compare?{address}").text
    assert f"Compared over {generations} generations that both runs have." in page
    assert (said in page) if said else ("warm-up" not in page)
    growth = pages.get(f"/api/v1/compare?{address}").json()["growth_bytes_per_generation"]["before"]
    # With the first two, it would be far above.
    assert (growth["estimate"] == 0) == (generations == 20)
