"""Programs for `leakline run`, each in its own folder, and what was recorded of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakline.snapshot import ProcessIdentity, RunHeader, Snapshot
from leakline.transport.spool_format import read_batches, read_end, read_header


@dataclass(frozen=True)
class Recorded:
    """One recorded process of a run."""

    header: RunHeader
    process: ProcessIdentity
    end: dict[str, Any] | None
    snapshots: tuple[Snapshot, ...]

    @property
    def how(self) -> tuple[str, str]:
        assert self.end is not None
        return self.end["state"], self.end["reason"]


class Place:
    """A folder for a program and its recordings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(text))
        return name

    def run(self, command: Sequence[str], *options: str, **more: str) -> Any:
        return subprocess.run(
            self.line(command, *options), cwd=self.folder, env={**os.environ, **more},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def line(self, command: Sequence[str], *options: str) -> list[str]:
        mode = () if "--server" in options else ("--mode", "offline")
        return [sys.executable, "-m", "leakline", "run", *mode, *options, "--", *command]

    def python(self, text: str, *options: str, **more: str) -> Any:
        return self.run([sys.executable, self.write(text)], *options, **more)

    def recorded(self) -> Iterator[Recorded]:
        for path in sorted((self.folder / ".leakline").rglob("*.spool")):
            snapshots = tuple(s for batch in read_batches(path) for s in batch.snapshots)
            yield Recorded(*read_header(path), read_end(path), snapshots)
