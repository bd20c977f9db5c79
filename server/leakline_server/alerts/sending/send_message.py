"""One message on its way out: made in its format, its address checked, signed for this moment and posted."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

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
