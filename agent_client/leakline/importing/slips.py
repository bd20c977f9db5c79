"""Arithmetic of a log, done again: what is printed is held against what the figures beside it give.

Nothing here knows a report. Each rule computes from the file alone, with the rounding of the printed digits taken into
account, and says which line is off and what it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..analysis.estimates import check_estimate
from ..analysis.sums import MAX_TEXT, NotUnderstood
from ..sizes import format_bytes
from ..snapshot import LARGEST_INTEGER
from .log import MAX_SLIPS, Reading, Slip
from .numbering import mark_of
from .sizes_told import NUMBER, UNIT, Told, apart, told

# How far a claim may be from what was measured.
NEAR: Final = 2.0
MAX_DIGITS: Final = 24
# From one reading to the next; no program does that, a unit that changed does.
JUMP: Final = 300.0
_PRODUCT: Final = re.compile(r"\d.{0,200}?(?:×|Ã—|√ó|\*|\bx\b|[\d)]\s?x\s?[\d(])", re.IGNORECASE)
_SHOULD: Final = re.compile(
    r"\b(?:should|must)\s+(?:always\s+|still\s+|now\s+)?(?:be|stay|remain)\s+"
    r"(?:at\s+|exactly\s+|always\s+|about\s+|around\s+|[~≈]\s?)*"
    rf"(?P<low>{NUMBER})(?:\s*(?:-|–|to)\s*(?P<high>{NUMBER}))?\s*(?P<unit>{UNIT})?",
    re.IGNORECASE,
)
_NOW: Final = re.compile(r"\bnow\s+(?P<count>\d[\d,]{0,15})\b(?!\s*[KMGT]i?B)", re.IGNORECASE)
_RATE: Final = re.compile(
    rf"(?P<low>{NUMBER})\s*(?:(?:-|–|to)\s*(?P<high>{NUMBER})\s*)?(?P<unit>{UNIT})\s*(?:/|per)\s*"
    r"(?:gen(?:eration)?|episode|epoch|step|iteration)\b",
    re.IGNORECASE,
)


# Held of one source of them, before they are put in order.
_MAX_HELD: Final = 1_000


class Found:
    """Slips as they are found: the first of them, and how many more there were."""

    def __init__(self) -> None:
        self.held: dict[Slip, None] = {}
        self.more = 0

    def add(self, slips: Iterable[Slip]) -> None:
        for slip in slips:
            if len(self.held) < _MAX_HELD or slip in self.held:
                self.held[slip] = None
            else:
                self.more += 1


def sums(line: int, text: str) -> Iterator[Slip]:
    """A sum that somebody wrote out, where it is out by more than a factor of two."""
    if "=" not in text or len(text) > MAX_TEXT or not _PRODUCT.search(text):
        return
    try:
        estimate = check_estimate(text)
    except NotUnderstood:
        return
    for check in estimate.checks:
        if check.outcome == "out":
            yield Slip(line, check.sentence)


def change(
    line: int, printed: Told, now: Told, before: Sequence[tuple[str, Told]]
) -> Iterator[Slip]:
    """``before``: what it may be counted from, with its name. It is a slip where none of them gives what is printed."""
    if not before or any(not apart(printed, now.bytes - b.bytes, now, b) for _, b in before):
        return
    given = " and ".join(
        f"{printed.like(now.bytes - b.bytes)} against {name}" for name, b in _distinct(before)
    )
    yield Slip(line, f"the change is printed as {printed.said}; the figures give {given}")


def growth(
    line: int, printed: Told, percent: tuple[float, int] | None, first: Told, last: Told
) -> Iterator[Slip]:
    """``percent``: with the number of its decimals."""
    difference = last.bytes - first.bytes
    if apart(printed, difference, first, last):
        yield Slip(
            line,
            f"growth is printed as {printed.said}; from {first.said} to {last.said} it is {printed.like(difference)}",
        )
    if percent is None or first.bytes <= 0:
        return
    share, decimals = percent
    computed = 100 * difference / first.bytes
    slack = 100 * (last.slack + first.slack * last.bytes / first.bytes) / first.bytes
    if abs(share - computed) > 0.51 * 10.0**-decimals + slack:
        yield Slip(
            line,
            f"growth is printed as {share:+g} %; from {first.said} to {last.said} it is {computed:+.1f} %",
        )


def counted(line: int, name: str, old: int, new: int, delta: int) -> Iterator[Slip]:
    if new - old != delta:
        yield Slip(line, f"{name} from {old:,} to {new:,} is {new - old:+,}, not {delta:+,}")


def said_to_be(note: str) -> list[int]:
    """The counts that a remark allows: "should be 2", "now 17"."""
    found = _SHOULD.search(note)
    said = [found["low"], found["high"]] if found is not None and not found["unit"] else []
    now = _NOW.search(note)
    said += [now["count"]] if now is not None else []
    counts = (
        int(float(number.replace(",", "")))
        for number in said
        if number and len(number) < MAX_DIGITS
    )
    return [count for count in counts if count <= LARGEST_INTEGER]


def beside(line: int, name: str, note: str, count: int | None, size: Told | None) -> Iterator[Slip]:
    """A remark behind a figure that says what it should be."""
    found = _SHOULD.search(note)
    if found is None:
        return
    if count is not None and not found["unit"]:
        low = float(found["low"].replace(",", ""))
        high = float((found["high"] or found["low"]).replace(",", ""))
        if not low <= count <= high:
            yield Slip(
                line, f"{name} is {count:,}, and beside it stands that it should be {_span(found)}"
            )
    if size is not None and found["unit"] and found["high"]:
        ends = [told(found[end], found["unit"]) for end in ("low", "high")]
        low_end, high_end = ends
        if (
            low_end
            and high_end
            and not low_end.bytes - size.slack <= size.bytes <= high_end.bytes + size.slack
        ):
            yield Slip(
                line,
                f"{name} is {size.said}, and beside it stands that it should be {_span(found)}",
            )


def _span(found: re.Match[str]) -> str:
    ends = found["low"] if not found["high"] else f"{found['low']} to {found['high']}"
    return f"{ends} {found['unit']}" if found["unit"] else ends


def below(line: int, name: str, size: Told, limit: Told) -> Iterator[Slip]:
    if size.bytes + size.slack < limit.bytes:
        yield Slip(line, f"{name} of {size.said} stands in a list of objects from {limit.said}")


def limits(line: int, limit: Told, first_line: int, first: Told) -> Iterator[Slip]:
    """Two limits of one list."""
    if apart(limit, first.bytes, first):
        yield Slip(
            line,
            f"large objects are listed from {limit.said} here and from {first.said} in line {first_line}",
        )


def twice(line: int, label: str, now: Told, before: Told, first_line: int) -> Iterator[Slip]:
    """The same moment told twice."""
    if apart(now, before.bytes, before):
        yield Slip(line, f"{label!r} is {now.said} here and {before.said} in line {first_line}")


def jumps(readings: Iterable[Reading]) -> Iterator[Slip]:
    """From one reading to the next a thousand times more or less: a unit that changed."""
    last: tuple[int, float] | None = None
    for reading in readings:
        now = reading.samples.get("process.rss_bytes")
        if not now:
            continue
        if last is not None and not 1 / JUMP < now / last[1] < JUMP:
            yield Slip(
                reading.line,
                f"memory is {format_bytes(now)} and {format_bytes(last[1])} in line {last[0]}: are both in one unit?",
            )
        last = reading.line, float(now)


def claims_rate(text: str) -> bool:
    """Whether somebody says what a generation grows by."""
    return (" per " in text or "/" in text) and _RATE.search(text) is not None


def rates(line: int, text: str, measured: float | None) -> Iterator[Slip]:
    """What somebody says that a generation grows by, held against ``measured``, bytes per generation."""
    # A line that names a generation speaks of that one.
    if measured is None or measured <= 0 or mark_of(line, text) is not None:
        return
    for found in _RATE.finditer(text):
        low = told(found["low"], found["unit"])
        high = told(found["high"] or found["low"], found["unit"])
        if low is None or high is None or low.bytes <= 0:
            continue
        too_high = low.bytes > NEAR * measured
        if too_high or high.bytes * NEAR < measured:
            factor = low.bytes / measured if too_high else measured / high.bytes
            way = "high" if too_high else "low"
            yield Slip(
                line,
                f"{found.group().strip()!r} is said; the readings of this file grow by {format_bytes(measured)} each: "
                f"{factor:.1f} times too {way}",
            )


def measured_growth(readings: Sequence[Reading]) -> float | None:
    """Bytes per generation from the first to the last reading that has both; None where there are not two."""
    ends = [
        (reading.generation, float(reading.samples["process.rss_bytes"]))
        for reading in readings
        if reading.generation is not None and "process.rss_bytes" in reading.samples
    ]
    if len(ends) < 2 or ends[-1][0] <= ends[0][0]:
        return None
    return (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])


def bounded(found: Iterable[Slip], more: int = 0) -> tuple[Slip, ...]:
    """In the order of their lines, with one more that counts those beyond the limit, and ``more`` beside them."""
    all_of_them = sorted(dict.fromkeys(found), key=lambda slip: slip.line)
    kept = all_of_them[:MAX_SLIPS]
    if len(all_of_them) > len(kept):
        more += len(all_of_them) - len(kept)
        kept.append(Slip(all_of_them[len(kept)].line, f"and {more} more like these"))
    return tuple(kept)


def _distinct(before: Sequence[tuple[str, Told]]) -> Iterator[tuple[str, Told]]:
    seen: set[float] = set()
    for name, amount in before:
        if amount.bytes not in seen:
            seen.add(amount.bytes)
            yield name, amount
