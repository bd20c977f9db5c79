"""Pages are rendered here and nowhere else: one environment, one set of headers, and the files that pages load.

A browser learns of a module when it has read the one that names it, which takes a round trip for each step down. So the
pages with charts say at once what will be needed, and a page as one file puts all of it inside. Names of style sheets
and scripts do not change with the version, so browsers must ask again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from markupsafe import Markup, escape
from starlette.responses import Response

from ...charts.chart_parts import Chart, to_script
from ...paths import CLIENT_SCRIPT, STATIC, TEMPLATES
from ..auth.authenticator import calling
from ..search_query import search_for
from .table_cells import with_links

IMPORTS: Final = re.compile(r'(\b(?:from|import)\s*\(?\s*)"\./([\w-]+\.js)"')

_MODULE: Final = Markup('<link rel="modulepreload" href="/static/js/{}">')
_THEME: Final = Markup(
    '<link rel="preload" href="/static/plotly-theme.json" as="fetch" crossorigin>'
)


def texts_of(entry: str) -> dict[str, str]:
    """Name -> text of a module and of all it needs."""
    found: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (STATIC / "js" / name).read_text()
            waiting += [other for _, other in IMPORTS.findall(found[name])]
    return found


@cache
def ahead(entry: str) -> Markup:
    """The links by which a browser loads them at once, and the theme of the charts with them."""
    links = [_MODULE.format(name) for name in texts_of(entry)]
    return Markup("\n  ").join([*links, _THEME])


# Nothing from another host, nothing inline. Charts are exported through images with data: and blob: addresses.
# plotly makes an empty <style> and fills it through the object model: this is the hash of the empty text.
EMPTY_STYLE: Final = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'self'; style-src 'self' '{EMPTY_STYLE}'; "
    "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # A page shows the state of this moment; Back must not bring an old one.
    "Cache-Control": "no-cache",
}

# Known on every page: the caller of this request.
VIEWER: Final = "viewer"

# What jinja2 makes while a page is written.
_made: Final[ContextVar[list[_Names] | None]] = ContextVar("leakline_page", default=None)


class _Names(jinja2.runtime.Context):
    """The names of one template, or of one that it imports or includes; `written` takes them apart."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        made = _made.get()
        if made is not None:
            made.append(self)


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.context_class = _Names
    made.filters["chart_json"] = _chart_json
    made.filters["breakable"] = breakable
    made.filters["zoned"] = zoned
    made.filters["with_links"] = with_links
    made.filters["search_for"] = search_for
    made.filters["ahead"] = ahead
    # A page in a file has its own of these (html_bundle.py).
    made.filters["href"] = str
    made.globals |= {"served": True, "shapes_href": "/static/images/shapes.svg#"}
    return made


_BREAKS: Final = re.compile(r"(?<=[._/\[\]])(?=[A-Za-z])|(?<=[a-z])(?=[A-Z][a-z])")
_UNITS: Final = re.compile(r"(?<=\d) (?=(?:[KMGTP]?i?B|%|m?s|min)\b)")


# As formats.clock writes it.
_CLOCK: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d UTC)")
_TIME: Final = Markup('<time datetime="{}" data-show="minute">{}</time>')


def breakable(text: str) -> Markup:
    """Long names may break where people would break them: after a dot, a slash, an underscore, before a capital;
    a number stays with its unit, and a time is one of the viewer's zone."""
    return _with_times(text, _breakable)


def zoned(text: str) -> Markup:
    """Times in a sentence are shown in the viewer's zone, as those next to it."""
    return _with_times(text, escape)


def _with_times(text: str, write: Callable[[str], Markup]) -> Markup:
    # What was caught stands at the odd places.
    parts = enumerate(_CLOCK.split(text))
    return Markup("").join(_time(part) if at % 2 else write(part) for at, part in parts)


def _time(clock: str) -> Markup:
    return _TIME.format(clock.replace(" UTC", "Z").replace(" ", "T"), clock)


def _breakable(text: str) -> Markup:
    return Markup("<wbr>").join(_BREAKS.split(_UNITS.sub("\u00a0", text)))


def _chart_json(chart: Chart) -> Markup:
    return Markup(to_script(chart))  # to_script leaves nothing that could end the script tag


def render(template: str, context: Any, status_code: int = 200) -> HTMLResponse:
    """``context`` is a dataclass of page_contexts.py; its fields are the template's variables, besides who looks at
    it."""
    values = {field.name: getattr(context, field.name) for field in fields(context)}
    values[VIEWER] = calling.get()
    text = written(environment().get_template(template), values)
    return HTMLResponse(text, status_code=status_code, headers=HEADERS)


def written(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The template with these values, of which nothing is kept.

    A macro refers to the names it was made among, and they to the macro. In that circle everything that a page shows
    would wait for the collector, which looks at what has lasted a while once in hours.
    """
    made: list[_Names] = []
    before = _made.set(made)
    try:
        return template.render(values)
    finally:
        _made.reset(before)
        for names in made:
            # Others are of templates that are imported without them, and stay with these.
            if not values.keys().isdisjoint(names.parent):
                names.vars.clear()
                names.parent.clear()


class RevalidatedFiles(StaticFiles):
    """Answers "not modified" by ETag; without the header a browser may keep an old script after an upgrade.

    With the client for programs in JavaScript, as ``js/leakline.js``, which pages of every origin may load.
    """

    # What the application declares of its mount.
    dependencies: Sequence[Any] = ()

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        if path == str(Path("js", CLIENT_SCRIPT.name)):
            return str(CLIENT_SCRIPT), CLIENT_SCRIPT.stat()
        return super().lookup_path(path)

    def file_response(
        self, full_path: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        if str(full_path) == str(CLIENT_SCRIPT):
            # A script that may not be loaded ends the page's own script, and with it the training.
            response.headers["Access-Control-Allow-Origin"] = "*"
            response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response
