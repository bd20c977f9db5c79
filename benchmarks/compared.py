"""Write the tables of docs/compared.md: features from compared.toml, and costs from short runs of two benchmarks.

    make bench-peers bench-compared           install the peers, measure for about ten minutes, write the page
    make bench-compared BENCH_ARGS=--again    write the page from the last measurement
    make bench-compared PAIRS=7 SHORT=        override the short settings below

Every cost is a ratio to a baseline or to Leakline from the same run. A peer that is not installed has a row with that
note. The last measurement is in compared.json, so that a test can compare the page with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from .printing import markdown_table
from .server.loggers import OURS as LOGGED_BY_US
from .server.subjects import PEERS, PEERS_PYTHON, ROOT

DOCUMENT: Final = ROOT / "docs" / "compared.md"
FEATURES: Final = ROOT / "docs" / "compared.toml"
RECORDED: Final = ROOT / "benchmarks" / "compared.json"
BEGIN: Final = "<!-- compared: begin -->\n"
END: Final = "<!-- compared: end -->\n"
FEATURES_BEGIN: Final = "<!-- features: begin -->\n"
FEATURES_END: Final = "<!-- features: end -->\n"
TOOLS: Final = (
    "Leakline", "W&B", "MLflow", "trackio", "TraceML", "Stormlog", "memray", "CUDA snapshot", "Coroot", "memlab",
    "LeakCanary",
)  # fmt: skip
WORDS: Final = {"yes": "yes", "partly": "partly", "unknown": "?"}
# The settings that make each benchmark short.
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
    parser.add_argument("--again", action="store_true", help="use the last measurement")
    if not parser.parse_args().again:
        RECORDED.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    document = DOCUMENT.read_text(encoding="utf-8")
    document = between(document, features(), FEATURES_BEGIN, FEATURES_END)
    DOCUMENT.write_text(between(document, page(found)), encoding="utf-8")
    print(f"compared: wrote {DOCUMENT.relative_to(ROOT)}")
    return 0


def measured() -> Found:
    """Run the benchmarks one after the other; they print their progress to stderr."""
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


def between(document: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """Return ``document`` with ``text`` between the markers."""
    before, has_begin, rest = document.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise SystemExit(f"compared: the document has no {begin.strip()} or {end.strip()}")
    return before + begin + text + end + after


def features() -> str:
    """Return the table of the features that compared.toml marks as shown."""
    lines = [("#", "feature", *TOOLS), ("---:", "---", *["---"] * len(TOOLS))]
    for feature in tomllib.loads(FEATURES.read_text(encoding="utf-8"))["feature"]:
        if feature.get("shown"):
            what = f"[{feature['what']}]({feature['page']})"
            lines.append((str(feature["number"]), what, *words_of(feature).values()))
    return "".join(f"|{'|'.join(line)}|\n" for line in lines)


def words_of(feature: Found) -> dict[str, str]:
    """Return for each tool: yes, partly, no, or ? where it is unknown."""
    found = dict.fromkeys(TOOLS, "no")
    for key, word in WORDS.items():
        found |= dict.fromkeys(feature.get(key, ()), word)
    return found


def page(found: Found) -> str:
    """Return the tables of a measurement."""
    tables = [_loops(found["client"]["rows"]), *_scans(found["client"]["rows"])]
    tables += [_logged(found["server"]["parts"]), _ingested(found["server"]["parts"])]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    settings = " ".join(f"{key}={value}" for key, value in found["settings"].items())
    head = f"Measured on {found['date']}: {found['client']['machine']}. {versions}. `{settings}`\n"
    return "\n".join([head, *tables]).rstrip("\n") + "\n"


# -- the tables ---------------------------------------------------------------------------------------------

LOOPS: Final = {
    "allocations": "object allocations", "network": "small network", "example": "example training",
}  # fmt: skip
IN_LOOPS: Final = {
    "tracemalloc, 1 frame": "Python allocations with their line",
    "tracemalloc, 10 frames": "Python allocations with ten frames",
    "memray": "C library allocations with their stack, in a file",
    "memray, Python allocators": "Python allocations too",
}


def _loops(rows: Sequence[Found]) -> str:
    by_name = {row["name"]: row for row in rows}
    lines = [["", *LOOPS.values(), "contains"]]
    for figure, name, what in (
        ("cpu", "Leakline, second half", "measuring and recording, with its threads"),
        ("whole_ratio", "Leakline, whole", "the start and the first heap scans too"),
    ):  # fmt: skip
        lines.append(
            [name, *(_of_loop(by_name[f"{loop}: leakline"], figure) for loop in LOOPS), what]
        )
    for tool, what in IN_LOOPS.items():
        cells = [_of_loop(by_name[f"{loop}: {tool}"], "whole_ratio") for loop in LOOPS]
        lines.append([tool, *cells, what])
    return markdown_table(
        "In the training: CPU time, relative to the loop without tools",
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


OUR_SCANS: Final = {
    "full census, in slices": ("Leakline, in slices", "types, arrays, tensors; threads continue"),
    "full census, pure Python": ("Leakline, pure Python", "the same without the native module"),
}  # fmt: skip
SCANS: Final = {
    "objgraph typestats": "types of tracked objects",
    "objgraph growth": "the same with differences, after a full collection",
    "guppy3 heap()": "the entire heap by kind, with sizes",
    "Pympler summarize(get_objects())": "types with recursive sizes",
}


def _scans(rows: Sequence[Found]) -> Iterator[str]:
    """Yield a table for each heap that was measured."""
    for table in dict.fromkeys(row["table"] for row in rows if row["table"].startswith("heap of")):
        by_name = {row["name"]: row for row in rows if row["table"] == table}
        lines = [["", "CPU time", "arrays found", "contains"]]
        lines.append(["`Counter(map(type, gc.get_objects()))`", "1", "", "the baseline"])
        for name, (called, what) in OUR_SCANS.items():
            lines.append([called, *_of_scan(by_name[name]), what])
        for name, what in SCANS.items():
            lines.append([name, *_of_scan(by_name[name]), what])
        yield markdown_table(f"One heap scan: {table}", lines, [True, False, False, True])


def _of_scan(row: Found) -> list[str]:
    if row["missing"]:
        why = NOT_HERE if row["missing"] == "not measured" else row["missing"]
        return [why, ""]
    arrays = row["figures"].get("arrays_found")
    return [f"{row['figures']['ratio']:.2f}", "" if arrays is None else f"{arrays:,.0f}"]


LOGGED: Final = {
    LOGGED_BY_US: "65 gauges and its own measurements, overhead limit off",
    "W&B, offline": "`run.log`, with its writer process",
    "MLflow, SQLite": "`log_metrics`",
    "trackio, local": "`trackio.log`",
    "Aim, local": "`run.track` 65 times",
}


def _logged(parts: Sequence[Found]) -> str:
    (part,) = [part for part in parts if part["title"].startswith("loggers")]
    lines = [["", "CPU time", "contains"]]
    for line in part["lines"]:
        ratio = 1.0 if line["name"] == LOGGED_BY_US else line["figures"].get("ratio")
        lines.append([line["name"], _ratio(line, ratio), LOGGED[line["name"]]])
    return markdown_table(
        "Logging 65 numbers: CPU time of the client, relative to Leakline",
        lines,
        [True, False, True],
    )


INGESTED: Final = {
    "Leakline, SQLite": "durable before it answers; compaction",
    "Leakline, Postgres": "the same, with the Postgres processes",
    "VictoriaMetrics": "merges; in memory only for seconds",
    "Prometheus": "log and head; not forced to disk",
    "InfluxDB": "log forced to disk; compaction",
    "trackio": "its server, with its client's format",
    "MLflow": "its server on SQLite, with its client's format",
}


def _ingested(parts: Sequence[Found]) -> str:
    """Return the table of ingest; trackio and MLflow have figures for one batch size only."""
    sizes = [part for part in parts if part["title"].startswith("ingest, ")]
    lines = [["", *(part["title"].split(", ")[1] for part in sizes), "contains"]]
    for name, what in INGESTED.items():
        lines.append([name, *(_in_size(part, name) for part in sizes), what])
    return markdown_table(
        "Ingest: CPU time of the server per snapshot, relative to Leakline on SQLite", lines,
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


# -- versions -----------------------------------------------------------------------------


def _versions() -> Iterator[tuple[str, str]]:
    """Yield name and version of each peer that is installed."""
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
    """Remove the raw measurements, which are not shown."""
    for row in found.get("rows", ()):
        row.pop("raw", None)
    return found


def _without(name: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != name}


if __name__ == "__main__":
    sys.exit(main())
