"""What people said of a leak, as the page of incidents and that of a run show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..rendering import number_formats
from ..rendering.page_contexts import SaidView

_VERBS: Final = {"acknowledged": "Acknowledged", "ignored": "Ignored", "closed": "Closed"}


def said_view(said: Mapping[str, Any]) -> SaidView:
    return SaidView(
        said["kind"],
        _VERBS[said["kind"]],
        said["reason"],
        said["created_at"],
        number_formats.clock(said["created_at"]),
        said["expires_at"],
        number_formats.clock(said["expires_at"]) if said["expires_at"] else "",
    )
