"""What the address of a run's page asks for: which process, which generation as a sum, which numbers to check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Depends

from ..ingest import without_control

MAX_LENGTH: Final = 400


def _read(
    process: str | None = None, g: str = "", count: str = "", each: str = ""
) -> dict[str, str]:
    told = {"process": process or "", "g": g, "count": count, "each": each}
    return {name: without_control(text)[:MAX_LENGTH] for name, text in told.items() if text}


# Parameter -> what it says; only those that say something.
Viewed = Annotated[Mapping[str, str], Depends(_read)]
