"""The last line that `leakline run` and `leakline watch` print: the run's verdict and where to see it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from ..analysis.generation_axis import UNITS_OF_TIME
from ..core.pipeline import LINE_LIMIT
from ..errors import SpoolError
from ..settings import Settings
from ..text_format import with_forecast, worded
from ..transport.http_delivery import Accepted, Delivery, one_line
from ..transport.spool_format import read_header

# How long to wait for the server to analyze the ended run.
PATIENCE_SECONDS: Final = 2.0
ASK_AGAIN_SECONDS: Final = 0.05
# Spools of up to this total size are analyzed for a verdict; larger spools are left to `leakline report`.
READ_UP_TO_BYTES: Final = 32 * 2**20


def closing_words(settings: Settings, *, unsent: str = "") -> str:
    """Return one line: the verdict, from the server or from an analysis of the spools, and where to find details.

    The line is empty if the program has its own run, which prints its verdict itself. ``unsent``: why the server does
    not have all data; if set, the server is not queried.
    """
    where = settings.run_directory
    spools = sorted(where.glob("*.spool"))
    if not spools:
        return f"nothing was recorded in {where}: the program ended at once, or it chose another id or directory"
    newest = max(map(_attempt, spools))
    if not any(is_ours(path) for path in spools if _attempt(path) == newest):
        return ""
    if settings.mode == "online" and not unsent:
        sentence = _of_server(settings)
        if sentence is not None:
            return f"{sentence} -> {settings.url}"
    if sum(path.stat().st_size for path in spools) > READ_UP_TO_BYTES:
        return "; ".join(
            filter(None, ("recorded", unsent, f"for the verdict: leakline report {where}"))
        )
    try:
        sentence = _worked_out(spools)
    except SpoolError as error:
        return f"recorded, but {error}"
    if settings.mode == "online" and not unsent:
        return f"{sentence} -> {settings.url}"
    more = (
        f"upload it with: leakline sync {where}"
        if settings.mode == "online"
        else f"for details: leakline report {where}"
    )
    return "; ".join(filter(None, (sentence, unsent, more)))


def is_ours(path: Path) -> bool:
    """Return True if the spool is damaged or belongs to an observed program, whose generations are units of time."""
    try:
        return read_header(path)[0].unit in UNITS_OF_TIME
    except SpoolError:
        return True


def _attempt(path: Path) -> int:
    """Return the attempt of a spool. A program that calls `init` late begins the second."""
    try:
        return read_header(path)[1].attempt
    except SpoolError:
        return 0


def _of_server(settings: Settings) -> str | None:
    """Return the server's verdict in one line, or None if a request fails.

    If the server does not analyze all data within PATIENCE_SECONDS, return None for a run of one process, because an
    analysis of its spools covers all data. For other runs, return the newest verdict so far, and say so.
    """
    delivery = Delivery(
        settings.server, settings.token, timeout_seconds=PATIENCE_SECONDS, ca_file=settings.ca_file
    )
    until, said, processes = time.monotonic() + PATIENCE_SECONDS, "", 0
    try:
        while time.monotonic() < until:
            run = delivery.request("GET", f"/runs/{settings.run_id}")
            verdict = delivery.request("GET", f"/runs/{settings.run_id}/verdict")
            if not (isinstance(run, Accepted) and isinstance(verdict, Accepted)):
                return None
            status, summary = (str(verdict.body.get(name)) for name in ("status", "summary"))
            said = with_forecast(worded(status, summary), verdict.body.get("oom"))
            # A server older than this program does not say whether its verdict is current.
            if run.body.get("state") != "running" and run.body.get("verdict_is_current", True):
                return one_line(said, LINE_LIMIT)
            processes = len(run.body.get("processes", ()))
            time.sleep(ASK_AGAIN_SECONDS)
    finally:
        delivery.close()
    return (
        one_line(f"{said}; this does not cover all data yet", LINE_LIMIT) if processes > 1 else None
    )


def _worked_out(spools: list[Path]) -> str:
    from ..analysis.results import to_json
    from ..report import examined, load

    verdict = examined(load(spools))
    said = with_forecast(worded(verdict.status, verdict.summary), to_json(verdict.oom))
    return one_line(said, LINE_LIMIT)
