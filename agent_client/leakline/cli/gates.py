"""Shared parts of the commands that act as CI gates: named conditions, exit status 3, JUnit files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ..errors import LeaklineError
from ..report.document_blocks import escape
from ..report.verdict_facts import finding_line
from ..text_format import count_of, printable, worded
from ..transport.oom_inference import death_of
from .server_queries import Asker

GATE_STATUS: Final = 3
# The server marks a run as silent after a minute and checks for silent runs every few seconds.
WAIT_SECONDS: Final = 90.0
# A command without conditions waits only this long for a verdict that covers all data.
ANALYSIS_SECONDS: Final = 10.0
WAIT_STEP_SECONDS: Final = 1.0
LEAKING: Final = "leaking"
OOM: Final = "oom"
KILLED: Final = "killed"
FAILED: Final = "failed"
REFUTED: Final = "refuted"
# Conditions of a single run, independent of any comparison.
OF_A_RUN: Final = (LEAKING, OOM, KILLED, FAILED, REFUTED)
_LEAKING_STATUSES: Final = ("suspected", "confirmed")
# Names of out-of-memory exceptions: Python's own, and torch's for a GPU.
_OUT_OF_MEMORY: Final = ("MemoryError", "OutOfMemoryError")


class Check(NamedTuple):
    """The result of one gate condition: whether the condition holds, and why."""

    condition: str
    holds: bool
    why: str

    @property
    def line(self) -> str:
        return f"gate {self.condition}: {'held' if self.holds else 'not held'}: {self.why}"


def add_gate(parser: argparse.ArgumentParser, conditions: Sequence[str]) -> None:
    parser.add_argument(
        "--fail-on", type=_conditions(conditions), default=(), metavar="CONDITIONS",
        help=f"exit with status {GATE_STATUS} on any of these conditions, comma-separated: {', '.join(conditions)}",
    )  # fmt: skip
    parser.add_argument(
        "--junit", type=Path, metavar="FILE",
        help=f"write the results as JUnit test cases (without --fail-on: only {LEAKING})",
    )  # fmt: skip


def check_run(
    condition: str,
    verdict: Mapping[str, Any],
    run: Mapping[str, Any],
    assertions: Sequence[Mapping[str, Any]] | None,
) -> Check:
    """Check a condition of OF_A_RUN. ``run`` and ``assertions`` are responses of the API.

    ``assertions`` is None if the server is older than this program. A condition that cannot be checked counts as
    holding, which fails the gate.
    """
    state, reason, risk = run["state"], run["reason"], verdict["oom"]["risk"]
    ended = f"the run is {state}" + (f" ({reason})" if reason else "")
    if condition == REFUTED:
        if assertions is None:
            why = "the server is too old to check promises; update the server"
            return Check(condition, True, why)
        promises = [each for each in assertions if each["origin"] == "fix"]
        broken = [each for each in promises if each["state"] == "broken"]
        return Check(condition, bool(broken), _of_promises(broken, len(promises)))
    if condition == FAILED:
        return Check(condition, state == "failed", ended)
    if condition == KILLED:
        return Check(condition, state in ("killed", "interrupted", "silent"), ended)
    near = "is about" if state == "running" else "was forecast"
    out_of_memory = _memory_ran_out(state, reason) or (
        f"memory {near} to run out: the risk is {risk}" if risk == "critical" else ""
    )
    if condition == OOM:
        why = out_of_memory or f"the risk of running out of memory is {risk}, and {ended}"
        return Check(condition, bool(out_of_memory), why)
    if verdict["status"] in _LEAKING_STATUSES:
        return Check(condition, True, worded(verdict["status"], verdict["summary"]))
    vanished = _may_have_run_out(state, reason)
    why = out_of_memory or (f"{ended}: {vanished}" if vanished else "")
    return Check(condition, bool(why), why or f"the verdict is {verdict['status']}, and {ended}")


def wait_for_verdict(asker: Asker, run_id: str, asked: Sequence[str] = ()) -> None:
    """Wait until the verdict of an ended run covers all of its data, or until the time is over.

    With conditions on how a run ended, first wait until the server knows the end, or until new data shows that the run
    continues. A killed program cannot report its end, which the server infers after a minute of silence. Without
    waiting, the gate would pass in the meantime.
    """
    address = f"/runs/{quote(run_id, safe='')}"
    until = time.monotonic() + (WAIT_SECONDS if asked else ANALYSIS_SECONDS)
    run: Mapping[str, Any] = asker.get(address)
    if any(condition in OF_A_RUN and condition != REFUTED for condition in asked):
        seen_at = run["last_seen_at"]
        run = _wait_while(
            lambda now: now["state"] == "running" and now["last_seen_at"] == seen_at,
            "the run has not ended yet; waiting until it sends data or its end is known",
            asker, address, run, until,
        )  # fmt: skip
    waits = "waiting until the verdict covers all data of the run"
    run = _wait_while(_is_behind, waits, asker, address, run, until)
    if _is_behind(run):
        print(
            f"the verdict of run {run_id} does not cover its newest data yet; repeat the command later",
            file=sys.stderr,
        )


def _is_behind(run: Mapping[str, Any]) -> bool:
    # A server older than this program does not say whether its verdict is current.
    return run["state"] != "running" and not run.get("verdict_is_current", True)


def _wait_while(
    is_open: Callable[[Mapping[str, Any]], bool],
    why: str,
    asker: Asker,
    address: str,
    run: Mapping[str, Any],
    until: float,
) -> Mapping[str, Any]:
    """Request the run again until ``is_open`` returns False or the time is over; return the newest response."""
    said = False
    while is_open(run) and time.monotonic() < until:
        if not said:
            said = True
            print(why, file=sys.stderr)
        time.sleep(WAIT_STEP_SECONDS)
        run = asker.get(address)
    return run


def _memory_ran_out(state: str, reason: str) -> str:
    death = death_of(state, reason)
    if death is not None and death.for_memory:
        return f"the run was killed for memory: {death.detail}"
    if state == "failed" and reason.rpartition(".")[2] in _OUT_OF_MEMORY:
        return f"the run ended with {reason}"
    return ""


def _may_have_run_out(state: str, reason: str) -> str:
    """Return why memory may have run out if the cause of the end is unknown, otherwise an empty string."""
    if state == "killed" and reason in ("SIGKILL", ""):
        return "the kernel sends SIGKILL when memory runs out, and no other cause is known"
    if state == "silent":
        return "the process never reported its end, so it may have been killed for memory"
    return ""


def _of_promises(broken: Sequence[Mapping[str, Any]], checked: int) -> str:
    if broken:
        return f"broken promises: {', '.join(dict.fromkeys(str(each['name']) for each in broken))}"
    return (
        f"none of {count_of(checked, 'promise')} was broken" if checked else "no promises were made"
    )


def report_checks(options: argparse.Namespace, checks: Sequence[Check]) -> int:
    """Print one line per requested condition and the conditions that failed the gate; return the exit status."""
    asked = [check for check in checks if check.condition in options.fail_on]
    held = [check.condition for check in asked if check.holds]
    if asked and options.markdown:
        print("\n## Gate\n")
        for check in asked:
            mark = "**held**" if check.holds else "not held"
            print(f"- `{check.condition}` {mark}: {escape(check.why)}")
    elif asked and not options.json:
        print("\n".join(check.line for check in asked))
        if held:
            print(f"the gate failed on: {', '.join(held)}")
    return GATE_STATUS if held else 0


def with_gate(
    answer: Mapping[str, Any], options: argparse.Namespace, checks: Sequence[Check]
) -> Mapping[str, Any]:
    """Return the server's response with the results of the gate added, or the unchanged response without --fail-on."""
    asked = [check for check in checks if check.condition in options.fail_on]
    if not asked:
        return answer
    passed = not any(check.holds for check in asked)
    return {**answer, "gate": {"passed": passed, "checks": [check._asdict() for check in asked]}}


