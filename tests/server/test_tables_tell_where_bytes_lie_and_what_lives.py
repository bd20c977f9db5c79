"""Bytes of a store on the host beside those on devices; instances created, freed and alive: on page and API."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.snapshot import Batch, Census, ProcessIdentity, Snapshot, batch_to_wire

MIB = 2**20
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
    new = {"id": "r1", "project": "erl", "name": "before", "unit": "generation", "total": 25}
    assert api.post("/api/v1/runs", json=new).status_code == 201
    wire = batch_to_wire(Batch(ProcessIdentity("p1", pid=1, host="box"), tuple(rows)))
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json().get("generations") == GENERATIONS)


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
