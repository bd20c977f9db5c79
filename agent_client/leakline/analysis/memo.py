"""What is worked out of the first so many generations of a run, once: it stays true while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Known:
    """Results by (generations seen, what was asked)."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, object], Any] = {}

    def once(self, upto: int, what: object, work: Callable[[], T]) -> T:
        """What ``work`` gave when this was asked first. ``what`` must name all that the answer depends on."""
        key = (upto, what)
        if key not in self._found:
            self._found[key] = work()
        found: T = self._found[key]
        return found

    def only(self, wanted: Callable[[int, object], bool]) -> Known:
        """Without what is not wanted, by (generations seen, what was asked)."""
        kept = Known()
        kept._found = {key: value for key, value in self._found.items() if wanted(*key)}
        return kept

    def learn(self, other: Known) -> None:
        """Take over what another has worked out of the same generations."""
        self._found.update(other._found)
