"""Secrets and signatures of the Standard Webhooks specification 1.0: HMAC-SHA256 over ``id.timestamp.body``."""

from __future__ import annotations

import base64
import binascii
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook

PREFIX: Final = "whsec_"
# The limits in the specification; 32 is the length of the digest.
SECRET_BYTES: Final = 32
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64


def make_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: str) -> str:
    """Return ``secret``. Raises ValueError, without repeating the secret, if it cannot be used for signing."""
    with suppress(binascii.Error, ValueError):
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True))
        if MIN_SECRET_BYTES <= size <= MAX_SECRET_BYTES:
            return secret
    raise ValueError(
        f"must be {PREFIX} followed by {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} random bytes in base64; "
        "if no secret is set, the server generates one and prints it once"
    )


def signed_headers(
    secret: str, message_id: str, at: float, body: bytes, previous: str | None = None
) -> dict[str, str]:
    """Return the three Standard Webhooks headers. ``at`` is the Unix time of this attempt, not of the event.

    With a ``previous`` secret, there are two signatures, the new secret's first: during rotation a receiver may know
    only one of the secrets.
    """
    moment = datetime.fromtimestamp(int(at), tz=UTC)
    known = [secret] if previous is None else [secret, previous]
    signatures = [Webhook(each).sign(message_id, moment, body.decode()) for each in known]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": " ".join(signatures),
    }
