"""When to try again. Pure but for the dice it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .http_post import TryAgain

# Seconds before each try, counted from the one before. A leak that is told an hour late is noise, so urgent alerts
# go on every few minutes for as long as they are of use.
URGENT_SECONDS: Final = (0.0, 5.0, 15.0, 60.0, 180.0, 600.0)
URGENT_LATER_SECONDS: Final = 600.0
URGENT_LONGEST_SECONDS: Final = 86_400.0
# What may wait for a receiver that is away over night: a day and a few hours, as Standard Webhooks suggests.
ORDINARY_SECONDS: Final = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
# So that receivers that come back are not hit by everything at once.
JITTER: Final = 0.2


def next_wait(
    tries: int,
    outcome: TryAgain,
    dice: Callable[[], float],
    *,
    urgent: bool = True,
    age_seconds: float = 0.0,
) -> float | None:
    """Seconds to wait after ``tries`` tries have failed; None when that was the last one. ``dice`` gives [0, 1).

    ``age_seconds`` is how long ago the alert was written; an expiry of its own is the caller's to look at.
    """
    waits = URGENT_SECONDS if urgent else ORDINARY_SECONDS
    if tries < len(waits):
        wait = waits[tries]
    elif urgent and age_seconds + URGENT_LATER_SECONDS <= URGENT_LONGEST_SECONDS:
        wait = URGENT_LATER_SECONDS
    else:
        return None
    return max(wait * (1 + JITTER * dice()), outcome.wait_seconds or 0.0)
