"""Counts and memory that rise for a while, or as far as anybody looked, and accuse nobody."""

from __future__ import annotations

from dataclasses import replace

from builder import BASELINE, MIB, curve, history_of

from leakline.analysis import examine
from leakline.analysis.counts import count_growth

ENVS = "type__app.Env__count"
SIZES = "type__app.Env__bytes"
LATE = [float(i) for i in range(40)]


def counted(last_read: int, private: list[float]) -> dict[str, list[float | None]]:
    """Ten more environments of a MiB each in every generation, counted up to one of them."""
    counts = [10.0 * i if i <= last_read else None for i in range(len(private))]
    return {ENVS: counts, SIZES: [None if c is None else c * MIB for c in counts]}


def test_a_count_of_long_ago_accuses_nobody_when_memory_stands_still_since() -> None:
    stops = curve(lambda i: 10.0 * min(i, 12), 40)
    assert examine(history_of(stops, **counted(12, stops))).status == "recovered"
    # It was suspected while it rose, as it had to be.
    assert examine(history_of(stops[:12], **counted(11, stops[:12]))).status == "suspected"


def test_a_count_of_long_ago_stands_while_memory_rises_on() -> None:
    rises = curve(lambda i: 10.0 * i, 40)
    verdict = examine(history_of(rises, **counted(12, rises)))
    assert verdict.status == "confirmed"
    assert verdict.findings[0].suspects[0].name == "app.Env"


def test_the_teeth_of_a_saw_rise_once() -> None:
    teeth = [4.0 * (i % 5) for i in range(60)]
    x = [float(i) for i in range(60)]
    assert count_growth(x[:5], teeth[:5]) is not None
    assert all(count_growth(x[:n], teeth[:n]) is None for n in range(6, 60))
    rising = [tooth + 2.0 * i for i, tooth in enumerate(teeth)]
    assert count_growth(x, rising) is not None
    # What was there for one reading, while a program loads, is no level to come back to.
    loaded = [2_000.0 if i == 1 else 5.0 * i for i in range(12)]
    assert count_growth(x[:12], loaded) is not None


def test_what_a_declared_store_keeps_its_items_in_is_the_store() -> None:
    length = [float(min(3_000, 100 * (i + 1))) for i in range(20)]
    memory = curve(lambda i: 0.02 * length[i], 20, noise=0.5)
    series = {
        "tracked__replay__length": length, "tracked__replay__bytes": [0.02 * MIB * n for n in length],
        "container__app.Replay.items__length": length, "type__bytearray__count": [2 * n for n in length],
        "type__bytearray__bytes": [0.02 * MIB * n for n in length],
    }  # fmt: skip
    history = replace(history_of(memory, **series), capacities={"replay": 3_000})
    verdict = examine(history)
    assert verdict.status == "filling", verdict.summary
    assert verdict.findings == ()
    # A list beside it that grows otherwise is told.
    beside = {**series, "container__app.Log.lines__length": [37.0 * i for i in range(20)]}
    told = examine(replace(history_of(memory, **beside), capacities={"replay": 3_000}))
    assert [f.suspects[0].name for f in told.findings] == ["app.Log.lines"]


def test_children_that_nobody_read_have_not_stood_still() -> None:
    flat, grown = curve(lambda i: 0.0, 30), curve(lambda i: 8.0 * i, 30)
    read = [value if i < 12 or i % 9 == 0 else None for i, value in enumerate(grown)]
    verdict = examine(history_of(flat, 100 * BASELINE, children__uss_bytes=read))
    assert verdict.status in ("suspected", "confirmed"), verdict.summary
    assert verdict.findings[0].kind == "children"
