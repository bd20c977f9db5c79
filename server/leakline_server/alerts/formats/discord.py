"""The body for a Discord webhook: one embed, and nobody mentioned.

Discord reads Markdown in titles, descriptions and fields, so every character with a meaning there has a backslash
before it. Its bounds: a title of 256 characters, a description of 4,096, 25 fields of 256 and 1,024, 6,000 in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..payload import iso
from .chat import LINK_TEXT, MAX_SUMMARY_CHARACTERS, Line, Parts, escaped, fitted, read, units
from .message import Message

MAX_TITLE_CHARACTERS: Final = 256
MAX_NAME_CHARACTERS: Final = 256
MAX_VALUE_CHARACTERS: Final = 1_024
MAX_EMBED_CHARACTERS: Final = 6_000

# The colon keeps "https://", ":name:" and "<t:0>" from becoming what they look like.
_BACKSLASHED: Final = {c: f"\\{c}" for c in "\\*_~`|>#-[]()<@:"}
_COLOURS: Final[Mapping[str, int]] = {
    "alarm": 0xC62828,
    "warning": 0xEF6C00,
    "good": 0x2E7D32,
    "neutral": 0x546E7A,
}


def render(message: Message) -> bytes:
    """UTF-8 JSON of at most MAX_BODY_BYTES; whole lines are left out from the end where it would be longer."""
    parts = read(message)
    return fitted(lambda lines: _body(message, parts, lines), parts.lines, _within_the_embed)


def _body(message: Message, parts: Parts, lines: Sequence[Line]) -> dict[str, Any]:
    fields = [
        (escaped(line.label, MAX_NAME_CHARACTERS, _BACKSLASHED), _value(line)) for line in lines
    ]
    # Not the embed's own url: Discord refuses whole messages for addresses such as http://trainer:8765.
    fields.append(("Link", f"[{LINK_TEXT}]({parts.link})"))
    embed = {
        "title": escaped(parts.title, MAX_TITLE_CHARACTERS, _BACKSLASHED),
        "description": escaped(parts.summary, MAX_SUMMARY_CHARACTERS, _BACKSLASHED),
        "color": _COLOURS[parts.tone],
        "fields": [{"name": name, "value": value, "inline": False} for name, value in fields],
        "footer": {"text": message.event},
        "timestamp": iso(message.at),
    }
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _value(line: Line) -> str:
    return escaped(line.text, MAX_VALUE_CHARACTERS, _BACKSLASHED)


def _within_the_embed(body: Mapping[str, Any]) -> bool:
    (embed,) = body["embeds"]
    counted = [embed["title"], embed["description"], embed["footer"]["text"]]
    counted += [text for field in embed["fields"] for text in (field["name"], field["value"])]
    return sum(map(units, counted)) <= MAX_EMBED_CHARACTERS
