"""What is written into a chunk is what is read from it, and a flipped bit never passes for data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline_server.store.codec import (
    Chunk,
    CorruptChunk,
    concatenate_numbers,
    concatenate_texts,
    decode,
    encode,
    numbers,
    texts,
)

integers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False)
entries = st.one_of(
    st.lists(st.one_of(integers, st.none()), min_size=1, max_size=80),
    st.lists(st.one_of(floats, st.none()), min_size=1, max_size=80),
    # A ramp of pages: what memory really does.
    st.builds(
        lambda start, steps: [start + 4096 * s for s in steps],
        st.integers(0, 2**40),
        st.lists(st.integers(-3, 1000), min_size=1, max_size=80),
    ),
    st.builds(lambda value, n: [value] * n, st.one_of(integers, st.none()), st.integers(1, 50)),
)


@given(entries)
def test_numbers_come_back_as_they_went_in(values: list[Any]) -> None:
    found = decode(encode(numbers(values))).to_list()
    assert found == values
    if all(isinstance(v, int) for v in values):
        assert all(isinstance(v, int) for v in found)


@given(st.lists(st.one_of(st.text(max_size=20), st.none()), min_size=1, max_size=80))
def test_texts_come_back_as_they_went_in(values: list[str | None]) -> None:
    assert decode(encode(texts(values))).to_list() == values


@given(entries)
def test_a_chunk_tells_the_first_last_smallest_and_largest_without_being_opened(
    values: list[Any],
) -> None:
    chunk = encode(numbers(values))
    present = [v for v in values if v is not None]
    if not present:
        assert (chunk.first, chunk.last, chunk.min, chunk.max) == (None, None, None, None)
    else:
        expected = (present[0], present[-1], min(present), max(present))
        assert (chunk.first, chunk.last, chunk.min, chunk.max) == expected


@given(entries, st.data())
def test_a_flipped_bit_is_noticed(values: list[Any], data: st.DataObject) -> None:
    chunk = encode(numbers(values))
    at = data.draw(st.integers(0, len(chunk.blob) * 8 - 1))
    damaged = bytearray(chunk.blob)
    damaged[at // 8] ^= 1 << (at % 8)
    assert _reads_as(replace(chunk, blob=bytes(damaged))) in (None, values)


@pytest.mark.parametrize("change", [{"first": 7.0}, {"max": 1e9}, {"count": 4}, {"width": 2}])
def test_a_changed_number_beside_the_blob_is_noticed(change: dict[str, Any]) -> None:
    chunk = encode(numbers([1, 2, 3]))
    with pytest.raises(CorruptChunk):
        decode(replace(chunk, **change))


def test_a_blob_that_is_cut_off_is_noticed() -> None:
    chunk = encode(numbers([1, 200, 3, None]))
    with pytest.raises(CorruptChunk):
        decode(replace(chunk, blob=chunk.blob[:-3]))


def test_a_constant_costs_nothing_but_its_checksum() -> None:
    assert len(encode(numbers([16] * 512)).blob) == 4


def test_a_ramp_of_pages_costs_about_a_byte_an_entry() -> None:
    rng = np.random.default_rng(1)
    values = (2**30 + 4096 * np.cumsum(rng.integers(0, 100, 512))).tolist()
    assert len(encode(numbers(values)).blob) < 1.1 * 512 + 40


def test_a_stretch_without_values_does_not_turn_integers_into_floats() -> None:
    joined = concatenate_numbers([numbers([1, 2]), numbers([None, None]), numbers([3])])
    assert joined.to_list() == [1, 2, None, None, 3]
    assert joined.values.dtype == np.int64


@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from("abc"), st.none()), max_size=5), min_size=1, max_size=5
    )
)
def test_joined_texts_read_like_one_list(parts: list[list[str | None]]) -> None:
    joined = concatenate_texts([texts(part) for part in parts]).to_list()
    assert joined == [value for part in parts for value in part]


def _reads_as(chunk: Chunk) -> list[Any] | None:
    try:
        return decode(chunk).to_list()
    except CorruptChunk:
        return None
