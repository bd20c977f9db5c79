"""Text that came from a training -> Markdown in which it stays text: escaped or in a code span; tables, lists.

Held against CommonMark with the tables of GitHub. What reads well as plain text is left as it is: an underscore inside
a word starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..text_format import printable

NOTHING: Final = "–"
# An underscore between letters or digits is text in every dialect of today.
_SPECIAL: Final = re.compile(r"[\\`*\[\]#~|$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;"}
# Where a line begins, these begin a list, a quote, a rule or a heading.
_OPENING: Final = re.compile(r"^(?:[-+>=]|\d+(?=[.)](?:\s|$)))")
# What GitHub and others make a link of by themselves.
_ADDRESS: Final = re.compile(r"://|(?i:www)\.")
# A name after this sign calls somebody, who gets a message. No escape helps: it is looked for in what is shown.
_MENTION: Final = re.compile(r"@(?=\w)")
# Seen nowhere, and no place to break a line.
_WORD_JOINER: Final = "\u2060"
# In a code span a backslash is no escape, and a bar ends a cell of a table.
_NOT_IN_CODE: Final = re.compile(r"[`|\\]")


def one_line(text: object) -> str:
    """What cannot be printed, line ends and marks that turn the direction of writing too, becomes a space."""
    return " ".join(printable(str(text)).split())


def escape(text: object) -> str:
    """The same text, of which no character means anything."""
    plain = re.sub(r"[&<]", lambda found: _ENTITIES[found[0]], one_line(text))
    plain = _SPECIAL.sub(lambda found: f"\\{found[0]}", plain)
    plain = _ADDRESS.sub(_no_link, plain)
    plain = _MENTION.sub(f"@{_WORD_JOINER}", plain)
    return _OPENING.sub(_no_block, plain)


def _no_link(found: re.Match[str]) -> str:
    return ":&#47;&#47;" if found[0] == "://" else f"{found[0][:-1]}&#46;"


def _no_block(found: re.Match[str]) -> str:
    # Before a number there is nothing to escape: the sign after it is what makes the list.
    return f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\"


def code(text: object) -> str:
    """A name as a code span; escaped where it holds what a code span cannot."""
    plain = one_line(text)
    if not plain:
        return NOTHING
    return escape(plain) if _NOT_IN_CODE.search(plain) else f"`{plain}`"


def linked(text: object, address: str | None) -> str:
    """A name as a code span that leads to ``address``, which is ours; without one the name alone."""
    return code(text) if address is None else f"[{code(text)}]({address})"


def headline(word: str, sentence: str) -> str:
    """``**Fixed.** The sentence``; where the sentence begins with the word, that is what stands out."""
    said = escape(sentence)
    if said.startswith(word):
        return f"**{word}**{said.removeprefix(word)}"
    return f"**{word}.** {said}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Cells are Markdown already. Heads that begin with ``#`` stand over numbers. Nothing where there is no row."""
    body = [_row(row) for row in rows]
    if body:
        yield _row([head.lstrip("#") for head in heads])
        yield _row(["--:" if head.startswith("#") else "---" for head in heads])
        yield from body


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bullets(lines: Iterable[str]) -> Iterator[str]:
    """Lines of text, those indented as points below the one before."""
    for line in lines:
        yield f"{'  ' if line[:1].isspace() else ''}- {escape(line)}"
