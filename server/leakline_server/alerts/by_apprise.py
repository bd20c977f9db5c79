"""One message by way of the package apprise, which knows a hundred services: an extra, `leakline[apprise]`.

Its addresses come from the environment alone and are not checked as webhooks are: apprise looks names up itself.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from importlib.util import find_spec
from threading import Thread
from typing import Final

from .formats.chat import read
from .formats.message import Message
from .post import TOTAL_SECONDS, Delivered, GiveUp, Outcome, TryAgain

FORMAT: Final = "apprise"

# Tone of a message -> apprise's word for it.
_TYPES: Final = {"alarm": "failure", "warning": "warning", "good": "success", "neutral": "info"}


def installed() -> bool:
    return find_spec("apprise") is not None


def service_of(url: str) -> str:
    """What may be shown of an address: the name of its service, never what follows."""
    scheme, found, _ = url.partition("://")
    return f"apprise {scheme}" if found and scheme.isalnum() else "apprise"


def notify(url: str, message: Message, total_seconds: float = TOTAL_SECONDS) -> Outcome:
    """Hand ``message`` to the service at ``url``. Never raises for anything that the service or apprise does.

    After ``total_seconds`` it counts as not sent, though it may still arrive: better twice than never.
    """
    if not installed():
        return GiveUp("apprise is not installed: pip install 'leakline[apprise]'")
    answer: Future[bool | None] = Future()
    started = time.monotonic()

    def hand_over() -> None:
        try:
            answer.set_result(_hand_over(url, message))
        except Exception as error:  # noqa: BLE001 - a hundred services, each with errors of its own
            answer.set_exception(error)

    # Services wait as long as they like; the thread ends with them.
    Thread(target=hand_over, name="leakline-apprise", daemon=True).start()
    try:
        taken = answer.result(total_seconds)
    except FutureTimeout:
        return TryAgain(f"no answer within {total_seconds:g} s", time.monotonic() - started)
    except Exception as error:  # noqa: BLE001 - as above
        # Its text may hold the address.
        return TryAgain(f"apprise: {type(error).__name__}", time.monotonic() - started)
    seconds = time.monotonic() - started
    if taken is None:
        return GiveUp("apprise does not know this kind of address", seconds)
    return (
        Delivered(None, seconds) if taken else TryAgain("apprise: the service refused it", seconds)
    )


def _hand_over(url: str, message: Message) -> bool | None:
    """Whether the service took it; None when the address is none."""
    import apprise

    services = apprise.Apprise()
    if not services.add(url):
        return None
    parts = read(message)
    lines = [parts.summary, *(f"{line.label}: {line.text}" for line in parts.lines)]
    body = "\n".join([*map(_mentioning_nobody, lines), parts.link])
    return bool(
        services.notify(
            title=_mentioning_nobody(parts.title),
            body=body,
            notify_type=_TYPES.get(parts.tone, "info"),
            # Unsaid, it counts as what the service shows best: HTML in mail, Markdown in chat.
            body_format="text",
        )
    )


def _mentioning_nobody(text: str) -> str:
    """For some services apprise looks for names to call; a space of no width keeps it from finding one."""
    return text.replace("@", "@\u200b")
