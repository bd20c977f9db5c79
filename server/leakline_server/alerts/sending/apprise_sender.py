"""Sends messages with apprise, a package that supports a hundred services; the extra `leakline[notify]` installs it.

apprise resolves names itself, so its URLs cannot be checked like webhooks. They may come only from the environment,
from migration 0016, which converted Discord and Teams webhooks, and from users who add a Discord or Teams address. URLs
from other sources are rebuilt from their known parts when they are added and before each message
(`send_message.plain_address`): apprise reads files and hosts named in a URL's query. It also reads responses of any
length, waits as long as a service sends, follows redirects and logs URLs with their secrets. Therefore each message is
sent by a separate process that is limited in time and memory, follows no redirects and logs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any, Final

from ..formats import Message, escaped, read
from . import apprise_process
from .address_check import shown
from .http_post import TOTAL_SECONDS, Delivered, GiveUp, Outcome, TryAgain

FORMAT: Final = "apprise"
# Discord refuses messages whose title and body together exceed 2,000 characters.
MAX_TITLE: Final = 250
MAX_BODY: Final = 1_700
# The process needs a quarter of this memory unless a response is large.
MAX_MEMORY_BYTES: Final = 256 * 2**20

# Tone of a message -> notify type of apprise.
_TYPES: Final = {"alarm": "failure", "warning": "warning", "good": "success", "neutral": "info"}


def installed() -> bool:
    return find_spec("apprise") is not None


def service_of(url: str) -> str:
    """Return the part of an address that may be displayed: its service, or the host of a web address."""
    scheme, found, _ = url.partition("://")
    if scheme in ("http", "https"):
        return f"apprise {shown(url)}"
    return f"apprise {scheme}" if found and scheme.isalnum() else "apprise"


def notify(url: str, message: Message, total_seconds: float = TOTAL_SECONDS) -> Outcome:
    """Hand ``message`` to the service at ``url``. Errors of the service or of apprise do not raise exceptions.

    After ``total_seconds`` the message counts as not sent, although it may still arrive and then be sent twice.
    """
    if not installed():
        return TryAgain(
            "apprise is not installed; run pip install 'leakline[notify]' on the server", 0.0
        )
    bounds = {"seconds": total_seconds, "memory_bytes": MAX_MEMORY_BYTES, "path": sys.path}
    asked = {**bounds, "url": url, **parts(message)}
    started = time.monotonic()
    try:
        # The request is sent on stdin, because the URL contains a secret and arguments are visible to all users.
        ended = subprocess.run(
            [sys.executable, "-I", apprise_process.__file__], input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment(), timeout=total_seconds,
            start_new_session=True, check=False,
        )  # fmt: skip
        answer = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        return TryAgain(f"no answer within {total_seconds:g} s", time.monotonic() - started)
    except OSError as error:
        return TryAgain(f"apprise: {type(error).__name__}", time.monotonic() - started)
    except ValueError:
        # The process may have been killed because of its memory limit. Its output is left out because it may contain
        # the URL.
        reason = "the apprise process ended without a result"
        return TryAgain(reason, time.monotonic() - started)
    seconds = time.monotonic() - started
    if answer["taken"] is None:
        return GiveUp("apprise does not support this kind of address", seconds)
    if not answer["taken"]:
        return TryAgain("the service refused the message from apprise", seconds)
    return Delivered(None, seconds)


def parts(message: Message) -> dict[str, Any]:
    """Return the title, body and kind of a message in the form that the process expects."""
    found = read(message)
    lines = [found.summary, *(f"{line.label}: {line.text}" for line in found.lines)]
    text = escaped("\n".join(map(_mentioning_nobody, lines)), MAX_BODY - len(found.link) - 1, {})
    return {
        "title": escaped(_mentioning_nobody(found.title), MAX_TITLE, {}),
        "body": f"{text}\n{found.link}",
        "kind": _TYPES.get(found.tone, "info"),
    }


def _mentioning_nobody(text: str) -> str:
    """Insert a zero-width space after @: for some services apprise searches the text for names to mention."""
    return text.replace("@", "@\u200b")


def _environment() -> dict[str, str]:
    """Return the environment without our settings, which include secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LEAKLINE_")}
