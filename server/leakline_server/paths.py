"""Where templates, static files and migrations lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_CHECKOUT: Final = _PACKAGE.parents[1]


def folder(name: str) -> Path:
    """The folder ``templates``, ``static`` or ``migrations``."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _CHECKOUT / name


TEMPLATES: Final = folder("templates")
STATIC: Final = folder("static")
MIGRATIONS: Final = folder("migrations")
