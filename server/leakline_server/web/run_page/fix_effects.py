"""Effects of fixes, for run pages, comparisons and marks; and a verdict's checklist.

A run itself shows the effect of a fix if generations ran before the fix; otherwise, a comparison
with a run without the fix shows the effect. These functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from leakline.analysis.comparison.fix_effects import effect_figures, effect_title
from leakline.analysis.findings.verdict_summary import (
    CHECK_WORDS,
    EFFECT_WORDS,
    check_question,
    fix_title,
)

from ..rendering.page_contexts import Cell, Section, Tick
from ..rendering.table_cells import Field, code_link, rated, table

Json = Mapping[str, Any]

_STATUSES: Final = {"helped": "ok", "no_effect": "watch", "worse": "confirmed", "undecided": "learning"}  # fmt: skip
MAX_ROWS: Final = 60


def effects_shown(
    within: Sequence[Json], compared: Sequence[Json], baseline: Json | None
) -> list[dict[str, Any]]:
    """Add ``against`` to each effect: the baseline run, or None if the run itself shows the effect.

    ``compared`` are the effects from the comparison with ``baseline``; they replace the effects
    that the run itself left undecided.
    """
    rows: list[dict[str, Any]] = []
    for effect in within:
        alike = [each for each in compared if _about(each) == _about(effect)]
        if effect["outcome"] == "undecided" and alike:
            rows += ({**each, "against": baseline} for each in alike)
        else:
            rows.append({**effect, "against": None})
    return rows


def _about(effect: Json) -> tuple[object, ...]:
    return effect["fix"], effect["measure"], effect["subject"]


def effects(found: Sequence[Json], unit: str, environment: Json) -> Section | None:
    """Return the table of effects of a comparison or run, or None without fixes.

    Effects of a run have ``against``; effects of a comparison do not.
    """
    if not found:
        return None
    how = (
        f"The effect of each fix per {unit}: on the classes whose counts the fix promises, on the "
        "phase that it names, or otherwise on the whole run. “No effect” is a result: the "
        "difference is within the variation between two runs of the same program."
    )
    heads = ["fix", "effect", "of", "#before", "#after", "#difference", "in words"]
    rows = [_row(each, environment) for each in found[:MAX_ROWS]]
    if any(each.get("against") for each in found):
        heads.append("measured by")
        rows = [[*row, _against(each)] for row, each in zip(rows, found, strict=False)]
    if any(each["rejected"] for each in found):
        heads.append("rejected instead")
        rows = [[*row, each["rejected"] or "–"] for row, each in zip(rows, found, strict=False)]
    return Section(
        "effects", "What each fix has done", how, table=table(heads, rows, tall=False),
    )  # fmt: skip


def _row(effect: Json, environment: Json) -> list[Field]:
    where = code_link(environment, effect["location"])
    before, after, difference = (each or "–" for each in effect_figures(effect))
    return [
        Cell(fix_title(effect), href=where, outside=where is not None),
        rated(EFFECT_WORDS[effect["outcome"]], _STATUSES[effect["outcome"]]),
        effect_title(effect), before, after, difference, effect["sentence"],
    ]  # fmt: skip


def _against(effect: Json) -> Field:
    before = effect.get("against")
    if before is None:
        return "this run"
    asked = urlencode({"before": before["id"], "after": before["after"]})
    return Cell(f"the comparison with {before['name']}", href=f"/compare?{asked}")


def effect_line(effect: Json, unit: str) -> str:
    """Return an effect as a line for a mark.

    Example: ``growth per generation: before +10.00 MiB, after +1.00 MiB: helped, ...``
    """
    word = EFFECT_WORDS[effect["outcome"]]
    before, after, difference = effect_figures(effect)
    against = effect.get("against")
    prefix = f"against {against['name']}: " if against else ""
    if not (before and after):
        return f"{prefix}{word}: {effect['sentence']}"
    of = "growth" if effect["subject"] is None else effect_title(effect)
    return f"{prefix}{of} per {unit}: before {before}, after {after}: {word}, {difference}"


# Outcome -> (status that determines the colour, shape).
_LOOKS: Final = {
    "done": ("ok", "ok"), "failed": ("confirmed", "confirmed"), "not_yet": ("learning", "learning"),
    "not_measured": ("learning", "absent"),
}  # fmt: skip


def ticks(verdict: Json | None) -> tuple[Tick, ...]:
    """Return the verdict's checklist, or an empty tuple without a checklist."""
    return tuple(_tick(item) for item in (verdict or {}).get("checklist", ()))


def _tick(item: Json) -> Tick:
    (_, word), (status, mark) = CHECK_WORDS[item["outcome"]], _LOOKS[item["outcome"]]
    return Tick(check_question(item), word, status, mark, item["sentence"])
