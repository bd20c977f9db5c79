"""Spool -> text: snapshot, trend, growth, large objects, verdict. `build` decides what, `render` how it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..analysis.history import history_from_batches
from ..errors import SpoolError
from ..spool import read_batches, read_end, read_header
from .build import Recording, build, load
from .render import render

# Reading a longer spool whole would hold up the end of a program; generation ends are enough for a verdict.
WHOLE_UP_TO_BYTES: Final = 4 * 2**20

__all__ = ["Recording", "build", "closing_line", "load", "render", "report_text", "spools_by_run"]


def report_text(path: Path, since: str | None = None) -> str:
    """The report of every run under ``path``: a spool, the folder of a run, or a folder of runs.

    ``since``: label of the snapshot to compare with, instead of the first. Raises SpoolError.
    """
    runs = spools_by_run(path)
    return "\n\n".join(render(build(load(spools), since)) for spools in runs)


def closing_line(path: Path) -> str:
    """One sentence with the verdict of one process, read quickly."""
    from ..analysis import examine

    header, _ = read_header(path)
    brief = path.stat().st_size > WHOLE_UP_TO_BYTES
    batches = read_batches(path, only_generation_ends=brief)
    verdict = examine(history_from_batches(header, batches, ended=read_end(path) is not None))
    return f"{verdict.status}: {verdict.summary}"


def spools_by_run(path: Path) -> list[list[Path]]:
    """The spools under ``path``, one list for each run, oldest first. Raises SpoolError when there are none."""
    if path.is_file():
        return [[path]]
    folders: dict[Path, list[Path]] = {}
    for spool in sorted(path.rglob("*.spool")):
        folders.setdefault(spool.parent, []).append(spool)
    if not folders:
        why = "holds no spool (*.spool)" if path.is_dir() else "does not exist"
        raise SpoolError(path, why)
    return sorted(folders.values(), key=lambda spools: spools[0].stat().st_mtime)
