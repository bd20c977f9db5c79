"""What the workers of a DataLoader copy on reading is theirs, ends when all is read, and is no leak of the parent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conftest import Ended

FIRST_READ, GENERATIONS = 12, 36
DATASET_BYTES = 48_000 * 1_033


def column(ended: Ended, name: str) -> list[float]:
    """The values of a series that there are, in order."""
    answer: dict[str, Any] = ended.server.get(f"/runs/{ended.run}/series?name={name}&points=2000")
    return [y for item in answer["items"] for y in item["last"]]


def test_growth_of_workers_is_theirs_and_bounded(run_program: Callable[..., Ended]) -> None:
    ended = run_program("with_loader_workers", "loader-workers", "")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(GENERATIONS)
    assert {f["kind"] for f in verdict["findings"]} <= {"children"}, verdict["findings"]
    # All has been read by both for as long again: it is over.
    assert verdict["status"] not in ("suspected", "confirmed"), verdict["summary"]
    books = ended.books()["total"]
    assert abs(sum(books[2:])) < 0.2 * DATASET_BYTES
    workers = column(ended, "children.loader_workers.uss_bytes")
    assert max(column(ended, "children.loader_workers.count")) == 2
    assert max(workers) - workers[0] > DATASET_BYTES
    assert max(workers) < workers[0] + 2.5 * DATASET_BYTES
    for i in range(2):
        assert max(column(ended, f"children.process.loader_worker-{i}.uss_bytes")) > DATASET_BYTES
