"""A run is created once, joined, resumed, ended and annotated; the list of runs in each order, page by page."""

from __future__ import annotations

import gzip
import json
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest
import zstandard
from sqlalchemy import insert, select, update
from starlette.testclient import TestClient
from tests.server.stored import engine_of, put_run

from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.migrate import upgrade
from leakline_server.store.runs.run_order import (
    ORDERS,
    SEVEREST,
    BadCursor,
    Order,
    Place,
    order_of,
    read_cursor,
    sorted_by,
    write_cursor,
)
from leakline_server.store.runs.runs import RunFilter, list_runs
from leakline_server.store.schema import runs


def patch(api: TestClient, run: str, **changes: Any) -> dict[str, Any]:
    answer = api.patch(f"/api/v1/runs/{run}", json=changes)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def names(api: TestClient, query: str = "") -> list[str]:
    return [item["id"] for item in api.get(f"/api/v1/runs?{query}").json()["items"]]


def test_an_empty_body_creates_a_run(api: TestClient) -> None:
    answer = api.post("/api/v1/runs", json={})
    assert answer.status_code == 201
    made = answer.json()
    assert made["created"] is True
    assert made["attempt"] == 1
    # The URL has the address by which the client reached the server.
    assert made["url"] == f"http://127.0.0.1/runs/{made['id']}"
    found = api.get(f"/api/v1/runs/{made['id']}").json()
    assert (found["project"], found["unit"], found["state"], found["status"]) == (
        "default", "generation", "running", "learning",
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_body_creates_the_same_run(encoding: str, api: TestClient) -> None:
    # The client compresses long bodies, and a list of packages is long.
    header = {"id": "big", "environment": {"packages": {f"package-{i}": "1.0" for i in range(500)}}}
    raw = json.dumps(header).encode()
    body = gzip.compress(raw) if encoding == "gzip" else zstandard.compress(raw)
    answer = api.post("/api/v1/runs", content=body, headers={"content-encoding": encoding})
    assert answer.status_code == 201
    assert api.get("/api/v1/runs/big").json()["environment"] == header["environment"]


def test_a_second_process_joins_the_same_attempt(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    assert api.post("/api/v1/runs", json=header).status_code == 201
    joined = api.post("/api/v1/runs", json=header | {"tags": ["rank"], "phases": ["other"]})
    assert joined.status_code == 200
    assert joined.json()["created"] is False
    assert joined.json()["attempt"] == 1
    found = api.get("/api/v1/runs/r1").json()
    assert found["phases"] == ["evaluate", "train", "other"]
    assert found["tags"] == ["rank"]


def test_a_run_of_another_project_cannot_be_joined(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    api.post("/api/v1/runs", json=header)
    answer = api.post("/api/v1/runs", json=header | {"project": "other"})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "run_in_other_project"


def test_a_run_that_ended_is_resumed_as_the_next_attempt(api: TestClient, make_run: Any) -> None:
    header = make_run().header
    api.post("/api/v1/runs", json=header | {"environment": {"torch": "2.12"}})
    patch(api, "r1", state="failed", reason="ValueError", ended_at=1.76e9)
    resumed = api.post("/api/v1/runs", json=header | {"environment": {"torch": "2.13"}}).json()
    assert resumed["attempt"] == 2
    found = api.get("/api/v1/runs/r1").json()
    assert (found["state"], found["ended_at"], found["reason"]) == ("running", None, "")
    assert [a["environment"] for a in found["attempts"]] == [{"torch": "2.12"}, {"torch": "2.13"}]
    assert found["environment"] == {"torch": "2.13"}


def test_a_process_that_joins_again_changes_nothing(api: TestClient, make_run: Any) -> None:
    run = make_run()
    hello = run.header | {"process": {"instance": "p1", "attempt": 1}}
    assert api.post("/api/v1/runs", json=hello).status_code == 201
    run.send(api, 0, 3)
    patch(api, "r1", state="finished", instance="p1", ended_at=1.76e9)
    ended = api.get("/api/v1/runs/r1").json()
    # `leakline sync` does this if it is called twice.
    assert api.post("/api/v1/runs", json=hello).json()["attempt"] == 1
    assert run.send(api, 0, 3) == 0
    again = patch(api, "r1", state="finished", instance="p1", ended_at=1.76e9)
    for name in ("state", "ended_at", "reason", "attempt", "attempts", "series", "tags"):
        assert again[name] == ended[name], name
    assert len(again["processes"]) == 1


def test_the_first_batch_of_a_joined_process_is_stored_for_it(
    api: TestClient, make_run: Any
) -> None:
    run, other = make_run(), make_run(instance="p2", rank=1)
    run.begin(api, 3)
    # The writer knows the run already; this process joins without its knowledge.
    api.post("/api/v1/runs", json=run.header | {"process": {"instance": "p2", "rank": 1}})
    assert other.send(api, 0, 3) == 3
    found = api.get("/api/v1/runs/r1").json()["processes"]
    assert {p["instance"]: p["rss_bytes"] is not None for p in found} == {"p1": True, "p2": True}


@pytest.mark.parametrize(
    ("said", "state"),
    [("interrupted", "interrupted"), ("finished", "finished"), ("failed", "failed"), ("terminated", "killed")],
)  # fmt: skip
def test_the_end_of_a_run_is_stored_with_its_reason(
    said: str, state: str, api: TestClient, make_run: Any
) -> None:
    make_run().create(api)
    found = patch(api, "r1", state=said, ended_at=1_760_000_100.5, reason="it was asked to")
    assert (found["state"], found["ended_at"]) == (state, "2025-10-09T08:55:00.500Z")
    assert found["reason"] == "it was asked to"


def test_tags_are_replaced_and_notes_are_added(api: TestClient, make_run: Any) -> None:
    make_run().create(api)
    patch(api, "r1", tags=["a", "b", "a"], notes=[{"text": "one"}])
    found = patch(api, "r1", notes=[{"text": "two", "link": "https://example.org/x"}])
    assert found["tags"] == ["a", "b"]
    assert [n["text"] for n in found["notes"]] == ["one", "two"]
    assert patch(api, "r1", tags=[])["tags"] == []


def test_the_row_of_a_run_is_complete(api: TestClient, make_run: Any, eventually: Any) -> None:
    run = make_run().begin(api, 300)
    # The number of generations is updated with the next examination.
    eventually(lambda: api.get("/api/v1/runs").json()["items"][0]["generations"] in (99, 100))
    (item,) = api.get("/api/v1/runs").json()["items"]
    last = run.snapshot(299).samples["process.rss_bytes"]
    assert item["rss_bytes"] == last
    assert item["peak_bytes"] == last
    assert 32 <= len(item["sparkline"]) <= 64
    assert item["sparkline"][-1] == last
    assert item["sparkline"] == sorted(item["sparkline"])
    assert item["url"] == "/runs/r1"


def test_phases_seen_and_series_are_listed(api: TestClient, make_run: Any) -> None:
    run = make_run().begin(api, 6)
    found = api.get("/api/v1/runs/r1").json()
    assert found["phases_seen"] == ["evaluate", "train"]
    assert found["series"] == sorted(run.snapshot(2).samples)
    (declared,) = found["expectations"]
    assert declared == {
        "type": "app.Env", "low": 2, "high": 2, "after": None, "accepted": False, "baseline": False,
    }  # fmt: skip
    assert found["processes"][0]["pid"] == 100


@pytest.fixture(scope="module")
def many(shared_api: TestClient) -> TestClient:
    for i in range(12):
        header = {
            "id": f"m{i:02}", "project": "even" if i % 2 == 0 else "odd", "name": f"try_{i}%",
            "started_at": 1.76e9 + i // 3, "tags": ["ten"] if i == 10 else [],
        }  # fmt: skip
        shared_api.post("/api/v1/runs", json=header)
    shared_api.patch("/api/v1/runs/m05", json={"state": "failed"})
    return shared_api


NEWEST = [f"m{i:02}" for i in range(11, -1, -1)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", NEWEST), ("project=odd", NEWEST[::2]), ("tag=ten", ["m10"]), ("tag=te", []), ("tag=%25", []),
        ("status=failed", ["m05"]), ("status=learning", NEWEST), ("status=confirmed", []), ("q=TRY_1%25", ["m01"]),
        ("q=m1", ["m11", "m10"]), ("q=even&limit=2", ["m10", "m08"]), ("q=nothing", []),
    ],
)  # fmt: skip
def test_runs_are_found_by_query(query: str, expected: list[str], many: TestClient) -> None:
    # Other tests of this file have runs on the same server.
    assert [name for name in names(many, query) if name.startswith("m")] == expected


def test_following_the_cursor_gives_every_snapshot_once(api: TestClient, make_run: Any) -> None:
    run, other = make_run(), make_run(instance="p2", rank=1, started=1_760_000_000.25)
    run.begin(api, 40)
    other.send(api, 0, 25)
    seen: list[tuple[str, int]] = []
    times: list[float] = []
    cursor: str | None = ""
    while cursor is not None:
        query = "limit=7" + (f"&cursor={cursor}" if cursor else "")
        answer = api.get(f"/api/v1/runs/r1/snapshots?{query}").json()
        seen += [(row["process"], row["sequence"]) for row in answer["items"]]
        times += [row["time"] for row in answer["items"]]
        cursor = answer["next"]
    assert len(seen) == len(set(seen)) == 65
    assert times == sorted(times, reverse=True)


COLUMNS = {
    "severity": "urgency", "seen": "last_seen_at", "started": "started_at", "name": "name",
    "growth": "growth_bytes", "memory": "rss_bytes", "out": "oom_at",
}  # fmt: skip
RISING = ("name", "out")


def row(number: int) -> dict[str, Any]:
    """Return a row; there are ties in every column, and growth, memory and OOM time are unknown for some rows."""
    return {
        "id": f"r{number * 7 % 40:02}", "project": "even" if number % 2 == 0 else "odd",
        "name": f"try {'abc'[number % 3]}", "unit": "generation",
        "state": ("running", "finished", "silent")[number % 3], "severity": number % 4,
        "tags": json.dumps(["two words"] if number % 5 == 0 else []),
        "started_at": 1.76e9 + number // 4 + 0.1, "created_at": 1.76e9, "last_seen_at": 1.77e9 - number // 3,
        "growth_bytes": None if number % 4 == 0 else (number // 6 - 3) * 1e9 / 7,
        "rss_bytes": None if number % 6 == 0 else 2**30 + number // 5,
        "oom_at": None if number % 2 else 1.78e9 + number // 10,
    }  # fmt: skip


@pytest.fixture
def filled(engine: Engine) -> Engine:
    with writing(engine) as connection:
        connection.execute(insert(runs), [row(number) for number in range(40)])
    return engine


def expected(order: Order) -> list[str]:
    """Sort with Python's own sorting."""
    rows = [row(number) for number in range(40)]
    for each in rows:
        each["urgency"] = (
            (each["state"] != "finished" and each["severity"]) or 0,
            each["started_at"],
        )
    column = COLUMNS[order.by]
    known = sorted(
        (each for each in rows if each[column] is not None),
        key=lambda each: (each[column], each["id"]), reverse=order.falling,
    )  # fmt: skip
    unknown = sorted(each["id"] for each in rows if each[column] is None)
    return [each["id"] for each in known] + (unknown[::-1] if order.falling else unknown)


def followed(engine: Engine, order: Order, limit: int, **asked: Any) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    for _ in range(100):
        page = list_runs(engine, RunFilter(limit=limit, cursor=cursor, order=order, **asked))
        assert len(page["items"]) <= limit
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError("it never ends")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("by", ORDERS)
def test_every_order_has_each_run_once_with_any_page_size(
    by: Any, turned: bool, filled: Engine
) -> None:
    order = Order(by, turned)
    assert expected(order) != sorted(expected(order))
    for limit in (3, 39, 40, 41):
        assert followed(filled, order, limit) == expected(order), limit


def test_the_newest_largest_and_soonest_come_first() -> None:
    assert [order_of(by).falling for by in ORDERS] == [by not in RISING for by in ORDERS]  # type: ignore[union-attr]
    assert [order_of(f"-{by}").falling for by in ORDERS] == [by in RISING for by in ORDERS]  # type: ignore[union-attr]
    assert order_of("size") is order_of("") is order_of("--name") is None


def test_a_search_keeps_the_order_across_pages(filled: Engine) -> None:
    odd = {row(number)["id"] for number in range(1, 40, 2)}
    for order in (Order("growth"), Order("out"), SEVEREST):
        found = followed(filled, order, 3, projects=("odd",))
        assert found == [each for each in expected(order) if each in odd]
    words = followed(filled, Order("name"), 3, words=("TRY", "b"), tags=("two words",))
    assert len(words) == sum(number % 15 == 10 for number in range(40)) > 0


@pytest.mark.parametrize(
    "cursor",
    [
        "", "growth", "growth/", "growth/r01/nan", "growth/r01/inf", "growth/r01/x", "started/r01/1.0",
        "-growth/r01/1.0", "growth/r 1/2", "growth/r01/1\x00", "severity/r01/1,1.0",
    ],
)  # fmt: skip
def test_a_cursor_of_another_order_is_refused(cursor: str, filled: Engine) -> None:
    with pytest.raises(BadCursor):
        list_runs(filled, RunFilter(cursor=cursor, order=Order("growth")))


@pytest.mark.parametrize(
    "cursor", ["severity/r01", "severity/r01/1", "severity/r01/x,1.0", "severity/r01/1,2,3"]
)
def test_a_cursor_has_a_value_for_each_column(cursor: str, filled: Engine) -> None:
    with pytest.raises(BadCursor):
        list_runs(filled, RunFilter(cursor=cursor, order=SEVEREST))


@pytest.mark.parametrize(
    ("order", "values"),
    [
        (Order("memory"), str(2**63)), (SEVEREST, f"{2**31},1.0"), (SEVEREST, "4,1.0"), (SEVEREST, "-1,1.0"),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_not_a_cursor(order: Order, values: str, filled: Engine) -> None:
    with pytest.raises(BadCursor):
        list_runs(filled, RunFilter(cursor=f"{order}/r01/{values}", order=order))


def test_runs_that_are_seen_between_two_pages_are_listed_once(filled: Engine) -> None:
    """Each batch of a live run changes its last_seen_at."""
    found, cursor = [], None
    for number in range(100):
        page = list_runs(filled, RunFilter(limit=3, cursor=cursor, order=SEVEREST))
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
        with writing(filled) as connection:
            seen = update(runs).where(runs.c.state == "running", runs.c.id.not_in(found))
            connection.execute(seen.values(last_seen_at=1.78e9 + number))
    assert found == expected(SEVEREST)


@pytest.mark.parametrize("value", [0.1 + 0.2, -1e300, 5e-324, None])
def test_a_cursor_says_exactly_where_a_page_ended(value: float | None) -> None:
    place = Place(() if value is None else (value,), "r:1.2-x")
    assert read_cursor(Order("growth"), write_cursor(Order("growth"), place)) == place


def test_a_name_may_contain_anything(filled: Engine) -> None:
    names = ["a/b/c", "a\nb", " ", "ä" * 128, "growth/r01/1"]
    with writing(filled) as connection:
        for number, name in enumerate(names):
            change = update(runs).where(runs.c.id == f"r{number:02}").values(name=name)
            connection.execute(change)
    found = followed(filled, Order("name"), 1)
    assert len(found) == len(set(found)) == 40


def test_runs_are_sorted_by_their_verdicts(api: TestClient, make_run: Any, eventually: Any) -> None:
    for run_id, leak in (("slow", 2**20), ("fast", 2**27)):
        make_run(id=run_id, instance=f"{run_id}-1", leak_bytes=leak).begin(api, 60)

    def stored() -> list[float | None]:
        with engine_of(api).connect() as connection:
            return list(connection.scalars(select(runs.c.growth_bytes).order_by(runs.c.id)))

    def shown() -> list[float | None]:
        items = api.get("/api/v1/runs").json()["items"]
        leading = "leading_growth_bytes_per_generation"
        rates = {item["id"]: item[leading] for item in items}
        return [rates[run_id] and rates[run_id]["estimate"] for run_id in sorted(rates)]

    eventually(lambda: None not in shown())
    assert stored() == pytest.approx(shown())
    names = re.findall(r'class="name" href="/runs/(\w+)"', api.get("/?sort=growth").text)
    assert names == ["fast", "slow"]


@pytest.mark.parametrize(("risk", "out"), [("none", None), ("low", 1_800_000_000.0)])
def test_an_oom_time_without_risk_is_not_sorted(risk: str, out: float | None) -> None:
    at = {"estimate": "2027-01-15T08:00:00Z"}
    verdict = {"growth_bytes_per_generation": None, "oom": {"risk": risk, "at": at}, "findings": []}
    assert sorted_by(verdict)["oom_at"] == out


@pytest.mark.parametrize(
    ("found", "risk", "severity"),
    [
        ([], "none", 0), ([("ok", "critical")], "low", 0), ([("confirmed", "minor")], "low", 1),
        ([("suspected", "major"), ("confirmed", "minor")], "none", 2), ([("confirmed", "critical")], "none", 3),
        ([], "critical", 3), ([("confirmed", "minor")], "high", 2),
    ],
)  # fmt: skip
def test_severity_is_that_of_the_worst_leak_or_of_the_remaining_memory(
    found: Any, risk: str, severity: int
) -> None:
    findings = [
        {"status": status, "priority": priority, "growth_bytes_per_generation": {"estimate": 1.0}}
        for status, priority in found
    ]
    verdict = {
        "growth_bytes_per_generation": None,
        "oom": {"risk": risk, "at": None},
        "findings": findings,
    }
    assert sorted_by(verdict)["severity"] == severity


def test_a_live_leak_comes_before_ended_and_healthy_runs(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    for at, (run_id, count) in enumerate((("well", 2), ("leaks", 60), ("ended", 60))):
        run = make_run(id=run_id, instance=f"{run_id}-1", leak_bytes=2**27, started=1.76e9 + at)
        run.begin(api, count)
    api.patch("/api/v1/runs/ended", json={"state": "finished"})

    def severities() -> list[int]:
        with engine_of(api).connect() as connection:
            return list(connection.scalars(select(runs.c.severity).order_by(runs.c.id)))

    eventually(lambda: all(severities()[:2]))
    assert severities()[2] == 0
    # Neither of the other two is urgent: the one that began last comes first.
    assert listed(read_list(api, "group=none")) == ["leaks", "ended", "well"]


def test_verdicts_of_older_versions_are_sorted_too(empty_database_url: str) -> None:
    engine = open_engine(empty_database_url)
    upgrade(engine, MIGRATIONS, "0008_segments_to_compact")
    growing = {
        "growth_bytes_per_generation": {"estimate": 4096, "low": 1, "high": 5},
        "oom": {"at": {"estimate": "2026-01-31T12:00:00.000Z", "low": "", "high": ""}},
    }
    steady = {"growth_bytes_per_generation": None, "oom": {"at": None}}
    verdicts = {"a": json.dumps(growing), "b": json.dumps(steady), "c": None}
    # More rows than are read at a time.
    verdicts |= {f"d{i:03}": json.dumps(growing) for i in range(450)}
    with writing(engine) as connection:
        for run_id, verdict in verdicts.items():
            put_run(connection, run_id, verdict=verdict)
    upgrade(engine, MIGRATIONS)
    with engine.connect() as connection:
        rows = connection.execute(select(runs)).all()
    found = {row.id: (row.growth_bytes, row.oom_at) for row in rows}
    assert found.pop("b") == found.pop("c") == (None, None)
    assert set(found.values()) == {(4096.0, 1769860800.0)}
    assert len(found) == 451
    engine.dispose()


def read_list(api: TestClient, query: str = "") -> str:
    answer = api.get(f"/?{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def create(api: TestClient, **header: Any) -> None:
    assert api.post("/api/v1/runs", json=header).status_code == 201


def listed(text: str) -> list[str]:
    return re.findall(r'class="name" href="/runs/(\w+)"', text)


def test_column_heads_link_to_the_other_orders(api: TestClient) -> None:
    for number, name in enumerate(["b", "c", "a"]):
        create(api, id=name, name=name, started_at=1.76e9 + number, total=25)
    assert listed(read_list(api, "sort=name")) == ["a", "b", "c"]
    assert listed(read_list(api, "sort=-name")) == ["c", "b", "a"]
    assert listed(read_list(api, "sort=started")) == ["a", "c", "b"]
    assert listed(read_list(api, "sort=nonsense&group=nonsense")) == listed(read_list(api))
    text = read_list(api, "sort=name&q=b&group=none")
    assert text.count("aria-sort") == 1
    by_name = '<a href="/?q=b&amp;group=none&amp;sort=-name">Run</a>'
    assert f'<th scope="col" aria-sort="ascending">{by_name}' in text
    assert 'href="/?q=b&amp;group=none&amp;sort=growth">Growth</a>' in text
    # The default order is not in the address.
    assert 'href="/?q=b&amp;group=none">Verdict</a>' in text
    assert 'aria-sort="descending"><a href="/?sort=-severity">' in read_list(api)


def test_the_sort_key_of_a_list_is_visible(api: TestClient) -> None:
    create(api, id="a", name="a", started_at=1.76e9, tags=["one", "two words"])
    text = read_list(api, "sort=-started")
    assert 'aria-sort="ascending"><a href="/?sort=started">Started</a>' in text
    assert 'data-label="Started"><time datetime="2025-10-09T08:53:20.000Z"' in text
    assert "Last seen</a>" not in text and 'data-label="Last seen"' not in text
    text = read_list(api)
    assert "Last seen</a>" in text and 'data-label="Started"' not in text
    # Tags are truncated in a row.
    assert '<td class="cut" title="a: one, two words">' in text


def test_the_list_is_at_the_prefix_of_run_addresses(api: TestClient) -> None:
    create(api, id="a")
    for query, place in (("", "/"), ("?q=tag:x&sort=name", "/?q=tag:x&sort=name")):
        answer = api.get(f"/runs{query}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, place)


def test_a_missing_page_is_html_for_people(api: TestClient) -> None:
    for path, said in (
        ("/runs/nobody", "This run does not exist or was deleted (run nobody not found)."),
        ("/nowhere", "There is no page at this address."),
    ):
        answer = api.get(path)
        assert answer.status_code == 404
        assert said in unescape(re.sub("<[^>]+>", "", answer.text))
        assert "/api/v1" not in answer.text


def test_the_api_has_the_same_orders(api: TestClient) -> None:
    for number, name in enumerate(["b", "c", "a"]):
        create(api, id=name, name=name, started_at=1.76e9 + number)

    def asked(query: str) -> Any:
        return api.get(f"/api/v1/runs?{query}").json()

    assert [item["id"] for item in asked("")["items"]] == ["a", "c", "b"]
    first = asked("sort=-name&limit=2")
    assert [item["id"] for item in first["items"]] == ["c", "b"]
    assert [item["id"] for item in asked(f"sort=-name&cursor={first['next']}")["items"]] == ["a"]
    assert asked(f"cursor={first['next']}")["error"]["details"]["field"] == "cursor"
    assert asked("sort=size")["error"]["details"]["field"] == "sort"


def test_runs_are_grouped_by_project_by_tag_or_not_at_all(api: TestClient) -> None:
    create(api, id="a", project="vision", tags=["big", "my tag"])
    create(api, id="b", project="speech", tags=["big"])
    create(api, id="c", project="vision")

    def groups(query: str) -> dict[str, list[str]]:
        text = read_list(api, query).replace("<wbr>", "")
        return {
            re.sub("<[^>]+>", "", re.findall("<h2>(.*?)</h2>", part)[0]): sorted(listed(part))
            for part in text.split("<section")[1:]
            if "<h2>" in part
        }

    assert groups("") == {"vision": ["a", "c"], "speech": ["b"]}
    assert groups("group=tag") == {"big": ["a", "b"], "my tag": ["a"], "No tag": ["c"]}
    assert groups("group=none") == {}
    assert sorted(listed(read_list(api, "group=none"))) == ["a", "b", "c"]
    text = read_list(api, "group=tag")
    boxes = re.findall(r'name="pick" id="([^"]+)"', text)
    assert len(boxes) == len(set(boxes)) == 4
    # A value with a space is quoted, and the link finds it.
    assert "/?q=tag%3A%22my+tag%22&amp;group=tag" in text
    assert listed(read_list(api, "q=tag:%22my+tag%22")) == ["a"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('project:"my project"', ["a"]), ("project:my project", []),
        ('project:"my project" second', []), ('"first try"', ["a"]), ("try first", ["a"]),
        ('"try first"', []), ("nothing:here", ["c"]), ('tag:"say \\"x\\""', ["b"]),
        ("tag:one tag:two", ["b"]), ("tag:one", ["a", "b"]),
        ("STATUS:Running project:other", ["b", "c"]), ('project:"my proj', []),
        ('project:""', ["a", "b", "c", "d"]), ("status:nonsense", []), ("", ["a", "b", "c", "d"]),
        ("project:other project:other", ["b", "c"]), ('project:other project:"my project"', []),
        ("ÉVALUATION", ["d"]), ("évaluation", ["d"]), ("tag:Naïve", ["d"]), ("tag:naïve", []), ("tag:ONE", []),
        ("status:learning status:running", ["a", "b", "c", "d"]), ("status:running status:failed", []),
        ("status:learning status:failed", []),
    ],
)  # fmt: skip
def test_a_search_takes_words_and_quotes(query: str, found: list[str], words: TestClient) -> None:
    shown = set(listed(words.get("/", params={"q": query}).text))
    assert sorted(shown & {"a", "b", "c", "d"}) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("config:batch=32", ["a"]), ("config:batch=3", []), ("config:opt=adam", ["a"]), ("config:opt=ada", []),
        ("config:lr=0.1", ["b"]), ("config:ADAM", ["a"]), ("config:batch", ["a", "b"]), ("config:lr=1e-1", ["b"]),
        ("config:batch=32.0", ["a"]), ("config:rate=1e-3", ["c"]), ("config:rate=0.001", ["c"]),
        ("config:eps=0.00000001", ["c"]), ("config:eps=1E-8", ["c"]), ("config:seed=None", ["c"]),
        ("config:seed=null", ["c"]), ("config:amp=True", ["c"]), ("config:amp=true", ["c"]), ("config:amp=1", []),
        ('config:model="My Größe"', ["c"]), ("config:GRÖSSE", []), ("config:GRÖßE", ["c"]),
        ("config:scale=2", ["c"]), ("config:scale=1e400", []), ("config:scale=nan", []),
        ("host:gpu-7", ["a"]), ("host:GPU", ["a", "b"]), ("commit:3fa9", ["b"]), ("commit:a9", []),
        ("phase:collect", ["a"]), ('phase:"say \\"x\\""', ["a"]), ("type:replay", ["a"]), ("type:rss", []),
        ("type:count", ["b"]), ("type:type.", []), ("type:APP.R", ["a"]), ("type:app.", ["a", "b"]),
        ("type:buffer.", []), ("type:replaybuffer.count", []),
        ("started:2025-10-09", ["a"]), ("started:<2025-10-09", ["b"]), ("started:>2025-10-09", ["c"]),
        ("host:gpu config:batch=32 phase:collect", ["a"]), ("host:%", []), ("type:_", []),
    ],
)  # fmt: skip
def test_runs_are_found_by_recorded_values(
    query: str, found: list[str], recorded: TestClient
) -> None:
    page = recorded.get("/", params={"q": f"project:rec {query}"}).text
    assert sorted(listed(page)) == found
    asked = {"q": query, "project": "rec"}
    answer = recorded.get("/api/v1/runs", params=asked).json()
    assert sorted(item["id"] for item in answer["items"]) == found


@pytest.mark.parametrize(
    "query",
    [
        "owner:me", "started:soon", "status:broken", " ".join(map(str, range(31))), 'project:""', 'x tag:""',
        "status:", "project: erl", "-tag:x", "a NOT b", "project:a project:b", "status:ok status:leaking",
        "status:failed status:killed",
    ],
)  # fmt: skip
def test_the_api_refuses_unsupported_searches(query: str, shared_api: TestClient) -> None:
    answer = shared_api.get("/api/v1/runs", params={"q": query})
    assert answer.status_code == 422
    assert answer.json()["error"]["details"]["field"] == "q"
    assert shared_api.get("/", params={"q": query}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"q": "project:even", "project": "odd"}, []), ({"q": "m1", "project": "odd"}, ["m11"]),
        ({"q": "status:learning", "status": "failed"}, ["m05"]), ({"q": "status:failed", "status": "ok"}, []),
        ({"q": "tag:ten", "tag": "ten"}, ["m10"]), ({"q": "tag:ten", "tag": "two"}, []),
        ({"tag": "TEN"}, []),
    ],
)  # fmt: skip
def test_query_parameters_narrow_a_search(
    asked: dict[str, str], found: list[str], many: TestClient
) -> None:
    items = many.get("/api/v1/runs", params=asked).json()["items"]
    assert [item["id"] for item in items if item["id"].startswith("m")] == found


@pytest.fixture
def recorded(api: TestClient) -> TestClient:
    configs = (
        {"batch": 32, "inner": {"opt": "adam"}},
        {"batch": 320, "lr": 0.1},
        {"rate": 1e-3, "eps": 1e-8, "seed": None, "amp": True, "model": "my größe", "scale": 2.0},
    )
    for name, config, started in zip("abc", configs, (1.76e9, 1.7598e9, 1.7602e9), strict=True):
        process = {"instance": f"i-{name}", "host": {"a": "gpu-7", "b": "gpu-8"}.get(name, "cpu")}
        environment = {"commit": "3fa9c1"} if name == "b" else {"commit": "77a9"}
        create(
            api, id=name, name=name, project="rec", config=config, started_at=started, process=process,
            environment=environment,
        )  # fmt: skip
    seen = (
        ("a", "ReplayBuffer", "collect"),
        ("a", "ReplayBuffer", 'say "x"'),
        ("b", "Counter", "act"),
    )
    for number, (run, kind, phase) in enumerate(seen):
        series = {f"type.app.{kind}.count": [1.0], "process.rss_bytes": [5.0]}
        columns = {"time": [1.76e9 + number], "phase": [phase], "series": series}
        batch = {
            "version": 1, "process": {"instance": f"i-{run}", "host": {"a": "gpu-7", "b": "gpu-8"}[run]},
            "first_sequence": number, "count": 1, "columns": columns,
        }  # fmt: skip
        assert api.post(f"/api/v1/runs/{run}/batches", json=batch).status_code == 200
    return api


def test_the_filters_show_how_many_runs_each_would_leave(api: TestClient) -> None:
    create(api, id="a", project="vision")
    create(api, id="b", project="vision")
    create(api, id="c", project="speech")

    def chips(query: str) -> list[str]:
        found = re.findall(r'data-part="filters".*?</div>', read_list(api, query), re.DOTALL)[0]
        return re.findall(r"</svg>([^<]+)</span>", found)

    assert chips("") == ["Learning 3"]
    assert chips("q=project:vision") == ["Learning 2"]
    # Other statuses can still be chosen, and the chosen one can be removed.
    assert chips("q=status:learning+project:speech") == ["Learning 1"]
    assert chips("q=status:leaking") == ["Leaking 0", "Learning 3"]
    patch(api, "b", state="finished")
    assert chips("q=status:running") == ["Learning 2"]


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ("status:running try", "status:running try status:learning"),
        ("status:leaking try", "try status:learning"), ('"first try', '"first try" status:learning'),
        ('tag:"one\\', 'tag:"one" status:learning'),
        ("status:learning STATUS:running", "STATUS:running"),
    ],
)  # fmt: skip
def test_a_filter_changes_only_the_verdict_of_a_search(
    query: str, chosen: str, words: TestClient
) -> None:
    text = words.get("/", params={"q": query}).text
    part = re.findall(r'data-part="filters".*?</div>', text, re.DOTALL)[0]
    hrefs = [unescape(each) for each in re.findall(r'href="/\?([^"]*)"', part)]
    assert chosen in [parse_qs(each)["q"][0] for each in hrefs]


