"""What is written into a chunk is what is read from it, and a flipped bit never passes for data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline_server.store import pieces
from leakline_server.store.codec import (
    Chunk,
    CorruptChunk,
    Numbers,
    compress,
    concatenate_numbers,
    concatenate_texts,
    decode,
    decompress,
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


@given(entries, st.booleans())
def test_numbers_come_back_as_they_went_in(values: list[Any], tight: bool) -> None:
    found = decode(encode(numbers(values), tight=tight)).to_list()
    assert found == values
    if all(isinstance(v, int) for v in values):
        assert all(isinstance(v, int) for v in found)


decimals = st.builds(
    lambda values, digits: [round(v, digits) for v in values],
    st.lists(floats, min_size=1, max_size=80),
    st.integers(0, 10),
)
near = st.builds(
    lambda start, steps: [start + s for s in steps],
    st.floats(-2e9, 2e9),
    st.lists(st.floats(0, 2), min_size=1, max_size=80),
)


@given(st.one_of(decimals, near))
def test_floats_that_are_packed_tight_come_back_to_the_bit(values: list[float]) -> None:
    found = decode(encode(numbers(values), tight=True))
    assert isinstance(found, Numbers)
    assert found.values.tobytes() == np.array(values).tobytes()


def test_what_clocks_say_is_packed_into_few_bytes() -> None:
    rng = np.random.default_rng(1)
    steps = np.cumsum(rng.normal(0.5, 0.01, 4096))
    monotonic, times = np.round(75_600 + steps, 9), 1_763_837_968 + steps
    for values in (monotonic, times, np.round(times, 3)):
        plain, tight = encode(Numbers(values)), encode(Numbers(values), tight=True)
        assert len(tight.blob) < 0.75 * len(plain.blob)
    assert len(tight.blob) < 1.5 * 4096


@given(st.lists(st.one_of(integers, floats, st.none()), min_size=1, max_size=60), st.integers(1, 9))
def test_pieces_tell_the_same_as_the_entries_under_them(values: list[Any], step: int) -> None:
    column = numbers(values)
    starts = np.arange(0, len(values), step)
    counts = np.diff(np.append(starts, len(values)))
    found = pieces.spread(pieces.unpack(pieces.pack(pieces.summed(column, starts), counts)), counts)
    for record, start in zip(found.tolist(), starts, strict=True):
        there = [float(v) for v in values[start : start + step] if v is not None]
        if there:
            assert record == [len(there), there[0], there[-1], min(there), max(there)]
        else:
            assert record == [0] * 5
    (whole,) = pieces.joined(found).tolist()
    assert whole[0] == sum(v is not None for v in values)


@given(st.binary(max_size=200), st.integers(0, 8 * 84 - 1))
def test_damaged_pieces_are_noticed(garbage: bytes, bit: int) -> None:
    column = numbers([1, 5, 9, 2])
    packed = bytearray(pieces.pack(pieces.summed(column, np.array([0, 2])), np.array([2, 2])))
    packed[bit // 8] ^= 1 << (bit % 8)
    for damaged in (bytes(packed), garbage, bytes(packed[:-3])):
        with pytest.raises(CorruptChunk):
            pieces.unpack(damaged)


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


def test_no_bit_of_the_head_of_a_frame_takes_memory_or_passes() -> None:
    """The head says how many bytes the frame holds, which are allocated before anything else is looked at."""
    random = np.random.default_rng(3)
    whole = encode(Numbers(random.integers(-(2**53), 2**53, 4_096)))
    for at in range(8 * 20):
        blob = bytearray(whole.blob)
        blob[at // 8] ^= 1 << at % 8
        try:
            found = decode(replace(whole, blob=bytes(blob)))
        except CorruptChunk:
            continue
        # What is not looked at, such as whether a checksum of the frame follows.
        assert found.to_list() == decode(whole).to_list()


def test_a_frame_cannot_say_that_it_holds_more_than_its_bytes_can() -> None:
    frame = compress(b"x" * 70_000)
    assert decompress(frame) == b"x" * 70_000
    said = frame[:5] + (2**29).to_bytes(4, "little") + frame[9:]
    with pytest.raises(CorruptChunk, match="more than it can"):
        decompress(said)
