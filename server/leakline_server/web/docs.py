"""``/docs``: the installed documents with full-text search, as pages that load nothing from other hosts.

Markdown is converted to HTML that complies with the pages' content security policy. Linked documents and
images are served below ``/docs``.
"""

from __future__ import annotations

import posixpath
import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, groupby, islice, takewhile
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pydantic import Field
from starlette.responses import Response

from ..errors import NotFound, shorten
from ..limits import MAX_QUERY_LENGTH, MAX_SEARCH_WORDS
from ..paths import DOCS
from ..text_cleaning import without_control
from .auth.permissions import READ
from .rendering.templating import render

ROOT: Final = "/docs"
INDEX: Final = "README.md"
# The base address for links that lead out of the documents folder.
REPOSITORY: Final = "https://github.com/leakline/leakline/blob/main/"

# HTML in a document is escaped, so that scripts cannot run.
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
# Markers around generated text.
_MARK: Final = re.compile(r"^<!-- [\w: -]+ -->\n", re.M)
_LIGHT: Final = re.compile(r"-light\.(\w+)$")
_TABLE: Final = '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 2 or 3, with the anchor that GitHub generates."""

    text: str
    anchor: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Written:
    """A rendered document; ``body`` includes the title."""

    title: str
    body: Markup
    headings: tuple[Heading, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A document that the index links to, with the heading of its group."""

    group: str
    document: str
    text: str

    @property
    def address(self) -> str:
        return address_of(self.document)


def write(text: str, document: str, files: Collection[str] = ()) -> Written:
    """Render Markdown; relative links are resolved from ``document``, a path below the docs folder.

    ``files`` are paths below the same folder. An image whose name ends in ``-light`` is
    paired with its dark variant if ``files`` contains that variant.
    """
    tokens = _MARKDOWN.parse(_MARK.sub("", text))
    title, headings, anchors = "", [], Counter[str]()
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            words = _plain(tokens[at + 1].children or ())
            anchor = anchor_of(words)
            anchors[anchor] += 1
            if anchors[anchor] > 1:
                anchor += f"-{anchors[anchor] - 1}"
            token.attrs["id"] = anchor
            if token.tag == "h1":
                title = title or words
            elif token.tag in ("h2", "h3"):
                headings.append(Heading(words, anchor, int(token.tag[1])))
        elif token.type in ("fence", "code_block"):
            token.type, token.content = "code_block", token.content.rstrip("\n")
            # Code blocks are focusable, so that they can be scrolled with the keyboard.
            token.attrs = {"class": "code", "tabindex": "0"}
        elif token.type in ("th_open", "td_open"):
            is_right = token.attrs.get("style") == "text-align:right"
            token.attrs = {"scope": "col"} if token.tag == "th" else {}
            if is_right:
                token.attrs["class"] = "number"
        elif token.children:
            token.children = [new for old in token.children for new in _led(old, document, files)]
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    numbers = count(1)
    html = re.sub("<table>", lambda _: _TABLE.format(next(numbers)), html)
    return Written(title, Markup(html.replace("</table>", "</table></div>")), tuple(headings))


def links_of(text: str) -> Iterator[Listed]:
    """Yield the index's links to documents, in order."""
    group = ""
    tokens = _MARKDOWN.parse(_MARK.sub("", text))
    for at, token in enumerate(tokens):
        children = token.children or []
        if token.type == "heading_open":
            group = _plain(tokens[at + 1].children or ())
        for place, child in enumerate(children, start=1):
            path = str(child.attrs.get("href", ""))
            if child.type == "link_open" and re.fullmatch(r"\w[\w/.-]*\.md", path):
                words = takewhile(lambda each: each.type != "link_close", children[place:])
                yield Listed(group, path, _plain(words))


def address_of(document: str) -> str:
    """Return a document's address: ``/docs/concepts`` for ``concepts.md``, ``/docs`` for the index."""
    path = document.removesuffix(INDEX).removesuffix(".md")
    return f"{ROOT}/{path}".rstrip("/")


def lead(document: str, link: str) -> str:
    """Return a link's target: a page or file below ``/docs``, or a file in the repository.

    Links to other hosts and links to anchors are returned unchanged.
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), parts.path))
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    if path.startswith("../"):
        return REPOSITORY + path.removeprefix("../") + fragment
    return (address_of(path) if path.endswith(".md") else f"{ROOT}/{path}") + fragment


def anchor_of(text: str) -> str:
    """Return the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def _led(token: Token, document: str, files: Collection[str]) -> Iterator[Token]:
    """Yield the replacement for an inline token: page links, local images, or an image's text."""
    if token.type == "link_open":
        target = lead(document, str(token.attrs["href"]))
        away = {"rel": "noreferrer"} if urlsplit(target).netloc else {}
        yield token.copy(attrs={"href": target, **away})
    elif token.type == "image":
        source = lead(document, str(token.attrs["src"]))
        dark = _LIGHT.sub(r"-dark.\1", source)
        attrs = {"src": source, "alt": "", "loading": "lazy", **_size_of(source)}
        if not source.startswith(ROOT + "/"):
            yield Token("text", "", 0, content=token.content)
        elif dark == source or dark.removeprefix(ROOT + "/") not in files:
            yield token.copy(attrs=attrs)
        else:
            yield token.copy(attrs={**attrs, "class": "only-light"})
            yield token.copy(attrs={**attrs, "src": dark, "class": "only-dark"})
    else:
        yield token


def _size_of(source: str) -> dict[str, str | int | float]:
    """Return a PNG file's width and height, so that the page does not shift while the image loads."""
    path = DOCS / source.removeprefix(f"{ROOT}/")
    if path.suffix != ".png" or not path.is_file():
        return {}
    with path.open("rb") as picture:
        # Skip the signature and the length and name of the first chunk.
        width, height = struct.unpack(">II", picture.read(24)[16:])
    return {"width": width, "height": height}


def _plain(tokens: Iterable[Token]) -> str:
    return "".join(token.content for token in tokens if token.type != "image")


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
    """A matching section, with an excerpt that highlights the query words."""

    title: str
    heading: str
    address: str
    excerpt: Markup


@dataclass(frozen=True, slots=True)
class Results:
    """The best of ``total`` matching sections; ``has_all`` is True if each contains all query words."""

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
    """Find the sections that contain all words of ``query``, or otherwise the most words."""
    words = words_of(query)
    patterns = [_Pattern.of(word) for word in words]
    found = [(scores, section) for section in sections if any(scores := _scores(section, patterns))]
    most = max((_matches(scores) for scores, _ in found), default=0)
    best = [(scores, section) for scores, section in found if _matches(scores) == most]
    best.sort(key=lambda each: -sum(each[0]))
    hits = [_hit(section, words) for _, section in best[:MOST_HITS]]
    return Results(tuple(hits), len(best), most == len(words))


def words_of(query: str) -> list[str]:
    """Return the distinct search words; common words are ignored if the query has other words."""
    words = dict.fromkeys(word.strip(_PUNCTUATION).lower() for word in query.split())
    found = [word for word in words if word and f" {word} " not in _IGNORED]
    return (found or [word for word in words if word])[:MAX_SEARCH_WORDS]


class _Pattern(NamedTuple):
    """Patterns for a query word.

    ``start`` matches every word that begins with the query word; ``whole`` matches only the query
    word itself and its plural.
    """

    start: re.Pattern[str]
    whole: re.Pattern[str]

    @classmethod
    def of(cls, word: str) -> _Pattern:
        start = rf"(?<![^\W_]){re.escape(word)}"
        whole = rf"{start}(?:s|es)?(?![^\W_])"
        return cls(re.compile(start, re.IGNORECASE), re.compile(whole, re.IGNORECASE))


def _scores(section: Section, patterns: Sequence[_Pattern]) -> list[int]:
    """Return a score for each query word: 0 if no word of the section begins with the query word."""
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
    """Return a function that counts the distinct query words shortly after a position."""

    def words_after(start: int) -> int:
        near = (match for match in found if 0 <= match.start() - start < _EXCERPT - _BEFORE_MATCH)
        return len({match[0].lower() for match in near})

    return words_after


router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ]
)

