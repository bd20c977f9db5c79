"""The records of a W&B transaction log (`run-*.wandb`), one after the other.

    file    =  b":W&B" magic version block*        magic 0xBEE1, little-endian, 2 bytes; version 0, 1 byte
    block   =  32 KiB of fragments; less than 7 bytes at its end are not used
    fragment=  crc length type payload              4, 2 and 1 bytes, little-endian
      crc      CRC-32 of type and payload
      type     1 a whole record, 2 its first part, 3 one in the middle, 4 its last

This is LevelDB's log with another header and another checksum. A file that was cut off (the program was killed) is
read as far as it goes; one that is damaged in the middle is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ..imported_log import ImportRefused

MAGIC: Final = b":W&B"
FILE_HEADER: Final = struct.Struct("<4sHB")
FRAGMENT: Final = struct.Struct("<IHB")
BLOCK: Final = 32 * 1024
MAX_RECORD_BYTES: Final = 8 * 2**20
_NUMBER: Final = 0xBEE1
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records_of(path: Path) -> Iterator[bytes]:
    """Raises ImportRefused, with the offset in the file where it is damaged."""
    try:
        with path.open("rb") as file:
            head = file.read(FILE_HEADER.size)
            if len(head) < FILE_HEADER.size or FILE_HEADER.unpack(head) != (MAGIC, _NUMBER, 0):
                raise ImportRefused(path, "is no W&B log of the version that is read here (0)")
            yield from _joined(path, _fragments(path, file))
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error


def _joined(path: Path, fragments: Iterator[tuple[int, int, bytes]]) -> Iterator[bytes]:
    parts: list[bytes] | None = None
    for offset, kind, body in fragments:
        if kind == _WHOLE:
            parts = None
            yield body
        elif kind == _FIRST:
            parts = [body]
        elif parts is None:
            raise ImportRefused(path, f"at byte {offset}: a record without its beginning")
        else:
            parts.append(body)
            if sum(map(len, parts)) > MAX_RECORD_BYTES:
                raise ImportRefused(path, f"at byte {offset}: a record of more than 8 MiB")
            if kind == _LAST:
                yield b"".join(parts)
                parts = None


def _fragments(path: Path, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(offset, type, payload) up to the end of what was written."""
    offset = FILE_HEADER.size
    while True:
        left = BLOCK - offset % BLOCK
        if left < FRAGMENT.size:
            file.read(left)
            offset += left
            continue
        head = file.read(FRAGMENT.size)
        if len(head) < FRAGMENT.size:
            return
        crc, length, kind = FRAGMENT.unpack(head)
        if (crc, length, kind) == (0, 0, 0):
            # Room that was set aside and not written.
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or length > left - FRAGMENT.size:
            raise ImportRefused(path, f"at byte {offset}: no W&B record begins here; it is damaged")
        body = file.read(length)
        if len(body) < length:
            return
        if zlib.crc32(bytes([kind]) + body) != crc:
            raise ImportRefused(path, f"at byte {offset}: the checksum is wrong; it is damaged")
        yield offset, kind, body
        offset += FRAGMENT.size + length
