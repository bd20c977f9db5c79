"""Which growths are news, worth looks deeper than counting: for a while after each began, not for ever.

A training's history of losses rises in every generation of a healthy run. Once it has been looked at, it is counted on
and looked at as seldom as all else, until it rises faster than it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Once is how every cache and lazy import begins.
AGAIN: Final = 2
# So many rises, and what it is has been seen by censuses and a search for holders.
NEWS_FOR: Final = 4
FASTER: Final = 2.0
# With each rise the fastest so far counts for less: what loading libraries made rise must not hide a leak of the same.
FORGET: Final = 0.8


@dataclass(slots=True)
class News:
    """One thing that is counted once per generation."""

    rises: int = 0
    fastest: float = 0.0
    until: int = NEWS_FOR

    def rose(self, by: float) -> None:
        """It is more than at the count before."""
        self.rises += 1
        if by > FASTER * self.fastest:
            self.until = self.rises + NEWS_FOR
        self.fastest = max(by, FORGET * self.fastest)

    def looked_at(self) -> None:
        """What holds it was searched for."""
        self.until = self.rises

    @property
    def is_news(self) -> bool:
        return AGAIN <= self.rises <= self.until
