"""Tokens -> their section of ``/settings``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..rendering import number_formats

SCOPES: Final[Mapping[str, str]] = {
    "ingest": "adds to one project, reads nothing",
    "read": "reads everything",
    "admin": "reads and changes everything",
}
EXPIRIES: Final = (("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("never", "never"))
DEFAULT_EXPIRY: Final = "365"
_STATUS: Final[Mapping[str, str]] = {"active": "ok", "expired": "learning", "revoked": "learning"}


@dataclass(frozen=True, slots=True)
class TokenForm:
    """What a form that was refused held, and why."""

    scope: str = "ingest"
    project: str = ""
    name: str = ""
    expires: str = DEFAULT_EXPIRY
    browser: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Issued:
    """Shown by this one page only."""

    text: str
    secret: str


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    word: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class TokenRow:
    id: int
    name: str
    begins: str
    what_for: str
    browser: bool
    state: str
    status: str
    can_revoke: bool
    created_at: str
    created: str
    expires_at: str | None
    expires: str
    used_at: str | None
    used: str


@dataclass(frozen=True, slots=True)
class TokensSection:
    """``how`` says what tokens are for on this server; ``can_change``: they are made and revoked here."""

    how: str
    can_change: bool
    issued: Issued | None
    rows: tuple[TokenRow, ...]
    form: TokenForm
    scopes: tuple[Choice, ...]
    expiries: tuple[Choice, ...]


def tokens_section(
    items: Sequence[Mapping[str, Any]],
    asked: bool,
    form: TokenForm | None = None,
    issued: Issued | None = None,
) -> TokensSection:
    """``items`` as the API lists them; ``asked``: whether the server asks who it is."""
    form = form or TokenForm()
    how = "What programs show to be let in (LEAKLINE_TOKEN), each for one thing. Of a token only its beginning is kept."
    if not asked:
        how += (
            " This server asks nobody who they are and needs none; they hold once it asks. Until then they are made "
            "and revoked where it runs (leakline token create, leakline token revoke), not by whoever opens this page."
        )
    return TokensSection(
        how=how,
        can_change=asked,
        issued=issued,
        rows=tuple(_row(item, asked) for item in items),
        form=form,
        scopes=tuple(
            Choice(value, f"{value}: {word}", value == form.scope) for value, word in SCOPES.items()
        ),
        expiries=tuple(Choice(value, word, value == form.expires) for value, word in EXPIRIES),
    )


def issued_text(token: Mapping[str, Any]) -> str:
    return f"The token {token['name']} {_what_for(token)}. It is shown only this once:"


def _row(item: Mapping[str, Any], asked: bool) -> TokenRow:
    state = item["state"]
    return TokenRow(
        id=item["id"],
        name=item["name"],
        begins=f"{item['begins']}…",
        what_for=_what_for(item),
        browser=item["browser"],
        state=state,
        status=_STATUS[state],
        can_revoke=asked and state == "active",
        created_at=item["created_at"],
        created=number_formats.clock(item["created_at"]),
        expires_at=item["expires_at"],
        expires=_clock(item["expires_at"], "never"),
        used_at=item["last_used_at"],
        used=_clock(item["last_used_at"], "not yet"),
    )


def _what_for(item: Mapping[str, Any]) -> str:
    if item["project"] is not None:
        return f"adds to project {item['project']}"
    return SCOPES[item["scope"]]


def _clock(iso: str | None, without: str) -> str:
    return without if iso is None else number_formats.clock(iso)
