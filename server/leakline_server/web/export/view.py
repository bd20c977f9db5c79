"""What is known of a run, or of two -> what their reports in Markdown are made of (`leakline.report`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakline.analysis.findings.growth_tables import with_verdict
from leakline.analysis.results import to_json
from leakline.report.comparison_markdown import ComparisonTold, SideTold
from leakline.report.document import Origin, RunTold
from leakline.transport.oom_inference import ended_as

from ..derived_analysis import Derived
from ..rendering import number_formats
from ..run_page.run_charts import in_phase_order
from ..run_page.view import progress

Json = Mapping[str, Any]


def run_told(
    run: Json, verdict: Json | None, derived: Derived, snapshot: str, origin: Origin
) -> RunTold:
    """``run`` and ``verdict`` as the API gives them; ``snapshot`` is the label of the newest."""
    return RunTold(
        project=run["project"],
        name=run["name"],
        id=run["id"],
        state=ended_as(run["state"], run["reason"]),
        progress=progress(run),
        started=number_formats.clock(run["started_at"]),
        verdict=verdict,
        books=to_json(in_phase_order(run, derived.books)),
        types=to_json(with_verdict(derived.types, verdict)),
        environment=run["environment"],
        origin=origin,
        snapshot=snapshot,
        unit=run["unit"],
    )


def comparison_told(before: Json, after: Json, comparison: Json, origin: Origin) -> ComparisonTold:
    return ComparisonTold(comparison, _side(before), _side(after), origin, before["unit"])


def _side(run: Json) -> SideTold:
    return SideTold(run["project"], run["name"], run["id"], progress(run))