# Types of the files that documents show or link to.
MEDIA: Final = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yml": "text/plain; charset=utf-8",
    ".toml": "text/plain; charset=utf-8",
}
_FEWEST_HEADINGS: Final = 3
# Longer tables of contents list only level-2 headings.
_MOST_HEADINGS: Final = 24


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """The template context of ``/docs/…``.

    ``contents`` is empty for short documents; ``before`` and ``after`` are the neighbouring documents
    in the index.
    """

    title: str
    document: str
    body: Markup
    contents: tuple[Heading, ...]
    groups: tuple[tuple[str, tuple[Listed, ...]], ...]
    before: Listed | None
    after: Listed | None
    is_index: bool


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The template context of ``/docs?q=…``."""

    title: str
    query: str
    results: Results
    groups: tuple[tuple[str, tuple[Listed, ...]], ...]


@router.head(ROOT)
@router.get(ROOT)
def show_index(q: Annotated[str, Field(max_length=MAX_QUERY_LENGTH)] = "") -> Response:
    """Show the index, or the results of a search in all documents."""
    query = " ".join(without_control(q).split())
    if not query or INDEX not in files():
        return _page("")
    results = search(query, all_sections())
    page = SearchPage(f"Search: {query}", query, results, groups_of(listed()))
    return render("document_search.html", page)


@router.head(ROOT + "/{name:path}")
@router.get(ROOT + "/{name:path}")
def show_document(name: str) -> Response:
    path = files().get(name)
    if path is not None and path.suffix in MEDIA:
        headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
        return FileResponse(path, media_type=MEDIA[path.suffix], headers=headers)
    # Links on GitHub end in ``.md``.
    other = name if path is not None else document_called(name.rstrip("/"))
    if other is not None and (path is not None or not name or name.endswith("/")):
        return RedirectResponse(address_of(other), status_code=308)
    return _page(name)


@cache
def files() -> Mapping[str, Path]:
    """Return all documents and media by path; only the paths in this mapping are served."""
    found = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*")}
    return {name: path for name, path in found.items() if path.suffix in {".md", *MEDIA}}


def document_called(name: str) -> str | None:
    """Return a document's path, the index for an empty name, or None for an unknown name."""
    path = f"{name}.md" if name else INDEX
    return path if path in files() else None


