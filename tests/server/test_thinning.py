"""Thinning leaves generation ends and extremes, and nothing tells it from the outside but how much is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, update
from starlette.testclient import TestClient
from tests.server.stored import LATER, engine_of, seal

from leakline import analysis
from leakline_server.store import compaction, retention, sizes, thinning
from leakline_server.store.codec import numbers, texts
from leakline_server.store.columns import (
    COLUMNS,
    GENERATION,
    KIND,
    MONOTONIC,
    SEQUENCE,
    TIME,
    Block,
)
from leakline_server.store.engine import Engine, writing
from leakline_server.store.history import load_history
from leakline_server.store.retention import DAY_SECONDS, Limits, PerProject
from leakline_server.store.tables import chunks, rollups, runs, segments


def compact(engine: Engine) -> None:
    for key in compaction.due(engine, LATER):
        while compaction.compact(engine, key, LATER):
            continue


def thin(engine: Engine, run_id: str = "r1") -> int:
    return sum(
        thinning.thin(engine, key, first).snapshots for key, first in thinning.whole(engine, run_id)
    )


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts move revisions, and a worker that compacts may come first: neither does here."""
    for worker in ("examine.Examiner", "retaining.Retainer", "compacting.Compactor"):
        monkeypatch.setattr(f"leakline_server.workers.{worker}.once", lambda self: 3600.0)


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """Ten steps a generation, so that there is something to leave out; a spike, a dip, values that begin late."""
    made = make_run(
        extra={
            "gauge.spike": lambda i: 10_000 if i == 401 else i % 7,
            "gauge.late": lambda i: i / 3 if i > 300 else None,
            "gauge.rare": lambda i: -5 if i == 77 else None,
        }
    )
    plain = made.snapshot

    def snapshot(sequence: int) -> Any:
        from dataclasses import replace

        found = plain(sequence)
        end = sequence % 10 == 9
        return replace(
            found, generation=sequence // 10, kind="generation_end" if end else "phase_end",
            phase=None if end else found.phase or "train",
        )  # fmt: skip

    object.__setattr__(made, "snapshot", snapshot)
    made.create(api)
    made.send(api, 0, 600, size=100)
    seal(engine_of(api))
    return made


def finish(api: TestClient) -> None:
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200


def points(api: TestClient, name: str) -> list[Any]:
    """(sequence, value) of everything that is stored of a series."""
    (process,) = load_history(engine_of(api), "r1").processes
    values = zip(process.sequence, process.series[name], strict=True)
    return [(x, value) for x, value in values if value is not None]


def test_generation_ends_extremes_and_both_ends_stay(api: TestClient, run: Any) -> None:
    finish(api)
    names = ("process.rss_bytes", "gauge.spike", "gauge.late", "gauge.rare")
    before = {name: dict(points(api, name)) for name in names}
    left_out = thin(engine_of(api))
    after = {name: dict(points(api, name)) for name in names}
    stayed = sorted(after["process.rss_bytes"])
    assert len(stayed) == 600 - left_out < 120
    assert set(stayed) >= {*range(9, 600, 10), 0, 599, 401, 77, 301}
    for name in names:
        assert after[name] == {x: v for x, v in before[name].items() if x in stayed}
        assert min(after[name].values()) == min(before[name].values())
        assert max(after[name].values()) == max(before[name].values())


def test_the_books_of_the_client_and_the_verdict_are_the_same(api: TestClient, run: Any) -> None:
    finish(api)
    engine = engine_of(api)
    before = load_history(engine, "r1")
    assert thin(engine) > 400
    after = load_history(engine, "r1")
    assert len(after.processes[0]) < len(before.processes[0]) / 4
    old, new = analysis.examine(before), analysis.examine(after)
    assert old.status == new.status == "confirmed"
    assert [f.kind for f in new.findings] == [f.kind for f in old.findings]
    old_growth, new_growth = (v.growth_bytes_per_generation for v in (old, new))
    assert old_growth is not None and new_growth is not None
    assert new_growth.estimate == pytest.approx(old_growth.estimate, rel=0.05)


