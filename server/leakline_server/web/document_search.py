"""Searches the documents for the sections that best match a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from ..limits import MAX_SEARCH_WORDS

MOST_HITS: Final = 30
_EXCERPT: Final = 220
_BEFORE_MATCH: Final = 70
_MOST_MATCHES: Final = 100
_HEADING: Final = re.compile(r'<h([1-6]) id="([^"]*)">(.*?)</h\1>', re.DOTALL)
_BLOCK_END: Final = re.compile(r"</(?:p|li|t[dhr]|pre)>")
_PUNCTUATION: Final = "?!.,;:'\"()`“”"
# Common words of questions that say nothing about the subject.
_IGNORED: Final = (
    " a an and are as at be by can do does for from get how i if in is it my of on or set so that the this to up use "
    "what when where which why will with you your "
)
# A match in a heading or title counts more than matches in the text.
_IN_HEADING: Final = 8
_IN_TITLE: Final = 4
_MOST_IN_TEXT: Final = 3


@dataclass(frozen=True, slots=True)
class Section:
    """The text between two headings; ``heading`` is empty for the text right below the title."""

    title: str
    heading: str
    address: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A section that was found, with an excerpt in which the words of the query are marked."""

    title: str
    heading: str
    address: str
    excerpt: Markup


@dataclass(frozen=True, slots=True)
class Results:
    """The best of ``total`` matching sections; ``has_all`` is True if they contain all words of the query."""

    hits: tuple[Hit, ...]
    total: int
    has_all: bool


def sections_of(title: str, body: str, address: str) -> Iterator[Section]:
    """Yield the sections of a rendered document, in order."""
    _, *parts = _HEADING.split(body)
    for level, anchor, heading, text in zip(*(parts[at::4] for at in range(4)), strict=True):
        plain = Markup(_BLOCK_END.sub(r" \g<0>", text)).striptags()
        if level == "1":
            yield Section(title, "", address, plain)
        else:
            yield Section(title, Markup(heading).striptags(), f"{address}#{anchor}", plain)


def search(query: str, sections: Sequence[Section]) -> Results:
    """Find the sections that contain all words of ``query`` or, failing that, as many as possible."""
    words = words_of(query)
    patterns = [_Pattern.of(word) for word in words]
    found = [(scores, section) for section in sections if any(scores := _scores(section, patterns))]
    most = max((_matches(scores) for scores, _ in found), default=0)
    best = [(scores, section) for scores, section in found if _matches(scores) == most]
    best.sort(key=lambda each: -sum(each[0]))
    hits = [_hit(section, words) for _, section in best[:MOST_HITS]]
    return Results(tuple(hits), len(best), most == len(words))


def words_of(query: str) -> list[str]:
    """Return the words to look for, each once; common words are ignored if there are others."""
    words = dict.fromkeys(word.strip(_PUNCTUATION).lower() for word in query.split())
    found = [word for word in words if word and f" {word} " not in _IGNORED]
    return (found or [word for word in words if word])[:MAX_SEARCH_WORDS]


class _Pattern(NamedTuple):
    """Patterns for a word: ``start`` matches words that begin with it, ``whole`` only the word and its plural."""

    start: re.Pattern[str]
    whole: re.Pattern[str]

    @classmethod
    def of(cls, word: str) -> _Pattern:
        start = rf"(?<![^\W_]){re.escape(word)}"
        whole = rf"{start}(?:s|es)?(?![^\W_])"
        return cls(re.compile(start, re.IGNORECASE), re.compile(whole, re.IGNORECASE))


def _scores(section: Section, patterns: Sequence[_Pattern]) -> list[int]:
    """Return the score of each word: 0 if no word of the section begins with it."""
    return [
        _IN_HEADING * bool(whole.search(section.heading))
        + _IN_TITLE * bool(whole.search(section.title))
        + bool(start.search(f"{section.heading} {section.title}"))
        + min(_MOST_IN_TEXT, len(start.findall(section.text)))
        for start, whole in patterns
    ]


def _matches(scores: Sequence[int]) -> int:
    return sum(score > 0 for score in scores)


def _hit(section: Section, words: Sequence[str]) -> Hit:
    any_word = re.compile(
        rf"(?<![^\W_])(?:{'|'.join(re.escape(word) for word in words)})", re.IGNORECASE
    )
    found = list(islice(any_word.finditer(section.text), _MOST_MATCHES))
    first = max((match.start() for match in found), key=_words_near(found), default=0)
    start = max(0, first - _BEFORE_MATCH)
    if start:
        # Begin the excerpt at the start of a word.
        start = section.text.find(" ", start, first) + 1 or start
    stop = start + _EXCERPT
    if stop < len(section.text):
        stop = max(section.text.rfind(" ", start, stop), start + _EXCERPT // 2)
    shown, end = Markup(""), start
    for match in any_word.finditer(section.text, start, stop):
        shown += escape(section.text[end : match.start()]) + Markup("<mark>{}</mark>").format(
            match[0]
        )
        end = match.end()
    shown += escape(section.text[end:stop])
    before, after = "… " if start else "", " …" if stop < len(section.text) else ""
    return Hit(section.title, section.heading, section.address, before + shown + after)


def _words_near(found: Sequence[re.Match[str]]) -> Callable[[int], int]:
    """Return a function that counts the different words of the query shortly after a position."""

    def count(start: int) -> int:
        near = (match for match in found if 0 <= match.start() - start < _EXCERPT - _BEFORE_MATCH)
        return len({match[0].lower() for match in near})

    return count
