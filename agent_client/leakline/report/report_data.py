"""Builds the content of a report: plain rows of numbers from one run's history, and how the run's processes ended.

For a process that did not finish, the report contains the reason and, if output was recorded, the last lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..analysis.assertions.expected_counts import counted_type
from ..analysis.generation_axis import generations_of
from ..analysis.results import Verdict, to_json
from ..analysis.run_history import ProcessHistory, RunHistory, Value, history_from_batches
from ..errors import SpoolError
from ..snapshot import DEFAULT_PROJECT, Batch, LargeObject, ProcessIdentity, RunHeader
from ..text_format import format_utc, seen_of
from ..transport.oom_inference import (
    UNWATCHED,
    death_of,
    ended_as,
    killed_for_memory,
    last_readings,
    said_at_end,
)
from ..transport.spool_format import (
    DAMAGED,
    Record,
    is_live,
    read_batches,
    read_header,
    read_holdings,
)
from .document import Origin, RunReport

if TYPE_CHECKING:
    from ..analysis.results import ChangeRating

LINES_SHOWN: Final = 50
# Number of newest snapshots that are searched for the last readings.
SNAPSHOTS_READ: Final = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: ``state`` and ``reason`` as recorded in the spool, or inferred from the last readings."""

    process: ProcessIdentity
    state: str
    reason: str
    lines: tuple[str, ...] = ()
    is_noted: bool = True

    @property
    def who(self) -> str:
        who = self.process
        return f"rank {who.rank}, process {who.pid} on {who.host}, attempt {who.attempt}"

    @property
    def how(self) -> str:
        if self.state == "silent":
            return "without notice"
        death = death_of(self.state, self.reason)
        how = ended_as(self.state, self.reason)
        if death is not None and death.detail:
            how += f", {death.detail}"
        return how if self.is_noted else f"without notice; {how}"


def _ending_of(
    path: Path, who: ProcessIdentity, batches: Sequence[Batch], end: Record | None
) -> Ending | None:
    """Return how a process ended, or None if it finished or may still be running. ``end``: its final record, if any."""
    if end is None and is_live(path):
        return None
    lines = tuple(deque(_lines(batches), maxlen=LINES_SHOWN))
    if end is None:
        moments = [(s.time, s.samples) for batch in batches for s in batch.snapshots]
        reason = killed_for_memory(last_readings(moments[-SNAPSHOTS_READ:])) or ""
        return Ending(who, "killed" if reason else "silent", reason, lines, is_noted=False)
    stated = end.payload()
    state, reason = str(stated["state"]), str(stated.get("reason") or "")
    if state == "finished" and reason != UNWATCHED:
        return None
    return Ending(who, state, reason, lines)


def _lines(batches: Sequence[Batch]) -> Iterator[str]:
    for batch in batches:
        for snapshot in batch.snapshots:
            for event in snapshot.events:
                if event.kind == "log":
                    yield from event.data["lines"]


MEMORY: Final = "process.rss_bytes"
PEAK: Final = "process.peak_bytes"
SECONDS: Final = "generation.seconds"
PHASE_PEAK: Final = "process.phase_peak_bytes"
TREND_KINDS: Final = frozenset({"baseline", "phase_end", "generation_end", "manual"})


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of all spools of one run."""

    header: RunHeader
    history: RunHistory
    processes: tuple[ProcessIdentity, ...]
    large_objects: tuple[LargeObject, ...]
    lost: dict[str, int]
    endings: tuple[Ending, ...] = ()


@dataclass(frozen=True, slots=True)
class TrendRow:
    """Memory in bytes at one snapshot. A change is None if there is no earlier row to compare with."""

    label: str
    memory_bytes: int
    since_previous: int | None
    since_same_phase: int | None


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """First and last count of a type. ``expected`` and ``rating`` come from the analysis."""

    name: str
    first: int
    last: int
    expected: str | None = None
    rating: ChangeRating = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The rows of one process.

    ``snapshot`` contains the newest value of every series, and the highest value of peaks. ``trend`` contains the rows
    that the function `trend` returns.
    """

    title: str
    label: str
    snapshot: dict[str, int | float]
    trend: tuple[TrendRow, ...]
    first: TrendRow | None
    last: TrendRow | None
    objects: tuple[ObjectChange, ...]
    # (phase path, bytes), highest first
    peaks: tuple[tuple[str, int], ...] = ()
    # Mean over all generations.
    seconds_per_generation: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    header: RunHeader
    processes: tuple[ProcessReport, ...]
    large_objects: tuple[LargeObject, ...]
    lost: dict[str, int]
    verdict: Verdict
    endings: tuple[Ending, ...] = ()


