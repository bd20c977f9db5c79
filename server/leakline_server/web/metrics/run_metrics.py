"""The headline numbers of live runs for `/metrics`: what a person would put on a wall, and alert on.

Bounded: those runs that were heard of last, each with the same few series. What is unknown has no sample, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.results import SEVERITY

from ...store.engine import Engine
from ...store.runs import runs

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
    """None of a program that counts none: its growth is per minute or second."""
    return None if run["unit"] in UNITS_OF_TIME else float(run["generations"])


def _rank(order: Sequence[str], value: str) -> float | None:
    """None where a newer version wrote a value that this one does not know."""
    return float(order.index(value)) if value in order else None


def _oom_at(run: Summary) -> float | None:
    oom = run["oom"]
    # An end behind the planned end is no alarm.
    if oom["risk"] == "none" or oom.get("at") is None:
        return None
    return runs.unix(oom["at"]["estimate"])


# Name behind leakline_run_, what it says, where it is in a summary.
GAUGES: Final[tuple[tuple[str, str, Read], ...]] = (
    ("rss_bytes", "Resident memory of live runs.", lambda run: run["rss_bytes"]),
    ("peak_bytes", "Largest resident memory of live runs.", lambda run: run["peak_bytes"]),
    ("generations", "Generations that a live run has been through.", _generations),
    ("generations_planned", "Generations that a live run has planned.", lambda run: run["total"]),
    ("growth_bytes_per_generation", "Growth per generation of live runs.", _growth("estimate")),
    ("growth_bytes_per_generation_low", "Its 90 % interval begins here.", _growth("low")),
    ("growth_bytes_per_generation_high", "Its 90 % interval ends here.", _growth("high")),
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
    ("oom_timestamp_seconds", "Unix time at which it is forecast to run out.", _oom_at),
    (
        "last_seen_timestamp_seconds",
        "Unix time at which a live run was heard of last.",
        lambda run: runs.unix(run["last_seen_at"]),
    ),
)  # fmt: skip


def live_run_metrics(engine: Engine) -> Iterator[Metric]:
    found, count = runs.live_runs(engine, MAX_RUNS)
    yield GaugeMetricFamily("leakline_live_runs", "Runs that are alive.", count)
    yield GaugeMetricFamily(
        "leakline_live_runs_left_out",
        f"Live runs beyond the {MAX_RUNS} heard of last, which have no numbers here.",
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
        "1 for the status that the verdict of a live run has; its unit is what it counts.",
        labels=(*LABELS, "status", "unit"),
    )
    for run in found:
        status.add_metric([run["id"], run["project"], run["name"], run["status"], run["unit"]], 1)
    return status
