"""What one examination leaves for the next saves work, and changes nothing of any answer."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builder import (
    MIB,
    Training,
    best_agents,
    curve,
    figures,
    history_of,
    kept_environments,
    loss_graph,
    old_population,
)

from leakline.analysis import RunHistory, examine, history_from_batches
from leakline.analysis.assess import moment_of
from leakline.analysis.history import ProcessHistory
from leakline.analysis.kept import Kept
from leakline.analysis.ladder import moments_of
from leakline.analysis.outlook import outlook_of
from leakline.analysis.score import grid
from leakline.analysis.series import lanes_of
from leakline.analysis.study import LaneStudy
from leakline.snapshot import Event

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.detection.generators import FAMILIES, PUBLIC, Draw, drawn
from benchmarks.detection.histories import Recording

ALL = list(FAMILIES)


def begun(process: ProcessHistory, rows: int) -> ProcessHistory:
    columns = {
        name: getattr(process, name)[:rows]
        for name in ("sequence", "time", "monotonic", "generation", "phase", "label", "kind")
    }
    series = {name: column[:rows] for name, column in process.series.items()}
    return replace(
        process,
        **columns,
        series={n: c for n, c in series.items() if any(v is not None for v in c)},
    )


def growing(history: RunHistory, rng: random.Random, most: int) -> Iterator[RunHistory]:
    """The run at every so many snapshots, in the middle of generations too, ending with all of it."""
    upto, rows = 0, sum(map(len, history.processes))
    while upto < rows:
        upto, left, shown = min(rows, upto + rng.randint(1, most)), 0, []
        left = upto
        for process in history.processes:
            if left > 0:
                shown.append(begun(process, min(left, len(process))))
                left -= len(process)
        yield replace(history, processes=tuple(shown))


def moments(history: RunHistory, kept: Kept) -> list[object]:
    """What is said of each process at all the moments that a verdict rests on."""
    studies = [LaneStudy(history, lane) for lane in lanes_of(history)]
    for study in studies:
        kept.give(study)
    found: list[object] = []
    for study in studies:
        found += [moment_of(study, upto) for upto in moments_of(len(study.lane))]
        found += [
            outlook_of(study, upto) for upto, _ in grid(len(study.lane)) if study.lane.private
        ]
    kept.take(studies)
    return found


def assert_the_same(
    histories: Iterator[RunHistory], forget: Callable[[], bool] = lambda: False
) -> None:
    kept, beside = Kept(), Kept()
    for history in histories:
        if forget():
            kept, beside = Kept(), Kept()
        assert examine(history, kept) == examine(history)
        assert moments(history, beside) == moments(history, Kept())


@pytest.mark.parametrize("family", ALL)
def test_of_every_family_each_look_says_what_a_first_look_would(family: str) -> None:
    case = drawn(Draw(PUBLIC, family, 3))
    recording = Recording(case, witness=True)
    rng = random.Random(family)
    upto = min(len(case), 70)
    assert_the_same(growing(recording.upto(upto), rng, most=25))


PLANTED = (kept_environments, loss_graph, old_population, best_agents, figures)


@pytest.mark.parametrize("seed", range(6))
def test_batches_in_any_order_twice_and_over_restarts_give_the_same_history_of_verdicts(
    seed: int,
) -> None:
    """Holders, events, censuses and a second rank among them; each look at what has arrived by then."""
    rng = random.Random(seed)
    leaks = tuple(plant() for plant in rng.sample(PLANTED, k=rng.randint(0, 2)))
    first = Training(
        leaks=leaks, generations=26, expectations=(("agents.DDPGAgent", 17, 17, None),), seed=seed
    )
    second = Training(generations=14, instance="p2", rank=1, seed=seed + 50)
    batches = [*first.batches(), *second.batches()]
    late = rng.sample(range(len(batches)), k=6)
    order = [i for i in range(len(batches)) if i not in late]
    for i in late:
        order.insert(
            min(len(order), order.index(next(j for j in order if j > i), 0) + rng.randint(1, 4))
            if any(j > i for j in order)
            else len(order),
            i,
        )
    order += rng.sample(order, k=5)

    def arriving() -> Iterator[RunHistory]:
        arrived = []
        for i in order:
            arrived.append(batches[i])
            yield history_from_batches(first.header(), arrived)

    assert_the_same(arriving(), forget=lambda: rng.random() < 0.1)


def test_a_resume_that_repeats_generations_makes_all_of_them_anew() -> None:
    first = Training(leaks=(kept_environments(),), generations=18)
    again = Training(
        leaks=(kept_environments(),),
        generations=16,
        instance="p2",
        attempt=2,
        first_generation=12,
        seed=4,
    )
    batches = [*first.batches(), *again.batches()]
    assert_the_same(
        history_from_batches(first.header(), batches[: n + 1]) for n in range(len(batches))
    )


def test_children_read_now_and_then_and_programs_without_generations() -> None:
    rng = random.Random(8)
    n = 60
    children = [None if i % 7 else 200 * MIB + 4 * MIB * i for i in range(n)]
    gone = [value if i < 20 else None for i, value in enumerate(children)]
    for column in (children, gone):
        history = history_of(curve(lambda i: 0.0, n), children__pss_bytes=column)
        assert_the_same(growing(history, rng, most=3))
    minutes = history_of(curve(lambda i: 3.0 * (i > 20) * i, n))
    process = minutes.processes[0]
    told = replace(
        process, generation=[None] * n, kind=["sample"] * n, monotonic=[20.0 * i for i in range(n)]
    )
    assert_the_same(growing(replace(minutes, processes=(told,)), rng, most=4))


def test_what_is_declared_later_counts_for_all_moments() -> None:
    training = Training(leaks=(kept_environments(),), generations=24)
    history = training.history()
    budget = Event(0, 0.0, "budget", "generation", data={"leak_bytes": 2 * MIB})

    def told() -> Iterator[RunHistory]:
        for upto in range(20, 121, 4):
            events = (*history.events, budget) if upto > 60 else history.events
            shown = replace(history, events=events, processes=(begun(history.processes[0], upto),))
            yield replace(
                shown,
                total=200 if upto > 80 else None,
                limit_bytes=900 * MIB if upto > 100 else None,
            )

    assert_the_same(told())


def test_a_look_at_one_more_generation_costs_a_small_part_of_a_first_one() -> None:
    history = Training(leaks=(kept_environments(), loss_graph()), generations=120).history()
    process, kept = history.processes[0], Kept()
    per_generation = 5
    first, later = [], []
    for generation in range(100, 120):
        shown = replace(history, processes=(begun(process, 1 + per_generation * generation),))
        for costs, memory in ((first, None), (later, kept)):
            began = time.process_time()
            examine(shown, memory)
            costs.append(time.process_time() - began)
    sys.stdout.write(
        f"\nexamine: {min(first) * 1e3:.0f} ms anew, {min(later[1:]) * 1e3:.1f} ms with what is kept\n"
    )
    assert min(later[1:]) < min(first) / 8
