"""How fast each process of a run grows, and which findings name it. The growth of the run is their sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..results import Finding, Interval, ProcessGrowth
from ..run_history import RunHistory
from ..statistics.trend import Slope
from ..status import GROWING, Standing
from ..timeline import Lane
from ..timeline_analysis import LaneStudy, Moment
from .finding_builder import interval, worth_telling

# Places of a run that are told one by one; those that a finding names and those that grow most come first.
MAX_PROCESSES: Final = 1_024


def of_how_many(history: RunHistory) -> str:
    """What a sentence of the whole run ends with where not all of its processes were read; empty where all were."""
    left_out = history.processes_left_out
    if not left_out:
        return ""
    read = len(history.processes)
    return f" (of the {read:,} largest processes; {left_out:,} more are not studied)"


def measured(slope: Slope) -> Interval | None:
    """None where there are too few readings for a rate: that is not zero."""
    return interval(slope) if slope.points >= 2 else None


def process_growth(
    lanes: Iterable[Lane],
    told: Iterable[tuple[LaneStudy, Moment, Sequence[Standing]]],
    findings: Sequence[Finding],
) -> tuple[ProcessGrowth, ...]:
    """One for each place of the run, in the order of ``lanes``, with its newest process.

    ``told``: the first of a place is what its growth is of. ``findings``: those of the verdict.
    """
    named_by = {f.fingerprint: f.process for f in findings if f.status in GROWING}
    growth: dict[str, Interval | None] = {}
    named: dict[str, list[str]] = {}
    for study, moment, standings in told:
        growth.setdefault(study.lane.name, measured(moment.growth))
        own = (s.fingerprint for s in standings if worth_telling(s) and s.fingerprint in named_by)
        named.setdefault(study.lane.name, []).extend(
            f for f in own if study.lane.name in (named_by[f] or study.lane.name).split(", ")
        )
    found = [
        ProcessGrowth(
            lane.name,
            lane.instance,
            growth.get(lane.name),
            tuple(dict.fromkeys(named.get(lane.name, ()))),
        )
        for lane in lanes
    ]
    if len(found) <= MAX_PROCESSES:
        return tuple(found)
    kept = {each.process for each in sorted(found, key=_weight)[:MAX_PROCESSES]}
    return tuple(each for each in found if each.process in kept)


def _weight(each: ProcessGrowth) -> tuple[bool, float]:
    growth = each.growth_bytes_per_generation
    return not each.findings, float("inf") if growth is None else -growth.estimate
