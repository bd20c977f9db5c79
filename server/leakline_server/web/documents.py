"""The documents that lie beside this version of the server: which there are, and each as it is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from ..paths import DOCS
from .markdown import INDEX, Listed, Written, links_of, write

# What a document may show or hand out.
MEDIA: Final = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yml": "text/plain; charset=utf-8",
    ".toml": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Paths below the folder. A name that is asked for is looked up here and never joined to a path."""

    documents: frozenset[str]
    files: frozenset[str]


@cache
def kept() -> Kept:
    found = {str(path.relative_to(DOCS)): path.suffix for path in DOCS.rglob("*") if path.is_file()}
    return Kept(
        frozenset(name for name, suffix in found.items() if suffix == ".md"),
        frozenset(name for name, suffix in found.items() if suffix in MEDIA),
    )


def document_called(name: str) -> str | None:
    """``concepts`` or ``integrations`` -> the path of the document; None where there is none."""
    tried = [f"{name}.md", f"{name}/{INDEX}"] if name else [INDEX]
    return next((path for path in tried if path in kept().documents), None)


def read(document: str) -> Written:
    path = DOCS / document
    return _read(document, path.stat().st_mtime_ns)


def listed() -> tuple[Listed, ...]:
    """The documents in the order of the index, each where it is named first."""
    if INDEX not in kept().documents:
        return ()
    return _listed((DOCS / INDEX).stat().st_mtime_ns)


def file_of(name: str) -> Path | None:
    return DOCS / name if name in kept().files else None


@lru_cache(maxsize=64)
def _read(document: str, changed: int) -> Written:
    return write((DOCS / document).read_text(encoding="utf-8"), document, kept().files)


@lru_cache(maxsize=1)
def _listed(changed: int) -> tuple[Listed, ...]:
    first: dict[str, Listed] = {}
    for each in links_of((DOCS / INDEX).read_text(encoding="utf-8")):
        if each.document in kept().documents:
            first.setdefault(each.document, each)
    return tuple(first.values())
