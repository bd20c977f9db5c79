"""What was planned for a run, bands and budgets, as a section of its page. Pure; the analysis has judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leakline.analysis.assertions.words import STATE_WORDS, assertion_title
from leakline.analysis.summary import course_lines

from .contexts import Section
from .formats import NOT_MEASURED, change, count, size
from .tables import Field, rated, table

Json = Mapping[str, Any]

_STATUSES: Final = {
    "holds": "ok", "above_normal": "watch", "open": "learning", "not_measured": "learning",
}  # fmt: skip
# Deviations shown of each band; the API has more.
_MAX_DEVIATIONS: Final = 10


def planned(verdict: Json | None, unit: str) -> Section | None:
    """Return None where nothing was declared; verdicts stored by an older server have no assertions."""
    found = (verdict or {}).get("assertions")
    if not found:
        return None
    how = (
        f"A band is compared with the reading at the end of each {unit}, its bounds included. A budget is fine up to "
        "its normal amount and broken from its leak on. The trend shows planned memory behind its lines, that of RSS "
        "once RSS is chosen there."
    )
    rows = [row for each in found for row in _rows(each, unit)]
    heads = ["planned", "so far", "#measured", "#off by", "in words"]
    return Section(
        "planned", "Plan and budgets", how, table=table(heads, rows, tall=False), short="Plan",
    )  # fmt: skip


def course(verdict: Json | None, unit: str) -> str:
    """How long the run takes, since when memory is flat, and how right its forecasts were, as sentences."""
    return " ".join(course_lines(verdict or {}, unit))


def _rows(check: Json, unit: str) -> list[list[Field]]:
    """Return the row of a limit, and below it those of the generations outside a band."""
    title, word = assertion_title(check, unit), STATE_WORDS[check["state"]]
    # A broken band is not a leak.
    status = _STATUSES.get(check["state"], "watch" if check["leak"] is None else "confirmed")
    measured, over = _budget_figures(check) if check["origin"] == "budget" else ("", "")
    rows: list[list[Field]] = [[title, rated(word, status), measured, over, check["sentence"]]]
    sized = check["metric"].endswith(("_bytes", ".bytes"))
    write, write_off = (size, change) if sized else (count, _signed)
    deviations = check["deviations"][:_MAX_DEVIATIONS]
    for each in deviations:
        where = "below" if each["off_by"] < 0 else "above"
        place = f"– {unit} {each['generation']:,}"
        rows.append([place, where, write(each["measured"]), write_off(each["off_by"]), ""])
    left = check["outside"] - len(deviations) if deviations else 0
    if left > 0:
        rows.append([f"– {left:,} more", "", "", "", ""])
    return rows


def _signed(value: float) -> str:
    return f"+{count(value)}" if value > 0 else count(value)


def _budget_figures(check: Json) -> tuple[str, str]:
    """Return what was measured, and by how much it is over the first bound."""
    # A run within its budget shows its growth, any other budget its worst generation.
    quiet = check["scope"] == "run" and check["state"] == "holds"
    amount = check["newest"] if quiet else check["worst"]
    if amount is None:
        return NOT_MEASURED, "–"
    over = amount - next(each for each in (check["high"], check["leak"]) if each is not None)
    return change(amount), change(over) if over > 0 else "–"
