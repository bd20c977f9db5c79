"""Imports other tools' logs as runs, so that a program gets a verdict without instrumentation.

`read_log` detects a file's format from its content and returns a `Log`: the readings, and notes on assumptions and
inconsistencies. `recorded` (`run_recording.py`) turns a `Log` into a run. A file that cannot be parsed is refused as a
whole. Imports `snapshot`, `transport`, `text_format`, `errors`, `analysis`. Start reading in `log_reader.py`; the
formats are in `formats`.
"""

from __future__ import annotations

from .imported_log import ImportRefused, Log, Wishes
from .log_reader import FORMS, form_of, read_log
from .run_recording import Imported, recorded, write_spool

__all__ = [
    "FORMS", "ImportRefused", "Imported", "Log", "Wishes", "form_of", "read_log", "recorded", "write_spool",
]  # fmt: skip
