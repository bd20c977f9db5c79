"""A document as blocks, and its writers for a terminal and for Markdown.

Words in blocks are in the `Style` of the writer that follows. The sentence of a headline and the lines of a list are
plain text: the writer escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ..console.snapshot_text import banner
from ..text_format import worded
from . import markup

_INDENT: Final = "   "


class Style(NamedTuple):
    """Functions that write a name, a text, and a place with the address where it can be read."""

    name: Callable[[object], str]
    text: Callable[[object], str]
    link: Callable[[object, str | None], str]
    nothing: str


MARKDOWN: Final = Style(markup.code, markup.escape, markup.linked, markup.NOTHING)
TERMINAL: Final = Style(str, str, lambda text, _address: str(text), "")


class Headline(NamedTuple):
    """A status and the sentence about it."""

    status: str
    sentence: str


class Heading(NamedTuple):
    """A title; of level 1 that of the document."""

    level: int
    title: str


class Sentence(NamedTuple):
    text: str


class Bullets(NamedTuple):
    """Lines of plain text; an indented line belongs to the line above it."""

    lines: Sequence[str]


class Facts(NamedTuple):
    """Titles, each with a fact or with several sentences of plain text."""

    facts: Sequence[tuple[str, str | Sequence[str]]]


class Table(NamedTuple):
    """Rows below their heads. A head that begins with ``#`` is that of numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = Headline | Heading | Sentence | Bullets | Facts | Table


def section(title: str, *blocks: Block) -> Iterator[Block]:
    """Yield ``blocks`` below a heading; nothing if all of them are empty."""
    if any(block[-1] for block in blocks):
        yield Heading(2, title)
        yield from blocks


def markdown_text(blocks: Iterable[Block]) -> str:
    """Return the blocks as Markdown that ends with a line end."""
    return "\n\n".join("\n".join(_markdown(block)) for block in blocks if block[-1]) + "\n"


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Headline(status, sentence):
            yield markup.headline(status.replace("_", " ").capitalize(), sentence)
        case Heading(level, title):
            yield f"{'#' * level} {title}"
        case Sentence(text):
            yield text
        case Bullets(lines):
            yield from markup.bullets(lines)
        case Table(heads, rows):
            yield from markup.table(heads, rows)
        case Facts(facts):
            for title, fact in facts:
                if isinstance(fact, str):
                    yield f"- {title}: {fact}"
                elif fact:
                    yield f"- {title}:"
                    yield from (f"  - {markup.escape(sentence)}" for sentence in fact)


def terminal_lines(blocks: Iterable[Block], *, banners: bool = False) -> Iterator[str]:
    """Yield the lines of the blocks; ``banners`` are wide headings, as a long report has."""
    indent = ""
    before: Block | None = None
    for block in blocks:
        if not block[-1]:
            continue
        if isinstance(block, Heading):
            wide = banners and block.level == 2
            title = (
                block.title if block.level > 2 else f"{block.title[0].lower()}{block.title[1:]}:"
            )
            yield from banner(block.title.upper()) if wide else ("", title)
            indent = "" if wide else _INDENT
        else:
            is_first = before is None or isinstance(before, Heading)
            if not is_first and (type(before), type(block)) != (Headline, Bullets):
                yield ""
            yield from (f"{indent}{line}" for line in _terminal(block))
        before = block


def _terminal(block: Block) -> Iterator[str]:
    match block:
        case Headline(status, sentence):
            yield worded(status, sentence)
        case Sentence(text):
            yield text
        case Bullets(lines):
            yield from lines
        case Table(heads, rows):
            shown = columns_text([[head.lstrip("#").upper() for head in heads], *rows])
            yield from shown.split("\n")
        case Facts(facts):
            width = max(9, *(len(title) for title, _ in facts))
            for title, fact in facts:
                sentences = (fact,) if isinstance(fact, str) else fact
                yield from (f"{title:<{width}} {sentence}" for sentence in sentences)


def columns_text(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` with their columns aligned to the left, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
