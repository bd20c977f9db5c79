"""The parts of a verdict that pages show: status, figures, findings, acknowledgements, forecasts.

Verdicts are in the API's JSON format. Thresholds and sentences come from leakline.analysis; this
module arranges the parts for the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlencode

from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.status import ACTIVE, CONFIRMING, GROWING, MIN_GENERATIONS
from leakline.report.verdict_facts import (
    forecast_headline,
    forecast_sentence,
    role_words,
    seen,
)
from leakline.report.verdict_facts import leading_finding as leading_finding
from leakline.text_format import (
    capital,
    count_of,
    format_range,
    format_rate,
    format_share,
    format_span,
    join_processes,
)

from ...charts.chart_parts import limit_word
from ...run_requests import SEARCHED
from ..rendering import number_formats
from ..rendering.number_formats import size
from ..rendering.page_contexts import (
    Cell,
    FindingView,
    Muting,
    Option,
    SaidView,
    Section,
    Status,
    SuspectView,
    Tile,
    VerdictView,
)
from ..rendering.table_cells import Field, rated, table

Json = Mapping[str, Any]

# Status -> (label, explanation), most urgent first.
STATUSES: Final = {
    "confirmed": ("Leaking", "Memory is kept in every generation, and the analysis has ruled out the harmless causes."),
    "suspected": ("Suspected", "Memory grows as if there were a leak, but not for long enough to confirm one."),
    "watch": ("Watch", "Something grows, but may not be a leak."),
    "filling": ("Filling", "Memory grows only up to a known capacity, or to a level that a slowing count predicts."),
    "ok": ("OK", "Memory is steady from generation to generation."),
    "recovered": ("Recovered", "Memory was leaking, but has stopped growing."),
    "learning": ("Learning", "Growth is assessed once enough generations have ended."),
}  # fmt: skip

# Outcome of a comparison -> (status that determines the colour and shape, label, explanation).
OUTCOMES: Final = {
    "fixed": ("ok", "Fixed", "The leak of the first run is gone."),
    "improved": ("recovered", "Improved", "Memory grows less, but the verdict of the second run still reports growth."),
    "no_effect": ("learning", "No effect", "Nothing changed beyond the noise of the measurement."),
    "worse": ("confirmed", "Worse", "Memory grows more in the second run."),
    "undecided": ("watch", "Undecided", "The data does not show whether the growth changed."),
}  # fmt: skip

# Used only while the run is running: after its end, there is nothing to wait for.
_SUSPECTED_SO_FAR: Final = (
    "Memory keeps growing as if there were a leak; a few more generations will show whether "
    "there is one."
)
# Used for a run that has ended; explains why the verdict stays uncertain.
_SUSPECTED_TO_THE_END: Final = (
    "Memory kept growing as if there were a leak, but not for long enough to confirm one: that takes "
    f"{CONFIRMING} generations of growth."
)

KINDS: Final = {
    "objects": "objects", "tensors": "tensors", "graph": "autograd graph", "arrays": "arrays",
    "container": "growing container", "cyclic_garbage": "cyclic garbage", "native": "native memory",
    "allocator_retained": "kept by the allocator", "children": "child processes", "gpu": "GPU",
    "gpu_fragmentation": "GPU fragmentation", "shared_memory": "shared memory",
    "count_contract": "declared count broken", "external": "outside the process",
}  # fmt: skip

_OUTSIDE: Final = (
    "Memory grows as if there were a leak. The cause is unknown, because objects cannot be counted from "
    "outside the process."
)
_ROLES: Final = {"allocation_site": "allocated at", "process": "child process"}
_NO_FORECAST: Final[Json] = {
    "risk": "none", "limit_bytes": None, "limit_source": None, "sentence": "not known yet",
}  # fmt: skip
_RISK_STATUS: Final = {"critical": "confirmed", "high": "suspected", "low": "watch"}


def status_of(name: str) -> Status:
    word, meaning = STATUSES[name]
    return Status(name, word, meaning)


def outcome_of(name: str) -> Status:
    status, word, meaning = OUTCOMES[name]
    return Status(status, word, meaning)


def short_name(path: str) -> str:
    """Return ``TradingEnvironment`` for ``trading.TradingEnvironment``; holder paths are unchanged."""
    return path if "[" in path else path.rsplit(".", 1)[-1]


def verdict_view(verdict: Json | None, *, over: bool = False) -> VerdictView:
    """Return the view of a verdict; ``over`` is True if the run will send no more data."""
    if verdict is None and over:
        return VerdictView(
            status_of("learning"),
            "No snapshot arrived.",
            "The run ended before it sent a snapshot.",
            (),
        )
    if verdict is None:
        return VerdictView(
            status_of("learning"),
            "Waiting for the first snapshot.",
            "The analysis runs as soon as a snapshot arrives.",
            (),
        )
    status = status_of(verdict["status"])
    ruled_out = tuple(f"{each['phase']} ({each['reason']})" for each in verdict["ruled_out"])
    return VerdictView(status, verdict["summary"], _support(verdict, status, over), ruled_out)


def _support(verdict: Json, status: Status, over: bool) -> str:
    meaning = status.meaning
    if status.status == "suspected":
        meaning = _SUSPECTED_TO_THE_END if over else _SUSPECTED_SO_FAR
    parts = [meaning.replace("generation", verdict["unit"])]
    if _is_from_outside(leading_finding(verdict)):
        parts = [_OUTSIDE]
    generations = verdict["generations"]
    if status.status == "learning":
        return _waited_for(verdict["unit"], MIN_GENERATIONS - generations, over)
    parts.append(f"Based on {seen(verdict)}.")
    return " ".join(parts)


def _is_from_outside(finding: Json | None) -> bool:
    """Return True if the growth was seen from outside the process, where no objects are counted."""
    return finding is not None and finding.get("unknown") == "outside"


def _waited_for(unit: str, missing: int, over: bool) -> str:
    least = f"A verdict needs {count_of(MIN_GENERATIONS, f'whole {unit}')}"
    if over:
        return f"{least}; the run ended earlier."
    more = f"{missing} more to go" if missing > 0 else "the next analysis will give a verdict"
    return f"{least}: {more}. The measurements so far are below."


def facts(verdict: Json | None, unit: str, *, over: bool = False) -> tuple[Tile, ...]:
    """Return growth, forecast, start and explained share; ``over`` is the same as for `verdict_view`."""
    finding = leading_finding(verdict)
    forecast = _forecast_tile(verdict, unit, over)
    if verdict is None or finding is None:
        learning = verdict is None or verdict["status"] == "learning"
        since = ("Not known" if over else "Not known yet") if learning else "Never"
        rate = _rate_text((verdict or {}).get("growth_bytes_per_generation"))
        none = Tile("SINCE", since, "no start of growth found")
        return Tile("GROWTH", rate, f"per {unit}"), forecast, none
    return (
        _how_much(finding, verdict, unit),
        forecast,
        _when(finding, unit),
        *_explained(verdict),
    )


def _explained(verdict: Json) -> Iterator[Tile]:
    share = verdict["explained_share"]
    if share is not None:
        yield Tile("EXPLAINED", number_formats.percent(share), "of the growth")


def _spread(unit: str) -> str:
    return f"spread over the {'whole program' if unit in UNITS_OF_TIME else unit}"


def _suspect_rate(suspect: Json, unit: str) -> str:
    count, size = suspect["count_per_generation"], suspect["bytes_per_generation"]
    grown = number_formats.change(size) if size else ""
    if count is not None and 0 < count < 1:
        return ", ".join(
            filter(None, (format_rate(count, unit, "more"), grown and f"{grown} per {unit}"))
        )
    parts = [*([] if count is None else [number_formats.rate(count)]), *filter(None, [grown])]
    return f"{', '.join(parts)} per {unit}" if parts else ""


def _how_much(finding: Json, verdict: Json, unit: str) -> Tile:
    growth = finding["growth_bytes_per_generation"]
    span = format_range(growth["low"], growth["high"], number_formats.size)
    detail = f"per {unit}, {span}" if span else f"per {unit}"
    others = sum(each["status"] in GROWING for each in verdict["findings"]) - 1
    if others > 0 and verdict["growth_bytes_per_generation"]:
        detail += f" · all findings {number_formats.change(verdict['growth_bytes_per_generation']['estimate'])}"
    value = number_formats.change(growth["estimate"])
    return Tile("GROWTH", value, detail, status=finding["status"])


def _when(finding: Json, unit: str) -> Tile:
    start = finding["started_at_generation"]
    if start is None:
        return Tile("SINCE", "Start unclear", "growing since the first reading")
    low, high = _whole(start["low"]), _whole(start["high"])
    detail = f"exact to the {unit}" if low == high else f"between {unit} {low} and {high}"
    return Tile("SINCE", f"{capital(unit)} {_whole(start['estimate'])}", detail)


def _forecast_tile(verdict: Json | None, unit: str, over: bool) -> Tile:
    oom = (verdict or {}).get("oom") or _NO_FORECAST
    if over and oom.get("sentence") == _NO_FORECAST["sentence"]:
        # Omit "yet", because the verdict was computed before the run ended.
        oom = {**oom, "sentence": "not known"}
    value, detail = forecast_headline(oom, unit)
    # The detail has its own line, so it needs no parentheses.
    detail = re.sub(r"^\((.*)\)$", r"\1", detail)
    limit = oom["limit_bytes"]
    against = (
        f"limit {number_formats.size(limit)} ({limit_word(oom['limit_source'])})" if limit else ""
    )
    return Tile(
        "OOM",
        capital(value),
        " · ".join(filter(None, (detail, against))),
        status=_RISK_STATUS.get(oom["risk"]),
    )


def forecast_text(oom: Json | None, unit: str) -> str:
    """Return the forecast as a sentence, for the list of runs."""
    return forecast_sentence(oom or _NO_FORECAST, unit)


def forecast_in_short(oom: Json | None, unit: str) -> str:
    """Return a forecast such as ``Near generation 415 of 1,000`` for the column “Out of memory”."""
    return capital(forecast_headline(oom or _NO_FORECAST, unit)[0].removeprefix("OOM "))


def _rate_text(growth: Json | None) -> str:
    return (
        number_formats.NOT_MEASURED.capitalize()
        if growth is None
        else number_formats.change(growth["estimate"])
    )


def _whole(value: float) -> str:
    return f"{round(value):,}"


def findings_view(
    findings: Sequence[Json],
    unit: str,
    said: Mapping[str, Sequence[Json]] = MappingProxyType({}),
    mutings: Mapping[str, Muting] = MappingProxyType({}),
) -> tuple[FindingView, ...]:
    """Return the views of findings.

    ``said`` maps fingerprints to acknowledgements in force, and ``mutings`` to forms for muting.
    """
    return tuple(
        _finding(each, unit, said.get(each["fingerprint"], ()), mutings.get(each["fingerprint"]))
        for each in findings
    )


def findings_title(findings: Sequence[Json]) -> str:
    """Return ``Cause`` or ``Causes`` if something leaks, otherwise ``Findings``."""
    if not any(each["status"] in ACTIVE for each in findings):
        return "Findings"
    return "Causes" if len(findings) > 1 else "Cause"


def _finding(finding: Json, unit: str, said: Sequence[Json], muting: Muting | None) -> FindingView:
    growth = finding["growth_bytes_per_generation"]
    start = finding["started_at_generation"]
    where = finding.get("phase_path") or finding["phase"] or _spread(unit)
    facts = [
        f"{number_formats.interval(growth, number_formats.change)} per {unit}",
        f"since {unit} {_whole(start['estimate'])}" if start else "since the first reading",
        f"confidence {number_formats.percent(finding['confidence'])}",
    ]  # fmt: skip
    if finding.get("process"):
        facts.append(join_processes(finding["process"]))
    suspects = tuple(
        SuspectView(
            s["name"], _ROLES.get(s["role"], role_words(finding, place)), _suspect_rate(s, unit)
        )
        for place, s in enumerate(finding["suspects"])
    )
    return FindingView(
        status_of(finding["status"]), where, _kind(finding), _priority_of(finding), suspects, tuple(facts),
        tuple(finding["evidence"]), tuple(finding["advice"]), _search(finding),
        _location(finding), tuple(map(said_view, said)), muting,
    )  # fmt: skip


def _location(finding: Json) -> Cell | None:
    """Return the code location, or None if unknown, for example in an older server's verdict."""
    if not finding.get("location"):
        return None
    link = finding.get("location_link")
    return Cell(finding["location"], code=True, href=link, outside=link is not None)


