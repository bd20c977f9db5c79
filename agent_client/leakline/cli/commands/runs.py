"""List the runs of a server, newest first.

example: leakline runs
         leakline runs --project erl-trading --status suspected
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...analysis.generation_axis import UNITS_OF_TIME
from ...analysis.results import SEVERITY
from ...report.document_blocks import columns_text
from ...text_format import format_bytes, format_change
from ..server_queries import Asker, add_server

# Maximum page size of the API.
LIMIT: Final = 200
HEADINGS: Final = ("STATUS", "PROJECT/NAME", "STATE", "UNITS", "GROWTH", "MEMORY", "ID")


def configure(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--project", help="only runs of this project")
    parser.add_argument("--tag", help="only runs with this tag")
    parser.add_argument("--status", choices=SEVERITY, help="only runs with this verdict")
    parser.add_argument(
        "--limit",
        type=_limit,
        default=50,
        help=f"maximum number of runs, up to {LIMIT} (default 50)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    asker = Asker(options.server)
    query = {name: getattr(options, name) for name in ("project", "tag", "status", "limit")}
    answer = asker.get("/runs", query)
    if options.json:
        print(json.dumps(answer, indent=2))
    elif not answer["items"]:
        print(f"no runs on {asker.server}")
    else:
        print(columns_text([HEADINGS, *map(_row, answer["items"])]))
        if answer.get("next"):
            print("there are more runs; list them with a larger --limit")
    return 0


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LIMIT):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to {LIMIT}")
    return int(text)


def _row(run: Mapping[str, Any]) -> Sequence[str]:
    growth, memory, total = run["growth_bytes_per_generation"], run["rss_bytes"], run["total"]
    # If a run declares no generations, leave its count empty instead of showing zero.
    is_timed = run["unit"] in UNITS_OF_TIME and not run["generations"]
    return (
        run["status"],
        f"{run['project']}/{run['name']}",
        run["state"],
        "" if is_timed else f"{run['generations']}/{total}" if total else str(run["generations"]),
        "" if growth is None else f"{format_change(growth['estimate'])} per {run['unit']}",
        "" if memory is None else format_bytes(memory),
        run["id"],
    )
