"""Sums and what is held against them, on both sides of what makes one right, near, out or not understood."""

from __future__ import annotations

import pytest

from leakline.analysis.estimates import (
    Direction,
    Estimate,
    EstimateOutcome,
    Measured,
    _against,
    _count,
    _decimal,
    _each_and_count,
    _is_range,
    _number_of,
    _off,
    _outcome,
    _right,
    _short,
    _size_of,
    _slip,
    _told,
    apart,
    check_estimate,
    held_against,
    rounded_factor,
    worst,
)
from leakline.analysis.sums import (
    Amount,
    NotUnderstood,
    Side,
    _amount,
    _over,
    _times,
    _within_reason,
    read_sum,
)


def _things(low: float, high: float | None = None) -> Amount:
    return Amount(low, low if high is None else high, False)


def _bytes(low: float, high: float | None = None) -> Amount:
    return Amount(low, low if high is None else high, True)


@pytest.mark.parametrize(
    ("said", "amount"),
    [
        ("7", _things(7)), ("13+", _things(13)), ("45M", _things(45e6)), ("2k", _things(2000)),
        ("3 thousand", _things(3000)), ("5 %", _things(0.05)), ("1,024.5", _things(1024.5)), (".5", _things(0.5)),
        ("100 KB", _bytes(100_000)), ("100 KiB", _bytes(102_400)), ("3 TB", _bytes(3e12)),
        ("2 PiB", _bytes(2 * 2.0**50)),
        ("2 PB", _bytes(2e15)), ("2 t", _bytes(2e12)), ("1 b", _bytes(1)),
        # The unit behind a range is that of both ends; each may have its own.
        ("8-10 MB", _bytes(8e6, 10e6)), ("900 KB-2 MB", _bytes(9e5, 2e6)), ("8-10", _things(8, 10)),
        ("8-10k", _things(8000, 10_000)), ("2k-3000", _things(2000, 3000)), ("5-5 MB", _bytes(5e6)),
        ("8 to 10 GB", _bytes(8e9, 10e9)),
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


def test_no_sum_is_above_a_nonillion() -> None:
    assert _within_reason(_things(1, 1e30)) == _things(1, 1e30)
    for high in (1.01e30, float("inf"), float("nan")):
        with pytest.raises(NotUnderstood):
            _within_reason(_things(1, high))


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2 + 3 x 4", _things(14)), ("(2 + 3) x 4", _things(20)), ("12 / 3 x 2", _things(8)),
        ("2 x 3 + 4 x 5", _things(26)),
        ("1-2 + 3-5", _things(4, 7)), ("1 MB + 1 MB + 2 MB", _bytes(4e6)), ("4 (of these) x 2", _things(8)),
        ("((2))", _things(2)),
    ],
)  # fmt: skip
def test_brackets_go_first_then_products_then_sums(text: str, amount: Amount) -> None:
    (side,) = read_sum(text)
    assert side.amount == amount


@pytest.mark.parametrize(
    ("text", "is_sum", "is_product", "factors"),
    [
        ("2 x 3 MB", True, True, 2), ("5 MB", False, True, 1), ("2 + 3", True, False, 2), ("6 / 3", True, False, 2),
        ("2 x 3 + 1", True, False, 3),
    ],
)  # fmt: skip
def test_a_side_says_whether_it_is_a_sum_and_of_products_alone(
    text: str, is_sum: bool, is_product: bool, factors: int
) -> None:
    (side,) = read_sum(text)
    assert (side.is_sum, side.is_product, len(side.factors)) == (is_sum, is_product, factors)


def test_twenty_brackets_and_five_hundred_characters_are_enough() -> None:
    (side,) = read_sum("(" * 20 + "2" + ")" * 20)
    assert side.amount == _things(2)
    with pytest.raises(NotUnderstood, match="too many brackets"):
        read_sum("(" * 21 + "2" + ")" * 21)
    assert len(read_sum("2 x 3" + " " * 495)) == 1
    with pytest.raises(NotUnderstood, match="longer than 500 "):
        read_sum("2 x 3" + " " * 496)


