"""Measure the cost of capturing the program's output: per printed line, and as a share of a core at 10,000 lines/s.

Lines are printed to /dev/null with and without capture, in turns; building events from them is timed separately.

example: python -m benchmarks.client.lines
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from leakline.core.output_tail import EVENT_SECONDS, OutputTail

LINES: Final = 20_000
TURNS: Final = 15
LINES_A_SECOND: Final = 10_000


def one_text(stream: Any) -> None:
    for step in range(LINES):
        print(f"step {step} loss {0.123}", file=stream)


def four_words(stream: Any) -> None:
    """Print lines that take eight calls of ``write`` each."""
    for step in range(LINES):
        print("step", step, "loss", 0.123, file=stream)


def cpu_seconds(work: Callable[[Any], None], stream: Any) -> float:
    """Return the CPU seconds per line."""
    started = time.process_time()
    work(stream)
    return (time.process_time() - started) / LINES


def measure(work: Callable[[Any], None]) -> tuple[float, float, float]:
    """Return seconds per plain line, additional seconds per captured line, and seconds per event."""
    plain: list[float] = []
    listened: list[float] = []
    taking: list[float] = []
    with Path(os.devnull).open("w") as stream:
        for _ in range(TURNS):
            plain.append(cpu_seconds(work, stream))
            tail = OutputTail()
            tail.start(stream)
            listened.append(cpu_seconds(work, stream))
            started = time.process_time()
            tail.take(last=True)
            taking.append(time.process_time() - started)
            tail.stop()
    return median(plain), median(listened) - median(plain), median(taking)


def main() -> None:
    for work in (one_text, four_words):
        plain, line, event = measure(work)
        share = LINES_A_SECOND * line + event / EVENT_SECONDS
        sys.stdout.write(
            f"{work.__name__}: {plain * 1e9:,.0f} ns per line, {line * 1e9:,.0f} ns more captured, "
            f"{event * 1e3:.2f} ms per event; at {LINES_A_SECOND:,} lines/s {share:.2%} of a core\n"
        )


if __name__ == "__main__":
    main()
