"""Print the verdict of a run: where it leaks, what, how much, and since when.

RUN is a run id, or project/name for the newest run of that name.

With --fail-on the command is a gate for CI: the exit status is 3 if one of the
named conditions holds, and each condition is printed with its result and the
reason. The conditions are:

leaking    leak suspected or confirmed, oom holds, or killed for an unknown cause
oom        killed for memory, ended with an out-of-memory error, or critical
           risk of running out of memory
killed     ended by a signal (also for memory or with Ctrl-C), or silent
failed     ended with an exception or an exit status other than 0
refuted    a fix in the run does not keep a promise
STATUS     the verdict has this status, such as learning (not enough data yet)

example: leakline verdict erl-trading/before-fix
         leakline verdict 01k5... --json
         leakline verdict erl-trading/nightly --fail-on leaking,learning,killed,failed --junit leaks.xml
         leakline verdict erl-trading/nightly --markdown >> "$GITHUB_STEP_SUMMARY"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from ...analysis.results import SEVERITY
from ...report.document import verdict_lines
from ...report.terminal_text import plain
from ...transport.oom_inference import ended_as
from ..gates import (
    OF_A_RUN,
    Check,
    add_gate,
    asked_of,
    check_run,
    report_checks,
    wait_for_verdict,
    with_gate,
    write_junit,
)
from ..server_queries import Asker, add_server

CONDITIONS: Final = (*OF_A_RUN, *SEVERITY)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id, or project/name")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="print the verdict as JSON, with the results of --fail-on",
    )
    form.add_argument(
        "--markdown", action="store_true", help="print a report of the run as Markdown"
    )
    add_gate(parser, CONDITIONS)
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    asker = Asker(options.server)
    run = asker.run_id(options.run)
    asked = asked_of(options)
    wait_for_verdict(asker, run, asked)
    verdict = asker.get(f"/runs/{run}/verdict")
    state = {} if options.markdown and not asked else asker.get(f"/runs/{run}")
    checks = [_check(condition, verdict, state) for condition in asked]
    if options.json:
        print(json.dumps(with_gate(verdict, options, checks), indent=2))
    elif options.markdown:
        print(asker.markdown(f"/runs/{quote(run, safe='')}/report.md"), end="")
    else:
        print("\n".join(verdict_lines(verdict)))
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
    """Return the name of a run and its state: ``erl-trading/before-fix, killed by SIGTERM``."""
    how = ended_as(run["state"], run["reason"] or "")
    return plain(f"{run['project']}/{run['name']}, {how}")


def _check(condition: str, verdict: Mapping[str, Any], run: Mapping[str, Any]) -> Check:
    if condition in OF_A_RUN:
        return check_run(condition, verdict, run, verdict.get("assertions"))
    return Check(condition, verdict["status"] == condition, f"the verdict is {verdict['status']}")
