"""Fields of a protobuf message by their numbers: as much of the encoding as a few messages of others need.

The package that made them would bring its own program and its own idea of their version; numbers of fields are never
used again, so a handful of them is the more lasting thing to rest on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

Value = int | float | bytes
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST: Final = 10


class NotProtobuf(ValueError):
    """Where a message ends within a field, or a field is of no known kind."""


def fields_of(message: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) in the order of the message. Raises NotProtobuf."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif kind == _BYTES:
            length, at = _varint(message, at)
            yield number, _piece(message, at, length)
            at += length
        elif kind == _EIGHT:
            yield number, float(struct.unpack("<d", _piece(message, at, 8))[0])
            at += 8
        elif kind == _FOUR:
            yield number, float(struct.unpack("<f", _piece(message, at, 4))[0])
            at += 4
        else:
            raise NotProtobuf(f"a field of kind {kind}")


def _piece(message: bytes, at: int, length: int) -> bytes:
    if at + length > len(message):
        raise NotProtobuf("it ends within a field")
    return message[at : at + length]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST):
        if at + index >= len(message):
            raise NotProtobuf("it ends within a number")
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise NotProtobuf("a number of more than 64 bits")


def signed(value: Value) -> int:
    """An int64, which is encoded as if it had no sign."""
    whole = int(value) if not isinstance(value, bytes) else 0
    return whole - (1 << 64) if whole >= 1 << 63 else whole


def text(value: Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