def load(spools: Sequence[Path]) -> Recording:
    """Read the spools of one run. Raises SpoolError if no spool has a header."""
    headers: list[RunHeader] = []
    processes: list[ProcessIdentity] = []
    batches: list[Batch] = []
    endings: list[Ending] = []
    damaged: list[int] = []
    ended = True
    for path in spools:
        try:
            header, process = read_header(path)
        except SpoolError:
            if len(spools) == 1:
                raise
            continue
        headers.append(header)
        processes.append(process)
        own = list(read_batches(path))
        held = read_holdings(path)
        damaged.append(held.missing)
        batches.extend(own)
        ended = ended and held.end is not None
        ending = _ending_of(path, process, own, held.end)
        if ending is not None:
            endings.append(ending)
    if not headers:
        raise SpoolError(spools[0].parent, "contains no spool with a header")
    history = history_from_batches(headers[0], batches, ended=ended)
    large = max(
        (s for b in batches for s in b.snapshots if s.large_objects), key=lambda s: s.time, default=None
    )  # fmt: skip
    lost: dict[str, int] = {}
    # Totals are cumulative per process, so the newest batch of a process contains the sum.
    for process, missing in zip(processes, damaged, strict=True):
        if missing:
            lost[DAMAGED] = lost.get(DAMAGED, 0) + missing
        newest = [b for b in batches if b.process.instance == process.instance][-1:]
        for reason, count in (newest[0].lost if newest else {}).items():
            lost[reason] = lost.get(reason, 0) + count
    objects = () if large is None else large.large_objects
    return Recording(headers[0], history, tuple(processes), objects, lost, tuple(endings))


def build(recording: Recording, since: str | None = None) -> Report:
    """Return the report of a recorded run.

    ``since``: label of the snapshot to compare with instead of the first snapshot. Raises SpoolError if no snapshot has
    this label.
    """
    who = {process.instance: process for process in recording.processes}
    verdict = examined(recording)
    processes = tuple(
        _process(who[history.instance], history, recording, since, verdict)
        for history in recording.history.processes
    )
    return Report(
        recording.header, processes, recording.large_objects, recording.lost, verdict, recording.endings
    )  # fmt: skip


def examined(recording: Recording) -> Verdict:
    """Return the verdict on a recorded run. If the run died, the summary begins with how it died."""
    from ..analysis import examine

    verdict = examine(recording.history)
    main = [process for process in recording.processes if process.role == "main"]
    newest = max((process.attempt for process in main), default=0)
    own = [e for e in recording.endings if (e.process.role, e.process.attempt) == ("main", newest)]
    deaths = [(each, death_of(each.state, each.reason)) for each in own]
    # If one of several processes was killed for memory, its end explains how the other processes ended.
    deaths.sort(key=lambda pair: pair[1] is None or not pair[1].for_memory)
    worst = next((each for each, death in deaths if death is not None), None)
    if worst is None:
        return verdict
    return replace(verdict, summary=said_at_end(to_json(verdict), worst.state, worst.reason))


def run_report(recording: Recording, origin: Origin) -> RunReport:
    """Return the recorded run as the content of a Markdown report."""
    from ..analysis import phase_accounts, type_growth
    from ..analysis.findings.growth_tables import with_verdict

    header, history = recording.header, recording.history
    verdict = examined(recording)
    newest_label = next((each.label[-1] for each in history.processes if len(each)), "")
    return RunReport(
        project=header.project or DEFAULT_PROJECT,
        name=header.name,
        id=header.id,
        state=recording.endings[0].how if recording.endings else "recorded",
        progress=seen_of(verdict.generations, verdict.generations_passed, header.unit),
        started=format_utc(header.started_at),
        verdict=to_json(verdict),
        phase_accounts=to_json(phase_accounts(history)),
        types=to_json(with_verdict(type_growth(history), to_json(verdict))),
        environment=header.environment,
        origin=origin,
        snapshot=newest_label,
        unit=header.unit,
    )


