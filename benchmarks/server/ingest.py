"""Cost of a stored snapshot: batches of 200, 20 and 1 from 50 runs at the same time, peers in turns.

Each repeat continues the same runs with as many snapshots as Leakline seals into a segment of each. After all repeats
the runs are finished, and the cost of sealing the rest and of compaction is added to each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from leakline_server.store.series import BLOCK

from .compacting import compacted
from .feeding import (
    Cost,
    all_running,
    feed,
    full_or_short,
    log_progress,
    median_by,
    requests_of,
    started_now,
)
from .rows import Figure, Line, Part
from .samples import SECONDS_APART
from .subjects import (
    InfluxDB,
    Leakline,
    LeaklinePostgres,
    MLflow,
    Prometheus,
    Subject,
    Trackio,
    VictoriaMetrics,
)

RUNS: Final = full_or_short(50, 5)
REPEATS: Final = full_or_short(3, 1)
# Per run and repeat: the last batch fills a segment. So few snapshots are left over that they are not sealed while the
# run is idle, and single snapshots are fewer in total than compaction of a live run needs. Compaction therefore happens
# at the end and during no peer's turn.
SNAPSHOTS: Final = {200: 8_200, 20: 4_100, 1: 512}
# Snapshots of these that are sealed. A block of larger batches ends within the last of them.
SEALED: Final = {200: 2 * BLOCK, 20: BLOCK, 1: 512}
DATABASES: Final = (VictoriaMetrics, Prometheus, InfluxDB)
# Measured once and with fewer runs and snapshots, because they are so slow; the figure is the cost per snapshot.
LOGGERS: Final[dict[type[Subject], tuple[int, int]]] = {
    Trackio: (10, full_or_short(600, 200)), MLflow: (10, 30),
}  # fmt: skip
AT_LEAST: Final = {200: 2.5, 20: 1.3, 1: 0.8}
LOGGERS_AT_LEAST: Final = {"trackio": 15.0, "MLflow": 100.0}
WORK: Final = {200: "batches of 200", 20: "batches of 20", 1: "single snapshots"}


def measure() -> list[Part]:
    return [_size(size) for size in SNAPSHOTS]


def _size(size: int) -> Part:
    """Measure on new servers: time-series databases refuse samples an hour older than their newest."""
    kinds = (Leakline, LeaklinePostgres, *DATABASES, *(LOGGERS if size == 200 else ()))
    with all_running(kinds) as (subjects, missing):
        return _measured(size, subjects, missing)


def _measured(size: int, subjects: list[Subject], missing: dict[str, str]) -> Part:
    costs: dict[str, list[Cost]] = {}
    asked = [subject for subject in subjects if type(subject) not in LOGGERS]
    names = {
        subject.name: subject.create([f"i{size}-{i}" for i in range(RUNS)]) for subject in asked
    }
    started = started_now(REPEATS * SNAPSHOTS[size] * SECONDS_APART + 60)
    for repeat in range(REPEATS):
        for subject in _in_turn(asked, repeat):
            cost = _fed(subject, size, names[subject.name], SNAPSHOTS[size], started, repeat)
            costs.setdefault(subject.name, []).append(cost)
    for subject in subjects:
        if type(subject) in LOGGERS:
            costs[subject.name] = [_logged(subject, size, *LOGGERS[type(subject)])]
    middle = {name: median_by(found, _cpu) for name, found in costs.items()}
    ours = [subject for subject in asked if isinstance(subject, Leakline)]
    return _part(size, middle | _with_compaction(ours, names, middle), missing)


def _with_compaction(
    ours: list[Leakline], names: Mapping[str, Mapping[str, str]], middle: Mapping[str, Cost]
) -> dict[str, Cost]:
    """Add the compaction of all repeats in equal parts, since each repeat has the same number of snapshots."""
    for server in ours:
        server.finish(list(names[server.name].values()))
        server.settle()
    spent = compacted(ours)
    found = {}
    for server in ours:
        cost, later = middle[server.name], spent[server.name] / REPEATS
        found[server.name] = replace(cost, cpu=cost.cpu + later, compaction=later)
        log_progress(
            f"{server.name}: compaction adds {found[server.name].figures()['compaction_cpu']:.4f}"
        )
    return found


def _cpu(cost: Cost) -> float:
    return cost.per_million


def _in_turn(subjects: list[Subject], repeat: int) -> list[Subject]:
    """Rotate the subjects so that another one begins in each repeat."""
    at = repeat % len(subjects)
    return subjects[at:] + subjects[:at]


def _fed(
    subject: Subject, size: int, names: Mapping[str, str], snapshots: int, started: float, repeat: int
) -> Cost:  # fmt: skip
    queues = requests_of(subject, names, snapshots, size, started, repeat * snapshots)
    return feed(subject, queues, len(names) * snapshots, len(names) * SEALED[size])


def _logged(subject: Subject, size: int, runs: int, snapshots: int) -> Cost:
    names = subject.create([f"i{size}-{i}" for i in range(runs)])
    size = min(size, subject.snapshots_per_request)
    queues = requests_of(subject, names, snapshots, size, started_now())
    return feed(subject, queues, runs * snapshots, 0)


def _part(size: int, costs: dict[str, Cost], missing: dict[str, str]) -> Part:
    lines = [_line(name, cost, costs[Leakline.name]) for name, cost in costs.items()]
    kinds = (LeaklinePostgres, *DATABASES, *(LOGGERS if size == 200 else ()))
    lines += [Line(kind.name, missing=missing[kind.name]) for kind in kinds if kind.name in missing]
    held = [_against_databases(size, costs, missing)]
    if size == 200:
        held += [_against_logger(name, costs, missing) for name in LOGGERS_AT_LEAST]
    title = f"ingest, {WORK[size]}, {RUNS} runs at once, one core, median of {REPEATS}"
    return Part(title, lines, held)


def _line(name: str, cost: Cost, ours: Cost) -> Line:
    figures = cost.figures()
    if not name.startswith("Leakline"):
        figures["ratio"] = cost.per_million / ours.per_million
    return Line(name, figures)


def _against_databases(size: int, costs: dict[str, Cost], missing: dict[str, str]) -> Figure:
    name = f"ingest, {WORK[size]}: snapshots per CPU second, of the best time-series database"
    bound = AT_LEAST[size]
    gone = [missing[kind.name] for kind in DATABASES if kind.name in missing]
    if gone:
        return Figure(name, bound, at_least=True, unit=" ×", missing="; ".join(gone))
    best = min(DATABASES, key=lambda kind: costs[kind.name].per_million).name
    ours = costs[Leakline.name]
    ratio = costs[best].per_million / ours.per_million
    before = ratio * ours.cpu / (ours.cpu - ours.compaction)
    note = f"best: {best}; {before:.2f} × before compaction"
    return Figure(name, bound, ratio, at_least=True, unit=" ×", note=note)


def _against_logger(logger: str, costs: dict[str, Cost], missing: dict[str, str]) -> Figure:
    name = f"ingest, batches of 200: snapshots per CPU second, of {logger}"
    bound = LOGGERS_AT_LEAST[logger]
    if logger in missing:
        return Figure(name, bound, at_least=True, unit=" ×", missing=missing[logger])
    ratio = costs[logger].per_million / costs[Leakline.name].per_million
    return Figure(name, bound, ratio, at_least=True, unit=" ×")
