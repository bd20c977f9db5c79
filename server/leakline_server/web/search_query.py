"""The search language of the list of runs: ``project:"my project" status:leaking tag:x before fix``. No I/O.

A value with spaces is quoted; within quotes, a backslash escapes a quote or a backslash. For
``config``, only the part after ``=`` is quoted: ``config:name="my model"``. Words without a known
filter are searched as text, and all words must match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from leakline.analysis.results import SEVERITY

from ..limits import MAX_SEARCH_WORDS
from ..store.runs.runs import DELETED, MATCHES, STATES

NAMES: Final = ("project", "tag", "status", *MATCHES, "started")
# Synonyms of statuses that people type.
_STATUS_WORDS: Final = {"leaking": "confirmed", "leak": "confirmed", "suspect": "suspected"}
_STATUSES: Final = (*SEVERITY, *STATES, DELETED)
# An unclosed quotation extends to the end of the search.
_WORD: Final = re.compile(
    r'(?P<before>(?:(?P<name>[A-Za-z]+):(?P<key>[^\s"=]+=)?)?)'
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*+)(?:"|\\?$)|(?P<plain>\S+))',
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_STARTED: Final = re.compile(
    r"(?P<side>[<>]?)(?:(?P<age>\d{1,5})(?P<unit>[mhdw])|(?P<day>\d{4}-\d\d-\d\d))"
)
_UNITS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DAY: Final = timedelta(days=1)


# Operators of other search engines; here they are searched as words.
_OPERATORS: Final = ("NOT", "OR", "AND")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a search.

    ``name`` is the filter's name, or empty; ``typed`` is the original text with quotes closed.
    """

    name: str
    value: str
    typed: str


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search: ``filters`` are fields of RunFilter, and ``problems`` are sentences for the user."""

    filters: dict[str, Any]
    problems: tuple[str, ...]


def words(text: str) -> list[Word]:
    """Return the words of a search, including filters without a value."""
    found = map(_word, _WORD.finditer(text))
    return [word for word in found if word.value or word.name]


def _word(found: re.Match[str]) -> Word:
    quoted = found["quoted"]
    value, typed = found["plain"], found[0]
    if quoted is not None:
        value, typed = _ESCAPED.sub(r"\1", quoted), f'{found["before"]}"{quoted}"'
    value = (found["key"] or "") + value
    name = (found["name"] or "").lower()
    if name in NAMES:
        return Word(name, value, typed)
    if quoted is None and value[-1:] == ":" and value[:-1].lower() in NAMES:
        return Word(value[:-1].lower(), "", typed)
    return Word("", f"{found['name']}:{value}" if name else value, typed)


def statuses_in(text: str) -> tuple[str, ...]:
    """Return the statuses of a search, without repetitions."""
    found = (word.value.lower() for word in words(text) if word.name == "status" and word.value)
    return tuple(dict.fromkeys(_STATUS_WORDS.get(each, each) for each in found))


def parse_query(text: str, now: float) -> Search:
    """Parse a search; ``now`` in Unix seconds is the reference for ages.

    Of several dates, the last date wins; all other words must match.
    """
    filters: dict[str, Any] = {}
    problems = []
    found = list(dict.fromkeys(words(text)))
    if len(found) > MAX_SEARCH_WORDS:
        problems.append(f"Only the first {MAX_SEARCH_WORDS} words were used.")
    for word in found[:MAX_SEARCH_WORDS]:
        if not word.value:
            problems.append(
                f"“{word.typed}” was ignored because it has no value: write the value right after "
                f"the colon, without a space, as in {word.name}:{_EXAMPLES.get(word.name, 'x')}."
            )
        elif word.name == "started":
            if (range_ := _started(word.value, now)) is None:
                problems.append(
                    f"“{word.typed}” was ignored: write an age or a day, as in started:<7d (in "
                    "the last 7 days), started:>7d (before that), started:>2026-11-01 (later) or "
                    "started:2026-11-20."
                )
            else:
                filters |= range_
        elif word.name in MATCHES:
            filters["matches"] = (*filters.get("matches", ()), (word.name, word.value))
        elif word.name != "status":
            several = {"project": "projects", "tag": "tags"}.get(word.name, "words")
            filters[several] = (*filters.get(several, ()), word.value)
            if not word.name and (problem := _unknown_filter(word) or _unknown_operator(word)):
                problems.append(problem)
    if statuses := statuses_in(text):
        filters["statuses"] = statuses
    problems += _contradictions(filters.get("projects", ()), statuses)
    return Search(filters, tuple(problems))


_EXAMPLES: Final = {"config": "lr=0.1", "status": "leaking", "started": "<7d"}


def _contradictions(projects: tuple[str, ...], statuses: tuple[str, ...]) -> list[str]:
    """Return a sentence for each condition that no run can match."""
    known = ", ".join(sorted(map(_as_typed, _STATUSES), key=lambda each: each != "leaking"))
    problems = [
        f"There is no status “{status}”. Known statuses: {known}."
        for status in statuses
        if status not in _STATUSES
    ]
    for what, values in (
        ("project", projects),
        ("verdict", [_as_typed(each) for each in statuses if each in SEVERITY]),
        ("state", [each for each in statuses if each in STATES]),
    ):
        if len(set(values)) > 1:
            named = " and ".join(f"“{value}”" for value in dict.fromkeys(values))
            problems.append(
                f"A run has only one {what}, so no run matches {named} together: search for one of them."
            )
    return problems


def _as_typed(status: str) -> str:
    return "leaking" if status == "confirmed" else status


def _unknown_operator(word: Word) -> str | None:
    name, colon, _ = word.typed.partition(":")
    excludes = colon and name[:1] == "-" and name[1:].lower() in NAMES
    if not excludes and word.typed not in _OPERATORS:
        return None
    return (
        f"“{word.typed}” was searched in names: a search finds runs that match all of its words, "
        f'and cannot exclude words. Write "{word.typed}" in quotes to search for it.'
    )


def _unknown_filter(word: Word) -> str | None:
    name, colon, rest = word.typed.partition(":")
    if not (colon and rest and name.isalpha()) or rest.startswith("//"):
        return None
    return f"There is no filter “{name}:”, so “{word.value}” was searched in names. Filters: {', '.join(NAMES)}."


def _started(value: str, now: float) -> dict[str, float] | None:
    """Parse an age or a day (UTC) into fields of RunFilter, or return None for other values.

    ``>7d`` means more than 7 days ago; ``<7d`` and ``7d`` mean the last 7 days. For days, ``>`` means
    later, ``<`` means earlier, and no sign means that day.
    """
    found = _STARTED.fullmatch(value)
    if found is None:
        return None
    if found["age"]:
        moment = now - int(found["age"]) * _UNITS[found["unit"]]
        return {"started_before" if found["side"] == ">" else "started_from": moment}
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


def rebuilt(text: str, keep: Callable[[Word], bool], *more: str) -> str:
    """Return the query with the words that ``keep`` accepts, as typed, followed by ``more``."""
    return " ".join((*(word.typed for word in words(text) if keep(word)), *more))


def is_state(word: Word) -> bool:
    """Return True if the word filters by run state; a state may be combined with a verdict."""
    return word.name == "status" and word.value.lower() in (*STATES, DELETED)


def written(name: str, value: str) -> str:
    """Return a filter in the search language, such as ``project:x`` or ``project:"my project"``."""
    if re.search(r'[\s"]', value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{name}:"{escaped}"'
    return f"{name}:{value}"


def search_for(value: str, name: str) -> str:
    """Return the address of the list of runs, filtered by a project or tag."""
    return "/?" + urlencode({"q": written(name, value)})
