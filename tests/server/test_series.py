"""Series for charts without hidden peaks; events, censuses, large objects and holders as they were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert
from starlette.testclient import TestClient
from tests.server.stored import LATER, R1, engine_of, seal_all, serving, statements

from leakline_server.store.columns import CorruptChunk
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.schema import Key, chunks
from leakline_server.store.series import chart_points, compaction, summaries
from leakline_server.store.series.chart_points import downsample
from leakline_server.store.series.column_reader import ChunkRows
from leakline_server.store.snapshot_rows import news


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.integers(1, 50))
def test_extremes_survive_any_number_of_points(values: list[int], most: int) -> None:
    column = np.array(values)
    shown = downsample(np.arange(len(values)), column, most)
    assert len(shown["x"]) == min(most, len(values))
    assert min(shown["min"]) == min(values)
    assert max(shown["max"]) == max(values)
    assert shown["first"][0] == values[0]
    assert shown["last"][-1] == values[-1]
    assert shown["x"] == sorted(set(shown["x"]))


@pytest.fixture(scope="module")
def api(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send a run of 500 generations with one spike and one dip of a single snapshot."""
    make_run(
        extra={
            "spike": lambda i: 10**12 if i == 777 else 7,
            "dip": lambda i: 1 if i == 1234 else 10**9,
            "type.b.Agent.count": lambda i: i,
            "float": lambda i: i / 8,
            "sparse": lambda i: i if i % 100 == 0 else None,
        }
    ).begin(shared_api, 1500)
    return shared_api


def series(api: TestClient, query: str) -> list[dict[str, Any]]:
    found = api.get(f"/api/v1/runs/r1/series?{query}").json()
    assert found["unit"] == "generation"
    items: list[dict[str, Any]] = found["items"]
    return items


@pytest.mark.parametrize("most", [1, 10, 2000])
@pytest.mark.parametrize("axis", ["sequence", "time", "generation"])
def test_one_spike_is_in_every_view(most: int, axis: str, api: TestClient) -> None:
    spike, dip = series(api, f"name=spike&name=dip&points={most}&x={axis}")
    assert len(spike["x"]) <= most
    assert max(spike["max"]) == 10**12
    assert min(dip["min"]) == 1


@pytest.mark.parametrize("stored", ["as it came", "sealed", "compacted"])
def test_a_spike_survives_if_chunks_are_not_decoded(
    stored: str, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stored != "as it came":
        seal_all(engine_of(api))
    if stored == "compacted":
        compact_r1(engine_of(api))
    opened = series(api, "name=spike&name=float&name=sparse&x=sequence&points=3")
    monkeypatch.setattr(chart_points, "CHUNK_RATIO", 1)
    closed = series(api, "name=spike&name=float&name=sparse&x=sequence&points=3")
    for shown, exact in zip(closed, opened, strict=True):
        assert shown["x"] == [0, 512, 1024]
        assert max(shown["max"]) == max(exact["max"])
        assert min(shown["min"]) == min(exact["min"])
        assert (shown["first"][0], shown["last"][-1]) == (exact["first"][0], exact["last"][-1])


def compact_r1(engine: Engine) -> None:
    seal_all(engine)
    while compaction.compact(engine, R1, LATER):
        continue


def test_a_few_snapshots_are_shown_unchanged(api: TestClient) -> None:
    (item,) = series(api, "name=float&x=sequence&from=10&to=14")
    assert item["x"] == [10, 11, 12, 13, 14]
    for name in ("first", "last", "min", "max"):
        assert item[name] == [i / 8 for i in range(10, 15)], name


def test_a_range_selects_generations(api: TestClient) -> None:
    (item,) = series(api, "name=type.b.Agent.count&from=400&to=401&kind=generation_end")
    assert (item["x"], item["last"]) == ([400, 401], [1202, 1205])


def test_a_range_of_time_keeps_both_ends(api: TestClient, make_run: Any) -> None:
    at = [make_run().snapshot(i).time for i in (600, 603)]
    (item,) = series(api, f"name=type.b.Agent.count&x=time&from={at[0]}&to={at[1]}")
    assert item["last"] == [600, 601, 602, 603]


def test_one_phase_is_one_line(api: TestClient) -> None:
    (item,) = series(api, "name=type.b.Agent.count&phase=train&points=20000")
    assert item["phase"] == "train"
    assert item["x"] == list(range(500))
    assert item["last"] == list(range(1, 1500, 3))


def test_each_phase_is_a_separate_line(api: TestClient) -> None:
    items = series(api, "name=float&phase=*")
    assert [item["phase"] for item in items] == ["evaluate", "train"]


def test_phases_are_in_the_order_of_the_query(api: TestClient) -> None:
    """Other phases in the same segments do not matter."""
    items = series(api, "name=float&phase=*&x=sequence&from=601&to=605")
    assert [(item["phase"], item["x"]) for item in items] == [
        ("train", [601, 604]), ("evaluate", [603]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query", ["name=float&phase=never", "name=nothing", "name=x*", "name=float&process=other"]
)
def test_a_missing_series_is_an_empty_list(query: str, api: TestClient) -> None:
    assert series(api, query) == []


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("type.*.count", ["type.app.Env.count", "type.b.Agent.count"]),
        ("process.*", ["process.anon_bytes", "process.rss_bytes"]),
        ("*.Env.*", ["type.app.Env.count"]),
        ("type.b.Agent.count", ["type.b.Agent.count"]),
        ("type.?.Agent.count", []),
        ("type.[ab].Agent.count", []),
    ],
)
def test_a_star_matches_anything(pattern: str, names: list[str], api: TestClient) -> None:
    assert [item["name"] for item in series(api, f"name={pattern}&points=1")] == names


