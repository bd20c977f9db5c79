"""What a format is given: one alert on its way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# The specification asks for less than 20 KB.
MAX_BODY_BYTES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Message:
    """``at`` is Unix seconds of the event; ``facts`` as `alert_payload.py` makes them.

    ``server_url`` is the address people use, without a slash at its end.
    """

    event: str
    at: float
    facts: Mapping[str, Any]
    server_url: str
