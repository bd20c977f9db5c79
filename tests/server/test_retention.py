"""What goes, and when: by age and by size, project by project, and never what people live on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import OperationalError

from leakline_server.config import WrongSettings, from_environment
from leakline_server.store import removal, retention, sizes, thinning
from leakline_server.store.columns import Key
from leakline_server.store.engine import DATABASE_ERRORS, Engine, writing
from leakline_server.store.keeping import Keeping
from leakline_server.store.retention import DAY_SECONDS, FOREVER, Limits, PerProject
from leakline_server.store.tables import batches, runs, segments
from leakline_server.store.tables import sizes as sizes_table
from leakline_server.workers.retaining import FIRST_DECISION_SECONDS, Retainer

NOW = 1_800_000_000.0
MIB = 2**20


def put(
    engine: Engine, name: str, *, days: float, project: str = "erl", size: int = 0,
    state: str = "finished", tags: str = "[]",
) -> None:  # fmt: skip
    """A run that was heard of so many days ago."""
    at = NOW - days * DAY_SECONDS
    with writing(engine) as connection:
        connection.execute(
            insert(runs).values(
                id=name, project=project, name=name, unit="generation", state=state, tags=tags,
                started_at=at, created_at=at, last_seen_at=at, ended_at=at,
            )
        )  # fmt: skip
        connection.execute(
            insert(sizes_table).values(run_id=name, bytes=size, measured_at=at, revision=0)
        )


def going(engine: Engine, limits: Limits) -> list[str]:
    return [each.run_id for each in retention.decide(engine, limits, NOW).going]


def test_nothing_goes_by_itself(engine: Engine) -> None:
    put(engine, "old", days=10_000, size=2**50)
    assert going(engine, Limits()) == []
    assert retention.to_thin(engine, Limits(), NOW) == []


def test_runs_go_by_the_age_of_their_project(engine: Engine) -> None:
    for days in (10, 29, 31, 89, 91, 400):
        put(engine, f"erl{days}", days=days)
        put(engine, f"rl{days}", days=days, project="rl")
        put(engine, f"kept{days}", days=days, project="papers")
    limits = Limits(keep_days=PerProject(30, {"rl": 90, "papers": None}))
    assert going(engine, limits) == ["erl400", "rl400", "erl91", "rl91", "erl89", "erl31"]


@pytest.mark.parametrize("limits", [
    Limits(keep_days=PerProject(1)), Limits(keep_bytes=PerProject(1.0)),
])  # fmt: skip
def test_what_is_live_or_tagged_stays(engine: Engine, limits: Limits) -> None:
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
    decided = retention.decide(engine, Limits(keep_bytes=PerProject(None, {"erl": 35 * MIB})), NOW)
    assert [each.run_id for each in decided.going] == ["r6", "r5", "r4"]
    assert {each.why for each in decided.going} == {"size"}
    assert decided.too_large == []


def test_what_goes_by_age_counts_before_the_size_is_looked_at(engine: Engine) -> None:
    put(engine, "old", days=40, size=10 * MIB)
    put(engine, "newer", days=20, size=10 * MIB)
    put(engine, "new", days=1, size=10 * MIB)
    limits = Limits(keep_days=PerProject(30), keep_bytes=PerProject(20 * MIB))
    assert going(engine, limits) == ["old"]


def test_a_project_that_stays_too_large_is_named(engine: Engine) -> None:
    put(engine, "live", days=0, size=10 * MIB, state="running")
    put(engine, "old", days=9, size=MIB)
    decided = retention.decide(engine, Limits(keep_bytes=PerProject(2 * MIB)), NOW)
    assert [each.run_id for each in decided.going] == ["old"]
    assert [(t.project, t.bytes, t.limit) for t in decided.too_large] == [
        ("erl", 10 * MIB, 2 * MIB)
    ]


RUNS = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(0, 5), st.sampled_from(["running", "finished", "silent"]),
        st.sampled_from(["[]", '["keep"]']), st.sampled_from(["a", "b"]),
    ),
    max_size=12,
)  # fmt: skip
LIMIT = st.none() | st.integers(1, 40)


@given(RUNS, LIMIT, LIMIT)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_there_is_rules_one_to_three_hold(
    engine: Engine, there: list[Any], days: int | None, most: int | None
) -> None:
    with writing(engine) as connection:
        connection.execute(delete(runs))
    for i, (age, size, state, tags, project) in enumerate(there):
        put(engine, f"{i}", days=age + 0.5, size=size, state=state, tags=tags, project=project)
    limits = Limits(keep_days=PerProject(days), keep_bytes=PerProject(most))
    decided = retention.decide(engine, limits, NOW)
    gone = {int(each.run_id): each.why for each in decided.going}
    assert len(gone) == len(decided.going)
    for i, (age, _, state, tags, _) in enumerate(there):
        may_go = state != "running" and tags == "[]"
        assert may_go or i not in gone
        assert (gone.get(i) == "age") == (may_go and days is not None and age + 0.5 > days)
    for project in ("a", "b"):
        of_project = [(i, run) for i, run in enumerate(there) if run[4] == project]
        size_left = sum(run[1] for i, run in of_project if i not in gone)
        by_size = [run for i, run in of_project if gone.get(i) == "size"]
        named = [each.project for each in decided.too_large]
        if most is None:
            assert not by_size
            continue
        assert (size_left > most) == (project in named)
        if by_size:
            # No more than had to: with the youngest of them it would still be too large.
            assert size_left + by_size_of_the_youngest(by_size) > most


def by_size_of_the_youngest(gone: list[Any]) -> int:
    youngest = min(run[0] for run in gone)
    return max(int(run[1]) for run in gone if run[0] == youngest)


def test_a_run_that_was_counted_is_counted_again_when_it_has_news(
    engine: Engine,
) -> None:
    put(engine, "r", days=1)
    with writing(engine) as connection:
        connection.execute(delete(sizes_table))
        connection.execute(
            insert(batches).values(
                run_id="r", process_id=1, first_sequence=1, count=1, revision=1, received_at=NOW, body=b"x" * 100
            )
        )  # fmt: skip
    assert sizes.measure(engine, NOW) == 1
    assert sizes.projects(engine) == [sizes.ProjectSize("erl", 1, 100)]
    assert sizes.measure(engine, NOW + 1) == 0
    with writing(engine) as connection:
        connection.execute(update(batches).values(body=b"x" * 150))
        connection.execute(update(runs).values(revision=7, last_seen_at=NOW))
    assert sizes.measure(engine, NOW + sizes.FRESH_SECONDS - 1) == 0
    assert sizes.measure(engine, NOW + sizes.FRESH_SECONDS) == 1
    assert sizes.projects(engine)[0].bytes == 150
    assert sizes.measure(engine, NOW + sizes.SETTLED_SECONDS, since=NOW) == 0
    # Compacted after its end, without news.
    with writing(engine) as connection:
        connection.execute(update(batches).values(body=b"x" * 50))
    assert sizes.measure(engine, NOW + sizes.SETTLED_SECONDS - 1) == 0
    assert sizes.measure(engine, NOW + sizes.SETTLED_SECONDS, since=NOW - 1) == 1
    assert sizes.projects(engine)[0].bytes == 50


def test_the_worker_removes_what_is_too_old_and_says_so(
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
    assert removal.waiting(engine) == 0


def change(engine: Engine, name: str, **values: Any) -> None:
    with writing(engine) as connection:
        connection.execute(update(runs).where(runs.c.id == name).values(**values))


def there(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(select(runs.c.id)))


def keeping_of(engine: Engine, limits: Limits) -> Keeping:
    keeping = Keeping(engine, limits)
    keeping.decided(
        retention.decide(engine, limits, NOW).going, retention.to_thin(engine, limits, NOW)
    )
    return keeping


def outcomes(keeping: Keeping) -> dict[str, str]:
    found: dict[str, str] = {}
    while done := keeping.remove_next(NOW):
        found[done[0].run_id] = done[1]
    return found


def test_what_people_tagged_or_heard_of_since_the_decision_stays(engine: Engine) -> None:
    for name in ("again", "gone", "live", "old", "tagged"):
        put(engine, name, days=40)
    keeping = keeping_of(engine, Limits(keep_days=PerProject(30)))
    change(engine, "tagged", tags='["keep"]')
    # It came back, and has ended once more by now.
    change(engine, "again", last_seen_at=NOW - 1)
    change(engine, "live", state="running")
    assert removal.remove(engine, "gone", NOW) == "removed"
    assert outcomes(keeping) == {
        "again": "kept", "gone": "unknown", "live": "live", "old": "removed", "tagged": "kept",
    }  # fmt: skip
    assert there(engine) == ["again", "live", "tagged"]


def test_a_project_that_people_made_small_meanwhile_loses_no_more(engine: Engine) -> None:
    for days in range(1, 6):
        put(engine, f"r{days}", days=days, size=10 * MIB)
    keeping = keeping_of(engine, Limits(keep_bytes=PerProject(25 * MIB)))
    assert removal.remove(engine, "r1", NOW) == "removed"
    assert removal.remove(engine, "r2", NOW) == "removed"
    assert outcomes(keeping) == {"r5": "removed", "r4": "kept", "r3": "kept"}


def sealed(engine: Engine, name: str, *firsts: int) -> None:
    """Empty stretches, which nothing can be left out of."""
    with writing(engine) as connection:
        for first in firsts:
            connection.execute(
                insert(segments).values(
                    run_id=name, process_id=1, first_sequence=first, last_sequence=first, count=1, revision=0
                )
            )  # fmt: skip


def thin_by(monkeypatch: pytest.MonkeyPatch, engine: Engine, thin: Callable[[int], None]) -> None:
    """Instead of thinning: what comes of it is up to the test."""

    def step(of: Engine, key: Key, first: int) -> thinning.Thinned:
        thin(first)
        with writing(engine) as connection:
            this = segments.c.first_sequence == first
            connection.execute(update(segments).where(this).values(thinned=True))
        return thinning.Thinned(1, 1)

    monkeypatch.setattr(thinning, "thin", step)


def thin_all(keeping: Keeping) -> int:
    """How many steps it took, those that failed as well."""
    for steps in range(100):
        try:
            if keeping.thin_next(NOW) is None:
                return steps
        except DATABASE_ERRORS:
            continue
    raise AssertionError("it never ends")


THIN = Limits(thin_after_days=PerProject(30))


def test_a_stretch_whose_thinning_failed_is_thinned_after_the_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "old", days=40)
    sealed(engine, "old", 1, 2)
    failures = [OperationalError("", None, Exception("deadlock detected"))]
    asked: list[int] = []

    def thin(first: int) -> None:
        asked.append(first)
        if first == 1 and failures:
            raise failures.pop()

    thin_by(monkeypatch, engine, thin)
    thin_all(keeping_of(engine, THIN))
    assert asked == [1, 2, 1]
    assert retention.to_thin(engine, THIN, NOW) == []


def test_a_stretch_that_a_compaction_moved_is_found_where_it_is_now(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "old", days=40)
    sealed(engine, "old", 1, 2)
    thin_by(monkeypatch, engine, lambda first: sealed(engine, "old", 3) if first == 1 else None)
    thin_all(keeping_of(engine, THIN))
    assert thinning.whole(engine, "old") == []


def test_a_run_whose_thinning_fails_each_time_is_tried_again_at_the_next_decision(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "old", days=40)
    sealed(engine, "old", 1)

    def thin(first: int) -> None:
        raise OperationalError("", None, Exception("deadlock detected"))

    thin_by(monkeypatch, engine, thin)
    thin_all(keeping_of(engine, THIN))
    assert retention.to_thin(engine, THIN, NOW) == [("old", 0)]


def test_a_run_that_is_tagged_while_it_is_thinned_keeps_the_rest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, "old", days=40)
    sealed(engine, "old", 1, 2)
    thin_by(monkeypatch, engine, lambda first: change(engine, "old", tags='["keep"]'))
    thin_all(keeping_of(engine, THIN))
    assert [first for _, first in thinning.whole(engine, "old")] == [2]


def test_the_settings_name_projects() -> None:
    found = from_environment(
        {
            "LEAKLINE_KEEP_DAYS": "30, erl-trading=90, papers=forever",
            "LEAKLINE_THIN_AFTER_DAYS": "0.5",
            "LEAKLINE_KEEP_BYTES": "a=b=50 GiB, forever",
        }
    ).limits
    assert found.keep_days == PerProject(30.0, {"erl-trading": 90.0, "papers": None})
    assert found.thin_after_days == PerProject(0.5)
    assert found.keep_bytes == PerProject(None, {"a=b": 50 * 2**30})
    assert from_environment({}).limits == Limits(FOREVER, FOREVER, FOREVER)


@pytest.mark.parametrize("text", ["0", "-1", "a", "30,b=", "nan", "inf", "30,b=x"])
def test_wrong_days_are_told(text: str) -> None:
    with pytest.raises(WrongSettings, match="LEAKLINE_KEEP_DAYS"):
        from_environment({"LEAKLINE_KEEP_DAYS": text})


@pytest.mark.parametrize("text", ["0", "much", "-3 GiB", "1 GiB,a=lots"])
def test_wrong_sizes_are_told(text: str) -> None:
    with pytest.raises(WrongSettings, match="LEAKLINE_KEEP_BYTES"):
        from_environment({"LEAKLINE_KEEP_BYTES": text})
