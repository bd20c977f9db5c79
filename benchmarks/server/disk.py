"""Bytes per sample on disk, once everything is merged or compacted."""

from __future__ import annotations

from typing import Final

from .compacting import compacted, until_space_is_back
from .feeding import full_or_short, running, started_now, streamed
from .load import closed
from .machine import disk_bytes
from .rows import Figure, Line, Part
from .samples import SAMPLES, stream
from .subjects import (
    Absent,
    InfluxDB,
    Leakline,
    Prometheus,
    Subject,
    VictoriaMetrics,
)

RUNS: Final = full_or_short(24, 8)
SNAPSHOTS: Final = 12_288
BYTES_AT_MOST: Final = 1.0
# Background work is periodic: a server is idle after this long without any.
QUIET_SECONDS: Final = 4.0


def measure() -> list[Part]:
    lines = [_line(kind) for kind in (Leakline, VictoriaMetrics, Prometheus, InfluxDB)]
    by_name = {line.name: line for line in lines}
    ours = by_name[Leakline.name].figures["stopped_bytes"]
    peer = by_name[VictoriaMetrics.name]
    figures = [
        Figure("bytes per sample on disk after compaction", BYTES_AT_MOST, ours, unit=" B"),
        Figure(
            "the same, of VictoriaMetrics", 1.0,
            None if peer.missing else ours / peer.figures["stopped_bytes"],
            unit=" ×", missing=peer.missing,
        ),
    ]  # fmt: skip
    title = f"on disk, {RUNS} runs of {SNAPSHOTS:,} snapshots, everything in the server's folder"
    return [Part(title, lines, figures)]


def _line(kind: type[Subject]) -> Line:
    try:
        with running(kind) as server:
            return Line(kind.name, _sizes(server))
    except Absent as error:
        return Line(kind.name, missing=str(error))


def _sizes(server: Subject) -> dict[str, float]:
    all_samples = RUNS * SNAPSHOTS * SAMPLES
    names = [f"d{i}" for i in range(RUNS)]
    runs = server.create(names)
    started = started_now(SNAPSHOTS / 2 + 600)
    closed(
        server.address,
        [
            streamed(server, run, stream(i, SNAPSHOTS, started))
            for i, run in enumerate(runs.values())
        ],
    )
    figures = {}
    server.settle(90)
    if isinstance(server, Leakline):
        server.finish(names)
        compacted([server])
        until_space_is_back(server, 180)
        spent = server.metric("leakline_compact_seconds_total") or 0.0
        figures["compaction_per_million"] = spent / all_samples * 1e6
    server.settle(120, QUIET_SECONDS)
    figures["running_bytes"] = disk_bytes(server.folder) / all_samples
    server.stop()
    figures["stopped_bytes"] = disk_bytes(server.folder) / all_samples
    return figures
