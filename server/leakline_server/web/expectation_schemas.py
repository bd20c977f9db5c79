"""Expected counts as the JSON API takes and gives them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from leakline.analysis.results import ExpectationRow, SteadyCount

from ..limits import MAX_INTEGER, MAX_NAME_LENGTH
from .schemas import NO_CONTROL, Phase, Strict

TypeName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, pattern=NO_CONTROL)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class Accepting(Strict):
    """From `low` to `high` instances of `type`, at every reading, or only at the end of the phase `after`. It is
    expected of this run and of those of its project that are heard of from now on, but for those whose program
    declares the type itself."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: TypeName
    low: Count
    high: Count
    after: Phase | None = None


class Accepted(BaseModel):
    """`run`: on whose page it was accepted."""

    type: str
    low: int
    high: int
    after: str | None
    run: str
    created_at: str


class Expectations(BaseModel):
    """`items`: what is expected of the run, with what was seen. `steady`: what it kept to in its last generations and
    nobody expects yet. `accepted`: what stands in its project."""

    items: list[ExpectationRow]
    steady: list[SteadyCount]
    accepted: list[Accepted]
    next: None = None
