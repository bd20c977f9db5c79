"""A file -> its readings, by the reader of its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..text_format import format_bytes
from .format_detection import FORMS, form_of
from .formats import (  # fmt: skip
    memory_recorders,
    memory_tables,
    mlflow_database,
    printed_blocks,
    status_lines,
    tool_output,
    wandb_log,
)
from .imported_log import ImportRefused, Log, Reading, Wishes

# Address space that a program has reserved, and pages it shares with others: neither says what it keeps.
_NOT_JUDGED: Final = frozenset({"process.vms_bytes", "process.shared_bytes"})
# No program changes its memory by this factor between two readings; a change of the unit does.
_CHANGE_OF_UNIT: Final = 300.0


def read_log(path: Path, wishes: Wishes) -> Log:
    """Raises ImportRefused, with the line where there is one."""
    path = found_in(path)
    form = wishes.form or ("csv" if wishes.columns else form_of(path))
    log = _read(path, form, wishes)
    known = {name for reading in log.readings for name in reading.samples if _is_memory(name)}
    if not known:
        raise ImportRefused(path, f"holds no reading of memory (read as {form}: {FORMS[form]})")
    if known <= _NOT_JUDGED:
        raise ImportRefused(
            path, f"holds {' and '.join(sorted(known))} alone, which cannot show a leak; log the resident memory (RSS)"
        )  # fmt: skip
    notes = log.notes
    if form not in ("wandb", "tools", "mlflow"):
        notes += tuple(_changes_of_unit(log.readings))
    expected = {**log.expected, **{name: (low, high) for name, low, high in wishes.expected}}
    return printed_blocks.with_offset(replace(log, notes=notes, expected=expected), wishes.offset)


def found_in(path: Path) -> Path:
    """The log in the folder of a W&B run; else the path itself."""
    if not path.exists():
        raise ImportRefused(path, "does not exist")
    if not path.is_dir():
        return path
    logs = sorted(path.glob("*.wandb"))
    if len(logs) == 1:
        return logs[0]
    raise ImportRefused(path, f"is a folder with {len(logs)} files *.wandb; give one file")


def _read(path: Path, form: str, wishes: Wishes) -> Log:
    if form == "csv":
        return memory_tables.read_table(path, wishes)
    if form == "psrecord":
        return memory_recorders.read_psrecord(path, wishes)
    if form == "mprof":
        return memory_recorders.read_mprof(path, wishes)
    if form == "wandb":
        return wandb_log.read_wandb(path, wishes)
    if form == "tools":
        return tool_output.read_tools(path, wishes)
    if form == "mlflow":
        return mlflow_database.read_mlflow(path, wishes)
    return (
        printed_blocks.read_blocks(path, wishes)
        if form == "blocks"
        else status_lines.read_status(path, wishes)
    )


def _changes_of_unit(readings: Iterable[Reading]) -> Iterator[str]:
    """Yield a note on the first reading with a thousandth or a thousand times of the memory before."""
    last: tuple[int, float] | None = None
    for reading in readings:
        now = reading.samples.get("process.rss_bytes")
        if last and now and not 1 / _CHANGE_OF_UNIT < now / last[1] < _CHANGE_OF_UNIT:
            yield (
                f"memory is {format_bytes(last[1])} in line {last[0]} and {format_bytes(now)} in line "
                f"{reading.line}: check that both have one unit"
            )
            return
        last = (reading.line, float(now)) if now else last


def _is_memory(series: str) -> bool:
    return series.startswith(("process.", "cuda.", "gpu."))
