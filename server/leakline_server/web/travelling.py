"""Markup of a page -> the same for a file that is read far from its server.

Left out is what only a server can answer: forms, buttons that ask the training, and whatever a template marks with
`data-served`. Links become absolute, and shapes are those in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urljoin

from markupsafe import Markup, escape

# How the shapes are called in the file.
SHAPES: Final = "shape-"
_PICTURE: Final = "/static/images/shapes.svg#"
_SERVED: Final = ("data-served", "data-ask")
_ADDRESSES: Final = ("href", "src")
_VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta", "source", "wbr"})

Attributes = Sequence[tuple[str, str | None]]


def travelling(markup: Markup, address: str) -> Markup:
    """``markup`` is what a template has written; ``address`` is the absolute one of its page."""
    reader = _Travelling(address)
    reader.feed(str(markup))
    reader.close()
    return Markup("".join(reader.written))


class _Travelling(HTMLParser):
    """Writes what it reads as it stands, but for what has to change."""

    def __init__(self, address: str) -> None:
        super().__init__(convert_charrefs=False)
        self.written: list[str] = []
        self._address = address
        # The element that is left out, and how many of its name are open within.
        self._without = ""
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        if self._without:
            self._depth += tag == self._without
        elif not _is_served(tag, attrs):
            self._write(self._start(tag, attrs))
        elif tag not in _VOID:
            self._without, self._depth = tag, 1

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        if not _is_served(tag, attrs):
            self._write(self._start(tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        if not self._without:
            self.written.append(f"</{tag}>")
        elif tag == self._without:
            self._depth -= 1
            if not self._depth:
                self._without = ""

    def handle_data(self, data: str) -> None:
        self._write(data)

    def handle_entityref(self, name: str) -> None:
        self._write(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._write(f"&#{name};")

    def _write(self, text: str) -> None:
        if not self._without:
            self.written.append(text)

    def _start(self, tag: str, attrs: Attributes) -> str:
        changed = [(name, self._moved(name, value)) for name, value in attrs]
        kept = [pair for pair in changed if not _is_for_scripts(*pair)]
        whole = self.get_starttag_text() or ""
        if kept == list(attrs):
            return whole
        end = "/>" if whole.endswith("/>") else ">"
        return f"<{tag}{''.join(_attribute(*pair) for pair in kept)}{end}"

    def _moved(self, name: str, value: str | None) -> str | None:
        if name not in _ADDRESSES or value is None or value.startswith("#"):
            return value
        if value.startswith(_PICTURE):
            return f"#{SHAPES}{value.removeprefix(_PICTURE)}"
        return urljoin(self._address, value)


def _is_served(tag: str, attrs: Attributes) -> bool:
    return tag == "form" or any(name in _SERVED for name, _ in attrs)


def _is_for_scripts(name: str, value: str | None) -> bool:
    """An address that a script of the live page would ask."""
    return name.startswith("data-") and (value or "").startswith("/")


def _attribute(name: str, value: str | None) -> str:
    return f" {name}" if value is None else f' {name}="{escape(value)}"'
