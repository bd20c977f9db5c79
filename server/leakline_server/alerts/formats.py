"""Formats of webhook messages, which convert the facts of an alert into the body of the POST request. Pure.

To add a format, write a function that renders a `Message` and register it in `FORMATS`.

The standard message is {"type": event, "timestamp": ISO 8601 UTC, "data": facts}, as Standard Webhooks suggests.

Chat services (Slack and apprise) show a title, a sentence, labelled lines and a link. Every part is a single line of
plain text; each format escapes it for its service.

The body for a Slack incoming webhook is Block Kit, with a plain sentence for notifications. Text from a training script
appears only in `plain_text` objects, which support no mentions, links or formatting. In every string, & < > are control
characters and are escaped as entities. Slack allows 50 blocks, 150 characters in a header, 3,000 in a text, and 10
fields of 2,000 characters each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from leakline.text_format import printable

from .alert_payload import iso

# The specification recommends bodies below 20 KB.
MAX_BODY_BYTES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Message:
    """An event to send. ``at`` is its time in Unix seconds; ``facts`` come from `alert_payload.py`.

    ``server_url`` is the server's public address without a trailing slash.
    """

    event: str
    at: float
    facts: Mapping[str, Any]
    server_url: str


# Limits (number of list entries, characters per string) to try in turn if long names make a message too large.
_SIZES: Final = ((8, 300), (3, 200), (2, 100), (1, 40))


def _render_standard(message: Message) -> bytes:
    """Return UTF-8 JSON of at most MAX_BODY_BYTES; lists and strings are truncated but never left out."""
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


ADVICE: Final = "Advice"
MAX_ADVICE_LINES: Final = 3
MAX_LINK_CHARACTERS: Final = 900

# Key of a fact -> label. The facts that are most useful to a person woken at night come first.
_LABELS: Final[Mapping[str, str]] = {
    "where": "Where",
    "what": "What",
    "how_much": "How much",
    "when": "Since when",
    "forecast": "Forecast",
}
_ORIGINS: Final[Mapping[object, str]] = {
    "expect": "declared with run.expect",
    "accepted": "accepted by a person",
    "budget": "above its run.budget",
    "rule": "a rule of this server",
}
_TONES: Final[Mapping[str, str]] = {
    "incident.suspected": "warning",
    "incident.confirmed": "alarm",
    "incident.recovered": "good",
    "incident.resolved": "good",
    "oom.risk": "alarm",
    "contract.violated": "warning",
    "run.silent": "warning",
    "run.killed": "alarm",
    "rule.fired": "warning",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A labelled line; its text is never empty."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an alert that chat services show. ``tone`` is alarm, warning, good or neutral; ``link`` is an
    http(s) URL.
    """

    title: str
    summary: str
    lines: tuple[Line, ...]
    link: str
    tone: str


def read(message: Message) -> Parts:
    """Return the parts of an alert; missing facts get no line."""
    facts = message.facts
    lines = [Line(label, _text(facts, key)) for key, label in _LABELS.items()]
    lines += [Line(ADVICE, plain(text)) for text in _list(facts.get("advice"))[:MAX_ADVICE_LINES]]
    title = plain(facts.get("title")) or message.event
    return Parts(
        title=title,
        summary=plain(facts.get("summary")) or title,
        lines=tuple(line for line in lines if line.text),
        link=_link(message),
        tone=_tone(message),
    )


def plain(value: object) -> str:
    """Return ``value`` as one line without control characters, or an empty string if it is not a string."""
    if not isinstance(value, str):
        return ""
    text = " ".join(printable(value).split())
    # Chat clients turn URLs into links even in plain text; a zero-width space prevents that.
    return text.replace("://", ":\u200b//")


def _units(text: str) -> int:
    """Return the length in UTF-16 code units, which some services count."""
    return sum(2 if c > "\uffff" else 1 for c in text)


def escaped(text: str, limit: int, escape: Mapping[str, str]) -> str:
    """Escape the characters of ``escape`` and truncate to ``limit`` UTF-16 units, never inside an escape sequence."""
    pieces = [escape.get(c, c) for c in text]
    if sum(map(_units, pieces)) <= limit:
        return "".join(pieces)
    kept, left = [], limit - 1
    for piece in pieces:
        left -= _units(piece)
        if left < 0:
            break
        kept.append(piece)
    return "".join(kept).rstrip() + "…"


def _tone(message: Message) -> str:
    rule, run = message.facts.get("rule"), message.facts.get("run")
    if isinstance(rule, Mapping) and rule.get("status") == "resolved":
        return "good"
    if (
        message.event == "run.finished"
        and isinstance(run, Mapping)
        and run.get("state") == "failed"
    ):
        return "warning"
    return _TONES.get(message.event, "neutral")


def _text(facts: Mapping[str, object], key: str) -> str:
    part = facts.get(key)
    text = plain(part.get("text") if isinstance(part, Mapping) else part)
    # Slack accepts ten fields, so the origin does not get a line of its own.
    origin = _ORIGINS.get(facts.get("origin"))
    return f"{text} ({origin})" if key == "what" and text and origin else text


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _link(message: Message) -> str:
    """Return the message's link, quoted, or a link to the front page if the message's link is too long."""
    base = message.server_url.rstrip("/")
    path = message.facts.get("link")
    link = quote(base + (path if isinstance(path, str) else "/"), safe="%/:?#[]@!$&'*+,;=~")
    return link if len(link) <= MAX_LINK_CHARACTERS else quote(base, safe="%/:[]") + "/"


LINK_TEXT: Final = "Open in Leakline"
# Slack counts the characters of the escaped text. Our own sentences are shorter than this limit.
MAX_SUMMARY_CHARACTERS: Final = 1_000
MAX_HEADER_CHARACTERS: Final = 150
MAX_TEXT_CHARACTERS: Final = 3_000
MAX_FIELD_CHARACTERS: Final = 2_000
MAX_FALLBACK_CHARACTERS: Final = 1_000

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def _render_slack(message: Message) -> bytes:
    """Return UTF-8 JSON of at most MAX_BODY_BYTES; lines are dropped from the end until the message fits."""
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
        # Slack shows label and text in two columns on a desktop, and one below the other on a phone.
        columns = [(_bold(line.label), _plain(line.text, MAX_FIELD_CHARACTERS)) for line in facts]
        fields = [field for column in columns for field in column]
        blocks.append({"type": "section", "fields": fields})
    blocks += [
        {"type": "section", "text": _plain(f"{ADVICE}: {line.text}", MAX_TEXT_CHARACTERS)}
        for line in lines
        if line.label == ADVICE
    ]
    blocks.append({"type": "context", "elements": [_slack_link(parts.link), _plain(event, 150)]})
    fallback = escaped(f"{parts.title}: {parts.summary}", MAX_FALLBACK_CHARACTERS, _ENTITIES)
    return {"text": fallback, "mrkdwn": False, "unfurl_links": False, "blocks": blocks}


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": escaped(text, limit, _ENTITIES), "emoji": False}


def _bold(label: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": f"*{label}*", "verbatim": True}


def _slack_link(link: str) -> dict[str, Any]:
    target = escaped(link, MAX_TEXT_CHARACTERS, _ENTITIES)
    return {"type": "mrkdwn", "text": f"<{target}|{LINK_TEXT}>", "verbatim": True}


# Format name -> function that renders the body (UTF-8, at most MAX_BODY_BYTES).
FORMATS: Final[Mapping[str, Callable[[Message], bytes]]] = {
    "standard": _render_standard,
    "slack": _render_slack,
}
