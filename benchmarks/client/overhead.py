"""What a training loop costs more under Leakline, and under others: paired runs that take turns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from statistics import median
from typing import Final

from .children import run_child
from .rows import NOT_MEASURED, Row
from .timing import ratio_interval
from .training import LOOPS, TOOLS

# On the example; fewer than seven say nothing.
PAIRS: Final = int(os.environ.get("PAIRS", "7"))
# On the other loops, which are held to nothing.
FEWER_PAIRS: Final = min(PAIRS, 3)
TABLE: Final = "training loops: ratios to the bare loop, those of paired runs with 95 % intervals"

Run = Mapping[str, float]


def overhead(with_peers: bool) -> Iterator[Row]:
    """One row for each loop and tool; only Leakline on the example is held to anything."""
    for loop in LOOPS:
        pairs = PAIRS if loop == "example" else FEWER_PAIRS
        observed, bare = _pairs(loop, pairs)
        yield _of_leakline(loop, observed, bare)
        if with_peers:
            for tool in TOOLS:
                if tool not in ("nothing", "leakline"):
                    yield _of_peer(loop, tool, bare)


def _pairs(loop: str, pairs: int) -> tuple[list[Run], list[Run]]:
    """Runs with Leakline and without, in turns."""
    found: dict[str, list[Run]] = {"leakline": [], "nothing": []}
    for number in range(pairs):
        # Each pair in the other order than the one before: a machine that gets slower favours neither.
        for tool in ("leakline", "nothing") if number % 2 else ("nothing", "leakline"):
            found[tool].append(_run(loop, tool))
    return found["leakline"], found["nothing"]


def _of_leakline(loop: str, observed: list[Run], bare: list[Run]) -> Row:
    cpu = ratio_interval([r["cpu_seconds"] for r in observed], [r["cpu_seconds"] for r in bare])
    wall = ratio_interval([r["wall_seconds"] for r in observed], [r["wall_seconds"] for r in bare])
    ledger = sum(r["ledger_seconds"] for r in observed) / sum(r["wall_seconds"] for r in observed)
    figures = {
        **cpu.figures("cpu"),
        **wall.figures("wall"),
        "ledger_percent": 100 * ledger,
        "cpu_seconds": median(r["cpu_seconds"] for r in bare),
    }
    at_most = {"cpu_high": 1.01, "ledger_percent": 0.3} if loop == "example" else {}
    raw = {"observed": observed, "bare": bare}
    return Row(TABLE, f"{loop}: leakline", figures, at_most, note=f"{len(bare)} pairs", raw=raw)


def _of_peer(loop: str, tool: str, bare: list[Run]) -> Row:
    """One run: what others cost is far more than runs differ."""
    name = f"{loop}: {tool}"
    if tool.startswith("memray") and find_spec("memray") is None:
        return Row(TABLE, name, missing=NOT_MEASURED, note="not installed: make bench-peers")
    run = _run(loop, tool)
    figures = {
        "cpu_ratio": run["cpu_seconds"] / median(r["cpu_seconds"] for r in bare),
        "wall_ratio": run["wall_seconds"] / median(r["wall_seconds"] for r in bare),
    }
    return Row(TABLE, name, figures, raw={"observed": [run]})


def _run(loop: str, tool: str) -> Run:
    run: Run = json.loads(run_child("training", loop, tool)[-1])
    return run
