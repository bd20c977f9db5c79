"""What every callback takes, checked where the script makes it, and what is said when its framework is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final, TypedDict

from leakline.errors import BadArgument, MissingPackage
from leakline.settings import resolve


class Options(TypedDict, total=False):
    """What goes on to `leakline.init`; the units and phases come from the framework."""

    name: str | None
    watch: Iterable[type | str] | None
    config: Any
    tags: Iterable[str] | None
    server: str | None
    mode: str | None
    quiet: bool | None
    directory: str | os.PathLike[str] | None
    exact_peaks: bool | None
    log_lines: bool | None
    log_every: int | None
    allocations: bool | None


_NAMES: Final = frozenset({"project", *Options.__annotations__})


def checked(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """The same, classes as their names: whoever holds a class counts as a reference to it.

    Raises TypeError for an argument that does not exist, and BadArgument for a value that cannot be used.
    """
    for name in options:
        if name not in _NAMES:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}")
    return {**options, "watch": resolve(**options).watch}


def checked_steps(steps: object) -> int | None:
    """How many steps are one generation; None: the framework's own unit. Raises BadArgument."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise BadArgument("steps", steps, "must be a whole number above zero")
    return steps


def missing(module: str, package: str, extra: str, error: ImportError) -> ImportError:
    """What an import of this module ends with: the command that brings the package, unless something else failed."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] != package:
        return error
    return MissingPackage(f"leakline.integrations.{module}", package, f"leakline[{extra}]")
