"""An alert as chat shows it, for Slack and for apprise: a title, a sentence, labelled lines and a link. Pure.

Every part is plain text of one line; each format escapes it for its service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from leakline.text_format import printable

from .message import Message

ADVICE: Final = "Advice"
MAX_ADVICE_LINES: Final = 3
MAX_LINK_CHARACTERS: Final = 900

# Keys of the facts, in the order in which somebody reads at night.
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
    """``value`` as one line without control characters; empty for what is no text."""
    if not isinstance(value, str):
        return ""
    text = " ".join(printable(value).split())
    # Clients make links of addresses in plain text too; a space of no width keeps them from it.
    return text.replace("://", ":\u200b//")


def _units(text: str) -> int:
    """Its length as services count it that count UTF-16; never less than the number of characters."""
    return sum(2 if c > "\uffff" else 1 for c in text)


def escaped(text: str, limit: int, escape: Mapping[str, str]) -> str:
    """``text`` with each character of ``escape`` replaced, at most ``limit`` units long, no escape cut in two."""
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
    # Slack takes ten fields, so the origin has no line of its own.
    origin = _ORIGINS.get(facts.get("origin"))
    return f"{text} ({origin})" if key == "what" and text and origin else text


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _link(message: Message) -> str:
    """Without any character that ends a link in one of the services; the front page where it is too long."""
    base = message.server_url.rstrip("/")
    path = message.facts.get("link")
    link = quote(base + (path if isinstance(path, str) else "/"), safe="%/:?#[]@!$&'*+,;=~")
    return link if len(link) <= MAX_LINK_CHARACTERS else quote(base, safe="%/:[]") + "/"
