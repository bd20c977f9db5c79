"""Each type has old, new and difference with a rating: good, expected or a problem; on the page, in API and text."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.analysis.growth import change_rating
from leakline.report.facts import rating_words
from leakline.snapshot import Batch, Event, ProcessIdentity, Snapshot, batch_to_wire

MIB = 2**20
GENERATIONS = 13
# type -> (first, last, the row of a run that leaks, and of one that keeps to its memory)
CHANGES = {
    "app.TradingEnvironment": (2, 2, "expected: 2", "expected: 2"),
    "app.DDPGAgent": (16, 17, "expected: 16 to 17", "expected: 16 to 17"),
    "app.Scaler": (5, 5, "good", "good"),
    "app.Critic": (4, 9, "problem: expected 4", "problem: expected 4"),
    "app.Transition": (
        1_000,
        3_222,
        "problem: grows",
        "expected: it grows, but no finding names it",
    ),
    "app.Step": (100, 424, "problem: grows", "expected: it grows, but no finding names it"),
    "numpy.ndarray": (
        1_234,
        15_678,
        "problem: grows",
        "expected: it grows, but no finding names it",
    ),
    "torch.Tensor": (567, 1_234, "problem: grows", "expected: it grows, but no finding names it"),
}
DECLARED = {"app.TradingEnvironment": (2, 2), "app.DDPGAgent": (16, 17), "app.Critic": (4, 4)}


def batch(leaked: int, generations: int) -> Batch:
    began = time.time() - 3600
    rows = []
    for n in range(generations):
        share = n / (GENERATIONS - 1)
        samples = {
            f"type.{name}.count": first + math.ceil((last - first) * share)
            for name, (first, last, *_) in CHANGES.items()
        }  # fmt: skip
        memory = 4096 * MIB + n * leaked
        samples |= {"process.anon_bytes": memory, "process.rss_bytes": memory}
        declared = tuple(
            Event(0, began, "expect", name, data={"low": low, "high": high, "after": None})
            for name, (low, high) in DECLARED.items()
        )
        rows.append(
            Snapshot(
                n, began + n, float(n), n, None, "", "generation_end", samples, declared if n == 0 else ()
            )
        )  # fmt: skip
    return Batch(ProcessIdentity("r1", pid=1, host="box"), tuple(rows))


def send(api: TestClient, eventually: Any, leaked: int, generations: int = GENERATIONS) -> None:
    new = {"id": "r1", "project": "erl", "name": "before", "unit": "generation", "total": 25}
    assert api.post("/api/v1/runs", json=new).status_code == 201
    wire = batch_to_wire(batch(leaked, generations))
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json().get("generations") == generations)


def of_page(api: TestClient) -> dict[str, list[str]]:
    """type -> its cells, without marks."""
    page = api.get("/runs/r1").text.replace("<wbr>", "")
    table = page[page.index('id="types"') :].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("</tr>")]
    plain = [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in rows if row]
    return {row[0]: row for row in plain}


@pytest.mark.parametrize("leaked", [64 * MIB, 0])
def test_each_change_has_its_rating_on_the_page_in_the_api_and_in_markdown(
    leaked: int, api: TestClient, eventually: Any
) -> None:
    send(api, eventually, leaked)
    verdict = api.get("/api/v1/runs/r1/verdict").json()
    items = {each["name"]: each for each in api.get("/api/v1/runs/r1/types").json()["items"]}
    page, markdown = of_page(api), api.get("/runs/r1/report.md").text
    for name, (first, last, *words) in CHANGES.items():
        said = words[0] if verdict["status"] in ("suspected", "confirmed", "watch") else words[1]
        told = items[name]
        assert (told["first_count"], told["last_count"], told["difference"]) == (
            first,
            last,
            last - first,
        )
        assert told["change_rating"] == said.partition(":")[0]
        assert rating_words(told) == said
        row = page[name]
        assert row[1] == said
        assert row[3:6] == [f"{first:,}", f"{last:,}", f"{last - first:+,}"]
        if told["rating"] != "steady":
            assert re.search(
                rf"`{re.escape(name)}` \| {first:,} \| {last:,} \| \{last - first:+,} \|.* {said} \|",
                markdown,
            )


def test_before_there_is_a_verdict_a_rise_is_neither_good_nor_bad(
    api: TestClient, eventually: Any
) -> None:
    send(api, eventually, 64 * MIB, generations=3)
    page = of_page(api)
    assert page["numpy.ndarray"][1] == "not known yet"
    assert (page["app.Scaler"][1], page["app.TradingEnvironment"][1]) == ("good", "expected: 2")


@pytest.mark.parametrize(
    ("rating", "difference", "readings", "status", "told"),
    [
        ("steady", -3, 2, None, "good"), ("steady", 0, 1, "learning", "good"), ("steady", 14_444, 4, "ok", "good"),
        # Of another leak, whose verdict says nothing of this one.
        ("steady", 14_444, 3, "confirmed", "unknown"), ("steady", 7, 8, "learning", "unknown"),
        ("grows", 14_444, 8, None, "unknown"), ("grows", 14_444, 8, "filling", "expected"),
        ("grows", 1, 8, "watch", "expected"), ("grows", 1, 8, "recovered", "unknown"),
        ("problem", 0, 1, None, "problem"), ("expected", 1, 1, None, "expected"),
    ],
)  # fmt: skip
def test_a_change_is_rated_by_what_is_known_of_it(
    rating: str, difference: int, readings: int, status: str | None, told: str
) -> None:
    assert change_rating(rating, difference, readings, status, is_blamed=False) == told
