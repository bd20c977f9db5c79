"""Measure the additional CPU time of a training loop with Leakline and others, in pairs that take turns on one core.

On a machine with other work, consecutive runs differ by a tenth, and a hundred pairs would not resolve one per cent.
The two runs of a pair take turns of a second, so whatever slows their core down slows both.

Each run is stopped for half of the time, so wall time passes twice as fast as for a training alone. The client
therefore gets half of its share of wall time, which is its usual share of CPU time, and half the sampling rate.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from queue import SimpleQueue
from statistics import fmean, median
from typing import Any, Final

from leakline.settings import DEFAULT_MAX_OVERHEAD, DEFAULT_SAMPLE_SECONDS

from .children import run_in_turns
from .rows import NOT_MEASURED, Row
from .timing import ratio_interval
from .training import LOOPS, TOOLS

# Number of pairs on the example; fewer than seven are inconclusive.
PAIRS: Final = int(os.environ.get("PAIRS", "7"))
# Number of pairs on the other loops, which have no targets.
FEWER_PAIRS: Final = min(PAIRS, 3)
# Other tools cost so much that a few generations are enough.
PEER_GENERATIONS: Final = 4
SCALE: Final = float(os.environ.get("LOOPS", "1"))
# Settings per wall time, of which each run of a pair has twice as much.
PER_WALL_TIME: Final = {
    "LEAKLINE_MAX_OVERHEAD": str(DEFAULT_MAX_OVERHEAD / 2),
    "LEAKLINE_SAMPLE_SECONDS": str(DEFAULT_SAMPLE_SECONDS * 2),
}
TABLE: Final = "training loops: CPU as ratio to the bare loop, of pairs that take turns on a core, with 95 % intervals"

# The cost of an idle thread is smaller than the variation between runs: one pair would not show it.
_NO_PEERS: Final = ("nothing", "leakline", "a thread that waits")

Run = Mapping[str, Any]
Pair = tuple[Run, Run]


def overhead(with_peers: bool) -> list[Row]:
    """Return one row for each loop and tool; only Leakline on the example has targets."""
    found = []
    for loop, (_, usual) in LOOPS.items():
        generations = max(2, round(usual * SCALE))
        pairs = _pairs(loop, "leakline", generations, PAIRS if loop == "example" else FEWER_PAIRS)
        found.append(_of_leakline(loop, pairs))
        if with_peers:
            found += [_of_peer(loop, tool) for tool in TOOLS if tool not in _NO_PEERS]
    return found


def _pairs(loop: str, tool: str, generations: int, number: int) -> list[Pair]:
    """Run the pairs on up to two cores at the same time; more would need too much memory."""
    cores = _cores()[:2]
    free: SimpleQueue[int | None] = SimpleQueue()
    for core in cores:
        free.put(core)
    with ThreadPoolExecutor(len(cores)) as pool:
        waiting = [pool.submit(_pair, loop, tool, generations, free) for _ in range(number)]
        return [one.result() for one in waiting]


def _pair(loop: str, tool: str, generations: int, free: SimpleQueue[int | None]) -> Pair:
    """Run the loop with and without the tool on a core that no other pair uses."""
    core = free.get()
    commands = [("training", loop, one, str(generations)) for one in (tool, "nothing")]
    both = run_in_turns(commands, core=core, environment=PER_WALL_TIME)
    free.put(core)
    observed, bare = (json.loads(lines[-1]) for lines in both)
    return observed, bare


def _cores() -> list[int | None]:
    """Return the cores to use; [None] where processes cannot be bound to one."""
    known = getattr(os, "sched_getaffinity", lambda pid: {None})(0)
    return list(known)


def _of_leakline(loop: str, pairs: list[Pair]) -> Row:
    def cpu(part: str, which: int) -> list[float]:
        return [pair[which][part]["cpu"] for pair in pairs]

    after = ratio_interval(cpu("after_start", 0), cpu("after_start", 1))
    whole = ratio_interval(cpu("whole", 0), cpu("whole", 1))
    observed = [pair[0] for pair in pairs]
    ledger = sum(r["after_start"]["ledger"] for r in observed) / sum(cpu("after_start", 0))
    figures = {
        **after.figures("cpu"),
        "ledger_percent": 100 * ledger,
        "whole_ratio": whole.middle,
        "start_seconds": fmean(
            r["set_up_seconds"] + r["whole"]["ledger"] - r["after_start"]["ledger"]
            for r in observed
        ),
        "cpu_seconds": median(cpu("whole", 1)),
    }
    at_most = {"cpu_high": 1.01, "ledger_percent": 0.3} if loop == "example" else {}
    raw = {"pairs": pairs}
    return Row(TABLE, f"{loop}: leakline", figures, at_most, note=f"{len(pairs)} pairs", raw=raw)


def _of_peer(loop: str, tool: str) -> Row:
    """Measure one pair: the cost of other tools is far larger than the variation between runs."""
    name = f"{loop}: {tool}"
    if tool.startswith("memray") and find_spec("memray") is None:
        return Row(TABLE, name, missing=NOT_MEASURED, note="not installed: make bench-peers")
    ((observed, bare),) = pairs = _pairs(loop, tool, PEER_GENERATIONS, 1)
    figures = {"whole_ratio": observed["whole"]["cpu"] / bare["whole"]["cpu"]}
    return Row(TABLE, name, figures, raw={"pairs": pairs})