def test_what_is_counted_is_said_with_its_number() -> None:
    left, right = read_sum("- 16 agents x 2 MB each = 32 MB in all, they said")
    assert (left.said, right.said) == ("16 agents x 2 MB each", "32 MB in all")
    assert left.amount.middle == 32e6
    assert _things(2, 6).middle == 4


@pytest.mark.parametrize(
    ("true", "claimed", "factor", "direction"),
    [
        (_things(8, 10), _things(10, 12), 1.0, None), (_things(8, 10), _things(6, 8), 1.0, None),
        (_things(8, 10), _things(11, 12), 1.1, "too_high"), (_things(8, 10), _things(2, 4), 2.0, "too_low"),
        (_things(0), _things(1), None, "too_high"), (_things(1), _things(0), None, "too_low"),
        (_things(0.5), _things(1), 2.0, "too_high"), (_things(1), _things(0.5), 2.0, "too_low"),
    ],
)  # fmt: skip
def test_amounts_are_as_far_apart_as_their_nearest_ends(
    true: Amount, claimed: Amount, factor: float | None, direction: Direction | None
) -> None:
    assert apart(true, claimed) == (factor, direction)


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


def test_the_worst_of_several_steps_is_that_of_all() -> None:
    assert worst([]) == "computed"
    right, near = check_estimate("2 x 4 = 8").checks[0], check_estimate("2 x 4 = 9").checks[0]
    out = check_estimate("2 x 4 = 80").checks[0]
    assert worst([right, near, right]) == "near"
    assert worst([near, out, right]) == "out"


@pytest.mark.parametrize(
    ("amounts", "is_range"),
    [([_things(2, 2)], False), ([_things(2, 3)], True), ([_things(2), _things(2, 3)], True)],
)
def test_a_range_has_two_ends(amounts: list[Amount], is_range: bool) -> None:
    assert _is_range(*amounts) is is_range


@pytest.mark.parametrize(
    ("outcome", "factor", "direction", "ends", "told"),
    [
        ("right", None, None, False, "right"), ("right", 1.0, None, True, "right"),
        ("right", 1.041, "too_low", False, "right within 5 %"),
        ("near", 1.5, "too_high", False, "near, 1.5 times too high"),
        ("near", 1.5, "too_low", True, "near, at least 1.5 times too low"),
    ],
)  # fmt: skip
def test_how_near_an_estimate_is(
    outcome: EstimateOutcome,
    factor: float | None,
    direction: Direction | None,
    ends: bool,
    told: str,
) -> None:
    assert _right(outcome, factor, direction, ends) == told


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        # What is 6 % off a power of ten is told as that.
        (10.59, "about 10"), (10.7, "11"), (9.4, "about 10"), (9.39, "9.4"), (1.02, "1.0"), (99.0, "about 100"),
        (123.0, "120"), (1234.0, "1,200"), (93.0, "93"), (10.9, "11"), (0.9e15, "900,000,000,000,000"),
        (1e15, "over 1,000,000,000,000,000"),
    ],
)  # fmt: skip
def test_a_factor_has_two_digits_or_is_a_power_of_ten(factor: float, told: str) -> None:
    assert rounded_factor(factor) == told


@pytest.mark.parametrize(
    ("factor", "direction", "said", "told"),
    [
        (1000.0, "too_high", "20 GB", "; MB, not GB"), (1000.0, "too_low", "20 GB", "; TB, not GB"),
        (1e6, "too_high", "20 GB", "; KB, not GB"), (1000.0, "too_high", "20 GiB", "; MiB, not GiB"),
        (1099.0, "too_high", "20 GB", "; MB, not GB"), (1101.0, "too_high", "20 GB", ""),
        (901.0, "too_high", "20 GB", "; MB, not GB"), (899.0, "too_high", "20 GB", ""),
        (1.05, "too_high", "20 GB", ""), (1000.0, "too_high", "20", ""), (1000.0, "too_high", "5 KB", "; B, not KB"),
        # No unit is below bytes, and none above petabytes.
        (1e6, "too_high", "5 KB", ""), (1000.0, "too_low", "5 PB", ""), (1000.0, "too_low", "5 TB", "; PB, not TB"),
        (1e15, "too_high", "5 PB", ""), (1000.0, "too_high", "2 MB or 20 GB", "; MB, not GB"),
    ],
)  # fmt: skip
def test_a_factor_of_a_thousand_is_a_unit_taken_for_the_next(
    factor: float, direction: Direction, said: str, told: str
) -> None:
    assert _slip(factor, direction, said) == told


