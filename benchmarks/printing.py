"""What all benchmarks share: tables for people and for documents, where to write them, and how strict they are."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

Lines = Sequence[Sequence[str]]
# Makes every bound as much stricter. Only for the tests that see a check fail.
SCALE: Final = float(os.environ.get("LEAKLINE_BENCH_SCALE", "1"))


def text_table(title: str, lines: Lines, left: Sequence[bool]) -> str:
    """``lines`` below each other, the first of them the heads; ``left``: which columns are words, not figures."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    written = [
        "  ".join(
            cell.ljust(width) if words else cell.rjust(width)
            for cell, width, words in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join((title, *written, ""))


def markdown_table(title: str, lines: Lines, left: Sequence[bool]) -> str:
    """The same for a document."""
    ruler = ["---" if words else "---:" for words in left]
    written = ["| " + " | ".join(line) + " |" for line in (lines[0], ruler, *lines[1:])]
    return "\n".join((f"### {title[0].upper()}{title[1:]}", "", *written, ""))


def options(program: str, description: str | None, each: str) -> argparse.Namespace:
    """``--json`` and ``--markdown``; ``each`` is what a program is told of."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {each} to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write all tables to FILE")
    return parser.parse_args()
