"""Detects the format of a log from its content and calls the matching reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..text_format import format_bytes
from .formats import (
    memory_recorders,
    memory_tables,
    mlflow_database,
    printed_blocks,
    status_lines,
    tool_output,
    wandb_log,
)
from .formats.table_cells import number_in
from .imported_log import ImportRefused, Log, Reading, Wishes, lines_of
from .names_and_sizes import meanings_of

# Maps each format to a description for users.
FORMS: Final = {
    "blocks": "printed blocks of a memory profiler (MEMORY SNAPSHOT, MEMORY TREND)",
    "status": "status lines of a training log (RAM: 35.23 GB, GPU allocated: 0.45 GB)",
    "csv": "a table with a header row, such as time,rss_mb",
    "psrecord": "psrecord --log",
    "mprof": "mprof run",
    "wandb": "a W&B run (run-*.wandb or its folder)",
    "mlflow": "an MLflow SQLite database",
    "tools": "repeated output of ps aux, top -b, docker stats, free or nvidia-smi",
}
_SPOOL: Final = b"LEAKSPL1"
# This many lines are enough to recognize a table or a memory recorder's log.
_LOOKED_AT: Final = 5


def form_of(path: Path) -> str:
    """Detect the format from the content. Raises ImportRefused if no format matches."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error
    if start.startswith(mlflow_database.MAGIC):
        return "mlflow"
    if start.startswith(wandb_log.MAGIC):
        return "wandb"
    if start.startswith(_SPOOL):
        raise ImportRefused(path, "is a Leakline spool; upload it with: leakline sync")
    if not start.strip():
        raise ImportRefused(path, "is empty")
    if b"\x00" in start and not start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ImportRefused(path, "is neither text nor a W&B or MLflow file")
    return _form_of_text(path)


def _form_of_text(path: Path) -> str:
    first: list[str] = []
    status = tools = False
    for _, line in lines_of(path, tabs=True):
        if len(first) < _LOOKED_AT:
            first.append(line)
            if memory_recorders.PSRECORD_HEAD.match(line):
                return "psrecord"
            if len(first) == 1 and memory_recorders.MPROF_LINE.match(line):
                return "mprof"
        if printed_blocks.SNAPSHOT.search(line) or printed_blocks.is_row(line):
            return "blocks"
        if (title := printed_blocks.TITLE.search(line)) and title["kind"]:
            return "blocks"
        status = status or status_lines.has_size(line)
        tools = tools or tool_output.is_row(line)
    if tools and not status and not first[0].lstrip().startswith("|"):
        return "tools"
    if _is_table(first):
        return "csv"
    if tools and not status:
        return "tools"
    if status:
        return "status"
    if first and all(number_in(line.strip()) is not None for line in first):
        raise ImportRefused(
            path,
            "contains numbers without a header row; name the columns, for example with --columns rss --size-unit KiB",
        )
    known = "; ".join(f"{name}: {what}" for name, what in FORMS.items())
    raise ImportRefused(
        path,
        f"has no known format; if it has one of these formats, specify it with --format ({known})",
    )


def _is_table(first: list[str]) -> bool:
    """Return True if all first rows have the same number of cells and are not log lines with bars or commas.

    Such log lines contain memory sizes with units: "epoch 3 | loss 0.1 | rss 2.3 GB". If the header names memory, the
    file is always a table.
    """
    rows = [line for line in first if not line.lstrip().startswith("# ")]
    delimiter = memory_tables.delimiter_of(rows[0]) if rows else None
    if delimiter is None or len(rows) < 2 or len({line.count(delimiter) for line in rows}) > 1:
        return False
    names_memory = any(m.role == "memory" for m in meanings_of(rows[0].split(delimiter)))
    return names_memory or not any(map(status_lines.has_size, rows))


# Series that cannot show a leak: neither reserved address space nor shared pages show what the program retains.
_NOT_JUDGED: Final = frozenset({"process.vms_bytes", "process.shared_bytes"})
# Memory never changes by a factor this large between two readings, so the unit must have changed.
_CHANGE_OF_UNIT: Final = 300.0


def read_log(path: Path, wishes: Wishes) -> Log:
    """Read a log. Raises ImportRefused, with the line number if it is known."""
    path = found_in(path)
    form = wishes.form or ("csv" if wishes.columns else form_of(path))
    log = _read(path, form, wishes)
    known = {name for reading in log.readings for name in reading.samples if _is_memory(name)}
    if not known:
        raise ImportRefused(path, f"contains no memory readings (read as {form}: {FORMS[form]})")
    if known <= _NOT_JUDGED:
        raise ImportRefused(
            path, f"contains only {' and '.join(sorted(known))}, which cannot show a leak; log resident memory (RSS)"
        )  # fmt: skip
    notes = log.notes
    if form not in ("wandb", "tools", "mlflow"):
        notes += tuple(_changes_of_unit(log.readings))
    expected = {**log.expected, **{name: (low, high) for name, low, high in wishes.expected}}
    return printed_blocks.with_offset(replace(log, notes=notes, expected=expected), wishes.offset)


def found_in(path: Path) -> Path:
    """Return the log file in a W&B run's folder, or the path itself if it is a file."""
    if not path.exists():
        raise ImportRefused(path, "does not exist")
    if not path.is_dir():
        return path
    logs = sorted(path.glob("*.wandb"))
    if len(logs) == 1:
        return logs[0]
    raise ImportRefused(path, f"is a folder with {len(logs)} *.wandb files; specify a single file")


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
    """Yield a note on the first two successive readings that differ by a factor of at least `_CHANGE_OF_UNIT`."""
    last: tuple[int, float] | None = None
    for reading in readings:
        now = reading.samples.get("process.rss_bytes")
        if last and now and not 1 / _CHANGE_OF_UNIT < now / last[1] < _CHANGE_OF_UNIT:
            yield (
                f"memory is {format_bytes(last[1])} in line {last[0]} and {format_bytes(now)} in line "
                f"{reading.line}; check that both sizes have the same unit"
            )
            return
        last = (reading.line, float(now)) if now else last


def _is_memory(series: str) -> bool:
    return series.startswith(("process.", "cuda.", "gpu."))
