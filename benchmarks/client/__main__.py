"""Measure the cost of Leakline in the program it observes, and compare it with other tools in the same run.

    make bench-peers                  installs the other tools: objgraph, Pympler, guppy3, memray
    make bench-client                 prints the tables
    make bench-client CHECK=1         exits with 1 when a target is missed or could not be measured

    HEAPS=100000,1000000              number of objects tracked by the collector (default: 100000,1000000,5000000)
    PARTS=census,pauses               any of census, pauses, peers, overhead, memory (default: all)
    REPEATS=5  PAIRS=7  SNAPSHOTS=10000             repeats per median, pairs of runs, phases for the client's memory
    LOOPS=1  POPULATION=16                          length of the training loops, size of the example
    BENCH_ARGS="--json FILE --markdown FILE"        all rows as JSON, all tables as Markdown

Every heap and every training loop has its own process. Compare CPU time and ratios from the same run: wall time and
absolute figures depend on the machine.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from typing import Final

from benchmarks.printing import options as read_options

from .children import run_child
from .memory import memory
from .overhead import overhead
from .rows import Row, from_json, markdown_table, merged, text_table, to_json

PARTS: Final = ("census", "pauses", "peers", "overhead", "memory")
HEAP_PARTS: Final = PARTS[:3]


def main() -> int:
    options = read_options("client", __doc__, "all rows")
    heaps, parts = _heaps(), _parts()
    print(_machine())
    rows: list[Row] = []
    for size in heaps:
        rows += _printed(_heap(size, [part for part in parts if part in HEAP_PARTS]))
    if "overhead" in parts:
        rows += _printed(row.scaled() for row in overhead("peers" in parts))
    if "memory" in parts:
        rows += _printed(row.scaled() for row in memory())
    if options.json is not None:
        found = {"machine": _machine(), "load": os.getloadavg(), "rows": [to_json(r) for r in rows]}
        options.json.write_text(json.dumps(found, indent=1))
    if options.markdown is not None:
        tables = [markdown_table(table, mine) for table, mine in _by_table(rows)]
        options.markdown.write_text("\n".join((_machine(), "", *tables)))
    return _check(rows) if os.environ.get("CHECK") else 0


def _heaps() -> list[int]:
    asked = os.environ.get("HEAPS") or "100000,1000000,5000000"
    try:
        return [int(size) for size in asked.split(",")]
    except ValueError:
        raise SystemExit(
            f"bench-client: HEAPS={asked}: give whole numbers of objects, such as 100000"
        ) from None


def _heap(objects: int, parts: list[str]) -> Iterator[Row]:
    """Yield the rows of the native scans and the peers from one process, then the pure Python fallback from another."""
    if not parts:
        return
    for switch in ("1", "0"):
        lines = run_child(
            "one_heap", str(objects), ",".join(parts), environment={"LEAKLINE_NATIVE": switch}
        )
        yield from (from_json(json.loads(line)) for line in lines)
        if parts == ["peers"]:
            return


def _printed(found: Iterator[Row]) -> list[Row]:
    """Print each table once all its rows are available, and return the rows."""
    rows = merged(found)
    for table, mine in _by_table(rows):
        print("\n" + text_table(table, mine), flush=True)
    return rows


def _by_table(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    for table in dict.fromkeys(row.table for row in rows):
        yield table, [row for row in rows if row.table == table]


def _check(rows: list[Row]) -> int:
    short = [(row, failure) for row in rows for failure in row.failures()]
    for row, failure in short:
        print(f"bench-client: {row.table}, {row.name}: {failure}", file=sys.stderr)
    return 1 if short else 0


def _parts() -> list[str]:
    asked = os.environ.get("PARTS") or ",".join(PARTS)
    unknown = [part for part in asked.split(",") if part not in PARTS]
    if unknown:
        raise SystemExit(f"bench-client: PARTS has {unknown[0]!r}; use some of {','.join(PARTS)}")
    return [part for part in PARTS if part in asked.split(",")]


def _machine() -> str:
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()},"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
