"""Phase accounting: assigns every byte allocated or freed between two generation ends to one line.

A line is a phase, "between", "other_threads" or "leakline". The caller supplies readings: the process's private bytes
and the seconds of a monotonic clock. The change since the previous reading is booked to the innermost open phase of the
training thread. If the training thread has no open phase, the change is booked to "other_threads" while another thread
has an open phase, and otherwise to "between". A change caused by our own measuring is booked to "leakline". Every
reading ends one interval and starts the next, so the lines add up exactly to the total change, regardless of nesting
and exceptions.

Memory belongs to the process, not to a thread: while the training thread and another thread both have an open phase,
all allocations of either thread are booked to the training thread's phase.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

BETWEEN: Final = "between"
OTHER_THREADS: Final = "other_threads"
OWN: Final = "leakline"
# Names that phases must not use.
RESERVED_PHASES: Final = frozenset({BETWEEN, OTHER_THREADS, OWN})
DEPTH_LIMIT: Final = 16
PATHS_LIMIT: Final = 64
# Maximum number of characters in a path; the server enforces the same limit.
PATH_LIMIT: Final = 256
# Maximum number of open phases on other threads: a program that never closes its phases must not
# use up memory.
ELSEWHERE_LIMIT: Final = 256
# The line that top-level phases beyond PATHS_LIMIT share.
OTHER: Final = "other"


class Reading(NamedTuple):
    bytes: int
    seconds: float


@dataclass(slots=True)
class Line:
    bytes: int = 0
    seconds: float = 0.0
    executions: int = 0


@dataclass(slots=True, eq=False)
class Frame:
    """An execution of a phase.

    ``booked`` is False if memory was not read when the phase was entered, because phases were
    entered too often. Changes within such a phase are booked to the enclosing line.
    """

    path: str
    booked: bool
    # True if the phase was opened on another thread. Its bytes are booked to "other_threads" while
    # the training thread has no open phase.
    foreign: bool = False
    # Highest resident memory in any snapshot taken while the phase was open; 0 if none was taken.
    peak_bytes: int = 0

    def note_peak(self, seen_bytes: float) -> None:
        self.peak_bytes = max(self.peak_bytes, int(seen_bytes))


@dataclass(slots=True)
class PhaseLedger:
    """The open phases, innermost last, and the lines of the current generation."""

    last: Reading
    lines: dict[str, Line] = field(default_factory=dict)
    open: list[Frame] = field(default_factory=list)
    # Open phases on other threads, in no particular order, because they are not nested.
    open_elsewhere: list[Frame] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    @property
    def path(self) -> str | None:
        """The path of the training thread's innermost open phase."""
        return self.open[-1].path if self.open else None

    def enter(self, name: str, reading: Reading | None) -> Frame:
        """Open a phase. Without a reading, the phase's bytes are booked to the enclosing line."""
        if reading is not None:
            self.book(reading)
        frame = Frame(self._path_of(name), reading is not None)
        self.open.append(frame)
        return frame

    def exit(self, frame: Frame, reading: Reading | None) -> bool:
        """Close the phase and all phases still open inside it. Return False if the phase was already closed.

        Without a reading, the change is booked only at the next reading, so a phase entered with a
        reading must also be closed with a reading.
        """
        if reading is not None and self._place(frame) is not None:
            self.book(reading)
        # Look the frame up again after booking: a collection may just have closed an abandoned
        # generator and its phase.
        place = self._place(frame)
        if place is None:
            return False
        closed, self.open[place:] = self.open[place:], []
        for each in closed:
            self._line(each.path).executions += 1
        return True

    def enter_elsewhere(self, name: str, reading: Reading | None) -> Frame:
        """Open a phase on another thread. Without a reading, the phase is left out of the accounts."""
        booked = reading is not None and len(self.open_elsewhere) < ELSEWHERE_LIMIT
        frame = Frame(name, booked, foreign=True)
        if reading is not None and booked:
            self.book(reading)
            self.open_elsewhere.append(frame)
        return frame

    def exit_elsewhere(self, frame: Frame, reading: Reading | None) -> None:
        """Close a phase on another thread. A phase that was entered with a reading must be closed with a reading."""
        if reading is not None:
            self.book(reading)
        self.open_elsewhere = [other for other in self.open_elsewhere if other is not frame]

    def book(self, reading: Reading) -> None:
        """Book the change since the last reading to the innermost open line."""
        self._book(reading, self._current())

    def charge_own_work(self, reading: Reading) -> None:
        """Book the change since the last reading to Leakline itself."""
        self._book(reading, OWN)

    def close_generation(self, reading: Reading) -> dict[str, Line]:
        """Return the lines up to this reading, and start the next generation without lines. Open phases stay open."""
        self.book(reading)
        closed, self.lines = self.lines, {}
        closed.setdefault(BETWEEN, Line())
        closed.setdefault(OWN, Line())
        return closed

    def _place(self, frame: Frame) -> int | None:
        # Search from the innermost frame outward, because the frame is nearly always the innermost
        # one.
        for place in range(len(self.open) - 1, -1, -1):
            if self.open[place] is frame:
                return place
        return None

    def _book(self, reading: Reading, name: str) -> None:
        line = self._line(name)
        # The statements below call no function, so no signal handler or finalizer, which might book
        # as well, can run between them.
        line.bytes += reading.bytes - self.last.bytes
        line.seconds += reading.seconds - self.last.seconds
        self.last = reading

    def _line(self, name: str) -> Line:
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line()
        return line

    def _current(self) -> str:
        for frame in reversed(self.open):
            if frame.booked:
                return frame.path
        return OTHER_THREADS if self.open_elsewhere else BETWEEN

    def _path_of(self, name: str) -> str:
        path = self._nested(name)
        if path not in self.paths:
            if len(self.paths) >= PATHS_LIMIT:
                return self.path or OTHER
            self.paths.add(path)
        return path

    def _nested(self, name: str) -> str:
        """Return the path of a phase that is opened now. A phase nested in itself has the same path at any depth."""
        parts: list[str] = [] if self.path is None else self.path.split("/")
        if name in parts:
            return "/".join(parts[: parts.index(name) + 1])
        return "/".join([*parts, name][:DEPTH_LIMIT])[:PATH_LIMIT].rstrip("/")


def account_samples(lines: dict[str, Line]) -> dict[str, int | float]:
    """Return a generation's lines as samples: ``phase.<path>.bytes``, ``.seconds`` and ``.executions``."""
    samples: dict[str, int | float] = {}
    for name, line in lines.items():
        samples[f"phase.{name}.bytes"] = line.bytes
        samples[f"phase.{name}.seconds"] = round(line.seconds, 6)
        if name not in RESERVED_PHASES:
            samples[f"phase.{name}.executions"] = line.executions
    return samples
