"""One message by way of the package apprise, which knows a hundred services: an extra, `leakline[notify]`.

Its addresses are not checked as webhooks are, because apprise looks names up itself. So they come from the environment,
and from migration 0016, which converted webhooks of Discord and Teams; over the network only addresses of these two are
added. Whatever the environment does not name is made anew from its known parts, when it is added and before each
message (`send_message.plain_address`), because apprise reads files and hosts that the query of an address names. It
reads answers of any length, waits as long as a service sends, follows redirects and logs addresses with their secrets.
So each message is sent by a process of its own, which has a bound of time and memory, follows no redirect and logs
nothing.
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
# Discord refuses more than 2,000 characters of title and body together.
MAX_TITLE: Final = 250
MAX_BODY: Final = 1_700
# The process takes a quarter of it, as long as no answer is large.
MAX_MEMORY_BYTES: Final = 256 * 2**20

# Tone of a message -> apprise's word for it.
_TYPES: Final = {"alarm": "failure", "warning": "warning", "good": "success", "neutral": "info"}


def installed() -> bool:
    return find_spec("apprise") is not None


def service_of(url: str) -> str:
    """Return what may be shown of an address: its service, or the host of a web address."""
    scheme, found, _ = url.partition("://")
    if scheme in ("http", "https"):
        return f"apprise {shown(url)}"
    return f"apprise {scheme}" if found and scheme.isalnum() else "apprise"


def notify(url: str, message: Message, total_seconds: float = TOTAL_SECONDS) -> Outcome:
    """Hand ``message`` to the service at ``url``. Never raises for anything that the service or apprise does.

    After ``total_seconds`` it counts as not sent, though it may still arrive: better twice than never.
    """
    if not installed():
        return TryAgain("apprise is not installed: pip install 'leakline[notify]'", 0.0)
    bounds = {"seconds": total_seconds, "memory_bytes": MAX_MEMORY_BYTES, "path": sys.path}
    asked = {**bounds, "url": url, **parts(message)}
    started = time.monotonic()
    try:
        # Over its input: an address holds a secret, and arguments are there for all to read.
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
        # As when it is killed for memory. What it printed may hold the address.
        reason = "apprise: its process ended without an answer"
        return TryAgain(reason, time.monotonic() - started)
    seconds = time.monotonic() - started
    if answer["taken"] is None:
        return GiveUp("apprise does not know this kind of address", seconds)
    if not answer["taken"]:
        return TryAgain("apprise: the service refused it", seconds)
    return Delivered(None, seconds)


def parts(message: Message) -> dict[str, Any]:
    """Return title, text and kind of a message as the process takes them."""
    found = read(message)
    lines = [found.summary, *(f"{line.label}: {line.text}" for line in found.lines)]
    text = escaped("\n".join(map(_mentioning_nobody, lines)), MAX_BODY - len(found.link) - 1, {})
    return {
        "title": escaped(_mentioning_nobody(found.title), MAX_TITLE, {}),
        "body": f"{text}\n{found.link}",
        "kind": _TYPES.get(found.tone, "info"),
    }


def _mentioning_nobody(text: str) -> str:
    """For some services apprise looks for names to call; a space of no width keeps it from finding one."""
    return text.replace("@", "@\u200b")


def _environment() -> dict[str, str]:
    """Without our own settings, among which are secrets that are none of its business."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LEAKLINE_")}
