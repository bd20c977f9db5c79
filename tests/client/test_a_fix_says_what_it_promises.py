"""`run.fix`: sizes and counts are checked at once, and what they are about is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.errors import BadArgument
from leakline.snapshot import Snapshot

Recorded = Callable[[], list[Snapshot]]

GROWTH = "growth_bytes_per_generation"


class Environment:
    pass


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("growth_bytes", "500 MiB"), ("", 5), (7, 5), ("count:", 5), ("count:not a class", 5), ("count", 5),
        (GROWTH, "a lot"), (GROWTH, -1), (GROWTH, None), (GROWTH, True), (GROWTH, float("nan")),
        ("peak_bytes", float("inf")), ("peak_bytes", [40]), ("peak_bytes", 2**60),
        ("generations", "25"), ("generations", 2.5), ("generations", True), ("generations", -1),
        ("possible_generations", "100"), ("possible_generations", 100.5), ("possible_generations", -1),
        ("count:app.Agent", "17"), ("count:app.Agent", -1), ("count:app.Agent", None),
    ],
)  # fmt: skip
def test_a_promise_nobody_could_check_is_refused_with_its_name_and_value(
    offline: leakline.Run, recorded: Recorded, claim: Any, value: Any
) -> None:
    with pytest.raises(BadArgument) as caught:
        offline.fix("a fix", promises={GROWTH: "1 MiB", claim: value})
    assert repr(claim) in caught.value.name
    assert "\n" not in str(caught.value)
    offline.finish()
    assert not [e for s in recorded() for e in s.events if e.kind == "fix"]


def test_the_refusal_of_an_unknown_promise_names_those_that_can_be_checked(
    offline: leakline.Run,
) -> None:
    with pytest.raises(BadArgument, match=r"growth_bytes_per_generation.*count:package\.Class"):
        offline.fix("a fix", promises={"growth": "500 MiB"})
    offline.finish()


@pytest.mark.parametrize(
    ("argument", "value"), [("phase", 7), ("phase", " "), ("location", 281), ("promises", [GROWTH])]
)
def test_a_wrong_argument_is_refused_with_its_name(
    offline: leakline.Run, argument: str, value: Any
) -> None:
    with pytest.raises(BadArgument) as caught:
        offline.fix("a fix", **{argument: value})
    assert caught.value.name == argument
    offline.finish()


def test_growth_within_a_phase_needs_a_phase(offline: leakline.Run) -> None:
    with pytest.raises(BadArgument, match="phase"):
        offline.fix("a fix", promises={"phase_growth_bytes_per_generation": "1 MiB"})
    offline.finish()


def test_a_run_that_records_nothing_takes_any_promise() -> None:
    leakline.init(mode="disabled", quiet=True).fix("a fix", promises={"growth": "500 MiB"})


def test_sizes_travel_as_bytes_and_the_class_of_a_count_is_counted_from_now_on(
    offline: leakline.Run, recorded: Recorded
) -> None:
    count = f"count:{Environment.__module__}.Environment"
    promises = {
        GROWTH: "500 MiB",
        "peak_bytes": "40 GB",
        "generations": 3,
        "possible_generations": 100,
        count: 1,
    }
    offline.fix("close them", phase="train", location="trainer.py:281", promises=promises)
    kept = []
    for generation in range(3):
        with offline.generation(generation), offline.phase("train"):
            kept.append(Environment())
    text = offline.report()
    offline.finish()
    (told,) = [e for s in recorded() for e in s.events if e.kind == "fix"]
    assert told.name == "close them"
    assert told.data == {
        "phase": "train", "location": "trainer.py:281",
        "promises": {GROWTH: 500 * 2**20, "peak_bytes": 40 * 10**9, "generations": 3,
                     "possible_generations": 100, count: 1},
    }  # fmt: skip
    # And the report of this very run says what came of it.
    assert "WHAT THE FIX PROMISED" in text
    assert "close them (train, trainer.py:281)" in text
    assert "held: 3 generations complete; 3 were promised." in text
    assert (
        "refuted: 3 Environment alive at the end of generation 2; 1 at most were promised." in text
    )
    assert "not yet testable: 3 generations with the fix so far" in text


def test_a_report_without_a_fix_has_no_promises(offline: leakline.Run) -> None:
    with offline.generation(0), offline.phase("train"):
        pass
    assert "PROMISED" not in offline.report()
    offline.finish()


def test_a_location_may_be_a_path_and_never_moves_the_cursor_of_a_terminal(
    offline: leakline.Run, recorded: Recorded
) -> None:
    offline.fix("one", location=Path("training") / "trainer.py")
    offline.fix("two", location="trainer.py\x1b[2J:281\n")
    offline.finish()
    told = {e.name: e.data["location"] for s in recorded() for e in s.events if e.kind == "fix"}
    assert told == {"one": "training/trainer.py", "two": "trainer.py [2J:281 "}


def test_what_was_rejected_goes_with_the_fix_bounded_and_only_where_it_is_given(
    offline: leakline.Run, recorded: Recorded
) -> None:
    offline.fix("detach losses", phase="train", rejected="fewer episodes: too slow")
    offline.fix("write much", rejected="x" * 5_000)
    offline.fix("as before")
    offline.finish()
    told = {e.name: e.data for s in recorded() for e in s.events if e.kind == "fix"}
    assert told["detach losses"]["rejected"] == "fewer episodes: too slow"
    assert len(told["write much"]["rejected"]) == 2_000
    # Whoever knows nothing of it sees the event that there always was.
    assert set(told["as before"]) == {"phase", "location", "promises"}
