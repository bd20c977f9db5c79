"""Memory by phase: where live objects were created counts before where memory was taken; threads have a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from builder import MIB
from pieces import steps_history, with_series

from leakline.analysis import RunHistory, examine, history_from_batches, phase_accounts
from leakline.analysis.memory.memory_by_phase import live_bytes_by_phase
from leakline.analysis.results import Verdict
from leakline.analysis.timeline import timelines_of
from leakline.snapshot import Batch, Holder, ProcessIdentity, RunHeader, Snapshot

GENERATIONS = 24
SAME = "it leaves memory unchanged"


def history(
    phases: Sequence[str], charged: Mapping[str, float], made: Mapping[str, Mapping[str, float]],
    holders: Sequence[tuple[int, str, str, int]] = (), in_use: Mapping[str, float] | None = None,
) -> RunHistory:  # fmt: skip
    """Return a run with this memory charged to phases and these counts rising in phases, per generation."""
    total = 400 * MIB
    live = 200 * MIB
    counts = dict.fromkeys(made, 100.0)
    columns: dict[str, list[int | float | None]] = {
        "process.anon_bytes": [], "allocator.in_use_bytes": [], **{name: [] for name in made},
    }  # fmt: skip
    rows: list[tuple[str, int | None, str | None]] = []
    for generation in range(GENERATIONS):
        for phase in (*phases, None):
            # The number of pages a process takes is never as regular as its objects.
            total += charged.get(phase or "", 0.0) * (0.5 if generation % 2 else 1.5)
            live += (in_use or {}).get(phase or "", 0.0)
            for name, rises in made.items():
                counts[name] += rises.get(phase or "", 0)
                columns[name].append(round(counts[name]))
            columns["process.anon_bytes"].append(round(total))
            columns["allocator.in_use_bytes"].append(round(live) if in_use is not None else None)
            rows.append(("phase_end" if phase else "generation_end", generation, phase))
    found = tuple(Holder(sequence, name, path, count) for sequence, name, path, count in holders)
    return steps_history(rows, columns, phases=tuple(phases), holders=found)


def ruled_out(verdict: Verdict) -> dict[str, str]:
    return {each.phase: each.reason for each in verdict.ruled_out}


TENSORS = "type.torch.Tensor.count"
GRAPHS = "tensors.graph_count"


def two_phases(train: int = 20, evaluate: int = 16, **more: float) -> Verdict:
    """Return a run with losses kept in one phase and graphs in another, which reuses freed memory of the first."""
    both = {"train": float(train), "eval": float(evaluate)}
    in_use = {"train": 0.15 * MIB, "eval": 1.65 * MIB} | more
    return examine(
        history(
            ("train", "eval"),
            {"train": 1.8 * MIB},
            {TENSORS: both, GRAPHS: both, "tensors.graph_bytes": {"train": MIB}},
            in_use=in_use,
        )
    )


def test_two_phases_keeping_tensors_of_one_type_are_two_findings() -> None:
    verdict = two_phases()
    found = {
        f.phase: (f.suspects[0].count_per_generation, f.growth_bytes_per_generation.estimate)
        for f in verdict.findings
    }
    assert {phase: round(count or 0) for phase, (count, _) in found.items()} == {
        "train": 20,
        "eval": 16,
    }
    assert found["eval"][1] > 5 * found["train"][1]
    assert verdict.ruled_out == ()
    # If another phase makes the same type, the phase without a charge explains why.
    line = "Created in eval; memory is charged to train because freed memory was reused."
    assert [line in f.evidence for f in verdict.findings] == [
        f.phase == "eval" for f in verdict.findings
    ]


def test_a_phase_with_few_objects_and_most_memory_is_also_named() -> None:
    assert {finding.phase for finding in two_phases(evaluate=2).findings} == {"train", "eval"}


def test_a_line_explains_memory_charged_to_another_phase() -> None:
    environments = {"type.app.Env.count": {"evaluate": 3.0}}
    charged = {"train": 2 * MIB, "evaluate": 0.1 * MIB}
    verdict = examine(history(("train", "evaluate"), charged, environments))
    finding = verdict.findings[0]
    assert finding.phase == "evaluate"
    line = "Created in evaluate; memory is charged to train because freed memory was reused."
    assert line in finding.evidence
    right = examine(history(("train", "evaluate"), {"evaluate": 2 * MIB}, environments))
    assert not any("charged" in line for line in right.findings[0].evidence)


def test_hidden_memory_that_another_phase_allocates_belongs_to_its_objects() -> None:
    """A hook per generation, whose size could not be measured, keeps what train allocates."""
    probes = {"type.app.Probe.count": {"probe": 1.0}}
    held = [(60, "app.Probe", "app.Layer.hooks[*]", 120)]
    for own, phase, kind in ((0.0, "probe", "objects"), (1.0, "train", "native")):
        charged = {"train": 3 * MIB, "probe": own * MIB}
        verdict = examine(history(("train", "probe", "report"), charged, probes, held))
        (finding,) = verdict.findings
        assert (finding.phase, finding.kind) == (phase, kind)
        grown = finding.growth_bytes_per_generation.estimate
        assert grown == pytest.approx((3 + own) * MIB, rel=0.1)
        line = "Created in probe; the memory that the objects keep is charged to train."
        assert (line in finding.evidence) == (phase == "probe")
        assert "probe" not in ruled_out(verdict)


def test_a_phase_that_frees_is_not_called_flat() -> None:
    kept = {"type.app.Env.count": {"collect": 3.0}}
    charged = {"collect": 9 * MIB, "clean": -5.19 * MIB, "report": 0.0}
    verdict = examine(history(("collect", "clean", "report"), charged, kept))
    assert ruled_out(verdict) == {
        "clean": "it gives back more memory than it takes",
        "report": SAME,
    }


def test_a_phase_that_consumes_growing_items_is_not_ruled_out() -> None:
    """A thread decodes 30 samples during train, of which fetch takes eight."""
    for taker in ("fetch", "fetch/take"):
        pending = {"container.app.Decoder.pending.length": {taker: -8.0, "train": 30.0}}
        phases = dict.fromkeys((taker, "fetch", "train", "report"))
        verdict = examine(history(tuple(phases), {"train": 2 * MIB}, pending))
        assert [finding.phase for finding in verdict.findings] == ["train"]
        assert "fetch" not in ruled_out(verdict)
        assert ruled_out(verdict)["report"] == SAME


@pytest.mark.parametrize(
    "made",
    [
        # A declared store takes in the items, which are not a leak.
        {"type.app.Item.count": {"fill": 5.0}, "tracked.items.length": {"fill": 5.0}},
        # A library's handles come with the leak.
        {"type.torch.utils.hooks.RemovableHandle.count": {"fill": 1.0, "train": 10.0}},
    ],
    ids=["in a store", "of a library"],
)
def test_a_phase_that_creates_objects_that_live_on_is_not_ruled_out(
    made: dict[str, dict[str, float]],
) -> None:
    environments = {"type.app.Env.count": {"train": 3.0}}
    run = history(
        ("fill", "train", "report"), {"train": 2 * MIB}, environments | made,
        [(60, "app.Item", "app.main.items[*]", 200)],
    )  # fmt: skip
    verdict = examine(replace(run, capacities={"items": 10_000}))
    assert [finding.suspects[0].name for finding in verdict.findings] == ["app.Env"]
    assert ruled_out(verdict) == {"report": SAME}


def test_with_a_growing_child_no_phase_is_ruled_out() -> None:
    whole = history(("train", "report"), {"train": 2 * MIB}, {"type.app.Env.count": {"train": 3.0}})
    children = {"children.uss_bytes": lambda g: 100 * MIB + 3 * MIB * max(0, g)}
    verdict = examine(with_series(whole, children))
    assert {finding.kind for finding in verdict.findings} >= {"children"}
    assert ruled_out(verdict) == {}
    assert ruled_out(examine(whole)) == {"report": SAME}


@pytest.mark.parametrize("read", [4, 5])
def test_live_bytes_by_phase_need_readings_of_four_whole_generations(read: int) -> None:
    run = history(("a", "b"), {"a": MIB}, {}, in_use={"a": 100.0, "b": 900.0})
    column = run.processes[0].series["allocator.in_use_bytes"]
    assert isinstance(column, list)
    column[3 * read :] = [None] * (len(column) - 3 * read)
    (timeline,) = timelines_of(run)
    live = live_bytes_by_phase(timeline, 1, GENERATIONS)
    if read == 4:
        assert live is None
    else:
        assert live is not None
        assert {name: round(size) for name, size in live.items()} == {"a": 100, "b": 900, "between": 0}  # fmt: skip


def test_memory_of_unread_phases_is_on_the_line_between_phases() -> None:
    """Memory was not read after a: what a and b took together belongs to neither and is booked between phases."""
    rows: list[tuple[str, int | None, str | None]] = [("baseline", None, None)]
    level = 400 * MIB
    column: list[int | None] = [level]
    for generation in range(4):
        for phase, taken in (("a", 10), ("b", 20), ("c", 5), (None, 3)):
            level += taken * MIB
            rows.append(("phase_end" if phase else "generation_end", generation, phase))
            column.append(None if phase == "a" else level)
    found = phase_accounts(steps_history(rows, {"process.anon_bytes": column}))
    assert {line.name: [size / MIB for size in line.bytes] for line in found.lines} == {
        "c": [5] * 4,
        "between": [33] * 4,
    }
    assert [size / MIB for size in found.total] == [38] * 4


LOADED = 16
GROWTH = 20 * MIB
RECORDS = "type.app.Record.count"


def recorded(*, counted: bool) -> RunHistory:
    """A thread loads 20 MiB per generation in its phase "load" while the training thread is in no phase."""
    private, records = 300 * MIB, 100
    rows: list[Snapshot] = []

    def take(kind: str, generation: int | None, phase: str | None, **kept: float) -> None:
        samples: dict[str, int | float] = {
            "process.anon_bytes": private, "process.rss_bytes": private + 90 * MIB,
            "process.swap_bytes": 0, **kept,
        }  # fmt: skip
        if counted:
            samples[RECORDS] = records
        moment = 1000.0 + len(rows)
        rows.append(
            Snapshot(len(rows) + 1, moment, moment, generation, phase, phase or kind, kind, samples)
        )

    take("baseline", None, None)
    for generation in range(LOADED):
        take("phase_end", generation, "train")
        private, records = private + GROWTH, records + 200
        take("phase_end", generation, "load")
        take(
            "generation_end", generation, None,
            **{
                "phase.train.bytes": 0, "phase.train.executions": 1, "phase.between.bytes": 0,
                "phase.other_threads.bytes": GROWTH, "phase.leakline.bytes": 0,
            },
        )  # fmt: skip
    header = RunHeader("r", "p", "r", "generation", LOADED, 0.0, ("train", "load"))
    return history_from_batches(header, [Batch(ProcessIdentity("i"), tuple(rows))])


def test_other_threads_come_after_the_phases_and_all_add_up() -> None:
    found = phase_accounts(recorded(counted=False))
    assert [line.name for line in found.lines] == ["train", "other_threads", "between", "leakline"]
    assert set(found.total) == {GROWTH}


@pytest.mark.parametrize(
    ("counted", "phase"), [(True, "load"), (False, None)], ids=["with objects", "memory alone"]
)
def test_growth_in_another_thread_is_reported(counted: bool, phase: str | None) -> None:
    verdict = examine(recorded(counted=counted))
    (finding,) = verdict.findings
    assert finding.status in ("suspected", "confirmed")
    assert (finding.phase, [s.name for s in finding.suspects]) == (
        phase, ["app.Record"] if counted else [],
    )  # fmt: skip
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(GROWTH, rel=0.05)
    assert {each.phase for each in verdict.ruled_out} <= {"train"}
