"""Real trainings with TensorFlow.js in Node, recorded: V8 that warms up is no leak, and what it keeps is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from leakline.analysis import RunHistory, compare, examine, history_from_batches
from leakline.analysis.kept import Kept
from leakline.analysis.results import Finding
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot

MIB: Final = 2**20
RECORDED: Final = Path(__file__).resolve().parents[1] / "data" / "node"
# Nothing is kept but tensors of four bytes. One update of the networks a generation; seven, of which V8 collects what
# is left once in 25 generations, or last when much of it is young; and seven beside programs that take the processors.
HEALTHY: Final = (
    "small_steps_healthy",
    "norms_seldom_collected",
    "norms_with_high_floors",
    "fixed_under_load",
)
# A generation keeps Buffers of 1 MiB together, and plain objects of 2 MiB.
LEAKING: Final = {"keeps_buffers": 1 * MIB, "keeps_objects": 2 * MIB}
ACTIVE: Final = ("suspected", "confirmed", "recovered")

Rows = list[dict[str, Any]]


def recorded(name: str) -> Rows:
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


def history(rows: Rows, run: str = "node") -> RunHistory:
    snapshots = []
    for i, row in enumerate(rows):
        samples = {k: v for k, v in row.items() if "." in k and v is not None}
        place = row["generation"], row["phase"]
        snapshots.append(Snapshot(i, 1e9 + i, float(i), *place, "", row["kind"], samples))
    header = RunHeader(run, "p", run, "generation", None, 1e9)
    return history_from_batches(header, [Batch(ProcessIdentity("i"), tuple(snapshots))])


def up_to_each_reading(rows: Rows) -> list[Rows]:
    return [rows[: i + 1] for i, row in enumerate(rows) if row["generation"] is not None]


def beside(rows: Rows) -> Finding | None:
    found = [f for f in examine(history(rows)).findings if f.kind == "objects"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_never_suspected_of_what_its_collector_leaves_lying(
    name: str,
) -> None:
    for rows in up_to_each_reading(recorded(name)):
        found = beside(rows)
        assert found is None or found.status in ("ok", "watch"), (rows[-1], found.evidence)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_ends_with_nothing_said_of_memory_beside_its_tensors(name: str) -> None:
    assert examine(history(recorded(name))).status == "ok"
    assert beside(recorded(name)) is None


@pytest.mark.parametrize("name", LEAKING)
def test_what_is_kept_beside_the_tensors_is_confirmed_though_resident_memory_stands(
    name: str,
) -> None:
    verdict = examine(history(recorded(name)))
    (finding,) = [f for f in verdict.findings if f.status != "ok"]
    assert (finding.status, finding.kind, finding.phase) == ("confirmed", "objects", "train")
    assert "memory beside its tensors" in verdict.summary
    assert any("V8 keeps when it collects" in line for line in finding.evidence)
    rate = finding.growth_bytes_per_generation
    assert rate.estimate == pytest.approx(LEAKING[name], rel=0.2)


def test_until_v8_has_collected_often_enough_it_is_not_called() -> None:
    rows = recorded("keeps_objects")
    early = [row for row in rows if (row["generation"] or 0) < 15]
    found = beside(early)
    assert found is None or found.status == "watch"


def test_memory_of_native_code_is_found_where_v8_keeps_nothing_more() -> None:
    """Of which V8 knows nothing: bytes that only resident memory shows."""
    rows = recorded("fixed_under_load")
    for row in rows:
        row["process.rss_bytes"] += 8 * MIB * (row["generation"] or 0)
    found = beside(rows)
    assert found is not None
    assert found.status in ("suspected", "confirmed")
    assert any("resident memory without the tensors" in line for line in found.evidence)
    assert found.growth_bytes_per_generation.estimate == pytest.approx(8 * MIB, rel=0.15)


def test_more_than_v8_would_let_lie_is_kept_whether_it_was_seen_to_collect_or_not() -> None:
    rows = recorded("fixed_under_load")
    rows = [row for row in rows if (row["generation"] or 0) < 9]
    newest = rows[-1]
    for generation in range(9, 60):
        for kind in ("phase_end", "generation_end"):
            more = 16 * MIB * (generation - 8)
            row = {**newest, "kind": kind, "phase": "train" if kind == "phase_end" else None}
            row |= {name: newest[name] + more for name in ("js.heap_bytes", "process.rss_bytes")}
            rows.append({**row, "generation": generation})
    found = beside(rows)
    assert found is not None
    assert found.status == "confirmed"


@pytest.mark.parametrize("name", [*HEALTHY, *LEAKING])
def test_what_was_worked_out_for_the_beginning_changes_nothing_of_the_verdict(name: str) -> None:
    kept = Kept()
    for rows in up_to_each_reading(recorded(name))[::2]:
        told = history(rows)
        assert examine(told, kept) == examine(told)


@pytest.mark.parametrize("name", HEALTHY)
def test_the_fix_of_a_leak_beside_the_tensors_is_told(name: str) -> None:
    before = history(recorded("keeps_buffers"), "before")
    compared = compare(before, history(recorded(name), "after"))
    assert [f.kind for f in compared.findings.gone] == ["objects"]
    assert not compared.findings.new
