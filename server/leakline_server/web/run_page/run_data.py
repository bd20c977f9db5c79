"""Everything that is known of one run, in the shapes of the API: what its page and its charts are made of."""

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

# Id -> title of what lies below the first screen; one is open, and all of them in a saved report. GPU only with one.
TABS: Final = {
    "objects": "Objects", "phases": "Phases and time", "gpu": "GPU", "events": "Events and log", "info": "Run info",
}  # fmt: skip
ALL_TABS: Final = "all"
# Of a line of the whole run: half as many as of a stretch, each with the extremes of what it stands for, because
# everybody loads those.
MAX_POINTS_OF_ALL: Final = 1_000

# (names, phase or "*", kind or None) -> one Points for each name and phase; a name may end in "*".
ReadSeries = Callable[[Sequence[str], str | None, str | None], Sequence[Points]]


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything a page of a run is made of, in the shapes of the API."""

    run: Json
    verdict: Json | None
    axis: Axis
    read: ReadSeries
    read_of: Callable[[str], ReadSeries]  # of another process, by its label
    phase_accounts: PhaseAccounts
    types: Sequence[TypeGrowth]
    containers: Sequence[ContainerFill]
    # Those that are open: what the others need is not read.
    tabs: Sequence[str] = tuple(TABS)
    has_gpu: bool = True
    counts: Sequence[AssertionCheck] = ()
    stable: Sequence[StableCount] = ()
    # What stands in the project of the run.
    accepted: Sequence[AcceptedCount] = ()
    events: Sequence[Json] = ()
    large_objects: Sequence[Json] = ()
    holders: Sequence[Json] = ()
    snapshots: Sequence[Json] = ()
    process: str | None = None  # "rank role" of the process whose lines are shown
    incidents: Sequence[Json] = ()
    # What people said of its leaks that holds, by fingerprint.
    said: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    # {event, created_at in Unix seconds, payload}, the newest first.
    alerts: Sequence[Json] = ()
    # As the API lists them.
    webhooks: Sequence[Json] = ()
    census: Json | None = None
    clock: Clock = NO_CLOCK
    # Of fixes, each with the run that it was compared with.
    effects: Sequence[Json] = ()
    # The process that the address of the page names, if the run has it.
    chosen_process: str = ""
    # The run of its project that began before it.
    previous: Json | None = None
    # Whether the server has an address that others reach it by.
    public: bool = True
    # "time" where the address of the page asks for it and the run has generations.
    chosen_axis: str = ""
    # The first and the last point that can be compared, if there are two.
    recorded: TwoPoints | None = None
    # The stretch of the address, and what changed in it as range_changes.py reads it, or why that is not known.
    x: str = ""
    changes: Json | None = None
    no_changes: str = ""
    # When it was read, in Unix seconds; 0 where nobody waits for more.
    read_at: float = 0.0

    @property
    def asked(self) -> dict[str, str]:
        """What links to other parts of the page keep of its address."""
        both = {"process": self.chosen_process, "axis": self.chosen_axis}
        return {name: value for name, value in both.items() if value}

    @property
    def open_tab(self) -> dict[str, str]:
        """The tab as it stands in an address; the first one is open by itself."""
        if len(self.tabs) > 1:
            return {"tab": ALL_TABS}
        return {} if self.tabs[0] == next(iter(TABS)) else {"tab": self.tabs[0]}

    @property
    def kind(self) -> str | None:
        """Of the snapshots that most lines are drawn of: generation ends; all where there are no generations."""
        return "generation_end" if self.axis.unit == "generation" else None


def process_label(process: Json) -> str:
    """The same for every attempt of one rank, so that its lines join."""
    return f"rank {process['rank']} {process['role']}"


def first_shown(run: Json, leading: str | None = None) -> str | None:
    """Return the process whose lines a page opens on.

    Of the processes that the ``leading`` finding names (its fingerprint), or else any finding, the one that grows most;
    else the first.
    """
    named = [each for each in run["processes"] if leading in each["findings"]]
    named = named or [each for each in run["processes"] if each["findings"]]
    most = max(named, key=_estimate, default=next(iter(run["processes"]), None))
    return None if most is None else process_label(most)


def _estimate(process: Json) -> float:
    growth = process["growth_bytes_per_generation"]
    return float("-inf") if growth is None else float(growth["estimate"])


def own_growth(run: Json, process: str | None) -> Json | None:
    """Of the process that is shown; None where it cannot be determined."""
    found = [
        each["growth_bytes_per_generation"]
        for each in run["processes"]
        if process_label(each) == process and each["growth_bytes_per_generation"] is not None
    ]
    # Of several side by side no line is the sum.
    return found[0] if len(found) == 1 else None


def has_several(run: Json) -> bool:
    return len({process_label(each) for each in run["processes"]}) > 1


def own_verdict(run: Json, verdict: Json | None, process: str | None) -> Json | None:
    """The verdict as far as it speaks of the process whose lines are shown: no other leaks there."""
    if verdict is None or not has_several(run):
        return verdict
    mine = {name for p in run["processes"] if process_label(p) == process for name in p["findings"]}
    findings = [each for each in verdict["findings"] if each["fingerprint"] in mine]
    return {
        **verdict,
        "findings": findings,
        "status": findings[0]["status"] if findings else "ok",
        "growth_bytes_per_generation": own_growth(run, process),
        # It runs out by the growth of all.
        "oom": {**verdict["oom"], "generation": None},
    }


def summed(points: Sequence[Points], names: tuple[str, ...]) -> list[Points]:
    """One line per phase from several series; lines whose first series was not measured are left out."""
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
