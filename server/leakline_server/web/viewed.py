"""Query parameters of a run's page: a process, the generation shown as a sum, the start of "Growth since"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Depends

from ..texts import without_control

MAX_LENGTH: Final = 400


def _read(process: str | None = None, g: str = "", since: str = "") -> dict[str, str]:
    told = {"process": process or "", "g": g, "since": since}
    return {name: without_control(text)[:MAX_LENGTH] for name, text in told.items() if text}


# Parameter -> what it says; only those that say something.
Viewed = Annotated[Mapping[str, str], Depends(_read)]
