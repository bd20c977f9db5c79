"""How often to look at what mostly has nothing to tell."""

from __future__ import annotations


class Rhythm:
    """Asked at generation ends: due after ``first`` of them, then ever more seldom.

    What was found may ask for one more look at once; the gap goes on from where it was.
    """

    def __init__(self, first: int, longest: int) -> None:
        self._longest, self._gap, self._wait, self._since = longest, first, first, 0

    def is_due(self) -> bool:
        """Once per generation end."""
        self._since += 1
        return self._since >= self._wait

    def restart(self) -> None:
        """Something else has just looked; the gap stays."""
        self._since = 0

    def looked(self, *, again_soon: bool) -> None:
        self._since = 0
        if not again_soon:
            self._gap = min(self._gap * 2, self._longest)
        self._wait = 1 if again_soon else self._gap
