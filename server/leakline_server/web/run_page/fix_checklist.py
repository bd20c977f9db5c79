"""The checklist of a verdict as the page of a run lists it. Pure; the analysis has judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leakline.analysis.findings.verdict_summary import CHECK_WORDS, check_question

from ..rendering.page_contexts import Tick

Json = Mapping[str, Any]

# Outcome -> (the status whose colour it wears, the shape).
_LOOKS: Final = {
    "done": ("ok", "ok"), "failed": ("confirmed", "confirmed"), "not_yet": ("learning", "learning"),
    "not_measured": ("learning", "absent"),
}  # fmt: skip


def ticks(verdict: Json | None) -> tuple[Tick, ...]:
    """Empty for a verdict stored before there was a checklist."""
    return tuple(_tick(item) for item in (verdict or {}).get("checklist", ()))


def _tick(item: Json) -> Tick:
    (_, word), (status, mark) = CHECK_WORDS[item["outcome"]], _LOOKS[item["outcome"]]
    return Tick(check_question(item), word, status, mark, item["sentence"])
