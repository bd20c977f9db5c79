"""A young run counted by the second is looked at rarely: what it keeps is told from few looks, or as not known yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from leakline.analysis import examine
from leakline.analysis.history import RunHistory, history_from_batches
from leakline.analysis.results import Finding
from leakline.snapshot import Batch, Number, ProcessIdentity, RunHeader, Snapshot

MIB = 2**20
# While no count is known to rise, looks become ever more seldom.
LOOKS = (1, 3, 7, 15, 31)
COUNTED_TOO_SELDOM = "Objects were counted too seldom since it began: what it is, is not known yet."
UNEXPLAINED = "No Python object that was counted explains it."


def run(
    seconds: int, looks: Mapping[int, Mapping[str, Number]], rises: float = 10.0, first: int = 0
) -> RunHistory:
    """Private memory rises by so many MiB a second from ``first`` on; ``looks``: what was counted, by second."""
    snapshots = []
    for at in range(seconds):
        kept = 200 * MIB + round(rises * MIB * max(0, at - first))
        samples = {"process.rss_bytes": 100 * MIB + kept, "process.anon_bytes": kept}
        snapshots.append(
            Snapshot(
                sequence=at, time=1e9 + at, monotonic=float(at), generation=None, phase=None, label="",
                kind="generation_end", samples={**samples, **looks.get(at, {})},
            )
        )  # fmt: skip
    header = RunHeader("r", "p", "n", "second", None, 1e9)
    return history_from_batches(header, [Batch(ProcessIdentity("a"), tuple(snapshots))])


def arrays(counts: Mapping[int, int], size: int = MIB) -> dict[int, dict[str, Number]]:
    return {
        at: {
            "python.objects": 50_000, "arrays.count": count, "arrays.bytes": count * size,
            "type.numpy.ndarray.count": count,
        }
        for at, count in counts.items()
    }  # fmt: skip


IN_STEP = arrays({at: 10 * (at + 1) for at in LOOKS})


def told(history: RunHistory) -> Finding | None:
    return next((f for f in examine(history).findings if f.status != "ok"), None)


def test_arrays_in_a_list_are_never_called_native_from_the_first_word_on() -> None:
    said = {seconds: told(run(seconds, IN_STEP)) for seconds in range(4, 60)}
    first = min(seconds for seconds, finding in said.items() if finding is not None)
    assert first < 15
    for seconds, finding in said.items():
        if finding is not None:
            assert finding.kind == "arrays", (seconds, finding)
            assert finding.suspects[0].name == "numpy.ndarray"
            assert finding.suspects[0].count_per_generation == pytest.approx(10)
    prints = {finding.fingerprint for finding in said.values() if finding is not None}
    assert len(prints) == 1, "it is one leak, known better by and by"
    assert {finding.status for finding in said.values() if finding} == {
        "watch",
        "suspected",
        "confirmed",
    }


@pytest.mark.parametrize(
    "counts",
    [
        {at: 10 + at for at in LOOKS},
        {1: 20, 3: 40, 7: 40, 15: 40, 31: 40},
        {1: 20, 3: 40, 7: 20, 15: 160, 31: 40},
    ],
    ids=["a tenth of it", "rose once", "come and go"],
)
@pytest.mark.parametrize("seconds", [12, 20, 28])
def test_arrays_that_do_not_rise_with_it_are_not_blamed(
    counts: dict[int, int], seconds: int
) -> None:
    finding = told(run(seconds, arrays(counts)))
    assert finding is not None
    assert (finding.kind, finding.suspects) == ("native", ())
    assert UNEXPLAINED in finding.evidence


@pytest.mark.parametrize("looks", [(1,), (1, 3)])
def test_before_two_looks_have_seen_it_grow_nobody_is_blamed(looks: Sequence[int]) -> None:
    seen = arrays(dict.fromkeys(looks, 7))
    history = run(34, seen, first=10)
    finding = told(history)
    assert finding is not None
    assert finding.status in ("watch", "suspected", "confirmed")
    assert finding.unknown == "seldom"
    assert COUNTED_TOO_SELDOM in finding.evidence
    assert UNEXPLAINED not in finding.evidence
    assert not any("outside Python" in line for line in finding.advice)
    assert any("next looks at the heap" in line for line in finding.advice)
    assert "memory, of what is not known yet" in examine(history).summary


def test_once_two_looks_have_seen_it_grow_and_nothing_with_it_no_object_explains_it() -> None:
    seen = arrays(dict.fromkeys((1, 3, 7, 15, 31), 7))
    finding = told(run(34, seen, first=10))
    assert finding is not None
    assert UNEXPLAINED in finding.evidence
    assert finding.unknown is None
    assert COUNTED_TOO_SELDOM not in finding.evidence


def test_what_was_never_looked_at_is_not_waited_for() -> None:
    """A heap too large to be counted: nothing will tell it later."""
    finding = told(run(34, {5: {"type.app.Env.count": 2}, 9: {"type.app.Env.count": 2}}))
    assert finding is not None
    assert finding.unknown is None
    assert COUNTED_TOO_SELDOM not in finding.evidence
