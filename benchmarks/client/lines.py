"""What listening to the program's lines costs: per printed line, and as a share of a core at 10,000 lines a second.

Lines are printed to a file that keeps nothing, with and without, in turns; making events of them is timed apart.

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
    """Eight calls of ``write`` a line."""
    for step in range(LINES):
        print("step", step, "loss", 0.123, file=stream)


def cpu_seconds(work: Callable[[Any], None], stream: Any) -> float:
    """Of one line."""
    started = time.process_time()
    work(stream)
    return (time.process_time() - started) / LINES


def measure(work: Callable[[Any], None]) -> tuple[float, float, float]:
    """Seconds of one line plain, of what listening adds to it, and of one event."""
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
            f"{work.__name__}: {plain * 1e9:,.0f} ns a line, {line * 1e9:,.0f} ns more listened to, "
            f"{event * 1e3:.2f} ms an event; at {LINES_A_SECOND:,} lines a second {share:.2%} of a core\n"
        )


if __name__ == "__main__":
    main()
