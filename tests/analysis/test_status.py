"""When a growth becomes suspected, confirmed and recovered; a series that is not read lowers no status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from builder import MIB, Training, curve, history_of, kept_environments, loss_graph
from pieces import assessed, candidate, cause_of, ends_history, ends_timeline, growing, sure

from leakline.analysis import RunHistory, examine
from leakline.analysis.attribution.causes import Cause
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.memory.memory_kinds import Channel
from leakline.analysis.results import SEVERITY, Kind, Status
from leakline.analysis.run_history import LeftOut, Spans, Value
from leakline.analysis.statistics.memory_evidence import Rise, Scale
from leakline.analysis.statistics.trend import NO_GROWTH, Slope
from leakline.analysis.status import (
    ACTIVE,
    _by_counts,
    _by_memory,
    _Memory,
    _quiet,
    _successor,
    confirmations,
    level,
    moments_in,
    moments_of,
    step,
    still_counted,
    walk,
)
from leakline.analysis.timeline import Known, timelines_of
from leakline.analysis.timeline_analysis import Assessed, Moment, TimelineAnalysis
from leakline.snapshot import Holder

ENVS = candidate("app.Env", "object")


class _Seen:
    """Stand-in for an analysis that only knows how long memory has risen at each moment."""

    channels = (Channel("children.uss_bytes", "children", (0.0,)),)
    timeline = timelines_of(history_of([0.0] * 40))[0]

    def __init__(
        self, strict: Callable[[int], int], of_channel: int = 0, counted: float = 0.0
    ) -> None:
        self._strict, self._of_channel, self._counted = strict, of_channel, counted
        self.known = Known()

    def rise(self, end: int) -> Rise:
        return Rise(strict=self._strict(end))

    def readings(self, channel: str) -> range:
        return range(1000)

    def residual(self, end: int) -> list[float]:
        """Return memory that keeps rising; its end is tested with histories."""
        return [1e6 * at for at in range(end)]

    def counted_in(self, cause: Cause) -> None:
        """Return None: the series is unknown, and the age of counts is tested with histories."""

    def counts_between(self, cause: Cause, first: int, end: int) -> list[float]:
        return [self._counted * at for at in range(first, end)]

    def channel_rise(self, channel: Channel, end: int) -> Rise:
        assert channel is self.channels[0]
        return Rise(strict=self._of_channel)


def _study(
    strict: int | Callable[[int], int] = 0, of_channel: int = 0, counted: float = 0.0
) -> TimelineAnalysis:
    """Return an analysis. ``counted``: by how much a count rises per generation."""
    seen = strict if callable(strict) else lambda end: strict
    return cast(TimelineAnalysis, _Seen(seen, of_channel, counted))


def _moment(end: int, *causes: Assessed) -> Moment:
    return Moment(end, causes, Rise(), NO_GROWTH, Scale(1000.0), ())


@pytest.mark.parametrize(
    ("generations", "old", "first_recent"),
    [
        (32, [], 1), (48, [8, 16], 17), (200, list(range(16, 169, 16)), 169),
        (400, list(range(32, 369, 32)), 369),
    ],
)  # fmt: skip
def test_the_newest_32_moments_and_24_older_ones_are_examined(
    generations: int, old: list[int], first_recent: int
) -> None:
    assert moments_of(generations) == [*old, *range(first_recent, generations + 1)]
    # Their number stays small, and old moments do not change.
    assert all(len(moments_of(n)) <= 64 for n in (1_000, 100_000))
    assert moments_of(1000)[:10] == moments_of(1010)[:10]


def _thinned(first: int, last: int) -> Any:
    """Return a timeline with ``first`` generations, many thinned ones, and the last ``last``."""
    timeline = ends_timeline({"process.anon_bytes": [1000] * (first + last)})
    generations = (*range(first), *range(9000 - last, 9000))
    return replace(
        timeline, generations=generations, left_out=LeftOut(Spans.of(range(first, 9000 - last)))
    )


def test_moments_whose_rate_needs_thinned_generations_are_skipped() -> None:
    """A rate uses 256 generations."""
    recent = list(range(379, 411))
    assert moments_in(_thinned(10, 400)) == [288, 320, 352, *recent]
    assert moments_in(_thinned(31, 379)) == [288, 320, 352, *recent]
    assert moments_in(_thinned(32, 378)) == [320, 352, *recent]
    # The newest 32 are always examined.
    assert moments_in(_thinned(200, 210)) == moments_in(_thinned(122, 288)) == recent
    assert moments_in(ends_timeline({"process.anon_bytes": [1000] * 40})) == moments_of(40)


@pytest.mark.parametrize(
    ("strict", "end", "found"),
    [
        (lambda end: 8, 20, 5), (lambda end: 8 if end > 18 else 7, 20, 2),
        (lambda end: 8 if end > 15 else 7, 20, 5), (lambda end: 8 if end > 16 else 7, 20, 4),
    ],
    ids=["five", "two", "five of five", "four"],
)  # fmt: skip
def test_consecutive_moments_are_counted_back_up_to_five(
    strict: Callable[[int], int], end: int, found: int
) -> None:
    assert confirmations(_study(strict), assessed(cause_of(ENVS)), end, 8) == found


def test_growth_elsewhere_is_confirmed_by_its_own_channel() -> None:
    child = assessed(cause_of(kind="children"), channel="children.uss_bytes")
    assert confirmations(_study(0, 8), child, 20, 8) == 5
    assert confirmations(_study(8, 0), child, 20, 8) == 0
    assert confirmations(_study(8, 0), assessed(cause_of(ENVS)), 20, 8) == 5


def _since(first: int, strict: int) -> Callable[[int], int]:
    return lambda end: strict if end >= first else 0


@pytest.mark.parametrize(
    ("strict", "rise", "witnesses", "status"),
    [
        (24, Rise(strict=24), (), "confirmed"), (24, Rise(strict=23), (), "suspected"),
        (_since(47, 24), Rise(strict=24), (), "suspected"), (_since(48, 24), Rise(strict=24), (), None),
        (12, Rise(strict=12), (), "suspected"), (12, Rise(strict=11), (), None), (11, Rise(strict=12), (), None),
        (0, Rise(window=16), ("counts", "measured"), "confirmed"),
        (0, Rise(window=15), ("counts", "measured"), "suspected"),
        (0, Rise(window=16), ("counts", "container"), "confirmed"),
        (0, Rise(window=16), ("counts", "steady"), "suspected"), (0, Rise(window=8), ("measured",), "suspected"),
        (0, Rise(window=7), ("measured", "counts", "container"), None), (0, Rise(window=16), (), None),
        (0, Rise(window=8), ("steady",), None),
    ],
    ids=["24 for five moments", "23", "for four moments", "for three", "12 for four", "11", "not before",
         "16 with two witnesses", "15 with two", "a list", "one witness", "8 with one", "7", "none", "no witness"],
)  # fmt: skip
def test_memory_alone_takes_long_and_witnesses_shorten_it(
    strict: int | Callable[[int], int], rise: Rise, witnesses: tuple[str, ...], status: Status | None
) -> None:  # fmt: skip
    a = assessed(cause_of(ENVS, rate=9.0), *witnesses, rise=rise)
    assert _by_memory(_study(strict), a, 50) == status


DECLARED = replace(ENVS, declared=True)
OVERFULL = candidate("experience", "container", overfull=True)
SEEN = sure(9.0, points=5)


@pytest.mark.parametrize(
    ("owner", "measured", "rate", "witnesses", "status"),
    [
        (ENVS, 0.5, SEEN, ("counts",), "suspected"), (ENVS, 0.5, SEEN, (), None),
        (ENVS, 0.49, SEEN, ("counts",), None), (ENVS, 0.5, sure(9.0, points=4), ("counts",), None),
        (ENVS, 0.5, Slope(9.0, 0.0, 20.0, 5), ("counts",), None),
        (ENVS, 0.49, sure(9.0, points=4), ("counts", "steady"), None),
        (ENVS, None, SEEN, ("counts", "together"), "suspected"), (ENVS, None, SEEN, ("counts", "steady"), None),
        (replace(DECLARED, family="graph"), None, SEEN, ("counts",), "suspected"),
        (replace(DECLARED, family="plain"), None, SEEN, ("counts",), None),
        (OVERFULL, None, SEEN, ("counts",), "suspected"), (OVERFULL, None, SEEN, (), None),
        (OVERFULL, None, Slope(9.0, 0.0, 20.0, 5), ("counts",), None),
    ],
)  # fmt: skip
def test_counts_alone_need_bytes_measured_or_visible_in_memory(
    owner: Any, measured: float | None, rate: Slope, witnesses: tuple[str, ...], status: Status | None
) -> None:  # fmt: skip
    a = assessed(cause_of(owner, measured=measured, rate=rate), *witnesses)
    assert _by_counts(a) == status


@pytest.mark.parametrize(
    ("kind", "worker", "kept", "rate", "status"),
    [
        ("children", 12.0, 4.0, sure(9.0, 3), "suspected"), ("children", 4.0, 12.0, sure(9.0, 3), "suspected"),
        ("children", 11.0, 11.0, sure(9.0, 3), None), ("children", 12.0, 12.0, Slope(9.0, -1.0, 20.0, 3), None),
        ("objects", 12.0, 12.0, sure(9.0, 3), None),
    ],
)  # fmt: skip
def test_counts_of_processes_need_few_readings_of_their_memory(
    kind: Kind, worker: float, kept: float, rate: Slope, status: Status | None
) -> None:
    """However late one process was counted, the list that holds them has grown equally long."""
    pool = candidate("multiprocessing.pool.Pool", "library", growth=growing(generations=worker))
    pools = candidate("app.Folds.pools", "container", growth=growing(generations=kept))
    a = assessed(cause_of(pool, pools, kind=kind, measured=0.01, rate=rate), "counts", "steady")
    assert _by_counts(a) == status


@pytest.mark.parametrize(
    ("rate", "status"),
    [
        (sure(9.0), "suspected"), (sure(0.49), "suspected"), (sure(0.04), "ok"),
        (Slope(0.3, 0.0, 0.6, 16), "watch"),
    ],
)  # fmt: skip
def test_growth_beyond_a_declared_capacity_is_suspected(rate: Slope, status: Status) -> None:
    a = assessed(cause_of(OVERFULL, rate=rate), "counts")
    assert level(_study(), a, 30)[0] == status


@pytest.mark.parametrize(
    ("witnesses", "rate", "more", "reached"),
    [
        (("contract", "steady"), sure(0.5), {"window": 50.0}, ("confirmed", 5)),
        (("contract", "steady"), sure(9.0), {"window": 8.0}, ("confirmed", 5)),
        (("contract", "steady"), sure(9.0), {"window": 7.9}, ("suspected", 5)),
        (("contract",), sure(9.0), {}, ("suspected", 5)),
        (("contract",), sure(9.0), {"rise": Rise(window=16), "extra": ("counts", "measured")}, ("confirmed", 5)),
        (("contract",), sure(9.0), {"rise": Rise(window=8), "extra": ("counts", "measured")}, ("suspected", 5)),
        (("contract", "steady"), sure(9.0), {"garbage": 5000.0}, ("watch", 0)),
        (("explosion",), sure(9.0), {}, ("suspected", 5)), (("explosion",), sure(0.1), {}, ("ok", 5)),
        (("counts", "measured"), sure(9.0), {"passing": True, "rise": Rise(window=8)}, ("watch", 0)),
        (("counts",), sure(0.49), {}, ("watch", 5)), (("counts",), sure(0.04), {}, ("ok", 5)),
        (("counts",), sure(0.05), {}, ("watch", 5)),
        ((), sure(0.49), {}, ("ok", 5)), (("counts",), sure(9.0), {}, ("watch", 5)),
        (("counts", "together"), sure(9.0), {}, ("suspected", 5)),
    ],
    ids=["a broken count", "for 8 generations", "for less", "not steady", "sure by memory", "by memory only suspected",
         "garbage", "an explosion", "a small one", "waits for the collector", "small", "trivial", "not quite trivial",
         "uncounted", "counts alone", "with memory"],
)  # fmt: skip
def test_the_status_that_a_growth_reaches(
    witnesses: tuple[str, ...], rate: Slope, more: dict[str, Any], reached: tuple[Status, int]
) -> None:
    """At a baseline of 1,000 bytes 0.5 bytes in each of 50 generations matter, and a twentieth of that is trivial."""
    said = {**more}
    a = assessed(cause_of(ENVS, rate=rate), *witnesses, *said.pop("extra", ()), **said)
    assert level(_study(8), a, 50) == reached


def test_trivial_unattributed_growth_is_ok() -> None:
    a = assessed(cause_of(kind="native", rate=0.3), "counts")
    assert level(_study(), a, 50) == ("ok", 0)


@pytest.mark.parametrize(
    ("witnesses", "more", "counted"),
    [
        (("counts",), {}, True), ((), {}, False), (("counts",), {"garbage": 1.0}, False),
        (("counts",), {"passing": True}, False),
    ],
)  # fmt: skip
def test_a_count_that_still_rises_is_not_a_recovery(
    witnesses: tuple[str, ...], more: dict[str, Any], counted: bool
) -> None:
    assert still_counted(assessed(cause_of(ENVS), *witnesses, **more)) == counted


def _active(*witnesses: str, at: int | None = 20) -> _Memory:
    return _Memory(assessed(cause_of(ENVS), *witnesses), "suspected", 3, at, "suspected")


@pytest.mark.parametrize(
    ("witnesses", "end", "status"),
    [
        (("counts",), 23, "suspected"),
        (("counts",), 24, "recovered"),
        (("steady",), 27, "suspected"),
        (("steady",), 28, "recovered"),
    ],
)
def test_a_leak_recovers_after_four_quiet_counts_or_eight_readings(
    witnesses: tuple[str, ...], end: int, status: Status
) -> None:
    memory = _active(*witnesses)
    _quiet(_study(), memory, _moment(end), assessed(cause_of(ENVS)), "ok")
    assert (memory.status, memory.confirmations) == (status, 3)


@pytest.mark.parametrize(("flat", "status"), [(5, "suspected"), (8, "recovered")])
def test_memory_flat_for_eight_generations_has_recovered(flat: int, status: Status) -> None:
    # A fragmenting free list: 50 MiB in twenty generations, and then no growth.
    memory = [2.5 * MIB * min(generation, 20) for generation in range(21 + flat)]
    study = TimelineAnalysis(history_of(memory), timelines_of(history_of(memory))[0])
    _, standings = walk(study)
    assert [(s.assessed.cause.kind, s.status) for s in standings] == [("native", status)]


@pytest.mark.parametrize(("left", "status"), [(0, "recovered"), (2, "recovered"), (9, "confirmed")])
def test_objects_that_are_released_have_recovered_at_once(left: int, status: Status) -> None:
    """Closed figures wait for the collector, which frees them in the last generation but one."""
    figures = [*range(2, 19), left, left + 1]
    history = history_of(
        [10.0 * MIB * count for count in figures], **{"type__app.Figure__count": figures}
    )
    figure = Holder(0, "app.Figure", "app.figures[*]", 18, 10 * MIB)
    assert status_of(replace(history, holders=(figure,))) == status
    until_the_first = history_of(
        [10.0 * MIB * count for count in figures[:-1]], **{"type__app.Figure__count": figures[:-1]}
    )
    assert status_of(replace(until_the_first, holders=(figure,))) == "confirmed"


def test_closed_figures_that_are_freed_have_recovered() -> None:
    """None of them is open, so the other count of figures stays at 0."""
    name, figures = "matplotlib.figure.Figure", [*range(2, 19), 0, 1]
    history = history_of(
        [10.0 * MIB * count for count in figures],
        **{f"type__{name}__count": figures, "figures__open": [0] * len(figures)},
    )
    held = Holder(0, name, "app.figures[*]", 18, 10 * MIB)
    assert status_of(replace(history, holders=(held,))) == "recovered"


def test_memory_that_rises_in_steps_keeps_its_status_between_steps() -> None:
    memory = [20.0 * MIB * (generation // 8) for generation in range(48)]
    study = TimelineAnalysis(history_of(memory), timelines_of(history_of(memory))[0])
    for end in range(24, 49):
        _, standings = walk(study, range(1, end))
        assert "recovered" not in {s.status for s in standings}, end


@pytest.mark.parametrize(("end", "status"), [(27, "suspected"), (28, "recovered")])
def test_readings_of_a_rising_count_are_not_quiet(end: int, status: Status) -> None:
    memory = _active("counts")
    _quiet(_study(counted=2.0), memory, _moment(end), assessed(cause_of(ENVS)), "ok")
    assert memory.status == status


def test_a_count_that_still_rises_keeps_the_status() -> None:
    memory = _active("counts")
    _quiet(_study(), memory, _moment(30), assessed(cause_of(ENVS), "counts"), "watch")
    assert (memory.status, memory.last_active) == ("suspected", 30)
    for status, witnesses in (("ok", ("counts",)), ("watch", ())):
        memory = _active("counts")
        _quiet(
            _study(),
            memory,
            _moment(30),
            assessed(cause_of(ENVS), *witnesses),
            cast(Status, status),
        )
        assert (memory.status, memory.last_active) == ("recovered", 20)


AGENTS = candidate("app.Agent", "object")


@pytest.mark.parametrize(
    ("before", "now", "taken"),
    [
        (cause_of(), cause_of(AGENTS, rate=0.5), True),
        (cause_of(), cause_of(AGENTS, rate=0.4), False),
        (cause_of(ENVS), cause_of(AGENTS, ENVS), True),
        (cause_of(ENVS), cause_of(AGENTS, rate=9.0), False),
        (cause_of(ENVS), cause_of(), False),
    ],
    ids=["it has a name now", "too little", "another owns it", "another growth", "no name"],
)
def test_a_growth_may_continue_under_another_name(before: Any, now: Any, taken: bool) -> None:
    memory = replace(_active(), assessed=assessed(before))
    unlike = assessed(now, channel="children.uss_bytes")
    assert (_successor(memory, _moment(21, assessed(now))) is not None) == taken
    assert _successor(memory, _moment(21, unlike)) is None
    found = _successor(memory, _moment(21, unlike, assessed(now)))
    assert (found is not None) == taken
    assert _successor(memory, _moment(21)) is None


LEAK = assessed(cause_of(ENVS, rate=9.0), "explosion", "counts")
SURE = assessed(cause_of(ENVS, rate=9.0), "contract", "steady", "counts")
IDLE = assessed(cause_of(ENVS, rate=0.0))


def _after(*moments: Sequence[Assessed]) -> list[tuple[Status, int]]:
    """Return the statuses after these moments, from the twentieth on."""
    remembered: dict[str, _Memory] = {}
    for end, causes in enumerate(moments, 20):
        step(_study(8), _moment(end, *causes), remembered)
    return [(m.status, m.confirmations) for m in remembered.values()]


def test_a_confirmed_leak_is_not_downgraded_while_visible() -> None:
    assert _after([LEAK]) == [("suspected", 5)]
    assert _after([LEAK], [SURE]) == [("confirmed", 5)]
    assert _after([SURE], [LEAK]) == [("confirmed", 5)]


def test_an_unseen_leak_keeps_its_status_for_four_moments() -> None:
    assert _after([LEAK], [], [], []) == [("suspected", 5)]
    assert _after([LEAK], [], [], [], []) == [("recovered", 5)]
    assert _after([LEAK], [IDLE], [IDLE], [IDLE]) == [("suspected", 5)]
    assert _after([LEAK], [IDLE], [IDLE], [IDLE], [IDLE]) == [("recovered", 5)]
    assert _after([LEAK], [], [], [], [], [LEAK]) == [("suspected", 5)]


def test_unseen_growth_that_was_never_a_leak_is_dropped() -> None:
    assert _after([IDLE]) == [("ok", 0)]
    assert _after([IDLE], []) == []


def test_a_renamed_leak_is_dropped_under_its_old_name() -> None:
    other = assessed(cause_of(AGENTS, ENVS, rate=9.0), "explosion")
    assert _after([LEAK], [other]) == [("suspected", 5)]


def test_the_first_of_two_causes_with_one_fingerprint_counts() -> None:
    assert _after([IDLE, LEAK]) == [("ok", 0)]
    assert _after([LEAK, IDLE]) == [("suspected", 5)]


COUNTED = ("type.", "tensors.", "arrays.", "container.")
GROWING_CHANNELS = ("children__uss_bytes", "process__shared_bytes", "cuda__0__allocated_bytes")


def only(values: Sequence[float], read: Sequence[int]) -> list[float | None]:
    return [value if i in set(read) else None for i, value in enumerate(values)]


def rising(n: int, until: int | None = None) -> list[float]:
    return [200 * MIB + 25 * MIB * min(i, n if until is None else until) for i in range(n)]


def without_counts_after(history: RunHistory, last: int) -> RunHistory:
    """Return the same history without object counts after generation ``last``."""
    process = history.processes[0]
    late = [g is not None and g > last for g in process.generation]
    series = {
        name: [None if is_late else v for is_late, v in zip(late, column, strict=True)]
        if name.startswith(COUNTED)
        else column
        for name, column in process.series.items()
    }
    return replace(history, processes=(replace(process, series=series),))


def status_of(history: RunHistory) -> str:
    return examine(history).status


@pytest.mark.parametrize("channel", GROWING_CHANNELS)
def test_a_leak_that_is_no_longer_read_keeps_its_status(channel: str) -> None:
    last, flat = 20, curve(lambda i: 0.0, 70)
    before = status_of(history_of(flat[: last + 1], **{channel: rising(last + 1)}))
    assert before in ACTIVE
    for n in (last + 2, last + 9, last + 40):
        read = only(rising(n), range(last + 1))
        assert status_of(history_of(flat[:n], **{channel: read})) == before


def test_eight_flat_readings_are_a_recovery_even_if_rare() -> None:
    n, stop = 120, 30
    read = [*range(stop + 1), *range(stop + 8, n, 8)]
    rarely = only(rising(n, stop), read)
    flat = curve(lambda i: 0.0, n)
    assert status_of(history_of(flat, children__uss_bytes=rarely)) == "recovered"
    few = only(rising(n, stop), read[: stop + 5])
    assert status_of(history_of(flat, children__uss_bytes=few)) in ACTIVE
    often = rising(n, stop)
    assert status_of(history_of(flat, children__uss_bytes=often)) == "recovered"


def test_exited_children_have_recovered() -> None:
    n, stop = 60, 30
    gone = [*rising(stop), *[0.0] * (n - stop)]
    assert status_of(history_of(curve(lambda i: 0.0, n), children__uss_bytes=gone)) == "recovered"


def test_a_step_between_two_distant_readings_is_not_a_leak() -> None:
    n = 70
    step = [200.0 * MIB if i < 20 else 900.0 * MIB for i in range(n)]
    for read in ([*range(6), *range(36, n)], [0, 1, 2, 3, 30, *range(31, n)]):
        history = history_of(curve(lambda i: 0.0, n), children__uss_bytes=only(step, read))
        assert status_of(history) not in ACTIVE


@pytest.mark.parametrize(("n", "last"), [(80, 40), (150, 40), (1000, 400)])
def test_unread_private_memory_keeps_its_status(n: int, last: int) -> None:
    """Also if it was read in less than half of the snapshots, and in a run so long that it is thinned."""
    memory = curve(lambda i: 12.0 * i, n)
    silent = examine(memory_of(only(memory, range(last + 1))))
    assert (silent.status, silent.settled_at_generation) == ("confirmed", None)
    flat = [memory[min(i, last)] for i in range(n)]
    assert status_of(memory_of(only(flat, [*range(last + 1), *range(n - 12, n)]))) == "recovered"


@pytest.mark.parametrize(
    ("n", "last", "again"), [(80, 40, 60), (146, 40, 138), (150, 40, 138), (162, 40, 138), (1000, 400, 988)]
)  # fmt: skip
def test_private_memory_rising_after_a_gap_stays_confirmed(n: int, last: int, again: int) -> None:
    """Also while the readings since then are too few to prove growth by themselves."""
    memory = curve(lambda i: 12.0 * i, n)
    assert status_of(memory_of(only(memory, [*range(last + 1), *range(again, n)]))) == "confirmed"


@pytest.mark.parametrize("n", [150, 162, 174])
def test_growth_that_ended_in_a_gap_has_recovered(n: int) -> None:
    memory = curve(lambda i: 12.0 * min(i, 40) + (i % 3) / 4, n)
    read = [*range(41), *range(138, n)]
    assert status_of(memory_of(only(memory, read))) == "recovered"
    # Memory is far higher than before and flat since: growth may have ended anywhere in the gap.
    jumped = curve(lambda i: 12.0 * min(i, 100), n)
    assert status_of(memory_of(only(jumped, read))) == "recovered"


def test_an_unread_count_is_no_recovery_while_memory_rises() -> None:
    for leak in (kept_environments(), loss_graph()):
        whole = Training(leaks=(leak,), generations=40).history()
        assert status_of(without_counts_after(whole, 20)) in ACTIVE
        stopped = Training(leaks=(replace(leak, stop=21),), generations=40).history()
        assert status_of(stopped) == "recovered"


def arrays_counted_until(last: int, *, kept: int | None, generations: int = 30) -> RunHistory:
    """Return a run with 12 more arrays of 190 KiB per generation, at most ``kept``; all counts end at ``last``."""
    arrays = [min(12 * (i + 1), kept or 12 * generations) for i in range(generations)]
    size = [190 * 1024 * count for count in arrays]
    read = range(last + 1)
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [29 * MIB + s + (i % 3) * MIB // 8 for i, s in enumerate(size)],
        "allocator.in_use_bytes": [10 * MIB + s + (i % 4) * MIB // 6 for i, s in enumerate(size)],
        "type.numpy.ndarray.count": only([5 + count for count in arrays], read),
        "arrays.bytes": only(size, read),
    }
    return ends_history(series)


@pytest.mark.parametrize(("last", "n"), [(6, 24), (8, 19)])
def test_flat_memory_ends_growth_whose_count_is_no_longer_read(last: int, n: int) -> None:
    """Full after ten generations, and flat for at least eight since the last count."""
    assert status_of(arrays_counted_until(last, kept=120, generations=n)) == "recovered"
    assert status_of(arrays_counted_until(last, kept=None, generations=n)) in ACTIVE


@pytest.mark.parametrize(
    ("memory", "arrays", "each", "read", "ends"),
    [
        # Arrays of zeros with a fifth of their pages written: memory rises by a fifth of their bytes.
        (lambda i: 2 * i + (i % 3) / 8, lambda i: 2 * i, 5, range(28), (40, 60)),
        # One array of 30 MiB every ten generations, counted every 16.
        (lambda i: 30 * (i // 10), lambda i: i // 10, 30, range(0, 70, 16), (66, 69, 70)),
        # A sawtooth with a period of 40 generations that rises with a leak of 2 MiB.
        (lambda i: 2 * i + 3 * min(i % 40, 40 - i % 40), lambda i: i, 2, range(28), (60, 68, 88)),
    ],
    ids=["overstated by the count", "in steps", "falls for a while"],
)
def test_growth_visible_in_memory_continues_between_rare_counts(
    memory: Callable[[int], float], arrays: Callable[[int], int], each: int, read: range, ends: tuple[int, ...]
) -> None:  # fmt: skip
    for n in ends:
        series: dict[str, Sequence[Value]] = {
            "process.anon_bytes": [round((100 + memory(i)) * MIB) for i in range(n)],
            "type.numpy.ndarray.count": only([5 + arrays(i) for i in range(n)], read),
            "arrays.bytes": only([each * MIB * arrays(i) for i in range(n)], read),
        }
        assert status_of(ends_history(series)) in ACTIVE, n


@pytest.mark.parametrize("goes_on", [True, False])
def test_unread_graphs_recover_with_the_number_of_tensors(goes_on: bool) -> None:
    """Memory keeps creeping up, because the allocator keeps what graphs of other sizes leave."""
    n, full, last = 30, 10, 6
    kept = [40 * (i + 1 if goes_on else min(i + 1, full)) for i in range(n)]
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [160 * MIB + 65_000 * k + i * MIB // 2 for i, k in enumerate(kept)],
        "type.torch.Tensor.count": [100 + k for k in kept],
        "tensors.graph_count": only(kept, range(last + 1)),
        "tensors.graph_bytes": only([60_000 * k for k in kept], range(last + 1)),
    }
    status = status_of(ends_history(series))
    assert (status in ACTIVE) is goes_on


@pytest.mark.parametrize(("goes_on", "expected"), [(True, "confirmed"), (False, "recovered")])
def test_a_leak_into_memory_kept_by_the_allocator_continues(goes_on: bool, expected: str) -> None:
    """Private memory stays constant while freed memory is reused; memory in use by the program rises meanwhile."""
    n, stop = 60, 30
    in_use = rising(n, None if goes_on else stop)
    private = curve(lambda i: 25.0 * min(i, stop), n)
    assert status_of(history_of(private, allocator__in_use_bytes=in_use)) == expected


def memory_of(values: Sequence[float | None]) -> RunHistory:
    filled = history_of([0.0] * len(values), python__objects=[100.0] * len(values))
    (process,) = filled.processes
    rounded = [None if value is None else round(value) for value in values]
    series = {**process.series, "process.anon_bytes": rounded}
    return replace(filled, processes=(replace(process, series=series),))


def resumed(first: RunHistory, then: RunHistory) -> RunHistory:
    """Return a history in which ``then`` is the next attempt after ``first``."""
    (before,), (after,) = first.processes, then.processes
    n, end = len(before), before.time[-1] + 60.0
    after = replace(
        after, instance="q", attempt=2, time=[end + t for t in after.time],
        monotonic=[end + t for t in after.monotonic], generation=[n + i for i in range(len(after))],
    )  # fmt: skip
    return replace(first, processes=(before, after))


@pytest.mark.parametrize("n", [12, 60])
def test_an_attempt_without_readings_is_not_a_recovery(n: int) -> None:
    leak = curve(lambda i: 12.0 * i, 40)
    after = memory_of([leak[-1], *[None] * (n - 1)])
    assert status_of(resumed(memory_of(leak), after)) in ACTIVE
    flat = memory_of([leak[0]] * n)
    assert status_of(resumed(memory_of(leak), flat)) == "recovered"


@pytest.mark.parametrize("read", [0, 10])
def test_children_unread_by_the_next_attempt_are_not_a_recovery(read: int) -> None:
    before = history_of(curve(lambda i: 0.0, 40), children__uss_bytes=rising(40))
    flat, n = curve(lambda i: 0.0, 60), 60
    silent = history_of(flat, children__uss_bytes=only([200.0 * MIB] * n, range(read)))
    assert status_of(resumed(before, silent)) in ACTIVE
    unread = history_of(flat)
    assert status_of(resumed(before, unread)) in ACTIVE
    level = history_of(flat, children__uss_bytes=[200.0 * MIB] * n)
    assert status_of(resumed(before, level)) == "recovered"


def with_rank(first: RunHistory, private: Sequence[float]) -> RunHistory:
    (process,) = history_of(private).processes
    return replace(first, processes=(*first.processes, replace(process, instance="rank1", rank=1)))


@pytest.mark.parametrize("growth", [0.0, 25.0])
def test_late_snapshots_of_a_rank_do_not_reduce_growth(growth: float) -> None:
    n = 50
    rank = curve(lambda i: growth * i, n)
    first = history_of(
        curve(lambda i: 0.0, n), children__uss_bytes=rank, children__ranks__uss_bytes=rank
    )
    kept = Kept()
    wanted = "confirmed" if growth else "ok"
    for arrived in (0, 1, 5, 20, 49, n):
        history = with_rank(first, rank[:arrived]) if arrived else first
        verdict = examine(history, kept)
        assert verdict.status == wanted, arrived
        assert verdict == examine(history)


def test_a_better_name_does_not_lower_a_status() -> None:
    """Memory alone confirms it; later counts identify it."""
    leak = kept_environments()
    whole = Training(leaks=(leak,), generations=44).history()
    process = whole.processes[0]
    for named_from in (26, 34):
        seen = 0
        for end in range(named_from, 44, 4):
            rows = [i for i, g in enumerate(process.generation) if g is None or g <= end]
            series = {
                name: [
                    None if name.startswith(COUNTED) and (process.generation[i] or 0) < named_from else column[i]
                    for i in rows
                ]
                for name, column in process.series.items()
            }  # fmt: skip
            cut = process.picked(lambda column, rows=rows: [column[i] for i in rows], {})
            history = replace(whole, processes=(replace(cut, series=series),))
            rank = SEVERITY.index(status_of(history))
            assert rank >= seen, (named_from, end)
            seen = rank


def test_a_phase_with_unread_memory_is_not_ruled_out() -> None:
    whole = Training(leaks=(kept_environments(),), generations=24).history()
    process = whole.processes[0]
    assert "evolve_population" in {r.phase for r in examine(whole).ruled_out}
    name = "phase.evolve_population.bytes"
    for unread_from in (0, 12, 18):
        late = [g is not None and g >= unread_from for g in process.generation]
        column = [
            None if silent else v for silent, v in zip(late, process.series[name], strict=True)
        ]
        series = {**process.series, name: column}
        history = replace(whole, processes=(replace(process, series=series),))
        verdict = examine(history)
        assert verdict.status in ACTIVE
        assert "evolve_population" not in {r.phase for r in verdict.ruled_out}


@pytest.mark.parametrize("n", [60, 200])
def test_a_short_leak_is_not_dropped_during_a_long_silence(n: int) -> None:
    last, flat_readings = 21, 6
    values = rising(n, last)
    read = only(values, range(last + 1 + flat_readings))
    flat = curve(lambda i: 0.0, n)
    kept = Kept()
    for end in (last + 1, n - 1, n):
        history = history_of(flat[:end], children__uss_bytes=read[:end])
        verdict = examine(history, kept)
        assert verdict.status == "suspected"
        assert verdict == examine(history)
    assert status_of(history_of(flat, children__uss_bytes=values)) == "recovered"
