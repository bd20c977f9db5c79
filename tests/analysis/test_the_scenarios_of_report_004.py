"""The four scenarios of the memory guide, replayed as series: two or three readings must be enough for 1 to 3."""

from __future__ import annotations

import pytest

from leakline.analysis import RunHistory, examine, history_from_batches, store_fill
from leakline.analysis.results import SEVERITY
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

GB = 10**9
EVALUATE, TRAIN, EVOLVE = "evaluate_population", "train_population", "evolve_population"

Row = tuple[int, str, float, dict[str, float]]


def replay(
    rows: list[Row], *, expect: bool = True, capacity: int | None = None, split: bool = False
) -> RunHistory:
    """The report's lines as snapshots: (generation, phase, RSS in GB, counts)."""
    events = []
    if expect:
        events = [
            Event(
                0, 0.0, "expect", "TradingEnvironment", data={"low": 2, "high": 2, "after": None}
            ),
            Event(0, 0.0, "expect", "DDPGAgent", data={"low": 16, "high": 17, "after": None}),
        ]
    if capacity is not None:
        events.append(Event(0, 0.0, "track", "replay", data={"capacity": capacity}))
    snapshots = []
    for i, (generation, phase, rss, counts) in enumerate(rows):
        samples: dict[str, float] = {"process.rss_bytes": round(rss * GB)}
        if split:
            samples["process.anon_bytes"] = round((rss - 0.3) * GB)
        for name, value in counts.items():
            samples[name if name.startswith(("tensors.", "tracked.")) else f"type.{name}.count"] = (
                value
            )
        snapshots.append(
            Snapshot(
                i, 100.0 + 60 * i, 60.0 * i, generation, phase, f"Gen {generation}: After {phase}",
                "phase_end", samples, tuple(events) if i == 0 else (),
            )
        )  # fmt: skip
    header = RunHeader("004", "p", "004", "generation", 25, 0.0, (EVALUATE, TRAIN, EVOLVE))
    return history_from_batches(header, [Batch(ProcessIdentity("a"), tuple(snapshots))])


SCENARIO_4 = (8.52, 10.23, 11.89, 13.45, 14.23, 14.89, 15.12)


@pytest.mark.parametrize("environments", [(2, 18, 34), (18, 34, 50), (2, 18, 18)])
def test_scenario_1_is_the_environments_of_evaluate_population(
    environments: tuple[int, ...],
) -> None:
    rows: list[Row] = [
        (g, EVALUATE, rss, {"TradingEnvironment": n, "DDPGAgent": 16})
        for g, rss, n in zip((1, 2, 3), (8.52, 15.34, 22.67), environments, strict=True)
    ]
    verdict = examine(replay(rows))
    assert SEVERITY.index(verdict.status) >= SEVERITY.index("suspected")
    finding = verdict.findings[0]
    assert (finding.phase, finding.kind) == (EVALUATE, "objects")
    assert finding.suspects[0].name == "TradingEnvironment"
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(7.075 * GB, rel=0.05)
    assert finding.started_at_generation is not None
    assert finding.started_at_generation.estimate in (1, 2)
    assert "TradingEnvironment" in verdict.summary
    assert "evaluate_population" in verdict.summary
    assert finding.priority == "critical"
    assert finding.advice == (
        "Reuse one TradingEnvironment, or drop the last reference to it at the end of the phase.",
    )


def test_scenario_1_fires_on_the_first_bad_snapshot() -> None:
    verdict = examine(
        replay([(1, EVALUATE, 8.52, {"TradingEnvironment": 2}), (2, EVALUATE, 15.34, {"TradingEnvironment": 18})])
    )  # fmt: skip
    assert verdict.status == "suspected"
    assert verdict.findings[0].suspects[0].count_per_generation == 16


@pytest.mark.parametrize("evaluated_in", [1, 2])
@pytest.mark.parametrize("tensor", ["Tensor", "torch.Tensor", "tensors.count"])
def test_scenario_2_is_the_tensors_of_train_population(tensor: str, evaluated_in: int) -> None:
    verdict = examine(
        replay([
            (1, TRAIN, 9.12, {tensor: 567}),
            (evaluated_in, EVALUATE, 10.89, {}),
            (2, TRAIN, 18.45, {tensor: 5678}),
        ])
    )  # fmt: skip
    assert SEVERITY.index(verdict.status) >= SEVERITY.index("suspected")
    finding = verdict.findings[0]
    assert (finding.phase, finding.kind) == (TRAIN, "tensors")
    assert finding.suspects[0].name.endswith("Tensor")
    # The report prints 8.56; the rows give 7.56 against the line above and 9.33 against the same phase.
    assert 7.5 * GB <= finding.growth_bytes_per_generation.estimate <= 9.4 * GB


def test_scenario_3_is_the_agents_of_evolve_population() -> None:
    verdict = examine(
        replay([(1, EVOLVE, 9.45, {"DDPGAgent": 17}), (2, EVOLVE, 20.12, {"DDPGAgent": 33})])
    )
    assert SEVERITY.index(verdict.status) >= SEVERITY.index("suspected")
    finding = verdict.findings[0]
    assert (finding.phase, finding.kind) == (EVOLVE, "objects")
    assert finding.suspects[0].name == "DDPGAgent"
    assert finding.suspects[0].count_per_generation == 16
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(10.67 * GB, rel=0.01)


def _fourth(upto: int, declared: bool) -> RunHistory:
    counts = [16, 16, 17, 17, 17, 17, 17]
    first = SCENARIO_4[0]
    rows: list[Row] = []
    for i, rss in enumerate(SCENARIO_4[:upto]):
        row: dict[str, float] = {"TradingEnvironment": 2, "DDPGAgent": counts[i]}
        if declared:
            row["tracked.replay.length"] = 10_000 + round((rss - first) * 6_000)
            row["tracked.replay.bytes"] = round((rss - first + 1) * GB)
        rows.append((i + 1, EVALUATE, rss, row))
    return replay(
        rows, capacity=10_000 + round((SCENARIO_4[-1] - first) * 6_000) if declared else None
    )


@pytest.mark.parametrize("upto", range(1, 8))
@pytest.mark.parametrize("declared", [False, True])
def test_scenario_4_is_never_more_than_watched(upto: int, declared: bool) -> None:
    verdict = examine(_fourth(upto, declared))
    assert SEVERITY.index(verdict.status) <= SEVERITY.index("watch")
    if upto <= 3 and not declared:
        assert verdict.status in ("learning", "watch")


def test_scenario_4_with_its_buffer_declared_is_filling_and_then_ok() -> None:
    for upto in range(2, 7):
        verdict = examine(_fourth(upto, declared=True))
        assert verdict.status == "filling", verdict.summary
        assert "replay" in verdict.summary
    full = _fourth(7, declared=True)
    assert examine(full).status == "ok"
    assert store_fill(full)[0].state == "full"


def test_scenario_4_going_on_without_a_bound_is_not_called_flat() -> None:
    verdict = examine(_fourth(7, declared=False))
    assert verdict.status == "watch"
    assert verdict.growth_bytes_per_generation is not None


def test_the_answer_is_the_same_when_memory_is_split_into_anonymous_and_file() -> None:
    rows: list[Row] = [
        (1, EVOLVE, 9.45, {"DDPGAgent": 17}), (2, EVOLVE, 20.12, {"DDPGAgent": 33}),
    ]  # fmt: skip
    verdict = examine(replay(rows, split=True))
    assert verdict.findings[0].growth_bytes_per_generation.estimate == pytest.approx(
        10.67 * GB, rel=0.01
    )
