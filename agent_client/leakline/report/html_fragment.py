"""Builds the top of a run's page as an HTML fragment for a notebook, without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from ..analysis import phase_accounts
from ..analysis.results import to_json
from ..analysis.run_history import ProcessHistory
from ..analysis.status import ACTIVE
from ..text_format import (
    NOT_MEASURED,
    format_bytes,
    format_change,
    format_count_change,
    format_share,
    seen_of,
)
from .report_data import MEMORY, Recording, examined
from .verdict_facts import (
    OUTSIDE_NAMES,
    forecast_headline,
    interval,
    leading_finding,
    role_words,
)

Json = Mapping[str, Any]

# Maps each status to the word and colour that the pages use. The colours are readable on light and dark backgrounds.
_STATUSES: Final = {
    "confirmed": ("Leaking", "#d0453b"), "suspected": ("Suspected", "#c96a15"), "watch": ("Watch", "#9a7b12"),
    "filling": ("Filling", "#3a7bd5"), "ok": ("OK", "#2e8b57"), "recovered": ("Recovered", "#2e8b57"),
    "learning": ("Learning", "#7a8591"),
}  # fmt: skip
PHASES_SHOWN: Final = 5
SUSPECTS_SHOWN: Final = 2
_PRIVATE: Final = ("process.anon_bytes", "process.swap_bytes")
_WIDTH, _HEIGHT = 640, 120
# Length of the forecast as a share of the recorded range, as on the page.
_AHEAD: Final = 0.25
_FAINT: Final = "opacity:.7;font-size:.85em"


def html_fragment(recording: Recording, link: str = "") -> str:
    """Return a recorded run's verdict, figures, memory, cause and phases as HTML. ``link``: URL of the run's page."""
    verdict = to_json(examined(recording))
    unit, finding = verdict["unit"], leading_finding(verdict)
    parts = [
        *_head(recording, verdict, link),
        *_figures(verdict, finding, unit),
        *_curve(recording, verdict),
        *_cause(finding, unit),
        *_phases(to_json(phase_accounts(recording.history)), finding, unit),
    ]
    colour = _STATUSES[verdict["status"]][1]
    return (
        '<div style="font-family:system-ui,sans-serif;max-width:46em;padding:.5em 1em;'
        f'border-left:4px solid {colour}">{"".join(parts)}</div>'
    )


def _head(recording: Recording, verdict: Json, link: str) -> Iterator[str]:
    word, colour = _STATUSES[verdict["status"]]
    header = recording.header
    seen = seen_of(verdict["generations"], verdict["generations_passed"], verdict["unit"])
    page = f' · <a href="{escape(link)}">run page</a>' if link else ""
    yield f'<div style="{_FAINT}">{escape(f"{header.project} / {header.name}")} · {escape(seen)}{page}</div>'
    yield f'<div><b style="color:{colour}">{word}</b> <b>{escape(verdict["summary"])}</b></div>'


def _figures(verdict: Json, finding: Json | None, unit: str) -> Iterator[str]:
    growth = (finding or verdict)["growth_bytes_per_generation"]
    known = {"growth": NOT_MEASURED if growth is None else f"{interval(growth)} per {unit}"}
    headline, more = forecast_headline(verdict["oom"], unit)
    known["out of memory"] = f"{headline} {more}".strip()
    if finding is not None and finding["started_at_generation"] is not None:
        known["since"] = f"{unit} {round(finding['started_at_generation']['estimate']):,}"
    if verdict["explained_share"] is not None:
        known["explained"] = f"{format_share(verdict['explained_share'])} of the growth"
    yield "<div>"
    for name, text in known.items():
        yield f'<span style="{_FAINT}">{name}</span> {escape(text)} &ensp; '
    yield "</div>"


def _curve(recording: Recording, verdict: Json) -> Iterator[str]:
    """Yield a chart of the first process's memory at generation ends, with a forecast. A notebook has only one
    process.
    """
    points = [point for process in recording.history.processes[:1] for point in _ends(process)]
    if len(points) < 2:
        return
    (first, _), (last, now) = points[0], points[-1]
    growth = verdict["growth_bytes_per_generation"]
    ahead = max(1.0, _AHEAD * (last - first))
    goes_on = growth is not None and verdict["status"] in ACTIVE
    end = (last + ahead, now + ahead * growth["estimate"]) if goes_on else points[-1]
    top = max(*(y for _, y in points), end[1]) or 1.0
    across = _WIDTH / (end[0] - first or 1.0)

    def at(point: tuple[float, float]) -> str:
        x, y = point
        return f"{(x - first) * across:.1f},{_HEIGHT - y / top * (_HEIGHT - 4):.1f}"

    line = " ".join(map(at, points))
    colour = _STATUSES[verdict["status"]][1]
    said = f"Memory from {format_bytes(points[0][1])} to {format_bytes(now)}"
    yield (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}" style="width:100%;display:block;'
        f'margin:.5em 0 0"><polygon points="0,{_HEIGHT} {line} {(last - first) * across:.1f},{_HEIGHT}" '
        f'fill="{colour}" fill-opacity=".15"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    )
    if goes_on:
        yield (
            f'<polyline points="{at(points[-1])} {at(end)}" fill="none" stroke="{colour}" stroke-width="2" '
            'stroke-dasharray="3 4"/>'
        )
    span = f"{verdict['unit']} {first:,.0f} to {last:,.0f}"
    yield f'</svg><div style="{_FAINT}">{said}, {escape(span)}{"; dotted line: forecast" if goes_on else ""}</div>'


def _ends(process: ProcessHistory) -> list[tuple[float, float]]:
    """Return pairs (generation, memory at its end): private memory, or resident memory if private memory was not
    read.
    """
    read = process.series
    names = _PRIVATE if any(value is not None for value in read.get(_PRIVATE[0], ())) else (MEMORY,)
    found: dict[float, float] = {}
    for i, (generation, kind) in enumerate(zip(process.generation, process.kind, strict=True)):
        values = [read[name][i] for name in names if name in read]
        if kind == "generation_end" and generation is not None and values[0] is not None:
            found[generation] = sum(value for value in values if value is not None)
    return sorted(found.items())


def _cause(finding: Json | None, unit: str) -> Iterator[str]:
    if finding is None:
        return
    where = finding.get("phase_path") or finding["phase"] or "no single phase"
    title = "Cause" if finding["status"] in ACTIVE else "Finding"
    yield f'<div style="margin-top:.5em"><b>{title}</b> in <code>{escape(where)}</code></div>'
    for place, suspect in enumerate(finding["suspects"][:SUSPECTS_SHOWN]):
        rate = suspect["count_per_generation"]
        more = f" {format_count_change(rate)} per {unit}" if rate is not None else ""
        yield (
            f'<div><span style="{_FAINT}">{escape(role_words(finding, place))}</span> '
            f"<code>{escape(suspect['name'])}</code>{escape(more)}</div>"
        )
    yield from (f"<div>→ {escape(advice)}</div>" for advice in finding["advice"][:1])


def _phases(accounts: Json, finding: Json | None, unit: str) -> Iterator[str]:
    count = sum(accounts["spans"]) or len(accounts["generations"])
    if not count:
        return
    lines = [line for line in accounts["lines"] if any(line["bytes"])]
    means = sorted(((sum(line["bytes"]) / count, line["name"]) for line in lines), reverse=True)
    most = max((abs(mean) for mean, _ in means), default=0)
    cause = (finding or {}).get("phase_path") or (finding or {}).get("phase")
    per = f'<span style="{_FAINT}">mean per {escape(unit)}</span>'
    yield f'<div style="margin-top:.5em"><b>Growth by phase</b> {per}</div>'
    yield '<table style="border:0;width:100%">'
    for mean, name in means[:PHASES_SHOWN]:
        share = 100 * max(mean, 0) / most if most > 0 else 0
        bar = f"background:currentColor;opacity:{0.7 if name == cause else 0.3};height:.6em;width:{share:.0f}%"
        shown = OUTSIDE_NAMES.get(name, name)
        yield (
            f'<tr><td style="text-align:left">{escape(shown)}</td><td style="width:50%"><div style="{bar}"></div></td>'
            f'<td style="text-align:right">{format_change(mean)}</td></tr>'
        )
    yield "</table>"
