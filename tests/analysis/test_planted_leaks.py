"""One planted leak at a time in a generated training of 300 MiB: phase, owner, rate and start must be right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from builder import (
    EPISODE,
    EVALUATE,
    EVOLVE,
    MIB,
    TRAIN,
    Leak,
    Training,
    best_agents,
    episode_history,
    figures,
    fitness_history,
    kept_environments,
    loss_graph,
    loss_history,
    old_population,
)
from pieces import ends_history

from leakline.analysis import examine
from leakline.analysis.results import SEVERITY, Verdict
from leakline.report.report_data import load
from leakline.text_format import format_bytes

# Spools of programs in tests/leaks/programs, recorded offline on Linux, without their environment.
RUNS: Final = Path(__file__).resolve().parents[1] / "data" / "runs"


def _examined(*leaks: Leak, seed: int = 1, **options: object) -> Verdict:
    return examine(Training(leaks=(fitness_history(), *leaks), seed=seed, **options).history())  # type: ignore[arg-type]


# The number of states that a set of 12,000 has seen, 2,500 random ones of them in each generation.
_SEEN: Final = (
    2255, 4063, 5558, 6753, 7717, 8508, 9196, 9742, 10173, 10499, 10766, 10980, 11170, 11322, 11444, 11541, 11626,
    11691, 11743, 11795, 11821, 11854, 11878, 11902, 11918, 11932, 11941, 11953, 11961, 11968,
)  # fmt: skip


def _remembered(counts: Sequence[float], limit_bytes: int | None = None) -> Verdict:
    """Return the verdict on a container of a program of 40 MiB that remembers states of 1 KiB."""
    series = {
        "process.anon_bytes": [40 * MIB + 1024 * n for n in counts],
        "container.app.Memory.seen.length": list(counts),
        "container.app.Memory.seen.bytes": [1024 * n for n in counts],
    }
    return examine(ends_history(series, limit_bytes=limit_bytes))


def test_a_set_that_has_seen_most_of_its_states_is_filling() -> None:
    verdicts = [_remembered(_SEEN[:n]) for n in range(5, 31)]
    assert {v.status for v in verdicts} <= {"ok", "watch", "filling"}
    at_ten = verdicts[5]
    assert at_ten.status == "filling"
    (finding,) = at_ten.findings
    text = "app.Memory.seen holds 10,499 of about 12,000, level at about generation 14"
    assert at_ten.summary == f"Filling, not leaking: {text}"
    assert (finding.status, finding.advice) == ("filling", ())
    assert f"The growth slows down: {text}." in finding.evidence


def test_a_set_is_suspected_when_it_passes_its_ceiling() -> None:
    beyond = [*_SEEN[:10], *(_SEEN[9] + 2_000 * n for n in range(1, 8))]
    statuses = [_remembered(beyond[:n]).status for n in range(8, 18)]
    assert statuses[0] == "filling"
    assert statuses[-1] in ("suspected", "confirmed")
    assert {"suspected", "confirmed"} & set(statuses[3:6])


def test_a_set_that_does_not_fit_into_memory_is_suspected() -> None:
    counts = _SEEN[:8]
    full = 40 * MIB + 1024 * 12_000
    assert _remembered(counts, round(1.2 * full)).status == "filling"
    assert _remembered(counts, 40 * MIB + 1024 * 10_500).status == "suspected"


def test_suspicion_ends_when_a_count_slows_down() -> None:
    even = [300.0 * n for n in range(9)]
    assert _remembered(even).status == "suspected"
    slower = [*even, *(2_400.0 + 2_400 * (1 - math.exp(-n / 8)) for n in range(1, 20))]
    assert _remembered(slower).status in ("filling", "ok", "recovered")


def _at_least(verdict: Verdict, status: str) -> bool:
    return SEVERITY.index(verdict.status) >= SEVERITY.index(status)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_a_run_without_a_leak_is_ok_or_filling(seed: int) -> None:
    verdict = _examined(seed=seed)
    assert verdict.status in ("ok", "filling"), verdict.summary
    assert not [f for f in verdict.findings if f.status != "ok"]


def _pool(end: int, times: Callable[[int], float]) -> Verdict:
    """Return the verdict on an undeclared container that gains 6 MiB and 1,000 entries, ``times`` per generation."""
    counts = {"container.app.Pool.items.length": 1_000, "container.app.Pool.items.bytes": 6 * MIB}
    leak = Leak(TRAIN, 6 * MIB, counts, times=times)
    return _examined(leak, generations=end, buffer_bytes=0, declare_buffer=False)


def test_a_growing_undeclared_container_is_suspected_then_confirmed() -> None:
    verdicts = [_pool(end, lambda _: 1.0) for end in (3, 6, 12, 25)]
    assert [verdict.status for verdict in verdicts] == [
        "learning", "suspected", "suspected", "confirmed",
    ]  # fmt: skip
    finding = verdicts[-1].findings[0]
    assert (finding.kind, finding.suspects[0].name) == ("container", "app.Pool.items")
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.25)


@pytest.mark.parametrize(
    "times", [lambda g: float(g < 8), lambda g: 0.6**g], ids=["full at once", "ever slower"]
)
def test_a_saturating_undeclared_container_is_never_confirmed(
    times: Callable[[int], float],
) -> None:
    verdicts = [_pool(end, times) for end in (*range(2, 21, 3), *range(21, 26))]
    # Until it is full it cannot be distinguished from one that keeps growing; afterwards it is not reported.
    assert "confirmed" not in {verdict.status for verdict in verdicts}
    assert {verdict.status for verdict in verdicts[-5:]} <= {"ok", "recovered"}, verdicts[
        -1
    ].summary


def test_a_temporary_copy_is_a_peak_not_a_leak() -> None:
    verdict = _examined(peak_in_evolve=150 * MIB)
    assert verdict.status in ("ok", "filling")


def test_growth_by_kilobytes_does_not_matter() -> None:
    verdict = _examined(loss_history())
    assert verdict.status in ("ok", "filling")
    finding = next(f for f in verdict.findings if f.suspects[0].name == "agents.DDPGAgent.losses")
    assert (finding.kind, finding.phase, finding.status) == ("container", TRAIN, "ok")
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(384 * 32, rel=0.25)
    assert any("does not matter" in line for line in finding.evidence)


CASES = [
    (loss_graph(), {"graph"}, TRAIN, {"torch.Tensor"}, 9 * MIB),
    (kept_environments(), {"objects"}, EVALUATE, {"trading.TradingEnvironment"}, 6 * MIB),
    (
        episode_history(), {"container", "arrays"}, EVALUATE,
        {"trading.TradingEnvironment.episode_rewards"}, 5 * MIB,
    ),
    (old_population(), {"objects"}, EVOLVE, {"agents.DDPGAgent"}, 8 * MIB),
    (best_agents(), {"objects"}, EVOLVE, {"agents.DDPGAgent"}, 6 * MIB * 10 / 16),
    (figures(20 * MIB), {"objects"}, EVOLVE, {"matplotlib.figure.Figure"}, 4 * MIB),
]  # fmt: skip


@pytest.mark.parametrize(("leak", "kinds", "phase", "names", "rate"), CASES)
def test_each_leak_is_one_correct_finding(
    leak: Leak, kinds: set[str], phase: str, names: set[str], rate: float
) -> None:
    verdict = _examined(leak)
    assert _at_least(verdict, "suspected"), verdict.summary
    active = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert len(active) == 1
    finding = active[0]
    assert finding.kind in kinds
    assert finding.phase == phase
    assert finding.suspects[0].name in names
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(rate, rel=0.25)
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate <= 2
    assert finding.advice
    assert phase in verdict.summary


@pytest.mark.parametrize("start", [0, 5])
def test_entries_are_given_per_episode_if_evenly_divided(start: int) -> None:
    """Report 001: 2,320 entries per generation are 16 episodes of 145 each."""
    verdict = _examined(episode_history(start=start), executions={EPISODE: 16})
    sentence = "grows by 2,320 per generation"
    (line,) = [line for f in verdict.findings for line in f.evidence if "episode_rewards" in line]
    assert sentence in line
    assert f": 145 per execution of {EPISODE}, which ran 16 times in each." in line
    once = _examined(episode_history(start=start))
    assert "per execution" not in "".join(line for f in once.findings for line in f.evidence)


@pytest.mark.parametrize(
    ("make", "start"),
    [(loss_graph, 9), (kept_environments, 3), (episode_history, 6), (old_population, 9)],
)
def test_a_late_leak_has_the_right_start(make: type, start: int) -> None:
    verdict = _examined(make(start=start))
    assert _at_least(verdict, "suspected"), verdict.summary
    finding = verdict.findings[0]
    assert finding.started_at_generation is not None
    assert abs(finding.started_at_generation.estimate - start) <= 2
    planted = make().bytes
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(planted, rel=0.25)


def test_the_summary_counts_further_findings() -> None:
    planted = {EVOLVE: old_population(), TRAIN: loss_graph(), EVALUATE: kept_environments()}
    verdict = _examined(*planted.values())
    active = [f for f in verdict.findings if f.status in ("suspected", "confirmed")]
    assert {f.phase for f in active} == set(planted)
    assert verdict.summary.endswith("; and 2 more findings")
    assert _examined(*list(planted.values())[:2]).summary.endswith("; and 1 more finding")
    for finding in active:
        grown = finding.growth_bytes_per_generation
        span = f"({format_bytes(grown.low)} to {format_bytes(grown.high)}, 90 %)."
        (line,) = [line for line in finding.evidence if line.startswith("Memory grows by")]
        assert line.endswith(span)
        assert grown.low < grown.estimate < grown.high
        assert grown.estimate == pytest.approx(planted[str(finding.phase)].bytes, rel=0.25)


def test_the_summary_says_where_what_how_much_and_since_when() -> None:
    verdict = _examined(kept_environments())
    assert verdict.summary.startswith(
        "evaluate_population keeps 16 TradingEnvironment per generation: "
    )
    assert verdict.summary.endswith(" MiB per generation since generation 0")


def test_figures_are_reported_with_their_period() -> None:
    verdict = _examined(figures(20 * MIB))
    assert "1 Figure every 5th generation" in verdict.summary


def test_growth_outside_python_is_native_and_takes_longer_to_confirm() -> None:
    leak = Leak(TRAIN, 6 * MIB)
    assert _examined(leak, generations=10).status in ("ok", "watch")
    verdict = _examined(leak, generations=30)
    assert _at_least(verdict, "suspected")
    finding = verdict.findings[0]
    assert (finding.kind, finding.phase) == ("native", TRAIN)
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.25)


def test_a_phase_that_never_ran_is_ruled_out() -> None:
    verdict = _examined(kept_environments(), never=(TRAIN,))
    assert (TRAIN, "never ran") in {(r.phase, r.reason) for r in verdict.ruled_out}


def test_flat_phases_are_ruled_out() -> None:
    verdict = _examined(old_population())
    ruled_out = {r.phase for r in verdict.ruled_out}
    assert ruled_out
    assert ruled_out <= {EVALUATE, TRAIN}
    assert all(r.reason == "it leaves memory unchanged" for r in verdict.ruled_out)


def test_growth_after_the_buffer_is_full_is_flagged() -> None:
    leak = episode_history(start=9)
    verdict = _examined(leak, generations=24, buffer_full_after=8)
    assert _at_least(verdict, "suspected")
    assert verdict.findings[0].started_at_generation is not None
    assert abs(verdict.findings[0].started_at_generation.estimate - 9) <= 2


@pytest.mark.parametrize(
    ("name", "phase", "first", "rate"),
    [
        # Headers keep holes that the allocator cannot return.
        ("allocator_survivors", "play", "__main__.Journal.headers", 280 * 12_000),
        # Objects made in one phase keep tensors that another allocates, and the holes around them.
        ("gradient_hooks", "watch", "__main__.GradientRecorder", 4 * MIB),
        ("hook_closures", "register", "torch.Tensor", 4 * MIB),
        # Records bring along strings, whose phase is not known.
        ("log_records", "log_predictions", "logging.LogRecord", 2.8 * MIB),
    ],
)  # fmt: skip
def test_objects_and_the_memory_that_they_keep_are_one_finding(
    name: str, phase: str, first: str, rate: float
) -> None:
    verdict = examine(load([RUNS / f"{name}.spool"]).history)
    (finding,) = [f for f in verdict.findings if f.status != "ok"]
    assert (finding.status, finding.phase, finding.suspects[0].name) == ("confirmed", phase, first)
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(rate, rel=0.1)
    assert phase not in {ruled.phase for ruled in verdict.ruled_out}


def test_two_leaks_of_one_type_stay_two_findings() -> None:
    verdict = examine(load([RUNS / "two_leaks.spool"]).history)
    found = {f.phase: f.suspects[0].name for f in verdict.findings if f.status == "confirmed"}
    assert found == {
        "collect": "__main__.Diagnostics.trajectories",
        "train": "__main__.Diagnostics.gradients",
    }
