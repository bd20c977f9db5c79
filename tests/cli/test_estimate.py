"""`leakline estimate`: right, or off and by how much, from its own figures and from the measurements of a run."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.cli.commands.estimate import (
    Amount,
    _measured,
    check_estimate,
    compare_with_growth,
    rounded_factor,
)

MB, GB = 1e6, 1e9


def test_a_wrong_estimate_shows_its_factor_and_direction(leakline: Any) -> None:
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
def test_one_wrong_estimate_among_several_decides(
    leakline: Any, texts: tuple[str, ...], status: int, words: list[str]
) -> None:
    said = leakline("estimate", *texts)
    assert (said.status, [line.split()[0] for line in said.output.splitlines()]) == (status, words)


def test_unparsable_estimates_are_usage_errors(leakline: Any) -> None:
    said = leakline("estimate", "2 x 3 MB = 6 MB", "about twenty gigabytes")
    assert (said.status, said.output) == (2, "")
    assert "'about twenty gigabytes'" in said.error and "208 x 100 KB = 20 GB" in said.error


def test_an_estimate_is_compared_with_the_growth_of_its_suspect(ask: Any) -> None:
    text = "16 Environments x 100 KB = 1.6 MB per generation"
    said = ask("estimate", text, "--run", "app/leaking")
    assert said.status == 3
    own, measured = said.output.splitlines()
    assert own.startswith("right ")
    # There are sixteen environments and 20 MiB in each generation.
    wanted = "Environment, per generation: 20.00 MiB measured; 1.53 MiB is off by a factor of 13 (too low)."
    assert measured == f"out       {wanted}"


def test_an_estimate_without_a_name_is_about_the_entire_run(ask: Any) -> None:
    text = "14 x 16 app.Environment x 1.25 MiB = 280 MiB"
    said = ask("estimate", text, "--run", "run1", "--json")
    assert said.status == 0
    (item,) = json.loads(said.output)["items"]
    (size,) = item["measured"]
    assert size["computed"]["low"] == pytest.approx(280 * 2**20, rel=0.01)
    assert size["outcome"] == "right" and "in 14 generations" in size["sentence"]
    # Without a name the estimate is for the growth of the run; a plain count is compared with nothing measured.
    said = ask("estimate", "10 pigs x 2 MiB/gen", "3 x 2", "--run", "app/leaking")
    assert said.status == 0, said.errors
    own, measured, count = said.output.splitlines()
    assert (own.split()[0], count.split()[0]) == ("computed", "computed")
    assert "the run, per generation: 20.00 MiB measured; 20.00 MiB is right." in measured


@pytest.mark.parametrize("text", ["16 Envs x 25 MiB = 400 MiB", "400 MiB in all x 1"])
def test_growth_counts_from_the_generation_it_began_in(text: str) -> None:
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


# -- sums, and texts that are not sums ----------------------------------------------------------------------


def test_the_first_leak_of_report_001_is_a_thousand_times_too_large() -> None:
    check = check_estimate("208 episodes × 100KB = ~20GB never freed")
    assert check.computed == Amount(20.8 * MB, 20.8 * MB, True)
    assert (check.outcome, check.direction) == ("out", "too_high")
    assert check.factor == pytest.approx(20_000 / 20.8)
    assert check.sentence == (
        "208 episodes × 100KB is 20.8 MB; ~20GB never freed is off by a factor of about 1,000 (too high)."
    )


@pytest.mark.parametrize(
    ("text", "computed", "outcome"),
    [
        # Report 002.
        ("16 agents × 32 gradient steps × 6 accumulation steps = 3,072 tensors", 3072, "right"),
        ("7 × 3,072 = 21,504 tensors", 21_504, "right"),
        ("16 agents × 32 × 6 tensors × 9 MB = 27 GB", 27.648 * GB, "right"),
        # Report 001: the loss history, the clones, the agents, the environments still alive.
        ("16 agents x 192 updates x 13 gens x 8 bytes = 10-20 MB", 319_488, "out"),
        ("39,936 × 8 bytes = ~312KB", 319_488, "right"),
        ("45M params × 4 bytes × 4 networks = 720MB", 720 * MB, "right"),
        ("5% x 30,160 instances = 1,508", 1508, "right"),
        ("1,508 × 90MB = ~136GB", 135.72 * GB, "right"),
        ("136 GB / 13 generations = 5-8 GB per generation", 136 / 13 * GB, "out"),
        ("16 agents × 720MB = 11.5GB", 11.52 * GB, "right"),
    ],
)  # fmt: skip
def test_the_sums_of_the_reports_are_checked(text: str, computed: float, outcome: str) -> None:
    check = check_estimate(text)
    assert check.computed.low == check.computed.high == pytest.approx(computed)
    assert check.outcome == outcome


def test_the_tensors_of_report_002_are_right_within_ten_percent() -> None:
    check = check_estimate("21,504 tensors × 8-10 MB = ~170-210 GB")
    assert check.outcome == "right"
    assert check.claimed == Amount(170 * GB, 210 * GB, True)
    assert check.computed.low == pytest.approx(170 * GB, rel=0.1)
    assert check.computed.high == pytest.approx(210 * GB, rel=0.1)


def test_the_rows_of_the_table_of_report_001_add_up() -> None:
    check = check_estimate("15-20 GB + 5-8 GB + 2-3 GB + 3-5 GB + 100 MB + 10-20 MB = 25-35 GB")
    assert check.computed == Amount(25.11 * GB, 36.12 * GB, True)
    assert check.outcome == "right"


def test_the_crash_of_report_001_contradicts_its_rate() -> None:
    check = check_estimate("25-35 GB/gen x 13 = 175 GB")
    assert check.computed == Amount(325 * GB, 455 * GB, True)
    assert (check.outcome, check.direction) == ("out", "too_low")
    assert check.sentence.endswith("175 GB is off by a factor of 1.9 (too low).")


@pytest.mark.parametrize(
    "text",
    [
        "208 x 100 KB = 20.8 MB", "208x100KB=20.8MB", "208 * 100 kb = 20.8 mb", "208 × 100 KB ≈ 20.8 MB",
        "20.8 MB = 208 × 100 KB", "208 episodes x 0.1 MB = about 20,800 KB", "208 × ~100 KB = ~20.8 MB!",
        "104,000 / 500 x 100 KB = 20.8 MB", "208 episodes × 100 KB/episode = 20.8 MB", "0.208 k x 100KB = 20.8 MB",
        "800 KB + 200 x 100 KB = 20.8 MB", "208 Épisodes × 100 KB Größe = 20.8 MB", "208 x 100,000 bytes = 20.8 MB",
    ],
)  # fmt: skip
def test_sums_are_parsed_in_every_notation(text: str) -> None:
    check = check_estimate(text)
    assert check.outcome == "right"
    assert check.computed.low == pytest.approx(20.8 * MB)


@pytest.mark.parametrize(
    ("text", "computed", "sentence"),
    [
        ("2 x 3 KiB", Amount(6144, 6144, True), "2 x 3 KiB is 6.00 KiB."),
        ("2 x 3 bytes", Amount(6, 6, True), "2 x 3 bytes is 6 B."),
        ("2 + 3 x 4", Amount(14, 14, False), "2 + 3 x 4 is 14."),
        ("12-24 GB / 2-3 GB", Amount(4, 12, False), "12-24 GB / 2-3 GB is 4 to 12."),
        ("3,072 x 8 to 10 MB", Amount(24.576 * GB, 30.72 * GB, True), "3,072 x 8 to 10 MB is 24.58 GB to 30.72 GB."),
    ],
)  # fmt: skip
def test_a_sum_without_a_claim_is_only_computed(text: str, computed: Amount, sentence: str) -> None:
    check = check_estimate(text)
    assert (check.computed, check.sentence) == (computed, sentence)
    assert (check.outcome, check.claimed, check.factor) == ("computed", None, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("208 x = 20 GB", "number is missing"), ("= 5 GB", "number is missing"), ("x 5 GB", "precede 'x'"),
        ("5 GB", "both sides"), ("208 x 100 = 20 GB", "both sides"), ("5 Gbit x 3 = 15 GB", "both sides"),
        ("5 GB x 3 GB = 15 GB", "two sizes"), ("5 GB / 0 = 8 GB", "divided by zero"), ("5 / 2 GB = 3", "by a size"),
        ("5 GB + 3 = 8 GB", "are added"), ("208 100 KB = 20 GB", "precede '100 KB'"), ("2 x x 3", "precede 'x'"),
        ("10-8 MB x 5", "reversed"), ("9" * 200 + " x 5 MB", "too large"), ("1 x " * 200 + "1", "too long"),
        ("2 x 3 = 6 x 2 MB = 12 MB", "several equals signs"), ("(2 + 3) x 4 MB", "'\\(2"), ("2**10 x 5 MB", "precede"),
        ("10 GB - x 3", "cannot be parsed"), ("5Gbit x 3", "cannot be parsed"), ("0,5 GB x 3", "cannot be parsed"),
        ("1.2.3 MB x 4", "cannot be parsed"), ("1,2345 x 3 MB", "cannot be parsed"),
    ],
)  # fmt: skip
def test_unparsable_text_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        check_estimate(text)
    assert "\n" not in str(refused.value)


@settings(max_examples=30)
@given(
    st.text(max_size=30)
    | st.text(alphabet="0123456789 ,.-–+*x×/=≈~()%KMGBiab\u202f\n\x1b", max_size=60)
)
def test_any_text_is_computed_or_refused(text: str) -> None:
    try:
        check = check_estimate(text)
    except ValueError:
        return
    assert check.computed.low <= check.computed.high and math.isfinite(check.computed.high)


@pytest.mark.parametrize(
    ("text", "outcome", "factor", "direction"),
    [
        ("2 x 4 = 8", "right", 1.0, None), ("2 x 50 = 109", "right", 1.09, "too_high"),
        ("2 x 50 = 199", "near", 1.99, "too_high"), ("2 x 50 = 25", "out", 4.0, "too_low"),
        ("2 x 4-5 = 10-12", "right", 1.0, None), ("2 x 4-5 = 12-13", "out", 1.2, "too_high"),
        ("0 x 4 = 5", "out", None, "too_high"), ("0 x 4 = 0", "right", 1.0, None),
    ],
)  # fmt: skip
def test_ranges_ten_percent_apart_and_numbers_off_by_two_are_wrong(
    text: str, outcome: str, factor: float | None, direction: str | None
) -> None:
    check = check_estimate(text)
    assert (check.outcome, check.direction) == (outcome, direction)
    assert check.factor == (None if factor is None else pytest.approx(factor))


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (961.5, "about 1,000"), (1048.6, "about 1,000"), (9.98, "about 10"), (456.7, "460"), (10.7, "11"),
        (9.39, "9.4"), (1.02, "1.0"), (123.0, "120"), (1234.0, "1,200"), (93.0, "93"),
        (math.inf, "over 1e15"),
    ],
)  # fmt: skip
def test_factors_have_two_digits_or_are_powers_of_ten(factor: float, text: str) -> None:
    assert rounded_factor(factor) == text


def test_a_claim_or_else_its_sum_is_compared_with_measured_growth() -> None:
    check = compare_with_growth(check_estimate("16 x 5 MB = 80 MB"), "Env, per epoch", 1440 * MB)
    assert (check.outcome, check.factor, check.direction) == ("out", 18, "too_low")
    assert check.sentence == (
        "Env, per epoch: 1.34 GiB measured; 76.29 MiB is off by a factor of 18 (too low)."
    )
    near = compare_with_growth(check_estimate("10-20 x 1 MB"), "Env, per epoch", 38 * MB)
    assert (near.outcome, near.factor) == ("near", 1.9)
    shrinks = compare_with_growth(check_estimate("2 x 1 MB"), "Env, per epoch", -MB)
    assert (shrinks.outcome, shrinks.factor, shrinks.computed.low) == ("out", None, 0)
