"""Rendering of pages: one environment, one set of headers, and the files that pages load.

A browser discovers a module only after parsing the module that imports it, which takes a round trip
per level. Pages with charts therefore list all modules for preloading, and a self-contained page
embeds them. The names of style sheets and scripts do not depend on the version, so browsers must
revalidate them.
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
    """Return the source code of a JavaScript module and of its imports, by file name."""
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
    """Return ``<link>`` tags that preload a module, its imports and the chart theme."""
    links = [_MODULE.format(name) for name in texts_of(entry)]
    return Markup("\n  ").join([*links, _THEME])


# Nothing from other hosts and nothing inline is allowed. Charts are exported through images with
# data: and blob: addresses. plotly creates an empty <style> and fills it from a script, so the hash
# of the empty text is allowed.
EMPTY_STYLE: Final = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'self'; style-src 'self' '{EMPTY_STYLE}'; "
    "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # Pages show the current state, so the Back button must not show an old page.
    "Cache-Control": "no-cache",
}

# The template variable with the request's principal, available on every page.
VIEWER: Final = "viewer"

# The contexts that jinja2 creates while a page is rendered.
_made: Final[ContextVar[list[_Names] | None]] = ContextVar("leakline_page", default=None)


class _Names(jinja2.runtime.Context):
    """The variables of a rendered, imported or included template; `written` clears the variables."""

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
    # Self-contained pages replace the following values (html_bundle.py).
    made.filters["href"] = str
    made.globals |= {"served": True, "shapes_href": "/static/images/shapes.svg#"}
    return made


_BREAKS: Final = re.compile(r"(?<=[._/\[\]])(?=[A-Za-z])|(?<=[a-z])(?=[A-Z][a-z])")
_UNITS: Final = re.compile(r"(?<=\d) (?=(?:[KMGTP]?i?B|%|m?s|min)\b)")


# Matches the format of number_formats.clock.
_CLOCK: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d UTC)")
_TIME: Final = Markup('<time datetime="{}" data-show="minute">{}</time>')


def breakable(text: str) -> Markup:
    """Mark where long names may break: after a dot, slash or underscore, or before a capital.

    Numbers stay with their units, and times are marked as in `zoned`.
    """
    return _with_times(text, _breakable)


def zoned(text: str) -> Markup:
    """Mark the times in a sentence; the page shows marked times in the viewer's time zone."""
    return _with_times(text, escape)


def _with_times(text: str, write: Callable[[str], Markup]) -> Markup:
    # `split` returns the captured times at odd positions.
    parts = enumerate(_CLOCK.split(text))
    return Markup("").join(_time(part) if at % 2 else write(part) for at, part in parts)


def _time(clock: str) -> Markup:
    return _TIME.format(clock.replace(" UTC", "Z").replace(" ", "T"), clock)


def _breakable(text: str) -> Markup:
    return Markup("<wbr>").join(_BREAKS.split(_UNITS.sub("\u00a0", text)))


def _chart_json(chart: Chart) -> Markup:
    return Markup(to_script(chart))  # to_script leaves nothing that could end the script tag


def render(template: str, context: Any, status_code: int = 200) -> HTMLResponse:
    """Render a page; the fields of ``context`` and the viewer are the template's variables.

    ``context`` is a dataclass, for example from page_contexts.py.
    """
    values = {field.name: getattr(context, field.name) for field in fields(context)}
    values[VIEWER] = calling.get()
    text = written(environment().get_template(template), values)
    return HTMLResponse(text, status_code=status_code, headers=HEADERS)


def written(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """Render a template, and release its values afterwards.

    A macro refers to the variables of its template, and the variables refer to the macro. This
    cycle would keep everything on a page alive until the garbage collector scans its oldest
    generation, which may take hours.
    """
    made: list[_Names] = []
    before = _made.set(made)
    try:
        return template.render(values)
    finally:
        _made.reset(before)
        for names in made:
            # The other contexts belong to templates imported without these values, and are kept.
            if not values.keys().isdisjoint(names.parent):
                names.vars.clear()
                names.parent.clear()


class RevalidatedFiles(StaticFiles):
    """Static files that browsers must revalidate, so that no old script is used after an upgrade.

    ``js/leakline.js`` is the client for programs in JavaScript, which pages of every origin may
    load.
    """

    # Set by the application, like the dependencies of a route.
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
            # If a page cannot load this script, the page's own script fails, and the training run fails too.
            response.headers["Access-Control-Allow-Origin"] = "*"
            response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response
