"""Measure how often the analysis is wrong and how soon it is right, compared with five simple detectors.

    make bench-detection              prints the tables for 20 runs of each family
    make bench-detection CHECK=1      exits with 1 when a target is missed or could not be measured

    RUNS=20                           runs per family; RUNS=full: 170 of each healthy, 140 of each leaking family
    FAMILIES=flat,linear              some of the families
    FRESH=1                           also runs with fresh seeds, and the difference; FRESH=WORD repeats them
    JOBS=2                            number of processes (default: all cores)
    SOAK=1000                         generations of the long run whose examinations are timed; 0 for none
    RECORDED=FOLDER                   also memory series of real machines: its .csv files, see recorded.py
    BENCH_ARGS="--json FILE --markdown FILE"        every run as JSON, all tables as Markdown

Every detector is evaluated after every generation of every run, as in a run watched live. The runs are generated and
the same on every machine, and so are all figures.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.printing import options as read_options

from .evaluate import Outcome, outcomes
from .figure import Figure
from .figures import figures
from .generators import FAMILIES, PUBLIC, Family, draws, fresh_word
from .recorded import NoReadings, recorded_figures, recorded_runs
from .soak import soak, soak_figures
from .tables import (
    FIGURES_TITLE,
    RECORDED_TITLE,
    SOAK_TITLE,
    Table,
    by_family,
    figure_table,
    markdown_table,
    text_table,
)

_RUNS: Final = 20
_SOAK: Final = 1_000


def main() -> int:
    options = read_options("detection", __doc__, "every run")
    families, runs, jobs = _families(), _runs(), _number("JOBS")
    public = _run(PUBLIC, families, runs, jobs)
    found = figures(public)
    tables = by_family(public)
    word = _fresh()
    other = _run(word, families, runs, jobs) if word else []
    fresh = figures(other) if word else []
    title = f"{FIGURES_TITLE} (fresh seeds: FRESH={word!r})" if word else FIGURES_TITLE
    tables.append((title, figure_table(found, fresh)))
    watched = _soaked()
    if watched:
        tables.append((SOAK_TITLE, figure_table(watched, [])))
        found += watched
    real = _recorded()
    if real:
        tables.append((RECORDED_TITLE, figure_table(real, [])))
        found += real
    for name, table in tables:
        print("\n" + text_table(name, table), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(_for_programs(public, found, other, fresh), indent=1))
    if options.markdown is not None:
        options.markdown.write_text(_for_documents(tables))
    return _check(found) if os.environ.get("CHECK") else 0


def _run(word: str, families: list[Family], runs: int | None, jobs: int | None) -> list[Outcome]:
    asked = list(draws(word, families, runs))
    found = []
    for outcome in outcomes(asked, jobs):
        found.append(outcome)
        if sys.stderr.isatty():
            print(f"\r\033[K{len(found)} of {len(asked)} runs", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found


def _check(found: Sequence[Figure]) -> int:
    short = [figure for figure in found if figure.failure()]
    for figure in short:
        print(f"bench-detection: {figure.code}, {figure.name}: {figure.failure()}", file=sys.stderr)
    return 1 if short else 0


def _for_programs(
    public: Sequence[Outcome],
    found: Sequence[Figure],
    other: Sequence[Outcome],
    fresh: Sequence[Figure],
) -> dict[str, object]:
    def as_json(figure: Figure) -> dict[str, object]:
        value = figure.value if figure.value != float("inf") else None
        return {
            **asdict(figure),
            "value": value,
            "text": figure.text(),
            "failure": figure.failure(),
        }

    return {
        "seeds": PUBLIC,
        "figures": [as_json(figure) for figure in found],
        "runs": [asdict(outcome) for outcome in public],
        "fresh_figures": [as_json(figure) for figure in fresh],
        "fresh_runs": [asdict(outcome) for outcome in other],
    }


def _for_documents(tables: Sequence[tuple[str, Table]]) -> str:
    return "\n".join(markdown_table(name, table) for name, table in tables)


def _soaked() -> list[Figure]:
    """Measure the long run after everything else, when no other work of ours uses a core."""
    generations = 0 if os.environ.get("SOAK") == "0" else _number("SOAK") or _SOAK
    return soak_figures(soak(generations)) if generations else []


def _recorded() -> list[Figure]:
    folder = os.environ.get("RECORDED")
    if not folder:
        return []
    try:
        return recorded_figures(list(recorded_runs(Path(folder))))
    except (OSError, NoReadings) as error:
        raise SystemExit(f"bench-detection: RECORDED: {error}") from None


def _families() -> list[Family]:
    asked = os.environ.get("FAMILIES") or ",".join(FAMILIES)
    names = [name.strip() for name in asked.split(",")]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise SystemExit(
            f"bench-detection: FAMILIES has {unknown[0]!r}; use some of {','.join(FAMILIES)}"
        )
    return [family for name, family in FAMILIES.items() if name in names]


def _runs() -> int | None:
    """Return the number of runs per family; None for as many as in the published figures."""
    if os.environ.get("RUNS") == "full":
        return None
    return _number("RUNS") or _RUNS


def _fresh() -> str:
    asked = os.environ.get("FRESH", "")
    if asked in ("", "0"):
        return ""
    return fresh_word() if asked == "1" else asked


def _number(name: str) -> int | None:
    asked = os.environ.get(name)
    if not asked:
        return None
    if not asked.isdigit() or not int(asked):
        raise SystemExit(f"bench-detection: {name} is {asked!r}; use a number from 1 on")
    return int(asked)


if __name__ == "__main__":
    sys.exit(main())
