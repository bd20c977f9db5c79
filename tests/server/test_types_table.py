"""The tables of types and stores: counts, bytes on host and devices, and the rating of each change; on page and API."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.analysis.findings.growth_tables import change_rating
from leakline.report.verdict_facts import rating_words
from leakline.snapshot import Batch, Census, Event, ProcessIdentity, Snapshot, batch_to_wire

MIB = 2**20
RATED_GENERATIONS = 13
GROWS = ("problem: grows", "expected: it grows, but no finding names it")
# type -> (first, last, the row of a run that leaks, and of one that keeps to its memory)
CHANGES = {
    "app.TradingEnvironment": (2, 2, "expected: 2", "expected: 2"),
    "app.DDPGAgent": (16, 17, "expected: 16 to 17", "expected: 16 to 17"),
    "app.Scaler": (5, 5, "good", "good"),
    "app.Critic": (4, 9, "problem: expected 4", "problem: expected 4"),
    "app.Transition": (1_000, 3_222, *GROWS),
    "app.Step": (100, 424, *GROWS),
    "numpy.ndarray": (1_234, 15_678, *GROWS),
    "torch.Tensor": (567, 1_234, *GROWS),
}
DECLARED = {"app.TradingEnvironment": (2, 2), "app.DDPGAgent": (16, 17), "app.Critic": (4, 4)}


def batch(leaked: int, generations: int) -> Batch:
    began = time.time() - 3600
    rows = []
    for n in range(generations):
        share = n / (RATED_GENERATIONS - 1)
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


def post(api: TestClient, eventually: Any, sent: Batch) -> None:
    """Send one snapshot for each generation, and wait for their verdict."""
    new = {"id": "r1", "project": "erl", "name": "before", "unit": "generation", "total": 25}
    assert api.post("/api/v1/runs", json=new).status_code == 201
    assert api.post("/api/v1/runs/r1/batches", json=batch_to_wire(sent)).status_code == 200
    count = len(sent.snapshots)
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json().get("generations") == count)


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
    post(api, eventually, batch(leaked, RATED_GENERATIONS))
    verdict = api.get("/api/v1/runs/r1/verdict").json()
    items = {each["name"]: each for each in api.get("/api/v1/runs/r1/types").json()["items"]}
    page, markdown = of_page(api), api.get("/runs/r1/report.md").text
    for name, (first, last, *words) in CHANGES.items():
        said = words[0] if verdict["status"] in ("suspected", "confirmed", "watch") else words[1]
        told = items[name]
        counts = (told["first_count"], told["last_count"], told["difference"])
        assert counts == (first, last, last - first)
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
    post(api, eventually, batch(64 * MIB, 3))
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


GENERATIONS = 10


def send(
    api: TestClient, eventually: Any, series: Mapping[str, Any], census_at: int | None = None
) -> None:
    """Each of ``series`` is asked for its reading by generation; None is none."""
    began = time.time() - 3600
    rows = []
    for n in range(GENERATIONS):
        read = {name: value(n) for name, value in series.items()}
        samples = {name: value for name, value in read.items() if value is not None}
        samples |= {"process.anon_bytes": 800 * MIB, "process.rss_bytes": 900 * MIB}
        census = Census(n, "full", 1.0, 9, (("dict", 9, 3 * MIB),)) if n == census_at else None
        rows.append(
            Snapshot(n, began + n, float(n), n, None, "", "generation_end", samples, census=census)
        )
    post(api, eventually, Batch(ProcessIdentity("p1", pid=1, host="box"), tuple(rows)))


def table_of(api: TestClient, section: str) -> list[dict[str, str]]:
    """Rows of its table by the heads of the columns."""
    page = api.get("/runs/r1").text.replace("<wbr>", "")
    table = page[page.index(f'id="{section}"') :].partition("<table>")[2].partition("</table>")[0]
    cells = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in table.split("</tr>")
    ]  # fmt: skip
    heads, *rows = [row for row in cells if row]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def items_of(api: TestClient, what: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in api.get(f"/api/v1/runs/r1/{what}").json()["items"]}


def test_bytes_of_a_store_on_devices_stand_beside_those_on_the_host(
    api: TestClient, eventually: Any
) -> None:
    stores = {
        "tracked.replay.length": lambda n: 100 * (n + 1),
        "tracked.replay.bytes": lambda n: 12 * MIB * (n + 1),
        "tracked.replay.device_bytes": lambda n: 2 * MIB * (n + 1),
        # Taken to the host after a while: what was on the device then is not there now.
        "tracked.moved.length": lambda n: 100,
        "tracked.moved.bytes": lambda n: 4 * MIB,
        "tracked.moved.device_bytes": lambda n: 4 * MIB if n < 5 else None,
        # Nobody has told these apart.
        "tracked.plain.length": lambda n: 10,
        "tracked.plain.bytes": lambda n: MIB,
        "tracked.unsized.length": lambda n: 10,
    }
    send(api, eventually, stores)
    told = items_of(api, "stores")
    parts = ("bytes", "host_bytes", "device_bytes")
    assert {name: tuple(each[part] for part in parts) for name, each in told.items()} == {
        "replay": (120 * MIB, 100 * MIB, 20 * MIB),
        "moved": (4 * MIB, 4 * MIB, 0),
        "plain": (MIB, None, None),
        "unsized": (None, None, None),
    }
    rows = {row["container"]: row for row in table_of(api, "containers")}
    shown = ("bytes", "of it on the host", "of it on devices")
    assert [rows["replay"][head] for head in shown] == ["120.00 MiB", "100.00 MiB", "20.00 MiB"]
    assert [rows["moved"][head] for head in shown] == ["4.00 MiB", "4.00 MiB", "0 B"]
    assert [rows["plain"][head] for head in shown] == ["1.00 MiB", "not measured", "not measured"]


def test_where_no_store_is_on_a_device_the_table_has_no_column_for_it(
    api: TestClient, eventually: Any
) -> None:
    send(
        api, eventually, {"tracked.replay.length": lambda n: n, "tracked.replay.bytes": lambda n: n}
    )
    (row,) = table_of(api, "containers")
    assert "bytes" in row and not any("devices" in head for head in row)


def test_of_a_watched_class_it_is_told_how_many_were_created_freed_and_are_alive(
    api: TestClient, eventually: Any
) -> None:
    counts = {
        "type.app.Env.count": lambda n: 116 * (n + 1),
        "type.app.Env.created": lambda n: 2_320 * (n + 1) if n else None,
        "type.app.Env.freed": lambda n: 2_204 * (n + 1) if n else None,
        "type.app.Agent.count": lambda n: 16,
    }
    send(api, eventually, counts)
    told = items_of(api, "types")
    parts = ("last_count", "created_at_least", "freed_at_least")
    assert [told["app.Env"][part] for part in parts] == [1_160, 23_200, 22_040]
    assert [told["app.Agent"][part] for part in parts] == [16, None, None]
    rows = {row["type"]: row for row in table_of(api, "types")}
    shown = ("last", "created, at least", "freed, at least")
    assert [rows["app.Env"][head] for head in shown] == ["1,160", "23,200", "22,040"]
    assert [rows["app.Agent"][head] for head in shown] == ["16", "–", "–"]


def test_where_no_class_is_watched_the_table_of_types_says_nothing_of_it(
    api: TestClient, eventually: Any
) -> None:
    send(api, eventually, {"type.app.Agent.count": lambda n: 16})
    (row,) = table_of(api, "types")
    assert row["last"] == "16" and not any("at least" in head for head in row)


def test_a_count_of_an_older_look_says_of_which_generation_it_is(
    api: TestClient, eventually: Any
) -> None:
    counts = {
        "type.app.Env.count": lambda n: n + 1,
        "type.app.Rare.count": lambda n: 10 + n if n % 4 == 0 else None,
    }
    send(api, eventually, counts)
    told = items_of(api, "types")
    assert (told["app.Env"]["last_generation"], told["app.Rare"]["last_generation"]) == (9, 8)
    rows = {row["type"]: row for row in table_of(api, "types")}
    assert [rows[name]["counted at generation"] for name in ("app.Env", "app.Rare")] == ["9", "8"]
    assert rows["app.Rare"]["last"] == "18"


def test_where_all_was_counted_now_the_table_does_not_say_when(
    api: TestClient, eventually: Any
) -> None:
    send(api, eventually, {"type.app.Env.count": lambda n: n + 1})
    (row,) = table_of(api, "types")
    assert not any(head.startswith("counted at") for head in row)


@pytest.mark.parametrize(("at", "older"), [(4, True), (GENERATIONS - 1, False)])
def test_what_is_accounted_for_by_an_older_census_says_of_which_generation_it_is(
    at: int, older: bool, api: TestClient, eventually: Any
) -> None:
    send(api, eventually, {"tensors.bytes": lambda n: MIB}, census_at=at)
    page = api.get("/runs/r1").text.replace("\u00a0", " ")
    assert "other objects 3.00 MiB" in page
    assert (f"Other objects are those of the census at generation {at}." in page) is older
