"""Event names, the facts of an alert, and the sentences that describe those facts. Pure. All message formats are
rendered from these facts.

Names come from training scripts, so they are truncated, stripped of control characters, and never treated as markup.
Links are paths until a message is sent, because only the sender knows the server's public address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, Literal
from urllib.parse import quote

from leakline.analysis.findings.verdict_summary import finding_sentence
from leakline.analysis.results import Finding, Interval, Suspect, Verdict, to_json
from leakline.snapshot import GRAPH_NODE
from leakline.text_format import (
    capital,
    entries_in,
    format_bytes,
    format_range,
    format_rate,
    in_brackets,
    join_processes,
    printable,
)

# The events that are sent; the names are part of the API.
SUSPECTED: Final = "incident.suspected"
CONFIRMED: Final = "incident.confirmed"
RECOVERED: Final = "incident.recovered"
RESOLVED: Final = "incident.resolved"
VIOLATED: Final = "contract.violated"
OOM_RISK: Final = "oom.risk"
SILENT: Final = "run.silent"
KILLED: Final = "run.killed"
FINISHED: Final = "run.finished"
FIRED: Final = "rule.fired"

# Events that leave an incident open, and events that confirm an incident.
OPEN: Final = frozenset({SUSPECTED, CONFIRMED, VIOLATED})
CERTAIN: Final = frozenset({CONFIRMED, VIOLATED})

# The source of the violated bound: run.expect, run.budget, a rule, or a person who accepted a count.
Origin = Literal["expect", "budget", "rule", "accepted"]

MAX_TEXT_CHARACTERS: Final = 300
MAX_LIST_ENTRIES: Final = 8
# A note is never truncated to fewer characters than this, even before a long summary.
_LEAST_NOTE: Final = 80
# A finding represents its run only with one of these statuses, listed worst first.
_LEAKING: Final = ("confirmed", "suspected")

_WORDS: Final[Mapping[str, str]] = {
    "incident.suspected": "Leak suspected",
    "incident.confirmed": "Leak confirmed",
    "incident.recovered": "Leak recovered",
    "incident.resolved": "Leak resolved",
    "contract.violated": "Declared count violated",
    "oom.risk": "Memory may run out",
    "run.silent": "Run silent",
    "run.killed": "Run killed",
    "run.finished": "Run finished",
}
_ENDS: Final[Mapping[str, str]] = {
    "incident.recovered": "; the growth has stopped",
    "incident.resolved": "; it is no longer detected",
}
_KIND_WORDS: Final[Mapping[str, str]] = {
    "graph": "autograd graphs",
    "cyclic_garbage": "cyclic garbage",
    "native": "native memory that no Python object explains",
    "allocator_retained": "memory the allocator keeps",
    "children": "memory of child processes",
    "gpu": "GPU memory",
    "gpu_fragmentation": "fragmented GPU memory",
    "shared_memory": "shared memory",
    "external": "memory outside the process",
}


@dataclass(frozen=True, slots=True)
class ExaminedRun:
    """A run and its verdict. Times are Unix seconds: ``at`` is the time of the verdict, ``began_at`` the start of the
    attempt.

    ``reason`` says why the run ended, if a reason was given.
    """

    id: str
    project: str
    name: str
    verdict: Verdict
    at: float
    state: str = "running"
    attempt: int = 1
    reason: str = ""
    began_at: float = 0.0
    last_seen_at: float = 0.0
    ended_at: float | None = None


def incident_facts(
    event: str, incident_id: str, finding: Finding, run: ExaminedRun
) -> dict[str, Any]:
    """Return the facts of one finding as plain JSON, with amounts in bytes and generations.

    ``origin`` is present only if a declared bound is violated.
    """
    summary = finding_sentence(finding, run.verdict.unit) + _ENDS.get(event, "")
    incident = {
        "id": incident_id,
        "fingerprint": finding.fingerprint,
        "status": finding.status,
        "confidence": finding.confidence,
    }
    advice = list(finding.advice)
    facts = _facts(_title(event, run), summary, run, finding, advice) | {
        "incident": plain(incident)
    }
    origin = origin_of(finding, run)
    return facts if origin is None else facts | {"origin": origin}


def origin_of(finding: Finding, run: ExaminedRun) -> Origin | None:
    """Return the source of the violated bound, or None for a leak that violates no bound."""
    if finding.kind == "count_contract":
        names = {suspect.name for suspect in finding.suspects}
        accepted = {each.name for each in run.verdict.assertions if each.origin == "accepted"}
        return "accepted" if names & accepted else "expect"
    is_first = run.verdict.findings[:1] == (finding,)
    for budget in run.verdict.assertions:
        if budget.origin != "budget" or budget.leak is None or budget.measured is None:
            continue
        # A budget for the run or for a generation applies to the first finding, which is the largest.
        places = (finding.phase, finding.phase_path)
        is_its_own = is_first if budget.phase is None else budget.phase in places
        if is_its_own and budget.measured.estimate >= budget.leak:
            return "budget"
    return None


def run_facts(
    event: str, run: ExaminedRun, summary: str, advice: Sequence[str], title: str = ""
) -> dict[str, Any]:
    """Return the facts of a run, with the same keys as the facts of a finding.

    The run's worst finding supplies the details. Unknown strings are empty.
    """
    worst = next(
        (f for status in _LEAKING for f in run.verdict.findings if f.status == status), None
    )
    advice = [*advice, *(worst.advice if worst is not None else ())]
    return _facts(title or _title(event, run), summary, run, worst, advice)


def noted(facts: dict[str, Any], note: str) -> dict[str, Any]:
    """Return the facts with ``note`` before the summary. A long note is truncated, but the summary is not."""
    summary = facts["summary"]
    room = max(_LEAST_NOTE, MAX_TEXT_CHARACTERS - len(summary) - 2)
    note = _clean(capital(note))
    note = note if len(note) <= room else note[: room - 1] + "…"
    return {**facts, "summary": f"{note}. {summary}"}


def _title(event: str, run: ExaminedRun) -> str:
    return f"{_WORDS.get(event, event)} in {run.project}/{run.name}"


def _facts(
    title: str, summary: str, run: ExaminedRun, finding: Finding | None, advice: Sequence[str]
) -> dict[str, Any]:
    unit = run.verdict.unit
    facts = {
        "title": title,
        "summary": summary,
        "run": {
            "id": run.id,
            "project": run.project,
            "name": run.name,
            "unit": unit,
            "generations": run.verdict.generations,
            "status": run.verdict.status,
            "state": run.state,
            "attempt": run.attempt,
        },
        **_of_finding(finding, run),
        "forecast": {
            "text": run.verdict.oom.sentence,
            **to_json(run.verdict.oom),
        },
        "advice": list(advice),
        "evidence": list(finding.evidence) if finding is not None else [],
        "link": f"/runs/{quote(run.id, safe='')}",
    }
    return {key: plain(value) for key, value in facts.items()}


def _of_finding(finding: Finding | None, run: ExaminedRun) -> dict[str, Any]:
    """Return the facts ``where``, ``what``, ``how_much`` and ``when``."""
    unit, when = run.verdict.unit, {"created_at": iso(run.at)}
    if finding is None:
        growth = run.verdict.growth_bytes_per_generation
        how_much = _how_much(growth, unit) if growth is not None else ""
        return {
            "where": {"text": ""},
            "what": {"text": "", "kind": None, "suspects": []},
            "how_much": {"text": how_much, "growth_bytes_per_generation": to_json(growth)},
            "when": {"text": "", "started_at_generation": None, **when},
        }
    return {
        "where": {
            "text": _where(finding),
            "phase": finding.phase,
            "phase_path": finding.phase_path,
            "phase_share": finding.phase_share,
            "process": finding.process,
        },
        "what": {
            "text": _what(finding, unit),
            "kind": finding.kind,
            "suspects": [to_json(s) for s in finding.suspects],
        },
        "how_much": {
            "text": _how_much(finding.growth_bytes_per_generation, unit),
            "growth_bytes_per_generation": to_json(finding.growth_bytes_per_generation),
            "explained_share": run.verdict.explained_share,
            "priority": finding.priority,
        },
        "when": {
            "text": _since(finding.started_at_generation, unit) or "start unknown",
            "started_at_generation": to_json(finding.started_at_generation),
            **when,
        },
    }


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _where(finding: Finding) -> str:
    where = finding.phase_path or finding.phase or "no single phase"
    return f"{where} in {join_processes(finding.process)}" if finding.process else where


def _what(finding: Finding, unit: str) -> str:
    first: Suspect | None = finding.suspects[0] if finding.suspects else None
    if first is None:
        return _KIND_WORDS.get(finding.kind, finding.kind)
    if not first.count_per_generation:
        return first.name
    if first.role == "container":
        return entries_in(first.count_per_generation, first.name, unit)
    is_tensors = finding.kind == "graph" and first.name != GRAPH_NODE
    graphs = " with their graphs" if is_tensors else ""
    return format_rate(first.count_per_generation, unit, f"{first.name}{graphs}")


def _how_much(growth: Interval, unit: str) -> str:
    span = in_brackets(format_range(growth.low, growth.high))
    return f"{format_bytes(growth.estimate)} per {unit}{span}"


def _since(start: Interval | None, unit: str) -> str:
    return "" if start is None else f"since {unit} {start.estimate:.0f}"


def plain(value: Any) -> Any:
    """Return the value as JSON, with every string cleaned and truncated, and every list truncated."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value[:MAX_LIST_ENTRIES]]
    # JSON has no infinity.
    return None if isinstance(value, float) and not isfinite(value) else value


def _clean(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 1] + "…"
