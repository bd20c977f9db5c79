"""The template context of ``/incidents``, built from leaks in the API's JSON format. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from leakline.text_format import count_of, join_words

from ..rendering import number_formats
from ..rendering.page_contexts import Cell, Column, Filter, Option, Row, SaidView, Status, Table
from ..run_page.verdict_view import (
    KINDS,
    STATUSES,
    expiries,
    incident_action,
    said_view,
    status_of,
)

Json = Mapping[str, Any]

# Leak state -> (status that determines the colour and shape, label, explanation).
STATES: Final = {
    "open": ("confirmed", "Open", "A run leaks, or leaked until it ended."),
    "acknowledged": ("watch", "Muted", "Alerts are paused until the muting expires or the leak gets worse."),
    "closed": ("recovered", "Closed", "The leak was closed with a note, and no run that began later has it."),
    "over": ("ok", "Over", "No run has this leak any longer."),
    "ignored": ("learning", "Muted for good", "No alert is ever sent for this leak."),
    "watched": ("filling", "Watched", "Growth that was never classified as a leak."),
}  # fmt: skip
# Kind of acknowledgement -> its words in a leak's sentence.
_IN_WORDS: Final = {"acknowledged": "muted", "ignored": "muted for good"}
_RESOLVED: Final = Status("ok", "Resolved", "The run no longer has this finding.")
_LEAKED: Final = ("confirmed", "suspected", "recovered", "resolved")
# If there are more run names than this, only their number and the newest name are shown.
_MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class LeakView:
    id: str
    fingerprint: str
    project: str
    status: Status
    title: str
    kind: str
    priority: str
    sentence: str
    facts: tuple[str, ...]
    changed_at: str
    changed: str
    advice: tuple[str, ...]
    said: tuple[SaidView, ...]
    runs: Table
    runs_label: str
    action: str
    href: str


@dataclass(frozen=True, slots=True)
class IncidentsPage:
    """The template context of ``/incidents``."""

    title: str
    leaks: tuple[LeakView, ...]
    filters: tuple[Filter, ...]
    projects: tuple[str, ...]
    project: str
    chosen: str
    expiries: tuple[Option, ...]
    next_href: str | None
    all_href: str | None
    any_leaks: bool
    json_href: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The page's filters; None selects all states, all projects or all leaks."""

    state: str | None = None
    project: str | None = None
    fingerprint: str | None = None

    def href(self, path: str = "/incidents", **more: str | None) -> str:
        wanted = {
            "status": self.state, "project": self.project, "fingerprint": self.fingerprint, **more,
        }  # fmt: skip
        given = {name: value for name, value in wanted.items() if value is not None}
        return f"{path}?{urlencode(given)}" if given else path


def with_sentence(group: Json) -> dict[str, Any]:
    """Return the group in the API's JSON format, with its history in words as ``sentence``."""
    return {**group, "sentence": story(group)}


def story(group: Json) -> str:
    """Return a group's history, such as ``Seen in A and C, closed by note X, back in F``."""
    leaked = [seen for seen in group["runs"] if seen["status"] in _LEAKED] or group["runs"]
    before = [seen["name"] for seen in leaked if not seen["reopened"]]
    after = [seen["name"] for seen in leaked if seen["reopened"]]
    left_out = group["runs_total"] - len(group["runs"])
    parts = []
    if before or left_out:
        parts.append(f"seen in {_names(before, left_out)}")
    parts += [_said_in_words(said) for said in group["acknowledgements"]]
    if after:
        parts.append(f"back in {_names(after, 0)}")
    sentence = ", ".join(parts)
    return sentence[:1].upper() + sentence[1:]


def incidents_page(
    groups: Sequence[Json],
    shown: Shown,
    counts: Mapping[str, int],
    projects: Sequence[str],
    next_cursor: str | None,
) -> IncidentsPage:
    one = shown.fingerprint is not None
    return IncidentsPage(
        title="Incidents",
        leaks=tuple(_leak(f"leak-{n}", group) for n, group in enumerate(groups)),
        filters=() if one else tuple(_filter(state, shown, counts[state]) for state in STATES),
        projects=tuple(projects) if len(projects) > 1 and not one else (),
        project=shown.project or "",
        chosen=shown.state or "",
        expiries=expiries(),
        next_href=shown.href(cursor=next_cursor) if next_cursor else None,
        all_href=Shown(project=shown.project).href() if one else None,
        any_leaks=any(counts.values()) or shown != Shown(),
        json_href=shown.href("/api/v1/incidents") if not one else _json_of(shown),
    )


