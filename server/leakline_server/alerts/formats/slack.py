"""The body for a Slack incoming webhook: Block Kit, with a plain sentence for notifications.

What comes from a training script is only in `plain_text` objects, which know no mentions, links or formatting. In
every text & < > are control characters and are written as entities. Slack's bounds: 50 blocks, a header of 150
characters, 3,000 in a text, 10 fields of 2,000.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from .chat import ADVICE, Line, Parts, escaped, read
from .message import MAX_BODY_BYTES, Message

LINK_TEXT: Final = "Open in Leakline"
# Slack counts what is sent, escapes included. Our own sentences are shorter.
MAX_SUMMARY_CHARACTERS: Final = 1_000
MAX_HEADER_CHARACTERS: Final = 150
MAX_TEXT_CHARACTERS: Final = 3_000
MAX_FIELD_CHARACTERS: Final = 2_000
MAX_FALLBACK_CHARACTERS: Final = 1_000

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def render(message: Message) -> bytes:
    """UTF-8 JSON of at most MAX_BODY_BYTES; whole lines are left out from the end where it would be longer."""
    parts = read(message)
    for kept in range(len(parts.lines), -1, -1):
        body = _body(message.event, parts, parts.lines[:kept])
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        if len(encoded := text.encode()) <= MAX_BODY_BYTES:
            return encoded
    raise ValueError(f"the message does not fit into {MAX_BODY_BYTES} bytes")


def _body(event: str, parts: Parts, lines: Sequence[Line]) -> dict[str, Any]:
    facts = [line for line in lines if line.label != ADVICE]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(parts.title, MAX_HEADER_CHARACTERS)},
        {"type": "section", "text": _plain(parts.summary, MAX_SUMMARY_CHARACTERS)},
    ]
    if facts:
        # Label and text are two columns on a desktop and follow each other on a phone.
        columns = [(_bold(line.label), _plain(line.text, MAX_FIELD_CHARACTERS)) for line in facts]
        fields = [field for column in columns for field in column]
        blocks.append({"type": "section", "fields": fields})
    blocks += [
        {"type": "section", "text": _plain(f"{ADVICE}: {line.text}", MAX_TEXT_CHARACTERS)}
        for line in lines
        if line.label == ADVICE
    ]
    blocks.append({"type": "context", "elements": [_link(parts.link), _plain(event, 150)]})
    fallback = escaped(f"{parts.title}: {parts.summary}", MAX_FALLBACK_CHARACTERS, _ENTITIES)
    return {"text": fallback, "mrkdwn": False, "unfurl_links": False, "blocks": blocks}


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": escaped(text, limit, _ENTITIES), "emoji": False}


def _bold(label: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": f"*{label}*", "verbatim": True}


def _link(link: str) -> dict[str, Any]:
    target = escaped(link, MAX_TEXT_CHARACTERS, _ENTITIES)
    return {"type": "mrkdwn", "text": f"<{target}|{LINK_TEXT}>", "verbatim": True}
