"""When to try again. Pure but for the dice it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .post import TryAgain

# Seconds before each try, counted from the one before. A leak that is told an hour late is noise.
WAITS_SECONDS: Final = (0.0, 5.0, 15.0, 60.0, 180.0, 600.0)
# So that receivers that come back are not hit by everything at once.
JITTER: Final = 0.2


def next_wait(tries: int, outcome: TryAgain, dice: Callable[[], float]) -> float | None:
    """Seconds to wait after ``tries`` tries have failed; None when that was the last one. ``dice`` gives [0, 1)."""
    if tries >= len(WAITS_SECONDS):
        return None
    wait = WAITS_SECONDS[tries] * (1 + JITTER * dice())
    return max(wait, outcome.wait_seconds or 0.0)
