"""A series that was not read is unknown: no status falls without new readings that show it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from builder import MIB, Training, curve, history_of, kept_environments, loss_graph

from leakline.analysis import RunHistory, examine
from leakline.analysis.ladder import ACTIVE
from leakline.analysis.series import lanes_of

GROWING_CHANNELS = ("children__uss_bytes", "process__shared_bytes", "cuda__0__allocated_bytes")


def only(values: Sequence[float], read: Sequence[int]) -> list[float | None]:
    return [value if i in set(read) else None for i, value in enumerate(values)]


def rising(n: int, until: int | None = None) -> list[float]:
    return [200 * MIB + 25 * MIB * min(i, n if until is None else until) for i in range(n)]


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
    other = [100.0] * n

    def history(values: Sequence[float | None], n: int) -> RunHistory:
        filled = history_of([0.0] * n, python__objects=other[:n])
        series = {**filled.processes[0].series, "process.anon_bytes": list(values[:n])}
        return replace(filled, processes=(replace(filled.processes[0], series=series),))

    assert status_of(history(memory, last + 1)) == "confirmed"
    assert status_of(history(only(memory, range(last + 1)), n)) == "confirmed"
    assert examine(history(only(memory, range(last + 1)), n)).settled_at_generation is None
    gap = [*range(last + 1), *range(last + 20, n)]
    assert status_of(history(only(memory, gap), n)) == "confirmed"
    flat = [value if i <= last else memory[last] for i, value in enumerate(memory)]
    assert status_of(history(only(flat, gap), n)) == "recovered"


def test_a_count_that_is_no_longer_read_is_no_recovery_while_memory_rises() -> None:
    for leak in (kept_environments(), loss_graph()):
        whole = Training(leaks=(leak,), generations=40).history()
        process = whole.processes[0]
        ends = [g is not None and g > 20 for g in process.generation]
        series = {
            name: [
                None
                if late and name.startswith(("type.", "tensors.", "arrays.", "container."))
                else v
                for late, v in zip(ends, column, strict=True)
            ]
            for name, column in process.series.items()
        }
        silent = replace(whole, processes=(replace(process, series=series),))
        assert status_of(silent) in ACTIVE
        stopped = Training(leaks=(replace(leak, stop=21),), generations=40).history()
        assert status_of(stopped) == "recovered"


@pytest.mark.parametrize("seed", range(12))
def test_taking_readings_away_lowers_no_status(seed: int) -> None:
    """Whatever is left out from some generation on, and whatever is left out before it, an active leak that goes on is
    neither recovered nor ok.
    """
    rng = random.Random(seed)
    n = rng.randrange(40, 70)
    channel = rng.choice(GROWING_CHANNELS)
    whole = rising(n)
    kept = sorted({*range(26), *rng.sample(range(n), n // 2)} - {*range(rng.randrange(30, n), n)})
    flat = curve(lambda i: 0.0, n)
    assert status_of(history_of(flat, **{channel: whole})) == "confirmed"
    assert status_of(history_of(flat, **{channel: only(whole, kept)})) in ACTIVE


def test_the_newest_generations_without_memory_are_no_level() -> None:
    history = history_of(curve(lambda i: 5.0 * i, 30))
    (lane,) = lanes_of(history)
    assert lane.private_read == list(range(30))


@pytest.mark.parametrize(("goes_on", "expected"), [(True, "confirmed"), (False, "recovered")])
def test_a_leak_into_memory_that_the_allocator_had_kept_goes_on(
    goes_on: bool, expected: str
) -> None:
    """Private memory stays the same while freed memory is filled again; what the program keeps rises meanwhile."""
    n, stop = 60, 30
    in_use = rising(n, None if goes_on else stop)
    private = curve(lambda i: 25.0 * min(i, stop), n)
    assert status_of(history_of(private, allocator__in_use_bytes=in_use)) == expected
