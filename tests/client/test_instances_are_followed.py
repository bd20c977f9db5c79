"""Birth cohorts, and created and freed instances of watched classes, as a run tells them."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

import leakline
from leakline.probes.native import native
from leakline.snapshot import Snapshot

Recorded = Callable[[], list[Snapshot]]


class Kept:
    pass


class Renewed:
    pass


def ends(snapshots: list[Snapshot]) -> list[Snapshot]:
    return [s for s in snapshots if s.kind == "generation_end"]


def name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@pytest.mark.skipif(native() is None, reason="without the native module cohorts wait for censuses")
def test_a_class_that_leaks_has_one_more_birth_generation_each_time(recorded: Recorded) -> None:
    kept: list[object] = []
    renewed: list[object] = []
    run = leakline.init(mode="offline", quiet=True, watch=[Kept, Renewed])
    for generation in range(8):
        with run.generation(generation), run.phase("train"):
            kept += [Kept() for _ in range(4)]
            renewed[:] = [Renewed() for _ in range(4)]
    run.finish()
    last = ends(recorded())[-1].samples
    assert last[f"cohort.{name(Kept)}.alive"] == 8
    assert last[f"cohort.{name(Kept)}.oldest"] == 7
    assert last[f"cohort.{name(Renewed)}.alive"] == 1
    assert len(kept) == 32


@pytest.mark.skipif(native() is None, reason="without the native module cohorts wait for censuses")
def test_what_follows_a_leak_is_not_taken_for_a_part_of_it(recorded: Recorded) -> None:
    kept: list[object] = []
    run = leakline.init(mode="offline", quiet=True, watch=[Kept])
    for generation in range(8):
        with run.generation(generation), run.phase("train"):
            kept += [Kept() for _ in range(4)]
    run.finish()
    ours = [one for each in kept for one in weakref.getweakrefs(each)]
    assert len(ours) >= 8
    # A plain one would be a type of the program that grows with the leak.
    assert {type(one).__module__.partition(".")[0] for one in ours} == {"leakline"}


def test_created_less_freed_is_the_change_of_the_count(recorded: Recorded) -> None:
    renewed: list[object] = [Renewed() for _ in range(4)]
    run = leakline.init(mode="offline", quiet=True, watch=[Renewed])
    for generation in range(6):
        with run.generation(generation), run.phase("train"):
            renewed[:] = [Renewed() for _ in range(4 + generation)]
    run.finish()
    told = [s.samples for s in ends(recorded()) if f"type.{name(Renewed)}.created" in s.samples]
    assert len(told) >= 3
    first, last = told[0], told[-1]

    def change(what: str) -> float:
        series = f"type.{name(Renewed)}.{what}"
        return last[series] - first[series]

    assert change("created") - change("freed") == change("count") > 0
    if native() is not None:
        assert change("freed") > 0
