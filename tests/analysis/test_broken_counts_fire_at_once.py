"""Declared counts: a surplus fires in its generation, once it outlived a collection or is there again."""

from __future__ import annotations

import pytest
from builder import EVALUATE, EVOLVE, MIB, Leak, Training, kept_environments, old_population

from leakline.analysis import RunHistory, examine, expectation_rows, history_from_batches
from leakline.analysis.results import SEVERITY
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

ENVIRONMENTS = ("TradingEnvironment", 2, 2, None)
AGENTS = ("agents.DDPGAgent", 17, 17, EVOLVE)

Row = tuple[int, str, int, int | None]


def counts_only(rows: list[Row], after: str | None = None) -> RunHistory:
    """(generation, phase, environments, full collections so far), 100 MiB all the time."""
    event = Event(0, 0.0, "expect", "Env", data={"low": 2, "high": 2, "after": after})
    snapshots = []
    for i, (generation, phase, count, collections) in enumerate(rows):
        samples: dict[str, float] = {"type.train.Env.count": count, "process.rss_bytes": 100 * MIB}
        if collections is not None:
            samples["python.collections_full"] = collections
        kind = "phase_end" if phase else "generation_end"
        snapshots.append(
            Snapshot(i, float(i), float(i), generation, phase or None, "", kind, samples, (event,) if i == 0 else ())
        )  # fmt: skip
    return history_from_batches(
        RunHeader("r", "p", "r", "generation", None, 0.0), [Batch(ProcessIdentity("a"), tuple(snapshots))]
    )  # fmt: skip


def test_a_count_within_its_bounds_is_quiet() -> None:
    verdict = examine(counts_only([(g, "train", 2, g) for g in range(6)]))
    assert verdict.status == "ok"
    assert not verdict.findings


def test_fewer_than_declared_is_no_leak() -> None:
    history = counts_only([(g, "train", 1, g) for g in range(6)])
    assert examine(history).status == "ok"
    assert expectation_rows(history)[0].state == "broken"


def test_a_surplus_seen_once_without_a_collection_is_not_told_yet() -> None:
    verdict = examine(counts_only([(0, "train", 2, 5), (1, "train", 18, 5)]))
    assert SEVERITY.index(verdict.status) < SEVERITY.index("suspected")


def test_a_surplus_that_went_away_is_not_told() -> None:
    rows: list[Row] = [
        (0, "a", 2, 1),
        (1, "a", 18, 1),
        (1, "b", 2, 2),
        (2, "a", 2, 3),
        (3, "a", 2, 4),
        (4, "a", 2, 4),
    ]
    assert examine(counts_only(rows)).status == "ok"


def test_a_surplus_that_outlived_a_collection_fires_in_its_generation() -> None:
    rows: list[Row] = [(0, "a", 2, 1), (1, "a", 18, 1), (1, "", 18, 2)]
    verdict = examine(counts_only(rows, after="a"))
    assert verdict.status == "suspected"
    assert "Env is 18, declared 2" in verdict.findings[0].evidence[0]


def test_a_surplus_still_there_at_the_next_end_of_the_phase_fires() -> None:
    rows: list[Row] = [(0, "a", 2, 1), (1, "a", 18, 1), (1, "", 2, 1), (2, "a", 18, 1)]
    assert examine(counts_only(rows, after="a")).status == "suspected"


def test_without_word_of_collections_the_first_bad_reading_fires() -> None:
    verdict = examine(counts_only([(0, "a", 2, None), (1, "a", 18, None)]))
    assert verdict.status == "suspected"


def test_a_surplus_that_does_not_grow_is_a_broken_contract_and_nothing_more() -> None:
    verdict = examine(counts_only([(g, "a", 3, g) for g in range(8)]))
    assert verdict.status == "suspected"
    assert [f.kind for f in verdict.findings] == ["count_contract"]
    assert "Env is 3, declared 2" in verdict.summary


def test_a_broken_count_and_its_growth_are_one_finding() -> None:
    history = Training(
        leaks=(kept_environments(),), expectations=(ENVIRONMENTS, AGENTS), generations=4
    ).history()
    verdict = examine(history)
    active = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert [(f.kind, f.phase) for f in active] == [("objects", EVALUATE)]
    assert active[0].suspects[0].name == "trading.TradingEnvironment"
    assert any("declared 2" in line for line in active[0].evidence)


@pytest.mark.parametrize("generations", [2, 3])
def test_it_fires_in_the_generation_it_happens_in(generations: int) -> None:
    training = Training(
        leaks=(old_population(start=generations - 1),),
        expectations=(AGENTS,),
        generations=generations,
    )
    verdict = examine(training.history())
    assert verdict.status == "suspected"
    assert verdict.findings[0].suspects[0].name == "agents.DDPGAgent"
    assert verdict.findings[0].started_at_generation is not None
    assert verdict.findings[0].started_at_generation.estimate == generations - 1


def test_rows_of_expectations_say_what_was_seen() -> None:
    leak = Leak(EVALUATE, 1 * MIB, {"trading.TradingEnvironment": 16}, start=2)
    history = Training(
        leaks=(leak,), generations=5, expectations=(ENVIRONMENTS, AGENTS, ("Missing", 1, 1, None))
    ).history()
    rows = {row.type: row for row in expectation_rows(history)}
    environment = rows["trading.TradingEnvironment"]
    assert (environment.expected, environment.last_count, environment.state) == ("2", 50, "broken")
    assert environment.first_broken_at == 2
    assert rows["agents.DDPGAgent"].state == "holds"
    assert rows["Missing"].state == "never_seen"