def _kind(finding: Json) -> str:
    return "unknown memory" if finding.get("unknown") else KINDS[finding["kind"]]


def _priority_of(finding: Json) -> str:
    """Return the priority, or an empty string if the finding does no harm."""
    return str(finding.get("priority", "minor")) if finding["status"] in GROWING else ""


def _search(finding: Json) -> str:
    if finding["status"] not in ("suspected", "confirmed") or finding["kind"] not in SEARCHED:
        return ""
    return next((s["name"] for s in finding["suspects"] if s["role"] == "type"), "")


# (seconds, label) of the choices for muting a leak; empty seconds mean that muting has no end.
EXPIRIES: Final = (
    ("3600", "1 hour"), ("28800", "8 hours"), ("86400", "1 day"), ("604800", "1 week"), ("2592000", "30 days"),
    ("", "until unmuted"),
)  # fmt: skip
_CHOSEN_EXPIRY: Final = "86400"
# Kind of acknowledgement -> (its label on the page, the label of the button that revokes it).
_SAID: Final = {
    "acknowledged": ("Muted", "Unmute"), "ignored": ("Muted for good", "Unmute"), "closed": ("Closed", "Reopen"),
}  # fmt: skip


def expiries() -> tuple[Option, ...]:
    return tuple(Option(value, label, value == _CHOSEN_EXPIRY) for value, label in EXPIRIES)


