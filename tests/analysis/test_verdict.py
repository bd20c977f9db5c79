"""The verdict depends only on the history, has the documented fields, and combines its processes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import (
    EPISODE,
    EVALUATE,
    EVOLVE,
    MIB,
    TRAIN,
    Leak,
    Training,
    kept_environments,
    loss_graph,
    old_population,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import assessed, cause_of, ends_history, finding, steps_history, sure, timeline_of

from leakline.analysis import (
    examine,
    history_from_batches,
    phase_accounts,
    verdict_json,
)
from leakline.analysis.examination import (
    _both,
    _explained_share,
    _filling_lines,
    _never_ran,
    _ruled_out,
    _status,
    _together,
)
from leakline.analysis.results import GenerationSpan, RuledOut, Status
from leakline.analysis.run_history import Value
from leakline.analysis.statistics.memory_evidence import Rise, Scale
from leakline.analysis.statistics.trend import NO_GROWTH, Slope
from leakline.analysis.timeline_analysis import Assessed, Moment, TimelineAnalysis

leaks = st.lists(
    st.sampled_from([kept_environments, loss_graph, old_population]), max_size=2, unique=True
)  # fmt: skip


@settings(max_examples=12)
@given(leaks, st.integers(1, 18), st.randoms(use_true_random=False))
def test_reordered_and_repeated_batches_give_the_same_verdict(
    planted: list[type], generations: int, rng: random.Random
) -> None:
    first = Training(leaks=tuple(make() for make in planted), generations=generations)
    second = Training(generations=generations, instance="p2", rank=1, seed=9)
    batches = [*first.batches(), *second.batches()]
    shuffled = batches + rng.sample(batches, k=len(batches) // 2)
    rng.shuffle(shuffled)
    header = first.header()
    expected = examine(history_from_batches(header, batches))
    assert examine(history_from_batches(header, shuffled)) == expected


@settings(max_examples=15)
@given(leaks, st.integers(0, 12), st.integers(0, 10_000))
def test_the_phase_accounts_add_up(planted: list[type], generations: int, seed: int) -> None:
    made = tuple(make() for make in planted)
    result = phase_accounts(Training(leaks=made, generations=generations, seed=seed).history())
    for i, total in enumerate(result.total):
        assert sum(line.bytes[i] for line in result.lines) == total
    names = [line.name for line in result.lines]
    assert len(set(names)) == len(names)


def test_the_json_has_the_fields_of_the_contract() -> None:
    leaking = Training(leaks=(kept_environments(),), limit_bytes=450 * MIB, total=40)
    verdict = verdict_json(examine(leaking.history()))
    assert json.loads(json.dumps(verdict)) == verdict
    assert set(verdict) == {
        "run", "unit", "generations", "status", "summary", "growth_bytes_per_generation", "explained_share",
        "findings", "ruled_out", "oom", "effects", "assertions", "settled_at_generation",
        "forecast_score", "checklist", "processes", "duration", "attempts", "generations_passed",
    }  # fmt: skip
    finding, oom = verdict["findings"][0], verdict["oom"]
    assert {
        "fingerprint", "status", "kind", "phase", "phase_share", "suspects", "growth_bytes_per_generation",
        "started_at_generation", "confidence", "evidence", "advice",
    } <= set(finding)  # fmt: skip
    assert set(finding["suspects"][0]) == {
        "name", "role", "count_per_generation", "bytes_per_generation",
    }  # fmt: skip
    assert set(finding["growth_bytes_per_generation"]) == {"estimate", "low", "high"}
    assert set(oom) == {
        "risk", "limit_bytes", "limit_source", "generation", "at", "planned", "sentence",
    }  # fmt: skip
    assert set(oom["at"]) == {"estimate", "low", "high"}


def test_a_fingerprint_belongs_to_the_leak_and_not_to_the_run() -> None:
    def fingerprint(leak: Leak, **options: object) -> str:
        return examine(Training(leaks=(leak,), **options).history()).findings[0].fingerprint  # type: ignore[arg-type]

    one = fingerprint(kept_environments(), run="a", seed=1)
    assert one == fingerprint(kept_environments(), run="b", seed=7, generations=20)
    assert one == fingerprint(kept_environments(9 * MIB, start=3), run="c")
    assert one != fingerprint(old_population())
    assert one != fingerprint(loss_graph())


def test_a_fingerprint_does_not_depend_on_a_known_holder() -> None:
    """Otherwise an ignored leak would reappear in each run until that run has found its holder."""
    leak = kept_environments()
    never = examine(Training(leaks=(replace(leak, holders=()),)).history()).findings[0]
    assert all(s.role != "holder" for s in never.suspects)
    early, late = (examine(Training(leaks=(leak,), generations=n).history()) for n in (3, 16))
    assert any(s.role == "holder" for s in late.findings[0].suspects)
    assert never.fingerprint == late.findings[0].fingerprint
    assert {f.fingerprint for f in early.findings} <= {never.fingerprint}
    elsewhere = tuple(replace(h, path="trainer.Cache.old[*]") for h in leak.holders)
    other = examine(Training(leaks=(replace(leak, holders=elsewhere),)).history()).findings[0]
    assert other.fingerprint == never.fingerprint


def test_growth_in_another_container_is_another_leak() -> None:
    def fingerprint(container: str) -> str:
        counts = {f"container.{container}.length": 384, f"container.{container}.bytes": 6 * MIB}
        finding = examine(Training(leaks=(Leak(TRAIN, 6 * MIB, counts),)).history()).findings[0]
        assert finding.suspects[0].name == container
        return finding.fingerprint

    assert fingerprint("train.losses") != fingerprint("train.rewards")


@pytest.mark.parametrize("phase", [EPISODE, EVALUATE, TRAIN, EVOLVE])
def test_the_phase_that_keeps_50_mib_ranks_first(phase: str) -> None:
    history = Training(leaks=(Leak(phase, 50 * MIB),), buffer_bytes=0).history()
    top = phase.partition("/")[0]
    lines = {line.name: sum(line.bytes) for line in phase_accounts(history).lines}
    assert max(lines, key=lambda name: lines[name]) == phase
    assert examine(history).findings[0].phase == top


def test_equally_leaking_ranks_are_one_finding_with_growth_added() -> None:
    one = Training(leaks=(kept_environments(),))
    ranks = [replace(one, instance=f"p{r}", rank=r, seed=r + 1) for r in range(3)]
    history = history_from_batches(one.header(), [b for t in ranks for b in t.batches()])
    active = [f for f in examine(history).findings if f.status in ("suspected", "confirmed")]
    assert len(active) == 1
    assert abs(active[0].growth_bytes_per_generation.estimate - 18 * MIB) < 2 * MIB
    assert active[0].process == "rank 0 main, rank 1 main, rank 2 main"


def test_the_forecast_names_limit_and_generation_only_with_growth() -> None:
    leaking = Training(leaks=(loss_graph(),), limit_bytes=600 * MIB, total=60)
    oom = examine(leaking.history()).oom
    assert (oom.risk != "none", oom.limit_source) == (True, "user")
    assert oom.generation is not None and oom.at is not None
    # Initially 210 MiB, then 41 of warm-up, 24 of buffer, and 9 per generation.
    assert abs(oom.generation.estimate - (600 - 210 - 41 - 24) / 9) < 3
    assert oom.generation.low <= oom.generation.estimate <= oom.generation.high
    assert oom.at.low <= oom.at.estimate <= oom.at.high
    quiet = examine(replace(leaking, leaks=()).history()).oom
    assert (quiet.risk, quiet.generation) == ("none", None)
    assert examine(replace(leaking, total=20).history()).oom.risk == "none"


def test_a_filling_buffer_can_run_out_of_memory_without_any_leak() -> None:
    history = Training(
        generations=10, buffer_full_after=20, buffer_bytes=600 * MIB, limit_bytes=700 * MIB
    ).history()
    verdict = examine(history)
    assert verdict.status == "filling"
    assert verdict.oom.risk != "none"


WAITING = ("yet", "so far", "will settle", "a few more", "come by themselves", "to come")


@pytest.mark.parametrize("generations", [1, 4, 9, 14])
@pytest.mark.parametrize("planted", [(), (Leak(TRAIN, 20 * MIB),)], ids=["healthy", "leaking"])
def test_the_verdict_on_an_ended_run_waits_for_nothing(
    generations: int, planted: tuple[Leak, ...]
) -> None:
    verdict = examine(replace(Training(generations, leaks=planted).history(), ended=True))
    said = [verdict.summary, *(item.sentence for item in verdict.checklist)]
    for each in verdict.findings:
        said += [*each.evidence, *each.advice]
    assert not [text for text in said for word in WAITING if word in text]


def test_the_verdict_on_a_too_short_run_says_what_it_needs() -> None:
    history = Training(3, declare_buffer=False).history()
    assert examine(history).summary == "Learning: 3 generations seen, too few to judge"
    ended = examine(replace(history, ended=True))
    assert ended.summary == (
        "Not judged: the run ended after 3 generations, but a verdict needs 5 generations"
    )
    memory = next(item for item in ended.checklist if item.check == "memory")
    assert (memory.outcome, memory.sentence) == (
        "not_measured", "The run ended after 3 generations; a verdict needs 5.",
    )  # fmt: skip


def _study(**series: Sequence[Value]) -> TimelineAnalysis:
    named = {name.replace("__", "."): values for name, values in series.items()}
    history = ends_history(named, capacities={"replay": 1000})
    return TimelineAnalysis(history, timeline_of(history))


RISING: list[Value] = [1000 + 100 * g for g in range(12)]
STUDY = _study(process__anon_bytes=RISING)


def _moment(
    end: int = 12, *causes: Assessed, visible: bool = False, growth: Slope = NO_GROWTH, filling: tuple[str, ...] = ()
) -> Moment:  # fmt: skip
    return Moment(end, causes, Rise(visible=visible), growth, Scale(1000.0), filling)


@pytest.mark.parametrize(
    ("statuses", "filling", "visible", "generations", "status"),
    [
        (["ok", "confirmed", "watch"], True, True, 3, "confirmed"),
        (["recovered", "suspected"], True, True, 3, "suspected"),
        (["ok", "watch"], True, True, 3, "watch"), (["ok", "recovered"], True, True, 3, "filling"),
        (["recovered"], False, True, 4, "learning"), (["recovered"], False, True, 5, "recovered"),
        (["ok"], False, True, 5, "watch"), ([], False, False, 5, "ok"), ([], False, False, 4, "learning"),
    ],
)  # fmt: skip
def test_the_status_of_a_run_is_its_worst_known_status(
    statuses: list[Status], filling: bool, visible: bool, generations: int, status: Status
) -> None:
    moment = _moment(visible=visible, filling=("replay",) if filling else ())
    found = [finding(each) for each in statuses]
    assert _status(found, [(STUDY, moment, [])], generations) == status


def test_a_filling_store_shows_its_fill_and_when_it_is_full() -> None:
    length: list[Value] = [50 * g for g in range(12)]
    store = {"tracked__replay__length": length, "tracked__replay__bytes": length}
    study = _study(process__anon_bytes=RISING, **store)
    (line,) = _filling_lines(study, _moment(filling=("replay",)))
    # 550 of 1,000 items at generation 11 and 50 more per generation: nine generations remain.
    full = "replay holds 550 of 1,000 (55 %)"
    assert line == f"{full}, full at about generation 20 with 1,000 B"
    assert _filling_lines(study, _moment()) == []
    still = _study(process__anon_bytes=RISING, tracked__replay__length=[550] * 12)
    assert _filling_lines(still, _moment(filling=("replay",))) == [full]


@pytest.mark.parametrize(
    ("end", "causes", "share"),
    [
        (12, [cause_of(measured=25.0, rate=100.0)], 0.25),
        (12, [cause_of(measured=25.0), cause_of(measured=50.0)], 0.75), (12, [cause_of(measured=900.0)], 1.0),
        (12, [cause_of()], None), (12, [], None), (4, [cause_of(measured=25.0)], None),
        (5, [cause_of(measured=25.0)], 0.25),
    ],
    ids=["a quarter", "two causes", "more than all", "unmeasured", "none", "too soon", "just not"],
)  # fmt: skip
def test_the_explained_share_is_the_measured_part_of_the_growth(
    end: int, causes: Sequence[object], share: float | None
) -> None:
    found = [assessed(c) for c in causes]  # type: ignore[arg-type]
    assert _explained_share([STUDY], [_moment(end, *found)]) == share


def test_device_memory_explains_nothing_of_the_process() -> None:
    on_device = assessed(cause_of(measured=25.0), channel="cuda.0.allocated_bytes")
    assert _explained_share([STUDY], [_moment(12, on_device)]) is None
    flat = _study(process__anon_bytes=[1000] * 12)
    assert _explained_share([flat], [_moment(12, assessed(cause_of(measured=25.0)))]) is None


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        ((0, 5), (6, 9), None), ((5, 9), (0, 5), (5, 5)), ((0, 9), (3, 5), (3, 5)),
    ],
)  # fmt: skip
def test_generations_in_both_attempts_were_repeated(
    a: tuple[int, int], b: tuple[int, int], both: tuple[int, int] | None
) -> None:
    found = _both(GenerationSpan(*a), GenerationSpan(*b))
    assert found == (None if both is None else GenerationSpan(*both))
    assert _both(None, GenerationSpan(*b)) is None
    together = _together(GenerationSpan(*a), GenerationSpan(*b))
    assert together == GenerationSpan(min(a[0], b[0]), max(a[1], b[1]))


def test_an_announced_phase_that_never_ran_is_ruled_out() -> None:
    rows: list[tuple[str, int | None, str | None]] = [
        ("phase_end", 0, "evaluate/episode"), ("generation_end", 0, None),
    ]  # fmt: skip
    phases = ("evaluate", "episode", "evaluate/episode", "train")
    history = steps_history(rows, {"process.anon_bytes": [1, 1]}, phases=phases)
    study = TimelineAnalysis(history, timeline_of(history))
    assert _never_ran(history, [study]) == (RuledOut("train", "never ran"),)


@pytest.mark.parametrize(
    ("rate", "end", "status", "named"),
    [
        (2, 12, "suspected", ["evolve"]), (3, 12, "suspected", []), (2, 12, "ok", []),
        (2, 12, "watch", ["evolve"]), (2, 2, "suspected", []), (2, 3, "suspected", ["evolve"]),
    ],
    ids=["flat", "rises", "no alarm", "may leak", "too soon", "three generations"],
)  # fmt: skip
def test_a_phase_that_keeps_too_little_is_ruled_out_if_another_leaks(
    rate: int, end: int, status: Status, named: list[str]
) -> None:
    """50 of 1,000 bytes matter, and twelve generations are extrapolated by twice as many: 2.08 in each."""
    study = _study(
        process__anon_bytes=RISING, phase__train__bytes=[100] * 12, phase__evolve__bytes=[rate] * 12,
        phase__between__bytes=[0] * 12,
    )  # fmt: skip
    moment = _moment(end, growth=sure(100.0))
    found = _ruled_out(study.history, [(study, moment, [])], [finding(status, phase="train")])
    assert [each.phase for each in found] == named
