"""Compare two runs: is the leak fixed?

BEFORE and AFTER are run ids, or project/name for the newest run of that name. With --fail-on the exit status is
3 when a named condition holds: an outcome (fixed, improved, no_effect, worse, undecided); `leaking`, which means
that the run after is suspected or confirmed; or `refuted`, when a fix in it does not keep a promise. That is a gate
for CI.

example: leakline compare erl-trading/before-fix erl-trading/after-fix
         leakline compare erl-trading/main erl-trading/this-branch --fail-on leaking,worse
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from ..analysis.results import Outcome
from ..analysis.wording import format_bytes, format_change
from .asking import Asker, add_server
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
    parser.add_argument("--json", action="store_true", help="the comparison as the server gives it")
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
    else:
        print("\n".join(_told(comparison)))
        print(f"\n{asker.server}/compare?before={before}&after={after}")
    held = [
        condition for condition in options.fail_on if _holds(condition, comparison, asker, after)
    ]
    if held and not options.json:
        print(f"failed on: {', '.join(held)}")
    return GATE_STATUS if held else 0


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
    yield table(
        [
            ("", "BEFORE", "AFTER", "CHANGE"),
            _change("growth per generation", comparison["growth_bytes_per_generation"], _growth),
            _change("peak memory", comparison["peak_bytes"], format_bytes),
            _change("seconds per generation", comparison["seconds_per_generation"], _seconds),
        ]
    )
    yield from _difference(comparison["growth_bytes_per_generation"].get("difference"))
    for title in ("gone", "still", "new"):
        for finding in comparison["findings"][title]:
            names = ", ".join(suspect["name"] for suspect in finding["suspects"][:2])
            where = finding["phase"] or "no single phase"
            yield f"{title}: {finding['status']} in {where}: {names or finding['kind']}"
    for name, (old, new) in comparison["environment_changes"].items():
        # Two runs always differ in it, and it is longer than all else; --json has it.
        if name != "command_line":
            yield f"environment: {name} {old} -> {new}"
    yield from promised(comparison)


def _difference(found: Mapping[str, float] | None) -> Iterator[str]:
    if found is not None:
        middle, low, high = (format_change(found[end]) for end in ("estimate", "low", "high"))
        yield f"difference: {middle} per generation ({low} to {high})"


def _change(title: str, change: Mapping[str, Any], told: Any) -> tuple[str, str, str, str]:
    percent = change["change_percent"]
    before, after = (
        "" if change[side] is None else told(change[side]) for side in ("before", "after")
    )
    return title, before, after, "" if percent is None else f"{percent:+.1f} %"


def _growth(growth: Mapping[str, float] | float) -> str:
    return format_change(growth["estimate"] if isinstance(growth, Mapping) else growth)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"