def _process(
    who: ProcessIdentity,
    history: ProcessHistory,
    recording: Recording,
    since: str | None,
    verdict: Verdict,
) -> ProcessReport:
    rows = trend(history)
    first = rows[0] if rows else None
    if since is not None:
        first = next((row for row in rows if row.label == since), None)
        if first is None:
            newest = f"; its newest snapshot is {rows[-1].label!r}" if rows else ""
            why = f"has no snapshot labelled {since!r}{newest}"
            raise SpoolError(recording.header.name, why)
    start = 0 if since is None else history.label.index(since)
    return ProcessReport(
        title=f"rank {who.rank}, process {who.pid} on {who.host}, attempt {who.attempt}",
        label=history.label[-1] if len(history) else "",
        snapshot=_newest_values(history),
        trend=rows,
        first=first,
        last=rows[-1] if rows else None,
        objects=_objects(history, recording.history, start, verdict),
        peaks=_phase_peaks(history),
        seconds_per_generation=_mean_of(history.series.get(SECONDS, ())),
    )  # fmt: skip


def trend(history: ProcessHistory) -> tuple[TrendRow, ...]:
    """Return one row per baseline, phase end, generation end and manual snapshot, without nested phases.

    If the run counts no generations, the last snapshot of each second or minute also has a row.
    """
    rows: list[TrendRow] = []
    ends = _ends_of_time(history)
    before: int | None = None
    same: dict[str | None, int] = {}
    memory = history.series.get(MEMORY, ())
    for i, value in enumerate(memory):
        phase, kind = history.phase[i], history.kind[i]
        if value is None or "/" in (phase or "") or not (kind in TREND_KINDS or i in ends):
            continue
        now = int(value)
        comparable = kind in ("phase_end", "generation_end")
        earlier = same.get(phase) if comparable else None
        rows.append(
            TrendRow(
                history.label[i], now,
                None if before is None else now - before,
                None if earlier is None else now - earlier,
            )
        )  # fmt: skip
        before = now
        if comparable:
            same[phase] = now
    return tuple(rows)


def _ends_of_time(history: ProcessHistory) -> frozenset[int]:
    """Return the position of the last snapshot in each second or minute.

    Returns an empty set if the run counts generations.
    """
    if not history.unit_seconds or any(stated is not None for stated in history.generation):
        return frozenset()
    of_rows = generations_of(history.generation, history.monotonic, history.unit_seconds)
    return frozenset({stated: i for i, stated in enumerate(of_rows)}.values())


def _newest_values(history: ProcessHistory) -> dict[str, int | float]:
    values = {
        name: value
        for name, column in history.series.items()
        if (value := newest(column)) is not None
    }
    if PEAK in values:
        # Take the maximum, because each snapshot reports the peak since the previous snapshot.
        values[PEAK] = max(value for value in history.series[PEAK] if value is not None)
    return values


def _phase_peaks(history: ProcessHistory) -> tuple[tuple[str, int], ...]:
    """Return the highest resident memory of each phase over all executions that ended with a snapshot."""
    found: dict[str, int] = {}
    for phase, value in zip(history.phase, history.series.get(PHASE_PEAK, ()), strict=False):
        if phase and value is not None:
            found[phase] = max(found.get(phase, 0), int(value))
    return tuple(sorted(found.items(), key=lambda row: (-row[1], row[0])))


def _mean_of(column: Sequence[Value]) -> float | None:
    known = [value for value in column if value is not None]
    return sum(known) / len(known) if known else None


def newest(column: Sequence[Value]) -> int | float | None:
    return next((value for value in reversed(column) if value is not None), None)


def _objects(
    history: ProcessHistory, run: RunHistory, start: int, verdict: Verdict
) -> tuple[ObjectChange, ...]:
    from ..analysis import type_growth
    from ..analysis.findings.growth_tables import blamed_types, change_rating
    from ..analysis.status import GROWING

    known = {growth.name: growth for growth in type_growth(run)}
    blamed = blamed_types(
        known.values(), [to_json(f) for f in verdict.findings if f.status in GROWING]
    )
    rows = []
    for series, column in history.series.items():
        name = counted_type(series)
        seen = [int(value) for value in column[start:] if value is not None]
        if name is None or not seen:
            continue
        growth = known.get(name)
        rows.append(
            ObjectChange(
                name, seen[0], seen[-1],
                None if growth is None else growth.expected,
                change_rating(
                    "steady" if growth is None else growth.rating, seen[-1] - seen[0], len(seen),
                    verdict.status, is_blamed=name in blamed,
                ),
            )
        )  # fmt: skip
    return tuple(
        sorted(rows, key=lambda row: (row.expected is None, -abs(row.last - row.first), row.name))
    )
