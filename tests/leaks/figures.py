"""Figures and targets of the live suite, and the tables that show them. Shares are between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks import printing
from benchmarks.detection.figure import Figure, at_least, at_most, written
from benchmarks.detection.shares import Share, quantile
from tests.leaks.scoring import Named, Pair

GROUPS: Final = ("open", "held back")


@dataclass(frozen=True, slots=True)
class Spent:
    """Resources of the suite: minutes, and the peak memory of all its processes together."""

    minutes: float | None = None
    peak_bytes: int | None = None


def figures(pairs: Sequence[Pair], expected: int) -> list[Figure]:
    """Return the figures of a group of ``expected`` pairs; the check makes a partial run fail."""
    named = [each for pair in pairs for each in pair.leak.named]
    return [
        Figure("B2", "pairs scored", float(len(pairs)), "pairs", least=float(expected), runs=expected),
        at_least("B2", "pairs distinguished", Share.of(p.is_right for p in pairs), 0.95),
        at_most("B2", "healthy twins ever confirmed", Share.of(p.twin.ever_confirmed for p in pairs), 0.0),
        at_most("B2", "healthy twins suspected or confirmed at the end", Share.of(p.twin.detected for p in pairs)),
        at_most("B2", "healthy twins ever suspected", Share.of(p.twin.ever_suspected for p in pairs)),
        at_least("B2", "leaks suspected or confirmed at the end", Share.of(p.leak.detected for p in pairs)),
        at_least("B2", "leaks confirmed at the end", Share.of(p.leak.status == "confirmed" for p in pairs)),
        _suspected_after(pairs),
        at_least("A6", "right phase", Share.of(n.phase for n in named), 0.95),
        at_least("A6", "right type in first place", Share.of(_asked(named, lambda n: n.type_first)), 0.90),
        at_least("A6", "right type in the first three", Share.of(_asked(named, lambda n: n.type_in_top)), 0.98),
        at_least("A6", "right holder, where Python holds it", Share.of(_asked(named, lambda n: n.holder)), 0.80),
        at_least("A6", "right kind", Share.of(n.kind for n in named)),
        at_least("A7", "start within 2 generations or 10 %", Share.of(n.start_close for n in named), 0.90),
        *_rates(named),
    ]  # fmt: skip


def of_the_suite(spent: Spent) -> list[Figure]:
    """Return the resources used by the entire suite."""
    peak = None if spent.peak_bytes is None else spent.peak_bytes / 2**20
    return [
        Figure("B2", "duration of the suite", spent.minutes, "minutes", most=20.0),
        # The target is 2 GB in decimal units.
        Figure("B2", "memory of all processes together, at most", peak, "MiB", most=2e9 / 2**20),
    ]


def _suspected_after(pairs: Sequence[Pair]) -> Figure:
    """Count a leak that was never suspected as infinite."""
    after = [
        math.inf if p.leak.suspected_after is None else float(p.leak.suspected_after) for p in pairs
    ]
    name = "generations until a leak is first suspected, median"
    return Figure("B2", name, quantile(after, 0.5), "generations", runs=len(after))


def _rates(named: Sequence[Named]) -> list[Figure]:
    """Count the error of a leak without a rate as infinite."""
    off = [math.inf if n.rate_off is None else n.rate_off for n in named]
    return [
        at_least("A7", "growth per generation within 10 %", Share.of(n.rate_close for n in named), 0.90),
        Figure("A7", "error of the growth per generation, median", quantile(off, 0.5), most=0.03,
               runs=len(off)),
    ]  # fmt: skip


def _asked(named: Iterable[Named], answer: Callable[[Named], bool | None]) -> list[bool]:
    """Return only the answers for leaks that have a correct answer."""
    return [found for n in named if (found := answer(n)) is not None]


def summary(groups: dict[str, list[Figure]], suite: Sequence[Figure]) -> str:
    """Return one line per figure with the groups next to each other; a group that did not run shows dashes."""
    head = ["", "", *(cell for name in groups for cell in (name, "95 % bound", "of")), "target", ""]
    lines = [_line(tuple(groups), row) for row in zip(*groups.values(), strict=True)]
    empty = [""] * (3 * len(groups) - 1)
    lines += [[f.code, f.name, f.text(), *empty, f.target(), _mark(("",), [f])] for f in suite]
    left = [True, True, *[False] * (3 * len(groups)), True, True]
    return printing.text_table("live suite: figures", [head, *lines], left)


def _line(groups: Sequence[str], row: Sequence[Figure]) -> list[str]:
    values = [
        cell
        for f in row
        for cell in (f.text(), written(f.bound, "%"), str(f.runs) if f.runs else "-")
    ]
    targets = list(dict.fromkeys(f.target() for f in row))
    return [row[0].code, row[0].name, *values, " / ".join(targets), _mark(groups, row)]


def _mark(groups: Sequence[str], row: Sequence[Figure]) -> str:
    """Return the groups in which a figure misses its target."""
    if not any(f.is_held for f in row):
        return ""
    short = [name for name, f in zip(groups, row, strict=True) if f.failure()]
    return f"SHORT {', '.join(filter(None, short))}".rstrip() if short else "ok"


def by_program(pairs: Sequence[Pair]) -> str:
    """Return one line per planted leak; wrong answers are in capitals."""
    head = [
        "", "leak", "after", "phase", "type", "top 3", "holder", "kind", "rate off", "start off", "twin",
        "at worst", "pair",
    ]  # fmt: skip
    lines = [_leak_line(p, i) for p in pairs for i in range(len(p.leak.named))]
    left = [True, True, False, True, True, True, True, True, False, False, True, True, True]
    return printing.text_table("live suite: programs", [head, *lines], left)


def _leak_line(pair: Pair, position: int) -> list[str]:
    n, leak, twin = pair.leak.named[position], pair.leak, pair.twin
    after = "-" if leak.suspected_after is None else str(leak.suspected_after)
    worst = "confirmed" if twin.ever_confirmed else "suspected" if twin.ever_suspected else ""
    start = "-" if n.start_off is None else f"{n.start_off:.1f}"
    if n.start_off is not None and not n.start_close:
        start += " !"
    return [
        pair.name if position == 0 else "", leak.status, after, _word(n.phase), _word(n.type_first),
        _word(n.type_in_top), _word(n.holder), _word(n.kind), written(n.rate_off, "%"), start,
        twin.status, worst, "ok" if pair.is_right else "WRONG",
    ]  # fmt: skip


def _word(answer: bool | None) -> str:
    return "" if answer is None else "ok" if answer else "WRONG"


def what_is_wrong(pairs: Sequence[Pair]) -> str:
    """Return every wrong pair with the server's output, or an empty string."""
    wrong = [(pair.name, pair.what_is_wrong()) for pair in pairs if not pair.is_right]
    return "\n".join(f"{name}\n  {said.replace(chr(10), chr(10) + '  ')}" for name, said in wrong)


