"""What a training loop costs more under Leakline, and under others: paired runs that take turns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

from .children import run_child
from .rows import NOT_MEASURED, Row
from .timing import ratio_interval
from .training import LOOPS, TOOLS

# On the example; fewer than seven say nothing.
PAIRS: Final = int(os.environ.get("PAIRS", "7"))
# Of Leakline on the other loops, and of the others, which cost so much that a second pair changes little.
FEWER_PAIRS: Final = min(PAIRS, 3)
PEER_PAIRS: Final = 1
TABLE: Final = "training loops, by paired runs: ratios to the bare loop with 95 % intervals"

Run = Mapping[str, float]


def overhead(with_peers: bool) -> Iterator[Row]:
    """One row for each loop and tool; only the example is held to anything."""
    for loop in LOOPS:
        pairs = PAIRS if loop == "example" else FEWER_PAIRS
        yield _row(loop, "leakline", pairs)
        if not with_peers:
            continue
        for tool in TOOLS:
            if tool in ("nothing", "leakline"):
                continue
            if tool.startswith("memray") and find_spec("memray") is None:
                yield Row(
                    TABLE, _name(loop, tool), missing=NOT_MEASURED,
                    note="not installed: make bench-peers",
                )  # fmt: skip
            else:
                yield _row(loop, tool, PEER_PAIRS)


def _row(loop: str, tool: str, pairs: int) -> Row:
    observed, bare = _paired(loop, tool, pairs)
    cpu = ratio_interval([r["cpu_seconds"] for r in observed], [r["cpu_seconds"] for r in bare])
    wall = ratio_interval([r["wall_seconds"] for r in observed], [r["wall_seconds"] for r in bare])
    figures = {**cpu.figures("cpu"), **wall.figures("wall")}
    figures["cpu_seconds"] = min(r["cpu_seconds"] for r in bare)
    at_most: dict[str, float] = {}
    if tool == "leakline":
        ledger = sum(r["ledger_seconds"] for r in observed)
        figures["ledger_percent"] = 100 * ledger / sum(r["wall_seconds"] for r in observed)
        if loop == "example":
            at_most = {"cpu_high": 1.01, "ledger_percent": 0.3}
    raw = {"observed": observed, "bare": bare}
    note = f"{pairs} pairs" if pairs > 1 else "1 pair"
    return Row(TABLE, _name(loop, tool), figures, at_most, note=note, raw=raw)


def _paired(loop: str, tool: str, pairs: int) -> tuple[list[Run], list[Run]]:
    """Each pair in the other order than the one before: a machine that gets slower favours neither."""
    found: dict[str, list[Run]] = {tool: [], "nothing": []}
    for number in range(pairs):
        order = (tool, "nothing") if number % 2 else ("nothing", tool)
        for which in order:
            lines = run_child("training", loop, which)
            found[which].append(json.loads(lines[-1]))
    return found[tool], found["nothing"]


def _name(loop: str, tool: str) -> str:
    return f"{loop}: {tool}"
