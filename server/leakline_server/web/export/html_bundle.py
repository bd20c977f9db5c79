"""Self-contained HTML export: a page as one file that needs no server and no network.

The page's own template is rendered within another frame (report.html instead of base.html), so that
the file shows the same content as the page. Everything that the page refers to is embedded: style
sheets, plotly, report.js with its modules, the chart theme, and the shapes as one image. Templates
omit everything that needs a server (``served``) and make links absolute (``href``).

Modules remain separate: each module is a data: address in an import map and imports other modules as
`leakline/NAME.js`.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final
from urllib.parse import urljoin

import jinja2
from markupsafe import Markup

from ...paths import STATIC, TEMPLATES
from ..rendering import templating
from ..rendering.templating import IMPORTS, texts_of

ENTRY: Final = "report.js"
FRAME: Final = "report.html"
# Prefix of the shapes' ids in the file.
SHAPES: Final = "shape-"
_SHEETS: Final = re.compile(r'href="/static/(css/[\w-]+\.css)"')
_LIBRARIES: Final = re.compile(r'<script src="/static/(vendor/[\w./-]+\.js)"')
_SYMBOL: Final = re.compile(r'<symbol id="([\w-]+)"')


@dataclass(frozen=True, slots=True)
class ReportFrame:
    """Template variables of the report frame: date, version, server, and the embedded assets."""

    made_at: str
    made: str
    version: str
    server: str
    live_href: str
    policy: Markup
    head: Markup
    theme: str
    shapes: Markup
    scripts: Markup


def stand_alone(template: str, context: Any, made: Made) -> str:
    """Return a page as self-contained HTML; ``context`` is the same as for `templating.render`."""
    values = {field.name: getattr(context, field.name) for field in fields(context)}
    frame = _frame(template, made)
    values |= {field.name: getattr(frame, field.name) for field in fields(frame)}
    return templating.written(environment().get_template(template), values)


@dataclass(frozen=True, slots=True)
class Made:
    """The origin of a report.

    ``at`` is the creation time in ISO 8601, and ``clock`` the same time in readable form. ``href``
    is the absolute address of the page.
    """

    at: str
    clock: str
    version: str
    server: str
    href: str


@cache
def environment() -> jinja2.Environment:
    """Return the template environment of the pages, with the report frame instead of base.html."""

    def framed(name: str) -> str | None:
        return (TEMPLATES / FRAME).read_text() if name == "base.html" else None

    loader = jinja2.ChoiceLoader(
        [jinja2.FunctionLoader(framed), jinja2.FileSystemLoader(TEMPLATES)]
    )
    made = templating.environment().overlay(loader=loader)
    made.filters = {**made.filters, "href": _absolute}
    made.globals = {**made.globals, "served": False, "shapes_href": f"#{SHAPES}"}
    return made


@jinja2.pass_context
def _absolute(context: jinja2.runtime.Context, address: str) -> str:
    """Return the address as an absolute URL on the server; leave fragments unchanged."""
    return address if address.startswith("#") else urljoin(context["live_href"], address)


def _frame(template: str, made: Made) -> ReportFrame:
    nonce = secrets.token_urlsafe(16)
    return ReportFrame(
        made_at=made.at,
        made=made.clock,
        version=made.version,
        server=made.server,
        live_href=made.href,
        policy=_policy(nonce),
        head=_head(nonce),
        theme=_data("application/json", _read("plotly-theme.json")),
        shapes=_shapes(),
        scripts=Markup("\n").join(_scripts(template, nonce)),
    )


def _policy(nonce: str) -> Markup:
    """Return the content security policy.

    Names in a page are escaped; if escaping ever failed, this policy would still prevent scripts
    and requests to other hosts.
    """
    rules = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; "
        f"style-src 'nonce-{nonce}' '{templating.EMPTY_STYLE}'; "
        "img-src data: blob:; connect-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(rules)


def _head(nonce: str) -> Markup:
    sheets = _SHEETS.findall((TEMPLATES / "base.html").read_text())
    styles = "\n".join(_read(name) for name in sheets)
    icon = _data("image/svg+xml", _read("images/favicon.svg"))
    return Markup("\n").join(
        (
            Markup('<link rel="icon" href="{}" type="image/svg+xml">').format(icon),
            Markup('<style nonce="{}">{}</style>').format(nonce, _ours(styles, "style")),
            _script(_read("js/theme.js"), nonce),
        )
    )


def _shapes() -> Markup:
    """Return the shapes with prefixed ids, because the page already uses the id "theme"."""
    return Markup(_SYMBOL.sub(rf'<symbol id="{SHAPES}\1"', _read("images/shapes.svg")).strip())


def _scripts(template: str, nonce: str) -> Iterator[Markup]:
    for name in _LIBRARIES.findall((TEMPLATES / template).read_text()):
        yield _script(_read(name), nonce)
    modules = {
        f"leakline/{name}": _data("text/javascript", IMPORTS.sub(_renamed, text))
        for name, text in texts_of(ENTRY).items()
    }
    yield _script(json.dumps({"imports": modules}), nonce, "importmap")
    yield _script(f'import "leakline/{ENTRY}";', nonce, "module")


def _renamed(found: re.Match[str]) -> str:
    return f'{found[1]}"leakline/{found[2]}"'


def _script(text: str, nonce: str, kind: str = "text/javascript") -> Markup:
    return Markup('<script type="{}" nonce="{}">{}</script>').format(
        kind, nonce, _ours(text, "script")
    )


def _ours(text: str, tag: str) -> Markup:
    """Return ``text`` for embedding in a tag; ``text`` is a static file without run data.

    Raises ValueError if the text would end the tag or start a comment.
    """
    if re.search(rf"</{tag}|<!--", text, re.IGNORECASE):
        raise ValueError(
            f"a static file cannot be embedded in <{tag}>: it contains the end of the tag or a comment"
        )
    return Markup(text)


def _data(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def _read(name: str) -> str:
    return (STATIC / name).read_text()
