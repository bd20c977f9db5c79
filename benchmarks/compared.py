"""What Leakline costs beside its peers, from short runs of two benchmarks, written into docs/compared.md.

    make bench-peers bench-compared           installs the peers, measures for about ten minutes, writes the page
    make bench-compared BENCH_ARGS=--again    writes the page from what was measured last; measures nothing
    make bench-compared PAIRS=7 SHORT=        whatever is set here goes before the short form below

Everything is a ratio to a floor or to Leakline from the same run. A peer that is not installed has a row that says so.
What was measured lies beside this file, so that the page can be held to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from .printing import markdown_table
from .server.loggers import OURS as LOGGED_BY_US
from .server.subjects import PEERS, PEERS_PYTHON, ROOT

DOCUMENT: Final = ROOT / "docs" / "compared.md"
RECORDED: Final = ROOT / "benchmarks" / "compared.json"
BEGIN: Final = "<!-- compared: begin -->\n"
END: Final = "<!-- compared: end -->\n"
# Each benchmark, with what makes it short.
BENCHMARKS: Final[Mapping[str, Mapping[str, str]]] = {
    "client": {
        "PARTS": "census,peers,overhead", "HEAPS": "300000", "REPEATS": "3",
        "PAIRS": "2", "LOOPS": "0.25", "POPULATION": "4",
    },
    "server": {"ROWS": "ingest,loggers", "SHORT": "1"},
}  # fmt: skip
IN_TRAINING: Final = ("memray", "objgraph", "pympler", "guppy3")
IN_PEERS: Final = ("wandb", "mlflow", "trackio", "aim")
NOT_HERE: Final = "not installed here"

Found = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compared", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure nothing")
    if not parser.parse_args().again:
        RECORDED.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    document = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(between(document, page(found)), encoding="utf-8")
    print(f"compared: wrote {DOCUMENT.relative_to(ROOT)}")
    return 0


def measured() -> Found:
    """Runs the benchmarks one after the other; each says on stderr where it is."""
    found: Found = {
        "date": time.strftime("%d %B %Y"),
        "versions": dict(_versions()),
        "settings": {},
    }
    for name, short in BENCHMARKS.items():
        found["settings"] |= {key: os.environ.get(key, value) for key, value in short.items()}
        with tempfile.TemporaryDirectory(prefix="leakline-compared-") as folder:
            into = Path(folder) / "found.json"
            ended = subprocess.run(
                [sys.executable, "-m", f"benchmarks.{name}", "--json", str(into)],
                cwd=ROOT, env={**short, **_without("CHECK")}, stdout=sys.stderr, check=False,
            )  # fmt: skip
            if ended.returncode:
                raise SystemExit(f"compared: benchmarks.{name} ended with {ended.returncode}")
            found[name] = _slim(json.loads(into.read_text()))
    return found


def between(document: str, written: str) -> str:
    """``document`` with ``written`` between its marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"compared: the document lacks {BEGIN.strip()} or {END.strip()}")
    return before + begin + written + end + after


def page(found: Found) -> str:
    """The tables, the same for the same ``found``."""
    tables = [_loops(found["client"]["rows"]), *_looks(found["client"]["rows"])]
    tables += [_logged(found["server"]["parts"]), _taken_in(found["server"]["parts"])]
    told = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    settings = " ".join(f"{key}={value}" for key, value in found["settings"].items())
    head = f"Measured on {found['date']}: {found['client']['machine']}. {told}. `{settings}`\n"
    return "\n".join([head, *tables]).rstrip("\n") + "\n"


# -- the tables ---------------------------------------------------------------------------------------------

LOOPS: Final = {
    "allocations": "little but objects", "network": "small network", "example": "example training",
}  # fmt: skip
IN_LOOPS: Final = {
    "tracemalloc, 1 frame": "each allocation of Python with its line",
    "tracemalloc, 10 frames": "each with ten frames of its stack",
    "memray": "each allocation of the C library with its stack, written to a file",
    "memray, Python allocators": "those of Python's own allocator too",
}


def _loops(rows: Sequence[Found]) -> str:
    by_name = {row["name"]: row for row in rows}
    lines = [["", *LOOPS.values(), "contains"]]
    for figure, name, what in (
        ("cpu", "Leakline, second half", "memory, objects, holders, recording; its own threads"),
        ("whole_ratio", "Leakline, whole", "set-up, first censuses and searches too, once per process"),
    ):  # fmt: skip
        lines.append(
            [name, *(_of_loop(by_name[f"{loop}: leakline"], figure) for loop in LOOPS), what]
        )
    for tool, what in IN_LOOPS.items():
        cells = [_of_loop(by_name[f"{loop}: {tool}"], "whole_ratio") for loop in LOOPS]
        lines.append([tool, *cells, what])
    return markdown_table(
        "In the training: CPU of the loop, × the bare loop",
        lines,
        [True, False, False, False, True],
    )


def _of_loop(row: Found, figure: str) -> str:
    if row["missing"]:
        return NOT_HERE
    if figure != "cpu":
        return f"{row['figures'][figure]:.2f}"
    ratio, low, high = (row["figures"][f"cpu_{part}"] for part in ("ratio", "low", "high"))
    return f"{ratio:.3f} ({low:.2f} to {high:.2f})"


