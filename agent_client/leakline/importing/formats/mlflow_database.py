"""Reader of the memory metrics in MLflow's own database (SQLite), which is opened read-only.

MLflow's system metrics measure the entire machine, not the process, so a memory metric that the program logs is
preferred.

The package `mlflow` cannot replace this reader: its client creates missing tables, and refuses a database with another
schema version until `mlflow db upgrade` has changed the file. `mlflow-skinny` 3.17 installs twenty other packages,
including a web server, and still needs SQLAlchemy and alembic.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ...snapshot import LARGEST_INTEGER, Number
from ..imported_log import (
    BY_TIME,
    MAX_FILE_BYTES,
    MAX_MEMORY_BYTES,
    MAX_MOMENT,
    ImportRefused,
    Log,
    Reading,
    Wishes,
    plain,
    taken,
)
from ..names_and_sizes import Meaning, chosen_metrics, missing, note_of

MAGIC: Final = b"SQLite format 3\x00"
_HOST: Final = "system/system_memory_usage_megabytes"
_GPU: Final = "system/gpu_{}_memory_usage_megabytes"
_MEGABYTE: Final = 1_000_000
_MAX_GPUS: Final = 16
_RUNS_LISTED: Final = 8
# Number of SQLite VM instructions between two calls of the progress handler, and number of calls after which a query is
# aborted.
_STEPS, _MAX_LOOKS = 100_000, 20_000


def read_mlflow(path: Path, wishes: Wishes) -> Log:
    """Read an MLflow database. Raises ImportRefused."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ImportRefused(
            path,
            f"is larger than {MAX_FILE_BYTES // 2**20} MiB; export the run's metrics to a CSV file",
        )
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            looks = iter(range(_MAX_LOOKS))
            database.set_progress_handler(lambda: next(looks, None) is None, _STEPS)
            return _read(path, database, wishes)
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        raise ImportRefused(path, f"is not a readable MLflow database ({error})") from error


def _read(path: Path, database: sqlite3.Connection, wishes: Wishes) -> Log:
    run = _run(path, database, wishes)
    keys = [
        plain(str(key))
        for (key,) in database.execute(
            "SELECT DISTINCT key FROM metrics WHERE run_uuid = ? ORDER BY key LIMIT 5000", (run["id"],)
        )
    ]  # fmt: skip
    own = chosen_metrics(path, [key for key in keys if not key.startswith("system/")], wishes)
    system = _system(keys)
    if not any(meaning.series == "process.rss_bytes" for meaning in own.values()):
        if _HOST not in keys and not own:
            raise missing(path, keys)
        if _HOST in keys:
            system[_HOST] = Meaning("memory", "process.rss_bytes", _MEGABYTE)
    metrics = {**own, **system}
    notes = [note_of(name, meaning) for name, meaning in metrics.items()]
    if _HOST in system:
        notes.append(
            "this is the memory of the entire machine, so other programs may cause the growth; "
            "log the memory of the process itself to be sure"
        )
    stepped = bool(own)
    notes.append(
        "the generations are MLflow's steps"
        if stepped
        else f"MLflow's own samples count no generations, {BY_TIME}"
    )  # fmt: skip
    readings = taken(path, _readings(path, database, run["id"], metrics, own), wishes.every)
    return Log(
        "mlflow", readings, "step" if stepped else None, notes=tuple(notes), is_clock=True,
        project=run["project"], name=run["name"],
    )  # fmt: skip


def _system(keys: Sequence[str]) -> dict[str, Meaning]:
    known = {_GPU.format(i): f"gpu.{i}.used_bytes" for i in range(_MAX_GPUS)}
    return {key: Meaning("memory", known[key], _MEGABYTE) for key in keys if key in known}


def _run(path: Path, database: sqlite3.Connection, wishes: Wishes) -> Mapping[str, Any]:
    """Return {id, name, project} of the selected run. Raises ImportRefused if no run or several runs match."""
    rows = database.execute(
        "SELECT r.run_uuid, r.name, e.name FROM runs r LEFT JOIN experiments e USING (experiment_id) "
        "WHERE r.run_uuid IN (SELECT DISTINCT run_uuid FROM metrics) ORDER BY r.start_time LIMIT 5000"
    ).fetchall()
    runs = [
        {"id": i, "name": _text(name) or i, "project": _text(project)} for i, name, project in rows
    ]
    if not runs:
        raise ImportRefused(path, "contains no run with metrics")
    if wishes.run is not None:
        runs = [run for run in runs if wishes.run in (run["id"], run["name"])]
    if len(runs) == 1:
        return runs[0]
    listed = ", ".join(f"{run['id']} ({run['name']})" for run in runs[-_RUNS_LISTED:])
    if not runs:
        raise ImportRefused(path, f"has no run {wishes.run!r}; omit --run to list its newest runs")
    raise ImportRefused(
        path, f"contains {len(runs)} runs; choose one with --run ID (the newest are {listed})"
    )


def _readings(
    path: Path,
    database: sqlite3.Connection,
    run: str,
    metrics: Mapping[str, Meaning],
    own: Mapping[str, Meaning],
) -> Iterator[Reading]:
    """Yield one reading per timestamp and generation. The generation is the step of a metric in ``own``."""
    marks = ", ".join("?" * len(metrics))
    rows = database.execute(
        f"SELECT timestamp, key, value, step FROM metrics WHERE run_uuid = ? AND NOT is_nan AND key IN ({marks}) "
        "ORDER BY timestamp, step",
        (run, *metrics),
    )
    samples: dict[str, Number] = {}
    last: tuple[float, int | None] | None = None
    generation: int | None = None
    line = 0
    for timestamp, key, value, step in rows:
        generation = _step(path, step) if key in own else generation
        now = (_seconds(path, timestamp), generation)
        if last is not None and now != last:
            line += 1
            yield Reading(line, samples, *last)
            samples = {}
        last = now
        samples[metrics[key].series] = _size(path, key, float(value) * (metrics[key].factor or 1.0))
    if last is not None:
        yield Reading(line + 1, samples, *last)


def _step(path: Path, step: int | str) -> int:
    number = int(step)
    if abs(number) > LARGEST_INTEGER:
        raise ImportRefused(path, f"{number} is not a valid step")
    return number


def _seconds(path: Path, timestamp: float | str) -> float:
    time = float(timestamp) / 1000
    if not 0 <= time < MAX_MOMENT:
        raise ImportRefused(
            path, f"a timestamp of {float(timestamp):g} is not a valid time in milliseconds"
        )
    return time


def _size(path: Path, key: str, value: float) -> int:
    if not 0 <= value <= MAX_MEMORY_BYTES:
        raise ImportRefused(
            path, f"{key[:60]} of {value:g} bytes is not a size that a process can have"
        )
    return round(value)


def _text(value: object) -> str | None:
    return plain(value).strip()[:128] or None if isinstance(value, str) else None
