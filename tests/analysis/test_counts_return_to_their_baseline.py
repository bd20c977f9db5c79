"""A count that has to come back to what it was: the first generation sets the bound, no number is written down."""

from __future__ import annotations

from leakline.analysis import RunHistory, examine, expectation_rows, history_from_batches
from leakline.declarations import expectation
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

TENSOR = "torch.Tensor"
TRAIN, EVALUATE = "train_population", "evaluate_population"
MIB = 2**20


def attempt(number: int, *rows: tuple[int | None, str | None, int], after: str | None) -> Batch:
    """(generation, phase, tensors) of one process, after what the client sends for ``"baseline"``."""
    name, data = expectation(TENSOR, "baseline", after)
    told = (Event(0, 0.0, "expect", str(name), data=data),)
    snapshots = []
    for i, (generation, phase, count) in enumerate(rows):
        kind = "baseline" if generation is None else "phase_end" if phase else "generation_end"
        at = 1000.0 * number + i
        samples = {f"type.{TENSOR}.count": count, "process.rss_bytes": 100 * MIB}
        snapshots.append(
            Snapshot(i, at, at, generation, phase, "", kind, samples, told if i == 0 else ())
        )
    return Batch(ProcessIdentity(f"p{number}", attempt=number), tuple(snapshots))


def history(*attempts: Batch) -> RunHistory:
    return history_from_batches(RunHeader("r", "p", "r", "generation", None, 0.0), attempts)


def trained(
    *tensors: int, number: int = 1, begins: int = 0, after: str | None = TRAIN, initial: int = 400
) -> Batch:
    ends = [(begins + i, TRAIN, count) for i, count in enumerate(tensors)]
    return attempt(number, (None, None, initial), *ends, after=after)


def test_a_run_that_comes_back_is_quiet() -> None:
    run = history(trained(567, 567, 560, 567))
    (row,) = expectation_rows(run)
    assert (row.state, row.expected, row.broken_times) == ("holds", "up to 567 (baseline)", 0)
    assert not examine(run).findings


def test_what_the_first_generation_builds_up_is_part_of_the_baseline() -> None:
    """Gradients and the state of an optimizer are made in the first training and stay."""
    run = history(trained(567, 567, 567, after=None))
    (row,) = expectation_rows(run)
    assert (row.state, row.expected) == ("holds", "up to 567 (baseline)")
    assert not examine(run).findings


def test_before_anything_was_read_nothing_is_broken() -> None:
    (row,) = expectation_rows(history(trained(after=TRAIN)))
    assert (row.state, row.expected, row.last_count) == ("never_seen", "as at the baseline", None)
    (row,) = expectation_rows(history(trained(after="never_runs")))
    assert (row.state, row.expected) == ("never_seen", "as at the baseline")


def test_in_the_phase_itself_more_are_allowed() -> None:
    rows = [(g, phase, n) for g in range(4) for phase, n in ((EVALUATE, 5678), (TRAIN, 567))]
    run = history(attempt(1, *rows, after=TRAIN))
    assert {row.state for row in expectation_rows(run)} == {"holds"}
    assert not examine(run).findings


def test_what_stays_above_the_baseline_of_report_004_is_told_with_both_numbers() -> None:
    run = history(trained(567, 567, 5678, 5678))
    (row,) = expectation_rows(run)
    assert (row.state, row.first_broken_at, row.last_count) == ("broken", 2, 5678)
    (finding,) = examine(run).findings
    assert finding.status == "suspected"
    assert finding.suspects[0].name == TENSOR
    said = "Tensor is 5,678, declared up to 567 (baseline) after train_population; the surplus"
    assert any(line.startswith(said) for line in finding.evidence)


def test_a_resumed_run_sets_its_baseline_anew() -> None:
    """The fix of the second attempt keeps another optimizer; what the first one had says nothing of it."""
    well = history(trained(567, 567), trained(900, 900, 900, number=2, begins=2))
    (row,) = expectation_rows(well)
    assert (row.state, row.expected) == ("holds", "up to 900 (baseline)")
    assert not examine(well).findings
    leaking = history(trained(900, 900), trained(567, 800, 800, number=2, begins=2))
    (row,) = expectation_rows(leaking)
    assert (row.state, row.expected) == ("broken", "up to 567 (baseline)")
