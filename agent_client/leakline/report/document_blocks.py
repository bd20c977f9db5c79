"""The blocks of a document, and functions that write blocks for a terminal and as Markdown.

Text from a training run is escaped or put in a code span, so that Markdown does not interpret it. The rules follow
CommonMark with GitHub's tables. Characters that have no effect, such as an underscore inside a word, are not escaped,
so that the source remains readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ..console import banner
from ..text_format import printable, worded

NOTHING: Final = "–"
# An underscore between letters or digits is not special: every current dialect reads it as plain text.
_SPECIAL: Final = re.compile(r"[\\`*\[\]#~|$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;"}
# At the beginning of a line, these start a list, a quote, a rule or a heading.
_OPENING: Final = re.compile(r"^(?:[-+>=]|\d+(?=[.)](?:\s|$)))")
# GitHub and other sites turn these patterns into links automatically.
_ADDRESS: Final = re.compile(r"://|(?i:www)\.")
# A name after an at sign notifies a user. Escaping the sign does not help, because mentions are detected in the
# rendered text.
_MENTION: Final = re.compile(r"@(?=\w)")
# An invisible character that does not allow a line break.
_WORD_JOINER: Final = "\u2060"
# Inside a code span a backslash does not escape anything, and a vertical bar would end a table cell.
_NOT_IN_CODE: Final = re.compile(r"[`|\\]")


def one_line(text: object) -> str:
    """Return the text with line ends, direction marks and other unprintable characters replaced by spaces."""
    return " ".join(printable(str(text)).split())


def escape(text: object) -> str:
    """Return the text with every character that has a meaning in Markdown escaped."""
    plain = re.sub(r"[&<]", lambda found: _ENTITIES[found[0]], one_line(text))
    plain = _SPECIAL.sub(lambda found: f"\\{found[0]}", plain)
    plain = _ADDRESS.sub(_no_link, plain)
    plain = _MENTION.sub(f"@{_WORD_JOINER}", plain)
    return _OPENING.sub(_no_block, plain)


def _no_link(found: re.Match[str]) -> str:
    return ":&#47;&#47;" if found[0] == "://" else f"{found[0][:-1]}&#46;"


def _no_block(found: re.Match[str]) -> str:
    # A digit cannot be escaped. The sign after the digits makes the line a list item, so put the backslash before that
    # sign.
    return f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\"


def code(text: object) -> str:
    """Return a name as a code span, or escaped if it contains characters that a code span cannot contain."""
    plain = one_line(text)
    if not plain:
        return NOTHING
    return escape(plain) if _NOT_IN_CODE.search(plain) else f"`{plain}`"


def linked(text: object, address: str | None) -> str:
    """Return a name as a code span, with a link if ``address`` is not None. ``address`` must be a trusted URL."""
    return code(text) if address is None else f"[{code(text)}]({address})"


def headline(word: str, sentence: str) -> str:
    """Return text such as ``**Fixed.** The sentence``. A word that already begins the sentence is not repeated."""
    said = escape(sentence)
    if said.startswith(word):
        return f"**{word}**{said.removeprefix(word)}"
    return f"**{word}.** {said}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, or nothing if there are no rows.

    Cells already contain Markdown. A head that begins with ``#`` marks a column of numbers.
    """
    body = [_row(row) for row in rows]
    if body:
        yield _row([head.lstrip("#") for head in heads])
        yield _row(["--:" if head.startswith("#") else "---" for head in heads])
        yield from body


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bullets(lines: Iterable[str]) -> Iterator[str]:
    """Yield a bullet for each line; an indented line becomes a sub-item of the line before it."""
    for line in lines:
        yield f"{'  ' if line[:1].isspace() else ''}- {escape(line)}"


_INDENT: Final = "   "


class Style(NamedTuple):
    """Functions that format names, plain text and links. ``nothing`` is shown for a missing value."""

    name: Callable[[object], str]
    text: Callable[[object], str]
    link: Callable[[object, str | None], str]
    nothing: str


MARKDOWN: Final = Style(code, escape, linked, NOTHING)
TERMINAL: Final = Style(str, str, lambda text, _address: str(text), "")


class Headline(NamedTuple):
    """A status and a sentence that explains the status."""

    status: str
    sentence: str


class Heading(NamedTuple):
    """A title. Level 1 is the title of the document."""

    level: int
    title: str


class Sentence(NamedTuple):
    text: str


class Bullets(NamedTuple):
    """Lines of plain text. An indented line belongs to the line above it."""

    lines: Sequence[str]


class Facts(NamedTuple):
    """Titles, each followed by a fact or by several sentences of plain text."""

    facts: Sequence[tuple[str, str | Sequence[str]]]


class Table(NamedTuple):
    """Rows below their heads. A head that begins with ``#`` marks a column of numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = Headline | Heading | Sentence | Bullets | Facts | Table


def section(title: str, *blocks: Block) -> Iterator[Block]:
    """Yield a heading and ``blocks``, or nothing if all blocks are empty."""
    if any(block[-1] for block in blocks):
        yield Heading(2, title)
        yield from blocks


def markdown_text(blocks: Iterable[Block]) -> str:
    """Return the blocks as Markdown that ends with a newline."""
    return "\n\n".join("\n".join(_markdown(block)) for block in blocks if block[-1]) + "\n"


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Headline(status, sentence):
            yield headline(status.replace("_", " ").capitalize(), sentence)
        case Heading(level, title):
            yield f"{'#' * level} {title}"
        case Sentence(text):
            yield text
        case Bullets(lines):
            yield from bullets(lines)
        case Table(heads, rows):
            yield from table(heads, rows)
        case Facts(facts):
            for title, fact in facts:
                if isinstance(fact, str):
                    yield f"- {title}: {fact}"
                elif fact:
                    yield f"- {title}:"
                    yield from (f"  - {escape(sentence)}" for sentence in fact)


def terminal_lines(blocks: Iterable[Block], *, banners: bool = False) -> Iterator[str]:
    """Yield the blocks as lines of text. ``banners``: show headings as wide banners, as in a long report."""
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
    """Return ``rows`` with their columns left-aligned, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
