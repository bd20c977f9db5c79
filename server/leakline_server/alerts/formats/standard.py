"""The standard message: {"type": event, "timestamp": ISO 8601 UTC, "data": facts}, as Standard Webhooks suggests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..alert_payload import iso
from .message import MAX_BODY_BYTES, Message

# What goes first when names are so long that the message would be too large: (list entries, characters) kept.
_SIZES: Final = ((8, 300), (3, 200), (2, 100), (1, 40))


def render(message: Message) -> bytes:
    """UTF-8 JSON of at most MAX_BODY_BYTES; lists and texts are shortened, never left out."""
    facts = dict(message.facts)
    facts["link"] = message.server_url.rstrip("/") + str(facts.get("link", "/"))
    for entries, characters in _SIZES:
        shortened = {
            "type": message.event,
            "timestamp": iso(message.at),
            "data": {**_shortened(facts, entries, characters), "link": facts["link"]},
        }
        body = json.dumps(shortened, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        encoded = body.encode(errors="replace")
        if len(encoded) <= MAX_BODY_BYTES:
            return encoded
    raise ValueError(f"the facts of {message.event} do not fit into {MAX_BODY_BYTES} bytes")


def _shortened(value: Any, entries: int, characters: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters else value[: characters - 1] + "…"
    if isinstance(value, Mapping):
        return {key: _shortened(entry, entries, characters) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_shortened(entry, entries, characters) for entry in value[:entries]]
    return value
