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

from ..store import runs
from .services import Services, Use

MAX_RUNS: Final = 200

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

    def attach(self, services: Services) -> None:
        self.registry.register(_Figures(services))


class _Figures:
    """Read when they are asked for."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterator[Metric]:
        # Without this, registering would collect, and collecting asks the database.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        figures, examiner = self._services.writer.figures, self._services.examiner
        totals: tuple[tuple[str, str, float], ...] = (
            ("batches_accepted", "Batches accepted, repeated ones included.", figures.batches),
            (
                "batches_repeated",
                "Batches of which everything was stored already.",
                figures.repeated_batches,
            ),
            ("snapshots_stored", "Snapshots stored.", figures.snapshots),
            ("snapshots_sealed", "Snapshots sealed into chunks.", figures.sealed_snapshots),
            ("commits", "Transactions of the writer.", figures.commits),
            ("commit_seconds", "Seconds spent in them.", figures.commit_seconds),
            ("seal_seconds", "Seconds spent sealing.", figures.seal_seconds),
            ("examinations", "Looks of the analysis at a run.", examiner.examinations),
            ("examine_cpu_seconds", "CPU seconds spent in them.", examiner.cpu_seconds),
            ("write_failures", "Transactions that failed.", figures.failures),
        )
        for name, text, value in totals:
            yield CounterMetricFamily(f"leakline_{name}", text, value)
        yield GaugeMetricFamily(
            "leakline_batches_waiting",
            "Batches waiting for the writer.",
            self._services.writer.waiting,
        )
        yield GaugeMetricFamily(
            "leakline_live_streams", "Open live streams.", self._services.live.listeners
        )
        yield from self._runs()

    def _runs(self) -> Iterator[Metric]:
        labels = ["run", "project", "name"]
        resident = GaugeMetricFamily(
            "leakline_run_rss_bytes", "Resident memory of live runs.", labels=labels
        )
        peak = GaugeMetricFamily(
            "leakline_run_peak_bytes", "Largest resident memory of live runs.", labels=labels
        )
        for run in runs.headline_runs(self._services.engine, MAX_RUNS):
            named = [run["id"], run["project"], run["name"]]
            if run["rss_bytes"] is not None:
                resident.add_metric(named, run["rss_bytes"])
            if run["peak_bytes"] is not None:
                peak.add_metric(named, run["peak_bytes"])
        yield resident
        yield peak


@router.get("/metrics", response_class=Response, summary="Prometheus metrics")
def metrics(request: Request, use: Use) -> Response:
    """Text, not JSON."""
    found: Metrics = request.app.state.metrics
    return Response(generate_latest(found.registry), media_type=CONTENT_TYPE_LATEST)
