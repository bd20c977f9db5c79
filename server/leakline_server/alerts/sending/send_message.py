"""One message on its way out: made in its format, its address checked, signed for this moment and posted."""

from __future__ import annotations

import html
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ..formats import FORMATS, Message
from . import apprise_sender
from .address_check import (
    AddressUnknown,
    CheckedAddress,
    Network,
    Resolver,
    check,
    resolve_by_system,
    shown,
)
from .http_post import GiveUp, Outcome, TryAgain, post
from .signing import signed_headers

TRIAL_EVENT: Final = "webhook.test"

Post = Callable[[CheckedAddress, bytes, Mapping[str, str]], Outcome]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """``id`` is the same for every try of the same message. ``form`` is one of FORMATS, or that of apprise.

    ``previous_secret`` signs as well, while receivers change to the new one.
    """

    id: str
    url: str = field(repr=False)
    form: str
    secret: str = field(repr=False)
    message: Message
    previous_secret: str | None = field(default=None, repr=False)


def send(
    outgoing: Outgoing,
    allowed: Sequence[Network],
    at: float,
    *,
    resolve: Resolver = resolve_by_system,
    by: Post = post,
) -> Outcome:
    """One attempt. ``at`` is Unix seconds now; receivers refuse messages signed more than minutes ago."""
    if outgoing.form == apprise_sender.FORMAT:
        return apprise_sender.notify(outgoing.url, outgoing.message)
    render = FORMATS.get(outgoing.form)
    if render is None:
        return GiveUp(f"unknown webhook format {outgoing.form!r}; known: {', '.join(FORMATS)}")
    try:
        body = render(outgoing.message)
        address = check(outgoing.url, allowed, resolve)
    except AddressUnknown as error:
        return TryAgain(str(error), 0.0)
    except ValueError as error:
        # The address is refused, or the message does not fit.
        return GiveUp(str(error))
    signature = signed_headers(outgoing.secret, outgoing.id, at, body, outgoing.previous_secret)
    return by(address, body, {"Content-Type": "application/json; charset=utf-8", **signature})


# Service -> the host of its webhooks, or its end after a dot, and the format that they take. At these alone apprise
# is used for addresses of people: their names are nobody else's to lead elsewhere.
_SERVICES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "Slack": (("hooks.slack.com", "hooks.slack-gov.com"), "slack"),
    "Discord": (("discord.com", "discordapp.com"), apprise_sender.FORMAT),
    "Teams": ((".logic.azure.com", ".environment.api.powerplatform.com"), apprise_sender.FORMAT),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A format that an address selects; ``service`` is empty where it is that of none that is known."""

    form: str
    service: str = ""


def chosen_by(url: str) -> Chosen:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return Chosen("standard")
    if parts.scheme == "https" and parts.username is None and port in (None, 443):
        for service, (hosts, form) in _SERVICES.items():
            if any(host.endswith(each) if each[0] == "." else host == each for each in hosts):
                return Chosen(form, service)
    return Chosen("standard")


def text_of(outgoing: Outgoing) -> str:
    """What a message says, as its receiver gets it: the JSON of the standard format, the texts of a chat."""
    if outgoing.form == apprise_sender.FORMAT:
        said = apprise_sender.parts(outgoing.message)
        return f"{said['title']}\n{said['body']}"
    render = FORMATS.get(outgoing.form)
    if render is None:
        return ""
    body = json.loads(render(outgoing.message))
    if outgoing.form == "slack":
        return html.unescape("\n".join(_texts(body["blocks"])))
    return json.dumps(body, ensure_ascii=False, indent=2)


def _texts(part: Any) -> Iterator[str]:
    """The texts of Slack's blocks, in their order."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        yield part["text"]
    elif isinstance(part, dict | list):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _texts(each)


def origin_of(url: str, form: str) -> str:
    """What may be shown of the address of a webhook."""
    return apprise_sender.service_of(url) if form == apprise_sender.FORMAT else shown(url)


def trial(
    url: str,
    form: str,
    secret: str,
    server_url: str,
    at: float,
    summary: str,
    previous_secret: str | None = None,
) -> Outgoing:
    """A test message that reports nothing; ``summary`` says who sent it."""
    facts = {"title": "Leakline test message", "summary": summary, "link": "/"}
    message = Message(TRIAL_EVENT, at, facts, server_url)
    message_id = f"msg_test_{secrets.token_hex(12)}"
    return Outgoing(message_id, url, form, secret, message, previous_secret)