def test_what_was_thinned_is_known_when_it_is_sent_again(api: TestClient, run: Any) -> None:
    finish(api)
    before = api.get("/api/v1/runs/r1").json()["processes"][0]
    thin(engine_of(api))
    with TestClient(_again(api), base_url="http://127.0.0.1") as other:
        assert run.send(other, 0, 600, size=100) == 0
        # What is still there is still compared.
        wire = run.wire(9, 1)
        wire["columns"]["series"]["process.rss_bytes"] = [1]
        assert other.post("/api/v1/runs/r1/batches", json=wire).status_code == 409
        assert run.send(other, 600, 10) == 10
        after = other.get("/api/v1/runs/r1").json()["processes"][0]
    assert before["stored"] == before["taken"] == 600
    assert (before["left_out"], after["left_out"]) == (0, 600 - (after["stored"] - 10))
    assert after["stored"] < 100
    assert after["taken"] == 610


def _again(api: TestClient) -> Any:
    """The application that starts anew on the same database: it remembers nothing."""
    from leakline_server.app import create_app

    return create_app(api.app.state.services.config)  # type: ignore[attr-defined]


@pytest.mark.parametrize("thinned_first", [True, False])
def test_what_never_came_is_taken_when_it_comes_after_thinning(
    thinned_first: bool, api: TestClient, run: Any
) -> None:
    """Of 0 to 1,299 these come later: 600 to 799, 1,000 to 1,099 and 1,150 to 1,199."""
    engine = engine_of(api)
    run.send(api, 800, 200)
    seal(engine)
    run.send(api, 1100, 50, size=10)
    run.send(api, 1200, 100, size=10)
    lost = run.wire(1300, 1) | {"count": 0, "lost": {"queue_full": 350}, "first_sequence": 0}
    lost |= {"columns": {"time": [], "series": {}}, "events": []}
    assert api.post("/api/v1/runs/r1/batches", json=lost).status_code == 200
    seal(engine)
    finish(api)
    with writing(engine) as connection:
        connection.execute(update(runs).values(last_seen_at=1.0))
    for step in (thin, compact, thin) if thinned_first else (compact, thin, compact):
        step(engine)
    with engine.connect() as connection:
        assert set(connection.scalars(select(segments.c.thinned))) == {True}
        assert 0 not in set(connection.scalars(select(segments.c.level)))
    (process,) = api.get("/api/v1/runs/r1").json()["processes"]
    assert process["left_out"] + process["stored"] == 950
    assert process["left_out"] > 700
    assert process["taken"] == 1300
    with TestClient(_again(api), base_url="http://127.0.0.1") as other:
        assert run.send(other, 0, 1300, size=100) == 350


def test_a_stretch_with_very_many_gaps_stays_as_it_is(api: TestClient, run: Any) -> None:
    for first in range(700, 900, 10):
        run.send(api, first, 8)
    seal(engine_of(api))
    finish(api)
    thin(engine_of(api))
    assert len([x for x, _ in points(api, "process.rss_bytes") if x >= 700]) == 160
    with TestClient(_again(api), base_url="http://127.0.0.1") as other:
        assert run.send(other, 700, 200, size=100) == 40


def test_a_compacted_run_is_thinned_and_compacted_again(api: TestClient, run: Any) -> None:
    run.send(api, 600, 5_000, size=200)
    finish(api)
    engine = engine_of(api)
    seal(engine)
    with writing(engine) as connection:
        connection.execute(update(runs).values(last_seen_at=1.0))
    compact(engine)
    before = dict(points(api, "gauge.spike"))
    left_out = thin(engine)
    assert left_out > 4_500
    stayed = dict(points(api, "gauge.spike"))
    assert stayed == {x: v for x, v in before.items() if x in stayed}
    assert set(stayed) >= {*range(9, 5_600, 10), 0, 5_599, 401}
    compact(engine)
    assert dict(points(api, "gauge.spike")) == stayed
    with engine.connect() as connection:
        rows = connection.execute(select(segments.c.level, segments.c.thinned)).all()
        counted = connection.scalar(select(func.sum(segments.c.count)))
        above = connection.scalar(select(func.coalesce(func.sum(rollups.c.count), 0)))
    assert all(level >= 1 and thinned for level, thinned in rows)
    assert counted == len(stayed)
    assert above % counted == 0
    assert thin(engine) == 0


