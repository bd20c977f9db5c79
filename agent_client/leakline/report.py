"""Spool -> text: snapshots, trend, growth, large objects, verdict. Build first, then render."""

from __future__ import annotations

from pathlib import Path

from .analysis.history import RunHistory, history_from_batches
from .spool import read_batches, read_end, read_header

# Reading a longer spool whole would hold up the end of the program; generation ends are enough for a verdict.
WHOLE_UP_TO_BYTES = 4 * 2**20


def load_history(path: Path, *, brief: bool = False) -> RunHistory:
    """The history of one process from its spool. Raises SpoolError."""
    header, _ = read_header(path)
    only_ends = brief and path.stat().st_size > WHOLE_UP_TO_BYTES
    batches = read_batches(path, only_generation_ends=only_ends)
    return history_from_batches(header, batches, ended=read_end(path) is not None)


def closing_line(path: Path) -> str:
    """One sentence with the verdict."""
    from .analysis import examine

    verdict = examine(load_history(path, brief=True))
    return f"{verdict.status}: {verdict.summary}"


def report_text(path: Path) -> str:
    return closing_line(path)