def what_is_misnamed(pairs: Sequence[Pair]) -> str:
    """Return every leak that was found but partly misnamed, with the server's output, or an empty string."""
    lines = []
    for pair in pairs:
        wrong = list(dict.fromkeys(word for n in pair.leak.named for word in n.wrong()))
        if pair.leak.detected and wrong:
            lines += [f"{pair.name}: {', '.join(wrong)}", *(f"  {line}" for line in pair.leak.told)]
    return "\n".join(lines)


def failures(groups: dict[str, list[Figure]], suite: Sequence[Figure]) -> list[str]:
    """Return a line for each figure that misses its target or was not measured."""
    found = [(f"{f.code}, {name}, {f.name}", f) for name, listed in groups.items() for f in listed]
    found += [(f"{f.code}, {f.name}", f) for f in suite]
    return [f"{where}: {f.failure()}" for where, f in found if f.failure()]


def for_programs(
    pairs: Sequence[Pair], groups: dict[str, list[Figure]], suite: Sequence[Figure]
) -> dict[str, Any]:
    """Return plain JSON; infinity becomes null, and ``text`` says so."""
    return {
        "groups": {name: [_plain(f) for f in listed] for name, listed in groups.items()},
        "suite": [_plain(f) for f in suite],
        "pairs": [{**asdict(p), "is_right": p.is_right} for p in pairs],
    }


def _plain(figure: Figure) -> dict[str, Any]:
    value = None if figure.value is None or math.isinf(figure.value) else figure.value
    return {**asdict(figure), "value": value, "text": figure.text(), "failure": figure.failure()}
