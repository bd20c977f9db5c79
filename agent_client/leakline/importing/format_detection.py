"""Which of the forms a file is in, by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .column_names import meanings_of
from .formats import (  # fmt: skip
    memory_recorders,
    memory_tables,
    mlflow_database,
    printed_blocks,
    status_lines,
    tool_output,
    wandb_framing,
)
from .formats.table_cells import number_in
from .imported_log import ImportRefused
from .text_lines import lines_of

# Form -> what a person calls it.
FORMS: Final = {
    "blocks": "printed blocks of a memory profiler (MEMORY SNAPSHOT, MEMORY TREND)",
    "status": "status lines of a training (RAM: 35.23 GB, GPU allocated: 0.45 GB)",
    "csv": "a table with heads, such as time,rss_mb",
    "psrecord": "psrecord --log",
    "mprof": "mprof run",
    "wandb": "a W&B run, run-*.wandb or its folder",
    "mlflow": "a SQLite database of MLflow",
    "tools": "repeated output of ps aux, top -b, docker stats, free or nvidia-smi",
}
_SPOOL: Final = b"LEAKSPL1"
# What a table or a recorder is known by stands in its first lines.
_LOOKED_AT: Final = 5


def form_of(path: Path) -> str:
    """Raises ImportRefused where it is none of them."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error
    if start.startswith(mlflow_database.MAGIC):
        return "mlflow"
    if start.startswith(wandb_framing.MAGIC):
        return "wandb"
    if start.startswith(_SPOOL):
        raise ImportRefused(path, "is a spool of Leakline; upload it with: leakline sync")
    if not start.strip():
        raise ImportRefused(path, "is empty")
    if b"\x00" in start and not start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ImportRefused(path, "is neither text nor a file of W&B or MLflow")
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
            "holds numbers without a head; say what they are, as in --columns rss --size-unit KiB",
        )
    known = "; ".join(f"{name}: {what}" for name, what in FORMS.items())
    raise ImportRefused(path, f"is none of the forms known; say --format where it is one ({known})")


def _is_table(first: list[str]) -> bool:
    """Return True if the first rows have as many cells as the head, and are not lines of a log with bars or commas.

    Such lines tell memory by themselves: "epoch 3 | loss 0.1 | rss 2.3 GB". A head that names memory decides.
    """
    rows = [line for line in first if not line.lstrip().startswith("# ")]
    delimiter = memory_tables.delimiter_of(rows[0]) if rows else None
    if delimiter is None or len(rows) < 2 or len({line.count(delimiter) for line in rows}) > 1:
        return False
    names_memory = any(m.role == "memory" for m in meanings_of(rows[0].split(delimiter)))
    return names_memory or not any(map(status_lines.has_size, rows))
