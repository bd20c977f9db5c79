"""`run.fix`, `run.band` and `run.budget`: what is sent, and which uncheckable declarations are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.client.recording import events

import leakline
from leakline import Run
from leakline.core import declarations
from leakline.errors import BadArgument

GROWTH = "growth_bytes_per_generation"


class Environment:
    pass


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("growth_bytes", "500 MiB"), ("", 5), (7, 5), ("count:", 5), ("count:not a class", 5), ("count", 5),
        (GROWTH, "a lot"), (GROWTH, -1), (GROWTH, None), (GROWTH, True), (GROWTH, float("nan")),
        ("peak_bytes", 2**60), ("possible_generations", 100.5), ("generations", True), ("count:app.Agent", -1),
    ],
)  # fmt: skip
def test_uncheckable_promises_are_refused_by_name_and_value(
    offline: Run, claim: Any, value: Any
) -> None:
    with pytest.raises(BadArgument) as caught:
        offline.fix("a fix", promises={GROWTH: "1 MiB", claim: value})
    assert repr(claim) in caught.value.name
    assert "\n" not in str(caught.value)
    if claim == "growth_bytes":
        assert re.search(r"growth_bytes_per_generation.*count:package\.Class", str(caught.value))
    offline.finish()
    assert events("fix") == []


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("phase", 7), ("phase", " "), ("location", 281), ("promises", [GROWTH]),
        # Growth within a phase requires a phase.
        ("phase", None),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(offline: Run, argument: str, value: Any) -> None:
    claim = "phase_growth_bytes_per_generation"
    with pytest.raises(BadArgument) as caught:
        offline.fix("a fix", **{"phase": "train", "promises": {claim: "1 MiB"}, argument: value})
    assert caught.value.name == argument
    offline.finish()


def test_a_disabled_run_accepts_any_promise() -> None:
    leakline.init(mode="disabled", quiet=True).fix("a fix", promises={"growth": "500 MiB"})


def test_sizes_are_sent_as_bytes_and_a_promised_class_is_counted(
    offline: Run,
) -> None:
    count = f"count:{Environment.__module__}.Environment"
    held = {"generations": 3, "possible_generations": 100, count: 1}
    promises = {GROWTH: "500 MiB", "peak_bytes": "40 GB", **held}
    assert "EXPECTATIONS" not in offline.report()
    offline.fix("close them", phase="train", location="trainer.py:281", promises=promises)
    kept = []
    for generation in range(3):
        with offline.generation(generation), offline.phase("train"):
            kept.append(Environment())
    text = offline.report()
    offline.finish()
    (fix,) = events("fix")
    assert fix.name == "close them"
    assert fix.data == {
        "phase": "train", "location": "trainer.py:281",
        "promises": {GROWTH: 500 * 2**20, "peak_bytes": 40 * 10**9, **held},
    }  # fmt: skip
    # The report of this run also contains the result.
    assert "close them (train, trainer.py:281)" in text
    assert "close them (trainer.py:281): generations to complete" in text.split("EXPECTATIONS")[1]
    assert "holds: Completed 3 generations; the fix promised 3." in text
    assert (
        "broken: 3 Environment objects existed at the end of generation 2; the fix promised at most 1."
        in text
    )
    assert "undecided: Only 3 generations since the fix was declared" in text


def test_control_characters_in_a_location_become_blanks(offline: Run) -> None:
    offline.fix("one", location=Path("training") / "trainer.py")
    offline.fix("two", location="trainer.py\x1b[2J:281\n")
    offline.finish()
    locations = {e.name: e.data["location"] for e in events("fix")}
    assert locations == {"one": "training/trainer.py", "two": "trainer.py [2J:281 "}


def test_rejected_hypotheses_are_sent_with_the_fix_and_bounded(
    offline: Run,
) -> None:
    offline.fix("detach losses", phase="train", rejected="fewer episodes: too slow")
    offline.fix("write much", rejected="x" * 5_000)
    offline.fix("as before")
    offline.finish()
    fixes = {e.name: e.data for e in events("fix")}
    assert fixes["detach losses"]["rejected"] == "fewer episodes: too slow"
    assert len(fixes["write much"]["rejected"]) == 2_000
    # Readers that do not know `rejected` see the same event as before.
    assert set(fixes["as before"]) == {"phase", "location", "promises"}


def test_a_band_may_be_open_ended_and_uses_the_unit_of_its_series() -> None:
    assert declarations.band_data((11, None), "40 GB", "50 GB") == {
        "first": 11, "last": None, "low_bytes": 40 * 10**9, "high_bytes": 50 * 10**9,
    }  # fmt: skip
    assert declarations.band_data((1, 5), 0.25, None)["low_bytes"] == 0.25
    assert declarations.band_data((0, 0), -1.5, 1.5)["low_bytes"] == -1.5


@pytest.mark.parametrize(
    ("span", "low", "high", "named"),
    [
        ((5, 1), 0, 1, "span"), ((1, 5), None, None, "low"), ((1, 5), 2, 1, "high"), ((1, 5), "many", None, "low"),
        ((1, 5), None, float("nan"), "high"), ((1, 5), True, None, "low"),
    ],
)  # fmt: skip
def test_an_empty_band_is_refused(span: Any, low: Any, high: Any, named: str) -> None:
    with pytest.raises(BadArgument) as caught:
        declarations.band_data(span, low, high)
    assert caught.value.name == named
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("span", [(None, 5), (1.5, 2), (1,), (2**60, None)])
def test_a_band_with_fractional_generations_is_refused(span: Any) -> None:
    with pytest.raises((BadArgument, TypeError, ValueError, OverflowError)):
        declarations.band_data(span, 0, 1)


@pytest.mark.parametrize(
    ("normal", "leak", "named"),
    [(None, None, "normal"), ("5 GiB", "4 GiB", "leak"), (-1, None, "normal"), (None, "x", "leak")],
)
def test_a_budget_without_bounds_is_refused(normal: Any, leak: Any, named: str) -> None:
    with pytest.raises(BadArgument) as caught:
        declarations.budget_data(normal, leak)
    assert caught.value.name == named


def test_a_refused_band_or_budget_never_interrupts_the_loop(
    offline: Run, internal_exceptions: Any
) -> None:
    offline.band("process.rss_bytes", (5, 1), low=0, high=1)
    offline.budget("run", normal="2 GiB", leak="1 GiB")
    offline.budget("run", normal="1 GiB", leak="1 GiB")
    offline.finish()
    assert len(internal_exceptions) == 2
    internal_exceptions.clear()
    assert [(e.kind, e.name) for e in events("band", "budget")] == [("budget", "run")]


def test_the_report_of_a_recording_compares_it_with_the_plan(offline: Run) -> None:
    offline.band("process.rss_bytes", (0, 1), high="1 TiB")
    offline.band("process.rss_bytes", (2, 9), low="1 TiB")
    offline.band("gauge.pending", (0, 3), high=5)
    offline.budget("run", normal="1 TiB", leak="2 TiB")
    offline.budget("train", normal="1 TiB")
    for generation in range(3):
        offline.generation(generation)
        offline.gauge("pending", 2 * generation)
        with offline.phase("train"):
            pass
    offline.snapshot("now")
    lines = offline.report().splitlines()
    plan = lines[lines.index("EXPECTATIONS") + 2 :]
    assert plan[0] == "gauge.pending, generations 0 to 3: up to 5"
    assert "process.rss_bytes, generations 0 to 1: up to 1.00 TiB" in plan
    assert "   holds: Within bounds in all 2 generations." in plan
    assert "budget of the whole run" in plan
    assert "budget of train" in plan
    assert sum(line.startswith("   holds: ") for line in plan) == 3
