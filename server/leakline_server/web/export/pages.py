"""Reports of a run or a comparison as self-contained HTML, Markdown, CSV, or text for an issue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from leakline import __version__
from leakline.analysis.findings.growth_tables import with_verdict
from leakline.analysis.results import to_json
from leakline.report.comparison_markdown import (
    ComparedRun,
    ComparisonReport,
    comparison_csv,
    comparison_issue_text,
    comparison_markdown,
)
from leakline.report.document import Origin, RunReport, issue_text, run_markdown
from leakline.transport.oom_inference import ended_as

from ...store import findings, snapshot_rows
from ..auth.permissions import READ, SEE
from ..derived_analysis import Derived
from ..rendering import number_formats
from ..rendering.page_contexts import file_name
from ..rendering.templating import HEADERS
from ..run_page.pages import MAX_POINTS_SHOWN, known_run, read_compare_page, read_run_page
from ..run_page.run_charts import in_phase_order
from ..run_page.run_data import ALL_TABS
from ..run_page.view import progress
from ..services import Services, Use, address_of
from .html_bundle import Made, stand_alone

Json = Mapping[str, Any]


def run_report(
    run: Json, verdict: Json | None, derived: Derived, snapshot: str, origin: Origin
) -> RunReport:
    """Return the report; ``run`` and ``verdict`` are in the API's JSON format.

    ``snapshot`` is the label of the newest snapshot.
    """
    return RunReport(
        project=run["project"],
        name=run["name"],
        id=run["id"],
        state=ended_as(run["state"], run["reason"]),
        progress=progress(run),
        started=number_formats.clock(run["started_at"]),
        verdict=verdict,
        phase_accounts=to_json(in_phase_order(run, derived.phase_accounts)),
        types=to_json(with_verdict(derived.types, verdict)),
        environment=run["environment"],
        origin=origin,
        snapshot=snapshot,
        unit=run["unit"],
    )


def comparison_report(
    before: Json, after: Json, comparison: Json, origin: Origin
) -> ComparisonReport:
    return ComparisonReport(comparison, _side(before), _side(after), origin, before["unit"])


def _side(run: Json) -> ComparedRun:
    return ComparedRun(run["project"], run["name"], run["id"], progress(run))


router = APIRouter(include_in_schema=False, dependencies=[READ])

HTML: Final = "text/html; charset=utf-8"
MARKDOWN: Final = "text/markdown; charset=utf-8"
CSV: Final = "text/csv; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"


@router.get("/runs/{run}/report.html", dependencies=[SEE])
def run_as_file(run: str, request: Request, use: Use, process: str = "") -> Response:
    page = read_run_page(use, run, process, ALL_TABS)
    made = _made(request, use, _run_path(run), {"process": process} if process else {})
    name = file_name((page.run.project, page.run.name), "html")
    return _answer(stand_alone("run.html", page, made), HTML, name)


@router.get("/runs/{run}/report.md", dependencies=[SEE])
def run_as_markdown(run: str, request: Request, use: Use) -> Response:
    report = _run_report(run, request, use)
    return _answer(run_markdown(report), MARKDOWN, file_name((report.project, report.name), "md"))


@router.get("/runs/{run}/report.txt", dependencies=[SEE])
def run_for_an_issue(run: str, request: Request, use: Use) -> Response:
    return _answer(issue_text(_run_report(run, request, use)), PLAIN)


@router.get("/compare/report.html")
def comparison_as_file(before: str, after: str, request: Request, use: Use) -> Response:
    page = read_compare_page(use, before, after, MAX_POINTS_SHOWN)
    made = _made(request, use, "/compare", {"before": before, "after": after})
    name = file_name((page.before.name, "to", page.after.name), "html")
    return _answer(stand_alone("compare.html", page, made), HTML, name)


@router.get("/compare/report.md")
def comparison_as_markdown(before: str, after: str, request: Request, use: Use) -> Response:
    report = _comparison_report(before, after, request, use)
    name = file_name((report.before.name, "to", report.after.name), "md")
    return _answer(comparison_markdown(report), MARKDOWN, name)


@router.get("/compare/report.csv")
def comparison_as_numbers(before: str, after: str, request: Request, use: Use) -> Response:
    report = _comparison_report(before, after, request, use)
    name = file_name((report.before.name, "to", report.after.name), "csv")
    return _answer(comparison_csv(report.comparison, report.unit), CSV, name)


@router.get("/compare/report.txt")
def comparison_for_an_issue(before: str, after: str, request: Request, use: Use) -> Response:
    return _answer(comparison_issue_text(_comparison_report(before, after, request, use)), PLAIN)


def _run_report(run_id: str, request: Request, use: Services) -> RunReport:
    run = known_run(use, run_id)
    newest = snapshot_rows.list_snapshots(use.engine, run_id, (), 1, None)["items"]
    return run_report(
        run,
        findings.current_verdict(use.engine, run_id),
        use.derived.of(run_id),
        (newest[0]["label"] or newest[0]["kind"]) if newest else "",
        _origin(_made(request, use, _run_path(run_id))),
    )


def _comparison_report(
    before: str, after: str, request: Request, use: Services
) -> ComparisonReport:
    sides = (known_run(use, before), known_run(use, after))
    made = _made(request, use, "/compare", {"before": before, "after": after})
    return comparison_report(*sides, to_json(use.derived.compare(before, after)), _origin(made))


def _run_path(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}"


def _made(
    request: Request, use: Services, path: str, query: Mapping[str, str] | None = None
) -> Made:
    """Return the origin of a report; ``path`` and ``query`` form the address of its page."""
    now, server = number_formats.moment(time.time()), address_of(request, use)
    asked = f"?{urlencode(query)}" if query else ""
    return Made(now, number_formats.clock(now), __version__, server, f"{server}{path}{asked}")


def _origin(made: Made) -> Origin:
    return Origin(made.clock, made.version, made.server, made.href)


def _answer(text: str, kind: str, name: str | None = None) -> Response:
    """Return ``text`` as a download named ``name`` or, without a name, as text to display.

    If a browser displayed a download, the content security policy would still block scripts.
    """
    saved = {"Content-Disposition": f'attachment; filename="{name}"'} if name else {}
    return Response(text, headers={**HEADERS, **saved}, media_type=kind)
