"""One figure with its target, as reported by the generated corpus and the live suite. Shares are between 0 and 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from .shares import Share

Unit = Literal["%", "generations", "x", "pairs", "minutes", "MiB", "ms", "KiB"]

_FORMATS: Final[dict[Unit, str]] = {
    "generations": "{:g}", "x": "{:.1f}", "pairs": "{:g}", "minutes": "{:.1f}", "MiB": "{:,.0f}",
    "ms": "{:.1f}", "KiB": "{:,.0f}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with its target, if any. ``value`` is None if it could not be measured.

    ``bound`` is the worst true share with 95 % confidence. ``short`` is a reason to miss the target other than the
    value.
    """

    code: str
    name: str
    value: float | None
    unit: Unit = "%"
    least: float | None = None
    most: float | None = None
    bound: float | None = None
    runs: int = 0
    note: str = ""
    short: str = ""

    @property
    def is_held(self) -> bool:
        return self.least is not None or self.most is not None

    def failure(self) -> str:
        """Return the reason why the target is missed, or an empty string."""
        if not self.is_held:
            return ""
        if self.value is None:
            return "was not measured"
        low = self.least is not None and self.value < self.least
        high = self.most is not None and self.value > self.most
        return f"{self.text()} is not {self.target()}" if low or high else self.short

    def text(self) -> str:
        return written(self.value, self.unit)

    def target(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{written(self.least, self.unit)} to {written(self.most, self.unit)}"
        if self.least is not None:
            return f">= {written(self.least, self.unit)}"
        return f"<= {written(self.most, self.unit)}" if self.most is not None else ""


def at_most(code: str, name: str, share: Share, most: float | None = None) -> Figure:
    bound = share.upper() if share.runs else None
    return Figure(code, name, share.value, most=most, bound=bound, runs=share.runs)


def at_least(code: str, name: str, share: Share, least: float | None = None) -> Figure:
    bound = share.lower() if share.runs else None
    return Figure(code, name, share.value, least=least, bound=bound, runs=share.runs)


def written(value: float | None, unit: Unit) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "without end" if unit != "x" else "theirs alone"
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{_FORMATS[unit].format(value)} {unit}"
