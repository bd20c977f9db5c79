"""Waiting with a deadline. Playwright's own wait for an expression needs eval, which our pages forbid."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable

from playwright.sync_api import Page

DEADLINE_SECONDS = 30.0


def until(page: Page, check: Callable[[], bool]) -> None:
    """Until it is true; events of the page are handled between two looks."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not check():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:.0f} s"
        page.wait_for_timeout(50)


def eventually(check: Callable[[], bool]) -> None:
    """Until it is true, where no page is open."""
    pause, end = threading.Event(), time.monotonic() + DEADLINE_SECONDS
    while not check():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:.0f} s"
        pause.wait(0.05)


def text_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=DEADLINE_SECONDS) as answer:
        text: str = answer.read().decode()
    return text
