"""How earlier forecasts of a run turned out, by how far ahead they looked. Pure; the analysis has scored them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leakline.text_format import format_share, format_span

from ..rendering.number_formats import size
from ..rendering.page_contexts import Section
from ..rendering.table_cells import Field, rated, table

Json = Mapping[str, Any]


def past_forecasts(score: Json | None, unit: str) -> Section | None:
    """None where nothing was forecast, or no forecast's time has come; and of a verdict from before leads were told."""
    leads = (score or {}).get("by_lead")
    if score is None or not leads:
        return None
    how = (
        "What growth foretold of the memory of a later moment, and what was read there. The error is a share of the "
        "memory that came; of several forecasts it is the median."
    )
    heads = [f"{unit}s ahead", "#off by", "came within its interval", "#foretold", "#came"]
    rows = [row for lead in leads for row in _rows(lead, unit)]
    return Section(
        "forecasts", "How forecasts turned out", how, table=table(heads, rows, tall=False),
        note=score["sentence"], short="Forecasts",
    )  # fmt: skip


def _rows(lead: Json, unit: str) -> Iterator[list[Field]]:
    """The forecasts of a lead together, and beneath them each."""
    first, last = lead["ahead_from"], lead["ahead_to"]
    span = format_span(first, last)
    counted = f"{lead['within']:,} of {lead['forecasts']:,}"
    yield [span, format_share(lead["median_error"], 1), counted, "", ""]
    for each in lead["past"]:
        foretold, came = each["forecast"], each["came"]
        inside = foretold["low"] <= came <= foretold["high"]
        yield [
            f"– {unit} {each['made_at']:,} for {each['generation']:,}",
            format_share(abs(foretold["estimate"] - came) / came, 1),
            rated("yes", "ok") if inside else rated("no", "watch"),
            size(foretold["estimate"]), size(came),
        ]  # fmt: skip
