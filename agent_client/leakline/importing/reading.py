"""A file -> its readings, by the reader of its form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from . import mlflow_database, printed_blocks, recorders, slips, status_lines, tables, wandb_log
from .detecting import FORMS, form_of
from .log import ImportRefused, Log, Reading, Wishes


def read_log(path: Path, wishes: Wishes) -> Log:
    """Raises ImportRefused, with the line where there is one."""
    path = found_in(path)
    form = wishes.form or form_of(path)
    log = _read(path, form, wishes)
    if not any(_tells_memory(reading) for reading in log.readings):
        raise ImportRefused(path, f"holds no reading of memory (read as {form}: {FORMS[form]})")
    if form in ("csv", "psrecord", "mprof"):
        log = replace(log, slips=slips.bounded([*log.slips, *slips.jumps(log.readings)]))
    expected = {**log.expected, **{name: (low, high) for name, low, high in wishes.expected}}
    return printed_blocks.with_offset(replace(log, expected=expected), wishes.offset)


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
        return tables.read_table(path, wishes)
    if form == "psrecord":
        return recorders.read_psrecord(path, wishes)
    if form == "mprof":
        return recorders.read_mprof(path, wishes)
    if form == "wandb":
        return wandb_log.read_wandb(path, wishes)
    if form == "mlflow":
        return mlflow_database.read_mlflow(path, wishes)
    return (
        printed_blocks.read_blocks(path, wishes)
        if form == "blocks"
        else status_lines.read_status(path, wishes)
    )


def _tells_memory(reading: Reading) -> bool:
    return any(name.startswith(("process.", "cuda.", "gpu.")) for name in reading.samples)
