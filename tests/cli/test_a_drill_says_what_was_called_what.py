"""The confusion matrix of drills: what was planted against what it was called, in numbers and as a page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakline.drill.kinds import HEALTHY, KINDS, LEAKING
from leakline.drill.matrix import (
    FAILED,
    NOTHING,
    ONCE,
    columns,
    is_right,
    matrix,
    matrix_lines,
    results_page,
)
from leakline.drill.scoring import Answer, Look, Message, Seen, Truth, score
from leakline.drill.telling import Drilled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "drill-results.md"
MIB = 2**20
ABOUT = {"Leakline": "0.1.0", "written": "2026-01-31"}


def finding(kind: str, *names: str, status: str = "confirmed") -> dict[str, Any]:
    return {
        "fingerprint": f"f-{kind}", "status": status, "kind": kind, "phase": "collect",
        "suspects": [{"name": name, "role": "type"} for name in names],
        "growth_bytes_per_generation": {"estimate": 4 * MIB, "low": 4 * MIB, "high": 4 * MIB},
        "started_at_generation": {"estimate": 0, "low": 0, "high": 0},
    }  # fmt: skip


def drilled(planted: str, *findings: dict[str, Any], looks: tuple[Look, ...] = ()) -> Drilled:
    raised = any(f["status"] == "confirmed" for f in findings)
    verdict = {
        "status": "confirmed" if raised else "ok", "summary": "said", "generations": 30, "findings": findings,
    }  # fmt: skip
    messages = (Message("incident.confirmed", "i", "confirmed", 16, 0.1, True),) if raised else ()
    seen = Seen(verdict, looks, messages)
    return Drilled(KINDS[planted], score(Truth(KINDS[planted], 4 * MIB), seen), 20.0)


DRILLS = [
    drilled("instances", finding("objects", "small_training.held.Environment")),
    drilled("graph", finding("tensors", "torch.Tensor")),
    drilled("native", finding("arrays", "app.Other")),
    drilled("native"),
    drilled("flat"),
    drilled("sawtooth", looks=(Look(9, "suspected"), Look(30, "ok"))),
    drilled("replay_buffer", finding("arrays", "numpy.ndarray")),
    Drilled(KINDS["one_step"], (Answer("trained", False, "the training failed"),), 2.0),
]


def test_each_drill_is_counted_where_it_was_called() -> None:
    assert matrix(DRILLS) == {
        "instances": {"objects": 1}, "graph": {"tensors": 1}, "native": {"arrays": 1, NOTHING: 1},
        "flat": {NOTHING: 1}, "sawtooth": {ONCE: 1}, "replay_buffer": {"arrays": 1}, "one_step": {FAILED: 1},
    }  # fmt: skip


def test_what_is_no_kind_of_finding_stands_last() -> None:
    assert columns(matrix(DRILLS)) == ["arrays", "objects", "tensors", ONCE, FAILED, NOTHING]


@pytest.mark.parametrize(
    ("planted", "told", "right"),
    [
        ("instances", "objects", True),
        ("instances", "container", True),
        ("instances", "native", False),
        ("graph", "tensors", False),
        ("native", NOTHING, False),
        ("flat", NOTHING, True),
        ("flat", ONCE, False),
        ("flat", "objects", False),
        ("flat", FAILED, False),
    ],
)
def test_right_is_what_was_planted_or_what_is_as_right(
    planted: str, told: str, right: bool
) -> None:
    assert is_right(planted, told) is right


def test_a_terminal_marks_what_is_wrong() -> None:
    told = {line.split()[0]: line.split()[1:] for line in matrix_lines(DRILLS)}
    assert told["instances"] == [".", "1", ".", ".", ".", "."]
    assert told["native"] == ["1!", ".", ".", ".", ".", "1!"]
    assert told["flat"] == [".", ".", ".", ".", ".", "1"]


def test_the_page_has_a_row_for_each_and_says_how_many_are_wrong() -> None:
    nowhere = replace(KINDS["figures"], needs=("not_here",))
    page = results_page(DRILLS, [nowhere], ABOUT)
    assert "8 drills, 6 called wrongly; Leakline 0.1.0, written 2026-01-31." in page
    assert "| `graph` |  |  | 1! |  | graph |" in page
    assert "Not drilled: `figures` (needs not_here)." in page
    assert "| `instances` | passed |" in page and "| `graph` | failed |" in page


def test_the_page_of_the_documents_is_of_every_kind_there_is_and_says_where_it_is_wrong() -> None:
    page = PAGE.read_text()
    rows = re.findall(
        r"^\| `(\w+)` \|(.*)\|$", page.partition("## How right the rest was")[0], re.MULTILINE
    )
    assert [name for name, _ in rows] == [*LEAKING, *HEALTHY]
    wrong = sum(cells.count("!") for _, cells in rows)
    assert f"{len(rows)} drills, {wrong} called wrongly" in page
    # What is published is no worse than what the release asks for.
    assert wrong == 0
    for name, cells in rows:
        right = LEAKING[name].answers if name in LEAKING else (NOTHING,)
        assert cells.rpartition("|")[2].strip() == " or ".join(right).replace("_", " ")


def test_a_page_that_cannot_be_written_is_said_in_one_line(leakline: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = leakline(
        "drill", "flat", "--generations", "1", "--results", str(tmp_path / "file" / "page.md")
    )
    assert said.status == 1
    assert said.errors.splitlines()[-1].endswith("name another FILE")
