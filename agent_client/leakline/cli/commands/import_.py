"""Import a log as a run and print its verdict, without instrumenting anything.

The format of FILE is detected from its content: printed blocks of a memory
profiler, status lines of a training log, a table of time and memory (CSV, also
exported from W&B, TensorBoard or MLflow), psrecord --log, mprof run, a W&B run
(run-*.wandb or its folder), an MLflow SQLite database, or repeated output of
ps, top, docker stats, free or nvidia-smi. Every assumption is reported.

The run is uploaded to the server, or with --out written to a spool for
`leakline report`. Importing the same file twice stores it once.

example: leakline import train.log --project erl-trading --name before-fix
         leakline import memory.csv --unit epoch --out memory.spool && leakline report memory.spool
         leakline import mlruns.db --run 3f2a91c0 --memory process_rss --size-unit MiB
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ...analysis import examine
from ...analysis.generation_axis import UNITS_OF_TIME
from ...analysis.results import Verdict, to_json
from ...analysis.run_history import history_from_batches
from ...errors import BadArgument, ServerRefused
from ...importing import FORMS, Imported, Log, Wishes, read_log, recorded, write_spool
from ...importing.imported_log import ImportRefused
from ...importing.log_reader import found_in
from ...importing.names_and_sizes import factor_of
from ...importing.run_recording import digest_of, moved_to, run_id_of
from ...report.document import verdict_lines
from ...settings import UNITS, Settings, checked_name, resolve
from ...snapshot import DEFAULT_PROJECT
from ...transport.http_delivery import Delivery, request_json
from ...transport.spool_upload import upload
from ..server_queries import add_server

TIMEOUT_SECONDS = 30.0
NOT_FOUND = 404
FORBIDDEN = 403
MAX_OFFSET = 10**12


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the log, or the folder of a W&B run"
    )
    parser.add_argument(
        "--project",
        help="project of the run (default: LEAKLINE_PROJECT, otherwise the file's or the token's project, "
        'otherwise "default")',
    )
    parser.add_argument(
        "--name", help="name of the run (default: the name in the file, otherwise the file name)"
    )
    parser.add_argument(
        "--unit",
        choices=(*UNITS, *UNITS_OF_TIME),
        help="unit of the generations (default: the file's unit)",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMS),
        help="format of the file (default: detected from its content)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="write a spool instead of uploading the run"
    )
    parser.add_argument(
        "--memory", metavar="NAME", help="column or metric to read as the resident memory"
    )
    parser.add_argument(
        "--size-unit",
        metavar="UNIT",
        help="unit to assume for sizes without a unit, such as KiB or MB",
    )
    parser.add_argument(
        "--binary", action="store_true", help="read MB and GB as 2^20 and 2^30 bytes"
    )
    parser.add_argument(
        "--columns", metavar="A,B", help="column names of a table without a header row"
    )
    parser.add_argument(
        "--expect", metavar="TYPE=N", action="append", default=[],
        help="expected number of instances, such as TradingEnvironment=2 or DDPGAgent=16-17; may be repeated",
    )  # fmt: skip
    parser.add_argument("--run", metavar="ID", help="run to read from a file with several runs")
    parser.add_argument(
        "--offset", type=int, default=0, metavar="N", help="number to add to each generation number"
    )
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="merge every N readings into one reading with their peak",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server(parser)


def main(options: argparse.Namespace) -> int:
    wishes = _wishes(options)
    path = found_in(options.file)
    log = read_log(path, wishes)
    settings = resolve(
        server=options.server, project=options.project or _project(log), name=options.name
    )
    imported = _imported(path, log, wishes, settings, options)
    verdict = examine(history_from_batches(imported.header, imported.batches(), ended=True))
    where = _written(options.out, imported) if options.out else _uploaded(imported, log, settings)
    if options.json:
        print(json.dumps(_plain(log, imported, verdict, where), indent=2))
    else:
        print("\n".join(_report_lines(path, log, imported, verdict, where)))
    return 0


def _wishes(options: argparse.Namespace) -> Wishes:
    size_unit = (
        None if options.size_unit is None else factor_of(options.size_unit, binary=options.binary)
    )
    if options.size_unit is not None and size_unit is None:
        raise BadArgument(
            "--size-unit", options.size_unit, "must be B, KB, KiB, MB, MiB, GB or GiB"
        )
    if abs(options.offset) > MAX_OFFSET:
        raise BadArgument("--offset", options.offset, f"must be at most {MAX_OFFSET:,}")
    if options.every < 1:
        raise BadArgument("--every", options.every, "must be 1 or more")
    columns = tuple(name.strip() for name in (options.columns or "").split(",") if name.strip())
    expected = tuple(_expected(text) for text in options.expect)
    return Wishes(
        options.format, size_unit, options.binary, options.memory, columns, options.offset, options.run,
        options.every, expected,
    )  # fmt: skip


def _expected(text: str) -> tuple[str, int, int]:
    name, _, counts = text.rpartition("=")
    low, _, high = counts.partition("-")
    if not (
        name
        and low.isdecimal()
        and (high or low).isdecimal()
        and int(low) <= int(high or low) <= 2**53
    ):
        raise BadArgument(
            "--expect", text, "must be a type and its number of instances, such as DDPGAgent=16-17"
        )
    return checked_name(name, "--expect"), int(low), int(high or low)


def _project(log: Log) -> str | None:
    """Return the project set in the environment, or otherwise the project named in the file."""
    return resolve().project or log.project


def _imported(
    path: Path, log: Log, wishes: Wishes, settings: Settings, options: argparse.Namespace
) -> Imported:
    digest = digest_of(path)
    project = settings.project or DEFAULT_PROJECT
    run_id = run_id_of(digest, project, settings.name, options.unit, wishes)
    name = settings.name or log.name or path.stem[:128]
    made_at = round(path.stat().st_mtime, 3)
    return recorded(log, digest, run_id, settings.project, name, options.unit, made_at)


def _written(out: Path, imported: Imported) -> str:
    path = out / f"{imported.header.id}.spool" if out.is_dir() else out
    write_spool(path, imported)
    return f"leakline report {path}"


def _uploaded(imported: Imported, log: Log, settings: Settings) -> str:
    """Upload the run and return its URL. Importing the same file again stores nothing twice."""
    known = _known(imported, settings)
    if known is not None and not _has_times(log):
        # Keep the start time of the earlier import: the file may be a copy with another modification time.
        imported = moved_to(imported, datetime.fromisoformat(known).timestamp())
    delivery = Delivery(settings.server, settings.token, TIMEOUT_SECONDS, ca_file=settings.ca_file)
    with tempfile.TemporaryDirectory(prefix="leakline-import-") as folder:
        spool = Path(folder) / "import.spool"
        write_spool(spool, imported)
        done = upload(spool, delivery)
    delivery.close()
    if done.refused:
        raise ImportRefused(
            settings.server, f"refused {done.refused} of {len(imported.snapshots)} readings"
        )
    return f"{settings.server}/runs/{imported.header.id}"


def _known(imported: Imported, settings: Settings) -> str | None:
    """Return the run's start time if the server has the run from an earlier import of this file, otherwise None."""
    try:
        run = request_json(
            settings.server, "GET", f"/runs/{imported.header.id}", token=settings.token, ca_file=settings.ca_file
        )  # fmt: skip
    except ServerRefused as error:
        # An ingest token is not allowed to read runs, but this must not stop the import.
        if error.status in (NOT_FOUND, FORBIDDEN):
            return None
        raise
    return str(run["started_at"])


def _has_times(log: Log) -> bool:
    return log.is_clock and any(reading.time is not None for reading in log.readings)


def _report_lines(
    path: Path, log: Log, imported: Imported, verdict: Verdict, where: str
) -> Iterator[str]:
    readings = len(imported.snapshots)
    yield f"{path.name}: {FORMS[log.form]}; {readings:,} reading{'s' if readings > 1 else ''}"
    yield from (f"   {note}" for note in log.notes)
    yield ""
    # Leave out the checklist, which is advice for a training run that is still running.
    yield from verdict_lines({**to_json(verdict), "checklist": None})
    yield ""
    yield where


def _plain(log: Log, imported: Imported, verdict: Verdict, where: str) -> dict[str, Any]:
    return {
        "run": imported.header.id, "project": imported.header.project or DEFAULT_PROJECT,
        "name": imported.header.name,
        "format": log.form, "readings": len(imported.snapshots), "notes": list(log.notes),
        "verdict": to_json(verdict), "where": where,
    }  # fmt: skip
