"""The verdict of one run: where it leaks, what, how much, and since when.

RUN is a run's id, or project/name for the newest run of that name.

example: leakline verdict erl-trading/before-fix
         leakline verdict 01k5... --json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..analysis.summary import check_lines, course_lines, plan_lines, promise_lines
from ..report.facts import finding_facts, forecast, interval
from .asking import Asker, add_server


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="an id, or project/name")
    parser.add_argument("--json", action="store_true", help="the verdict as the server gives it")
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    asker = Asker(options.server)
    run = asker.run_id(options.run)
    verdict = asker.get(f"/runs/{run}/verdict")
    if options.json:
        print(json.dumps(verdict, indent=2))
    else:
        print("\n".join(_told(verdict)))
        print(f"\n{asker.server}/runs/{run}")
    return 0


def _told(verdict: Mapping[str, Any]) -> Iterator[str]:
    yield f"{verdict['status']}: {verdict['summary']}"
    growth, unit = verdict["growth_bytes_per_generation"], verdict["unit"]
    if growth is not None:
        yield f"after {verdict['generations']} {unit}s: {interval(growth)} per {unit}"
    for number, finding in enumerate(verdict["findings"], 1):
        yield ""
        yield from _finding(number, finding, unit)
    if verdict["ruled_out"]:
        yield ""
    for line in verdict["ruled_out"]:
        yield f"ruled out: {line['phase']}, {line['reason']}"
    yield from _forecast(verdict["oom"], unit)
    yield from _course(verdict, unit)
    yield from promised(verdict)
    yield from _checklist(verdict.get("checklist"))
    yield from _planned(verdict, unit)


def promised(answer: Mapping[str, Any]) -> Iterator[str]:
    """What the fixes of a verdict, or of the run after in a comparison, promised; nothing without a fix."""
    # A verdict of a server before promises were checked has none.
    fixes = answer.get("fixes")
    if fixes:
        yield ""
        yield "what the fix promised:"
        yield from (f"   {line}" for line in promise_lines(fixes))


def _course(verdict: Mapping[str, Any], unit: str) -> Iterator[str]:
    # A verdict of an older server knows of neither.
    known = verdict.get("settled_at_generation"), verdict.get("forecast_score")
    if any(known):
        yield ""
        yield from course_lines(*known, unit)


def _planned(verdict: Mapping[str, Any], unit: str) -> Iterator[str]:
    bands, budgets = verdict.get("bands") or (), verdict.get("budgets") or ()
    if bands or budgets:
        yield ""
        yield "what was planned:"
        yield from (f"   {line}" for line in plan_lines(bands, budgets, unit))


def _checklist(items: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    # A verdict of a server before there was one has none.
    if items:
        yield ""
        yield "checklist:"
        yield from (f"   {line}" for line in check_lines(items))


def _finding(number: int, finding: Mapping[str, Any], unit: str) -> Iterator[str]:
    yield f"{number}. {finding['status']}, {finding['kind']}"
    yield from (f"   {title:<9} {fact}" for title, fact in finding_facts(finding, unit))
    for title in ("evidence", "advice"):
        for sentence in finding[title]:
            yield f"   {title:<9} {sentence}"


def _forecast(oom: Mapping[str, Any], unit: str) -> Iterator[str]:
    told = forecast(oom, unit)
    if told and oom["risk"] != "none":
        yield ""
        yield f"memory runs out ({oom['risk']} risk): {told}"