OUR_LOOKS: Final = {
    "full census, in slices": ("Leakline, full census, in slices", "types, arrays, tensors; threads go on"),
    "full census, pure Python": ("Leakline, full census, pure Python", "the same where nothing was compiled"),
}  # fmt: skip
LOOKS: Final = {
    "objgraph typestats": "types of what the collector lists",
    "objgraph growth": "the same after a full collection, with the difference",
    "guppy3 heap()": "the whole heap by kind, with sizes",
    "Pympler summarize(get_objects())": "types with recursive sizes",
}


def _looks(rows: Sequence[Found]) -> Iterator[str]:
    """A table for each heap that was measured."""
    for table in dict.fromkeys(row["table"] for row in rows if row["table"].startswith("heap of")):
        by_name = {row["name"]: row for row in rows if row["table"] == table}
        lines = [["", "CPU, × the reference", "arrays found", "contains"]]
        lines.append(["`Counter(map(type, gc.get_objects()))`", "1", "", "the reference"])
        for name, (called, what) in OUR_LOOKS.items():
            lines.append([called, *_of_look(by_name[name]), what])
        for name, what in LOOKS.items():
            lines.append([name, *_of_look(by_name[name]), what])
        yield markdown_table(f"One look at all objects: {table}", lines, [True, False, False, True])


def _of_look(row: Found) -> list[str]:
    if row["missing"]:
        why = NOT_HERE if row["missing"] == "not measured" else row["missing"]
        return [why, ""]
    arrays = row["figures"].get("arrays_found")
    return [f"{row['figures']['ratio']:.2f}", "" if arrays is None else f"{arrays:,.0f}"]


LOGGED: Final = {
    LOGGED_BY_US: "65 gauges and a snapshot with its own readings and censuses, its bound off",
    "W&B, offline": "`run.log` of 65 numbers; the process that writes them too",
    "MLflow, SQLite": "`log_metrics` of 65 numbers",
    "trackio, local": "`trackio.log` of 65 numbers; to its own SQLite",
    "Aim, local": "`run.track` 65 times",
}


def _logged(parts: Sequence[Found]) -> str:
    (part,) = [part for part in parts if part["title"].startswith("loggers")]
    lines = [["", "CPU a snapshot, × Leakline", "contains"]]
    for line in part["lines"]:
        ratio = 1.0 if line["name"] == LOGGED_BY_US else line["figures"].get("ratio")
        lines.append([line["name"], _ratio(line, ratio), LOGGED[line["name"]]])
    return markdown_table("Logging 65 numbers: CPU of the trainer", lines, [True, False, True])


TAKEN_IN: Final = {
    "Leakline, SQLite": "on disk before it answers, sealing and compaction",
    "Leakline, Postgres": "the same; Postgres' own processes",
    "VictoriaMetrics": "merges until it is quiet; memory only for seconds",
    "Prometheus": "log and head; not forced to disk",
    "InfluxDB": "log forced to disk, compaction until it is quiet",
    "trackio": "its own server, as its client sends",
    "MLflow": "its own server on SQLite, as its client sends",
}


def _taken_in(parts: Sequence[Found]) -> str:
    """Where trackio and MLflow were given one size of batch only, the others stay empty."""
    sizes = [part for part in parts if part["title"].startswith("ingest, ")]
    lines = [["", *(part["title"].split(", ")[1] for part in sizes), "contains"]]
    for name, what in TAKEN_IN.items():
        lines.append([name, *(_in_size(part, name) for part in sizes), what])
    return markdown_table(
        "Taking snapshots in: CPU of the server a snapshot, × Leakline on SQLite", lines,
        [True, *[False] * len(sizes), True],
    )  # fmt: skip


def _in_size(part: Found, name: str) -> str:
    by_name = {line["name"]: line for line in part["lines"]}
    if name not in by_name:
        return ""
    line, ours = by_name[name], by_name["Leakline, SQLite"]["figures"].get("cpu_per_million")
    cost = line["figures"].get("cpu_per_million")
    return _ratio(line, None if cost is None or not ours else cost / ours)


def _ratio(line: Found, ratio: float | None) -> str:
    if line["missing"] or ratio is None:
        return (
            NOT_HERE if "not installed" in line["missing"] else f"not measured: {line['missing']}"
        )
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}" if ratio >= 10 else f"{ratio:.2f}"


# -- what is measured with what -----------------------------------------------------------------------------


def _versions() -> Iterator[tuple[str, str]]:
    """Of the peers that are there, by the names they are installed by."""
    for name in IN_TRAINING:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for path in sorted(PEERS.glob("packages/*.deb")):
        name, version, *_ = path.name.split("_")
        yield name, version.partition("%3a")[2] or version
    if PEERS_PYTHON.exists():
        yield from _versions_of(PEERS_PYTHON, IN_PEERS)


def _versions_of(python: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    known = {each["name"].lower(): each["version"] for each in json.loads(listed)}
    yield from ((name, known[name]) for name in names if name in known)


def _slim(found: Found) -> Found:
    """Without the raw runs, which nobody reads here."""
    for row in found.get("rows", ()):
        row.pop("raw", None)
    return found


def _without(name: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != name}


if __name__ == "__main__":
    sys.exit(main())
