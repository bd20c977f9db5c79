"""Imports other tools' logs as runs, which gives a verdict without instrumenting a program.

`read_log` detects the format of a file from its content and returns its readings, the assumptions made, and any
inconsistencies; `recorded` (`run_recording.py`) turns them into a run. A file that cannot be parsed is refused as a
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
