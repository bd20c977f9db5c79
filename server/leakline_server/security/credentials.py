"""Creation, validation and the stored form of users' and programs' credentials. Independent of the database and HTTP.

A token is a prefix with its scope, followed by 256 random bits. Only the token's SHA-256 is stored: tokens cannot be
guessed, and a lookup costs a microsecond. A password can be guessed, so its argon2 hash is stored, which makes each
attempt cost 64 MiB and 50 ms.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from argon2 import PasswordHasher

Scope = Literal["ingest", "read", "admin", "share"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

TOKEN_BYTES: Final = 32
# Secret scanners can use this pattern: leakline_(ingest|read|admin|share)_ followed by 43 characters.
PREFIX: Final = "leakline"
# The number of random characters stored in plain text, so that people can recognize a token in a list.
SHOWN_CHARACTERS: Final = 4
MAX_TOKEN_CHARACTERS: Final = 200
MIN_PASSWORD_CHARACTERS: Final = 8
# Passwords need a limit because argon2 reads the entire password.
MAX_PASSWORD_CHARACTERS: Final = 1_000

_RANDOM: Final = rf"[A-Za-z0-9_-]{{{len(secrets.token_urlsafe(TOKEN_BYTES))}}}"
_TOKEN: Final = re.compile(rf"{PREFIX}_(?:{'|'.join(SCOPES)})_{_RANDOM}")
_SESSION: Final = re.compile(_RANDOM)


def make_token(scope: Scope) -> str:
    return f"{PREFIX}_{scope}_{secrets.token_urlsafe(TOKEN_BYTES)}"


def make_session() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(secret: str) -> str:
    """Return the digest to store.

    A lookup by digest leaks nothing through its timing: nobody can construct a token for a chosen digest.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def prefix_of(token: str) -> str:
    scope = token.split("_")[1]
    return token[: len(PREFIX) + len(scope) + 2 + SHOWN_CHARACTERS]


def is_token(text: str) -> bool:
    """Return True if the string looks like a token; such a string is not accepted as a password."""
    return text.startswith(tuple(f"{PREFIX}_{scope}_" for scope in SCOPES))


def could_be_token(text: str) -> bool:
    """Return True if the string has the exact form of a token; no other string needs a database lookup."""
    return _TOKEN.fullmatch(text) is not None


def could_be_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def check_password(text: str) -> str:
    """Return the password. Raises a ValueError that names the violated requirement."""
    if len(text) < MIN_PASSWORD_CHARACTERS:
        raise ValueError(f"must have at least {MIN_PASSWORD_CHARACTERS} characters")
    if len(text) > MAX_PASSWORD_CHARACTERS:
        raise ValueError(f"must have at most {MAX_PASSWORD_CHARACTERS} characters")
    if text != text.strip() or not text.isprintable():
        raise ValueError("must not start or end with a space or contain control characters")
    if is_token(text):
        raise ValueError("must not be a token; to sign in with a token, enter the token itself")
    return text


def hash_password(password: str) -> str:
    return _hasher().hash(password)


def is_password(hashed: str, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return _hasher().verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()
