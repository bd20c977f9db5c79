"""A sum that a person wrote is computed as meant, with its range; an estimate that is out is told by its factor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.analysis.estimates import (
    Direction,
    Estimate,
    EstimateCheck,
    Measured,
    _against,
    _count,
    _decimal,
    _each_and_count,
    _number_of,
    _outcome,
    _short,
    _size_of,
    _slip,
    _told,
    apart,
    check_estimate,
    held_against,
    is_named,
    rounded_factor,
    speaks_of_one,
    worst,
)
from leakline.analysis.sums import (
    MAX_TEXT,
    Amount,
    NotUnderstood,
    Side,
    _amount,
    _over,
    _times,
    read_sum,
)

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
    [
        ("KB", KB), ("KiB", 1024), ("MB", MB), ("GB", GB), ("bytes", 1), ("G", GB),
    ],
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
        ("208 x = 20 GB", "a number is missing"), ("= 5 GB", "a number is missing"),
        ("5 GB", "nothing to compute"), ("208 x 100 = 20 GB", "size of one"),
        ("5 GB x 3 GB = 15 GB", "two sizes"), ("5 GB + 3 = 8 GB", "cannot be added"),
        ("2**10 x 5 MB = 5 GB", "powers"), ("10 - 16 GB x -3", "minus"), ("10 GB - 16 x 3", "different units"),
        ("5 GB / 0 = 8 GB", "division by zero"), ("208 100 KB = 20 GB", "no sign between '208' and '100 KB'"),
        ("10-8 MB x 5", "backwards"), ("(2 x 3 MB = 6 MB", "bracket"), ("1e400 x 5 MB", "too large"),
        ("9" * 200 + " x 5 MB", "too large"), ("(" * 21 + "2 x 3 MB" + ")" * 21, "too many brackets"),
        ("5 Gbit x 3 = 15 GB", "size"), ("0,5 GB x 3", "no sign between '0'"), ("1 x " * MAX_TEXT, "longer than"),
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
    [
        (961.5, "about 1,000"), (1048.6, "about 1,000"), (9.98, "about 10"), (456.7, "460"),
        (math.inf, "over 1,000,000,000,000,000"),
    ],
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
        ("trading.TradingEnvironment", True), ("tradingenvironment", True), ("episode", False),
    ],
)  # fmt: skip
def test_a_class_is_named_by_its_whole_name_or_its_last(name: str, named: bool) -> None:
    assert is_named("208 TradingEnvironments x 3 episode_rewards", name) is named


@pytest.mark.parametrize(
    ("text", "unit", "one"),
    [
        ("5 GB per generation", "generation", True), ("5GB/gen", "generation", True),
        ("5 GB/gen", "epoch", False),
    ],
)  # fmt: skip
def test_whether_a_text_is_about_one_generation(text: str, unit: str, one: bool) -> None:
    assert speaks_of_one(text, unit) is one


def _things(low: float, high: float | None = None) -> Amount:
    return Amount(low, low if high is None else high, False)


def _bytes(low: float, high: float | None = None) -> Amount:
    return Amount(low, low if high is None else high, True)


@pytest.mark.parametrize(
    ("said", "amount"),
    [
        ("45M", _things(45e6)), ("2k", _things(2000)), ("3 thousand", _things(3000)), ("5 %", _things(0.05)),
        ("100 KiB", _bytes(102_400)),
        # The unit behind a range is that of both ends; each may have its own.
        ("8-10 MB", _bytes(8e6, 10e6)), ("900 KB-2 MB", _bytes(9e5, 2e6)), ("8-10", _things(8, 10)),
        ("8-10k", _things(8000, 10_000)), ("5-5 MB", _bytes(5e6)), ("8 to 10 GB", _bytes(8e9, 10e9)),
    ],
)  # fmt: skip
def test_an_amount_is_its_digits_times_its_unit(said: str, amount: Amount) -> None:
    assert _amount(said) == amount


@pytest.mark.parametrize("said", ["8 MB-10", "10-8 MB", "2 MB-900 KB", "1e31", "8 k-10 MB"])
def test_ends_that_are_of_different_kinds_or_backwards_are_no_range(said: str) -> None:
    with pytest.raises(NotUnderstood):
        _amount(said)


def test_a_size_times_a_count_is_a_size() -> None:
    assert _times(_things(2, 3), _things(5, 7)) == _things(10, 21)
    assert _times(_bytes(2, 3), _things(5, 7)) == _bytes(10, 21)
    assert _times(_things(2, 3), _bytes(5, 7)) == _bytes(10, 21)
    with pytest.raises(NotUnderstood):
        _times(_bytes(2), _bytes(3))


def test_the_least_of_a_division_is_that_by_the_most() -> None:
    assert _over(_things(12, 24), _things(2, 3)) == _things(4, 12)
    assert _over(_bytes(12, 24), _things(2, 3)) == _bytes(4, 12)
    # How often a size goes into another counts things.
    assert _over(_bytes(12, 24), _bytes(2, 3)) == _things(4, 12)
    assert _over(_things(1), _things(0.5)) == _things(2)
    for refused in ((_things(1), _things(0, 2)), (_things(1), _bytes(2))):
        with pytest.raises(NotUnderstood):
            _over(*refused)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2 + 3 x 4", _things(14)), ("(2 + 3) x 4", _things(20)), ("12 / 3 x 2", _things(8)),
        ("4 (of these) x 2", _things(8)),
        # Twenty brackets are not too many.
        ("(" * 20 + "2" + ")" * 20, _things(2)),
    ],
)  # fmt: skip
def test_brackets_go_first_then_products_then_sums(text: str, amount: Amount) -> None:
    (side,) = read_sum(text)
    assert side.amount == amount


def test_what_is_counted_is_said_with_its_number() -> None:
    left, right = read_sum("- 16 agents x 2 MB each = 32 MB in all, they said")
    assert (left.said, right.said) == ("16 agents x 2 MB each", "32 MB in all")
    assert left.amount.middle == 32e6
    assert _things(2, 6).middle == 4


@pytest.mark.parametrize(
    ("true", "claimed", "factor", "direction"),
    [
        (_things(8, 10), _things(10, 12), 1.0, None), (_things(8, 10), _things(6, 8), 1.0, None),
        (_things(0.5), _things(1), 2.0, "too_high"), (_things(1), _things(0.5), 2.0, "too_low"),
    ],
)  # fmt: skip
def test_amounts_are_as_far_apart_as_their_nearest_ends(
    true: Amount, claimed: Amount, factor: float | None, direction: Direction | None
) -> None:
    assert apart(true, claimed) == (factor, direction)


def test_the_worst_of_several_steps_is_that_of_all() -> None:
    assert worst([]) == "computed"
    right, near = check_estimate("2 x 4 = 8").checks[0], check_estimate("2 x 4 = 9").checks[0]
    out = check_estimate("2 x 4 = 80").checks[0]
    assert worst([right, near, right]) == "near"
    assert worst([near, out, right]) == "out"


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        # What is 6 % off a power of ten is told as that.
        (10.7, "11"), (9.39, "9.4"), (1.02, "1.0"), (123.0, "120"), (1234.0, "1,200"), (93.0, "93"),
    ],
)  # fmt: skip
def test_a_factor_has_two_digits_or_is_a_power_of_ten(factor: float, told: str) -> None:
    assert rounded_factor(factor) == told


@pytest.mark.parametrize(
    ("factor", "direction", "said", "told"),
    [
        (1000.0, "too_high", "20 GB", "; MB, not GB"), (1000.0, "too_low", "20 GB", "; TB, not GB"),
        (1e6, "too_high", "20 GB", "; KB, not GB"), (1000.0, "too_high", "20 GiB", "; MiB, not GiB"),
        (1099.0, "too_high", "20 GB", "; MB, not GB"), (901.0, "too_high", "20 GB", "; MB, not GB"),
        # No unit is below bytes, and none above petabytes.
        (1000.0, "too_low", "5 TB", "; PB, not TB"), (1e15, "too_high", "5 PB", ""),
    ],
)  # fmt: skip
def test_a_factor_of_a_thousand_is_a_unit_taken_for_the_next(
    factor: float, direction: Direction, said: str, told: str
) -> None:
    assert _slip(factor, direction, said) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0 B"), (999.0, "999 B"), (1e6, "1 MB"), (1e9, "1 GB"), (2e15, "2 PB"),
    ],
)  # fmt: skip
def test_a_size_in_decimal_units(value: float, told: str) -> None:
    assert _decimal(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3.0, "3"), (2.5, "2.5"), (9.876, "9.88"), (10.4, "10"), (1234.0, "1,234"),
    ],
)  # fmt: skip
def test_a_number_of_things_below_ten_has_three_digits(value: float, told: str) -> None:
    assert _count(value) == told


@pytest.mark.parametrize(
    ("amount", "written", "told"),
    [
        (_bytes(2048), "2 KiB", "2.00 KiB"), (_bytes(1000), "1 KB", "1 KB (1,000 B)"),
        (_bytes(1e6, 2e6), "1-2 MB", "1 MB to 2 MB (976.56 KiB to 1.91 MiB)"),
    ],
)  # fmt: skip
def test_a_size_is_told_in_the_units_that_were_written(
    amount: Amount, written: str, told: str
) -> None:
    assert _told(amount, written) == told


@pytest.mark.parametrize(("length", "kept"), [(89, 89), (90, 90), (91, 90), (200, 90)])
def test_what_was_said_is_cut_at_ninety_characters(length: int, kept: int) -> None:
    short = _short("x" * length)
    assert len(short) == kept
    assert short.endswith("…") is (length > 90)


def _side(*factors: Amount, is_product: bool = True) -> Side:
    return Side("", factors[0], factors, True, is_product)


def test_a_product_with_one_size_is_that_size_and_the_number_of_them() -> None:
    assert _each_and_count(_side(_things(2, 3), _bytes(5), _things(4))) == (
        _bytes(5),
        _things(8, 12),
    )
    assert _each_and_count(_side(_bytes(5))) == (_bytes(5), _things(1))
    assert _each_and_count(_side(_things(2), _things(3))) == (None, None)
    assert _each_and_count(_side(_bytes(2), _bytes(3))) == (None, None)
    assert _each_and_count(_side(_bytes(5), _things(4), is_product=False)) == (None, None)


def test_a_count_leads_on_to_the_next_product_or_is_checked_against_its_first_number() -> None:
    (only,) = check_estimate("6 = 6 x 2 MB = 12 MB").checks
    assert only.outcome == "right"
    (only,) = check_estimate("2 x 3 = 2 MB x 6 = 12 MB").checks
    assert only.computed == _bytes(12e6)
    first, second = check_estimate("2 x 3 = 60 x 2 MB = 120 MB").checks
    assert (first.outcome, first.factor, second.outcome) == ("out", 10, "right")
    (turned,) = check_estimate("12 MB = 6 x 4 MB").checks
    assert (turned.computed, turned.claimed) == (_bytes(24e6), _bytes(12e6))
    (both,) = check_estimate("2 x 3 = 3 x 4").checks
    assert (both.computed, both.claimed) == (_things(6), _things(12))


@pytest.mark.parametrize(
    ("measured", "one", "number", "size"),
    [
        ((), False, None, None), ((), True, None, None), ((4.0, None, None, 20.0), False, 40.0, 800.0),
        # What nobody counted grew as it did in each generation.
        ((None, 100.0, None, 20.0), False, None, 1000.0), ((4.0, 100.0, None, None), False, 40.0, 1000.0),
        ((None, None, 30.0, 20.0), True, None, None),
    ],
)  # fmt: skip
def test_what_a_run_measured_of_a_class_after_ten_generations(
    measured: tuple[float | None, ...], one: bool, number: float | None, size: float | None
) -> None:
    known = Measured("app.Class", "generation", 10, *measured)
    assert (_number_of(known, one), _size_of(known, one)) == (number, size)


def test_a_measurement_is_near_within_a_factor_of_two_of_a_range_too() -> None:
    near = _against("app.Class", "number", _things(10, 20), 38.0)
    assert (near.outcome, near.factor, near.direction) == ("near", 1.9, "too_low")
    assert (
        near.sentence
        == "Class, number: 38 measured, 10 to 20 said: near, at least 1.9 times too low."
    )


@pytest.mark.parametrize(
    ("factor", "near", "outcome"),
    [
        (1.0, 2.0, "right"), (1.1, 2.0, "right"), (1.11, 2.0, "near"), (2.0, 2.0, "near"), (2.01, 2.0, "out"),
        (None, 2.0, "out"), (1.1, 1.1, "right"), (1.11, 1.1, "out"),
    ],
)  # fmt: skip
def test_right_is_within_a_tenth_and_near_within_a_factor_of_two(
    factor: float | None, near: float, outcome: str
) -> None:
    assert _outcome(factor, near) == outcome
    if near == 2.0:
        assert _outcome(factor) == outcome
