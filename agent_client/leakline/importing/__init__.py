"""Old logs -> a run like any other: a verdict before anything is instrumented.

`read_log` knows a file by its content and gives its readings and what was guessed; `recorded` (`recording.py`) makes a
run of them. A file that is not understood is refused whole.
"""

from __future__ import annotations

from .detecting import FORMS, form_of
from .log import ImportRefused, Log, Wishes
from .reading import read_log
from .recording import Imported, recorded, write_spool

__all__ = [
    "FORMS", "ImportRefused", "Imported", "Log", "Wishes", "form_of", "read_log", "recorded", "write_spool",
]  # fmt: skip