def _json_of(shown: Shown) -> str:
    path = f"/api/v1/incidents/{quote(shown.fingerprint or '', safe='')}"
    return Shown(project=shown.project).href(path)


def _filter(state: str, shown: Shown, count: int) -> Filter:
    status = _state(state)
    labelled = Status(status.status, f"{status.word} {count}", status.meaning)
    chosen = state == shown.state
    wanted = Shown(None if chosen else state, shown.project)
    return Filter(labelled, wanted.href(), chosen)


def _leak(id_: str, group: Json) -> LeakView:
    project, fingerprint = group["project"], group["fingerprint"]
    unit = group["runs"][-1]["unit"]
    total = group["runs_total"]
    return LeakView(
        id=id_,
        fingerprint=fingerprint,
        project=project,
        status=_worn(group),
        title=group["summary"],
        kind=KINDS.get(str(group["kind"]), str(group["kind"])),
        priority=group["priority"],
        sentence=story(group),
        facts=_facts(group, unit),
        changed_at=group["changed_at"],
        changed=number_formats.clock(group["changed_at"]),
        advice=tuple(group["finding"].get("advice", ())),
        said=tuple(said_view(each) for each in group["acknowledgements"]),
        runs=_runs(group["runs"]),
        runs_label=count_of(total, "run"),
        action=incident_action(fingerprint),
        href=Shown(project=project, fingerprint=fingerprint).href(),
    )


def _state(state: str) -> Status:
    status, word, meaning = STATES[state]
    return Status(status, word, meaning)


def _worn(group: Json) -> Status:
    """Return an open leak's worst status in any run, or another leak's state."""
    if group["state"] == "open":
        statuses = {seen["status"] for seen in group["runs"]}
        return status_of("confirmed" if "confirmed" in statuses else "suspected")
    return _state(group["state"])


def _facts(group: Json, unit: str) -> tuple[str, ...]:
    finding = group["finding"]
    growth = number_formats.interval(finding.get("growth_bytes_per_generation"))
    facts = [f"grows by {growth} per {unit}"]
    phase = finding.get("phase_path") or group["phase"]
    if phase:
        facts.append(f"in {phase}")
    return tuple(facts)


def _runs(seen: Sequence[Json]) -> Table:
    rows = tuple(
        Row(
            (
                Cell(each["name"], href=each["url"]),
                _status_cell(each["status"], reopened=each["reopened"]),
                Cell(each["summary"]),
                Cell(number_formats.clock(each["first_seen_at"])),
                Cell(number_formats.clock(each["changed_at"])),
            )
        )
        for each in reversed(seen)
    )
    columns = ("Run", "Status", "Summary", "First seen", "Last change")
    return Table(tuple(map(Column, columns)), rows, "Runs with this leak, newest first", tall=True)


def _status_cell(name: str, *, reopened: bool) -> Cell:
    status = status_of(name) if name in STATUSES else _RESOLVED
    word = f"{status.word}, back" if reopened else status.word
    return Cell(word, status=status.status, title=status.meaning)


def _said_in_words(said: Json) -> str:
    reason = f"“{said['reason']}”" if said["reason"] else ""
    if said["kind"] == "closed":
        return f"closed by note {reason}"
    until = f" until {number_formats.clock(said['expires_at'])}" if said["expires_at"] else ""
    return f"{_IN_WORDS[said['kind']]}{until}{': ' if reason else ''}{reason}"


def _names(names: Sequence[str], more: int) -> str:
    """Return names as ``A, B (2 runs) and C``, or many names as ``12 runs, last in C``."""
    if more or len(names) > _MAX_NAMES:
        total = len(names) + more
        runs = count_of(total, "run")
        return f"{runs}, last in {names[-1]}" if names else runs
    listed = [
        f"{name} ({number} runs)" if number > 1 else name for name, number in Counter(names).items()
    ]
    return join_words(listed)
