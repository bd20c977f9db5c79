"""Change the detector and the signatures a bit at a time, and count how often their tests notice.

    python -m tests.mutation [--mutants 300] [--modules trend,signing] [--seed 1] [--check 0.8]

1. The tests of each part are run once under coverage, which says what tests take each line, and how long each takes.
2. Of all changes (`mutants.py`) that many are drawn, each as likely as another; of the signatures all are taken.
3. Of each part one module is run unchanged: tests that fail with it would notice anything.
4. For each change, the tests that take its line run with it, cheapest first, until one fails; of a line that runs
   when its module is imported, those that read what it binds (`imported.py`). What no test takes, or all pass with,
   has survived: it is printed, and the share that did not is the score. Where pytest could not run them, nothing was
   noticed and there is no score.

mutmut was tried first: it makes every mutant of a module at once, takes the module's name from its path, which is
not that of an editable install, and has no way to draw some of the 10,000 that the detector has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.mutation.imported import Line, users_of, uses
from tests.mutation.mutants import Mutant, mutants, mutated

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = {
    "detector": ("agent_client", "leakline/analysis", "tests/analysis"),
    "signatures": (
        "server",
        "leakline_server/alerts/signing.py",
        "tests/server/alerts/test_signing.py",
    ),
}
# Of what only says something: its words are read by people, and tests look for the sentence that matters.
WORDING: Final = {"wording", "advice", "summary", "evidence"}
# Of the tests that take a line, the cheapest that together take so long.
TEST_SECONDS: Final = 40.0
MUTANT_SECONDS: Final = 120.0
# Of what pytest says where tests fail.
_LAST_LINES: Final = 60
# How pytest ends; with anything else it did not run the tests.
PASSED: Final = 0
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Drawn:
    part: str
    module: str
    source: Path
    mutant: Mutant


@dataclass(frozen=True, slots=True)
class Known:
    """(file, line) -> tests by their names for pytest, and how long each takes."""

    tests: dict[Line, set[str]]
    seconds: dict[str, float]
    # Name -> where it is read.
    uses: dict[str, set[Line]] = field(default_factory=dict)

    def of(self, drawn: Drawn) -> list[str]:
        taking = self.tests.get((str(drawn.source), drawn.mutant.line), set())
        if not taking:
            lines = users_of(drawn.source, drawn.mutant.line, self.uses)
            taking = set().union(*(self.tests.get(line, ()) for line in lines))
        found = sorted(taking, key=self.seconds.__getitem__)
        chosen: list[str] = []
        total = 0.0
        for test in found:
            total += self.seconds[test]
            if chosen and total > TEST_SECONDS:
                break
            chosen.append(test)
        return chosen


def main() -> int:
    options = _options()
    score: dict[str, list[bool]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for part, (base, code, tests) in PARTS.items():
            drawn = _draw(part, base, code, options)
            if not drawn:
                continue
            known = know(Path(folder), part, ROOT / base, tests)
            _refuse_what_notices_anything(known, Path(folder), drawn)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                outcomes = pool.map(partial(noticed, known, Path(folder)), drawn)
                for one, was in zip(drawn, outcomes, strict=True):
                    score[part].append(was)
                    if not was:
                        place = f"{one.source.relative_to(ROOT)}:{one.mutant.line}"
                        print(f"survived  {place}  {one.mutant.change}", flush=True)
    failed = False
    for part, found in score.items():
        share = sum(found) / len(found)
        failed |= share < options.check
        print(
            f"{part}: {sum(found)} of {len(found)} changes noticed, {share:.0%} (at least {options.check:.0%})"
        )
    return int(failed)


def _options() -> Any:
    parser = argparse.ArgumentParser(description="Do the tests notice when the code is changed?")
    parser.add_argument("--mutants", type=int, default=300, help="of the detector")
    parser.add_argument(
        "--modules", default="", help="only these, by their names, with commas between"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", type=float, default=0.8, help="the share that must be noticed")
    return parser.parse_args()


def _draw(part: str, base: str, code: str, options: Any) -> list[Drawn]:
    place = ROOT / base / code
    files = [place] if place.is_file() else sorted(place.glob("*.py"))
    wanted = set(filter(None, options.modules.split(",")))
    found = []
    for file in files:
        if file.stem in WORDING or (wanted and file.stem not in wanted):
            continue
        module = ".".join(file.relative_to(ROOT / base).with_suffix("").parts)
        found += [Drawn(part, module, file, each) for each in mutants(file.read_text())]
    if place.is_file() or len(found) <= options.mutants:
        return found
    return random.Random(options.seed).sample(found, options.mutants)


def know(folder: Path, part: str, source: Path, tests: str, root: Path = ROOT) -> Known:
    """Run the tests once as they are. Whoever does not pass now cannot tell anything."""
    rc, data, told = folder / f"{part}.rc", folder / f"{part}.coverage", folder / f"{part}.times"
    rc.write_text(f"[run]\ndata_file = {data}\nsource = {source}\n")
    coverage = [sys.executable, "-m", "coverage"]
    began = time.monotonic()
    done = subprocess.run(
        [*coverage, "run", "--rcfile", rc, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-p", "tests.mutation.taking", tests],
        cwd=root, env={**_environment(), "LEAKLINE_TEST_SECONDS": str(told)}, stdout=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        failed = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise SystemExit(f"{part}: its tests fail although nothing was changed\n{failed}")
    out = folder / f"{part}.json"
    subprocess.run(
        [*coverage, "json", "--rcfile", rc, "--show-contexts", "--quiet", "-o", out],
        cwd=root,
        check=True,
    )
    by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
    for file, found in json.loads(out.read_text())["files"].items():
        for line, contexts in found["contexts"].items():
            by_line[str(root / file), int(line)] |= {*filter(None, contexts)}
    print(f"{part}: its tests took {time.monotonic() - began:.0f} s under coverage", flush=True)
    files = sorted({Path(file) for file, _ in by_line})
    return Known(dict(by_line), json.loads(told.read_text()), uses(files))


def _refuse_what_notices_anything(known: Known, folder: Path, drawn: Sequence[Drawn]) -> None:
    one = next((each for each in drawn if known.of(each)), None)
    if one is not None and noticed(
        known, folder, replace(one, mutant=replace(one.mutant, number=-1))
    ):
        raise SystemExit(f"{one.module}: its tests fail although nothing was changed")


def noticed(known: Known, folder: Path, drawn: Drawn, root: Path = ROOT) -> bool:
    """Whether a test fails. Raises SystemExit where pytest could not run them, which says nothing of the change."""
    tests = known.of(drawn)
    if not tests:
        return False
    file = folder / f"{drawn.module}-{drawn.mutant.number}.py"
    file.write_text(mutated(drawn.source.read_text(), drawn.mutant))
    environment = {**_environment(), "LEAKLINE_MUTANT": f"{drawn.module}={file}"}
    run = partial(
        subprocess.run, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=MUTANT_SECONDS, check=False,
    )  # fmt: skip
    try:
        done = run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.inject",
             *tests]
        )  # fmt: skip
        if done.returncode in (PASSED, FAILED):
            return done.returncode == FAILED
        # What cannot even be imported is seen by whoever runs anything.
        if run([sys.executable, "-c", f"import tests.mutation.inject, {drawn.module}"]).returncode:
            return True
        # Nor can a file of tests that works something out while it is collected; without the change it can.
        unchanged = {**environment, "LEAKLINE_MUTANT": f"{drawn.module}={drawn.source}"}
        if _collects(tests, root, unchanged) and not _collects(tests, root, environment):
            return True
    except subprocess.TimeoutExpired:
        # It goes round for ever: that is seen.
        return True
    raise SystemExit(f"pytest ended with {done.returncode} of {', '.join(tests)}:\n{done.stdout}")


def _collects(tests: Sequence[str], root: Path, environment: Mapping[str, str]) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
         "-p", "tests.mutation.inject", *tests],
        cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        timeout=MUTANT_SECONDS, check=False,
    )  # fmt: skip
    return done.returncode == PASSED


def _environment() -> dict[str, str]:
    # Where this runs from an editable install, the paths are those of it.
    paths = [
        str(ROOT),
        str(ROOT / "agent_client"),
        str(ROOT / "server"),
        os.environ.get("PYTHONPATH", ""),
    ]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
