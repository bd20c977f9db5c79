"""What is removed or thinned, and when: by age and by size, never live or tagged runs, and without blocking ingest."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient
from tests.server.stored import LATER, compact_all, count_of, engine_of, put_run, seal, serving

from leakline import analysis
from leakline_server.config import from_environment
from leakline_server.paths import MIGRATIONS
from leakline_server.store.columns import (
    COLUMNS,
    GENERATION,
    KIND,
    MONOTONIC,
    SEQUENCE,
    TEXT_COLUMNS,
    TIME,
    numbers,
    texts,
)
from leakline_server.store.engine import DATABASE_ERRORS, Engine, writing
from leakline_server.store.maintenance import (
    retention_policy,
    retention_steps,
    run_deletion,
    storage_sizes,
)
from leakline_server.store.maintenance.retention_policy import (
    DAY_SECONDS,
    FOREVER,
    Limits,
    PerProject,
)
from leakline_server.store.maintenance.retention_steps import Keeping
from leakline_server.store.migrate import FORMER_VIEWS, downgrade, upgrade
from leakline_server.store.runs.run_history import load_history
from leakline_server.store.schema import Key, batches, chunks, runs, segments, series
from leakline_server.store.schema import sizes as sizes_table
from leakline_server.store.series import undropped
from leakline_server.store.series.chunk_codec import encode
from leakline_server.store.series.column_reader import Block
from leakline_server.store.series.compaction import Dropped, drop
from leakline_server.worker_thread import Worker
from leakline_server.workers.storage_upkeep import FIRST_DECISION_SECONDS, Retainer

NOW = 1_800_000_000.0
MIB = 2**20


def put(
    engine: Engine, name: str, *, days: float, project: str = "erl", size: int = 0,
    state: str = "finished", tags: str = "[]",
) -> None:  # fmt: skip
    """Insert a run that was last seen this many days ago."""
    at = NOW - days * DAY_SECONDS
    times = dict.fromkeys(("started_at", "created_at", "last_seen_at", "ended_at"), at)
    with writing(engine) as connection:
        put_run(connection, name, project=project, state=state, tags=tags, **times)
        sized = {"run_id": name, "bytes": size, "measured_at": at, "revision": 0}
        connection.execute(insert(sizes_table).values(**sized))


def going(engine: Engine, limits: Limits) -> list[str]:
    return [each.run_id for each in retention_policy.decide(engine, limits, NOW).going]


def test_nothing_is_removed_by_default(engine: Engine) -> None:
    put(engine, "old", days=10_000, size=2**50)
    assert going(engine, Limits()) == []
    assert retention_policy.to_thin(engine, Limits(), NOW) == []


def test_runs_are_removed_by_the_age_limit_of_their_project(engine: Engine) -> None:
    for days in (10, 29, 31, 89, 91, 400):
        put(engine, f"erl{days}", days=days)
        put(engine, f"rl{days}", days=days, project="rl")
        put(engine, f"kept{days}", days=days, project="papers")
    limits = Limits(keep_days=PerProject(30, {"rl": 90, "papers": None}))
    assert going(engine, limits) == ["erl400", "rl400", "erl91", "rl91", "erl89", "erl31"]


@pytest.mark.parametrize("limits", [
    Limits(keep_days=PerProject(1)), Limits(keep_bytes=PerProject(1.0)),
])  # fmt: skip
def test_live_and_tagged_runs_are_kept(engine: Engine, limits: Limits) -> None:
    put(engine, "live", days=50, size=MIB, state="running")
    put(engine, "kept", days=50, size=MIB, tags='["keep"]')
    put(engine, "base", days=50, size=MIB, tags='["nightly","baseline"]')
    put(engine, "old", days=50, size=MIB, tags='["keeper"]')
    put(engine, "silent", days=50, size=MIB, state="silent")
    put(engine, "silent-now", days=0.5, size=MIB, state="silent")
    assert sorted(going(engine, limits)) == ["old", "silent"]


def test_a_project_that_is_too_large_loses_its_oldest(engine: Engine) -> None:
    for days in range(1, 7):
        put(engine, f"r{days}", days=days, size=10 * MIB)
        put(engine, f"other{days}", days=days, size=10 * MIB, project="other")
    put(engine, "empty", days=100)
    decided = retention_policy.decide(
        engine, Limits(keep_bytes=PerProject(None, {"erl": 35 * MIB})), NOW
    )
    assert [each.run_id for each in decided.going] == ["r6", "r5", "r4"]
    assert {each.why for each in decided.going} == {"size"}
    assert decided.too_large == []


def test_a_project_that_stays_too_large_is_named(engine: Engine) -> None:
    put(engine, "live", days=0, size=10 * MIB, state="running")
    put(engine, "old", days=9, size=MIB)
    decided = retention_policy.decide(engine, Limits(keep_bytes=PerProject(2 * MIB)), NOW)
    assert [each.run_id for each in decided.going] == ["old"]
    assert [(t.project, t.bytes, t.limit) for t in decided.too_large] == [
        ("erl", 10 * MIB, 2 * MIB)
    ]


def test_a_run_is_measured_again_after_it_changed(engine: Engine) -> None:
    put(engine, "r", days=1)
    with writing(engine) as connection:
        connection.execute(delete(sizes_table))
        waits = {"run_id": "r", "process_id": 1, "first_sequence": 1, "count": 1, "revision": 1}
        connection.execute(insert(batches).values(**waits, received_at=NOW, body=b"x" * 100))
    assert storage_sizes.measure(engine, NOW) == 1
    assert storage_sizes.projects(engine) == [storage_sizes.ProjectSize("erl", 1, 100)]
    assert storage_sizes.measure(engine, NOW + 1) == 0
    with writing(engine) as connection:
        connection.execute(update(batches).values(body=b"x" * 150))
        connection.execute(update(runs).values(revision=7, last_seen_at=NOW))
    assert storage_sizes.measure(engine, NOW + storage_sizes.FRESH_SECONDS - 1) == 0
    assert storage_sizes.measure(engine, NOW + storage_sizes.FRESH_SECONDS) == 1
    assert storage_sizes.projects(engine)[0].bytes == 150
    assert storage_sizes.measure(engine, NOW + storage_sizes.SETTLED_SECONDS, since=NOW) == 0
    # Compacted after its end, without other changes.
    with writing(engine) as connection:
        connection.execute(update(batches).values(body=b"x" * 50))
    assert storage_sizes.measure(engine, NOW + storage_sizes.SETTLED_SECONDS - 1) == 0
    assert storage_sizes.measure(engine, NOW + storage_sizes.SETTLED_SECONDS, since=NOW - 1) == 1
    assert storage_sizes.projects(engine)[0].bytes == 50


def test_the_worker_removes_old_runs_and_logs_it(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    put(engine, "old", days=40)
    put(engine, "new", days=4)
    clock = itertools.count(0.0, FIRST_DECISION_SECONDS / 4)
    told: list[str] = []
    retainer = Retainer(
        engine, Limits(keep_days=PerProject(30)), told.append, lambda: next(clock), lambda: NOW
    )
    for _ in range(30):
        retainer.once()
    with engine.connect() as connection:
        assert list(connection.scalars(select(runs.c.id))) == ["new"]
    assert told == ["old"]
    assert retainer.figures.removed_runs == 1
    assert "removed run old (old, project erl): older than LEAKLINE_KEEP_DAYS" in caplog.text
    assert run_deletion.waiting(engine) == 0


def change(engine: Engine, name: str, **values: Any) -> None:
    with writing(engine) as connection:
        connection.execute(update(runs).where(runs.c.id == name).values(**values))


def there(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(select(runs.c.id)))


def keeping_of(engine: Engine, limits: Limits) -> Keeping:
    keeping = Keeping(engine, limits)
    to_thin = retention_policy.to_thin(engine, limits, NOW)
    keeping.decided(retention_policy.decide(engine, limits, NOW).going, to_thin)
    return keeping


def outcomes(keeping: Keeping) -> dict[str, str]:
    found: dict[str, str] = {}
    while done := keeping.remove_next(NOW):
        found[done[0].run_id] = done[1]
    return found


def test_a_run_changed_since_the_decision_is_kept(engine: Engine) -> None:
    for name in ("again", "gone", "live", "old", "tagged"):
        put(engine, name, days=40)
    keeping = keeping_of(engine, Limits(keep_days=PerProject(30)))
    change(engine, "tagged", tags='["keep"]')
    # It was resumed and has ended again.
    change(engine, "again", last_seen_at=NOW - 1)
    change(engine, "live", state="running")
    assert run_deletion.remove(engine, "gone", NOW) == "removed"
    assert outcomes(keeping) == {
        "again": "kept", "gone": "unknown", "live": "live", "old": "removed", "tagged": "kept",
    }  # fmt: skip
    assert there(engine) == ["again", "live", "tagged"]


def test_a_project_that_became_small_loses_no_more(engine: Engine) -> None:
    for days in range(1, 6):
        put(engine, f"r{days}", days=days, size=10 * MIB)
    keeping = keeping_of(engine, Limits(keep_bytes=PerProject(25 * MIB)))
    assert run_deletion.remove(engine, "r1", NOW) == "removed"
    assert run_deletion.remove(engine, "r2", NOW) == "removed"
    assert outcomes(keeping) == {"r5": "removed", "r4": "kept", "r3": "kept"}


def sealed(engine: Engine, name: str, *firsts: int) -> None:
    """Insert empty segments, in which nothing can be thinned."""
    of = {"run_id": name, "process_id": 1, "count": 1, "revision": 0}
    rows = [{**of, "first_sequence": first, "last_sequence": first} for first in firsts]
    with writing(engine) as connection:
        connection.execute(insert(segments), rows)


def thin_by(monkeypatch: pytest.MonkeyPatch, engine: Engine, thin: Callable[[int], None]) -> None:
    """Replace thinning with a function of the test."""

    def step(of: Engine, key: Key, first: int, _keep: Any) -> Dropped:
        thin(first)
        with writing(engine) as connection:
            this = segments.c.first_sequence == first
            connection.execute(update(segments).where(this).values(thinned=True))
        return Dropped(1, 1)

    monkeypatch.setattr(retention_steps, "drop", step)


def thin_all(keeping: Keeping) -> int:
    """Thin everything and return the number of steps, failed ones included."""
    for steps in range(100):
        try:
            if keeping.thin_next(NOW) is None:
                return steps
        except DATABASE_ERRORS:
            continue
    raise AssertionError("it never ends")


THIN = Limits(thin_after_days=PerProject(30))


@pytest.fixture
def old(engine: Engine) -> Engine:
    """Insert a run of two segments that is due for thinning."""
    put(engine, "old", days=40)
    sealed(engine, "old", 1, 2)
    return engine


def test_a_failed_segment_is_thinned_after_the_others(
    old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OperationalError("", None, Exception("deadlock detected"))]
    asked: list[int] = []

    def thin(first: int) -> None:
        asked.append(first)
        if first == 1 and failures:
            raise failures.pop()

    thin_by(monkeypatch, old, thin)
    thin_all(keeping_of(old, THIN))
    assert asked == [1, 2, 1]
    assert retention_policy.to_thin(old, THIN, NOW) == []


def test_a_segment_moved_by_compaction_is_thinned(
    old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    thin_by(monkeypatch, old, lambda first: sealed(old, "old", 3) if first == 1 else None)
    thin_all(keeping_of(old, THIN))
    assert undropped(old, "old") == []


def test_a_run_that_cannot_be_thinned_is_tried_later(
    old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def thin(first: int) -> None:
        raise OperationalError("", None, Exception("deadlock detected"))

    thin_by(monkeypatch, old, thin)
    thin_all(keeping_of(old, THIN))
    assert retention_policy.to_thin(old, THIN, NOW) == [("old", 0)]


def test_a_run_tagged_during_thinning_keeps_the_rest(
    old: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    thin_by(monkeypatch, old, lambda first: change(old, "old", tags='["keep"]'))
    thin_all(keeping_of(old, THIN))
    assert [first for _, first in undropped(old, "old")] == [2]


def test_the_settings_can_name_projects() -> None:
    found = from_environment({
        "LEAKLINE_KEEP_DAYS": "30, erl-trading=90, papers=forever", "LEAKLINE_THIN_AFTER_DAYS": "0.5",
        "LEAKLINE_KEEP_BYTES": "a=b=50 GiB, forever",
    }).limits  # fmt: skip
    assert found.keep_days == PerProject(30.0, {"erl-trading": 90.0, "papers": None})
    assert found.thin_after_days == PerProject(0.5)
    assert found.keep_bytes == PerProject(None, {"a=b": 50 * 2**30})
    assert from_environment({}).limits == Limits(FOREVER, FOREVER, FOREVER)


def thin(engine: Engine, run_id: str = "r1") -> int:
    return sum(
        drop(engine, key, first, retention_steps.kept).snapshots
        for key, first in undropped(engine, run_id)
    )


@pytest.fixture(autouse=True)
def nobody_else(request: pytest.FixtureRequest, patch: Any) -> None:
    """Stop workers: verdicts change revisions, and a compactor may be faster than the thinning of the test."""
    if "run" in request.fixturenames:
        for name in (
            "examination_worker.Examiner",
            "storage_upkeep.Retainer",
            "storage_upkeep.Compactor",
        ):
            patch(f"workers.{name}.once", lambda self: 3600.0)


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """Send ten steps per generation, so that some can be left out; with a spike, a dip and values that begin late."""
    made = make_run(
        extra={
            "gauge.spike": lambda i: 10_000 if i == 401 else i % 7,
            "gauge.late": lambda i: i / 3 if i > 300 else None,
            "gauge.rare": lambda i: -5 if i == 77 else None,
        }
    )
    plain = made.snapshot

    def snapshot(sequence: int) -> Any:
        found = plain(sequence)
        end = sequence % 10 == 9
        return replace(
            found, generation=sequence // 10, kind="generation_end" if end else "phase_end",
            phase=None if end else found.phase or "train",
        )  # fmt: skip

    made.snapshot = snapshot
    made.create(api)
    made.send(api, 0, 600, size=100)
    seal(engine_of(api))
    return made


def finish(api: TestClient) -> None:
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200


def points(api: TestClient, name: str) -> list[Any]:
    """Return (sequence, value) of everything that is stored of a series."""
    (process,) = load_history(engine_of(api), "r1").processes
    values = zip(process.sequence, process.series[name], strict=True)
    return [(x, value) for x, value in values if value is not None]


def test_thinning_keeps_the_phase_accounts_and_the_verdict(api: TestClient, run: Any) -> None:
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


def test_thinned_snapshots_sent_again_are_known(api: TestClient, run: Any) -> None:
    finish(api)
    before = api.get("/api/v1/runs/r1").json()["processes"][0]
    thin(engine_of(api))
    with again(api) as other:
        assert run.send(other, 0, 600, size=100) == 0
        # What is still stored is still compared.
        wire = run.wire(9, 1)
        wire["columns"]["series"]["process.rss_bytes"] = [1]
        assert other.post("/api/v1/runs/r1/batches", json=wire).status_code == 409
        assert run.send(other, 600, 10) == 10
        after = other.get("/api/v1/runs/r1").json()["processes"][0]
    assert before["stored"] == before["taken"] == 600
    assert (before["left_out"], after["left_out"]) == (0, 600 - (after["stored"] - 10))
    assert after["stored"] < 100
    assert after["taken"] == 610


def again(api: TestClient) -> TestClient:
    """Return a new application on the same database, with empty caches."""
    return serving(str(engine_of(api).url.render_as_string(hide_password=False)))


@pytest.mark.parametrize("thinned_first", [True, False])
def test_snapshots_that_arrive_after_thinning_are_accepted(
    thinned_first: bool, api: TestClient, run: Any
) -> None:
    """Snapshots 600 to 799, 1,000 to 1,099 and 1,150 to 1,199 of 0 to 1,299 arrive late."""
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
    for step in (thin, compact_all, thin) if thinned_first else (compact_all, thin, compact_all):
        step(engine)
    with engine.connect() as connection:
        assert set(connection.scalars(select(segments.c.thinned))) == {True}
        assert 0 not in set(connection.scalars(select(segments.c.level)))
    (process,) = api.get("/api/v1/runs/r1").json()["processes"]
    assert process["left_out"] + process["stored"] == 950
    assert process["left_out"] > 700
    assert process["taken"] == 1300
    with again(api) as other:
        assert run.send(other, 0, 1300, size=100) == 350


def test_a_segment_with_very_many_gaps_is_not_thinned(api: TestClient, run: Any) -> None:
    for first in range(700, 900, 10):
        run.send(api, first, 8)
    seal(engine_of(api))
    finish(api)
    thin(engine_of(api))
    assert len([x for x, _ in points(api, "process.rss_bytes") if x >= 700]) == 160
    with again(api) as other:
        assert run.send(other, 700, 200, size=100) == 40


def test_a_compacted_run_is_thinned_and_compacted_again(api: TestClient, run: Any) -> None:
    run.send(api, 600, 5_000, size=200)
    finish(api)
    engine = engine_of(api)
    seal(engine)
    with writing(engine) as connection:
        connection.execute(update(runs).values(last_seen_at=1.0))
    compact_all(engine)
    before = dict(points(api, "gauge.spike"))
    left_out = thin(engine)
    assert left_out > 4_500
    stayed = dict(points(api, "gauge.spike"))
    assert stayed == {x: v for x, v in before.items() if x in stayed}
    assert set(stayed) >= {*range(9, 5_600, 10), 0, 5_599, 401}
    compact_all(engine)
    assert dict(points(api, "gauge.spike")) == stayed
    with engine.connect() as connection:
        rows = connection.execute(select(segments.c.level, segments.c.thinned)).all()
        counted = connection.scalar(select(func.sum(segments.c.count)))
    assert all(level >= 1 and thinned for level, thinned in rows)
    assert counted == len(stayed)
    assert thin(engine) == 0


def test_a_live_run_is_not_thinned(api: TestClient, run: Any) -> None:
    engine = engine_of(api)
    assert thin(engine) == 0
    assert len(points(api, "gauge.spike")) == 600


def test_a_segment_changed_meanwhile_is_thinned_later(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(api)
    engine = engine_of(api)
    real = retention_steps.kept

    def slow(block: Block) -> Any:
        with writing(engine) as connection:
            connection.execute(update(segments).values(revision=segments.c.revision + 1))
        return real(block)

    monkeypatch.setattr(retention_steps, "kept", slow)
    assert thin(engine) == 0
    assert len(points(api, "gauge.spike")) == 600
    monkeypatch.undo()
    assert thin(engine) > 400


def test_a_damaged_segment_is_not_thinned(api: TestClient, run: Any) -> None:
    finish(api)
    engine = engine_of(api)
    with writing(engine) as connection:
        connection.execute(update(chunks).where(chunks.c.series_id == 1).values(blob=b"damage"))
        count = connection.scalar(select(func.count()).select_from(chunks))
    assert thin(engine) == 0
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(chunks)) == count


def test_a_run_is_thinned_again_after_new_data(api: TestClient, run: Any) -> None:
    finish(api)
    engine = engine_of(api)
    storage_sizes.measure(engine, 1.0)
    limits = Limits(thin_after_days=PerProject(7))
    now = _last_seen(engine) + 7 * DAY_SECONDS
    assert retention_policy.to_thin(engine, limits, now) == []
    ((run_id, revision),) = retention_policy.to_thin(engine, limits, now + 1)
    thin(engine)
    retention_steps.mark_done(engine, run_id, revision)
    assert retention_policy.to_thin(engine, limits, now + 1) == []
    assert storage_sizes.measure(engine, now) == 1
    assert retention_policy.to_thin(engine, limits, now + 1) == []
    run.send(api, 600, 100)
    later = _last_seen(engine) + 7 * DAY_SECONDS + 1
    assert [each for each, _ in retention_policy.to_thin(engine, limits, later)] == ["r1"]
    api.patch("/api/v1/runs/r1", json={"tags": ["keep"]})
    assert retention_policy.to_thin(engine, limits, later) == []


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
@settings(max_examples=100)
def test_thinning_keeps_ends_and_extremes_of_each_chunk(
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
    keep = retention_steps.kept(block)
    left = block.take(keep)
    for number in (SEQUENCE, 1, 2):
        assert _extremes(block.numbers(number)) == _extremes(left.numbers(number))
    ends = [i for i in range(count) if rows[i][3] == "generation_end"]
    if has_generations:
        assert keep[ends].all()
    else:
        minutes = {int(i * 25 // 60) for i in range(count)}
        assert {int(m // 60) for m in left.numbers(MONOTONIC).values} == minutes


def _extremes(column: Any) -> Any:
    there = np.ones(len(column), bool) if column.present is None else column.present
    values = column.values[there]
    return len(values) and (values[0], values[-1], values.min(), values.max())


def test_segments_of_older_versions_are_counted_by_their_chunks(engine: Engine) -> None:
    """Their rows do not contain their size."""
    with writing(engine) as connection:
        put_run(connection, "r")
        of = {"run_id": "r", "process_id": 1, "first_sequence": 1, "count": 2}
        connection.execute(insert(segments).values(**of, last_sequence=2, revision=1))
        for number in COLUMNS:
            connection.execute(
                insert(chunks).values(**of, series_id=number, present=2, width=0, blob=b"12345")
            )
    storage_sizes.measure(engine, 2.0)
    assert storage_sizes.projects(engine)[0].bytes == 5 * len(COLUMNS)


SERIES = 40
SEGMENTS = 8
COUNT = 512


def long_run(engine: Engine, run_id: str) -> None:
    """Insert sealed data as after some hours of a process; the run ended long ago."""
    columns: dict[int, Any] = {n: texts(["phase_end"] * COUNT) for n in TEXT_COLUMNS}
    columns |= {
        n: numbers([i * 7919 % 1_000_003 for i in range(COUNT)]) for n in range(1, SERIES + 1)
    }
    columns |= {n: numbers(list(range(COUNT))) for n in COLUMNS if n not in TEXT_COLUMNS}
    packed = {number: encode(column) for number, column in columns.items()}
    with writing(engine) as connection:
        put_run(connection, run_id, project="old", ended_at=1.0)
        connection.execute(
            insert(series), [{"run_id": run_id, "id": n, "name": f"s{n}"} for n in range(1, SERIES + 1)]
        )  # fmt: skip
        for at in range(0, SEGMENTS * COUNT, COUNT):
            packed[SEQUENCE] = encode(numbers(list(range(at, at + COUNT))))
            of = {"run_id": run_id, "process_id": 0, "first_sequence": at, "count": COUNT}
            connection.execute(
                insert(segments).values(**of, last_sequence=at + COUNT - 1, revision=1, bytes=1)
            )
            told = ("present", "first", "last", "min", "max", "width", "blob")
            rows = [
                {**of, "series_id": number} | {name: getattr(chunk, name) for name in told}
                for number, chunk in packed.items()
            ]
            connection.execute(insert(chunks), rows)


def chunks_left(engine: Engine, run_id: str) -> int:
    return count_of(engine, chunks, chunks.c.run_id == run_id)


class Sending:
    """A client that posts small batches, one after the other."""

    def __init__(self, api: TestClient, run: Any) -> None:
        self._api, self._run, self.acknowledged = api, run, 0
        self.longest = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> Sending:
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def _send(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            assert self._run.send(self._api, 5 * self.acknowledged, 5) == 5
            self.longest = max(self.longest, time.monotonic() - began)
            self.acknowledged += 1


def test_ingest_goes_on_while_runs_are_removed_and_thinned(
    api: TestClient, make_run: Any, eventually: Any, patch: Any
) -> None:
    """A second worker does this next to the server's own; it waits neither for its turn nor for its first decision."""
    patch("workers.storage_upkeep.has_other_servers", lambda engine: False)
    engine = engine_of(api)
    long_run(engine, "removed")
    long_run(engine, "thinned")
    while storage_sizes.measure(engine, time.time()):
        continue
    make_run(id="live").create(api)
    retainer = Retainer(engine, Limits(thin_after_days=PerProject(1.0)))
    retainer.decide_now()
    working = Worker("test-retain", retainer.once)
    with Sending(api, make_run(id="live")) as alongside:
        eventually(lambda: alongside.acknowledged)
        assert run_deletion.remove(engine, "removed", time.time()) == "removed"
        before = alongside.acknowledged
        working.start()
        eventually(lambda: chunks_left(engine, "removed") == 0, 60.0)
        eventually(lambda: not undropped(engine, "thinned"), 60.0)
        assert alongside.acknowledged > before
    working.stop()
    # A batch waits for one step of the retainer, never for all its work.
    assert alongside.longest < 5.0
    assert retainer.figures.thinned_snapshots > SEGMENTS * COUNT / 2


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
# The run id that the document uses.
RUN = "5f2c8d1e9a0b4c37"


