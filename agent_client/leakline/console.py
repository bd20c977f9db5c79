"""Output on stderr: notices, the status line and printed snapshots.

All output goes through the logger "leakline". It never goes to stdout or breaks the line of a progress bar. Snapshots
are printed in the same format as in reports.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .snapshot import LARGEST_INTEGER, Number, Snapshot
from .text_format import (
    NOT_MEASURED,
    format_bytes,
    format_change,
    format_gib,
    seen_of,
    short_name,
    worded,
)

if TYPE_CHECKING:
    from .analysis.results import Verdict


logger = logging.getLogger("leakline")


class _StderrHandler(logging.Handler):
    """Handler that writes to the current sys.stderr and ignores a closed or broken stream."""

    def emit(self, record: logging.LogRecord) -> None:
        # OSError: the pipe is broken. ValueError: the stream is closed or cannot encode the text. RuntimeError: a
        # signal handler interrupted the write and wrote to the same stream.
        with suppress(OSError, ValueError, RuntimeError):
            _write(self.format(record))


def _write(line: str) -> None:
    bars = sys.modules.get("tqdm")
    if sys.stderr is None:
        return
    if bars is not None and hasattr(bars, "tqdm"):
        bars.tqdm.write(line, file=sys.stderr)
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def set_up() -> None:
    """Send log lines only to stderr. `init` calls this function, so that importing the package has no side effects."""
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())
    # Do not propagate: the program's own log handlers may write to stdout, which is for the program's results.
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


class Notices:
    """Logs notices, unless the run is quiet. Notices with the same ``once`` key are logged only once."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._said: set[str] = set()

    def say(self, line: str, *, once: str | None = None) -> None:
        if self._quiet or (once is not None and once in self._said):
            return
        if once is not None:
            self._said.add(once)
        logger.info("leakline: %s", line)


WIDTH: Final = 78
OBJECT_ROWS: Final = 24
_PEAK: Final = "process.peak_bytes"
_MEMORY_ROWS: Final = (
    ("RSS (actual RAM)", "process.rss_bytes"), ("anonymous", "process.anon_bytes"),
    ("file-backed", "process.file_bytes"), ("shared", "process.shared_bytes"),
    ("swapped out", "process.swap_bytes"), ("VMS (virtual)", "process.vms_bytes"),
    ("peak", "process.peak_bytes"), ("container in use", "cgroup.used_bytes"),
    ("container limit", "cgroup.limit_bytes"), ("system available", "system.available_bytes"),
)  # fmt: skip
_COUNT_ROWS: Final = (
    ("tensors", "tensors.count"), ("tensors with a graph", "tensors.graph_count"), ("arrays", "arrays.count"),
    ("open figures", "figures.open"), ("Python objects", "python.objects"),
)  # fmt: skip

_DEVICE: Final = re.compile(r"(?:cuda|gpu)\.(\d+)\.")
_DEVICE_ROWS: Final = (
    ("allocated, live tensors", "cuda.{}.allocated_bytes"),
    ("active, streams included", "cuda.{}.active_bytes"),
    ("reserved by torch", "cuda.{}.reserved_bytes"),
    ("split and idle", "cuda.{}.inactive_split_bytes"),
    ("this process, driver", "gpu.{}.process_bytes"),
    ("outside torch", "gpu.{}.outside_bytes"),
    ("all processes, driver", "gpu.{}.used_bytes"), ("whole device", "gpu.{}.total_bytes"),
    ("allocation retries", "cuda.{}.retries"), ("out of memory", "cuda.{}.ooms"),
)  # fmt: skip
_METAL_ROWS: Final = (
    ("allocated, live tensors", "mps.allocated_bytes"),
    ("this process, driver", "mps.driver_bytes"), ("recommended limit", "mps.limit_bytes"),
)  # fmt: skip


class ObjectCount(NamedTuple):
    """The number of instances of a class. ``expected`` describes the declared number in words."""

    name: str
    instances: int
    expected: str | None = None


