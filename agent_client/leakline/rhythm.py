"""How often to look at what mostly has nothing to tell."""

from __future__ import annotations


class Rhythm:
    """Asked at generation ends: due after ``first`` of them, then ever more seldom, and soon again when needed."""

    def __init__(self, first: int, longest: int) -> None:
        self._first, self._longest, self._gap, self._since = first, longest, first, 0

    def is_due(self) -> bool:
        """Once per generation end."""
        self._since += 1
        return self._since >= self._gap

    def restart(self) -> None:
        """Something else has just looked; the gap stays."""
        self._since = 0

    def looked(self, *, again_soon: bool) -> None:
        self._since = 0
        self._gap = 1 if again_soon else min(max(self._gap * 2, self._first), self._longest)
