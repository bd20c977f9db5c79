"""The verdict of one run: where it leaks, what, how much, and since when.

RUN is a run's id, or project/name for the newest run of that name. With --fail-on the exit status is 3 when a named
condition holds, and each condition is printed with whether it held, and why:

leaking    suspected or confirmed, or all that `oom` means, or killed without a known cause
oom        killed for memory, ended with an out-of-memory error, or about to run out (risk critical)
killed     ended by a signal, for memory or with Ctrl-C, or silent without an end
failed     ended with an exception or an exit status other than 0
refuted    a fix in the run does not keep a promise
STATUS     the verdict has this status, such as learning: nothing is known yet

example: leakline verdict erl-trading/before-fix
         leakline verdict 01k5... --json
         leakline verdict erl-trading/nightly --fail-on leaking,killed,failed --junit leaks.xml
         leakline verdict erl-trading/nightly --markdown >> "$GITHUB_STEP_SUMMARY"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from ..analysis.assertions.words import assertion_lines
from ..analysis.results import SEVERITY
from ..analysis.summary import check_lines, course_lines, effect_lines
from ..kills import ended_as
from ..report.facts import (
    beside_finding,
    finding_facts,
    forecast,
    interval,
    is_forecast_known,
    seen,
)
from ..report.frame import plain
from ..report.markdown import RunTold, run_markdown
from ..text_format import worded
from .asking import Asker, add_server
from .gates import (
    OF_A_RUN,
    Check,
    add_gate,
    asked_of,
    check_run,
    report_checks,
    wait_for_end,
    with_gate,
    write_junit,
)
from .report import made_now

CONDITIONS: Final = (*OF_A_RUN, *SEVERITY)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="an id, or project/name")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="the verdict as the server gives it, and what the gate checked",
    )
    form.add_argument("--markdown", action="store_true", help="the run in Markdown")
    add_gate(parser, CONDITIONS)
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    asker = Asker(options.server)
    run = asker.run_id(options.run)
    asked = asked_of(options)
    wait_for_end(asker, f"/runs/{run}", asked)
    verdict = asker.get(f"/runs/{run}/verdict")
    state = {} if options.markdown and not asked else asker.get(f"/runs/{run}")
    checks = [_check(condition, verdict, state) for condition in asked]
    if options.json:
        print(json.dumps(with_gate(verdict, options, checks), indent=2))
    elif options.markdown:
        print(_markdown(asker, run, verdict), end="")
    else:
        print("\n".join(told(verdict)))
        print(f"\n{_whose(state)}\n{asker.server}/runs/{run}")
    if options.junit:
        growth = verdict["growth_bytes_per_generation"]
        figures = {
            "status": verdict["status"], "page": f"{asker.server}/runs/{run}",
            "growth_bytes_per_generation": None if growth is None else growth["estimate"],
        }  # fmt: skip
        write_junit(options.junit, "verdict", checks, figures, verdict["findings"])
    return report_checks(options, checks)


def _whose(run: Mapping[str, Any]) -> str:
    """``erl-trading/before-fix, killed by SIGTERM``: of which run it is, and how that ended or that it goes on."""
    how = ended_as(run["state"], run["reason"] or "")
    return plain(f"{run['project']}/{run['name']}, {how}")


def _check(condition: str, verdict: Mapping[str, Any], run: Mapping[str, Any]) -> Check:
    if condition in OF_A_RUN:
        return check_run(condition, verdict, run, verdict.get("assertions"))
    return Check(condition, verdict["status"] == condition, f"the verdict is {verdict['status']}")


def _markdown(asker: Asker, run_id: str, verdict: Mapping[str, Any]) -> str:
    address = f"/runs/{quote(run_id, safe='')}"
    run = asker.get(address)
    return run_markdown(
        RunTold(
            project=run["project"], name=run["name"], id=run["id"], state=run["state"],
            progress=seen(verdict),
            started=run["started_at"], verdict=verdict, books=asker.get(f"{address}/books"),
            types=asker.get(f"{address}/types")["items"], environment=run["environment"],
            origin=made_now(asker.server, f"{asker.server}{address}"), unit=verdict["unit"],
        )
    )  # fmt: skip


def told(verdict: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a verdict, as the API gives it."""
    yield worded(verdict["status"], verdict["summary"])
    growth, unit = verdict["growth_bytes_per_generation"], verdict["unit"]
    if growth is not None:
        yield f"after {seen(verdict)}: {interval(growth)} per {unit}{beside_finding(verdict)}"
    for number, finding in enumerate(verdict["findings"], 1):
        yield ""
        yield from _finding(number, finding, unit)
    if verdict["ruled_out"]:
        yield ""
    for line in verdict["ruled_out"]:
        yield f"ruled out: {line['phase']}, {line['reason']}"
    yield from _forecast(verdict["oom"], unit)
    yield from _course(verdict, unit)
    yield from checked(verdict, unit)
    yield from _checklist(verdict.get("checklist"))


def checked(answer: Mapping[str, Any], unit: str) -> Iterator[str]:
    """Yield what fixes have done and what became of each expectation, of a verdict or of a comparison's run after."""
    # The answer of an older server lacks some.
    for title, lines in (
        ("what each fix has done:", effect_lines(answer.get("effects") or ())),
        ("expectations:", assertion_lines(answer.get("assertions") or (), unit)),
    ):
        found = list(lines)
        if found:
            yield from ("", title, *(f"   {line}" for line in found))


def _course(verdict: Mapping[str, Any], unit: str) -> Iterator[str]:
    lines = list(course_lines(verdict, unit))
    if lines:
        yield ""
        yield from lines


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
    if is_forecast_known(oom):
        yield ""
        yield f"forecast: {forecast(oom, unit)}"
