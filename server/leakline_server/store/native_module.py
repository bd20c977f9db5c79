"""The native module `leakline_server._native` (`server/native`), which is not there everywhere: nothing but speed
depends on it.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any, Final

SETTING: Final = "LEAKLINE_NATIVE"
# The constant of the same name in `tables.c`.
INTERFACE: Final = 3
_NAME: Final = "leakline_server._native"


def native() -> Any | None:
    """The module, or None where there is none."""
    return _loaded()[0]


def why_not_native() -> str | None:
    """One line on why ``native()`` is None; None when it is not."""
    return _loaded()[1]


def forget() -> None:
    """Look again at the next question; for tests, and after a change of the environment."""
    _loaded.cache_clear()


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any | None, str | None]:
    if os.environ.get(SETTING, "1").strip() == "0":
        return None, f"{SETTING}=0 switches it off"
    try:
        module = importlib.import_module(_NAME)
    except ImportError as error:
        if error.name == _NAME and error.path is None:
            return None, "it was not built for this interpreter"
        return None, f"it does not load: {error}"
    if getattr(module, "interface", None) != INTERFACE:
        return None, "it was built from other sources: install leakline again"
    return module, None
