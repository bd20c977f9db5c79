"""A sum that a person wrote is computed as meant, with its range; an estimate that is out is told by its factor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.analysis.estimates import (
    Estimate,
    EstimateCheck,
    Measured,
    apart,
    check_estimate,
    held_against,
    is_named,
    rounded_factor,
    speaks_of_one,
)
from leakline.analysis.sums import MAX_TEXT, Amount, NotUnderstood

KB, MB, GB = 1e3, 1e6, 1e9


def only(estimate: Estimate) -> EstimateCheck:
    (check,) = estimate.checks
    return check


def test_report_001_ranked_first_a_leak_a_thousand_times_too_large() -> None:
    check = only(check_estimate("208 episodes × 100KB = **~20GB never freed**"))
    assert check.computed == Amount(20.8 * MB, 20.8 * MB, True)
    assert (check.outcome, check.direction) == ("out", "too_high")
    assert check.factor == pytest.approx(20_000 / 20.8)
    assert "is 20.8 MB (19.84 MiB), not 20GB" in check.sentence
    assert "off by a factor of about 1,000 (too high; MB, not GB)" in check.sentence


@pytest.mark.parametrize(
    ("text", "computed", "outcome"),
    [
        # Report 002: all of it is right.
        ("16 agents × 32 gradient steps × 6 accumulation steps = **3,072 tensors**", 3072, "right"),
        ("7 × 3,072 = 21,504 tensors", 21_504, "right"),
        ("16 agents × 32 × 6 tensors × 9 MB = 27 GB", 27.648 * GB, "right"),
        # Report 001: the loss history, the clones, the agents, the share that lingers.
        ("16 agents x 192 updates x 13 gens x 8 bytes = 10-20 MB", 319_488, "out"),
        ("39,936 × 8 bytes = **~312KB**", 319_488, "right"),
        ("45M params × 4 bytes × 4 networks = **720MB**", 720 * MB, "right"),
        ("5% x 30,160 instances = 1,508", 1508, "right"),
        ("1,508 × 90MB = **~136GB** (explains 175GB crash!)", 135.72 * GB, "right"),
        ("136 GB / 13 generations = 5-8 GB per generation", 136 / 13 * GB, "out"),
        ("16 agents × 720MB = 11.5GB", 11.52 * GB, "right"),
    ],
)  # fmt: skip
def test_the_sums_of_the_reports(text: str, computed: float, outcome: str) -> None:
    check = only(check_estimate(text))
    assert check.computed.low == check.computed.high == pytest.approx(computed)
    assert check.outcome == outcome


def test_the_tensors_of_report_002_are_right_within_a_tenth_at_both_ends() -> None:
    check = only(check_estimate("21,504 tensors × 8-10 MB = ~170-210 GB"))
    assert check.outcome == "right"
    assert check.claimed == Amount(170 * GB, 210 * GB, True)
    assert check.computed.low == pytest.approx(170 * GB, rel=0.1)
    assert check.computed.high == pytest.approx(210 * GB, rel=0.1)


def test_the_rows_of_the_table_of_report_001_add_up() -> None:
    check = only(
        check_estimate("15-20 GB + 5-8 GB + 2-3 GB + 3-5 GB + 100 MB + 10-20 MB = 25-35 GB")
    )
    assert check.computed == Amount(25.11 * GB, 36.12 * GB, True)
    assert check.outcome == "right"


def test_the_crash_of_report_001_does_not_follow_from_its_rate() -> None:
    check = only(check_estimate("25-35 GB/gen x 13 = 175 GB"))
    assert check.computed == Amount(325 * GB, 455 * GB, True)
    assert (check.outcome, check.direction) == ("out", "too_low")
    assert check.sentence.endswith(
        "not 175 GB: the estimate is off by a factor of at least 1.9 (too low)."
    )


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        # Meets at an end, or misses it by less than a tenth.
        ("2 x 3-4 GB = 8 GB", "right"), ("2 x 3-4 GB = 8.8 GB", "right"), ("2 x 3-4 GB = 5.5 GB", "right"),
        ("2 x 3-4 GB = 8.9 GB", "out"), ("2 x 3-4 GB = 5.4 GB", "out"), ("2 x 4 GB = 4-5 GB", "out"),
        # No range is stated: a factor of two is near enough to plan with.
        ("2 x 4 GB = 4.5 GB", "near"), ("2 x 4 GB = 3.9 GB", "out"),
    ],
)  # fmt: skip
def test_a_stated_range_says_how_far_off_it_may_be(text: str, outcome: str) -> None:
    assert only(check_estimate(text)).outcome == outcome


def test_every_step_of_a_chain_is_checked() -> None:
    first, second = check_estimate(
        "16 agents Ã— 13 generations = 208 episodes Ã— 100KB = ~20GB"
    ).checks
    assert (first.outcome, second.outcome) == ("right", "out")
    assert first.computed.low == 208
    (wrong, _) = check_estimate("16 x 14 = 208 x 100 KB = 20.8 MB").checks
    assert wrong.computed.low == 224


@pytest.mark.parametrize(
    "text",
    [
        "208 x 100 KB = 20.8 MB", "208x100KB=20.8MB", "208 * 100 kb = 20.8 mb", "208 times 100 KB ≈ 20.8 MB",
        "20.8 MB = 208 × 100 KB", "208 · 100 KB -> 20.8 MB", "208 √ó 100 KB = 20.8 MB", "(200 + 8) x 100 KB = 20.8 MB",
        "- 208 episodes x 0.1 MB = about 20,800 KB", "208 × ~100 KB → ~20.8 MB!",
        "104,000 / 500 x 100 KB = 20.8 MB", "208+ episodes × 100 KB/episode = 20.8 MB", "0.208 k x 100KB = 20.8 MB",
        "2.08e2 x .1 MB = 20.8 MB",
        "208 Épisodes × 100 KB Größe = 20.8 MB",
    ],
)  # fmt: skip
def test_a_sum_is_read_however_it_is_written(text: str) -> None:
    estimate = check_estimate(text)
    assert estimate.checks[-1].outcome == "right"
    assert estimate.checks[-1].computed.low == pytest.approx(20.8 * MB)


def test_a_bracket_of_words_with_numbers_in_it_is_refused_where_more_follows() -> None:
    with pytest.raises(NotUnderstood, match="no sign between"):
        check_estimate("208 episodes (16 x 13) x 100 KB = 20 GB")


@pytest.mark.parametrize(
    ("name", "size"),
    [("KB", KB), ("KiB", 1024), ("MB", MB), ("MiB", 2**20), ("GB", GB), ("GiB", 2**30), ("TB", 1e12), ("TiB", 2**40),
     ("bytes", 1), ("B", 1), ("G", GB)],
)  # fmt: skip
def test_every_unit_has_its_size(name: str, size: float) -> None:
    assert only(check_estimate(f"2 x 3 {name}")).computed == Amount(6 * size, 6 * size, True)


def test_a_sum_without_a_claim_is_only_computed() -> None:
    check = only(check_estimate("3,072 tensors x 8-10 MB"))
    assert (check.outcome, check.claimed, check.factor) == ("computed", None, None)
    assert (
        check.sentence
        == "3,072 tensors x 8-10 MB is 24.58 GB to 30.72 GB (22.89 GiB to 28.61 GiB)."
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "a number is missing"), ("", "a number is missing"), ("208 x = 20 GB", "a number is missing"),
        ("= 5 GB", "a number is missing"), ("5 GB", "nothing to compute"), ("208 x 100 = 20 GB", "size of one"),
        ("208 100 KB = 20 GB", "no sign between '208' and '100 KB'"), ("5 GB x 3 GB = 15 GB", "two sizes"),
        ("5 GB + 3 = 8 GB", "cannot be added"), ("5 GB / 0 = 8 GB", "division by zero"),
        ("2**10 x 5 MB = 5 GB", "powers"), ("2^10 x 5 MB", "powers"), ("10 - 16 GB x -3", "minus"),
        ("10-8 MB x 5", "backwards"), ("10 GB - 16 x 3", "different units"), ("2 x 3 @ 5", "'@'"),
        ("(2 x 3 MB = 6 MB", "bracket"), ("1e400 x 5 MB", "too large"),
        ("9" * 200 + " x 5 MB", "too large"),
        ("5 Gbit x 3 = 15 GB", "size"), ("16 x 8Mi = 128 MB", "'Mi' behind '8'"), ("0,5 GB x 3", "no sign between '0'"),
        ("8 / 3 MB = 5", "divided by a size"), ("1 x " * MAX_TEXT, "longer than"),
        ("39,936 floats = 312 KB", "size of one"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named_in_one_line(text: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why) as refused:
        check_estimate(text)
    assert "\n" not in str(refused.value)


@settings(max_examples=150)
@given(
    st.text(max_size=30)
    | st.text(alphabet="0123456789 ,.-–+*x×/=≈~()%KMGBiab\u202f\n\x1b", max_size=60)
)
def test_any_text_is_computed_or_refused(text: str) -> None:
    try:
        estimate = check_estimate(text)
    except NotUnderstood as refused:
        assert str(refused) and "\n" not in str(refused)
        return
    for check in estimate.checks:
        assert check.computed.low <= check.computed.high and math.isfinite(check.computed.high)
        assert check.sentence.isprintable()


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 10**5), min_size=1, max_size=3), st.integers(1, 10**4),
    st.sampled_from([("KB", KB), ("MiB", 2.0**20), ("GB", GB)]), st.floats(0.001, 1000),
)  # fmt: skip
def test_the_factor_is_that_between_what_is_said_and_what_is_so(
    counts: list[int], size: int, unit: tuple[str, float], error: float
) -> None:
    true = math.prod(counts) * size * unit[1]
    said = " things × ".join(f"{count:,}" for count in counts)
    claimed = max(1, round(true * error))
    text = f"{said} × {size} {unit[0]} = {claimed} bytes"
    if claimed > 1e30:
        with pytest.raises(NotUnderstood, match="too large to be meant"):
            check_estimate(text)
        return
    check = only(check_estimate(text))
    assert check.computed.low == pytest.approx(true)
    assert check.factor == pytest.approx(max(claimed / true, true / claimed))
    assert check.outcome == (
        "out" if check.factor > 2 else "near" if check.factor > 1.1 else "right"
    )


def test_ranges_that_meet_are_no_disagreement() -> None:
    assert apart(Amount(8, 10, True), Amount(10, 12, True)) == (1.0, None)
    assert apart(Amount(8, 10, True), Amount(30, 40, True)) == (3.0, "too_high")
    assert apart(Amount(8, 10, True), Amount(1, 2, True)) == (4.0, "too_low")
    assert apart(Amount(0, 0, True), Amount(1, 2, True)) == (None, "too_high")


@pytest.mark.parametrize(
    ("factor", "told"),
    [(961.5, "about 1,000"), (1048.6, "about 1,000"), (31.3, "31"), (2.04, "2.0"), (9.98, "about 10"),
     (456.7, "460"), (1.2e6, "1,200,000"), (940, "940"), (math.inf, "over 1,000,000,000,000,000")],
)  # fmt: skip
def test_a_factor_is_told_as_a_person_says_it(factor: float, told: str) -> None:
    assert rounded_factor(factor) == told


MEASURED = Measured(
    "trading.TradingEnvironment", "generation", 13, 16.0, 16 * 90 * MB, 210.0, 90 * MB
)


def test_an_estimate_is_held_against_what_the_run_measured() -> None:
    estimate = check_estimate("16 TradingEnvironment x 5 MB = 80 MB per generation")
    size, number, each = held_against(estimate, MEASURED)
    assert (size.outcome, number.outcome, each.outcome) == ("out", "right", "out")
    assert size.factor == each.factor == pytest.approx(18)
    assert size.sentence == (
        "TradingEnvironment, size per generation: 1.34 GiB measured, 76.29 MiB said: off by a factor of 18 (too low)."
    )


def test_an_estimate_of_the_whole_run_is_held_against_what_there_is_by_now() -> None:
    estimate = check_estimate("13 x 16 TradingEnvironments x 90 MB = 18.7 GB")
    size, number, each = held_against(estimate, MEASURED)
    assert number.computed.low == 210
    assert size.computed.low == pytest.approx(210 * 90 * MB)
    assert {check.outcome for check in (size, number, each)} == {"right"}


def test_what_was_not_measured_is_held_against_nothing() -> None:
    estimate = check_estimate("16 TradingEnvironment x 5 MB = 80 MB per generation")
    assert held_against(estimate, Measured("TradingEnvironment", "generation", 13)) == ()
    (number,) = held_against(estimate, Measured("TradingEnvironment", "generation", 13, 16.0))
    assert number.computed == Amount(16, 16, False)


def test_growth_that_was_measured_as_none_is_not_unknown() -> None:
    estimate = check_estimate("16 TradingEnvironment x 5 MB = 80 MB per generation")
    size, *_ = held_against(estimate, Measured("TradingEnvironment", "generation", 13, 0.0, 0.0))
    assert (size.outcome, size.factor, size.computed.low) == ("out", None, 0)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("trading.TradingEnvironment", True), ("tradingenvironment", True), ("trading.Environment", False),
        ("app.Trainer.episode_rewards", True), ("Trading", False), ("episode", False),
    ],
)  # fmt: skip
def test_a_class_is_named_by_its_whole_name_or_its_last(name: str, named: bool) -> None:
    assert is_named("208 TradingEnvironments x 3 episode_rewards", name) is named


@pytest.mark.parametrize(
    ("text", "unit", "one"),
    [
        ("5 GB per generation", "generation", True), ("5GB/gen", "generation", True), ("5 GB/epoch", "epoch", True),
        ("5 GB each epoch", "epoch", True), ("5 GB in 13 generations", "generation", False),
        ("5 GB/gen", "epoch", False),
    ],
)  # fmt: skip
def test_whether_a_text_is_about_one_generation(text: str, unit: str, one: bool) -> None:
    assert speaks_of_one(text, unit) is one