@pytest.fixture(scope="module")
def words(shared_api: TestClient) -> TestClient:
    create(shared_api, id="a", project="my project", name="first try", tags=["one"])
    create(shared_api, id="b", project="other", name="second try", tags=["one", "two", 'say "x"'])
    create(shared_api, id="c", project="other", name="nothing:here")
    create(shared_api, id="d", project="third", name="Évaluation", tags=["Naïve"])
    return shared_api


def test_pages_of_the_list_follow_each_other(api: TestClient) -> None:
    for number in range(53):
        create(api, id=f"m{number:02}", name=f"m{number:02}")
    first = read_list(api, "sort=name&group=none")
    (more,) = re.findall(r'<a class="button" href="/.([^"]+)">More runs', first)
    more = more.replace("&amp;", "&")
    second = read_list(api, more)
    found = listed(first) + listed(second)
    assert found == sorted(found) and len(found) == 53
    assert "More runs" not in second
    # With the cursor of another order the list begins again.
    assert len(listed(read_list(api, more.replace("sort=name", "sort=growth")))) == 50


def test_progress_is_drawn_if_there_is_a_plan(api: TestClient, make_run: Any) -> None:
    make_run().begin(api, 12)
    create(api, id="open", name="open")
    text = read_list(api)
    assert text.count("<progress") == 1
    assert re.search(r'<progress class="plan" value="\d" max="25"', text)