def incident_action(fingerprint: str) -> str:
    return f"/incidents/{quote(fingerprint, safe='')}"


def mutings_of(project: str, fingerprints: Sequence[str], back: str) -> dict[str, Muting]:
    """Return the forms for muting each leak, by fingerprint; ``back`` is the page's address."""
    return {
        each: Muting(
            each,
            incident_action(each),
            project,
            back,
            f"/incidents?{urlencode({'project': project, 'fingerprint': each})}",
            expiries(),
        )
        for each in fingerprints
    }


def said_view(said: Mapping[str, Any]) -> SaidView:
    return SaidView(
        said["kind"],
        *_SAID[said["kind"]],
        said["reason"],
        said["created_at"],
        number_formats.clock(said["created_at"]),
        said["expires_at"],
        number_formats.clock(said["expires_at"]) if said["expires_at"] else "",
    )


def past_forecasts(score: Json | None, unit: str) -> Section | None:
    """Return the table that compares forecasts with the memory actually reached.

    Return None if no forecast has come due, or if an older server stored the verdict without
    errors by lead time.
    """
    leads = (score or {}).get("by_lead")
    if score is None or not leads:
        return None
    how = (
        "Memory forecast from growth, compared with the memory measured later. The error is "
        "relative to the measured memory; for several forecasts, it is the median error."
    )
    heads = [f"{unit}s ahead", "#error", "within its interval", "#forecast", "#actual"]
    rows = [row for lead in leads for row in _rows(lead, unit)]
    return Section(
        "forecasts", "Forecast accuracy", how, table=table(heads, rows, tall=False),
        note=score["sentence"],
    )  # fmt: skip


def _rows(lead: Json, unit: str) -> Iterator[list[Field]]:
    """Yield a row for all forecasts with the same lead time, followed by one row per forecast."""
    first, last = lead["lead_from"], lead["lead_to"]
    span = format_span(first, last)
    counted = f"{lead['within']:,} of {lead['forecasts']:,}"
    yield [span, format_share(lead["median_error"], 1), counted, "", ""]
    for each in lead["past"]:
        foretold, came = each["forecast"], each["actual"]
        inside = foretold["low"] <= came <= foretold["high"]
        yield [
            f"– {unit} {each['made_at']:,} for {each['generation']:,}",
            format_share(abs(foretold["estimate"] - came) / came, 1),
            rated("yes", "ok") if inside else rated("no", "watch"),
            size(foretold["estimate"]), size(came),
        ]  # fmt: skip
