"""What people write of a rule, in the API, on the page or in a file -> its terms. Pure.

Everything is checked here, so that the three refuse the same things with the same words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, get_args

from leakline.analysis.history import LARGEST
from leakline.errors import BadArgument
from leakline.text_format import size_bytes

from ..limits import MAX_ADVICE_LENGTH, MAX_IN_A_ROW, MAX_LABEL_LENGTH, MAX_NAME_LENGTH
from ..store.rules import Measure, Rule, Terms, terms_of
from .presets import PRESETS, SETS

MEASURES: Final = get_args(Measure)
FIELDS: Final = tuple(Terms.__dataclass_fields__)
_TEXTS: Final = {
    "name": MAX_LABEL_LENGTH,
    "project": MAX_LABEL_LENGTH,
    "run": MAX_LABEL_LENGTH,
    "series": MAX_NAME_LENGTH,
    "advice": MAX_ADVICE_LENGTH,
}


class WrongField(ValueError):
    """``field`` has a value that makes no rule; the text says why."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field}={value!r} {why}")
        self.field, self.value, self.why = field, value, why


def new_rules(given: Mapping[str, Any]) -> list[Terms]:
    """The rules that somebody wants: one, or those of a preset. Raises WrongField."""
    preset = given.get("preset")
    own = {name: value for name, value in given.items() if name != "preset"}
    if preset is None:
        return [_terms(own)]
    if not isinstance(preset, str) or preset not in (*SETS, *PRESETS):
        raise WrongField("preset", preset, f"is none; known: {', '.join((*SETS, *PRESETS))}")
    if preset in PRESETS:
        return [_of_preset(preset, own)]
    return _of_set(preset, SETS[preset].names, own)


def changed_rule(rule: Rule, given: Mapping[str, Any]) -> Terms:
    """The rule with what is given in place of what it says. Raises WrongField."""
    return _terms({**asdict(terms_of(rule)), **given})


def _of_set(preset: str, names: Sequence[str], own: Mapping[str, Any]) -> list[Terms]:
    if len(names) > 1:
        for limit in ("above", "below"):
            if own.get(limit) is not None:
                known = " or ".join(names)
                raise WrongField(
                    limit, own[limit], f"is one limit for several rules of {preset}: use {known}"
                )
        if own.get("name"):
            # Each needs a name of its own.
            return [
                _prefixed(own["name"], _of_preset(name, {**own, "name": None})) for name in names
            ]
    return [_of_preset(name, own) for name in names]


def _prefixed(name: object, terms: Terms) -> Terms:
    whole = f"{_text('name', name)}: {terms.name}"
    return replace(terms, name=_text("name", whole))


def _of_preset(preset: str, own: Mapping[str, Any]) -> Terms:
    given = {name: value for name, value in own.items() if value is not None}
    return _terms({**asdict(PRESETS[preset]), **given})


def _terms(given: Mapping[str, Any]) -> Terms:
    for name, value in given.items():
        if name not in FIELDS:
            raise WrongField(
                name, value, f"is nothing a rule has; known: preset, {', '.join(FIELDS)}"
            )
    measure = given.get("measure", "value")
    if measure not in MEASURES:
        raise WrongField("measure", measure, f"must be one of {', '.join(MEASURES)}")
    above, below = (_limit(name, given.get(name)) for name in ("above", "below"))
    terms = Terms(
        name="",
        series=_series(measure, given.get("series")),
        measure=measure,
        above=above,
        below=below,
        project=_text("project", given.get("project")) or None,
        run=_text("run", given.get("run")) or None,
        hold=_in_a_row("hold", given.get("hold", 1)),
        grace=_in_a_row("grace", given.get("grace", 3)),
        advice=_text("advice", given.get("advice")),
        enabled=_flag("enabled", given.get("enabled", True)),
    )
    _check_limits(terms)
    return replace(terms, name=_text("name", given.get("name")) or _name(terms))


def _series(measure: str, value: object) -> str:
    series = _text("series", value)
    if measure == "forecast":
        if series:
            raise WrongField(
                "series", series, "must be left out: a forecast is of the memory of the run"
            )
        return ""
    if not series:
        raise WrongField(
            "series",
            value,
            "must be the name of a series, such as process.rss_bytes or gauge.queue",
        )
    return series


def _check_limits(terms: Terms) -> None:
    above, below = terms.above, terms.below
    if terms.measure == "forecast" and (below is None or below <= 0 or above is not None):
        raise WrongField(
            "below", below, "must be a number of generations, without above: fewer are left then"
        )
    if above is None and below is None:
        raise WrongField("above", None, "must be given, or below")
    if above is not None and below is not None and above < below:
        raise WrongField(
            "above",
            above,
            f"must not be less than below ({below:g}): each reading would be outside",
        )


def _limit(field: str, value: object) -> float | None:
    """A number in the unit of the series, or a size such as "20 GB"."""
    if value is None or value == "":
        return None
    number = math.nan
    if isinstance(value, str):
        number = _read(field, value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        # Whole numbers too long for a float are no limit either.
        number = float(value) if -LARGEST <= value <= LARGEST else math.nan
    if not -LARGEST <= number <= LARGEST:
        raise WrongField(field, value, 'must be a number, or a size such as "20 GB" or "500 MiB"')
    return number


def _read(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(size_bytes(text, field))
    except BadArgument:
        return math.nan


def _in_a_row(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_IN_A_ROW:
        raise WrongField(field, value, f"must be a whole number from 1 to {MAX_IN_A_ROW}")
    return value


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongField(field, value, "must be true or false")
    return value


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if field == "advice" and isinstance(value, str):
        # Written over several lines, sent as one.
        value = " ".join(value.split())
    if not isinstance(value, str) or not value.isprintable():
        raise WrongField(field, value, "must be a text without control characters")
    text = value.strip()
    if len(text) > _TEXTS[field]:
        raise WrongField(field, value, f"must have at most {_TEXTS[field]} characters")
    return text


def _name(terms: Terms) -> str:
    """What a rule is called that nobody gave a name."""
    if terms.measure == "forecast":
        return f"Less than {terms.below:g} left until the limit"
    limits = [
        f"{word} {limit:g}"
        for word, limit in (("above", terms.above), ("below", terms.below))
        if limit is not None
    ]
    rate = "rate of " if terms.measure == "rate" else ""
    return f"{rate}{terms.series[:200]} {' or '.join(limits)}"
