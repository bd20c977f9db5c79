"""Compare two runs: is the leak fixed?

BEFORE and AFTER are run ids, or project/name for the newest run of that name.

With --fail-on the command is a gate for CI, like `leakline verdict`. A
condition is an outcome of the comparison, or it applies to the run AFTER
(leaking, oom, killed, failed, refuted; see `leakline verdict --help`). Include
undecided, so that a run too short to compare does not pass.

example: leakline compare erl-trading/before-fix erl-trading/after-fix
         leakline compare erl-trading/main erl-trading/this-branch --fail-on leaking,worse,undecided,killed,failed
         leakline compare erl-trading/main erl-trading/this-branch --markdown > comment.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args
from urllib.parse import quote

from ...analysis.comparison.comparison_results import Outcome
from ...report.comparison_markdown import comparison_lines
from ...text_format import worded
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

CONDITIONS: Final = (*OF_A_RUN, *get_args(Outcome))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "before", metavar="BEFORE", help="run before the change: an id, or project/name"
    )
    parser.add_argument(
        "after", metavar="AFTER", help="run after the change: an id, or project/name"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print the comparison as JSON, with the results of --fail-on"
    )  # fmt: skip
    form.add_argument(
        "--markdown", action="store_true", help="print Markdown, for a pull request comment"
    )
    add_gate(parser, CONDITIONS)
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    asker = Asker(options.server)
    before, after = asker.run_id(options.before), asker.run_id(options.after)
    wait_for_verdict(asker, before)
    wait_for_verdict(asker, after, asked_of(options))
    comparison = asker.get("/compare", {"before": before, "after": after})
    checks = list(_checks(asked_of(options), comparison, asker, after))
    if options.json:
        print(json.dumps(with_gate(comparison, options, checks), indent=2))
    elif options.markdown:
        print(asker.markdown("/compare/report.md", {"before": before, "after": after}), end="")
    else:
        unit = asker.get(f"/runs/{quote(before, safe='')}")["unit"]
        print("\n".join(comparison_lines(comparison, unit)))
        print(f"\n{_page(asker, before, after)}")
    if options.junit:
        findings = [*comparison["findings"]["new"], *comparison["findings"]["still"]]
        write_junit(
            options.junit, "compare", checks,
            {**dict(_figures(comparison)), "page": _page(asker, before, after)}, findings,
        )  # fmt: skip
    return report_checks(options, checks)


def _figures(comparison: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the outcome, and the growth and peak of both runs in bytes, as properties of the JUnit file."""
    yield "outcome", comparison["outcome"]
    for name in ("growth_bytes_per_generation", "peak_bytes"):
        for side in ("before", "after"):
            figures = comparison[name][side]
            yield f"{name}.{side}", figures["estimate"] if isinstance(figures, Mapping) else figures


def _page(asker: Asker, before: str, after: str) -> str:
    return f"{asker.server}/compare?before={quote(before)}&after={quote(after)}"


def _checks(
    asked: Sequence[str], comparison: Mapping[str, Any], asker: Asker, after: str
) -> Iterator[Check]:
    outcome = comparison["outcome"]
    address = f"/runs/{quote(after, safe='')}"
    of_run = any(condition in OF_A_RUN for condition in asked)
    run, verdict = (asker.get(address), asker.get(f"{address}/verdict")) if of_run else ({}, {})
    for condition in asked:
        if condition in OF_A_RUN:
            yield check_run(condition, verdict, run, comparison.get("assertions"))
        else:
            yield Check(condition, outcome == condition, worded(outcome, comparison["summary"]))