def test_a_snapshot_without_a_value_has_no_point(api: TestClient) -> None:
    (item,) = series(api, "name=sparse&x=sequence")
    assert item["x"] == item["last"] == list(range(0, 1500, 100))


def test_more_items_than_an_answer_holds_are_counted(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart_points, "MAX_ITEMS", 2)
    found = api.get("/api/v1/runs/r1/series?name=*&points=1").json()
    assert len(found["items"]) == 2
    assert found["left_out"] == len(api.get("/api/v1/runs/r1").json()["series"]) - 2


@pytest.mark.parametrize("ratio", [1, 100_000])
def test_no_more_items_are_computed_than_shown(
    ratio: int, api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depending on ``ratio``, read the numbers of segments or each snapshot."""
    made, names = [], []
    for number in (1, 2):
        make_run(id=f"many{number}of{ratio}").begin(api, 600)
        found = api.get(f"/api/v1/runs/many{number}of{ratio}/series?name=*").json()
        names.append(len(found["items"]))
    for module, name in ((chart_points, "downsample"), (chart_points, "points_of")):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, plain=plain: made.append(0) or plain(*a))
    monkeypatch.setattr(chart_points, "MAX_ITEMS", names[0] + 2)
    monkeypatch.setattr(chart_points, "CHUNK_RATIO", ratio)
    found = api.get(f"/api/v1/series?run=many1of{ratio}&run=many2of{ratio}&name=*&points=1").json()
    assert [item["run"][:5] for item in found["items"]] == ["many1"] * names[0] + ["many2"] * 2
    assert found["left_out"] == names[1] - 2
    assert len(made) == names[0] + 2


def test_changes_of_many_processes_are_read_in_a_few_statements(
    database_url: str, make_run: Any
) -> None:
    many, sealed = range(50), (1, 7, 50)
    runs = [make_run(instance=f"p{rank}", rank=rank) for rank in many]
    with serving(database_url) as client:
        runs[0].create(client)
        for run in runs:
            run.send(client, 0, 3)
        since = client.get("/api/v1/runs/r1").json()["revision"]
        for run in runs[:-1]:
            run.send(client, 3, 2)
    engine = open_engine(database_url)
    before = news(engine, "r1", since, ("process.rss_bytes",))
    for number in sealed:
        seal_all(engine, Key("r1", number))
    with statements(engine) as asked:
        after = news(engine, "r1", since, ("process.rss_bytes",))
    assert len([each for each, _ in asked if each.startswith("SELECT")]) <= 7
    for found in (before, after):
        assert found.rows.keys() == {run.instance for run in runs[:-1]}
        for run in runs[:-1]:
            # All of a segment is new if a part of it is.
            newest = found.rows[run.instance][-2:]
            assert [row["sequence"] for row in newest] == [3, 4]
            for row in newest:
                snapshot = run.snapshot(row["sequence"])
                size = snapshot.samples["process.rss_bytes"]
                assert row["samples"] == {"process.rss_bytes": size}
                assert (row["phase"], row["label"]) == (snapshot.phase, snapshot.label)
    engine.dispose()


def test_runs_are_overlaid_in_one_answer(shared_api: TestClient, make_run: Any) -> None:
    for number in (1, 2):
        make_run(id=f"over{number}", extra={"own": lambda i, n=number: i * n}).begin(shared_api, 30)
    found = shared_api.get("/api/v1/series?run=over2&run=over1&run=over2&name=own").json()
    assert [item["run"] for item in found["items"]] == ["over2", "over1"]
    assert found["units"] == {"over2": "generation", "over1": "generation"}
    assert [item["last"] for item in found["items"]] == [[i * n for i in range(30)] for n in (2, 1)]
    alone = shared_api.get("/api/v1/runs/over1/series?name=own").json()
    assert found["items"][1] == {"run": "over1", **alone["items"][0]}
    assert (found["left_out"], found["damaged"]) == (0, [])


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("run=nobody&name=own", 404, "nobody"),
        ("name=own", 422, "run"),
        ("run=over1", 422, "name"),
        ("&".join(f"run=r{i}" for i in range(11)) + "&name=own", 422, "run"),
        ("run=%00&name=own", 422, "run"),
    ],
)
def test_an_invalid_overlay_is_refused(
    query: str, status: int, said: str, shared_api: TestClient
) -> None:
    answer = shared_api.get(f"/api/v1/series?{query}")
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_segments_between_distant_ranges_are_not_read(engine: Engine) -> None:
    with writing(engine) as connection:
        of = {"run_id": "r", "process_id": 1, "series_id": 1, "count": 1, "present": 1, "width": 0}
        rows = [{**of, "first_sequence": at * 4096, "blob": b""} for at in range(400)]
        connection.execute(insert(chunks), rows)
    wanted = [at * 4096 for at in (*range(30), *range(200, 230), 399)]
    rows_of = ChunkRows(chunks.c.count)
    with engine.connect() as connection:
        for _ in range(2):
            found = rows_of(connection, Key("r", 1), [1], wanted[::-1])
            assert sorted(row.first_sequence for row in found) == wanted
        near = rows_of(connection, Key("r", 1), [1], wanted[:30:2])
        assert {row.first_sequence for row in near} >= set(wanted[:30:2])
        everything = rows_of(connection, Key("r", 1), [1], [at * 4096 for at in range(400)])
        assert len(everything) == 400


@pytest.mark.parametrize(
    "harm",
    [lambda one: one[:-1], lambda one: one[:4], lambda one: one[:-1] + b"\x01", lambda one: b""],
)
def test_a_damaged_record_is_detected(harm: Callable[[bytes], bytes]) -> None:
    packed = summaries.pack(np.array([[2, 1, 2, 1, 2]] * 3, float), np.array([2.0] * 3))
    assert len(summaries.unpack(packed)) == 3
    with pytest.raises(CorruptChunk):
        summaries.unpack(harm(packed))


def test_records_of_other_pieces_are_damage() -> None:
    counts = np.array([2.0] * 4)
    with pytest.raises(CorruptChunk):
        summaries.spread(np.array([[2, 1, 2, 1, 2]] * 3, float), counts)


@pytest.fixture(scope="module")
def detailed(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send details at the snapshots 2, 32, 62 and 92, which are the generations 0, 10, 20 and 30."""
    make_run(id="details").begin(shared_api, 100, size=25)
    return shared_api


def get_details(detailed: TestClient, path: str) -> Any:
    answer = detailed.get(f"/api/v1/runs/details/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_events_come_in_order_of_time_with_their_data(detailed: TestClient) -> None:
    events = get_details(detailed, "events")["items"]
    assert [e["sequence"] for e in events] == [2, 2, 32, 32, 62, 62, 92, 92]
    assert events[1] | {"time": 0} == {
        "process": "p1", "sequence": 2, "time": 0, "kind": "expect", "name": "app.Env", "generation": 0,
        "phase": None, "data": {"low": 2, "high": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "generation"),
    [("", 30), ("?generation=29", 20), ("?generation=0", 0), ("?generation=999", 30)],
)
def test_a_census_is_the_newest_at_or_before_a_generation(
    query: str, generation: int, detailed: TestClient
) -> None:
    census = get_details(detailed, f"census{query}")
    assert census["generation"] == generation
    assert census["types"] == [["dict", 900, 64_000], ["app.Env", 18 + generation, None]]
    assert (census["mode"], census["coverage"], census["objects"]) == ("full", 1.0, 1000)
    answer = detailed.get("/api/v1/runs/details/census?generation=-1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_census")


def test_large_objects_are_those_of_the_newest_scan_largest_first(detailed: TestClient) -> None:
    found = get_details(detailed, "large-objects")["items"]
    assert [(o["sequence"], o["type"], o["bytes"]) for o in found] == [
        (92, "torch.Tensor", 2**25 + 92),
        (92, "numpy.ndarray", 2**24),
    ]
    assert found[1]["detail"] == "(2048, 1024) float64"


def test_a_holder_is_listed_once_with_its_newest_count(detailed: TestClient) -> None:
    (holder,) = get_details(detailed, "holders")["items"]
    assert holder == {
        "process": "p1", "sequence": 92, "type": "app.Env", "path": "app.Trainer.history[*]", "count": 482,
        "bytes_each": 4096,
    }  # fmt: skip


LONG_COUNT = 6_000
LONG_SPIKE_AT = 3_000
LONG_EXTRA: dict[str, Callable[[int], Any]] = {
    "spike": lambda i: 10**12 if i == LONG_SPIKE_AT + 1 else 7,
    "float": lambda i: i / 8,
    "sparse": lambda i: i if i % 97 == 0 else None,
}
LONG_ASKED = "name=spike&name=float&name=sparse&phase=*&kind=phase_end&points=4"


@pytest.fixture
def long_api(database_url: str, make_run: Any, patch: Any) -> Iterator[TestClient]:
    """Send two phases and an end per generation, and one spike of a single snapshot in the second phase."""
    patch("store.series.chart_points.CHUNK_RATIO", 16)
    patch("store.series.summaries.GROUP", 1_000)
    with serving(database_url) as client:
        make_run(extra=LONG_EXTRA).begin(client, LONG_COUNT)
        yield client


@pytest.mark.long
def test_a_line_of_a_phase_has_only_its_snapshots_compacted_or_not(long_api: TestClient) -> None:
    # The phases separately, a range of them, and several as one.
    asked = (
        LONG_ASKED, f"{LONG_ASKED}&from=10&to={LONG_COUNT // 3 - 10}", "name=float&kind=phase_end&points=4",
    )  # fmt: skip
    before = [series(long_api, each) for each in asked]
    assert all(before)
    assert [(item["name"], item["phase"]) for item in before[0]] == [
        (name, phase) for phase in ("evaluate", "train") for name in ("spike", "float", "sparse")
    ]
    for item in before[0]:
        assert {name: item[name] for name in ("x", "first", "last", "min", "max")} == under(
            item["name"], ("evaluate", "train").index(item["phase"])
        )
    compact_r1(engine_of(long_api))
    assert [series(long_api, each) for each in asked] == before


def under(name: str, place: int, width: int = 2_048) -> dict[str, list[float]]:
    """Return the points of a line for the snapshots at this place in each generation."""
    found: dict[str, list[float]] = {"x": [], "first": [], "last": [], "min": [], "max": []}
    for low in range(0, LONG_COUNT, width):
        mine = [i for i in range(low, min(LONG_COUNT, low + width)) if i % 3 == place]
        values = [v for v in map(LONG_EXTRA[name], mine) if v is not None]
        numbers = (mine[0] // 3, values[0], values[-1], min(values), max(values))
        for column, number in zip(found.values(), numbers, strict=True):
            column.append(number)
    return found
