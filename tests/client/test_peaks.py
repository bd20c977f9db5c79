"""A rise that is over before the phase is: seen in the phase's own snapshot, and in no other's."""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Callable

import pytest
from tests.client.recording import MIB, fresh_pages, recorded

import leakline
from leakline.probes.memory import process_memory
from leakline.probes.memory.process_memory import read_process
from leakline.report import report_text
from leakline.snapshot import Snapshot
from leakline.transport.spool_format import read_header

_ODD = itertools.count()
PEAK, PHASE_PEAK = "process.peak_bytes", "process.phase_peak_bytes"


@pytest.fixture(autouse=True)
def no_background_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests take them themselves, at the moment they mean."""
    monkeypatch.setenv("LEAKLINE_SAMPLE_SECONDS", "0")


def rise(by_bytes: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Touch this much fresh memory and let it go again."""
    with fresh_pages(by_bytes // mmap.PAGESIZE * mmap.PAGESIZE):
        meanwhile()


def started(*, exact: bool = False) -> leakline.Run:
    run = leakline.init(mode="offline", quiet=True, exact_peaks=exact)
    run.generation(0)
    return run


def above_resident(snapshots: list[Snapshot], series: str) -> dict[str, float]:
    """How far the peak stood above what the phase ended with."""
    return {
        s.phase: s.samples[series] - s.samples["process.rss_bytes"]
        for s in snapshots
        if s.kind == "phase_end" and s.phase
    }


def higher_than_ever() -> int:
    """More than this process has had before: about 200 MiB, where the kernel lets us forget the tests before.

    Never twice the same: a mark that was reset and rose to exactly where it stood is not seen to have moved.
    """
    process_memory._reset_mark()
    samples = read_process()
    return int(samples[PEAK] - samples["process.rss_bytes"]) + (200 + next(_ODD)) * MIB


def test_a_new_high_that_is_freed_within_the_phase_is_its_peak() -> None:
    run = started()
    high = higher_than_ever()
    with run.phase("quiet"):
        pass
    with run.phase("rises"):
        rise(high)
    with run.phase("quiet again"):
        pass
    run.finish()
    told = above_resident(recorded(), PEAK)
    assert told["rises"] == pytest.approx(high, rel=0.1)
    assert told["quiet"] < 50 * MIB
    assert told["quiet again"] < 50 * MIB


def test_a_lower_peak_is_told_when_a_background_reading_fell_into_it() -> None:
    run = started()
    rise(higher_than_ever())
    with run.phase("unseen"):
        rise(200 * MIB)
    with run.phase("seen"):
        rise(200 * MIB, run._loop.sampler.look)
    with run.phase("quiet"):
        pass
    run.finish()
    told = above_resident(recorded(), PEAK)
    assert told["seen"] == pytest.approx(200 * MIB, rel=0.1)
    assert told["quiet"] < 50 * MIB


def test_with_exact_peaks_no_peak_is_too_low_or_too_short() -> None:
    run = started(exact=True)
    if not run._loop.sampler.exact_peaks:
        pytest.skip("this kernel does not let a process reset its own mark")
    highs = {"first": 400, "second": 200, "third": 300}
    for phase, high in highs.items():
        with run.phase(phase):
            rise(high * MIB)
    run.finish()
    told = above_resident(recorded(), PEAK)
    assert told == {phase: pytest.approx(high * MIB, rel=0.1) for phase, high in highs.items()}


def test_the_peak_of_a_phase_is_the_highest_of_all_snapshots_within_it() -> None:
    run = started()
    high = higher_than_ever()
    with run.phase("outer"):
        with run.phase("high"):
            rise(high)
        with run.phase("low"):
            pass
        run.snapshot("inside")
    with run.phase("after"):
        pass
    run.finish()
    of_phases = above_resident(recorded(), PHASE_PEAK)
    assert of_phases["outer/high"] == pytest.approx(high, rel=0.1)
    assert of_phases["outer"] == pytest.approx(high, rel=0.1)
    assert of_phases["outer/low"] < 50 * MIB
    assert of_phases["after"] < 50 * MIB
    since_the_last = above_resident(recorded(), PEAK)
    assert since_the_last["outer"] < 50 * MIB


def test_a_phase_of_another_thread_within_it_does_not_take_its_peak_away() -> None:
    run = started()
    high = higher_than_ever()

    def elsewhere() -> None:
        with run.phase("load"):
            pass

    with run.phase("train"):
        rise(high)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    run.finish()
    of_phases = above_resident(recorded(), PHASE_PEAK)
    assert of_phases["train"] == pytest.approx(high, rel=0.1)


def test_a_background_snapshot_within_it_does_not_take_its_peak_away() -> None:
    run = started()
    high = higher_than_ever()
    with run.phase("train"):
        rise(high)
        run._loop.background(run._loop.sampler.sample())
    run.finish()
    (sample,) = [s for s in recorded() if s.kind == "sample"]
    assert sample.label == "generation 0: during train"
    assert sample.samples[PEAK] - sample.samples["process.rss_bytes"] > 0.9 * high
    assert above_resident(recorded(), PHASE_PEAK)["train"] == pytest.approx(high, rel=0.1)


def test_a_census_of_ours_is_no_peak_of_the_program() -> None:
    run = started()
    run._loop.sampler._memory.look = lambda: None  # type: ignore[method-assign]
    measure = run._loop.sampler._looks.at_generation_end
    high = higher_than_ever()

    def census(*arguments: object) -> None:
        rise(high)
        measure(*arguments)  # type: ignore[arg-type]

    run._loop.sampler._looks.at_generation_end = census  # type: ignore[method-assign]
    run.generation(1)
    with run.phase("train"):
        pass
    run.finish()
    assert above_resident(recorded(), PEAK)["train"] < 50 * MIB


@pytest.mark.parametrize(("exact", "says"), [(False, "as seen by"), (True, "exact:")])
def test_the_report_tells_the_peaks_and_who_has_seen_them(
    exact: bool,
    says: str,
) -> None:
    run = started(exact=exact)
    exact = run._loop.sampler.exact_peaks
    high = higher_than_ever()
    with run.phase("train"):
        rise(high)
    with run.phase("evaluate"):
        pass
    path = run._chain.spool_path
    run.finish()
    assert read_header(path)[0].environment["exact_peaks"] is exact
    text = report_text(path)
    part = text[text.index("PEAK MEMORY BY PHASE") :].splitlines()[2:5]
    assert (says if exact else "as seen by") in part[0]
    assert [line.split()[0] for line in part[1:]] == ["train", "evaluate"]
    # The whole run's peak is its highest, not its newest.
    highest = max(s.samples[PEAK] for s in recorded())
    (line,) = [line for line in text.splitlines() if line.strip().startswith("peak:")]
    assert line.endswith(f"{highest / 2**30:.2f} GiB")
