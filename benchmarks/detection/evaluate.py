"""Evaluate all detectors on one run: when each alarmed first, and the errors of ours. Generations, bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from leakline.analysis import examine
from leakline.analysis.results import Finding
from leakline.analysis.status import ACTIVE

from .baselines import BASELINES, strengths
from .cases import Case, Leak
from .generators import Draw, drawn
from .histories import Recording
from .online import Level, Look, looks

SOON: Final = 15  # generations within which a fast leak should be suspected
FAST: Final = 0.02  # share of the baseline per generation
# A run that runs out of memory should be warned with at least this share of its life left.
AHEAD: Final = 0.20
_START_WITHIN: Final = (2.0, 0.10)  # generations, share of the leak's age
_CHUNK: Final = 4


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast half-way from the start of the leak to the end. ``error`` is a share of the remaining generations.

    ``error`` and ``covered`` are None when nothing was forecast.
    """

    error: float | None = None
    covered: bool | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of all detectors on one run. Positions are indexes of readings, from 0.

    In a healthy run ``suspected`` and ``confirmed`` are the first such examinations, in a leaking run the first since
    the start of the leak; ``early`` is an alarm before it. ``undeclared`` is ``suspected`` and ``confirmed`` without
    declared capacities. ``baselines`` are the first alarms of the other detectors in the same range, ``strongest``
    their maximum strength.
    """

    family: str
    number: int
    readings: int
    start: int | None = None
    slope: float = 0.0
    suspected: int | None = None
    confirmed: int | None = None
    early: bool = False
    declares: bool = False
    undeclared: tuple[int | None, int | None] = (None, None)
    has_witness: bool = False
    with_witness: int | None = None
    baselines: Mapping[str, int | None] = field(default_factory=dict)
    strongest: Mapping[str, float] = field(default_factory=dict)
    start_off: float | None = None
    start_ok: bool | None = None
    rate_off: float | None = None
    forecast: Forecast | None = None
    warned: bool | None = None

    @property
    def leaks(self) -> bool:
        return self.start is not None

    @property
    def age(self) -> int:
        """Generations from the start of the leak to the end of the run."""
        return 0 if self.start is None else self.readings - self.start

    @property
    def is_fast(self) -> bool:
        return self.slope >= FAST and self.age > SOON

    def was_soon(self, at: int | None) -> bool:
        """Return True if this reading is at most `SOON` generations after the start."""
        return at is not None and self.start is not None and at - self.start <= SOON


def outcomes(draws: Iterable[Draw], jobs: int | None = None) -> Iterator[Outcome]:
    """Yield the outcomes in the order of the draws, however many processes share the work."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from map(evaluated, draws)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(evaluated, draws, chunksize=_CHUNK)


def evaluated(draw: Draw) -> Outcome:
    case = drawn(draw)
    return _leaking(case, draw.number) if case.leak else healthy(case, draw.number)


def healthy(case: Case, number: int) -> Outcome:
    """Evaluate a run that does not leak: every alarm is a false one."""
    baselines, strongest = _baselines(case, 0)
    seen = looks(case)
    unsaid = looks(case, declared=False) if case.capacities else seen
    return Outcome(
        case.family, number, len(case),
        suspected=first_at(seen, "suspected"), confirmed=first_at(seen, "confirmed"),
        declares=bool(case.capacities),
        undeclared=(first_at(unsaid, "suspected"), first_at(unsaid, "confirmed")),
        baselines=baselines, strongest=strongest,
    )  # fmt: skip


def _leaking(case: Case, number: int) -> Outcome:
    leak = case.leak
    assert leak is not None
    seen = looks(case)
    start_off, start_ok, rate_off = _accuracy(case, leak)
    baselines, strongest = _baselines(case, leak.start)
    found = Outcome(
        case.family, number, len(case), leak.start, leak.slope,
        first_at(seen, "suspected", leak.start), first_at(seen, "confirmed", leak.start),
        any(look.level for look in seen[: leak.start]),
        has_witness=bool(case.witness), baselines=baselines, strongest=strongest,
        start_off=start_off, start_ok=start_ok, rate_off=rate_off,
        forecast=_forecast(case, leak), warned=_warned(case, seen),
    )  # fmt: skip
    return _with_witness(found, case) if found.is_fast and case.witness else found


def _with_witness(found: Outcome, case: Case) -> Outcome:
    assert found.start is not None
    seen = looks(case, witness=True, end=found.start + SOON + 1)
    return replace(found, with_witness=first_at(seen, "suspected", found.start))


def first_at(seen: Sequence[Look], level: Level, start: int = 0) -> int | None:
    """Return the first reading since ``start`` whose status was this level or above."""
    wanted = ("confirmed",) if level == "confirmed" else ACTIVE
    return next((i for i, look in enumerate(seen) if i >= start and look.level in wanted), None)


def _baselines(case: Case, start: int) -> tuple[dict[str, int | None], dict[str, float]]:
    """Return (first alarm, maximum strength) of each baseline detector since the start."""
    alarmed: dict[str, int | None] = {}
    strongest: dict[str, float] = {}
    for name in BASELINES:
        sure, critical = strengths(name, case.seen, case.limit_bytes)
        alarmed[name] = next((i for i in range(start, len(sure)) if sure[i] >= critical), None)
        strongest[name] = max(sure[start:])
    return alarmed, strongest


def _accuracy(case: Case, leak: Leak) -> tuple[float | None, bool | None, float | None]:
    """Return (error of the start in generations, is close, relative error of the rate) at the end of the run."""
    verdict = examine(Recording(case).until(len(case)))
    active = [finding for finding in verdict.findings if finding.status in ACTIVE]
    if not active:
        return None, None, None
    off = _start_off(active, leak)
    least, share = _START_WITHIN
    close = None if off is None else off <= max(least, share * (len(case) - leak.start))
    told = sum(finding.growth_bytes_per_generation.estimate for finding in active)
    truth = leaked_rate(leak, len(case), case.baseline)
    return off, close, abs(told - truth) / truth


def _start_off(active: Sequence[Finding], leak: Leak) -> float | None:
    starts = [f.started_at_generation.estimate for f in active if f.started_at_generation]
    return abs(min(starts) - leak.start) if starts else None


def leaked_rate(leak: Leak, end: int, baseline: float) -> float:
    """Return the true loss in bytes per generation from the start to reading ``end``, by least squares."""
    points = leak.shares[leak.start : end]
    middle, mean = (len(points) - 1) / 2, sum(points) / len(points)
    across = sum((i - middle) * (share - mean) for i, share in enumerate(points))
    return baseline * across / sum((i - middle) ** 2 for i in range(len(points)))


def _forecast(case: Case, leak: Leak) -> Forecast:
    assert case.out_at is not None
    half = leak.start + (case.out_at - leak.start) // 2
    told = examine(Recording(case).until(half + 1)).oom.generation
    if told is None:
        return Forecast()
    error = abs(told.estimate - case.out_at) / (case.out_at - half)
    return Forecast(error, told.low <= case.out_at <= told.high)


def _warned(case: Case, seen: Sequence[Look]) -> bool:
    """Return True if a warning came while at least `AHEAD` of the run was left."""
    assert case.out_at is not None
    in_time = int((1 - AHEAD) * (case.out_at + 1))
    return any(look.warned for look in seen[:in_time])
