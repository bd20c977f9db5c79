"""A set of generations as spans answers as the set of its numbers does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leakline.analysis.spans import NO_SPANS, Spans, union

NUMBERS = st.sets(st.integers(-20, 60))


@given(NUMBERS, st.integers(-30, 70))
def test_it_has_what_the_set_has(numbers: set[int], asked: int) -> None:
    found = Spans.of(sorted(numbers))
    assert (list(found), len(found)) == (sorted(numbers), len(numbers))
    assert (asked in found) == (asked in numbers)
    assert (found.first, found.last) == (min(numbers, default=None), max(numbers, default=None))
    assert set(found.upto(asked)) == {n for n in numbers if n <= asked}
    assert set(found.above(asked)) == {n for n in numbers if n > asked}
    assert found.upto(asked) == Spans.of(sorted(n for n in numbers if n <= asked))


@given(st.lists(NUMBERS, max_size=4))
def test_several_together_are_one(several: list[set[int]]) -> None:
    found = union(Spans.of(sorted(numbers)) for numbers in several)
    assert found == Spans.of(sorted(set().union(*several)))


def test_a_million_in_a_row_are_two_numbers() -> None:
    assert Spans.of(range(1_000_000)).spans == ((0, 999_999),)
    assert not NO_SPANS
    assert 3.0 not in Spans.of([3])
