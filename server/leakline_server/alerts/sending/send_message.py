"""Sends one message: renders it, checks the address, signs the body and posts it."""

from __future__ import annotations

import html
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from ..formats import FORMATS, Message
from . import apprise_sender
from .address_check import (
    AddressRefused,
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
    """A message to send. ``id`` is the same for all attempts. ``form`` is a key of FORMATS or the apprise format.

    ``previous_secret`` also signs messages while receivers change to the new secret. ``configured`` is True if the
    server's operator set the address; only such an address is passed to apprise unchanged.
    """

    id: str
    url: str = field(repr=False)
    form: str
    secret: str = field(repr=False)
    message: Message
    previous_secret: str | None = field(default=None, repr=False)
    configured: bool = False


def send(
    outgoing: Outgoing,
    allowed: Sequence[Network],
    at: float,
    *,
    resolve: Resolver = resolve_by_system,
    by: Post = post,
) -> Outcome:
    """Make one delivery attempt. ``at`` is the current time in Unix seconds; receivers reject signatures older than a
    few minutes.
    """
    if outgoing.form == apprise_sender.FORMAT:
        try:
            # The address is checked here too, because the row may predate the check or have been changed in the
            # database.
            url = outgoing.url if outgoing.configured else plain_address(outgoing.url)
        except AddressRefused as error:
            return GiveUp(str(error))
        return apprise_sender.notify(url, outgoing.message)
    render = FORMATS.get(outgoing.form)
    if render is None:
        return GiveUp(f"unknown webhook format {outgoing.form!r}; available: {', '.join(FORMATS)}")
    try:
        body = render(outgoing.message)
        address = check(outgoing.url, allowed, resolve)
    except AddressUnknown as error:
        return TryAgain(str(error), 0.0)
    except ValueError as error:
        # The address was refused, or the message is too large.
        return GiveUp(str(error))
    signature = signed_headers(outgoing.secret, outgoing.id, at, body, outgoing.previous_secret)
    return by(address, body, {"Content-Type": "application/json; charset=utf-8", **signature})


# Service -> (hosts of its webhooks, or suffixes with a leading dot; message format). Of the addresses that users add,
# apprise gets only these, as rebuilt by `plain_address`: the hosts are known, but the rest of the URL could make
# apprise read a file or another host (`?template=`).
_SERVICES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "Slack": (("hooks.slack.com", "hooks.slack-gov.com"), "slack"),
    "Discord": (("discord.com", "discordapp.com"), apprise_sender.FORMAT),
    "Teams": ((".logic.azure.com", ".environment.api.powerplatform.com"), apprise_sender.FORMAT),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The format that an address implies; ``service`` is empty for an unknown service."""

    form: str
    service: str = ""


def chosen_by(url: str) -> Chosen:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return Chosen("standard")
    if parts.scheme == "https":
        for service, (hosts, form) in _SERVICES.items():
            if any(host.endswith(each) if each[0] == "." else host == each for each in hosts):
                return Chosen(form, service)
    return Chosen("standard")


def format_of(url: str) -> tuple[str, str]:
    """Return the format that an address implies, and the address to send to. Raises AddressRefused."""
    form = chosen_by(url).form
    return form, plain_address(url) if form == apprise_sender.FORMAT else url


# Service -> (pattern of its address up to the query, message for any other address).
_PLAIN: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "Discord": (
        re.compile(r"https://[a-z0-9.-]+/api/webhooks/[0-9]+/[A-Za-z0-9_-]+"),
        "a Discord webhook address must have the form https://discord.com/api/webhooks/NUMBER/TOKEN; "
        "a user, port, query or fragment is not allowed: copy the address from Discord again",
    ),
    "Teams": (
        re.compile(
            r"https://[a-z0-9.-]+(:443)?(/powerautomate/automations/direct(/cu/[0-9]+)?)?"
            r"/workflows/[A-Za-z0-9_-]+/triggers/manual/paths/invoke"
        ),
        "a Teams workflow address must have the form https://HOST/…/workflows/ID/triggers/manual/paths/invoke?QUERY, "
        "where QUERY contains only sig, api-version, sp and sv, once each; a user, port or fragment is not allowed; "
        "copy the address from Teams again",
    ),
}
_OF_ANOTHER_SERVICE: Final = (
    "only Discord and Teams addresses can be added here; for other services, set LEAKLINE_APPRISE_URLS on the "
    "server"
)
# The parameter for a thread of a Discord channel in apprise's spelling; addresses from older servers may contain it.
_THREAD: Final = re.compile(r"thread=[0-9]+")
_QUERY_OF_TEAMS: Final = frozenset(("api-version", "sp", "sv", "sig"))
_QUERY_VALUE: Final = re.compile(r"[A-Za-z0-9_./-]+")


def plain_address(url: str) -> str:
    """Rebuild the address of a Discord or Teams webhook from only the parts that such webhooks have.

    Raises AddressRefused for any other address. apprise accepts more in an address: files and hosts from which to read
    a template, and whether to verify certificates.
    """
    service = chosen_by(url).service
    if service not in _PLAIN:
        raise AddressRefused(_OF_ANOTHER_SERVICE)
    pattern, sentence = _PLAIN[service]
    place, mark, query = url.partition("?")
    if not pattern.fullmatch(place):
        raise AddressRefused(sentence)
    if service == "Discord":
        if mark and not _THREAD.fullmatch(query):
            raise AddressRefused(sentence)
        return url
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        raise AddressRefused(sentence) from None
    values = dict(pairs)
    if (
        len(values) < len(pairs)
        or "sig" not in values
        or not _QUERY_OF_TEAMS.issuperset(values)
        or not all(map(_QUERY_VALUE.fullmatch, values.values()))
    ):
        raise AddressRefused(sentence)
    return f"{place}?{urlencode(values)}"


def text_of(outgoing: Outgoing) -> str:
    """Return a message's text as received: the JSON of the standard format, or the text of a chat message."""
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
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        yield part["text"]
    elif isinstance(part, dict | list):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _texts(each)


def origin_of(url: str, form: str) -> str:
    """Return the part of a webhook address that may be displayed."""
    return apprise_sender.service_of(url) if form == apprise_sender.FORMAT else shown(url)


def trial(
    url: str,
    form: str,
    secret: str,
    server_url: str,
    at: float,
    summary: str,
    previous_secret: str | None = None,
    configured: bool = False,
) -> Outgoing:
    """Return a test message that reports nothing; ``summary`` says who sent it."""
    facts = {"title": "Leakline test message", "summary": summary, "link": "/"}
    message = Message(TRIAL_EVENT, at, facts, server_url)
    message_id = f"msg_test_{secrets.token_hex(12)}"
    return Outgoing(message_id, url, form, secret, message, previous_secret, configured)