def test_a_run_that_goes_on_is_left_as_it_is(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    assert thin(engine) == 0
    assert len(points(api, "gauge.spike")) == 600


def test_a_stretch_that_somebody_changes_meanwhile_is_left_to_the_next_time(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(api)
    engine = engine_of(api)
    real = thinning.kept

    def slow(block: Block) -> Any:
        with writing(engine) as connection:
            connection.execute(update(segments).values(revision=segments.c.revision + 1))
        return real(block)

    monkeypatch.setattr(thinning, "kept", slow)
    assert thin(engine) == 0
    assert len(points(api, "gauge.spike")) == 600
    monkeypatch.undo()
    assert thin(engine) > 400


def test_a_damaged_stretch_stays_as_it_is(api: TestClient, run: Any) -> None:
    finish(api)
    engine = engine_of(api)
    with writing(engine) as connection:
        connection.execute(update(chunks).where(chunks.c.series_id == 1).values(blob=b"damage"))
        count = connection.scalar(select(func.count()).select_from(chunks))
    assert thin(engine) == 0
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(chunks)) == count


def test_what_is_old_is_thinned_once_and_again_when_more_came(api: TestClient, run: Any) -> None:
    finish(api)
    engine = engine_of(api)
    sizes.measure(engine, 1.0)
    limits = Limits(thin_after_days=PerProject(7))
    now = _last_seen(engine) + 7 * DAY_SECONDS
    assert retention.to_thin(engine, limits, now) == []
    ((run_id, revision),) = retention.to_thin(engine, limits, now + 1)
    thin(engine)
    thinning.mark_done(engine, run_id, revision)
    assert retention.to_thin(engine, limits, now + 1) == []
    assert sizes.measure(engine, now) == 1
    assert retention.to_thin(engine, limits, now + 1) == []
    run.send(api, 600, 100)
    later = _last_seen(engine) + 7 * DAY_SECONDS + 1
    assert [each for each, _ in retention.to_thin(engine, limits, later)] == ["r1"]
    api.patch("/api/v1/runs/r1", json={"tags": ["keep"]})
    assert retention.to_thin(engine, limits, later) == []


def _last_seen(engine: Engine) -> float:
    with engine.connect() as connection:
        return float(connection.execute(select(runs.c.last_seen_at)).scalar_one())


VALUE = st.none() | st.integers(-5, 5)


@given(
    st.lists(
        st.tuples(VALUE, VALUE, st.booleans(), st.sampled_from(["phase_end", "generation_end"])),
        min_size=1, max_size=40,
    ),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=200)
def test_the_numbers_of_every_chunk_stay_whatever_is_in_it(
    rows: list[Any], has_generations: bool
) -> None:
    count = len(rows)
    columns = {
        SEQUENCE: numbers(list(range(count))),
        TIME: numbers([float(i) for i in range(count)]),
        MONOTONIC: numbers([i * 25.0 for i in range(count)]),
        GENERATION: numbers([i // 3 if has_generations else None for i in range(count)]),
        KIND: texts([row[3] for row in rows]),
        1: numbers([row[0] for row in rows]),
        2: numbers([None if row[1] is None else row[1] / 2 for row in rows]),
    }
    block = Block(columns)
    keep = thinning.kept(block)
    left = block.take(keep)
    for number in (SEQUENCE, 1, 2):
        assert _told(block.numbers(number)) == _told(left.numbers(number))
    ends = [i for i in range(count) if rows[i][3] == "generation_end"]
    if has_generations:
        assert keep[ends].all()
    else:
        minutes = {int(i * 25 // 60) for i in range(count)}
        assert {int(m // 60) for m in left.numbers(MONOTONIC).values} == minutes


def _told(column: Any) -> Any:
    there = np.ones(len(column), bool) if column.present is None else column.present
    values = column.values[there]
    return len(values) and (values[0], values[-1], values.min(), values.max())


def test_segments_of_older_versions_are_counted_by_their_chunks(engine: Engine) -> None:
    """Their rows do not tell how large they are."""
    with writing(engine) as connection:
        connection.execute(
            insert(runs).values(
                id="r", project="erl", name="r", unit="generation", state="finished", started_at=1.0,
                created_at=1.0, last_seen_at=1.0,
            )
        )  # fmt: skip
        of = {"run_id": "r", "process_id": 1, "first_sequence": 1, "count": 2}
        connection.execute(insert(segments).values(**of, last_sequence=2, revision=1))
        for number in COLUMNS:
            connection.execute(
                insert(chunks).values(**of, series_id=number, present=2, width=0, blob=b"12345")
            )
    sizes.measure(engine, 2.0)
    assert sizes.projects(engine)[0].bytes == 5 * len(COLUMNS)
