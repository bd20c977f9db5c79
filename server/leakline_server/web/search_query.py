"""What people type into the search of the list of runs: ``project:"my project" status:leaking tag:x before fix``. Pure.

A value with spaces stands in quotes, and in these a quote or a backslash after a backslash. Words that name no filter
are looked for as they are: each of them has to be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from leakline.analysis.results import SEVERITY

from ..store.runs.runs import DELETED, MATCHES, STATES

NAMES: Final = ("project", "tag", "status", *MATCHES, "started")
# What people type for a status.
_STATUS_WORDS: Final = {"leaking": "confirmed", "leak": "confirmed", "suspect": "suspected"}
_STATUSES: Final = (*SEVERITY, *STATES, DELETED)
# A quote that nobody closed reaches to the end.
_WORD: Final = re.compile(
    r'(?:(?P<name>[A-Za-z]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*+)(?:"|\\?$)|(?P<plain>\S+))',
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_STARTED: Final = re.compile(
    r"(?P<side>[<>]?)(?:(?P<age>\d{1,5})(?P<unit>[mhdw])|(?P<day>\d{4}-\d\d-\d\d))"
)
_UNITS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# More of them would be too deep a question for a database.
MAX_WORDS: Final = 30
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Word:
    """``name`` is that of a filter, or empty; ``typed`` is the whole of it as it stood there."""

    name: str
    value: str
    typed: str


@dataclass(frozen=True, slots=True)
class Search:
    """``filters``: fields of the store's RunFilter. ``problems``: sentences on what could not be searched for."""

    filters: dict[str, Any]
    problems: tuple[str, ...]


def words(text: str) -> list[Word]:
    return [word for found in _WORD.finditer(text) if (word := _word(found)).value]


def _word(found: re.Match[str]) -> Word:
    quoted = found["quoted"]
    value = found["plain"] if quoted is None else _ESCAPED.sub(r"\1", quoted)
    name = (found["name"] or "").lower()
    if name in NAMES:
        return Word(name, value, found[0])
    return Word("", f"{found['name']}:{value}" if name else value, found[0])


def status_in(text: str) -> str | None:
    """The status that is searched for; of several the last."""
    found = [word.value.lower() for word in words(text) if word.name == "status"]
    return _STATUS_WORDS.get(found[-1], found[-1]) if found else None


def parse_query(text: str, now: float) -> Search:
    """``now``: Unix seconds, from which ages count back. Of several projects or dates the last counts; a run has to
    match every tag, config, host, commit, phase, type and word."""
    filters: dict[str, Any] = {} if (status := status_in(text)) is None else {"status": status}
    problems = []
    if status is not None and status not in _STATUSES:
        known = ", ".join(("leaking", *(each for each in _STATUSES if each != "confirmed")))
        problems.append(f"There is no status “{status}”; there are: {known}.")
    found = list(dict.fromkeys(words(text)))
    if len(found) > MAX_WORDS:
        problems.append(f"Only the first {MAX_WORDS} words were looked for.")
    for word in found[:MAX_WORDS]:
        if word.name == "project":
            filters["project"] = word.value
        elif word.name == "started":
            if (range_ := _started(word.value, now)) is None:
                problems.append(
                    f"“{word.typed}” was left out: write an age or a day, as in started:>7d (in the last 7 days), "
                    "started:<2026-11-01 or started:2026-11-20."
                )
            else:
                filters |= range_
        elif word.name in MATCHES:
            filters["matches"] = (*filters.get("matches", ()), (word.name, word.value))
        elif word.name != "status":
            several = "tags" if word.name else "words"
            filters[several] = (*filters.get(several, ()), word.value)
            if not word.name and (problem := _unknown_filter(word)):
                problems.append(problem)
    return Search(filters, tuple(problems))


def _unknown_filter(word: Word) -> str | None:
    name, colon, rest = word.typed.partition(":")
    if not (colon and rest and name.isalpha()) or rest.startswith("//"):
        return None
    return f"There is no filter “{name}:”, so “{word.value}” was looked for in names. Filters: {', '.join(NAMES)}."


def _started(value: str, now: float) -> dict[str, float] | None:
    """``>`` is later: ``>7d`` is later than 7 days ago. An age without a sign is taken as the last so many; a day
    without one as that day, in UTC. None for anything else."""
    found = _STARTED.fullmatch(value)
    if found is None:
        return None
    if found["age"]:
        moment = now - int(found["age"]) * _UNITS[found["unit"]]
        return {"started_before" if found["side"] == "<" else "started_from": moment}
    try:
        day = datetime.fromisoformat(found["day"]).replace(tzinfo=UTC)
        begins, ends = day.timestamp(), (day + _DAY).timestamp()
    except (ValueError, OverflowError):
        return None
    if found["side"] == "<":
        return {"started_before": begins}
    return {"started_from": ends if found["side"] else begins} | (
        {} if found["side"] else {"started_before": ends}
    )


def without(text: str, name: str) -> list[str]:
    """The words as they were typed, but for those of a filter."""
    return [word.typed for word in words(text) if word.name != name]


def written(name: str, value: str) -> str:
    """``project:x``, or ``project:"my project"``: what `words` reads as this filter."""
    if re.search(r'[\s"]', value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{name}:"{escaped}"'
    return f"{name}:{value}"


def search_for(value: str, name: str) -> str:
    """The address of the list with the runs of this project or tag."""
    return "/?" + urlencode({"q": written(name, value)})


def joined(typed: Iterable[str]) -> str:
    return " ".join(typed)
