"""`leakline estimate`: right or out and by how much, by its own figures and by what a run measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leakline.cli.commands.estimate import _measured, check_estimate


def test_an_estimate_that_is_out_is_told_by_its_factor(leakline: Any) -> None:
    said = leakline("estimate", "208 x 100 KB = 20 GB")
    assert said.status == 3
    (line,) = said.output.splitlines()
    assert line.startswith("out ")
    assert "20.8 MB" in line and "about 1,000" in line and "too high" in line
    item = json.loads(leakline("estimate", "208 x 100 KB = 20 GB", "--json").output)["items"][0]
    assert (set(item), item["measured"]) == ({"text", "checks", "measured"}, [])
    (check,) = item["checks"]
    assert set(check) == {
        "computed", "claimed", "outcome", "factor", "direction", "sentence",
    }  # fmt: skip
    assert check["computed"] == {"low": 20.8e6, "high": 20.8e6, "is_size": True}
    assert (check["claimed"]["low"], check["direction"]) == (20e9, "too_high")


@pytest.mark.parametrize(
    ("texts", "status", "words"),
    [
        (("16 × 32 × 6 tensors × 9 MB = 27 GB", "2 x 3 MB = 9 MB", "2 x 3 MB"), 0, ["right", "near", "computed"]),
        (("2 x 3 MB = 6 MB", "2 x 3 MB = 6 GB"), 3, ["right", "out"]),
    ],
)  # fmt: skip
def test_one_that_is_out_among_several_decides(
    leakline: Any, texts: tuple[str, ...], status: int, words: list[str]
) -> None:
    said = leakline("estimate", *texts)
    assert (said.status, [line.split()[0] for line in said.output.splitlines()]) == (status, words)


@pytest.mark.parametrize(
    ("text", "status", "word"),
    [
        # F1, F2, F3, F4 of report 001; then its own figure for F4, and its table, which add up.
        ("208 episodes x 100 KB = about 20 GB", 3, "out"),
        ("25-35 GB/gen x 13 generations = 175 GB", 3, "out"),
        ("136 GB / 13 generations = 5-8 GB per generation", 3, "out"),
        ("16 agents x 192 updates x 13 generations x 8 bytes = 10-20 MB", 3, "out"),
        ("39,936 losses x 8 bytes = about 312 KB", 0, "right"),
        ("3 million x 8 bytes = 24 MB", 0, "right"),
        ("15-20 GB + 5-8 GB + 2-3 GB + 3-5 GB + 100 MB + 10-20 MB = 25-36 GB", 0, "right"),
    ],
)
def test_what_report_001_contradicts_fails_and_what_it_computed_rightly_does_not(
    leakline: Any, text: str, status: int, word: str
) -> None:
    said = leakline("estimate", text)
    assert (said.status, said.output.split()[0]) == (status, word)


def test_what_is_not_understood_is_wrong_use_and_answers_nothing(leakline: Any) -> None:
    said = leakline("estimate", "2 x 3 MB = 6 MB", "about twenty gigabytes")
    assert (said.status, said.output) == (2, "")
    assert "'about twenty gigabytes'" in said.error and "208 x 100 KB = 20 GB" in said.error


def test_an_estimate_is_compared_with_the_growth_of_the_suspect_it_names(ask: Any) -> None:
    text = "16 Environments x 100 KB = 1.6 MB per generation"
    said = ask("estimate", text, "--run", "app/leaking")
    assert said.status == 3
    own, measured = said.output.splitlines()
    assert own.startswith("right ")
    # Sixteen of them and 20 MiB in each generation.
    wanted = "Environment, per generation: 20.00 MiB measured; 1.53 MiB is off by a factor of 13 (too low)."
    assert measured == f"out       {wanted}"


def test_an_estimate_is_about_all_that_it_does_not_narrow_down(ask: Any) -> None:
    text = "14 x 16 app.Environment x 1.25 MiB = 280 MiB"
    said = ask("estimate", text, "--run", "run1", "--json")
    assert said.status == 0
    (item,) = json.loads(said.output)["items"]
    (size,) = item["measured"]
    assert size["computed"]["low"] == pytest.approx(280 * 2**20, rel=0.01)
    assert size["outcome"] == "right" and "in 14 generations" in size["sentence"]
    # Without a name it is about the growth of the run, and a count about nothing that was measured.
    said = ask("estimate", "10 pigs x 2 MiB/gen", "3 x 2", "--run", "app/leaking")
    assert said.status == 0, said.errors
    own, measured, count = said.output.splitlines()
    assert (own.split()[0], count.split()[0]) == ("computed", "computed")
    assert "the run, per generation: 20.00 MiB measured; 20.00 MiB is right." in measured


@pytest.mark.parametrize("text", ["16 Envs x 25 MiB = 400 MiB", "400 MiB in all x 1"])
def test_a_growth_counts_from_the_generation_that_it_began_in(text: str) -> None:
    rate = 20 * 2**20
    finding = {
        "fingerprint": "f", "started_at_generation": {"estimate": 20},
        "suspects": [{"name": "app.Env", "bytes_per_generation": rate}],
    }  # fmt: skip
    verdict = {
        "unit": "epoch", "generations": 40, "findings": [finding],
        "growth_bytes_per_generation": {"estimate": rate},
    }  # fmt: skip
    (measured,) = _measured(text, check_estimate(text), verdict)
    assert measured.outcome == "right"
    assert "at this rate in 20 epochs: 400.00 MiB measured" in measured.sentence
