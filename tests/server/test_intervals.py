"""The stretches of stored sequence numbers say exactly what a set of numbers would say."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from leakline_server.store.known import Intervals

stretch = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(stretch, max_size=12), stretch)
def test_missing_is_what_a_set_would_miss(
    added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    known, numbers = Intervals(added), set[int]()
    for first, last in added:
        numbers |= set(range(first, last + 1))
    gaps = known.missing(*asked)
    found = [n for first, last in gaps for n in range(first, last + 1)]
    assert found == sorted(set(range(asked[0], asked[1] + 1)) - numbers)


@given(st.lists(stretch, max_size=12))
def test_stretches_stay_sorted_and_apart(added: list[tuple[int, int]]) -> None:
    stretches = list(Intervals(added))
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(stretches))