def asked_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the conditions of --fail-on, or `leaking` if only a JUnit file is requested."""
    return options.fail_on or ((LEAKING,) if options.junit else ())


def write_junit(
    path: Path, suite: str, checks: Sequence[Check],
    properties: Mapping[str, object], findings: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """Write the checks as a JUnit file. Raises LeaklineError if the file cannot be written."""
    details = [finding_line(finding) for finding in findings]
    cases = [Case(check.condition, check.why if check.holds else "", details) for check in checks]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(junit(suite, cases, properties), encoding="utf-8")
    except OSError as error:
        raise LeaklineError(
            f"{path} cannot be written ({error.strerror}); choose another FILE"
        ) from None


def _conditions(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        wanted = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = [part for part in wanted if part not in known]
        if unknown or not wanted:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or text!r} is not a condition; use one or more of {', '.join(known)}"
            )
        return wanted

    return read


@dataclass(frozen=True, slots=True)
class Case:
    """A JUnit test case.

    ``failed`` is the reason for the failure, or empty if the case passed. ``details`` are listed below the reason.
    """

    name: str
    failed: str = ""
    details: Sequence[str] = ()


def junit(suite: str, cases: Sequence[Case], properties: Mapping[str, object]) -> str:
    """Return a JUnit document with one suite, ending with a newline."""
    failures = sum(bool(case.failed) for case in cases)
    root = Element("testsuites")
    suite_element = SubElement(
        root, "testsuite", name="leakline", tests=str(len(cases)), failures=str(failures), errors="0", skipped="0"
    )  # fmt: skip
    known = {name: value for name, value in properties.items() if value is not None}
    if known:
        listed = SubElement(suite_element, "properties")
        for name, value in known.items():
            SubElement(listed, "property", name=name, value=_xml(str(value)))
    for case in cases:
        one = SubElement(
            suite_element, "testcase", classname=_xml(f"leakline.{suite}"), name=_xml(case.name)
        )
        if case.failed:
            failure = SubElement(one, "failure", message=_xml(case.failed), type=case.name)
            failure.text = _xml("\n".join([case.failed, *case.details]))
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Replace characters that XML does not allow."""
    return printable(text, "\n")
