"""What each condition of `--fail-on` means, and that a gate says what it checked."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from tests.cli.conftest import GENERATIONS, STARTED, made_snapshots, wait_for_verdict

from leakline.cli import gates
from leakline.cli.asking import Asker
from leakline.cli.gates import Check, check_run
from leakline.delivery import request_json
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, batch_to_wire, header_to_wire

MEMORY = "memory: 1.90 GiB of its limit of 2.00 GiB at the last reading"


def checked(
    condition: str,
    status: str = "ok",
    state: str = "finished",
    reason: str = "",
    risk: str = "none",
) -> Check:
    verdict = {"status": status, "summary": "the sentence", "oom": {"risk": risk}}
    return check_run(condition, verdict, {"state": state, "reason": reason}, ())


@pytest.mark.parametrize(
    ("state", "reason", "held"),
    [
        ("finished", "", []),
        ("running", "", []),
        ("killed", MEMORY, ["leaking", "oom", "killed"]),
        ("killed", "SIGKILL", ["leaking", "killed"]),
        ("killed", "SIGTERM", ["killed"]),
        ("silent", "", ["leaking", "killed"]),
        ("interrupted", "KeyboardInterrupt", ["killed"]),
        ("failed", "ValueError", ["failed"]),
        ("failed", "exit status 7", ["failed"]),
        ("failed", "MemoryError", ["leaking", "oom", "failed"]),
        ("failed", "torch.OutOfMemoryError", ["leaking", "oom", "failed"]),
    ],
)
def test_how_a_run_ended_closes_the_gates_that_name_it(
    state: str, reason: str, held: list[str]
) -> None:
    names = ("leaking", "oom", "killed", "failed", "refuted")
    assert [name for name in names if checked(name, state=state, reason=reason).holds] == held


@pytest.mark.parametrize(
    ("status", "risk", "held"),
    [
        ("ok", "critical", ["leaking", "oom"]),
        ("watch", "high", []),
        ("suspected", "none", ["leaking"]),
        ("confirmed", "critical", ["leaking", "oom"]),
        ("learning", "none", []),
    ],
)
def test_a_leak_and_memory_about_to_run_out_close_the_gate(
    status: str, risk: str, held: list[str]
) -> None:
    names = ("leaking", "oom", "killed", "failed")
    assert [name for name in names if checked(name, status=status, risk=risk).holds] == held


@pytest.mark.parametrize(
    ("state", "near"),
    [("running", "is about"), ("finished", "was forecast"), ("failed", "was forecast")],
)
def test_the_forecast_of_an_ended_run_is_past(state: str, near: str) -> None:
    assert checked("oom", state=state, risk="critical").why == (
        f"memory {near} to run out: the risk is critical"
    )


def test_a_check_says_why() -> None:
    assert (
        checked("leaking", status="confirmed").line == "gate leaking: held: confirmed: the sentence"
    )
    assert checked("leaking").line == (
        "gate leaking: not held: the verdict is ok, and the run is finished"
    )
    assert checked("oom", state="killed", reason=MEMORY).line == (
        "gate oom: held: the run was killed for memory: 1.90 GiB of its limit of 2.00 GiB at the last reading"
    )
    assert checked("failed", state="failed", reason="exit status 7").line == (
        "gate failed: held: the run is failed (exit status 7)"
    )


@pytest.fixture(scope="module")
def killed(server: str) -> str:
    """A run without a leak that was killed for memory."""
    header = RunHeader("killed1", "gates", "killed", "generation", 25, STARTED)
    request_json(server, "POST", "/runs", header_to_wire(header))
    batch = Batch(ProcessIdentity("process of killed1"), tuple(made_snapshots(0)))
    request_json(server, "POST", "/runs/killed1/batches", batch_to_wire(batch))
    request_json(server, "PATCH", "/runs/killed1", {"state": "killed", "reason": MEMORY})
    wait_for_verdict(server, "killed1", lambda found: found["generations"] >= GENERATIONS)
    return "gates/killed"


def test_a_run_killed_for_memory_is_no_passed_gate(leakline: Any, server: str, killed: str) -> None:
    said = leakline("verdict", killed, "--server", server, "--fail-on", "leaking,oom,failed")
    assert said.status == 3
    assert said.output.startswith(
        f"ok: Killed for memory after {GENERATIONS} generations (1.90 GiB"
    )
    lines = said.output.splitlines()[-4:]
    assert [line[: line.index("held") + 4] for line in lines[:3]] == [
        "gate leaking: held", "gate oom: held", "gate failed: not held",
    ]  # fmt: skip
    assert lines[3] == "failed on: leaking, oom"
    after = leakline("compare", "app/fixed", killed, "--server", server, "--fail-on", "oom")
    assert (after.status, "gate oom: held: the run was killed for memory" in after.output) == (
        3,
        True,
    )


class Answers:
    """A server that answers with one run after the other, the last again and again."""

    def __init__(self, *runs: tuple[str, str]) -> None:
        self.runs = [{"state": state, "last_seen_at": seen} for state, seen in runs]
        self.asked = 0

    def get(self, address: str) -> dict[str, str]:
        self.asked += 1
        return self.runs[min(self.asked, len(self.runs)) - 1]


@pytest.mark.parametrize(
    ("runs", "asked"),
    [
        ([("finished", "1")], 1),
        ([("running", "1"), ("running", "1"), ("silent", "1")], 3),
        ([("running", "1"), ("running", "2")], 2),
        ([("running", "1")], 4),
    ],
    ids=["ended", "its silence tells", "it goes on", "nothing comes"],
)
def test_a_gate_waits_until_it_is_known_whether_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[str, str]], asked: int
) -> None:
    monkeypatch.setattr(gates, "WAIT_STEP_SECONDS", 0.0)
    times = iter([0.0, 0.0, 0.0, 0.0, 1000.0])
    monkeypatch.setattr(gates.time, "monotonic", lambda: next(times))
    answers = Answers(*runs)
    gates.wait_for_end(cast(Asker, answers), "/runs/r1", ("killed",))
    assert answers.asked == asked


def test_a_gate_on_a_status_does_not_wait() -> None:
    answers = Answers(("running", "1"))
    gates.wait_for_end(cast(Asker, answers), "/runs/r1", ("learning", "worse", "refuted"))
    assert answers.asked == 0


def test_a_gate_in_json_is_in_the_json(leakline: Any, server: str, killed: str) -> None:
    said = leakline("verdict", killed, "--json", "--server", server, "--fail-on", "oom,failed")
    gate = json.loads(said.output)["gate"]
    assert gate["passed"] is False
    assert [(check["condition"], check["holds"]) for check in gate["checks"]] == [
        ("oom", True), ("failed", False),
    ]  # fmt: skip
    before = ("compare", "app/leaking", "app/fixed", "--json", "--server", server)
    passed = json.loads(leakline(*before, "--fail-on", "leaking,worse").output)["gate"]
    assert (passed["passed"], passed["checks"][1]["condition"]) == (True, "worse")
    assert "gate" not in json.loads(leakline(*before).output)


def test_a_gate_in_markdown_is_a_section(leakline: Any, server: str, killed: str) -> None:
    said = leakline("verdict", killed, "--markdown", "--server", server, "--fail-on", "oom")
    assert said.status == 3
    assert "\n## Gate\n\n- `oom` **held**: the run was killed for memory" in said.output
