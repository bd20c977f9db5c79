"""Shared parts of all benchmarks: tables as text and Markdown, output options, and the strictness of targets."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

Lines = Sequence[Sequence[str]]
# Makes every target stricter by this factor. Only for tests that need a failing check.
SCALE: Final = float(os.environ.get("LEAKLINE_BENCH_SCALE", "1"))


def text_table(title: str, lines: Lines, left: Sequence[bool]) -> str:
    """Return a text table. The first of ``lines`` is the heading; ``left`` marks left-aligned columns of words."""
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
    """Return the same table as Markdown."""
    ruler = ["---" if words else "---:" for words in left]
    written = ["| " + " | ".join(line) + " |" for line in (lines[0], ruler, *lines[1:])]
    return "\n".join((f"### {title[0].upper()}{title[1:]}", "", *written, ""))


def options(program: str, description: str | None, each: str) -> argparse.Namespace:
    """Parse ``--json`` and ``--markdown``; ``each`` names what the JSON contains."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {each} to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write all tables to FILE")
    return parser.parse_args()
