"""What the chat formats share: an alert read into a title, a sentence, labelled lines and a link. Pure.

Everything read here is plain text of one line; each format escapes it for its service.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from leakline.text_format import printable

from .message import MAX_BODY_BYTES, Message

ADVICE: Final = "Advice"
LINK_TEXT: Final = "Open in Leakline"
MAX_ADVICE_LINES: Final = 3
# Services count what is sent, escapes included; a sentence is never this long unless somebody makes it so.
MAX_SUMMARY_CHARACTERS: Final = 1_000
MAX_LINK_CHARACTERS: Final = 900

# Keys of the facts, in the order in which somebody reads at night.
_LABELS: Final[Mapping[str, str]] = {
    "where": "Where",
    "what": "What",
    "how_much": "How much",
    "when": "Since when",
    "forecast": "Forecast",
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
    """One labelled line; the text is never empty."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Parts:
    """An alert as chat shows it. ``tone`` is alarm, warning, good or neutral; ``link`` an http(s) address."""

    title: str
    summary: str
    lines: tuple[Line, ...]
    link: str
    tone: str


def read(message: Message) -> Parts:
    """The parts of any alert; what its facts do not tell has no line."""
    facts = message.facts
    told = [Line(label, _text(facts.get(key))) for key, label in _LABELS.items()]
    told += [Line(ADVICE, plain(text)) for text in _list(facts.get("advice"))[:MAX_ADVICE_LINES]]
    title = plain(facts.get("title")) or message.event
    return Parts(
        title=title,
        summary=plain(facts.get("summary")) or title,
        lines=tuple(line for line in told if line.text),
        link=_link(message),
        tone=_tone(message),
    )


def plain(value: object) -> str:
    """``value`` as one line without control characters; empty for what is no text."""
    if not isinstance(value, str):
        return ""
    text = " ".join(printable(value).split())
    # Clients make links of addresses in plain text too; a space of no width keeps them from it.
    return text.replace("://", ":\u200b//")


def units(text: str) -> int:
    """Its length as services count it that count UTF-16; never less than the number of characters."""
    return sum(2 if c > "\uffff" else 1 for c in text)


def escaped(text: str, limit: int, escape: Mapping[str, str]) -> str:
    """``text`` with each character of ``escape`` replaced, at most ``limit`` units long, no escape cut in two."""
    pieces = [escape.get(c, c) for c in text]
    if sum(map(units, pieces)) <= limit:
        return "".join(pieces)
    kept, left = [], limit - 1
    for piece in pieces:
        left -= units(piece)
        if left < 0:
            break
        kept.append(piece)
    return "".join(kept).rstrip() + "…"


def fitted(
    make: Callable[[Sequence[Line]], Any],
    lines: Sequence[Line],
    fits: Callable[[Any], bool] = lambda _body: True,
) -> bytes:
    """UTF-8 JSON of at most MAX_BODY_BYTES for which ``fits``: whole lines go from the end until it is."""
    for kept in range(len(lines), -1, -1):
        body = make(lines[:kept])
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        encoded = text.encode()
        if len(encoded) <= MAX_BODY_BYTES and fits(body):
            return encoded
    raise ValueError(f"the message does not fit into {MAX_BODY_BYTES} bytes")


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


def _text(part: object) -> str:
    return plain(part.get("text") if isinstance(part, Mapping) else part)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _link(message: Message) -> str:
    """Without any character that ends a link in one of the services; the front page where it is too long."""
    base = message.server_url.rstrip("/")
    path = message.facts.get("link")
    link = quote(base + (path if isinstance(path, str) else "/"), safe="%/:?#[]@!$&'*+,;=~")
    return link if len(link) <= MAX_LINK_CHARACTERS else quote(base, safe="%/:[]") + "/"