def queries() -> list[str]:
    section = DOCUMENT.read_text().partition("## Query the database with SQL")[2]
    block = section.partition("```sql\n")[2].partition("```")[0]
    return [query for query in block.split(";") if query.strip()]


@pytest.fixture
def sealed_engine(api: TestClient, make_run: Any) -> Engine:
    """Return an engine with 200 sealed snapshots and some that are not sealed."""
    run = make_run(id=RUN).begin(api, 200)
    engine = engine_of(api)
    seal(engine)
    run.send(api, 200, 10)
    api.patch(f"/api/v1/runs/{RUN}", json={"state": "finished"})
    storage_sizes.measure(engine, LATER)
    return engine


def rows(engine: Engine, query: str) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(query)).mappings()]


def test_documented_sql_has_the_numbers_of_the_api(
    api: TestClient, sealed_engine: Engine, eventually: Any
) -> None:
    of_runs, of_series = queries()
    # Otherwise a verdict may arrive between the query and the answer that it is compared with.
    eventually(lambda: api.get(f"/api/v1/runs/{RUN}").json()["status"] == "confirmed")
    (run,) = rows(sealed_engine, of_runs)
    answer = api.get(f"/api/v1/runs/{RUN}").json()
    for name in ("id", "project", "name", "state", "status", "peak_bytes"):
        assert run[name] == answer[name], name
    assert run["bytes"] == api.get("/api/v1/projects").json()["items"][0]["bytes"]

    found = {row["name"]: row for row in rows(sealed_engine, of_series)}
    assert found
    for name, row in found.items():
        path = f"/api/v1/runs/{RUN}/series?name={name}&x=sequence&to=199&points=2000"
        (item,) = api.get(path).json()["items"]
        assert (row["lowest"], row["highest"]) == (min(item["min"]), max(item["max"])), name
    highest = [row["highest"] for row in found.values()]
    assert highest == sorted(highest, reverse=True)


def test_the_views_of_older_versions_are_dropped(engine: Engine) -> None:
    downgrade(engine, MIGRATIONS, "0015_damaged")
    with writing(engine) as connection:
        for view in FORMER_VIEWS:
            connection.exec_driver_sql(f"CREATE VIEW {view} AS SELECT id FROM runs")
    upgrade(engine, MIGRATIONS)
    assert inspect(engine).get_view_names() == []
