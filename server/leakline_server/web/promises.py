"""What the fixes of a run promised, as a section of its page and of a comparison's. Pure; the analysis has judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from leakline.analysis.promises import (
    COUNT,
    GENERATIONS,
    GPU_PEAK,
    GROWTH,
    JUMP,
    PEAK,
    POSSIBLE,
    SIZES,
)
from leakline.analysis.summary import PROMISE_WORDS

from . import formats
from .contexts import Section
from .tables import Field, rated, table
from .verdict_view import short_name

Json = Mapping[str, Any]

# In the order they are counted up.
_STATUSES: Final = {"refuted": "confirmed", "held": "ok", "undecided": "learning"}


def promises(fixes: Sequence[Json], unit: str) -> Section | None:
    """``fixes`` as the verdict has them; None where no fix promised anything."""
    if not fixes:
        return None
    how = (
        "Every promise of a fix is measured on this run alone. It is refuted only where the whole interval is clearly "
        "above what was promised, and not testable while too little has run."
    )
    by_fix: dict[str, list[Json]] = {}
    for each in fixes:
        by_fix.setdefault(_named(each), []).append(each)
    heads = ["promise", "outcome", "#promised", "#measured", "in words"]
    rows = [_row(each, unit) for each in fixes]
    if len(by_fix) > 1:
        heads.append("fix")
        rows = [[*row, str(each["fix"])] for row, each in zip(rows, fixes, strict=True)]
    note = " ".join(f"{name}: {_counted(checks)}." for name, checks in by_fix.items())
    return Section(
        "promises", "What the fix promised", how, table=table(heads, rows, tall=False),
        note=note, short="Promises",
    )  # fmt: skip


def _named(check: Json) -> str:
    places = [check[name] for name in ("phase", "location") if check[name]]
    return f"{check['fix']} ({', '.join(places)})" if places else str(check["fix"])


def _row(check: Json, unit: str) -> list[Field]:
    write = formats.size if check["claim"] in SIZES else formats.count
    measured = check["measured"]
    return [
        _claim(check, unit), rated(PROMISE_WORDS[check["outcome"]], _STATUSES[check["outcome"]]),
        write(check["promised"]), write(measured["estimate"] if measured else None), check["sentence"],
    ]  # fmt: skip


def _claim(check: Json, unit: str) -> str:
    claim = str(check["claim"])
    if claim.startswith(COUNT):
        return f"{short_name(claim.removeprefix(COUNT))} alive"
    words = {
        GROWTH: f"growth per {unit}", PEAK: "peak memory", GPU_PEAK: "peak GPU memory",
        JUMP: f"largest jump between {unit}s", GENERATIONS: f"{unit}s to complete",
        POSSIBLE: f"{unit}s that memory allows",
    }  # fmt: skip
    return words.get(claim) or (f"growth in {check['phase']}" if claim in SIZES else claim)


def _counted(checks: Sequence[Json]) -> str:
    """``3 refuted, 1 held, 2 not yet testable``"""
    found = Counter(str(check["outcome"]) for check in checks)
    return ", ".join(f"{found[name]} {PROMISE_WORDS[name]}" for name in _STATUSES if found[name])
