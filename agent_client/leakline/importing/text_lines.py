"""A file of text -> numbered lines, bounded, with what no terminal should be given taken out."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ..text_format import printable
from .imported_log import MAX_TEXT_BYTES, ImportRefused

MAX_LINE_LENGTH: Final = 2_000
# What is read of a line before it is cut: progress bars write theirs over and over.
_MAX_RAW: Final = 1 << 20
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def moment_of(iso: str) -> float | None:
    """Return the Unix seconds of a time as logs print it, without a zone in UTC; None for what is none."""
    try:
        moment = datetime.fromisoformat(iso.replace(",", "."))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def lines_of(path: Path, *, tabs: bool = False) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of every line that is not empty. Raises ImportRefused.

    A line that was written over with carriage returns, as progress bars do, is one line for each time. What is no
    UTF-8 becomes a sign that stands for it, because logs come damaged and their figures do not. ``tabs``: they are
    kept, else they are spaces.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ImportRefused(
                path,
                f"has more than {MAX_TEXT_BYTES // 2**20} MiB; cut out the part that tells memory",
            )
        with path.open("rb") as file:
            start = file.read(4)
        with path.open(encoding=encoding_of(start), errors="replace", newline="\n") as file:
            number = 0
            while line := file.readline(_MAX_RAW):
                number += 1
                if line.endswith("\n") or len(line) < _MAX_RAW:
                    for written in line.rstrip("\r\n").split("\r"):
                        text = plain(written, tabs=tabs)
                        if text.strip():
                            yield number, text
                else:
                    raise ImportRefused(path, "is longer than a line of a log can be", number)
    except OSError as error:
        raise ImportRefused(path, f"cannot be read ({error.strerror})") from error


def encoding_of(start: bytes) -> str:
    found = next((name for bom, name in _BOMS if start.startswith(bom)), None)
    return "utf-8-sig" if found in (None, "utf-8") else found or "utf-8"


def plain(text: str, *, tabs: bool = False) -> str:
    """Without anything that moves a cursor or hides text, and no longer than a line."""
    cut = text[:MAX_LINE_LENGTH] if tabs else text[:MAX_LINE_LENGTH].replace("\t", "    ")
    return printable(cut, "\t" if tabs else "")
