"""Each of several fixes has an effect of its own, before and after: helped, no effect, worse, or not decidable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builder import (
    EVALUATE,
    EVOLVE,
    TRAIN,
    Leak,
    Training,
    kept_environments,
    loss_graph,
    old_population,
)

from leakline.analysis import compare, examine
from leakline.analysis.history import RunHistory
from leakline.analysis.results import FixEffect
from leakline.snapshot import Event

ENVIRONMENT = "trading.TradingEnvironment"
# Each of the leaks, and a fix of something that did not leak.
FIXES: dict[str, dict[str, Any]] = {
    "close environments": {"phase": EVALUATE, "promises": {f"count:{ENVIRONMENT}": 2}},
    "detach losses": {"phase": TRAIN},
    "drop the old population": {"phase": EVOLVE},
    "bound the history": {"phase": "between"},
}


def with_fixes(history: RunHistory, at: float = 0.0, names: Sequence[str] = ()) -> RunHistory:
    events = [Event(0, at, "fix", name, data=FIXES[name]) for name in names or FIXES]
    return replace(history, events=(*history.events, *events))


def by_fix(effects: Sequence[FixEffect]) -> dict[tuple[str, str], FixEffect]:
    return {(each.fix, each.measure): each for each in effects}


def moment_of(history: RunHistory, generation: int) -> float:
    """When a generation had ended, and a little."""
    (process,) = history.processes
    ends = zip(process.time, process.generation, process.kind, strict=True)
    return next(t for t, g, kind in ends if g == generation and kind == "generation_end") + 0.001


def until(leak: Leak, generation: int) -> Leak:
    """The leak, stopped by a fix."""
    return replace(leak, stop=generation + 1)


@pytest.mark.parametrize("seed", range(4))
def test_four_fixes_declared_at_the_start_are_told_apart_by_the_comparison(seed: int) -> None:
    before = Training(leaks=(kept_environments(), loss_graph(), old_population()), seed=seed)
    after = Training(leaks=(old_population(),), seed=seed + 50)
    found = by_fix(compare(before.history(), with_fixes(after.history())).effects)
    outcomes = {key: each.outcome for key, each in found.items()}
    assert outcomes["close environments", "count"] == "helped"
    assert outcomes["close environments", "phase_growth"] == "helped"
    assert outcomes["detach losses", "phase_growth"] == "helped"
    # Its leak is still there.
    assert outcomes["drop the old population", "phase_growth"] == "no_effect"
    assert outcomes["bound the history", "phase_growth"] in ("no_effect", "undecided")
    count = found["close environments", "count"]
    assert count.before is not None and count.after is not None
    assert (count.before.estimate, count.after.estimate) == (16, 0)
    assert "difference -16" in count.sentence


def test_at_the_start_of_a_run_it_cannot_tell_and_says_what_can() -> None:
    verdict = examine(with_fixes(Training(leaks=(old_population(),)).history()))
    assert {each.outcome for each in verdict.effects} == {"undecided"}
    assert all("a comparison with a run without it" in each.sentence for each in verdict.effects)


@pytest.mark.parametrize("seed", range(4))
def test_in_the_middle_of_a_run_each_phase_has_its_before_and_after(seed: int) -> None:
    leaks = (until(loss_graph(), 29), old_population())
    history = Training(leaks=leaks, generations=60, seed=seed).history()
    names = ["detach losses", "drop the old population"]
    verdict = examine(with_fixes(history, moment_of(history, 29), names))
    found = by_fix(verdict.effects)
    helped = found["detach losses", "phase_growth"]
    assert helped.outcome == "helped", helped.sentence
    assert helped.difference is not None and helped.difference.high < 0
    same = found["drop the old population", "phase_growth"]
    assert same.outcome == "no_effect", same.sentence
    assert "no effect" in same.sentence


def test_what_grows_more_after_a_fix_is_worse() -> None:
    late = loss_graph(start=10)
    history = Training(leaks=(late,), generations=20).history()
    verdict = examine(with_fixes(history, moment_of(history, 9), ["detach losses"]))
    assert [each.outcome for each in verdict.effects] == ["worse"], verdict.effects


def test_two_fixes_of_one_phase_at_one_moment_are_said_to_be_one() -> None:
    before, after = Training(leaks=(loss_graph(),)), Training(seed=2)
    twin = Event(0, 0.0, "fix", "clear gradients", data={"phase": TRAIN})
    history = with_fixes(after.history(), names=["detach losses"])
    both = replace(history, events=(*history.events, twin))
    effects = compare(before.history(), both).effects
    assert [each.outcome for each in effects] == ["helped", "helped"]
    assert "cannot be told from that of" in effects[0].sentence


def test_a_fix_that_the_run_before_had_too_is_not_judged_by_it() -> None:
    before, after = Training(leaks=(loss_graph(),)), Training(seed=2)
    names = ["detach losses"]
    both = compare(with_fixes(before.history(), names=names), with_fixes(after.history(), names=names))  # fmt: skip
    (effect,) = both.effects
    assert effect.outcome == "undecided"
    assert "The run before has this fix too" in effect.sentence


def test_a_phase_that_never_ran_is_not_decidable_and_never_no_effect() -> None:
    before, after = Training(leaks=(loss_graph(),)), Training(seed=2)
    event = Event(0, 0.0, "fix", "x", data={"phase": "upload", "rejected": "pickling: too slow"})
    history = replace(after.history(), events=(*after.history().events, event))
    (effect,) = compare(before.history(), history).effects
    assert (effect.outcome, effect.before, effect.after) == ("undecided", None, None)
    assert effect.rejected == "pickling: too slow"
