"""What was planned for a run, bands and budgets, as a section of its page. Pure; the analysis has judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leakline.analysis.budgets import budget_title
from leakline.analysis.plan import band_title
from leakline.analysis.summary import BAND_WORDS, BUDGET_WORDS, course_lines

from .contexts import Section
from .formats import NOT_MEASURED, change, count, size
from .tables import Field, rated, table

Json = Mapping[str, Any]

_BAND_STATUSES: Final = {
    "within": "ok", "outside": "watch", "open": "learning", "not_measured": "learning",
}  # fmt: skip
_BUDGET_STATUSES: Final = {
    "normal": "ok", "above_normal": "watch", "leak": "confirmed", "not_measured": "learning",
}  # fmt: skip
# Deviations shown of each band; the API has more.
_MAX_DEVIATIONS: Final = 10


def planned(verdict: Json | None, unit: str) -> Section | None:
    """None where nothing was planned. A verdict from before plans were checked has neither."""
    bands, budgets = ((verdict or {}).get(name) or () for name in ("bands", "budgets"))
    if not bands and not budgets:
        return None
    how = (
        f"A band is compared with the reading at the end of each {unit}, its bounds included. A budget is fine up to "
        "its normal amount and broken from its leak on. The trend shows planned memory behind its lines, that of RSS "
        "once RSS is chosen there."
    )
    rows = [row for each in bands for row in _band_rows(each, unit)]
    rows += [_budget_row(each, unit) for each in budgets]
    heads = ["planned", "so far", "#measured", "#off by", "in words"]
    return Section(
        "planned", "Plan and budgets", how, table=table(heads, rows, tall=False), short="Plan",
    )  # fmt: skip


def course(verdict: Json | None, unit: str) -> str:
    """How long the run takes, since when memory is flat, and how right its forecasts were, as sentences."""
    return " ".join(course_lines(verdict or {}, unit))


def _band_rows(check: Json, unit: str) -> list[list[Field]]:
    """The band, and beneath it its deviations."""
    sized = check["series"].endswith(("_bytes", ".bytes"))
    write, write_off = (size, change) if sized else (count, _signed)
    state = rated(BAND_WORDS[check["state"]], _BAND_STATUSES[check["state"]])
    rows: list[list[Field]] = [[band_title(check, unit), state, "", "", check["sentence"]]]
    deviations = check["deviations"]
    for each in deviations[:_MAX_DEVIATIONS]:
        where = "below" if each["off_by"] < 0 else "above"
        place = f"– {unit} {each['generation']:,}"
        rows.append([place, where, write(each["measured"]), write_off(each["off_by"]), ""])
    left = check["below"] + check["above"] - min(len(deviations), _MAX_DEVIATIONS)
    if left > 0:
        rows.append([f"– {left:,} more", "", "", "", ""])
    return rows


def _signed(value: float) -> str:
    return f"+{count(value)}" if value > 0 else count(value)


def _budget_row(check: Json, unit: str) -> list[Field]:
    title = budget_title(check["name"], check["scope"], unit)
    whose = f" ({check['process']})" if check["process"] else ""
    state = rated(BUDGET_WORDS[check["state"]], _BUDGET_STATUSES[check["state"]])
    bounds = [check[name] for name in ("normal", "leak") if check[name] is not None]
    # Of a run that stayed within, what it has grown by; else what broke the budget.
    quiet = check["scope"] == "run" and check["state"] == "normal"
    worst = check["newest"] if quiet else check["worst"]
    over = None if worst is None else worst - bounds[0]
    return [
        f"budget of {title}{whose}", state, NOT_MEASURED if worst is None else change(worst),
        change(over) if over is not None and over > 0 else "–", check["sentence"],
    ]  # fmt: skip