class SnapshotBanner:
    """Listener that prints requested snapshots, except in quiet runs and on ranks other than 0.

    For values that a snapshot did not measure, the newest known values are printed. The printed peak is the peak of the
    entire run, as in a report.
    """

    def __init__(self, notices: Notices, title: str) -> None:
        self._notices, self._title = notices, title
        # The recorder's thread also calls ``see``. The lock is reentrant because a signal handler may end the run while
        # this thread holds the lock.
        self._lock = threading.RLock()
        self._values: dict[str, Number] = {}
        self._first: dict[str, Number] = {}
        self._expected: dict[str, list[str]] = {}
        # Identifiers of threads whose next manual snapshot is printed.
        self._asking: set[int] = set()

    def ask(self) -> None:
        """Print the next manual snapshot of the calling thread."""
        self._asking.add(threading.get_ident())

    def see(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._remember(snapshot)
            if snapshot.kind != "manual" or threading.get_ident() not in self._asking:
                return
            self._asking.discard(threading.get_ident())
            lines = list(snapshot_lines(snapshot.label, self._values, self._counts()))
        self._notices.say("\n".join((self._title, *lines[1:], "=" * WIDTH)))

    def _remember(self, snapshot: Snapshot) -> None:
        peak = max(self._values.get(_PEAK, 0), snapshot.samples.get(_PEAK, 0))
        for series in snapshot.samples.keys() - self._values.keys():
            self._first[series] = snapshot.samples[series]
        self._values.update(snapshot.samples)
        if peak:
            self._values[_PEAK] = peak
        for event in snapshot.events:
            if event.kind == "expect":
                shown, text = self._expected.setdefault(event.name, []), _expected_text(event.data)
                if text not in shown:
                    shown.append(text)

    def _counts(self) -> list[ObjectCount]:
        """Return the object counts in report order: declared classes first, then by the size of the change."""
        changes: dict[str, int] = {}
        found = []
        for series, value in self._values.items():
            if series.startswith("type.") and series.endswith(".count"):
                name = series.removeprefix("type.").removesuffix(".count")
                changes[name] = abs(int(value) - int(self._first[series]))
                found.append(ObjectCount(name, int(value), self._expected_of(name)))
        return sorted(found, key=lambda row: (row.expected is None, -changes[row.name], row.name))

    def _expected_of(self, name: str) -> str | None:
        shown = [
            text
            for declared, texts in self._expected.items()
            if name == declared or name.endswith(f".{declared}")
            for text in texts
        ]
        return "; ".join(shown) or None


def _expected_text(data: Mapping[str, Any]) -> str:
    """Describe an expectation in the words of the analysis, which is too large to import on a training thread."""
    low, high, after = data.get("low"), data.get("high"), data.get("after")
    text = str(low) if low == high else f"{low} to {high}"
    if data.get("baseline"):
        text = f"up to {high} (baseline)" if (high or 0) < LARGEST_INTEGER else "up to the baseline"
    return text if after is None else f"{text} after {after}"


def banner(title: str) -> list[str]:
    return ["", "=" * WIDTH, title, "=" * WIDTH]


def snapshot_lines(
    label: str, values: Mapping[str, Number], objects: Iterable[ObjectCount]
) -> Iterator[str]:
    yield from banner(f"MEMORY SNAPSHOT: {label}")
    yield "Process memory:"
    for title, series in _MEMORY_ROWS:
        if series in values:
            yield f"   {title + ':':<24}{format_gib(values[series]):>14}"
    yield from _gpus(values)
    yield "Objects:"
    for title, series in _COUNT_ROWS:
        if series in values:
            yield f"   {title + ':':<40}{values[series]:>10,.0f}"
    for row in list(objects)[:OBJECT_ROWS]:
        note = "" if row.expected is None else f"   <- should be {row.expected}"
        yield f"   {row.name + ':':<40}{row.instances:>10,}{note}"


def _gpus(values: Mapping[str, Number]) -> Iterator[str]:
    devices = {int(found[1]) for found in map(_DEVICE.match, values) if found}
    rows = [
        (f"GPU {device} {title}", series.format(device))
        for device in sorted(devices)
        for title, series in _DEVICE_ROWS
    ]
    rows += [(f"Metal {title}", series) for title, series in _METAL_ROWS]
    found_rows = (
        _gpu_row(title, series, values[series]) for title, series in rows if series in values
    )
    shown = [row for row in found_rows if row]
    if shown:
        yield "GPU memory:"
        yield from shown
        yield "   (torch sees only its own allocator; the driver sees all memory, but not how much of it is in use)"


def _gpu_row(title: str, series: str, value: float) -> str:
    """Return one row, or an empty string if a failure count is zero."""
    if series.endswith("_bytes"):
        return f"   {title + ':':<36}{format_gib(value):>14}"
    return f"   {title + ':':<36}{value:>10,.0f}" if value else ""


NO_VERDICT: Final = "no verdict yet"
_RESIDENT: Final = "process.rss_bytes"
_GPU: Final = ".allocated_bytes"


class StatusLine:
    """Listener that logs a status line at generation ends, except in quiet runs and on ranks other than 0."""

    def __init__(
        self,
        notices: Notices,
        every: int,
        watch: Sequence[str],
        verdict: Callable[[], Verdict | None] = lambda: None,
    ) -> None:
        """Set up the status line. ``verdict`` returns the newest known verdict and never triggers an analysis."""
        self._notices, self._every, self._watch = notices, every, tuple(watch)
        self._verdict = verdict
        self._ended = 0
        # The baseline snapshot and the newest snapshot of a generation end.
        self._first: Snapshot | None = None
        self._before: Snapshot | None = None

    def see(self, snapshot: Snapshot) -> None:
        if snapshot.kind == "baseline":
            self._first = self._before = snapshot
        if snapshot.kind != "generation_end":
            return
        self._ended += 1
        if self._ended % self._every == 0:
            parts = (_status_line(snapshot, self._watch), self._growth(snapshot), self._judged())
            self._notices.say("; ".join(parts))
        self._before = snapshot

    def _growth(self, snapshot: Snapshot) -> str:
        """Return text such as ``+1.20 MiB since generation 3: end, +9.31 MiB since baseline``.

        The labels name the snapshots from which the changes are measured, because snapshots of generation ends may be
        missing.
        """
        since = [self._before, self._first] if self._before is not self._first else [self._first]
        return ", ".join(_grown(before, snapshot) for before in since if before is not None)

    def _judged(self) -> str:
        verdict = self._verdict()
        if verdict is None:
            return NO_VERDICT
        seen = seen_of(verdict.generations, verdict.generations_passed, verdict.unit)
        return f"after {seen} {worded(verdict.status, verdict.summary)}"


def _grown(before: Snapshot, now: Snapshot) -> str:
    then, held = before.samples.get(_RESIDENT), now.samples.get(_RESIDENT)
    if then is None or held is None:
        return f"growth since {before.label} {NOT_MEASURED}"
    return f"{format_change(held - then)} since {before.label}"


def _status_line(snapshot: Snapshot, watch: Sequence[str]) -> str:
    """Return text such as ``generation 4: end: RSS 4.23 GiB, GPU 0 0.15 GiB, TradingEnvironment 0, DDPGAgent 17``."""
    return f"{snapshot.label}: {', '.join(_parts(snapshot.samples, watch))}"


def _parts(samples: Mapping[str, Number], watch: Sequence[str]) -> Iterator[str]:
    resident = samples.get(_RESIDENT)
    yield f"RSS {NOT_MEASURED if resident is None else format_bytes(resident)}"
    for name in sorted(samples):
        if name.startswith("cuda.") and name.endswith(_GPU):
            device = name.removeprefix("cuda.").removesuffix(_GPU)
            yield f"GPU {device} {format_bytes(samples[name])}"
    for name in watch:
        count = _count(samples, name)
        yield f"{short_name(name)} {NOT_MEASURED if count is None else f'{count:,}'}"


def _count(samples: Mapping[str, Number], watched: str) -> Number | None:
    """Return the count of a watched class, or None if it was not measured.

    If ``watched`` is not a full name, the counts of all classes whose names end with ``watched`` are added up.
    """
    exact = samples.get(f"type.{watched}.count")
    if exact is not None:
        return exact
    ending = f".{watched}.count"
    found = [v for name, v in samples.items() if name.startswith("type.") and name.endswith(ending)]
    return sum(found) if found else None
