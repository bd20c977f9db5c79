"""A series that was not read is unknown: no status falls without new readings that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import MIB, Training, curve, history_of, kept_environments, loss_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import ends_history

from leakline.analysis import RunHistory, examine
from leakline.analysis.generation_axis import WHOLE
from leakline.analysis.incremental_cache import Kept
from leakline.analysis.results import SEVERITY
from leakline.analysis.run_history import Value
from leakline.analysis.status import ACTIVE
from leakline.analysis.timeline import timelines_of

GROWING_CHANNELS = ("children__uss_bytes", "process__shared_bytes", "cuda__0__allocated_bytes")


def only(values: Sequence[float], read: Sequence[int]) -> list[float | None]:
    return [value if i in set(read) else None for i, value in enumerate(values)]


def rising(n: int, until: int | None = None) -> list[float]:
    return [200 * MIB + 25 * MIB * min(i, n if until is None else until) for i in range(n)]


def without_counts_after(history: RunHistory, last: int) -> RunHistory:
    """Return the same without counts of objects from the generation after ``last`` on."""
    process = history.processes[0]
    late = [g is not None and g > last for g in process.generation]
    series = {
        name: [None if is_late else v for is_late, v in zip(late, column, strict=True)]
        if name.startswith(("type.", "tensors.", "arrays.", "container."))
        else column
        for name, column in process.series.items()
    }
    return replace(history, processes=(replace(process, series=series),))


def status_of(history: RunHistory) -> str:
    return examine(history).status


@pytest.mark.parametrize("channel", GROWING_CHANNELS)
@pytest.mark.parametrize("last", [20, 30])
def test_a_leak_that_is_no_longer_read_stays_as_it_was(channel: str, last: int) -> None:
    flat = curve(lambda i: 0.0, 70)
    before = status_of(history_of(flat[: last + 1], **{channel: rising(last + 1)}))
    assert before in ACTIVE
    for n in (last + 2, last + 9, last + 40):
        read = only(rising(n), range(last + 1))
        assert status_of(history_of(flat[:n], **{channel: read})) == before


@pytest.mark.parametrize("channel", GROWING_CHANNELS)
def test_eight_flat_readings_are_a_recovery_however_seldom_they_are_taken(channel: str) -> None:
    n, stop = 120, 30
    read = [*range(stop + 1), *range(stop + 8, n, 8)]
    seldom = only(rising(n, stop), read)
    assert status_of(history_of(curve(lambda i: 0.0, n), **{channel: seldom})) == "recovered"
    few = only(rising(n, stop), read[: stop + 5])
    assert status_of(history_of(curve(lambda i: 0.0, n), **{channel: few})) in ACTIVE
    often = rising(n, stop)
    assert status_of(history_of(curve(lambda i: 0.0, n), **{channel: often})) == "recovered"


def test_children_that_are_gone_have_recovered() -> None:
    n, stop = 60, 30
    gone = [*rising(stop), *[0.0] * (n - stop)]
    assert status_of(history_of(curve(lambda i: 0.0, n), children__uss_bytes=gone)) == "recovered"


def test_a_step_between_two_distant_readings_is_no_leak() -> None:
    n = 70
    step = [200.0 * MIB if i < 20 else 900.0 * MIB for i in range(n)]
    for read in ([*range(6), *range(36, n)], [0, 1, 2, 3, 30, *range(31, n)]):
        history = history_of(curve(lambda i: 0.0, n), children__uss_bytes=only(step, read))
        assert status_of(history) not in ACTIVE


def test_private_memory_that_is_no_longer_read_stays_as_it_was() -> None:
    n, last = 80, 40
    memory = curve(lambda i: 12.0 * i, n)
    assert status_of(memory_of(memory[: last + 1])) == "confirmed"
    silent = examine(memory_of(only(memory, range(last + 1))))
    assert (silent.status, silent.settled_at_generation) == ("confirmed", None)
    gap = [*range(last + 1), *range(last + 20, n)]
    assert status_of(memory_of(only(memory, gap))) == "confirmed"
    flat = [value if i <= last else memory[last] for i, value in enumerate(memory)]
    assert status_of(memory_of(only(flat, gap))) == "recovered"


def test_a_count_that_is_no_longer_read_is_no_recovery_while_memory_rises() -> None:
    for leak in (kept_environments(), loss_graph()):
        whole = Training(leaks=(leak,), generations=40).history()
        assert status_of(without_counts_after(whole, 20)) in ACTIVE
        stopped = Training(leaks=(replace(leak, stop=21),), generations=40).history()
        assert status_of(stopped) == "recovered"


def arrays_counted_until(last: int, *, kept: int | None, generations: int = 30) -> RunHistory:
    """Twelve arrays of 190 KiB more in each generation, or the newest ``kept`` of them; all counts end at ``last``."""
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
def test_memory_that_is_flat_ends_a_growth_whose_count_is_no_longer_read(last: int, n: int) -> None:
    """Full after ten generations, and flat for at least eight since the arrays were last counted."""
    assert status_of(arrays_counted_until(last, kept=120, generations=n)) == "recovered"
    assert status_of(arrays_counted_until(last, kept=None, generations=n)) in ACTIVE


@pytest.mark.parametrize("n", [40, 50, 60])
def test_bytes_that_a_count_overstates_end_no_growth_that_memory_shows(n: int) -> None:
    """Arrays of zeros, a fifth of which was ever written: memory rises by a fifth of their bytes."""
    read = range(28)
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [100 * MIB + 2 * MIB * i + (i % 3) * MIB // 8 for i in range(n)],
        "type.numpy.ndarray.count": only([5 + 2 * i for i in range(n)], read),
        "arrays.bytes": only([10 * MIB * i for i in range(n)], read),
    }
    assert status_of(ends_history(series)) in ACTIVE


@pytest.mark.parametrize("n", [66, 67, 68, 69, 70])
def test_a_growth_in_steps_has_not_ended_between_two_of_them(n: int) -> None:
    """One array of 30 MiB every ten generations, counted every 16."""
    arrays = [i // 10 for i in range(n)]
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [100 * MIB + 30 * MIB * k for k in arrays],
        "type.numpy.ndarray.count": only([5 + k for k in arrays], range(0, n, 16)),
        "arrays.bytes": only([30 * MIB * k for k in arrays], range(0, n, 16)),
    }
    assert status_of(ends_history(series)) in ACTIVE


def test_memory_that_falls_for_a_while_is_not_flat() -> None:
    """A saw whose teeth are 40 generations long stands on a leak of 2 MiB."""
    n = 88
    tooth = [3 * MIB * min(i % 40, 40 - i % 40) for i in range(n)]
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [100 * MIB + 2 * MIB * i + t for i, t in enumerate(tooth)],
        "type.numpy.ndarray.count": only([5 + i for i in range(n)], range(28)),
        "arrays.bytes": only([2 * MIB * i for i in range(n)], range(28)),
    }
    for end in (60, 68, 76, 88):
        cut = {name: values[:end] for name, values in series.items()}
        assert status_of(ends_history(cut)) != "recovered"


@pytest.mark.parametrize("goes_on", [True, False])
def test_graphs_that_are_no_longer_read_end_with_the_number_of_tensors(goes_on: bool) -> None:
    """Memory creeps on, as the allocator keeps what graphs of other sizes leave."""
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


def test_the_newest_generations_without_memory_are_no_level() -> None:
    history = history_of(curve(lambda i: 5.0 * i, 30))
    (timeline,) = timelines_of(history)
    assert timeline.private_read == list(range(30))


@pytest.mark.parametrize(("goes_on", "expected"), [(True, "confirmed"), (False, "recovered")])
def test_a_leak_into_memory_that_the_allocator_had_kept_goes_on(
    goes_on: bool, expected: str
) -> None:
    """Private memory stays the same while freed memory is filled again; what the program keeps rises meanwhile."""
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


@pytest.mark.parametrize("n", [100, 150, 770, 1000])
def test_memory_that_was_read_in_less_than_half_of_the_snapshots_stays_as_it_was(n: int) -> None:
    last = 400 if n > WHOLE else 40
    leak = curve(lambda i: 12.0 * i, n)
    assert status_of(memory_of(only(leak, range(last + 1)))) == "confirmed"
    read = [*range(last + 1), *range(n - 12, n)]
    flat = [leak[min(i, last)] for i in range(n)]
    assert status_of(memory_of(only(flat, read))) == "recovered"


def resumed(first: RunHistory, then: RunHistory) -> RunHistory:
    """The second follows the first as its next attempt."""
    (before,), (after,) = first.processes, then.processes
    n, end = len(before), before.time[-1] + 60.0
    after = replace(
        after, instance="q", attempt=2, time=[end + t for t in after.time],
        monotonic=[end + t for t in after.monotonic], generation=[n + i for i in range(len(after))],
    )  # fmt: skip
    return replace(first, processes=(before, after))


@pytest.mark.parametrize("n", [12, 30, 60])
def test_an_attempt_without_readings_is_no_recovery(n: int) -> None:
    leak = curve(lambda i: 12.0 * i, 40)
    after = memory_of([leak[-1], *[None] * (n - 1)])
    assert status_of(resumed(memory_of(leak), after)) in ACTIVE
    flat = memory_of([leak[0]] * n)
    assert status_of(resumed(memory_of(leak), flat)) == "recovered"


@pytest.mark.parametrize("read", [0, 1, 10])
def test_children_that_the_next_attempt_does_not_read_are_no_recovery(read: int) -> None:
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
def test_a_rank_whose_snapshots_arrive_late_takes_no_growth_away(growth: float) -> None:
    n = 50
    rank = curve(lambda i: growth * i, n)
    first = history_of(
        curve(lambda i: 0.0, n), children__uss_bytes=rank, children__ranks__uss_bytes=rank
    )
    kept = Kept()
    wanted = "confirmed" if growth else "ok"
    for arrived in (0, 1, 2, 5, 12, 20, 30, 49, n):
        history = with_rank(first, rank[:arrived]) if arrived else first
        verdict = examine(history, kept)
        assert verdict.status == wanted, arrived
        assert verdict == examine(history)


def test_a_better_name_does_not_lower_a_status() -> None:
    """Memory alone confirms it; then counts are read, and say what it is."""
    leak = kept_environments()
    whole = Training(leaks=(leak,), generations=44).history()
    process = whole.processes[0]
    for named_from in (26, 30, 34):
        seen = 0
        for end in range(named_from, 44):
            rows = [i for i, g in enumerate(process.generation) if g is None or g <= end]
            late = [(process.generation[i] or 0) >= named_from for i in rows]
            counted = ("type.", "tensors.", "arrays.", "container.")
            series = {
                name: [
                    column[i] if shown or not name.startswith(counted) else None
                    for i, shown in zip(rows, late, strict=True)
                ]
                for name, column in process.series.items()
            }
            cut = process.picked(lambda column, rows=rows: [column[i] for i in rows], {})
            history = replace(whole, processes=(replace(cut, series=series),))
            rank = SEVERITY.index(status_of(history))
            assert rank >= seen, (named_from, end)
            seen = rank


def test_a_phase_whose_memory_is_no_longer_read_is_not_ruled_out() -> None:
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


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_no_readings_taken_away_make_a_leak_recover(data: st.DataObject) -> None:
    """Whatever is taken away behind the first 26 generations, memory or children: no leak is then ok or recovered."""
    n = data.draw(st.integers(36, 64))
    gone = data.draw(st.sets(st.integers(26, n - 1)))
    kept = [i for i in range(n) if i not in gone]
    if data.draw(st.booleans()):
        history = memory_of(only(curve(lambda i: 12.0 * i, n), kept))
    else:
        history = history_of(curve(lambda i: 0.0, n), children__uss_bytes=only(rising(n), kept))
    assert status_of(history) not in ("ok", "recovered")


@pytest.mark.parametrize("n", [60, 192, 200, 300])
def test_a_short_leak_with_few_flat_readings_is_not_forgotten_in_a_long_silence(n: int) -> None:
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
