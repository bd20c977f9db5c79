"""`/metrics`: our own health and the headline numbers of live runs, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from starlette.responses import Response

from ...store.maintenance import corruption, disk_space, run_deletion, storage_sizes
from ..services import Services, Use
from .run_metrics import live_run_metrics

MAX_PROJECTS: Final = 200

router = APIRouter(tags=["health"])


class Metrics:
    """One registry for each application, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._refused = Counter(
            "leakline_batches_refused",
            "Batches refused, by error code.",
            ["code"],
            registry=self.registry,
        )

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def refusals(self) -> dict[str, int]:
        """Batches refused since the start, by error code."""
        return {
            sample.labels["code"]: int(sample.value)
            for metric in self._refused.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def attach(self, services: Services) -> None:
        self.registry.register(_Figures(services))
        # Where there is none, it tells nothing.
        ProcessCollector(
            "leakline_analysis", lambda: services.analysis_pid() or "none", registry=self.registry
        )


class _Figures:
    """Read when they are asked for."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterator[Metric]:
        # Without this, registering would collect, and collecting asks the database.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        figures, examiner = self._services.writer.figures, self._services.examiner
        retainer, compactor = self._services.retainer, self._services.compactor
        sealer = self._services.sealer
        totals: tuple[tuple[str, str, float], ...] = (
            ("batches_accepted", "Batches accepted, repeated ones included.", figures.batches),
            (
                "batches_repeated",
                "Batches of which everything was stored already.",
                figures.repeated_batches,
            ),
            ("snapshots_stored", "Snapshots stored.", figures.snapshots),
            ("snapshots_sealed", "Snapshots sealed into chunks.", sealer.snapshots),
            ("commits", "Transactions of the writer.", figures.commits),
            ("commit_seconds", "Seconds spent in them.", figures.commit_seconds),
            ("seal_seconds", "Seconds spent sealing.", sealer.seconds),
            ("examinations", "Looks of the analysis at a run.", examiner.examinations),
            ("examine_cpu_seconds", "CPU seconds spent in them.", examiner.cpu_seconds),
            ("snapshots_compacted", "Snapshots put into large segments.", compactor.snapshots),
            ("compact_seconds", "Seconds spent compacting.", compactor.seconds),
            ("write_failures", "Transactions that failed.", figures.failures),
            ("runs_removed", "Runs removed because of their age or size.", retainer.removed_runs),
            ("snapshots_thinned", "Snapshots left out of old runs.", retainer.thinned_snapshots),
        )
        for name, text, value in totals:
            yield CounterMetricFamily(f"leakline_{name}", text, value)
        yield GaugeMetricFamily(
            "leakline_chunks_damaged",
            "Stored chunks, batches and rows come upon that cannot be read.",
            corruption.count(self._services.engine),
        )
        yield GaugeMetricFamily(
            "leakline_batches_waiting",
            "Batches waiting for the writer.",
            self._services.writer.waiting,
        )
        yield GaugeMetricFamily(
            "leakline_disk_full",
            "1 from the first write that found the disk of the database full to a batch or a run that found room.",
            disk_space.is_full(self._services.engine),
        )
        yield GaugeMetricFamily(
            "leakline_live_streams", "Open live streams.", self._services.live.listeners
        )
        yield from live_run_metrics(self._services.engine)
        yield from self._sizes()

    def _sizes(self) -> Iterator[Metric]:
        engine = self._services.engine
        space = disk_space.space(engine)
        yield GaugeMetricFamily(
            "leakline_database_bytes", "The database on disk, its free space included.", space.bytes
        )
        yield GaugeMetricFamily(
            "leakline_database_free_bytes",
            "Of that free, as far as the database tells.",
            space.free,
        )
        yield GaugeMetricFamily(
            "leakline_removals_waiting",
            "Runs that are gone and have rows left.",
            run_deletion.waiting(engine),
        )
        stored = GaugeMetricFamily(
            "leakline_project_bytes",
            "What is packed for the runs of a project.",
            labels=["project"],
        )
        count = GaugeMetricFamily("leakline_project_runs", "Runs of a project.", labels=["project"])
        largest = sorted(storage_sizes.projects(engine), key=lambda project: -project.bytes)
        for project in largest[:MAX_PROJECTS]:
            stored.add_metric([project.name], project.bytes)
            count.add_metric([project.name], project.runs)
        yield stored
        yield count


@router.get("/metrics", response_class=Response, summary="Prometheus metrics")
def metrics(request: Request, use: Use) -> Response:
    """Text, not JSON."""
    found: Metrics = request.app.state.metrics
    return Response(generate_latest(found.registry), media_type=CONTENT_TYPE_LATEST)
