"""Check an estimate and print the factor by which its claim is off.

An estimate combines numbers and ranges (8-10 MB) with x, + and /. KB is 1,000
bytes and KiB is 1,024. Words are ignored. With --run, the size is also
compared with the measured growth of each suspect that the text names, or of
the entire run if it names none. If the text contains "per generation", the
growth per generation is used; otherwise, the total since the growth began.

The exit status is 3 if an estimate is off by a factor of more than 2, or by
more than 10 % if it has ranges; otherwise it is 0.

example: leakline estimate "208 x 100 KB = 20 GB"
         leakline estimate "16 agents x 32 x 6 tensors x 8-10 MB = 27 GB" "7 x 3,072 = 21,504"
         leakline estimate "16 TradingEnvironment x 90 MB = 5-8 GB per generation" --run erl-trading/before-fix
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ...analysis.results import to_json
from ...errors import BadArgument
from ...text_format import count_of, format_bytes, format_count, short_name
from ..server_queries import Asker, add_server

Direction = Literal["too_high", "too_low"]
EXAMPLE: Final = "write it as 208 x 100 KB = 20 GB"
# Factors by which an estimate may be off and still count as right, or as near, which is close enough for planning.
RIGHT: Final = 1.1
NEAR: Final = 2.0
_MAX_TEXT: Final = 500
_MAX_NUMBER: Final = 1e30
_COUNTS: Final = {"": 1.0, "%": 0.01, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "billion": 1e9}  # fmt: skip
_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_TOKEN: Final = re.compile(
    rf"(?P<low>{_NUMBER})(?:\s*(?:-|–|\bto\b)\s*(?P<high>{_NUMBER}))?"
    r"\s?(?P<unit>%|(?:(?:[KMGTP]i?)?B|bytes?|[KM]|thousand|[mb]illion)(?!\w)|)"
    # Reject letters directly after a number, which may be an unknown unit, except the x of 208x100, which is an
    # operator.
    r"(?![\d,.]*\d|(?!x(?:[\s\d~]|$))[^\W\d])"
    r"|(?P<sign>[×*+]|(?<![A-Z_])x(?![A-Z_])|/(?=[\s~]*\d))"
    r"|[^\W\d][\w-]*|[\s,;:!?'\"~/]|\.(?!\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A range, with equal ends for a single number. A size is in bytes; any other amount is a count."""

    low: float
    high: float
    is_size: bool


@dataclass(frozen=True, slots=True)
class EstimateCheck:
    """The result of comparing a claim with a computed amount.

    ``factor`` is the ratio between the nearest ends of the two ranges, or None if the smaller of these ends is zero.
    """

    computed: Amount
    claimed: Amount | None
    outcome: Literal["computed", "right", "near", "out"]
    factor: float | None
    direction: Direction | None
    sentence: str


def check_estimate(text: str) -> EstimateCheck:
    """Evaluate an estimate and, if it contains an equals sign, compare the result with the claim.

    Raises ValueError with a one-line message for text that cannot be parsed.
    """
    sides = [side.strip(" \t.!") for side in re.split(r"[=≈][=≈\s]*", text)]
    if len(text) > _MAX_TEXT or len(sides) > 2:
        raise ValueError(f"is too long or has several equals signs; {EXAMPLE}")
    (computed, is_sum), *claims = map(_parse, sides)
    if claims and claims[0][1] and not is_sum:
        sides.reverse()
        (computed, is_sum), claims = claims[0], [(computed, is_sum)]
    fact = f"{sides[0]} is {_format(computed, binary='iB' in text)}"
    if not claims and is_sum:
        return EstimateCheck(computed, None, "computed", None, None, f"{fact}.")
    if not claims or claims[0][0].is_size != computed.is_size:
        raise ValueError(f"both sides must be sizes, or both must be counts; {EXAMPLE}")
    # A range already states its uncertainty, so the claim must match it more closely.
    is_range = any(amount.low < amount.high for amount in (computed, claims[0][0]))
    return _compare(f"{fact}; {sides[1]}", computed, claims[0][0], RIGHT if is_range else NEAR)


def compare_with_growth(check: EstimateCheck, subject: str, growth: float) -> EstimateCheck:
    """Compare a claim, or the computed sum if there is no claim, with measured bytes."""
    size, claimed = max(0.0, growth), check.claimed or check.computed
    measured = Amount(size, size, True)
    fact = f"{subject}: {_format(measured, binary=True)} measured; {_format(claimed, binary=True)}"
    return _compare(fact, measured, claimed, NEAR)


