"""Is an estimate right? Compute a sum and print the factor by which the claim is off.

A sum has numbers and ranges (8-10 MB) with x, + and /; KB is 1,000 bytes and KiB 1,024. Words are skipped. With --run,
the size is also compared with the measured growth: of a suspect that the text names, else of the run. Write "per
generation" if the estimate is about one generation; otherwise it is about all since the growth began.

The exit status is 3 if an estimate is out (a factor over 2, or ranges that do not meet within a tenth), else 0.

example: leakline estimate "208 x 100 KB = 20 GB"
         leakline estimate "16 agents x 32 x 6 tensors x 8-10 MB = 27 GB" "7 x 3,072 = 21,504"
         leakline estimate "16 TradingEnvironment x 90 MB = 5-8 GB per generation" --run erl-trading/before-fix
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ...analysis.estimate_check import EstimateCheck, check_estimate, compare_with_growth
from ...analysis.results import to_json
from ...errors import BadArgument
from ...text_format import count_of, short_name
from ..server_queries import Asker, add_server

OUT_STATUS: Final = 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sums", metavar="SUM", nargs="+", help="such as '208 x 100 KB = 20 GB'")
    parser.add_argument("--run", help="an id, or project/name: compare with its growth")
    parser.add_argument("--json", action="store_true", help="the same as JSON, for programs")
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    found = [[_check(text)] for text in options.sums]
    if options.run is not None:
        asker = Asker(options.server)
        verdict = asker.get(f"/runs/{asker.run_id(options.run)}/verdict")
        for text, checks in zip(options.sums, found, strict=True):
            checks += _measured(text, checks[0], verdict)
    if options.json:
        items = [
            {"text": text, "checks": to_json(checks[:1]), "measured": to_json(checks[1:])}
            for text, checks in zip(options.sums, found, strict=True)
        ]
        print(json.dumps({"items": items}, indent=2))
    else:
        print("\n".join(f"{c.outcome:<9} {c.sentence}" for checks in found for c in checks))
    return OUT_STATUS if any(c.outcome == "out" for checks in found for c in checks) else 0


def _check(text: str) -> EstimateCheck:
    try:
        return check_estimate(text)
    except ValueError as error:
        raise BadArgument("SUM", text, str(error)) from None


def _measured(
    text: str, check: EstimateCheck, verdict: Mapping[str, Any]
) -> Iterator[EstimateCheck]:
    """Compare with the growth of each suspect that the text names, or else of the entire run."""
    words = {_plain(word) for word in re.findall(r"[^\W\d][\w.]*\w", text)}
    growth, unit = verdict["growth_bytes_per_generation"], verdict["unit"]
    rates: dict[str, tuple[float, int]] = {}
    for finding in reversed(verdict["findings"]):
        for suspect in finding["suspects"]:
            name, rate = short_name(suspect["name"]), suspect["bytes_per_generation"]
            if rate is not None and words & {_plain(suspect["name"]), _plain(name)}:
                rates[name] = rate, _length(verdict, [finding])
    if not rates and growth is not None:
        rates["the run"] = growth["estimate"], _length(verdict, verdict["findings"])
    is_rate = re.search(rf"(?:\bper|/|\beach|\bevery)\s*(?:{unit}|gen)\b", text, re.IGNORECASE)
    for name, (rate, times) in rates.items() if check.computed.is_size else ():
        span = f"per {unit}" if is_rate else f"at this rate in {count_of(times, unit)}"
        yield compare_with_growth(check, f"{name}, {span}", rate if is_rate else rate * times)


def _length(verdict: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> int:
    """Return how many generations a growth has lasted: all of them if no start is known."""
    starts = [each["started_at_generation"] for each in findings[:1]]
    return int(verdict["generations"] - (starts[0]["estimate"] if any(starts) else 0))


def _plain(name: str) -> str:
    return name.removesuffix("[*]").lower().rstrip("s")