@cache
def read(document: str) -> Written:
    return write(files()[document].read_text(encoding="utf-8"), document, files())


@cache
def listed() -> tuple[Listed, ...]:
    """Return the documents in the order of the index."""
    return tuple(links_of(files()[INDEX].read_text(encoding="utf-8")))


@cache
def all_sections() -> tuple[Section, ...]:
    """Return the sections of all documents except the index, in the order of the index."""
    documents = [each.document for each in listed() if each.document in files()]
    return tuple(
        section
        for document in documents
        for section in sections_of(read(document).title, read(document).body, address_of(document))
    )


def groups_of(listed: Sequence[Listed]) -> tuple[tuple[str, tuple[Listed, ...]], ...]:
    return tuple((name, tuple(of)) for name, of in groupby(listed, lambda each: each.group))


def contents_of(written: Written) -> tuple[Heading, ...]:
    """Return a document's table of contents, or an empty tuple for a short document."""
    top = tuple(heading for heading in written.headings if heading.level == 2)
    if len(written.headings) < _FEWEST_HEADINGS:
        return ()
    return written.headings if len(written.headings) <= _MOST_HEADINGS else top


def document_page(document: str, written: Written, listed: Sequence[Listed]) -> DocumentPage:
    order = [INDEX, *(each.document for each in listed)]
    # The index has no predecessor, and the last document no successor.
    padded = (None, *listed, None)
    at = order.index(document) if document in order else None
    return DocumentPage(
        title=written.title,
        document=document,
        body=written.body,
        contents=contents_of(written) if document != INDEX else (),
        groups=groups_of(listed),
        before=None if at is None else padded[at - 1],
        after=None if at is None else padded[at + 1],
        is_index=document == INDEX,
    )


def _page(name: str) -> Response:
    document = document_called(name)
    if document is None:
        raise _not_found(name)
    return render("document.html", document_page(document, read(document), listed()))


def _not_found(name: str) -> NotFound:
    if INDEX in files():
        message = f"there is no document {shorten(name)}; {ROOT} lists all documents"
    else:
        message = f"this installation has no documents; they are at {REPOSITORY}docs/{INDEX}"
    return NotFound("document_not_found", message, {"document": str(shorten(name))})