def _compare(fact: str, computed: Amount, claimed: Amount, near: float) -> EstimateCheck:
    """Return a check whose sentence begins with ``fact``. Being off by a factor of up to ``near`` counts as near."""
    is_high = claimed.low > computed.high
    large, small = (claimed.low, computed.high) if is_high else (computed.low, claimed.high)
    if large <= small:
        return EstimateCheck(computed, claimed, "right", 1.0, None, f"{fact} is right.")
    factor = large / small if small > 0 else None
    direction: Direction = "too_high" if is_high else "too_low"
    if factor is not None and factor <= RIGHT:
        return EstimateCheck(computed, claimed, "right", factor, direction, f"{fact} is right.")
    is_near = factor is not None and factor <= near
    by = "" if factor is None else f" by a factor of {rounded_factor(factor)}"
    sentence = f"{fact} is {'near, off' if is_near else 'off'}{by} ({direction.replace('_', ' ')})."
    return EstimateCheck(
        computed, claimed, "near" if is_near else "out", factor, direction, sentence
    )


def rounded_factor(factor: float) -> str:
    """Return ``about 1,000`` for 962, which is close to a power of ten; otherwise round to two digits."""
    if factor > 1e15:
        return "over 1e15"
    power = 10.0 ** round(math.log10(factor))
    if power >= 10 and abs(factor / power - 1) <= 0.06:
        return f"about {power:,.0f}"
    return f"{factor:.1f}" if factor < 10 else f"{float(f'{factor:.2g}'):,.0f}"


def _parse(text: str) -> tuple[Amount, bool]:
    """Return the amount on one side of the equals sign, and whether that side contains an operator. Raises
    ValueError.
    """
    terms: list[Amount] = []
    sign, is_sum, at = "+", False, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at : at + 20]!r} cannot be parsed; {EXAMPLE}")
        at = token.end()
        if token["sign"] and not sign:
            sign, is_sum = token["sign"], True
        elif token["sign"] or (token["low"] and not sign):
            raise ValueError(f"exactly one operator must precede {token.group()!r}; {EXAMPLE}")
        elif token["low"]:
            amount = _amount(token)
            terms.append(amount if sign == "+" else _combine(terms.pop(), sign, amount))
            sign = ""
    if sign or len({term.is_size for term in terms}) > 1:
        raise ValueError(f"a number is missing, or sizes and counts are added; {EXAMPLE}")
    low, high = sum(term.low for term in terms), sum(term.high for term in terms)
    if not high <= _MAX_NUMBER or any(term.low > term.high for term in terms):
        raise ValueError("a number is too large, or a range is reversed")
    return Amount(low, high, terms[0].is_size), is_sum


def _amount(token: re.Match[str]) -> Amount:
    """Return the amount of ``8-10 MB``, ``100 KB`` or ``45M``."""
    unit, ends = token["unit"].lower(), (token["low"], token["high"] or token["low"])
    scale = _COUNTS.get(unit) or (1024 if "i" in unit else 1000) ** ("kmgtp".find(unit[0]) + 1)
    low, high = (float(end.replace(",", "")) * scale for end in ends)
    return Amount(low, high, unit not in _COUNTS)


def _combine(left: Amount, sign: str, right: Amount) -> Amount:
    if sign != "/" and not (left.is_size and right.is_size):
        return Amount(left.low * right.low, left.high * right.high, left.is_size or right.is_size)
    if sign == "/" and right.low > 0 and (left.is_size or not right.is_size):
        return Amount(left.low / right.high, left.high / right.low, left.is_size != right.is_size)
    raise ValueError("two sizes are multiplied, or a number is divided by zero or by a size")


def _format(amount: Amount, *, binary: bool) -> str:
    write = format_count if not amount.is_size else format_bytes if binary else _decimal
    low, high = write(amount.low), write(amount.high)
    return low if low == high else f"{low} to {high}"


def _decimal(value: float) -> str:
    power = min(5, int(math.log(max(1.0, value), 1000) + 1e-9))
    return f"{value / 1000**power:.4g} {'KMGTP'[power - 1] if power else ''}B"


OUT_STATUS: Final = 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sums", metavar="SUM", nargs="+", help="an estimate, such as '208 x 100 KB = 20 GB'"
    )
    parser.add_argument(
        "--run", help="also compare with the growth of this run (an id, or project/name)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
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
    """Compare the estimate with the growth of each suspect that the text names, or otherwise of the entire run."""
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
    """Return the number of generations since the growth began, or of the entire run if its start is unknown."""
    starts = [each["started_at_generation"] for each in findings[:1]]
    return int(verdict["generations"] - (starts[0]["estimate"] if any(starts) else 0))


def _plain(name: str) -> str:
    return name.removesuffix("[*]").lower().rstrip("s")
