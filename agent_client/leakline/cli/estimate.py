"""Is an estimate right? Computes a sum as people write it, and says by what factor it is off.

Words between the numbers are skipped. Understood are x, +, / and brackets, ranges (8-10 MB), "about", KB and KiB,
percent, and thousands separators. With --run, what the text names (a class or a container) is held against what
that run measured: how many per generation or by now, how large each, how much in all. Say "per generation" in the
text where that is what you mean.

The exit status is 3 when one estimate is out, else 0; 2 when a text is not understood. Out is one by more than a
factor of 2, or one whose ranges do not meet within a tenth: who states a range has said how far off it may be.

example: leakline estimate "208 x 100 KB = 20 GB"
         leakline estimate "16 agents x 32 x 6 tensors x 8-10 MB = 27 GB" "7 x 3,072 = 21,504"
         leakline estimate "16 TradingEnvironment x 90 MB = 5-8 GB per generation" --run erl-trading/before-fix
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..analysis.candidates import family_of
from ..analysis.estimates import (
    Estimate,
    EstimateCheck,
    Measured,
    check_estimate,
    held_against,
    is_named,
    worst,
)
from ..analysis.results import to_json
from ..analysis.sums import NotUnderstood
from ..analysis.wording import short_name
from ..errors import BadArgument
from .asking import Asker, add_server

OUT_STATUS: Final = 3
# Names told to somebody whose text has none of them.
_NAMES_TOLD: Final = 6
# What the shallow size of a type is all of.
_BUFFERS: Final = ("tensor", "array")


@dataclass(frozen=True, slots=True)
class Answer:
    """One text with its checks; ``measured`` is None where no run was asked for."""

    estimate: Estimate
    measured: tuple[EstimateCheck, ...] | None

    @property
    def outcome(self) -> str:
        return worst([*self.estimate.checks, *(self.measured or ())])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sums", metavar="SUM", nargs="+", help="such as '208 x 100 KB = 20 GB'")
    parser.add_argument("--run", metavar="RUN", help="an id, or project/name: hold it against that")
    parser.add_argument("--json", action="store_true", help="the same as JSON, for programs")
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    estimates = [_read(text) for text in options.sums]
    known = None if options.run is None else _measured(Asker(options.server), options.run)
    answers = [_answer(estimate, known) for estimate in estimates]
    if options.json:
        print(json.dumps({"items": [_plain(answer) for answer in answers]}, indent=2))
    else:
        print("\n".join(line for answer in answers for line in _told(answer, options.run, known)))
    return OUT_STATUS if any(answer.outcome == "out" for answer in answers) else 0


def _read(text: str) -> Estimate:
    try:
        return check_estimate(text)
    except NotUnderstood as error:
        raise BadArgument("SUM", text, str(error)) from None


def _answer(estimate: Estimate, known: Sequence[Measured] | None) -> Answer:
    if known is None:
        return Answer(estimate, None)
    named = [each for each in known if is_named(estimate.text, each.name)]
    return Answer(estimate, tuple(c for each in named for c in held_against(estimate, each)))


def _told(answer: Answer, run: str | None, known: Sequence[Measured] | None) -> Iterator[str]:
    for check in answer.estimate.checks:
        yield f"{check.outcome:<9} {check.sentence}"
    for check in answer.measured or ():
        yield f"{check.outcome:<9}    {check.sentence}"
    if known is not None and not answer.measured:
        names = ", ".join(short_name(each.name) for each in known[:_NAMES_TOLD])
        yield f"{'':<9}    Nothing in it names what {run} measured{f', such as {names}' if names else ''}."


def _plain(answer: Answer) -> dict[str, Any]:
    measured = None if answer.measured is None else to_json(answer.measured)
    return {
        "text": answer.estimate.text, "outcome": answer.outcome, "checks": to_json(answer.estimate.checks),
        "measured": measured,
    }  # fmt: skip


def _measured(asker: Asker, wanted: str) -> list[Measured]:
    """What the run measured of classes and containers, those that it suspects first."""
    run = asker.run_id(wanted)
    verdict = asker.get(f"/runs/{run}/verdict")
    each = {
        holder["type"]: float(holder["bytes_each"])
        for holder in asker.get(f"/runs/{run}/holders")["items"]
        if holder["bytes_each"]
    }
    found: dict[str, Measured] = {}
    types = {row["name"]: row for row in asker.get(f"/runs/{run}/types")["items"]}
    stores = {row["name"]: row for row in asker.get(f"/runs/{run}/stores")["items"]}
    for finding in verdict["findings"]:
        for suspect in finding["suspects"]:
            if suspect["role"] in ("type", "container"):
                name = suspect["name"]
                row = types.get(name) or stores.get(name) or {}
                found.setdefault(name, _of_suspect(suspect, row, each.get(name), verdict))
    for name, row in {**types, **stores}.items():
        found.setdefault(name, _of_row(row, each.get(name), verdict))
    return list(found.values())


def _of_suspect(
    suspect: Mapping[str, Any],
    row: Mapping[str, Any],
    each: float | None,
    verdict: Mapping[str, Any],
) -> Measured:
    count, size = suspect["count_per_generation"], suspect["bytes_per_generation"]
    if each is None and count and size:
        each = size / count
    return Measured(
        suspect["name"], verdict["unit"], verdict["generations"], count, size, _now(row), each
    )


def _of_row(row: Mapping[str, Any], each: float | None, verdict: Mapping[str, Any]) -> Measured:
    """A type or a store that nothing suspects."""
    now, rate = _now(row), row.get("count_per_generation")
    whole = "length" in row or family_of(row["name"], "type") in _BUFFERS
    if each is None and whole and now and row["bytes"]:
        each = row["bytes"] / now
    count = None if rate is None else max(0.0, rate["estimate"])
    size = None if count is None or each is None else count * each
    return Measured(row["name"], verdict["unit"], verdict["generations"], count, size, now, each)


def _now(row: Mapping[str, Any]) -> float | None:
    """How many there are by now: instances of a type, entries of a store."""
    return next((row[name] for name in ("last_count", "length") if row.get(name) is not None), None)
