"""What each child process is called in the series: by what it is there for, for as long as it lives.

A name that is free goes to the next child of the kind, so that loader workers that each epoch starts afresh go on
as the same few series. Of names that a program keeps inventing only so many are taken; the children beyond them
have none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, NamedTuple

# Names over the life of a process, each with its series; and those reported at one moment.
NAMES_LIMIT: Final = 64
REPORTED_LIMIT: Final = 16
# What is larger takes the place of one that is reported already when it is so much larger: series with gaps say little.
_CLEARLY: Final = 1.25
_LENGTH: Final = 64
# The names that multiprocessing numbers on and on.
_NUMBERED: Final = re.compile(r"([A-Za-z]*(?:Process|PoolWorker))-[\d:]+\Z")
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*\Z")
_END_OF_PROGRAM: Final = re.compile(r"[\s:]")
# Options of Python stand together in one word; the first of these takes what follows it, else the word after: "-uc".
_WITH_VALUE: Final = re.compile(r"-[^-cmWX]*([cmWX])")
_LONG_WITH_VALUE: Final = ("--check-hash-based-pycs", "--jit")
_OF_MULTIPROCESSING: Final = re.compile(r"from multiprocessing\.(\w+) import")
OTHER: Final = "other"


class Wanted(NamedTuple):
    """``first``: the number of the first of its kind; None where the name stands for one process alone."""

    name: str
    first: int | None = None


class ChildNames:
    """Which child has which name, and which are reported."""

    def __init__(self) -> None:
        # None: too many names when it came, and so for as long as it lives.
        self._names: dict[Hashable, str | None] = {}
        self._taken = {OTHER}
        self._ever: set[str] = set()
        self._named: set[str] = set()

    def keep(self, living: Iterable[Hashable]) -> None:
        """The names of those that have ended are free."""
        here = set(living)
        self._names = {key: name for key, name in self._names.items() if key in here}
        self._taken = {OTHER, *filter(None, self._names.values())}

    def name(self, key: Hashable, wanted: Callable[[], Wanted]) -> str | None:
        """That of the child ``key``; ``wanted`` is asked once of each at most. None where there are too many names."""
        if key not in self._names:
            self._names[key] = self._new(wanted)
        return self._names[key]

    def _new(self, wanted: Callable[[], Wanted]) -> str | None:
        if len(self._taken) > NAMES_LIMIT:
            # All are in use, so whatever it wants would be one more.
            return None
        found = _free(wanted(), self._taken)
        if found not in self._ever and len(self._ever) >= NAMES_LIMIT:
            return None
        self._ever.add(found)
        self._taken.add(found)
        return found

    def named(self, sizes: Mapping[str, int]) -> set[str]:
        """Return the largest of these names; one that is reported already stays, unless others are clearly larger."""
        kept = self._named

        def weight(name: str) -> tuple[float, str]:
            return sizes[name] * (_CLEARLY if name in kept else 1.0), name

        self._named = set(sorted(sizes, key=weight, reverse=True)[:REPORTED_LIMIT])
        return self._named


def _free(wanted: Wanted, taken: set[str]) -> str:
    # A dot would be read as the end of the name.
    name = "".join(c if c.isprintable() and c != "." else "_" for c in wanted.name)[:_LENGTH]
    name = name or "process"
    if wanted.first is None and name not in taken:
        return name
    number = 2 if wanted.first is None else wanted.first
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def given_names() -> dict[int, str]:
    """Process id -> the name that the program gave the child with ``multiprocessing``. Asks nothing and reaps nobody,
    which ``multiprocessing.active_children`` would."""
    module = sys.modules.get("multiprocessing.process")
    found = {}
    for child in list(getattr(module, "_children", ())):
        own = getattr(child, "__dict__", {})
        pid, name = getattr(own.get("_popen"), "pid", None), own.get("_name")
        if isinstance(pid, int) and isinstance(name, str):
            found[pid] = name
    return found


def wanted_of_given(name: str) -> Wanted:
    numbered = _NUMBERED.match(name)
    return Wanted(numbered[1], 1) if numbered else Wanted(name)


def wanted_of_command(command: bytes, name: bytes) -> Wanted:
    """By the program that runs; of a Python by its script or module. Arguments are nobody's business.

    ``command``: the words of the command line, each with a zero byte behind it; ``name``: what the kernel calls it.
    """
    program, *words = (command.removesuffix(b"\0") or name).decode(errors="replace").split("\0")
    # A title that a process has given itself is all in the first word: "myapp: worker --token=.. (run)".
    program = _END_OF_PROGRAM.split(program, maxsplit=1)[0].rpartition("/")[2]
    if _PYTHON.match(program):
        return Wanted(_run_by_python(words) or "python", 1)
    return Wanted(program, 1)


def _run_by_python(words: Iterable[str]) -> str | None:
    """The script or module that these words after ``python`` make it run; None where it is neither."""
    waiting = iter(words)
    for word in waiting:
        if word == "-":
            # What comes on its standard input.
            return None
        if word in _LONG_WITH_VALUE:
            next(waiting, "")
        elif word == "--" or not word.startswith("-"):
            script = next(waiting, "") if word == "--" else word
            return script.rpartition("/")[2].removesuffix(".py")
        elif (option := _WITH_VALUE.match(word)) is not None:
            value = word[option.end() :] or next(waiting, "")
            if option[1] == "c":
                helper = _OF_MULTIPROCESSING.search(value)
                return helper[1] if helper else None
            if option[1] == "m":
                return value
    return None
