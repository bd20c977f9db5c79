"""What people type into the search of the list of runs: ``project:"my project" status:leaking tag:x before fix``. Pure.

A value with spaces stands in quotes, and in these a quote or a backslash after a backslash. Words that name no filter
are looked for as they are: each of them has to be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

NAMES: Final = ("project", "tag", "status")
# What people type for a status.
_STATUS_WORDS: Final = {"leaking": "confirmed", "leak": "confirmed", "suspect": "suspected"}
# A quote that nobody closed reaches to the end.
_WORD: Final = re.compile(
    r'(?:(?P<name>[A-Za-z]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*+)(?:"|\\?$)|(?P<plain>\S+))',
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """``name`` is that of a filter, or empty; ``typed`` is the whole of it as it stood there."""

    name: str
    value: str
    typed: str


def words(text: str) -> list[Word]:
    return [word for found in _WORD.finditer(text) if (word := _word(found)).value]


def _word(found: re.Match[str]) -> Word:
    quoted = found["quoted"]
    value = found["plain"] if quoted is None else _ESCAPED.sub(r"\1", quoted)
    name = (found["name"] or "").lower()
    if name in NAMES:
        return Word(name, value, found[0])
    return Word("", f"{found['name']}:{value}" if name else value, found[0])


def parse_query(text: str) -> dict[str, Any]:
    """Fields of the store's RunFilter. Of several projects or states the last counts; a run has to have every tag."""
    filters: dict[str, Any] = {}
    for word in words(text):
        if word.name == "status":
            filters["status"] = _STATUS_WORDS.get(word.value.lower(), word.value.lower())
        elif word.name == "project":
            filters["project"] = word.value
        else:
            several = "tags" if word.name else "words"
            filters[several] = (*filters.get(several, ()), word.value)
    return filters


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
