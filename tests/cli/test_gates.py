"""`--fail-on` and `--junit`: what each condition means, what a gate reports, and what CI reads from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import GENERATIONS, post_run

from leakline.cli import gates
from leakline.cli.gates import Case, Check, check_run, junit
from leakline.cli.server_queries import Asker

MEMORY = "memory: 1.90 GiB of the 2.00 GiB limit was in use at the last reading"
NAMES = ("leaking", "oom", "killed", "failed", "refuted")


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
    ("of_run", "held"),
    [
        ({"state": "running"}, ""),
        ({"state": "killed", "reason": MEMORY}, "leaking oom killed"),
        ({"state": "killed", "reason": "SIGKILL"}, "leaking killed"),
        ({"state": "killed", "reason": "SIGTERM"}, "killed"),
        ({"state": "silent"}, "leaking killed"),
        ({"state": "interrupted", "reason": "KeyboardInterrupt"}, "killed"),
        ({"state": "failed", "reason": "exit status 7"}, "failed"),
        ({"state": "failed", "reason": "MemoryError"}, "leaking oom failed"),
        ({"state": "failed", "reason": "torch.OutOfMemoryError"}, "leaking oom failed"),
        ({"status": "ok", "risk": "critical"}, "leaking oom"),
        ({"status": "watch", "risk": "high"}, ""),
        ({"status": "suspected"}, "leaking"),
        ({"status": "confirmed"}, "leaking"),
        ({"status": "learning"}, ""),
    ],
)
def test_a_run_fails_the_gates_for_its_status_or_end(of_run: dict[str, str], held: str) -> None:
    assert " ".join(name for name in NAMES if checked(name, **of_run).holds) == held


@pytest.mark.parametrize(("state", "near"), [("running", "is about"), ("failed", "was forecast")])
def test_the_forecast_of_an_ended_run_does_not_fail_a_gate(state: str, near: str) -> None:
    said = checked("oom", state=state, risk="critical").why
    assert said == f"memory {near} to run out: the risk is critical"


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (checked("leaking", status="confirmed"), "leaking: held: confirmed: the sentence"),
        (checked("leaking"), "leaking: not held: the verdict is ok, and the run is finished"),
        (checked("oom", state="killed", reason=MEMORY), f"oom: held: the run was killed for {MEMORY}"),
        (checked("failed", state="failed", reason="exit status 7"), "failed: held: the run is failed (exit status 7)"),
    ],
)  # fmt: skip
def test_each_check_prints_its_reason(check: Check, line: str) -> None:
    assert check.line == f"gate {line}"


def test_promises_missing_from_an_older_server_do_not_pass() -> None:
    run = {"state": "finished", "reason": ""}
    check = check_run("refuted", {"status": "ok", "oom": {"risk": "none"}}, run, None)
    assert (check.holds, "too old" in check.why) == (True, True)


@pytest.fixture(scope="module")
def killed(server: str) -> str:
    """A run without a leak that was killed for lack of memory."""
    post_run(server, "killed1", "gates/killed", 0, total=25, state="killed", reason=MEMORY)
    return "gates/killed"


def test_a_run_killed_for_memory_does_not_pass(ask: Any, killed: str) -> None:
    said = ask("verdict", killed, "--fail-on", "leaking,oom,failed")
    assert said.status == 3
    expected = f"ok: Killed for memory after {GENERATIONS} generations (1.90 GiB"
    assert said.output.startswith(expected)
    lines = said.output.splitlines()[-4:]
    assert [line[: line.index("held") + 4] for line in lines[:3]] == [
        "gate leaking: held", "gate oom: held", "gate failed: not held",
    ]  # fmt: skip
    assert lines[3] == "the gate failed on: leaking, oom"
    after = ask("compare", "app/fixed", killed, "--fail-on", "oom")
    assert after.status == 3
    assert "gate oom: held: the run was killed for memory" in after.output


def test_gates_are_part_of_json_and_markdown(ask: Any, killed: str) -> None:
    said = ask("verdict", killed, "--markdown", "--fail-on", "oom")
    assert said.status == 3
    assert "\n## Gate\n\n- `oom` **held**: the run was killed for memory" in said.output
    gate = json.loads(ask("verdict", killed, "--json", "--fail-on", "oom,failed").output)["gate"]
    assert gate["passed"] is False
    checks = [(check["condition"], check["holds"]) for check in gate["checks"]]
    assert checks == [("oom", True), ("failed", False)]
    fixed = ("compare", "app/leaking", "app/fixed", "--json")
    passed = json.loads(ask(*fixed, "--fail-on", "leaking,worse").output)["gate"]
    assert (passed["passed"], passed["checks"][1]["condition"]) == (True, "worse")
    assert "gate" not in json.loads(ask(*fixed).output)


class Answers:
    """A server that answers with one run after the other and repeats the last.

    A third part of a run makes its verdict incomplete.
    """

    def __init__(self, *runs: tuple[str, ...]) -> None:
        self.runs = [
            {"state": state, "last_seen_at": seen, "verdict_is_current": not behind}
            for state, seen, *behind in runs
        ]
        self.asked = 0

    def get(self, address: str) -> dict[str, Any]:
        assert address == "/runs/r%2F1"
        self.asked += 1
        return self.runs[min(self.asked, len(self.runs)) - 1]


@pytest.mark.parametrize(
    ("runs", "conditions", "asked"),
    [
        ([("finished", "1")], ("killed",), 1),
        ([("running", "1"), ("running", "1"), ("silent", "1")], ("killed",), 3),
        ([("running", "1"), ("running", "2")], ("killed",), 2),
        ([("running", "1")], ("killed",), 4),
        ([("running", "1")], ("learning", "worse", "refuted"), 1),
        (
            [("finished", "1", "behind"), ("finished", "1", "behind"), ("finished", "1")],
            ("leaking",),
            3,
        ),
        ([("finished", "1", "behind"), ("finished", "1")], (), 2),
        ([("running", "1"), ("finished", "2", "behind"), ("finished", "2")], ("leaking",), 3),
        ([("running", "1", "behind")], ("learning",), 1),
    ],
    ids=[
        "ended",
        "silent",
        "it goes on",
        "nothing comes",
        "a status needs no wait",
        "verdict behind",
        "no conditions",
        "ends and is behind",
        "a running run is always behind",
    ],
)
def test_a_gate_waits_for_the_end_of_the_run_and_for_a_verdict_on_all_of_it(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[str, ...]], conditions: tuple[str, ...], asked: int
) -> None:  # fmt: skip
    monkeypatch.setattr(gates, "WAIT_STEP_SECONDS", 0.0)
    times = iter([0.0, 0.0, 0.0, 0.0, 1000.0])
    monkeypatch.setattr(gates.time, "monotonic", lambda: next(times))
    answers = Answers(*runs)
    gates.wait_for_verdict(cast(Asker, answers), "r/1", conditions)
    assert answers.asked == asked


def test_a_gate_says_that_its_verdict_is_incomplete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gates, "WAIT_STEP_SECONDS", 0.0)
    monkeypatch.setattr(gates, "WAIT_SECONDS", 0.05)
    gates.wait_for_verdict(cast(Asker, Answers(("finished", "1", "behind"))), "r/1", ("leaking",))
    waits, gives_up = capsys.readouterr().err.splitlines()
    assert waits == "waiting until the verdict covers all data of the run"
    assert gives_up.endswith("does not cover its newest data yet; repeat the command later")


# -- CI output ---------------------------------------------------------------------------------------------


def suite(path: Path) -> Any:
    (found,) = ElementTree.parse(path).getroot()
    return found


def test_a_leak_is_a_failed_test_case(ask: Any, tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "leaks.xml"
    gate = ("--fail-on", "leaking,worse", "--junit", str(file))
    assert ask("compare", "run2", "run1", *gate).status == 3
    found = suite(file)
    assert (found.get("tests"), found.get("failures")) == ("2", "2")
    case = found.findall("testcase")[0]
    assert (case.get("classname"), case.get("name")) == ("leakline.compare", "leaking")
    assert "app.Environment" in case.find("failure").text
    figures = {each.get("name"): each.get("value") for each in found.iter("property")}
    assert float(figures["growth_bytes_per_generation.after"]) == 20 * 2**20
    assert figures["outcome"] == "worse"


def test_a_junit_file_alone_fails_no_gate(ask: Any, tmp_path: Path) -> None:
    file = tmp_path / "leaks.xml"
    for command, failures in (
        (("compare", "run1", "run2"), "0"),
        (("verdict", "app/leaking"), "1"),
    ):
        said = ask(*command, "--junit", str(file))
        assert (said.status, "failed on" in said.output) == (0, False)
        assert (suite(file).get("tests"), suite(file).get("failures")) == ("1", failures)
    said = ask("verdict", "app/leaking", "--junit", str(tmp_path))
    assert said.status == 1
    assert str(tmp_path) in said.errors


def test_characters_invalid_in_xml_are_removed() -> None:
    text = junit("s", [Case("leaking", 'a <b> & "c" \x00\x1b', ["\ud800"])], {"x": None})
    (found,) = ElementTree.fromstring(text)
    (case,) = found
    assert case[0].text.startswith('a <b> & "c"')
