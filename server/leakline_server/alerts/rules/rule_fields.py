"""Validation of the rules that people write in the API, on the page or in a file, and conversion to rule terms.

All three sources share one model, so that they reject the same values with the same messages.

The rules file (LEAKLINE_RULES) is read when the server starts. It is TOML with one ``[[rule]]`` table per rule.

    [[rule]]
    name = "Host memory"              # a rule keeps its id and state as long as it keeps its name
    series = "process.rss_bytes"
    above = "50 GB"

    [[rule]]
    preset = "tensors"                # the rules of a preset, here for one project
    project = "erl-trading"

Names and values are the same as in the API.
"""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.config import JsonDict

from leakline.analysis.run_history import LARGEST
from leakline.errors import BadArgument
from leakline.text_format import size_bytes

from ...limits import (
    MAX_ADVICE_LENGTH,
    MAX_IN_A_ROW,
    MAX_LABEL_LENGTH,
    MAX_NAME_LENGTH,
    MAX_RULES,
    MAX_WORD_LENGTH,
)
from ...store.alerts.assertions import Measure, Rule, Terms, terms_of
from .rule_presets import PRESETS, SETS


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not contain line breaks or control characters")
    return text.strip()


def _joined(text: Any) -> Any:
    """Join the lines of a string, because the string is sent as one line."""
    return " ".join(text.split()) if isinstance(text, str) else text


def _or_say(sentence: str) -> WrapValidator:
    """Return a validator that replaces all validation errors of a value with one sentence."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(sentence) from None

    return WrapValidator(check)


def _limit(value: float | str) -> float | None:
    if value == "":
        return None
    number = _read(value) if isinstance(value, str) else value
    if not -LARGEST <= number <= LARGEST:
        raise ValueError("no limit")
    return float(number)


def _read(text: str) -> float:
    for read in (float, lambda text: size_bytes(text, "limit")):
        with contextlib.suppress(ValueError, BadArgument):
            return float(read(text))
    return math.nan


# This pattern is for the API's schema; `_one_line` raises the readable message.
_NO_CONTROL: Final[JsonDict] = {"pattern": r"^[^\x00-\x1f\x7f]*$"}
Label = Annotated[
    str,
    Field(min_length=1, max_length=MAX_LABEL_LENGTH, json_schema_extra=_NO_CONTROL),
    AfterValidator(_one_line),
]
Series = Annotated[
    str,
    Field(max_length=MAX_NAME_LENGTH, json_schema_extra=_NO_CONTROL),
    AfterValidator(_one_line),
]
Advice = Annotated[
    str, Field(max_length=MAX_ADVICE_LENGTH), BeforeValidator(_joined), AfterValidator(_one_line)
]
# A number in the unit of the series, or a size such as "20 GB".
Limit = Annotated[
    Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[str, Field(max_length=MAX_WORD_LENGTH, json_schema_extra=_NO_CONTROL)],
    AfterValidator(_limit),
    _or_say('must be a number, or a size such as "20 GB" or "500 MiB"'),
]
InARow = Annotated[
    int, Field(ge=1, le=MAX_IN_A_ROW), _or_say(f"must be a whole number from 1 to {MAX_IN_A_ROW}")
]


class RuleChanges(BaseModel):
    """Changes to a rule. Only the given fields change; null removes a limit, a project or a run."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Label | None = None
    project: Label | None = None
    run: Label | None = None
    series: Series | None = None
    measure: Measure = "value"
    above: Limit | None = None
    below: Limit | None = None
    hold: InARow = 1
    grace: InARow = 3
    advice: Advice = ""
    enabled: bool = True


class NewRule(RuleChanges):
    """A rule fires when a reading has been `above` or `below` for `hold` generations in a row, and ends when readings
    have been inside for `grace` generations. `series` may contain `*`; a `forecast` has no series. `run` is an id or a
    name. Fields given in addition to `preset` override those of the preset.
    """

    preset: Label | None = None


Fields = TypeVar("Fields", bound=RuleChanges)


class WrongField(ValueError):
    """Raised when the value of ``field`` is not valid in a rule; the message says why."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field}={value!r} {why}")
        self.field, self.value, self.why = field, value, why


def check_fields(model: type[Fields], given: Fields | Mapping[str, Any]) -> Fields:
    """Validate the given fields. Raises WrongField for the first invalid field."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        assert isinstance(given, Mapping)
        first = error.errors(include_url=False)[0]
        field, why = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            why = f"is not a field of a rule; available: {', '.join(model.model_fields)}"
        raise WrongField(field, given.get(field), why[0].lower() + why[1:]) from error