def test_how_far_off_an_estimate_is() -> None:
    assert _off(None, "too_low", False, "") == "too low: one of them is nothing"
    assert _off(3.0, "too_high", True, "") == "off by a factor of at least 3.0 (too high)"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0 B"), (999.0, "999 B"), (1000.0, "1 KB"), (1500.0, "1.5 KB"), (999_999.0, "1000 KB"),
        (1e6, "1 MB"), (1e9, "1 GB"), (2e15, "2 PB"), (2e18, "2000 PB"),
    ],
)  # fmt: skip
def test_a_size_in_decimal_units(value: float, told: str) -> None:
    assert _decimal(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(3.0, "3"), (2.5, "2.5"), (9.876, "9.88"), (10.4, "10"), (10.0, "10"), (1234.0, "1,234")],
)
def test_a_number_of_things_below_ten_has_three_digits(value: float, told: str) -> None:
    assert _count(value) == told


@pytest.mark.parametrize(
    ("amount", "written", "told"),
    [
        (_things(3, 5), "3-5", "3 to 5"), (_bytes(2048), "2 KiB", "2.00 KiB"),
        (_bytes(2000), "2 KB", "2 KB (1.95 KiB)"),
        (_bytes(1000), "1 KB", "1 KB (1,000 B)"), (_bytes(999), "1 KB", "999 B"),
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


def test_the_newest_product_of_a_chain_tells_the_size_of_one() -> None:
    estimate = check_estimate("2 x 3 MB = 6 MB = 3 x 2 MB")
    assert (estimate.each, estimate.count, estimate.value) == (_bytes(2e6), _things(3), _bytes(6e6))
    assert check_estimate("2 x 3 = 6").each is None


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
        ((), False, None, None), ((), True, None, None),
        ((4.0, 100.0, 30.0, 20.0), True, 4.0, 100.0), ((4.0, 100.0, 30.0, 20.0), False, 30.0, 600.0),
        ((4.0, None, None, 20.0), True, 4.0, 80.0), ((4.0, None, None, 20.0), False, 40.0, 800.0),
        # What nobody counted grew as it did in each generation.
        ((None, 100.0, None, 20.0), False, None, 1000.0), ((4.0, 100.0, None, None), False, 40.0, 1000.0),
        ((None, 100.0, None, None), True, None, 100.0), ((None, None, 30.0, 20.0), True, None, None),
        ((0.0, 0.0, 0.0, 20.0), False, 0.0, 0.0), ((0.0, 0.0, None, None), True, 0.0, 0.0),
    ],
)  # fmt: skip
def test_what_a_run_measured_of_a_class_after_ten_generations(
    measured: tuple[float | None, ...], one: bool, number: float | None, size: float | None
) -> None:
    known = Measured("app.Class", "generation", 10, *measured)
    assert (_number_of(known, one), _size_of(known, one)) == (number, size)


def test_a_measurement_below_nothing_is_nothing() -> None:
    check = _against("app.Class", "size", _bytes(5), -3.0)
    assert (check.computed, check.outcome, check.factor) == (_bytes(0), "out", None)
    assert _against("app.Class", "size", _bytes(0.5), 0.5).outcome == "right"


def test_a_measurement_is_near_within_a_factor_of_two_of_a_range_too() -> None:
    near = _against("app.Class", "number", _things(10, 20), 38.0)
    assert (near.outcome, near.factor, near.direction) == ("near", 1.9, "too_low")
    assert (
        near.sentence
        == "Class, number: 38 measured, 10 to 20 said: near, at least 1.9 times too low."
    )


def test_what_ends_in_a_count_says_nothing_of_a_size() -> None:
    counted = Estimate("6", (), _things(6), None, _things(6))
    measured = Measured("app.Class", "generation", 10, 4.0, 100.0, 6.0, 20.0)
    (number,) = held_against(counted, measured)
    assert (number.computed, number.outcome) == (_things(6), "right")
