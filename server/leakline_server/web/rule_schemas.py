"""Rules as the JSON API takes and gives them. What a value may be is checked in `alerts/rule_fields.py`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..limits import MAX_ADVICE_LENGTH, MAX_IN_A_ROW, MAX_NAME_LENGTH, MAX_WORD_LENGTH
from .schemas import NO_CONTROL, Name, Strict

Measure = Literal["value", "rate", "forecast"]
Series = Annotated[str, Field(max_length=MAX_NAME_LENGTH, pattern=NO_CONTROL)]
# A number in the unit of the series, or a size such as "20 GB".
Limit = (
    Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[str, Field(max_length=MAX_WORD_LENGTH, pattern=NO_CONTROL)]
)
InARow = Annotated[int, Field(ge=1, le=MAX_IN_A_ROW)]


class RuleChanges(Strict):
    """Only what is given changes; null takes a limit, a project or a run away."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Name | None = None
    project: Name | None = None
    run: Name | None = None
    series: Series | None = None
    measure: Measure = "value"
    above: Limit | None = None
    below: Limit | None = None
    hold: InARow = 1
    grace: InARow = 3
    advice: Annotated[str, Field(max_length=MAX_ADVICE_LENGTH)] = ""
    enabled: bool = True


class NewRule(RuleChanges):
    """It fires once a reading was `above` or `below` for `hold` generations in a row, and is over once readings were
    inside for `grace`. `series` may hold `*`; a `forecast` has none. `run` is an id or a name. With `preset`, what else
    is given stands in place of what the preset says."""

    preset: Name | None = None


class FiringRun(BaseModel):
    """A run in which the rule fires now, since this generation, with the reading there."""

    run: str
    project: str
    name: str
    generation: int | None
    value: float | None
    since: str


class Rule(BaseModel):
    """`source` is api, page or file; rules of the file are changed in the file."""

    id: int
    name: str
    project: str | None
    run: str | None
    series: str | None
    measure: Measure
    above: float | None
    below: float | None
    hold: int
    grace: int
    advice: str
    enabled: bool
    source: str
    created_at: str
    firing: list[FiringRun]


class Rules(BaseModel):
    items: list[Rule]
    next: str | None


class PresetRule(BaseModel):
    preset: str
    name: str
    series: str
    measure: Measure
    above: float | None
    below: float | None
    hold: int
    grace: int
    advice: str


class PresetSet(BaseModel):
    """`preset` makes all of its rules."""

    preset: str
    title: str
    about: str
    rules: list[PresetRule]


class Presets(BaseModel):
    items: list[PresetSet]
    next: None = None
