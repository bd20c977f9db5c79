"""Documents in Markdown -> HTML for our pages: no HTML of theirs, no inline style, links and pictures below ``/docs``.

What it makes obeys the pages' content policy: markdown-it writes the side of a table's column as a style, which becomes
a class, and a picture is never of another host.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

ROOT: Final = "/docs"
INDEX: Final = "README.md"
# What lies beside the documents and not below them is read where the code is.
REPOSITORY: Final = "https://github.com/leakline/leakline/blob/main/"

_ANCHORED: Final = (2, 3)
# Marks between which a command writes; nobody sees them where HTML is shown.
_MARK: Final = re.compile(r"^<!-- [\w: -]+ -->\n", re.M)
_LIGHT: Final = re.compile(r"-light\.(\w+)$")
_ALIGNED: Final = "text-align:right"


@dataclass(frozen=True, slots=True)
class Heading:
    """One below the title. ``anchor`` is the same as where the document is read as a file of the repository."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Written:
    """A document: ``body`` with its title, ``headings`` without."""

    title: str
    body: Markup
    headings: tuple[Heading, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A link of a list in the index: below which heading, to which document, called what."""

    group: str
    document: str
    text: str


def write(text: str, document: str, pictures: frozenset[str] = frozenset()) -> Written:
    """``document``: its path below the documents' folder, by which relative links are read. ``pictures``: those that
    there are, of which one called ``-light`` comes with its dark twin."""
    page = _Page(document, pictures)
    tokens = _parser().parse(_MARK.sub("", text))
    page.name_headings(tokens)
    body = _renderer().render(tokens, {"page": page})
    # HTML of theirs was never parsed, so all of it is ours.
    return Written(page.title, Markup(body), tuple(page.headings))


def links_of(text: str) -> Iterator[Listed]:
    """The links of the index to documents, in their order."""
    group = ""
    tokens = _parser().parse(_MARK.sub("", text))
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            group = _plain(tokens[at + 1])
        for link, words in _links(token):
            parts = urlsplit(link)
            is_ours = not parts.netloc and not parts.path.startswith(("/", ".."))
            if is_ours and parts.path.endswith(".md"):
                yield Listed(group, posixpath.normpath(parts.path), words)


def address_of(document: str) -> str:
    """``concepts.md`` -> ``/docs/concepts``; a README is its folder."""
    path = document.removesuffix(".md")
    folder, name = posixpath.split(path)
    return posixpath.join(ROOT, folder).rstrip("/") if name == "README" else f"{ROOT}/{path}"


def lead(document: str, link: str) -> str:
    """Where a link of a document leads on a server: other hosts and anchors as they are, a document to its page."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), parts.path))
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    if path.startswith("../"):
        return REPOSITORY + path.removeprefix("../") + fragment
    place = address_of(path) if path.endswith(".md") else f"{ROOT}/{path}"
    return place + fragment


def anchor_of(text: str) -> str:
    """As GitHub makes it, so that a link holds in the repository and here."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


@dataclass
class _Page:
    """What a rendering knows of its document, and finds out."""

    document: str
    pictures: frozenset[str]
    title: str = ""
    headings: list[Heading] = field(default_factory=list)
    anchors: dict[str, int] = field(default_factory=dict)
    tables: int = 0

    def name_headings(self, tokens: Sequence[Token]) -> None:
        for at, token in enumerate(tokens):
            if token.type != "heading_open":
                continue
            text, level = _plain(tokens[at + 1]), int(token.tag[1:])
            anchor = self._once(anchor_of(text))
            token.attrSet("id", anchor)
            if level == 1 and not self.title:
                self.title = text
            elif level in _ANCHORED:
                self.headings.append(Heading(level, text, anchor))

    def _once(self, anchor: str) -> str:
        seen = self.anchors.get(anchor, 0)
        self.anchors[anchor] = seen + 1
        return f"{anchor}-{seen}" if seen else anchor


def _parser() -> MarkdownIt:
    # HTML in a document is text: nothing that somebody writes there is run or drawn.
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _renderer() -> Any:
    made = _parser()
    for rule, function in _RULES.items():
        made.add_render_rule(rule, function)
    return _Renderer(made)


@dataclass(frozen=True)
class _Renderer:
    parser: MarkdownIt

    def render(self, tokens: Sequence[Token], env: dict[str, Any]) -> str:
        return str(self.parser.renderer.render(tokens, self.parser.options, env))


def _code(self: Any, tokens: Sequence[Token], at: int, options: Any, env: dict[str, Any]) -> str:
    # With the keyboard too one may move it to the side.
    return Markup('<pre class="code" tabindex="0"><code>{}</code></pre>\n').format(
        tokens[at].content.rstrip("\n")
    )


def _table_open(
    self: Any, tokens: Sequence[Token], at: int, options: Any, env: dict[str, Any]
) -> str:
    env["page"].tables += 1
    label = f"Table {env['page'].tables}"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n'


def _table_close(
    self: Any, tokens: Sequence[Token], at: int, options: Any, env: dict[str, Any]
) -> str:
    return "</table></div>\n"


def _cell(self: Any, tokens: Sequence[Token], at: int, options: Any, env: dict[str, Any]) -> str:
    token = tokens[at]
    scope = ' scope="col"' if token.tag == "th" else ""
    side = ' class="number"' if token.attrGet("style") == _ALIGNED else ""
    return f"<{token.tag}{scope}{side}>"


def _link(self: Any, tokens: Sequence[Token], at: int, options: Any, env: dict[str, Any]) -> str:
    target = lead(env["page"].document, str(tokens[at].attrGet("href") or ""))
    away = Markup(' rel="noreferrer"') if urlsplit(target).netloc else ""
    return Markup('<a href="{}"{}>').format(target, away)


def _image(self: Any, tokens: Sequence[Token], at: int, options: Any, env: dict[str, Any]) -> str:
    page: _Page = env["page"]
    token = tokens[at]
    source = lead(page.document, str(token.attrGet("src") or ""))
    alt = "".join(child.content for child in token.children or ())
    if not source.startswith(ROOT + "/"):
        return str(escape(alt))
    dark = _LIGHT.sub(r"-dark.\1", source)
    if dark == source or dark.removeprefix(ROOT + "/") not in page.pictures:
        return _picture(source, alt, "")
    return _picture(source, alt, "light") + _picture(dark, alt, "dark")


def _picture(source: str, alt: str, theme: str) -> str:
    # What is not shown is not loaded either.
    shown = Markup(' class="only-{}"').format(theme) if theme else ""
    return Markup('<img src="{}" alt="{}" loading="lazy"{}>').format(source, alt, shown)


_RULES: Final = {
    "fence": _code,
    "code_block": _code,
    "table_open": _table_open,
    "table_close": _table_close,
    "th_open": _cell,
    "td_open": _cell,
    "link_open": _link,
    "image": _image,
}


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or () if child.type != "image")


def _links(token: Token) -> Iterator[tuple[str, str]]:
    children = token.children or []
    for at, child in enumerate(children):
        if child.type == "link_open":
            words = []
            for inside in children[at + 1 :]:
                if inside.type == "link_close":
                    break
                words.append(inside.content)
            yield str(child.attrGet("href") or ""), "".join(words)
