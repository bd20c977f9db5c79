"""Latency of a batch of one snapshot while 4,000 snapshots a second arrive, peers in turns.

Open loop: 50 runs send 100 snapshots each in turn; a probe follows every 20 ms and is timed from when it was due. Each
run has sent a different part of a segment before, so that runs become due for sealing all the time, as in steady
state; the number of sealed snapshots is read from /metrics. Compaction is not included: it waits until a run is
longer, or over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from .compacting import sealed
from .feeding import all_running, full_or_short
from .load import Plan, closed, drive, every
from .rows import Figure, Line, Part
from .samples import SECONDS_APART, samples
from .subjects import InfluxDB, Leakline, LeaklinePostgres, Prometheus, Subject, VictoriaMetrics

RUNS: Final = 50
SNAPSHOTS_PER_SECOND: Final = 4_000
BATCH: Final = 100
PROBE_SECONDS: Final = 0.02
SECONDS: Final = full_or_short(10, 3)
REPEATS: Final = full_or_short(3, 1)
AT_MOST_MS: Final = 10.0
# Batches until a segment is sealed, and single snapshots until one is sealed.
BATCHES_SEALED: Final = 41
SINGLES_SEALED: Final = 512
# Share of the sent snapshots that must be sealed; those in progress at both ends are not.
SEALED_AT_LEAST: Final = 0.7


@dataclass(frozen=True, slots=True)
class Probed:
    """Latencies of all probes, ``cores`` used by the server, and snapshots sealed and sent meanwhile."""

    seconds: list[float]
    cores: float
    sealed: float
    sent: int


def measure() -> list[Part]:
    kinds = (Leakline, LeaklinePostgres, VictoriaMetrics, Prometheus, InfluxDB)
    found: dict[str, list[Probed]] = {}
    with all_running(kinds) as (subjects, missing):
        for repeat in range(REPEATS):
            for subject in subjects:
                found.setdefault(subject.name, []).append(_probed(subject, repeat))
    lines = [_line(name, repeats) for name, repeats in found.items()]
    lines += [Line(name, missing=why) for name, why in missing.items()]
    peers = ", ".join(
        f"{line.name} {line.figures['p99_ms']:.1f}" for line in lines[1:] if line.figures
    )
    title = (
        f"a batch of one snapshot under {SNAPSHOTS_PER_SECOND:,} snapshots/s, {RUNS} runs,"
        f" median of {REPEATS} × {SECONDS} s"
    )
    held = figure(found[Leakline.name], lines[0].figures["p99_ms"], f"peers: {peers}")
    return [Part(title, lines, [held])]


def figure(ours: list[Probed], p99_ms: float, note: str) -> Figure:
    name = "a small batch under 4,000 snapshots/s, sealed as they come: p99"
    least = min(ours, key=lambda one: one.sealed / one.sent)
    if least.sealed < SEALED_AT_LEAST * least.sent:
        why = f"{least.sealed:,.0f} of {least.sent:,} snapshots were sealed meanwhile"
        return Figure(name, AT_MOST_MS, unit=" ms", missing=why)
    return Figure(name, AT_MOST_MS, p99_ms, unit=" ms", note=note)


def _line(name: str, repeats: list[Probed]) -> Line:
    percentiles = [quantiles(one.seconds, n=100) for one in repeats]
    figures = {
        "p50_ms": median(p[49] for p in percentiles) * 1e3,
        "p99_ms": median(p[98] for p in percentiles) * 1e3,
        "cores": median(one.cores for one in repeats),
    }
    if any(one.sealed for one in repeats):
        figures["sealed"] = median(one.sealed for one in repeats)
    return Line(name, figures)


def _probed(subject: Subject, repeat: int) -> Probed:
    names = subject.create([f"l{repeat}-{i}" for i in range(RUNS + 1)])
    *loading, probing = names.values()
    apart = RUNS * BATCH / SNAPSHOTS_PER_SECOND
    rounds = int(SECONDS / apart) + 1
    started = time.time() - (BATCHES_SEALED + rounds) * BATCH * SECONDS_APART - 60
    probes = int(SECONDS / PROBE_SECONDS)
    before, during = [], []
    for i, run in enumerate(loading):
        sent_before = sent_before_of(i)
        requests = _bodies(subject, run, i, sent_before + rounds, BATCH, started)
        before.append(requests[:sent_before])
        offset = 0.05 + i * apart / RUNS
        during.append(Plan(subject.address, every(apart, offset, requests[sent_before:])))
    # The run of the probes is sealed in the middle of the measurement.
    sent_before = SINGLES_SEALED - probes // 2
    singles = _bodies(subject, probing, 99, sent_before + probes, 1, started)
    before.append(singles[:sent_before])
    during.append(Plan(subject.address, every(PROBE_SECONDS, 0.06, singles[sent_before:]), "probe"))
    closed(subject.address, before)
    subject.settle()
    return _driven(subject, during, RUNS * rounds * BATCH)


def sent_before_of(run: int) -> int:
    """Return how many batches a run has sent before: spread evenly over the batches of a segment."""
    return run * BATCHES_SEALED // RUNS


def _driven(subject: Subject, plans: list[Plan], sent: int) -> Probed:
    had = sealed(subject) if isinstance(subject, Leakline) else 0.0
    before, began = subject.cpu(), time.perf_counter()
    load = drive(plans)
    cores = (subject.cpu() - before) / (time.perf_counter() - began)
    has = sealed(subject) if isinstance(subject, Leakline) else 0.0
    # The first probes include opening connections.
    return Probed(load.seconds["probe"][10:], cores, has - had, sent)


def _bodies(
    subject: Subject, run: str, seed: int, count: int, size: int, started: float
) -> list[bytes]:
    """Return ``count`` batches of ``size``, made before the measurement."""
    made = samples(seed, count * size, started)
    return [subject.request(run, part) for part in made.parts(size)]
