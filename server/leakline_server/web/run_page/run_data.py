"""Data of one run in the API's JSON format, used to build the run's page and charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leakline.analysis.results import (
    AssertionCheck,
    ContainerFill,
    PhaseAccounts,
    StableCount,
    TypeGrowth,
)

from ...charts.chart_parts import Axis, Points, add_up
from ...store.alerts.assertions import AcceptedCount
from ..axis_zoom import TwoPoints
from .annotations import NO_CLOCK, Clock

Json = Mapping[str, Any]

# Id -> title of the tabs below the first screen. Only one tab is open, but a saved report shows all
# tabs. "gpu" is only shown if the run has GPU series.
TABS: Final = {
    "objects": "Objects", "phases": "Phases and time", "gpu": "GPU", "events": "Events and log", "info": "Run info",
}  # fmt: skip
ALL_TABS: Final = "all"
# The limit per line of the entire run: one point for about four pixels, each with its minimum and
# maximum. Every visitor loads these lines, and every live update redraws them. A zoomed range has
# up to 2,000 points per line.
MAX_POINTS_OF_ALL: Final = 250

# (names, phase or "*", kind or None) -> one Points per name and phase; a name may end in "*".
ReadSeries = Callable[[Sequence[str], str | None, str | None], Sequence[Points]]


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything that a run's page shows, in the API's JSON format."""

    run: Json
    verdict: Json | None
    axis: Axis
    read: ReadSeries
    read_of: Callable[[str], ReadSeries]  # returns the reader for another process, given its label
    phase_accounts: PhaseAccounts
    types: Sequence[TypeGrowth]
    containers: Sequence[ContainerFill]
    # The open tabs; data for other tabs is not read.
    tabs: Sequence[str] = tuple(TABS)
    has_gpu: bool = True
    counts: Sequence[AssertionCheck] = ()
    stable: Sequence[StableCount] = ()
    # Counts that were accepted in the run's project.
    accepted: Sequence[AcceptedCount] = ()
    events: Sequence[Json] = ()
    large_objects: Sequence[Json] = ()
    holders: Sequence[Json] = ()
    snapshots: Sequence[Json] = ()
    process: str | None = None  # label of the process whose lines are shown
    incidents: Sequence[Json] = ()
    # Acknowledgements in force for the run's leaks, by fingerprint.
    said: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    # {event, created_at in Unix seconds, payload}, newest first.
    alerts: Sequence[Json] = ()
    # Webhooks in the API's JSON format.
    webhooks: Sequence[Json] = ()
    census: Json | None = None
    clock: Clock = NO_CLOCK
    # Effects of fixes, each with the run against which it was measured.
    effects: Sequence[Json] = ()
    # The process in the page's address, if the run has it.
    chosen_process: str = ""
    # The previous run of the same project.
    previous: Json | None = None
    # True if the server has a public URL.
    public: bool = True
    # "time" if the page's address requests it and the run has generations.
    chosen_axis: str = ""
    # The first and last point that can be compared, or None if there are fewer than two.
    recorded: TwoPoints | None = None
    # The range in the page's address, and the changes in it (see range_changes.py) or the reason
    # why they are not known.
    x: str = ""
    changes: Json | None = None
    no_changes: str = ""
    # When the data was read, in Unix seconds; 0 if only the charts were read.
    read_at: float = 0.0

    @property
    def asked(self) -> dict[str, str]:
        """The query parameters that links to other parts of the page keep."""
        both = {"process": self.chosen_process, "axis": self.chosen_axis}
        return {name: value for name, value in both.items() if value}

    @property
    def open_tab(self) -> dict[str, str]:
        """The query parameter of the open tab; empty for the first tab, which is the default."""
        if len(self.tabs) > 1:
            return {"tab": ALL_TABS}
        return {} if self.tabs[0] == next(iter(TABS)) else {"tab": self.tabs[0]}

    @property
    def kind(self) -> str | None:
        """The kind of snapshots that most lines use, or None (all kinds) without generations."""
        return "generation_end" if self.axis.unit == "generation" else None


def process_label(process: Json) -> str:
    """Return a process's label; all attempts of a rank share the label, so their lines join."""
    return f"rank {process['rank']} {process['role']}"


def first_shown(run: Json, leading: str | None = None) -> str | None:
    """Return the process whose lines a page shows first.

    This is the fastest-growing process named by the ``leading`` finding (a fingerprint) or, without
    such a process, by any finding. If no finding names a process, this is the first process.
    """
    named = [each for each in run["processes"] if leading in each["findings"]]
    named = named or [each for each in run["processes"] if each["findings"]]
    most = max(named, key=_estimate, default=next(iter(run["processes"]), None))
    return None if most is None else process_label(most)


def _estimate(process: Json) -> float:
    growth = process["growth_bytes_per_generation"]
    return float("-inf") if growth is None else float(growth["estimate"])


def own_growth(run: Json, process: str | None) -> Json | None:
    """Return the growth of the shown process, or None if unknown."""
    found = [
        each["growth_bytes_per_generation"]
        for each in run["processes"]
        if process_label(each) == process and each["growth_bytes_per_generation"] is not None
    ]
    # If several processes have this label, no line shows their sum.
    return found[0] if len(found) == 1 else None


def has_several(run: Json) -> bool:
    return len({process_label(each) for each in run["processes"]}) > 1


def own_verdict(run: Json, verdict: Json | None, process: str | None) -> Json | None:
    """Return the verdict, restricted to the process whose lines are shown."""
    if verdict is None or not has_several(run):
        return verdict
    mine = {name for p in run["processes"] if process_label(p) == process for name in p["findings"]}
    findings = [each for each in verdict["findings"] if each["fingerprint"] in mine]
    return {
        **verdict,
        "findings": findings,
        "status": findings[0]["status"] if findings else "ok",
        "growth_bytes_per_generation": own_growth(run, process),
        # The forecast is based on the growth of all processes together.
        "oom": {**verdict["oom"], "generation": None},
    }


def summed(points: Sequence[Points], names: tuple[str, ...]) -> list[Points]:
    """Add up series into one line per phase; skip phases without readings of the first series."""
    by_phase: dict[str | None, dict[str, Points]] = defaultdict(dict)
    for each in points:
        by_phase[each.phase][each.name] = each
    return [
        add_up([found[name] for name in names if name in found])
        for found in by_phase.values()
        if names[0] in found and any(y is not None for y in found[names[0]].y)
    ]


def last_of(points: Points) -> float | None:
    return next((y for y in reversed(points.y) if y is not None), None)
