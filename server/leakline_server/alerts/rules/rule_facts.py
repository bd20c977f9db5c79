"""The facts of an alert about a rule, with the same keys as in other alerts, and the sentences that describe those
facts. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from leakline.text_format import format_bytes

from ...store.alerts.assertions import Rule, Terms
from ..alert_payload import FIRED, ExaminedRun, iso, plain, run_facts

_TITLES: Final = {"firing": "Rule fired", "resolved": "Rule resolved"}
_NO_ADVICE: Final = "Open the run: its page shows what grows with this series, and in which phase."
_NOTHING_TO_DO: Final = "No action is needed."
_PHASE: Final = re.compile(r"phase\.(.+)\.(?:bytes|seconds)")


@dataclass(frozen=True, slots=True)
class Crossing:
    """The generation in which a rule fired or ended, with the reading in the rule's unit.

    ``process`` is None if the run has only one process. For a forecast, ``series`` is None, and a ``value`` of None
    means "never".
    """

    generation: int
    value: float | None
    series: str | None
    process: str | None


def rule_facts(
    rule: Rule, at: Crossing, status: str, others: Sequence[str], run: ExaminedRun, unit: str,
    came: Crossing | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the facts of a rule's alert as plain JSON. ``status`` is firing or resolved.

    ``others`` are the names of milder rules of the same group. ``came`` is the crossing at which the rule fired, if the
    alert reports both that the rule fired and that it ended.
    """
    fires = status == "firing"
    title = f"{_TITLES[status]}: {rule.name} in {run.project}/{run.name}"
    advice = [rule.advice or _NO_ADVICE] if fires else []
    said = summary(rule, at, status, unit)
    if came is not None:
        said = f"{summary(rule, came, 'firing', unit)}; already resolved: {said}"
    facts = run_facts(FIRED, run, said, advice, title)
    evidence = [f"The rule: {condition(rule, unit)}."]
    if others:
        evidence.append(f"Also {'fired' if fires else 'resolved'}: {', '.join(others)}.")
    own = {
        "where": _where(at),
        "what": {"text": f"{rule.name}: {condition(rule, unit)}", "kind": "rule", "suspects": []},
        "how_much": {
            "text": f"{_read(rule, at, unit)}; the limit is {_limits(rule)}",
            "growth_bytes_per_generation": facts["how_much"].get("growth_bytes_per_generation"),
            "value": at.value,
            "above": rule.above,
            "below": rule.below,
        },
        "when": {
            "text": f"at {unit} {at.generation:,}",
            "started_at_generation": None,
            "generation": at.generation,
            "created_at": iso(run.at),
        },
        "advice": facts["advice"] if fires else [_NOTHING_TO_DO],
        "evidence": [*evidence, *(facts["evidence"] if fires else ())],
        "origin": "rule",
        "rule": {"id": rule.id, "name": rule.name, "status": status, **_terms(rule)},
    }
    return facts | {key: plain(value) for key, value in own.items()}


def _terms(rule: Terms) -> dict[str, Any]:
    names = ("series", "measure", "above", "below", "hold", "grace")
    return {name: getattr(rule, name) for name in names} | {"series": rule.series or None}


def summary(rule: Terms, at: Crossing, status: str, unit: str) -> str:
    """Return a sentence like ``tensors.count is 612 at generation 14: above 500``."""
    if status == "firing":
        is_above = rule.above is not None and (at.value or 0.0) > rule.above
        passed = "above" if is_above or rule.below is None else "below"
        said = f"{passed} {amount(rule, getattr(rule, passed))}"
    else:
        # A rate rule ends when the rate is no longer certain to be outside the limits.
        said = f"no longer {'clearly ' if rule.measure == 'rate' else ''}{_limits(rule)}"
    process = f" in {at.process}" if at.process else ""
    return f"{_read(rule, at, unit)}{process} at {unit} {at.generation:,}: {said}"


def condition(rule: Terms, unit: str) -> str:
    """Return the condition, for example ``tensors.count above 500 for 3 generations in a row``."""
    what = {
        "value": rule.series,
        "rate": f"change of {rule.series} per {unit}",
        "forecast": f"{unit}s left until the limit",
    }[rule.measure]
    held = f" for {rule.hold} {unit}s in a row" if rule.hold > 1 else ""
    return f"{what} {_limits(rule)}{held}"


def amount(rule: Terms, value: float) -> str:
    """Format a reading or a limit of the rule for display."""
    if rule.measure == "forecast":
        return _number(round(value, 1))
    if rule.series.endswith("bytes"):
        return format_bytes(value)
    return f"{_number(value)} s" if rule.series.endswith("seconds") else _number(value)


def _read(rule: Terms, at: Crossing, unit: str) -> str:
    if rule.measure == "forecast":
        if at.value is None:
            return "no risk of running out of memory"
        return f"memory has {amount(rule, at.value)} {unit}s left"
    value = amount(rule, at.value or 0.0)
    if rule.measure == "value":
        return f"{at.series} is {value}"
    sign = "+" if (at.value or 0.0) > 0 else ""
    return f"{at.series} changes by {sign}{value} per {unit}"


def _limits(rule: Terms) -> str:
    known = (("above", rule.above), ("below", rule.below))
    return " or ".join(
        f"{word} {amount(rule, limit)}" for word, limit in known if limit is not None
    )


def _where(at: Crossing) -> dict[str, Any]:
    found = _PHASE.fullmatch(at.series or "")
    path = found[1] if found else None
    place = path or at.series or "the run's memory"
    return {
        "text": f"{place} in {at.process}" if at.process else place,
        "phase": path.split("/")[0] if path else None,
        "phase_path": path if path and "/" in path else None,
        "phase_share": None,
        "process": at.process,
    }


def _number(value: float) -> str:
    if float(value).is_integer():
        return f"{value:,.0f}"
    # More than four significant digits are noise.
    digits = 2 if abs(value) >= 100 else 4
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")
