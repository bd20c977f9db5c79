"""Holders are named only if they hold more and more: what is overwritten in each generation is not one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from leakline.analysis.facts import Facts
from leakline.analysis.history import Value
from leakline.analysis.series import lanes_of
from leakline.snapshot import Holder

from .pieces import ends_history, lane_of

ENV = "type.app.Env.count"
# Two of the type were there before, and three more come in each generation.
COUNTS: list[Value] = [2 + 3 * g for g in range(20)]


def named(
    *held: tuple[int, str, int], lengths: Sequence[Value] = (), container: str = "app.last"
) -> str | None:
    """Return the holder named for (sequence, path, objects held), with lengths of a container where they were read."""
    series: dict[str, Sequence[Value]] = {ENV: COUNTS}
    if lengths:
        series[f"container.{container}.length"] = lengths
    holders = tuple(Holder(at, "app.Env", path, count) for at, path, count in held)
    history = ends_history(series, holders=holders)
    return Facts(history, lane_of(history)).holders.get("app.Env")


@pytest.mark.parametrize("path", ["app.last[*]", "app.Trainer.last[*]", "app.last[*][*]"])
def test_a_container_that_stays_as_long_is_no_holder(path: str) -> None:
    container = path.rpartition("[*]")[0]
    flat: list[Value] = [None] * 6 + [3] * 14
    assert named((5, path, 15), lengths=flat, container=container) is None


def test_a_container_that_grows_is_a_holder() -> None:
    longer: list[Value] = [3 * g for g in range(20)]
    assert named((5, "app.kept[*]", 2), lengths=longer, container="app.kept") == "app.kept[*]"


def test_of_two_containers_the_one_that_grows_is_named() -> None:
    flat: list[Value] = [None] * 6 + [3] * 14
    found = named((5, "app.last[*]", 15), (5, "app.f.<defaults>[*]", 6), lengths=flat)
    assert found == "app.f.<defaults>[*]"


@pytest.mark.parametrize(("held", "holder"), [(5, "app.Trainer.best"), (4, None)])
def test_after_one_search_a_holder_holds_a_real_share_of_what_was_gained(
    held: int, holder: str | None
) -> None:
    """By the search at the fifth generation the type has gained 15."""
    assert named((5, "app.Trainer.best", held)) == holder


@pytest.mark.parametrize(("later", "holder"), [(15, "app.Trainer.best"), (13, None), (6, None)])
def test_after_two_searches_a_holder_has_gained_with_the_type(
    later: int, holder: str | None
) -> None:
    """Between the two searches the type has gained 30."""
    assert named((5, "app.Trainer.best", 6), (15, "app.Trainer.best", later)) == holder


def test_what_only_a_search_before_had_found_is_not_named() -> None:
    assert named((5, "app.Trainer.best", 15), (15, "app.f.<closure>.x", 40)) == "app.f.<closure>.x"


def test_searches_of_several_processes_are_not_compared() -> None:
    """A search does not say whose it is: one that found constant objects says nothing of a process that leaks."""
    holders = (
        Holder(5, "app.Env", "app.kept", 15), Holder(15, "app.Env", "app.kept", 45),
        Holder(16, "app.Env", "app.kept", 2),
    )  # fmt: skip
    history = ends_history({ENV: COUNTS}, holders=holders)
    (process,) = history.processes
    constant = replace(process, instance="q", rank=1, series={ENV: [2] * 20})
    both = replace(history, processes=(process, constant))
    assert Facts(history, lanes_of(history)[0]).holders == {}
    assert Facts(both, lanes_of(both)[0]).holders == {"app.Env": "app.kept"}


@pytest.mark.parametrize(("counts", "holder"), [(9, "app.Cache.keys[*]"), (None, None)])
def test_a_list_of_as_many_tensors_that_grow_larger_is_a_holder(
    counts: int | None, holder: str | None
) -> None:
    """Tensors that are made anew, more of them each time, are not held by a list of four."""
    series: dict[str, Sequence[Value]] = {
        "type.torch.Tensor.count": [9 + 3 * g if counts is None else counts for g in range(20)],
        "type.torch.Tensor.bytes": [g * 2**22 if g % 4 == 2 else None for g in range(20)],
        "container.app.Cache.keys.length": [None] * 10 + [4] * 10,
    }
    history = ends_history(series, holders=(Holder(11, "torch.Tensor", "app.Cache.keys[*]", 1),))
    assert Facts(history, lane_of(history)).holders.get("torch.Tensor") == holder


def test_of_objects_that_grow_larger_the_search_for_the_largest_counts() -> None:
    series: dict[str, Sequence[Value]] = {
        "type.numpy.ndarray.count": [6] * 20,
        "type.numpy.ndarray.bytes": [g * 2**22 for g in range(20)],
    }
    holders = (
        Holder(11, "numpy.ndarray", "app.Dataset.rows", 1),
        Holder(13, "numpy.ndarray", "app.Network.first", 3, bytes_each=2_837),
    )
    history = ends_history(series, holders=holders)
    assert Facts(history, lane_of(history)).holders == {"numpy.ndarray": "app.Dataset.rows"}


@pytest.mark.parametrize(("each", "holder"), [(104, None), (20 * 2**20, "numpy.ma.masked")])
def test_a_sample_of_next_to_nothing_does_not_hold_what_grows_larger(
    each: int, holder: str | None
) -> None:
    """A census in slices gives their bytes alone: their number is the one counted before."""
    series: dict[str, Sequence[Value]] = {
        "type.numpy.ndarray.count": [None, 2, *[None] * 10],
        "type.numpy.ndarray.bytes": [g * 2**22 if g in (1, 3, 8, 10) else None for g in range(12)],
    }
    holders = (Holder(11, "numpy.ndarray", "numpy.ma.masked", 1, each),)
    history = ends_history(series, holders=holders)
    assert Facts(history, lane_of(history)).holders.get("numpy.ndarray") == holder


def test_counts_are_those_of_the_newest_reading_before_each_search() -> None:
    history = ends_history({ENV: [None, 4, None, None, 7, None]})
    found = Facts(history, lane_of(history))._counts_at("app.Env", [0, 1, 2, 3, 4, 9])
    assert found == [None, 4, 4, 4, 7, 7]
