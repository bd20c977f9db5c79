"""Names of child processes in metrics. A name describes the child's purpose and is kept for its lifetime.

When a child exits, its name goes to the next child of the same kind. Loader workers restarted each epoch therefore
continue the same few series. The number of names is limited, because some programs keep inventing new ones. Children
beyond this limit have no name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, NamedTuple

# Limits on the names assigned during the life of this process (each name creates a series) and on the names in one
# reading.
NAMES_LIMIT: Final = 64
REPORTED_LIMIT: Final = 16
# A child replaces a reported child only if it is larger by this factor: series with gaps are of little use.
_CLEARLY: Final = 1.25
_LENGTH: Final = 64
# Default names of multiprocessing, which end in an ever-increasing number.
_NUMBERED: Final = re.compile(r"([A-Za-z]*(?:Process|PoolWorker))-[\d:]+\Z")
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*\Z")
_END_OF_PROGRAM: Final = re.compile(r"[\s:]")
# Short options of Python can be combined, as in "-uc". The first such option takes the remainder of the word as its
# value, or the next word if nothing follows the option.
_WITH_VALUE: Final = re.compile(r"-[^-cmWX]*([cmWX])")
_LONG_WITH_VALUE: Final = ("--check-hash-based-pycs", "--jit")
_OF_MULTIPROCESSING: Final = re.compile(r"from multiprocessing\.(\w+) import")
OTHER: Final = "other"


class Wanted(NamedTuple):
    """A preferred name. Its first process gets the number ``first``, or no number if ``first`` is None."""

    name: str
    first: int | None = None


class ChildNames:
    """Names assigned to children, and the selection of children that are reported individually."""

    def __init__(self) -> None:
        # None means that the limit was reached when the child appeared, so the child never gets a name.
        self._names: dict[Hashable, str | None] = {}
        self._taken = {OTHER}
        self._ever: set[str] = set()
        self._named: set[str] = set()

    def keep(self, living: Iterable[Hashable]) -> None:
        """Release the names of children whose keys are not in ``living``."""
        here = set(living)
        self._names = {key: name for key, name in self._names.items() if key in here}
        self._taken = {OTHER, *filter(None, self._names.values())}

    def name(self, key: Hashable, wanted: Callable[[], Wanted]) -> str | None:
        """Return the name of the child with this key, or None beyond the limit of names.

        ``wanted`` is called at most once per child.
        """
        if key not in self._names:
            self._names[key] = self._new(wanted)
        return self._names[key]

    def _new(self, wanted: Callable[[], Wanted]) -> str | None:
        if len(self._taken) > NAMES_LIMIT:
            return None
        found = _free(wanted(), self._taken)
        if found not in self._ever and len(self._ever) >= NAMES_LIMIT:
            return None
        self._ever.add(found)
        self._taken.add(found)
        return found

    def named(self, sizes: Mapping[str, int]) -> set[str]:
        """Return the names of the largest children.

        A reported name stays until other children are clearly larger.
        """
        kept = self._named

        def weight(name: str) -> tuple[float, str]:
            return sizes[name] * (_CLEARLY if name in kept else 1.0), name

        self._named = set(sorted(sizes, key=weight, reverse=True)[:REPORTED_LIMIT])
        return self._named


def _free(wanted: Wanted, taken: set[str]) -> str:
    # A dot within the metric name would end the process's name.
    name = "".join(c if c.isprintable() and c != "." else "_" for c in wanted.name)[:_LENGTH]
    name = name or "process"
    if wanted.first is None and name not in taken:
        return name
    number = 2 if wanted.first is None else wanted.first
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def given_names() -> dict[int, str]:
    """Return the names of the program's ``multiprocessing`` children, by process ID.

    Unlike ``multiprocessing.active_children``, this function neither polls nor reaps processes.
    """
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
    """Return the preferred name: the name of the program, or of the script or module that Python runs.

    Other arguments may be confidential and are never used. ``command`` is the command line with a zero byte after each
    word; ``name`` is the process's name in the kernel.
    """
    program, *words = (command.removesuffix(b"\0") or name).decode(errors="replace").split("\0")
    # If a process has set its own title, the entire title is in the first word: "myapp: worker --token=.. (run)".
    program = _END_OF_PROGRAM.split(program, maxsplit=1)[0].rpartition("/")[2]
    if _PYTHON.match(program):
        return Wanted(_run_by_python(words) or "python", 1)
    return Wanted(program, 1)


def _run_by_python(words: Iterable[str]) -> str | None:
    """Return the script or module that Python runs with these arguments, or None for other code."""
    waiting = iter(words)
    for word in waiting:
        if word == "-":
            # Python reads the program from standard input.
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
