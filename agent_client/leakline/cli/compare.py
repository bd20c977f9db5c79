"""Compare two runs: is the leak fixed?

BEFORE and AFTER are run ids, or project/name for the newest run of that name. With --fail-on the exit status is
3 when a named condition holds: an outcome (fixed, improved, no_effect, worse, undecided); `leaking`, which means
that the run after is suspected or confirmed; or `refuted`, when a fix in it does not keep a promise. That is a gate
for CI.

example: leakline compare erl-trading/before-fix erl-trading/after-fix
         leakline compare erl-trading/main erl-trading/this-branch --fail-on leaking,worse
         leakline compare erl-trading/main erl-trading/this-branch --markdown > comment.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args
from urllib.parse import quote

from ..analysis.results import Outcome
from ..analysis.wording import count_of
from ..report.comparison import ComparisonTold, SideTold, comparison_markdown
from ..report.facts import change_interval, change_rows, finding_line
from .asking import Asker, add_server
from .report import made_now
from .runs import table
from .verdict import promised

LEAKING: Final = "leaking"
REFUTED: Final = "refuted"
CONDITIONS: Final = (LEAKING, *get_args(Outcome), REFUTED)
LEAKING_STATUSES: Final = ("suspected", "confirmed")
GATE_STATUS: Final = 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="an id, or project/name")
    parser.add_argument("after", metavar="AFTER", help="an id, or project/name")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the comparison as the server gives it")
    form.add_argument("--markdown", action="store_true", help="in Markdown, to go with a change")
    parser.add_argument(
        "--fail-on", type=_conditions, default=(), metavar="CONDITIONS",
        help=f"exit with status 3 when one holds; of {', '.join(CONDITIONS)}, with commas between",
    )  # fmt: skip
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    asker = Asker(options.server)
    before, after = asker.run_id(options.before), asker.run_id(options.after)
    comparison = asker.get("/compare", {"before": before, "after": after})
    if options.json:
        print(json.dumps(comparison, indent=2))
    elif options.markdown:
        print(_markdown(comparison, asker), end="")
    else:
        print("\n".join(_told(comparison)))
        print(f"\n{_page(asker, before, after)}")
    held = [
        condition for condition in options.fail_on if _holds(condition, comparison, asker, after)
    ]
    if held and not (options.json or options.markdown):
        print(f"failed on: {', '.join(held)}")
    return GATE_STATUS if held else 0


def _page(asker: Asker, before: str, after: str) -> str:
    return f"{asker.server}/compare?before={quote(before)}&after={quote(after)}"


def _markdown(comparison: Mapping[str, Any], asker: Asker) -> str:
    before, after = (
        asker.get(f"/runs/{quote(comparison[s], safe='')}") for s in ("before", "after")
    )
    origin = made_now(asker.server, _page(asker, before["id"], after["id"]))
    told = ComparisonTold(comparison, _side(before), _side(after), origin, before["unit"])
    return comparison_markdown(told)


def _side(run: Mapping[str, Any]) -> SideTold:
    progress = count_of(run["generations"], run["unit"])
    return SideTold(run["project"], run["name"], run["id"], progress)


def _conditions(text: str) -> tuple[str, ...]:
    wanted = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [part for part in wanted if part not in CONDITIONS]
    if unknown or not wanted:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or text!r} is no condition; use some of {', '.join(CONDITIONS)}"
        )
    return wanted


def _holds(condition: str, comparison: Mapping[str, Any], asker: Asker, after: str) -> bool:
    if condition == LEAKING:
        return asker.get(f"/runs/{after}/verdict")["status"] in LEAKING_STATUSES
    if condition == REFUTED:
        return any(check["outcome"] == REFUTED for check in comparison.get("fixes", ()))
    return bool(comparison["outcome"] == condition)


def _told(comparison: Mapping[str, Any]) -> Iterator[str]:
    yield f"{comparison['outcome']}: {comparison['summary']}"
    yield ""
    yield table([("", "BEFORE", "AFTER", "CHANGE"), *change_rows(comparison, "generation")])
    difference = comparison["growth_bytes_per_generation"].get("difference")
    if difference is not None:
        yield f"difference: {change_interval(difference, ' per generation')}"
    for title in ("gone", "still", "new"):
        yield from (f"{title}: {finding_line(each)}" for each in comparison["findings"][title])
    for name, (old, new) in comparison["environment_changes"].items():
        # Two runs always differ in it, and it is longer than all else; --json has it.
        if name != "command_line":
            yield f"environment: {name} {old} -> {new}"
    yield from promised(comparison)
