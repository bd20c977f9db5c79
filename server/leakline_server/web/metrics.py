"""`/metrics`: server health and headline numbers of live runs, in the Prometheus text format.

For runs, only metrics for dashboards and alerts are exported. Their number is bounded: a few series
for each of the most recently seen runs. Unknown values are omitted, never reported as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from starlette.responses import Response

from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.results import SEVERITY

from ..store.engine import Engine
from ..store.maintenance import corruption, disk_space, run_deletion, storage_sizes
from ..store.runs import runs
from .auth.permissions import READ
from .services import Services, Use

MAX_RUNS: Final = 200
LABELS: Final = ("run", "project", "name")
RISKS: Final = ("none", "low", "high", "critical")

Summary = Mapping[str, Any]
Read = Callable[[Summary], float | None]


def _growth(end: str) -> Read:
    def read(run: Summary) -> float | None:
        growth = run["growth_bytes_per_generation"]
        return None if growth is None else growth[end]

    return read


def _oom(name: str) -> Read:
    def read(run: Summary) -> float | None:
        expected = run["oom"].get(name)
        return _number(expected["estimate"] if isinstance(expected, dict) else expected)

    return read


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _generations(run: Summary) -> float | None:
    """Return the number of generations, or None for a program without generations."""
    return None if run["unit"] in UNITS_OF_TIME else float(run["generations"])


def _rank(order: Sequence[str], value: str) -> float | None:
    """Return the position of ``value`` in ``order``, or None for a value of a newer version."""
    return float(order.index(value)) if value in order else None


def _oom_at(run: Summary) -> float | None:
    oom = run["oom"]
    # If memory will only run out after the planned end, there is nothing to report.
    if oom["risk"] == "none" or oom.get("at") is None:
        return None
    return runs.unix(oom["at"]["estimate"])


# (name after leakline_run_, help text, function that reads the value from a run summary).
GAUGES: Final[tuple[tuple[str, str, Read], ...]] = (
    ("rss_bytes", "Resident memory of live runs.", lambda run: run["rss_bytes"]),
    ("peak_bytes", "Largest resident memory of live runs.", lambda run: run["peak_bytes"]),
    ("generations", "Generations that a live run has completed.", _generations),
    ("generations_planned", "Generations that a live run has planned.", lambda run: run["total"]),
    ("growth_bytes_per_generation", "Growth per generation of live runs.", _growth("estimate")),
    ("growth_bytes_per_generation_low", "Lower end of the 90 % interval of the growth.", _growth("low")),
    ("growth_bytes_per_generation_high", "Upper end of the 90 % interval of the growth.", _growth("high")),
    (
        "severity",
        f"Status of the verdict as a number: {', '.join(f'{i} {s}' for i, s in enumerate(SEVERITY))}.",
        lambda run: _rank(SEVERITY, run["status"]),
    ),
    (
        "oom_risk",
        f"Risk of running out of memory: {', '.join(f'{i} {r}' for i, r in enumerate(RISKS))}.",
        lambda run: _rank(RISKS, run["oom"]["risk"]),
    ),
    ("oom_limit_bytes", "The limit that memory is forecast to reach.", _oom("limit_bytes")),
    ("oom_generation", "Generation at which memory is forecast to run out.", _oom("generation")),
    ("oom_timestamp_seconds", "Unix time at which memory is forecast to run out.", _oom_at),
    (
        "last_seen_timestamp_seconds",
        "Unix time at which a live run was last seen.",
        lambda run: runs.unix(run["last_seen_at"]),
    ),
)  # fmt: skip


def _live_run_metrics(engine: Engine) -> Iterator[Metric]:
    found, count = runs.live_runs(engine, MAX_RUNS)
    yield GaugeMetricFamily("leakline_live_runs", "Live runs.", count)
    yield GaugeMetricFamily(
        "leakline_live_runs_left_out",
        f"Live runs beyond the {MAX_RUNS} most recently seen, for which no metrics are exported.",
        count - len(found),
    )
    for name, text, read in GAUGES:
        gauge = GaugeMetricFamily(f"leakline_run_{name}", text, labels=LABELS)
        for run in found:
            value = read(run)
            if value is not None:
                gauge.add_metric([run["id"], run["project"], run["name"]], value)
        yield gauge
    yield _status(found)


def _status(found: list[dict[str, Any]]) -> Metric:
    status = GaugeMetricFamily(
        "leakline_run_status",
        "1 for the verdict status of a live run; the label unit names what the run counts.",
        labels=(*LABELS, "status", "unit"),
    )
    for run in found:
        status.add_metric([run["id"], run["project"], run["name"], run["status"], run["unit"]], 1)
    return status


MAX_PROJECTS: Final = 200

router = APIRouter(tags=["health"], dependencies=[READ])


class Metrics:
    """The registry of one application; several applications can run in one process."""

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
        """Return the number of batches refused since the server started, by error code."""
        return {
            sample.labels["code"]: int(sample.value)
            for metric in self._refused.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def attach(self, services: Services) -> None:
        self.registry.register(_Figures(services))
        # This collector reports nothing while no analysis process is running.
        ProcessCollector(
            "leakline_analysis", lambda: services.analysis_pid() or "none", registry=self.registry
        )


class _Figures:
    """A collector that reads its values on demand."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterator[Metric]:
        # Without this method, registering would call `collect`, which queries the database.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        figures, examiner = self._services.writer.figures, self._services.examiner
        retainer, compactor = self._services.retainer, self._services.compactor
        sealer = self._services.sealer
        totals: tuple[tuple[str, str, float], ...] = (
            ("batches_accepted", "Batches accepted, including repeated batches.", figures.batches),
            (
                "batches_repeated",
                "Batches whose snapshots were all stored already.",
                figures.repeated_batches,
            ),
            ("snapshots_stored", "Snapshots stored.", figures.snapshots),
            ("snapshots_sealed", "Snapshots sealed into chunks.", sealer.snapshots),
            ("commits", "Transactions of the writer.", figures.commits),
            (
                "commit_seconds",
                "Seconds spent in transactions of the writer.",
                figures.commit_seconds,
            ),
            ("seal_seconds", "Seconds spent sealing.", sealer.seconds),
            ("examinations", "Examinations of a run by the analysis.", examiner.examinations),
            ("examine_cpu_seconds", "CPU seconds spent in examinations.", examiner.cpu_seconds),
            ("snapshots_compacted", "Snapshots put into large segments.", compactor.snapshots),
            ("compact_seconds", "Seconds spent compacting.", compactor.seconds),
            ("write_failures", "Transactions that failed.", figures.failures),
            ("runs_removed", "Runs removed because of their age or size.", retainer.removed_runs),
            ("snapshots_thinned", "Snapshots thinned out of old runs.", retainer.thinned_snapshots),
        )
        for name, text, value in totals:
            yield CounterMetricFamily(f"leakline_{name}", text, value)
        yield GaugeMetricFamily(
            "leakline_chunks_damaged",
            "Stored chunks, batches and rows found to be unreadable.",
            corruption.count(self._services.engine),
        )
        yield GaugeMetricFamily(
            "leakline_batches_waiting",
            "Batches waiting for the writer.",
            self._services.writer.waiting,
        )
        yield GaugeMetricFamily(
            "leakline_disk_full",
            "1 after a write fails because the database's disk is full, until a write succeeds; otherwise 0.",
            disk_space.is_full(self._services.engine),
        )
        yield GaugeMetricFamily(
            "leakline_live_streams", "Open live streams.", self._services.live.listeners
        )
        yield from _live_run_metrics(self._services.engine)
        yield from self._sizes()

    def _sizes(self) -> Iterator[Metric]:
        engine = self._services.engine
        space = disk_space.space(engine)
        yield GaugeMetricFamily(
            "leakline_database_bytes",
            "Size of the database on disk, including free space.",
            space.bytes,
        )
        yield GaugeMetricFamily(
            "leakline_database_free_bytes",
            "Free space in the database, as far as the database reports it.",
            space.free,
        )
        yield GaugeMetricFamily(
            "leakline_removals_waiting",
            "Removed runs whose rows are not deleted yet.",
            run_deletion.waiting(engine),
        )
        stored = GaugeMetricFamily(
            "leakline_project_bytes",
            "Packed size of a project's runs.",
            labels=["project"],
        )
        count = GaugeMetricFamily(
            "leakline_project_runs", "Number of a project's runs.", labels=["project"]
        )
        largest = sorted(storage_sizes.projects(engine), key=lambda project: -project.bytes)
        for project in largest[:MAX_PROJECTS]:
            stored.add_metric([project.name], project.bytes)
            count.add_metric([project.name], project.runs)
        yield stored
        yield count


@router.get("/metrics", response_class=Response, summary="Prometheus metrics")
def metrics(request: Request, use: Use) -> Response:
    found: Metrics = request.app.state.metrics
    return Response(generate_latest(found.registry), media_type=CONTENT_TYPE_LATEST)
