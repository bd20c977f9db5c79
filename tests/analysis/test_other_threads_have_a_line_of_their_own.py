"""What only another thread's phase can have allocated: named by its objects, never called a phase, never ruled out."""

from __future__ import annotations

import pytest

from leakline.analysis import RunHistory, books, examine, history_from_batches
from leakline.analysis.results import Verdict
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

MIB = 2**20
GENERATIONS = 16
GROWTH = 20 * MIB
RECORDS = "type.app.Record.count"


def recorded(*, counted: bool) -> RunHistory:
    """A thread loads 20 MiB per generation in its phase "load" while the training thread is in no phase."""
    private, records = 300 * MIB, 100
    rows: list[Snapshot] = []

    def take(kind: str, generation: int | None, phase: str | None, **books: float) -> None:
        samples: dict[str, int | float] = {
            "process.anon_bytes": private, "process.rss_bytes": private + 90 * MIB,
            "process.swap_bytes": 0, **books,
        }  # fmt: skip
        if counted:
            samples[RECORDS] = records
        moment = 1000.0 + len(rows)
        rows.append(
            Snapshot(len(rows) + 1, moment, moment, generation, phase, phase or kind, kind, samples)
        )

    take("baseline", None, None)
    for generation in range(GENERATIONS):
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
    header = RunHeader("r", "p", "r", "generation", GENERATIONS, 0.0, ("train", "load"))
    return history_from_batches(header, [Batch(ProcessIdentity("i"), tuple(rows))])


def verdict(*, counted: bool) -> Verdict:
    return examine(recorded(counted=counted))


def test_the_line_stands_after_the_phases_and_the_parts_add_up() -> None:
    found = books(recorded(counted=False))
    assert [line.name for line in found.lines] == ["train", "other_threads", "between", "leakline"]
    assert set(found.total) == {GROWTH}


def test_what_grows_in_another_threads_phase_is_named_with_its_growth() -> None:
    (finding,) = verdict(counted=True).findings
    assert finding.status in ("suspected", "confirmed")
    assert finding.phase == "load"
    assert finding.suspects[0].name == "app.Record"
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(GROWTH, rel=0.05)


def test_without_objects_to_name_the_line_is_not_called_a_phase() -> None:
    (finding,) = verdict(counted=False).findings
    assert finding.phase is None
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(GROWTH, rel=0.05)


def test_the_line_is_never_ruled_out_as_a_phase() -> None:
    for counted in (True, False):
        assert {each.phase for each in verdict(counted=counted).ruled_out} <= {"train"}
