"""Logs that other tools have written become runs: a verdict before anything is instrumented.

`read_log` recognises a file by its content and returns its readings, what was guessed, and what does not add up;
`recorded` (`run_recording.py`) makes a run of them. A file that is not understood is refused as a whole.
Imports `snapshot`, `transport`, `text_format`, `errors`, `analysis`. Start reading in `log_reader.py`; the formats
are in `formats`.
"""

from __future__ import annotations

from .imported_log import ImportRefused, Log, Wishes
from .log_reader import FORMS, form_of, read_log
from .run_recording import Imported, recorded, write_spool

__all__ = [
    "FORMS", "ImportRefused", "Imported", "Log", "Wishes", "form_of", "read_log", "recorded", "write_spool",
]  # fmt: skip
