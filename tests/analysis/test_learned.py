"""Constant counts of a run are proposed as expectations; an accepted one is judged like a declared one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakline.analysis import RunHistory, check_counts, examine, history_from_batches
from leakline.analysis.assertions.expected_counts import (
    GENERATIONS,
    _is_expected,
    stable_counts,
    with_accepted,
)
from leakline.analysis.run_history import Expectation, declared_expectations
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

PHASES = ("evaluate", "evolve")
# Count by phase in one generation; None: not read.
Counts = dict[str, int | None]


def generation(of: int, counts: dict[str, Counts], after: int = 0) -> list[Snapshot]:
    """Return two phases and an end, where the end repeats the counts of the last phase."""
    rows = []
    for number, phase in enumerate((*PHASES, "")):
        samples: dict[str, float] = {"process.rss_bytes": 2**30}
        for name, by_phase in counts.items():
            count = by_phase[phase or PHASES[-1]]
            if count is not None:
                samples[f"type.{name}.count"] = count
        at = after + 3 * of + number + 1
        kind = "phase_end" if phase else "generation_end"
        rows.append(Snapshot(at, float(at), float(at), of, phase or None, "", kind, samples))
    return rows


def run_of(
    *processes: list[dict[str, Counts]], declared: dict[str, tuple[int, str | None]] | None = None
) -> RunHistory:
    """Return a run of processes, given the counts of each generation."""
    batches = []
    events = tuple(
        Event(0, 0.0, "expect", name, data={"low": count, "high": count, "after": after})
        for name, (count, after) in (declared or {}).items()
    )
    for rank, generations in enumerate(processes):
        # Fewer than later, before anything is created.
        before = {"type.app.Env.count": 0, "process.rss_bytes": 2**30}
        rows = [Snapshot(0, 0.0, 0.0, None, None, "baseline", "baseline", before, events)]
        for number, counts in enumerate(generations):
            rows += generation(number, counts)
        batches.append(Batch(ProcessIdentity(f"p{rank}", rank), tuple(rows)))
    return history_from_batches(RunHeader("r", "p", "r", "generation", None, 0.0), batches)


def both(count: int | None) -> Counts:
    return dict.fromkeys(PHASES, count)


def proposed(history: RunHistory) -> list[tuple[str, int, str | None]]:
    return [(each.type, each.count, each.after) for each in stable_counts(history)]


def accepted(history: RunHistory, *counts: Expectation) -> RunHistory:
    return replace(history, expectations=with_accepted(history.expectations, counts))


def test_a_count_is_learned_only_after_enough_generations() -> None:
    same = {"app.Env": both(2)}
    assert proposed(run_of([same] * (GENERATIONS - 1))) == []
    assert proposed(run_of([same] * GENERATIONS)) == [("app.Env", 2, None)]


def test_earlier_values_are_forgotten_and_changing_counts_not_learned() -> None:
    settled = [{"app.Env": both(1)}] * 3 + [{"app.Env": both(2)}] * GENERATIONS
    assert proposed(run_of(settled)) == [("app.Env", 2, None)]
    assert proposed(run_of([*settled, {"app.Env": both(3)}])) == []
    growing: list[dict[str, Counts]] = [{"app.Env": both(2 + n)} for n in range(12)]
    assert proposed(run_of(growing)) == []


def test_a_count_that_moves_within_each_generation_is_learned_by_phase() -> None:
    agents: dict[str, Counts] = {"app.Agent": {"evaluate": 16, "evolve": 17}}
    found = proposed(run_of([agents] * 10))
    assert found == [("app.Agent", 16, "evaluate"), ("app.Agent", 17, "evolve")]


def test_a_generation_without_a_count_leaves_it_unknown() -> None:
    seen: dict[str, Counts] = {"app.Env": both(2)}
    unseen: dict[str, Counts] = {"app.Env": both(None)}
    assert proposed(run_of([*[seen] * 9, unseen])) == []
    assert proposed(run_of([*[seen] * 9, unseen, *[seen] * GENERATIONS])) == [("app.Env", 2, None)]


def test_builtins_are_left_out_and_zero_counts_come_last() -> None:
    library = {"dict": both(9_000), "re.Pattern": both(58), "threading.Thread": both(2)}
    counts = library | {"app.Env": both(2), "plt.Figure": both(0), "app.Agent": both(17)}
    assert proposed(run_of([counts] * 10)) == [
        ("app.Env", 2, None), ("app.Agent", 17, None), ("plt.Figure", 0, None),
    ]  # fmt: skip


def test_all_processes_that_count_a_class_must_agree() -> None:
    two, three, other = {"app.Env": both(2)}, {"app.Env": both(3)}, {"app.Agent": both(17)}
    assert proposed(run_of([two] * 10, [two] * 10)) == [("app.Env", 2, None)]
    assert proposed(run_of([two] * 10, [three] * 10)) == []
    assert proposed(run_of([two] * 10, [other] * 10)) == [
        ("app.Env", 2, None),
        ("app.Agent", 17, None),
    ]
    # A process that ended long ago does not matter.
    assert proposed(run_of([two] * 20, [three] * 3)) == [("app.Env", 2, None)]
    # A process that has just started must agree as far as it has counted.
    assert proposed(run_of([two] * 10, [*[{}] * 8, three, three])) == []


def test_declared_counts_are_not_proposed() -> None:
    counts = [{"app.Env": both(2)}] * 10
    for name, after in (("app.Env", None), ("Env", None), ("Env", "evolve")):
        assert proposed(run_of(counts, declared={name: (2, after)})) == []
    # Even if it is broken: a declaration can only be changed in the program.
    assert proposed(run_of(counts, declared={"Env": (1, None)})) == []


def test_an_accepted_count_is_proposed_again_only_after_a_change() -> None:
    history = run_of([{"app.Env": both(4)}] * 10)
    assert stable_counts(accepted(history, Expectation("app.Env", 4, 4, None, accepted=True))) == ()
    assert stable_counts(accepted(history, Expectation("app.Env", 2, 6, None, accepted=True))) == ()
    (found,) = stable_counts(accepted(history, Expectation("app.Env", 2, 2, None, accepted=True)))
    assert (found.count, found.replaces) == (4, "2")
    after = Expectation("app.Env", 2, 2, "evolve", accepted=True)
    (found,) = stable_counts(accepted(history, after))
    assert (found.after, found.replaces) == (None, "2 after evolve")


def test_a_declared_count_takes_precedence_over_an_accepted_one() -> None:
    mine = Expectation("app.Env", 5, 5, None, accepted=True)
    for declared in (Expectation("Env", 2, 2), Expectation("app.Env", 2, 2, "evolve")):
        assert with_accepted((declared,), (mine,)) == (declared,)
    other = Expectation("app.Agent", 2, 2)
    assert with_accepted((other,), (mine,)) == (other, mine)


def test_a_broken_accepted_count_names_who_accepted_it() -> None:
    wanted = Expectation("app.Env", 2, 2, None, accepted=True)
    kept = accepted(run_of([{"app.Env": both(2)}] * 3), wanted)
    assert examine(kept).status != "suspected"
    (row,) = check_counts(kept)
    assert (row.state, row.origin, row.low, row.high) == ("holds", "accepted", 2, 2)
    broken = accepted(run_of([*[{"app.Env": both(2)}] * 3, {"app.Env": both(18)}]), wanted)
    verdict = examine(broken)
    assert verdict.status == "suspected"
    assert "Env count is 18, accepted as 2" in verdict.findings[0].evidence[0]
    declared = replace(broken, expectations=(replace(wanted, accepted=False),))
    assert examine(declared).status == verdict.status
    assert [f.fingerprint for f in examine(declared).findings] == [
        f.fingerprint for f in verdict.findings
    ]


def test_the_newest_declaration_for_a_type_and_phase_counts() -> None:
    def expects(low: int, **more: object) -> Event:
        return Event(0, 0.0, "expect", "app.A", data={"low": low, "high": 9, **more})

    watched, at_start = Event(0, 0.0, "watch", "app.A"), expects(4, after="y", baseline=True)
    declared = [expects(1), expects(2, after="x"), expects(3), watched, at_start]
    assert declared_expectations(declared) == (
        Expectation("app.A", 3, 9),
        Expectation("app.A", 2, 9, "x"),
        Expectation("app.A", 4, 9, "y", baseline=True),
    )


@pytest.mark.parametrize(
    ("after", "count", "expected"),
    [
        # 2 to 4 after every phase, and 3 to 5 after x.
        ("x", 3, True), ("x", 5, True), ("x", 6, False), (None, 4, True), (None, 2, False), ("y", 3, False),
    ],
)  # fmt: skip
def test_a_count_must_satisfy_all_accepted_ranges(
    after: str | None, count: int, expected: bool
) -> None:
    accepted = [Expectation("A", 2, 4, None, True), Expectation("A", 3, 5, "x", True)]
    if after == "x":
        accepted = accepted[1:]
    assert _is_expected(accepted, after, count) is expected
