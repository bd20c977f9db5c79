"""A benchmark program: the selected rows, its tables, and the check of every target."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .printing import options
from .server.load import Failed
from .server.rows import Figure, Line, Part, figure_table, part_table, to_json


@dataclass(frozen=True, slots=True)
class Program:
    """A benchmark. ``rows`` are keyed by the names in ROWS; ``shortened`` runs measure too little to check targets."""

    name: str
    description: str | None
    rows: Mapping[str, Callable[[], list[Part]]]
    shortened: bool

    def run(self, machine: str) -> int:
        """Run the selected rows and return the exit status. ``machine`` describes the machine in a line."""
        written = options(self.name, self.description, "all parts")
        asked = self._asked()
        if self.shortened:
            machine += ", SHORT: figures are not reliable"
        print(machine, flush=True)
        parts: list[Part] = []
        for name in asked:
            began = time.monotonic()
            found = self._measured(name)
            for part in found:
                print("\n" + part_table(part), end="", flush=True)
            print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
            parts += found
        figures = [figure for part in parts for figure in part.figures]
        print("\n" + figure_table("targets", figures))
        if written.json is not None:
            told = {"machine": machine, "parts": [to_json(part) for part in parts]}
            written.json.write_text(json.dumps(told, indent=1))
        if written.markdown is not None:
            tables = [figure_table("targets", figures, markdown=True)]
            tables += [part_table(part, markdown=True) for part in parts]
            written.markdown.write_text("\n".join((machine, "", *tables)))
        return self.check(figures, asked) if os.environ.get("CHECK") else 0

    def check(self, figures: Sequence[Figure], asked: Sequence[str]) -> int:
        """Print every missed target and everything that was not checked, and return the exit status."""
        short = [figure for figure in figures if not figure.holds]
        for figure in short:
            told = (
                f"{figure.measured()} is not {figure.target()}"
                if figure.value is not None
                else figure.verdict()
            )
            self._say(f"{figure.name}: {told}")
        left_out = [name for name in self.rows if name not in asked]
        if left_out:
            self._say(f"not checked, because ROWS leaves it out: {', '.join(left_out)}")
        if self.shortened:
            self._say("SHORT=1 measures less than what is held, so CHECK=1 fails with it")
        if not figures:
            self._say("these rows have no targets; CHECK=1 has nothing to check")
        return 1 if short or self.shortened or not figures else 0

    def _measured(self, name: str) -> list[Part]:
        """Measure a row; if it fails, report its figures as missing so that the other rows still run."""
        try:
            return self.rows[name]()
        except (Failed, OSError, KeyError) as error:
            why = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            return [
                Part(f"{name} broke off", [Line(name, missing=why)], [Figure(name, 0, missing=why)])
            ]

    def _asked(self) -> list[str]:
        asked = os.environ.get("ROWS")
        if not asked:
            return list(self.rows)
        names = asked.split(",")
        unknown = [name for name in names if name not in self.rows]
        if unknown:
            known = ",".join(self.rows)
            raise SystemExit(f"bench-{self.name}: ROWS has {unknown[0]!r}; use some of {known}")
        return [name for name in self.rows if name in names]

    def _say(self, what: str) -> None:
        print(f"bench-{self.name}: {what}", file=sys.stderr)
