"""The body for a Teams webhook (Workflows, "when a webhook request is received"): one Adaptive Card in a message.

All text is in runs of rich text blocks, which know no Markdown; without `msteams.entities` nobody is mentioned. What
is left is the function {{DATE(…)}}, which is broken up. Teams takes 28 KB at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .chat import LINK_TEXT, MAX_SUMMARY_CHARACTERS, Line, Parts, escaped, fitted, read
from .message import Message

VERSION: Final = "1.4"
MAX_TITLE_CHARACTERS: Final = 256
MAX_TEXT_CHARACTERS: Final = 1_000

# A space of no width after it: two braces in a row begin a function.
_BRACES: Final = {"{": "{\u200b"}
_COLOURS: Final[Mapping[str, str]] = {
    "alarm": "Attention",
    "warning": "Warning",
    "good": "Good",
    "neutral": "Default",
}


def render(message: Message) -> bytes:
    """UTF-8 JSON of at most MAX_BODY_BYTES; whole lines are left out from the end where it would be longer."""
    parts = read(message)
    return fitted(lambda lines: _body(message.event, parts, lines), parts.lines)


def _body(event: str, parts: Parts, lines: Sequence[Line]) -> dict[str, Any]:
    heading = {"size": "Large", "weight": "Bolder", "color": _COLOURS[parts.tone]}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": VERSION,
        # Shown by clients too old for cards, as Markdown: so nothing from a training script.
        "fallbackText": f"Leakline: {event}",
        "msteams": {"width": "Full"},
        "body": [
            _block(_run(parts.title, MAX_TITLE_CHARACTERS, **heading)),
            _block(_run(parts.summary, MAX_SUMMARY_CHARACTERS)),
            *[_block(_run(f"{line.label}: ", weight="Bolder"), _run(line.text)) for line in lines],
            _block(_run(event, isSubtle=True, size="Small")),
        ],
        "actions": [{"type": "Action.OpenUrl", "title": LINK_TEXT, "url": parts.link}],
    }
    content = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [content]}


def _block(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": list(runs)}


def _run(text: str, limit: int = MAX_TEXT_CHARACTERS, **style: object) -> dict[str, Any]:
    return {"type": "TextRun", "text": escaped(text, limit, _BRACES), **style}