def new_rules(wanted: NewRule) -> list[Terms]:
    """Return the requested rule, or the rules of the requested preset. Raises WrongField."""
    own, preset = _given(wanted), wanted.preset
    if preset is None:
        return [_terms(own)]
    if preset not in (*SETS, *PRESETS):
        raise WrongField("preset", preset, f"is unknown; available: {', '.join((*SETS, *PRESETS))}")
    rules = SETS[preset].rules if preset in SETS else {preset: PRESETS[preset]}
    own = {name: value for name, value in own.items() if value is not None}
    if len(rules) == 1:
        return [_terms(asdict(rule) | own) for rule in rules.values()]
    for limit in own.keys() & {"above", "below"}:
        known = " or ".join(rules)
        why = f"cannot be the same for all rules of {preset}; use the preset {known}"
        raise WrongField(limit, own[limit], why)
    # Each rule needs a unique name.
    title = f"{own.pop('name')}: " if "name" in own else ""
    return [_terms(asdict(r) | own | {"name": f"{title}{r.name}"}) for r in rules.values()]


def changed_rule(rule: Rule, changes: RuleChanges) -> Terms:
    """Return the rule with ``changes`` applied. Raises WrongField."""
    return _terms(asdict(terms_of(rule)) | _given(changes))


def _given(fields: RuleChanges) -> dict[str, Any]:
    return fields.model_dump(exclude_unset=True, exclude={"preset"})


def _terms(given: Mapping[str, Any]) -> Terms:
    terms = Terms(**{"name": "", "series": "", **given})
    # An empty field counts as missing.
    terms = replace(
        terms, name=terms.name or "", series=terms.series or "", project=terms.project or None, run=terms.run or None
    )  # fmt: skip
    _check(terms)
    if len(terms.name) > MAX_LABEL_LENGTH:
        raise WrongField("name", terms.name, f"must have at most {MAX_LABEL_LENGTH} characters")
    return terms if terms.name else replace(terms, name=_default_name(terms))


def _check(terms: Terms) -> None:
    above, below = terms.above, terms.below
    if terms.measure == "forecast":
        if terms.series:
            why = "must be left out: a forecast applies to the run's memory"
            raise WrongField("series", terms.series, why)
        if below is None or below <= 0 or above is not None:
            why = (
                "must be a number of generations, and above must not be set: "
                "the rule fires when fewer generations are left"
            )
            raise WrongField("below", below, why)
    elif not terms.series:
        why = "must be the name of a series, such as process.rss_bytes or gauge.queue"
        raise WrongField("series", terms.series or None, why)
    if above is None and below is None:
        raise WrongField("above", None, "is required unless below is set")
    if above is not None and below is not None and above < below:
        why = f"must not be less than below ({below:g}): every reading would be outside the limits"
        raise WrongField("above", above, why)


def _default_name(terms: Terms) -> str:
    if terms.measure == "forecast":
        return f"Fewer than {terms.below:g} generations left until the limit"
    limits = (("above", terms.above), ("below", terms.below))
    words = " or ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
    rate = "rate of " if terms.measure == "rate" else ""
    return f"{rate}{terms.series[:200]} {words}"


MAX_FILE_BYTES: Final = 1_000_000


def read_rules(path: Path) -> tuple[Terms, ...]:
    """Return the rules in the file. Raises ValueError with a one-line message that names the rule, the field and the
    problem.
    """
    found: dict[str, Terms] = {}
    for number, table in enumerate(_tables(path), 1):
        name = table.get("name") or table.get("preset")
        # The repr is used because a name may contain a line break and the message must be one line.
        label = f"rule {number}" + (f" {name[:100]!r}" if isinstance(name, str) else "")
        try:
            # An empty string counts as missing.
            given = {field: value for field, value in table.items() if value != ""}
            rules = new_rules(check_fields(NewRule, given))
        except WrongField as error:
            raise ValueError(f"{label}: {error}") from error
        for rule in rules:
            if rule.name in found:
                raise ValueError(f"{label}: name={rule.name!r} is already used by an earlier rule")
            found[rule.name] = rule
    if len(found) > MAX_RULES:
        raise ValueError(f"has {len(found)} rules; at most {MAX_RULES} are allowed")
    return tuple(found.values())


def _tables(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"has more than {MAX_FILE_BYTES} bytes")
    try:
        parsed = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"is not valid TOML: {error}") from error
    tables = parsed.pop("rule", [])
    if parsed:
        other = next(iter(parsed))
        raise ValueError(
            f"{other!r} is not allowed in a rules file; it may contain only [[rule]] tables"
        )
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("rule must be a list of tables, each starting with [[rule]]")
    return tables
