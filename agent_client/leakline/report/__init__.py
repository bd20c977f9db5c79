"""Reports of recorded runs as text or Markdown: snapshot, trend, growth, large objects, verdict.

This package imports `analysis`, `transport` (spools), `console`; never `probes`, `run` or `sampling`. Start
reading in `report_data.py`, which builds plain rows that the other modules format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ..analysis.run_history import history_from_batches
from ..errors import SpoolError
from ..snapshot import Batch
from ..transport.oom_inference import said_at_end
from ..transport.spool_format import (
    BATCH,
    GENERATION_END,
    Record,
    read_batches,
    read_end,
    read_header,
    read_records,
)
from .document import Origin, run_markdown
from .report_data import Recording, build, examined, load, run_report
from .terminal_text import render

# From a longer spool, read only generation ends, which are enough for a verdict. Reading the entire spool would delay
# the program's exit.
WHOLE_UP_TO_BYTES: Final = 2**20
GENERATION_ENDS_READ: Final = 400

__all__ = [
    "Recording", "build", "closing_line", "examined", "load", "render", "report_items", "report_markdown",
    "report_text", "spools_by_run",
]  # fmt: skip


def report_text(path: Path, since: str | None = None) -> str:
    """Return the reports of all runs under ``path``: a spool, a run's folder, or a folder of runs.

    ``since``: label of the snapshot to compare with instead of the first snapshot. Raises SpoolError.
    """
    runs = spools_by_run(path)
    return "\n\n".join(render(build(load(spools), since)) for spools in runs)


def report_markdown(path: Path, origin: Origin) -> str:
    """Return the report in Markdown, with memory by phase and the types that grow. Raises SpoolError."""
    return "\n\n".join(
        run_markdown(run_report(load(spools), origin)) for spools in spools_by_run(path)
    )


def report_items(path: Path) -> list[dict[str, Any]]:
    """Return the report of each run as JSON values, in the API's formats. Raises SpoolError."""
    return [_item(load(spools)) for spools in spools_by_run(path)]


def _item(recording: Recording) -> dict[str, Any]:
    run = run_report(recording, Origin("", ""))
    return {
        "run": run.id, "project": run.project, "name": run.name, "unit": run.unit, "state": run.state,
        "verdict": run.verdict, "phases": run.phase_accounts, "types": list(run.types),
        "environment": dict(run.environment),
        "large_objects": [asdict(one) for one in recording.large_objects], "lost": recording.lost,
    }  # fmt: skip


def closing_line(path: Path) -> str:
    """Return one sentence with the verdict on a spool's process. Only a part of a long spool is read."""
    from ..analysis import examine
    from ..analysis.results import to_json
    from ..text_format import with_forecast, worded

    header, _ = read_header(path)
    brief = path.stat().st_size > WHOLE_UP_TO_BYTES
    batches = _generation_ends(path) if brief else read_batches(path)
    end = read_end(path) or {}
    verdict = examine(history_from_batches(header, batches, ended=bool(end)))
    state, reason = (str(end.get(name) or "") for name in ("state", "reason"))
    said = worded(verdict.status, said_at_end(to_json(verdict), state, reason))
    return with_forecast(said, to_json(verdict.oom))


def _generation_ends(path: Path) -> Iterator[Batch]:
    """Yield batches with at most GENERATION_ENDS_READ generation ends, evenly spaced and including the last end."""
    chosen = _spread(sum(1 for _ in _ending_records(path)))
    room = GENERATION_ENDS_READ // max(1, len(chosen))
    for position, record in enumerate(_ending_records(path)):
        if position in chosen:
            batch = record.batch()
            ends = [s for s in batch.snapshots if s.kind == "generation_end"]
            kept = _spread(len(ends), room)
            yield replace(batch, snapshots=tuple(s for i, s in enumerate(ends) if i in kept))


def _ending_records(path: Path) -> Iterator[Record]:
    return (r for r in read_records(path) if r.kind == BATCH and r.flags & GENERATION_END)


def _spread(count: int, limit: int = GENERATION_ENDS_READ) -> frozenset[int]:
    """Return at most ``limit`` positions below ``count``, evenly spaced and including the last position."""
    if count <= limit:
        return frozenset(range(count))
    return frozenset(count - 1 - i * count // limit for i in range(limit))


def spools_by_run(path: Path) -> list[list[Path]]:
    """Return one list of spools per run under ``path``, oldest run first. Raises SpoolError if no spool exists."""
    if path.is_file():
        return [[path]]
    folders: dict[Path, list[Path]] = {}
    for spool in sorted(path.rglob("*.spool")):
        folders.setdefault(spool.parent, []).append(spool)
    if not folders:
        why = "contains no spool (*.spool)" if path.is_dir() else "does not exist"
        raise SpoolError(path, why)
    return sorted(folders.values(), key=lambda spools: spools[0].stat().st_mtime)
