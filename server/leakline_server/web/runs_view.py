"""Runs as the API lists them -> the context of ``/``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from . import formats
from .contexts import Filter, ProjectRuns, RunRow, RunsPage, Sparkline
from .ending_view import ending
from .run_view import progress
from .verdict_view import STATUSES, forecast_text, status_of

Json = Mapping[str, Any]
_WIDTH: Final = 120.0
_HEIGHT: Final = 28.0
# Words a search may begin with, and the argument of the API each stands for.
_WORDS: Final = {"project": "project", "tag": "tag", "status": "status"}
# What people type for a status.
_STATUS_WORDS: Final = {"leaking": "confirmed", "leak": "confirmed", "suspect": "suspected"}


def parse_query(text: str) -> dict[str, str]:
    """``project:x status:leaking rest`` -> the API's filters; what names no filter is searched for."""
    filters: dict[str, str] = {}
    rest: list[str] = []
    for word in text.split():
        name, colon, value = word.partition(":")
        if colon and value and name in _WORDS:
            filters[_WORDS[name]] = _STATUS_WORDS.get(value, value) if name == "status" else value
        else:
            rest.append(word)
    if rest:
        filters["q"] = " ".join(rest)
    return filters


def runs_page(
    items: Sequence[Json], query: str, next_cursor: str | None, server: str, *, any_runs: bool
) -> RunsPage:
    return RunsPage(
        title="Runs",
        query=query,
        filters=_filters(query),
        projects=_by_project(items),
        next_href="/?" + urlencode({"q": query, "cursor": next_cursor}) if next_cursor else None,
        server=server,
        any_runs=any_runs,
    )


def _filters(query: str) -> tuple[Filter, ...]:
    words = [word for word in query.split() if not word.startswith("status:")]
    chosen = parse_query(query).get("status")
    made = []
    for name in STATUSES:
        wanted = words if name == chosen else [*words, f"status:{name}"]
        href = "/?" + urlencode({"q": " ".join(wanted)}) if wanted else "/"
        made.append(Filter(status_of(name), href, name == chosen))
    return tuple(made)


def _by_project(items: Sequence[Json]) -> tuple[ProjectRuns, ...]:
    """Projects in the order of their newest run."""
    grouped: dict[str, list[RunRow]] = {}
    for item in items:
        grouped.setdefault(item["project"], []).append(_row(item))
    return tuple(
        ProjectRuns(project, "/?" + urlencode({"q": f"project:{project}"}), tuple(rows))
        for project, rows in grouped.items()
    )


def _row(run: Json) -> RunRow:
    growth = run["growth_bytes_per_generation"]
    return RunRow(
        id=run["id"],
        name=run["name"],
        href=f"/runs/{quote(run['id'], safe='')}",
        status=status_of(run["status"]),
        sentence=run["summary"] or "Waiting for the first verdict.",
        state=run["state"],
        ending=ending(run),
        tags=tuple(run["tags"]),
        progress=progress(run),
        sparkline=sparkline(run["sparkline"]),
        growth=f"{formats.change(growth['estimate'])} / {run['unit']}" if growth else "–",
        forecast=forecast_text(run["oom"], run["unit"]),
        seen_at=run["last_seen_at"],
        seen=formats.clock(run["last_seen_at"]),
    )


def sparkline(values: Sequence[float | None]) -> Sparkline | None:
    """The line in a box of 120 by 28, from zero if the memory comes near it, else from its lowest point."""
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(v for _, v in known), max(v for _, v in known)
    # A change of less than a twentieth is drawn as small as it is: a steady run must look steady.
    floor = max(0.0, min(low, high - max(high - low, 0.2 * high) / 0.9))
    last = known[-1][0] or 1
    span = high - floor or 1.0
    points = [
        (_WIDTH * i / last, _HEIGHT - 2 - (_HEIGHT - 4) * (v - floor) / span) for i, v in known
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{points[0][0]:.1f},{_HEIGHT:.0f} {line} {points[-1][0]:.1f},{_HEIGHT:.0f}"
    return Sparkline(
        line, area, f"Memory from {formats.size(known[0][1])} to {formats.size(known[-1][1])}"
    )
