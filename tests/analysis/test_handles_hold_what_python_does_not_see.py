"""Files, connections and processes are small by all that can be measured, and named where nothing else explains."""

from __future__ import annotations

import pytest
from builder import BASELINE, MIB, TRAIN, Leak, Training, curve, history_of

from leakline.analysis import examine
from leakline.analysis.results import Verdict
from leakline.snapshot import Holder

# The list is 500 bytes longer for each file.
FILES = {
    "_io.BufferedWriter": 6.0, "container.app.Recorder.files.length": 6.0,
    "container.app.Recorder.files.bytes": 3_000.0,
}  # fmt: skip


def leaking(counts: dict[str, float], start: int = 0, memory_from: int = 0) -> Verdict:
    training = Training(
        generations=30,
        leaks=(Leak(TRAIN, 6 * MIB, start=memory_from), Leak(TRAIN, 0.0, counts, start=start)),
        noise=0.5 * MIB, census_every=1,
    )  # fmt: skip
    training.counts |= dict.fromkeys(counts, 0.0)
    return examine(training.history())


def test_open_files_stand_for_the_buffers_behind_them() -> None:
    verdict = leaking(FILES)
    (finding,) = (f for f in verdict.findings if f.status == "confirmed")
    assert (finding.kind, finding.phase) == ("objects", TRAIN)
    assert [s.name for s in finding.suspects[:2]] == ["_io.BufferedWriter", "app.Recorder.files"]
    assert finding.growth_bytes_per_generation.estimate == pytest.approx(6 * MIB, rel=0.1)
    # The container is no second finding.
    assert not any(
        f.suspects and f.suspects[0].name == "app.Recorder.files" for f in verdict.findings
    )


def of_small_actors(*paths: str) -> Verdict:
    """Four more in each generation, of which a size was measured, and one container for each."""
    counts = {
        "agents.Actor": 4.0,
        "container.app.Pool.actors.length": 4.0,
        "container.app.Pool.actors.bytes": 12_416.0,
    }
    holders = tuple(Holder(0, "agents.Actor", path, 100, 3_104) for path in paths)
    leak = Leak(TRAIN, 6 * MIB, counts, holders=holders)
    training = Training(generations=30, leaks=(leak,), noise=0.5 * MIB)
    training.counts |= dict.fromkeys(counts, 0.0)
    return examine(training.history())


def test_small_objects_that_are_no_threads_are_not_blamed_for_it() -> None:
    finding = of_small_actors("app.Pool.actors[*]").findings[0]
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_threads_are_named_for_what_their_calls_hold() -> None:
    """Locals of a call are in no size of the thread object."""
    finding = of_small_actors("app.Pool.actors[*]", "threading._active[*]").findings[0]
    assert (finding.status, finding.kind, finding.phase) == ("confirmed", "objects", TRAIN)
    assert finding.suspects[0].name == "agents.Actor"


@pytest.mark.parametrize(
    "verdict",
    [leaking({"tqdm.std.Unit": 6.0}), leaking(FILES, start=14)],
    ids=["holds nothing else", "rises later"],
)
def test_what_rises_at_another_time_or_holds_nothing_is_not_blamed(verdict: Verdict) -> None:
    finding = verdict.findings[0]
    assert (finding.status, finding.kind, finding.suspects) == ("confirmed", "native", ())


def test_processes_are_named_for_what_children_take() -> None:
    children, helpers = curve(lambda i: 8.0 * i, 30), [float(i) for i in range(30)]
    history = history_of(
        curve(lambda i: 0.0, 30), 100 * BASELINE, children__uss_bytes=children,
        **{"type__multiprocessing.context.ForkProcess__count": helpers, "type__app.Env__count": helpers},
    )  # fmt: skip
    finding = examine(history).findings[0]
    assert finding.kind == "children"
    assert [s.name for s in finding.suspects] == ["multiprocessing.context.ForkProcess"]


def test_a_container_is_told_with_what_was_found_in_it() -> None:
    holder = Holder(0, "numpy.ndarray", "app.Storage.elites[*]", 40, 256 * 1024)
    counts = {
        "container.app.Storage.elites.length": 10.0,
        "container.app.Storage.elites.bytes": 6.0 * MIB,
    }
    training = Training(generations=30, leaks=(Leak(TRAIN, 6 * MIB, counts, holders=(holder,)),))
    training.counts |= dict.fromkeys(counts, 0.0)
    del training.counts["numpy.ndarray"]
    finding = examine(training.history()).findings[0]
    assert [(s.role, s.name) for s in finding.suspects] == [
        ("container", "app.Storage.elites"), ("type", "numpy.ndarray"),
    ]  # fmt: skip
