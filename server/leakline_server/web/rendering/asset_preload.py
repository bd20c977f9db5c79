"""Which modules a page's script needs, the ones it names and all that those name.

A browser learns of a module when it has read the one that names it, which takes a round trip for each step down. So the
pages with charts say at once what will be needed, and a page as one file puts all of it inside.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from markupsafe import Markup

from ...paths import STATIC

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
