"""Locations of templates, static files, migrations and documents: next to the package in a checkout, inside the package
in a wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_CHECKOUT: Final = _PACKAGE.parents[1]


def folder(name: str) -> Path:
    """Return the path of ``templates``, ``static``, ``migrations`` or ``docs``."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _CHECKOUT / name


TEMPLATES: Final = folder("templates")
STATIC: Final = folder("static")
MIGRATIONS: Final = folder("migrations")
DOCS: Final = folder("docs")
_CLIENT_HERE: Final = _CHECKOUT / "agent_client" / "js" / "leakline.js"
# The JavaScript client; in a wheel it is packaged with the static files.
CLIENT_SCRIPT: Final = _CLIENT_HERE if _CLIENT_HERE.is_file() else STATIC / "js" / "leakline.js"
