"""Counts of the functions that threads call, with the interpreter's profiling hook."""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import leakline
import leakline_server

# Probes are left out of the files: each of them is a file of its own by design.
_ROOTS: Final = tuple(str(Path(package.__file__).parent) + "/" for package in (leakline, leakline_server))  # fmt: skip
_PROBES: Final = "/leakline/probes/"


@dataclass(slots=True)
class Count:
    """The calls of one thread: how often it entered each function of the product, by file and name."""

    functions: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.functions.total()

    def of(self, file: str, function: str) -> int:
        """Return the calls of a function; ``file`` is the last part of its path."""
        return sum(
            n
            for (path, name), n in self.functions.items()
            if name == function and path.endswith(f"/{file}")
        )

    def files(self, units: int) -> list[str]:
        """Return the files whose functions are called at least half as often as there are ``units``."""
        entered: Counter[str] = Counter()
        for (path, _), count in self.functions.items():
            entered[path] += count
        return sorted(path for path, n in entered.items() if 2 * n >= units and _PROBES not in path)


class Calls:
    """Counts by thread name, of the thread that calls `watch` and of threads started inside it."""

    def __init__(self) -> None:
        self._of: defaultdict[str, Count] = defaultdict(Count)
        self._counts = False

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and self._counts and frame.f_code.co_filename.startswith(_ROOTS):
            code = frame.f_code
            self._of[threading.current_thread().name].functions[code.co_filename, code.co_name] += 1

    def take(self) -> dict[str, Count]:
        """Return the counts since the last call."""
        taken, self._of = dict(self._of), defaultdict(Count)
        return taken

    @contextmanager
    def watch(self) -> Iterator[None]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._counts = True
        try:
            yield
        finally:
            self._counts = False
