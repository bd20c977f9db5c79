"""A document and the index -> what its page shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from .markdown import INDEX, Heading, Listed, Written, address_of

_FEWEST_HEADINGS = 3


@dataclass(frozen=True, slots=True)
class Leaf:
    """A document in the list of all."""

    address: str
    text: str
    is_here: bool


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """``/docs/…``; ``before`` and ``after`` in the order of the index, ``contents`` where it is long enough."""

    title: str
    body: Markup
    contents: tuple[Heading, ...]
    groups: tuple[Group, ...]
    before: Leaf | None
    after: Leaf | None
    is_index: bool


def document_page(document: str, written: Written, listed: Sequence[Listed]) -> DocumentPage:
    here = next((at for at, each in enumerate(listed) if each.document == document), None)
    headings = tuple(each for each in written.headings if each.level == 2)
    is_index = document == INDEX
    return DocumentPage(
        title=written.title,
        body=written.body,
        contents=() if is_index or len(headings) < _FEWEST_HEADINGS else headings,
        groups=tuple(
            Group(name, tuple(_leaf(each, document) for each in within))
            for name, within in groupby(listed, lambda each: each.group)
        ),
        before=_beside(listed, document, None if here is None else here - 1),
        after=_beside(listed, document, 0 if is_index else None if here is None else here + 1),
        is_index=is_index,
    )


def _leaf(listed: Listed, document: str) -> Leaf:
    return Leaf(address_of(listed.document), listed.text, listed.document == document)


def _beside(listed: Sequence[Listed], document: str, at: int | None) -> Leaf | None:
    return _leaf(listed[at], document) if at is not None and 0 <= at < len(listed) else None
