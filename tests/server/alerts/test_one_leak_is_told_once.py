"""A thousand generations of one leak, examined after each: hardly more than one incident, and nothing told twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from leakline.analysis import RunHistory
from leakline.analysis.history import ProcessHistory, Value
from leakline.analysis.thinning import thinned
from leakline.snapshot import RunHeader
from leakline_server.paths import MIGRATIONS
from leakline_server.store import joining
from leakline_server.store.engine import Engine, open_engine
from leakline_server.store.history import revision
from leakline_server.store.migrate import upgrade
from leakline_server.store.tables import alerts, incidents
from leakline_server.workers.examine import Examiner, Wakes

MIB = 2**20
STARTED = 1_760_000_000.0
# So that all of them are within a day.
SECONDS_EACH = 60.0
PHASES = ("evaluate_population", "train_population")
ENVIRONMENTS = "type.trading.TradingEnvironment.count"


OPENED = ["incident.suspected", "incident.confirmed"]


class Training:
    """The run so far, a generation longer with each step: ``leaks`` says what one keeps in its first phase, in MiB."""

    def __init__(self, leaks: Callable[[int], float], noise_mib: float) -> None:
        self._leaks, self._noise = leaks, noise_mib * MIB
        self._draw = random.Random(11)
        self._kept = 0.0
        self._kinds: list[str] = []
        self._phases: list[str | None] = []
        self._generations: list[int | None] = []
        books = ("evaluate_population", "train_population", "between")
        self._series: dict[str, list[Value]] = {
            name: []
            for name in (
                "process.anon_bytes",
                "process.rss_bytes",
                ENVIRONMENTS,
                "generation.seconds",
                *(f"phase.{name}.bytes" for name in books),
                *(f"phase.{name}.executions" for name in books[:2]),
            )
        }

    def go_on(self, generation: int) -> None:
        kept = self._leaks(generation) * MIB
        self._kept += kept
        for phase in PHASES:
            self._add("phase_end", generation, phase, {})
        books = {f"phase.{PHASES[0]}.bytes": round(kept), f"phase.{PHASES[1]}.bytes": 0}
        executions: dict[str, Value] = {f"phase.{phase}.executions": 1 for phase in PHASES}
        ended = {**books, **executions, "phase.between.bytes": 0, "generation.seconds": 4.0}
        self._add("generation_end", generation, None, ended)

    def _add(self, kind: str, generation: int, phase: str | None, more: dict[str, Value]) -> None:
        warm_up = 40 * MIB * (1 - 0.5 ** (generation + 1))
        private = 500 * MIB + warm_up + self._kept + self._draw.gauss(0, self._noise)
        values: dict[str, Value] = {
            "process.anon_bytes": round(private),
            "process.rss_bytes": round(private + 90 * MIB),
            ENVIRONMENTS: 2 + 16 * round(self._kept / MIB),
            **more,
        }
        for name, column in self._series.items():
            column.append(values.get(name))
        self._kinds.append(kind)
        self._phases.append(phase)
        self._generations.append(generation)

    def history(self) -> RunHistory:
        n = len(self._kinds)
        times = [20.0 * i for i in range(n)]
        process = ProcessHistory(
            "p", 0, "main", 1, range(n), times, times, self._generations, self._phases, [""] * n,
            self._kinds, self._series,
        )  # fmt: skip
        return thinned(RunHistory("r1", phases=PHASES, processes=(process,)))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = open_engine(f"sqlite:///{tmp_path}/x.db", "normal")
    upgrade(engine, MIGRATIONS)
    joining.join_run(engine, RunHeader("r1", "p", "r1", "generation", None, STARTED), STARTED)
    return engine


def watch(
    engine: Engine, training: Training, monkeypatch: pytest.MonkeyPatch, generations: int
) -> list[tuple[str, str, float]]:
    """Examine after each generation. (incident, event, seconds since the start) of what was told of incidents."""
    at = "leakline_server.workers.looking.load_for_examination"
    monkeypatch.setattr(at, lambda engine, run_id: (training.history(), revision(engine, run_id)))
    now = STARTED
    examiner = Examiner(engine, 600.0, Wakes(lambda _: None, lambda: None), now=lambda: now)
    for generation in range(generations):
        training.go_on(generation)
        now += SECONDS_EACH
        examiner.examine("r1")
    query = select(alerts).where(alerts.c.incident_id.is_not(None)).order_by(alerts.c.created_at)
    with engine.connect() as connection:
        return [
            (row.incident_id, row.event, row.created_at - STARTED)
            for row in connection.execute(query)
        ]


@pytest.mark.long
def test_a_thousand_generations_of_one_leak_are_one_incident_and_two_messages(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = watch(engine, Training(lambda generation: 10, 2), monkeypatch, 1_000)
    assert [event for _, event, _ in told] == OPENED
    with engine.connect() as connection:
        leaking = connection.scalars(
            select(incidents.c.status).where(incidents.c.status.in_(("suspected", "confirmed")))
        ).all()
    assert leaking == ["confirmed"]


def test_a_leak_that_is_lost_in_the_noise_and_found_again_is_told_no_more_often(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the noise: the verdict calls it recovered three times within its first hundred generations."""
    told = watch(engine, Training(lambda generation: 1, 4), monkeypatch, 200)
    assert [event for _, event, _ in told] == OPENED
    assert len({incident for incident, _, _ in told}) == 1


def test_a_leak_that_comes_and_goes_is_not_told_each_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty generations with it, twenty without, and so on."""
    training = Training(lambda generation: 10.0 * (generation // 20 % 2), 2)
    told = watch(engine, training, monkeypatch, 300)
    of_each = Counter((incident, event) for incident, event, _ in told)
    assert of_each and max(of_each.values()) == 1, "told again within a day"
