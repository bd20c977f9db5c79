"""Turns the training loop's state (generation, open phases and phase accounts) into snapshots.

Nearly everything here runs on the program's own threads, between two of its statements; `run.py`
wraps every call in the error boundary. The order at each boundary is always the same: read memory,
book the change to the program, measure, read memory again, and book the difference to Leakline.

The generations of a process are numbered on one axis that only moves forward, regardless of the
numbers that the program uses. When a notebook cell runs again, or a second loop starts in the same
run, the program repeats earlier numbers. The axis then continues after its newest generation:
otherwise the measurements of two generations would be mixed under one number, and the older
measurements would be lost.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..probes.heap.cyclic_garbage import Collection
from ..probes.memory.process_memory import PEAK
from ..sampling.heap_scans import Measured
from ..sampling.overhead_budget import Governor
from ..sampling.sampler import Sampler
from ..snapshot import LARGEST_INTEGER, Event, Number, Snapshot
from ..text_format import format_bytes
from ..transport.recorder import Losses
from .output_tail import OutputTail
from .phase_accounting import Frame, PhaseLedger, Reading, account_samples

Given = int | float

EVENTS_LIMIT: Final = 256
GAUGES_LIMIT: Final = 128
LABEL_LIMIT: Final = 256
EVENT_NAME_LIMIT: Final = 512


@dataclass(slots=True, eq=False)
class _Unresolved:
    """A declaration for a class that is known only by name so far."""

    kind: str
    name: str
    data: Mapping[str, Any]
    warned: bool = False

    def says_the_same(self, other: _Unresolved) -> bool:
        return (self.kind, self.name, self.data) == (other.kind, other.name, other.data)


class Loop:
    """The training loop of one process. ``put`` receives the finished snapshots and never blocks."""

    def __init__(
        self,
        unit: str,
        sampler: Sampler,
        governor: Governor,
        losses: Losses,
        put: Callable[[Snapshot], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.unit, self.sampler, self.governor, self.losses = unit, sampler, governor, losses
        self._put, self._clock, self._wall_clock = put, clock, wall_clock
        # Reentrant, because a signal handler may end the run in the middle of a call.
        self._lock = threading.RLock()
        self._order = threading.RLock()
        self._thread = threading.get_ident()
        self._sequence = 0
        self.generations_ended = 0
        self._events: list[Event] = []
        self._gauges: dict[str, Number] = {}
        self._fresh_gauges: set[str] = set()
        self._unresolved: list[_Unresolved] = []
        self._warned_too_large = False
        self._limits: dict[str, Number] = {}
        self._phase_accounts = PhaseLedger(self._read())
        # Tracks the caches of torch's allocators; created when device memory is first read.
        self._caches: CacheFalls | None = None
        self._own_bytes = 0
        self._last_exception = 0
        self._numbers = GenerationNumbers()
        # The newest generation's number on the axis, and its title.
        self.generation: int | None = None
        self._title = ""
        self._warned_of_numbers = False
        # Returns True if the program has stopped training, so that no more generations are found in its calls.
        self.has_stopped: Callable[[], bool] = lambda: False
        # True while time intervals are generations, because the program has stopped.
        self._goes_by_time = False
        self._generation_started: float | None = None
        # Duration of the newest finished generation, or None once a snapshot has reported the
        # duration.
        self._unreported_seconds: float | None = None
        # True once the run has ended; other threads may still be inside its phases.
        self._over = False
        self.listeners: list[Callable[[Snapshot], None]] = []
        # Shows a line to the user.
        self.warn: Callable[[str], None] = lambda line: None
        # None unless the run may record the program's output.
        self.output: OutputTail | None = None

    @property
    def phase(self) -> str | None:
        return self._phase_accounts.path

    @property
    def highest_number(self) -> Given | None:
        """The highest number that the program has used for a generation."""
        return self._numbers.highest

    def baseline(self) -> None:
        """Take the first snapshot, before the loop begins. The cost of this snapshot counts as set-up."""
        with self._lock, self.governor.measuring("baseline", set_up=True):
            measured = self.sampler.measure("baseline")
            self._resolve_types(last_word=False)
            self._hand_over("baseline", "baseline", measured)

    def start_generation(self, called: object, *, by_time: bool = False) -> None:
        """Start a generation. Raises TypeError or OverflowError if ``called`` is not a valid generation number.

        ``by_time`` is True for a time interval, which one of our own threads starts.
        """
        number = checked_number(called)
        with self._lock:
            if self._over:
                return
            is_open = self._generation_started is not None
            if is_open and number == self._numbers.given:
                return
            goes_on, self._goes_by_time = self._goes_by_time and not by_time, by_time
            if is_open:
                self.end_generation()
            if not by_time:
                self._thread = threading.get_ident()
            if self.generation is None:
                # Memory allocated before the first generation does not belong to its phase accounts.
                self._phase_accounts.close_generation(self._read())
            if self.generation is None or goes_on:
                self.sampler.loop_began()
            why = self._numbers.advance(number)
            self.generation, self._title = self._numbers.axis, self._numbers.title(self.unit)
            self._generation_started = self._clock()
            if why:
                self._warn_of_numbers(why)

    def _warn_of_numbers(self, why: str) -> None:
        """Warn once, in the output and on the charts, that the program's generation numbers differ
        from the numbers on the axis.
        """
        if not self._warned_of_numbers:
            self._warned_of_numbers = True
            self.note("mark", f"{self._title} {why}")
            self.warn(renumbered(self.unit, self._numbers, why))

    def end_generation(self, error: BaseException | None = None, *, last: bool = False) -> None:
        """Close this generation's phase accounts and take its snapshot. Without ``last``, both steps are skipped if the
        budget is used up.
        """
        with self._lock:
            if self._over:
                return
            if error is not None:
                self._note_exception(error, None)
            if self._generation_started is not None:
                self._unreported_seconds = self._clock() - self._generation_started
                self._generation_started = None
                if not (last or self.governor.allows("generation")):
                    # The phase accounts stay open, so the next generation end also covers this
                    # generation.
                    self.losses.count("thinned")
                    return
            elif not (last and self._unreported_seconds is not None):
                return
            seconds, self._unreported_seconds = self._unreported_seconds, None
            with self.governor.measuring("generation"):
                reading = self._read()
                phase_accounts = account_samples(self._phase_accounts.close_generation(reading))
                phase_accounts["generation.seconds"] = round(seconds, 6)
                measured = self._exact(self.sampler.measure("generation_end"), reading)
                self._resolve_types()
                self._tell_when_too_large()
                label = f"{self._title}: end"
                self.generations_ended += 1
                self._hand_over("generation_end", label, measured, phase_accounts)
            # A program that runs while we measure allocates more than we do.
            if not self._goes_by_time:
                self._charge_own_work()

    def end_interval(self, label: str) -> None:
        """Take the snapshot at the end of a time interval, in a program without generations.

        If the program has stopped training, each interval is a generation. This is called on one of our own threads.
        """
        with self._lock:
            highest = self._numbers.highest
            if highest is not None and not self._over and self.has_stopped():
                # From here on, the program runs while we measure.
                self.sampler.stay_in_background()
                self.start_generation(math.floor(highest) + 1, by_time=True)
            if self._over or self.generation is not None or not self.governor.allows("generation"):
                return
            with self.governor.measuring("generation"):
                measured = self.sampler.measure("generation_end")
                self.generations_ended += 1
                self._hand_over("generation_end", label, measured)

    def enter_phase(self, name: str) -> Frame | None:
        """Open a phase. Return None if the run has ended."""
        with self._lock:
            if self._over:
                return None
            elsewhere = threading.get_ident() != self._thread
            enter = (
                self._phase_accounts.enter_elsewhere if elsewhere else self._phase_accounts.enter
            )
            if not elsewhere:
                self._last_exception = 0
            if not self.governor.reads_entry():
                return enter(name, None)
            started = self.governor.work_seconds()
            frame = enter(name, self._read())
            self.governor.charge_phase_accounting(self.governor.work_seconds() - started)
            return frame

    def exit_phase(self, frame: Frame, error: BaseException | None) -> None:
        with self._lock:
            if self._over or not self._leave(frame):
                return
            if error is not None:
                self._note_exception(error, frame.path)
            nested = frame.foreign or bool(self._phase_accounts.open)
            work = "nested" if nested else "phase"
            if not self.governor.allows(work):
                self.losses.count("thinned")
                return
            with self.governor.measuring(work):
                reading = self._phase_accounts.last if frame.booked else self._read()
                if not frame.foreign and not frame.booked:
                    self._phase_accounts.book(reading)
                measured = self._exact(self.sampler.measure("phase_end", nested=nested), reading)
                self._tell_peak(frame, measured.samples)
                self._hand_over("phase_end", f"after {frame.path}", measured, phase=frame.path)
            if not frame.foreign:
                self._charge_own_work()

    def _leave(self, frame: Frame) -> bool:
        """Close a phase. If memory was read at the phase's entry, read memory again: otherwise the phase's bytes would
        be booked to the wrong line. Return False if the phase was already closed.
        """
        started = self.governor.work_seconds() if frame.booked else 0.0
        reading = self._read() if frame.booked else None
        left = True
        if frame.foreign:
            self._phase_accounts.exit_elsewhere(frame, reading)
        else:
            left = self._phase_accounts.exit(frame, reading)
        if frame.booked:
            self.governor.charge_phase_accounting(self.governor.work_seconds() - started)
        return left

    def manual(self, label: str) -> None:
        with self._lock:
            if self._over:
                return
            self._phase_accounts.book(self._read())
            with self.governor.measuring("manual"):
                self._hand_over("manual", label, self.sampler.measure("manual"))
            self._charge_own_work()

    def finish(self) -> None:
        """Close the open generation and take the last snapshot."""
        with self._lock:
            try:
                self.end_generation(last=True)
                with self.governor.measuring("finish"):
                    self._hand_over("finish", "finish", self.sampler.measure("finish"))
            finally:
                self._over = True

    def background(self, samples: Mapping[str, Number]) -> None:
        """Hand over a snapshot taken on the recorder's thread between phase ends."""
        if self._over:
            return
        doing = self.phase
        label = "sample" if doing is None else f"during {doing}"
        self._hand_over("sample", label, Measured(dict(samples)))

    def note(self, kind: str, name: str, data: Mapping[str, Any] | None = None) -> None:
        """Add an event to the next snapshot."""
        if len(self._events) >= EVENTS_LIMIT:
            self.losses.count("events")
            return
        event = Event(
            0,
            self._wall_clock(),
            kind,
            name[:EVENT_NAME_LIMIT],
            self.generation,
            self.phase,
            data or {},
        )
        with self._order:
            self._events.append(event)

    def expect(self, target: type | str, data: Mapping[str, Any]) -> None:
        """Declare how many instances of a class may be alive."""
        self._declare_type("expect", target, data)

    def watch(self, targets: Iterable[str]) -> None:
        """Count these classes from now on, even before they grow."""
        for target in targets:
            self._declare_type("watch", target, {})

    def _declare_type(self, kind: str, target: type | str, data: Mapping[str, Any]) -> None:
        """Declare a class under its full name; a name that cannot be resolved yet is looked up again later."""
        name = self.sampler.full_name(target)
        if name is not None:
            self.sampler.watch(name)
            self.note(kind, name, data)
        else:
            self._wait_for(_Unresolved(kind, str(target), data))

    def _wait_for(self, declared: _Unresolved) -> None:
        """Store a declaration only once, even if the loop repeats it in every generation."""
        if any(declared.says_the_same(waiting) for waiting in self._unresolved):
            return
        if len(self._unresolved) >= EVENTS_LIMIT:
            self.losses.count("events")
            return
        self._unresolved.append(declared)

    def _tell_when_too_large(self) -> None:
        if self.sampler.census_too_large and not self._warned_too_large:
            self._warned_too_large = True
            self.note("warning", "census_off", {"reason": "too many objects for a heap scan"})

    def _resolve_types(self, *, last_word: bool = True) -> None:
        for waiting in list(self._unresolved):
            name = self.sampler.full_name(waiting.name)
            if name is not None:
                self._unresolved.remove(waiting)
                self.sampler.watch(name)
            if name is not None or (last_word and not waiting.warned):
                # Until the class is known, report the name as given, so that a declaration for a
                # class that never appears stays visible.
                waiting.warned = True
                self.note(waiting.kind, name or waiting.name, waiting.data)

    def track(self, name: str, target: Any, capacity: int | None) -> None:
        self.sampler.track(name, target, capacity)
        self.note("track", name, {"capacity": capacity})

    def gauge(self, name: str, value: Number, warn_above: Number | None) -> None:
        """Set a gauge. Its newest value is added to the next snapshot and to the snapshot at every generation end."""
        if name not in self._gauges and len(self._gauges) >= GAUGES_LIMIT:
            self.losses.count("gauges")
            return
        before = self._gauges.get(name)
        if warn_above is not None and self._limits.get(name) != warn_above:
            self._limits[name] = warn_above
            self.note("gauge", name, {"warn_above": warn_above})
        with self._order:
            self._gauges[name] = value
            self._fresh_gauges.add(name)
        if (
            warn_above is not None
            and value > warn_above
            and (before is None or before <= warn_above)
        ):
            self.note("warning", name, {"value": value, "warn_above": warn_above})

    def read_private_bytes(self) -> int:
        return self.sampler.read_private_bytes()

    def device_bytes(self) -> dict[str, Number]:
        """Return the series of device memory, for a cleanup.

        A drop adds no event, because the cleanup itself reports the memory that it frees.
        """
        found = self.sampler.device_bytes()
        with self._order:
            self._tell_caches(found, tell=False)
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of live instances by type name, for reported classes and for tensors."""
        with self._lock:
            return self.sampler.counts()

    def _hand_over(
        self,
        kind: str,
        label: str,
        measured: Measured,
        more: Mapping[str, Number] | None = None,
        phase: str | None = None,
    ) -> None:
        for answer in measured.answers:
            self.note("mark", answer.text[:LABEL_LIMIT], answer.data)
        if self.output is not None and (lines := self.output.take(last=kind == "finish")):
            self.note("log", "log", {"lines": lines})
        samples = {**measured.samples, **(more or {}), **self.governor.ledger()}
        self._note_peak(samples)
        # Measuring may free more memory than it allocates, but the protocol allows no negative
        # value for this series.
        samples["client.bytes"] = max(0, self._own_bytes)
        if self.generation is not None and kind not in ("generation_end", "baseline"):
            label = f"{self._title}: {label}" if kind != "manual" else label
        with self._order:
            self._sequence += 1
            number = self._sequence
            gauges = self._gauges if kind == "generation_end" else self._fresh_gauges
            samples.update({f"gauge.{name}": self._gauges[name] for name in gauges})
            self._fresh_gauges.clear()
            self._tell_caches(samples)
            events, self._events = [*self._events, *self._collections()], []
            snapshot = Snapshot(
                number, self._wall_clock(), self._clock(), self.generation, phase, label[:LABEL_LIMIT], kind,
                samples,
                tuple(replace(event, sequence=number) for event in events),
                tuple(replace(thing, sequence=number) for thing in measured.large_objects),
                None if measured.census is None else replace(measured.census, sequence=number),
                tuple(replace(holder, sequence=number) for holder in measured.holders),
            )  # fmt: skip
            self._put(snapshot)
        for listener in self.listeners:
            listener(snapshot)

    def has_output(self) -> bool:
        """Return True if the program has printed lines that a snapshot should carry now."""
        return self.output is not None and self.output.waits()

    def _collections(self) -> list[Event]:
        """Return an event for each full garbage collection since the last snapshot, with the time of the collection."""
        return [
            Event(
                0, each.time, "collection", "full", self.generation, None,
                {
                    "generation": each.generation, "freed": each.freed,
                    "uncollectable": each.uncollectable, "seconds": round(each.seconds, 6),
                    **_resident(each),
                },
            )
            for each in self.sampler.take_collections()
        ]  # fmt: skip

    def _tell_caches(self, samples: Mapping[str, Number], *, tell: bool = True) -> None:
        """Add an event for memory returned to a device since the previous reading. The caller holds `_order`."""
        devices = {n: value for n, value in samples.items() if n.startswith(("cuda.", "mps."))}
        if not devices:
            return
        if self._caches is None:
            self._caches = CacheFalls()
        for fall in self._caches.see(devices, tell=tell):
            self.note("mark", *fall.event)

    def _tell_peak(self, frame: Frame, samples: dict[str, Number]) -> None:
        """Set ``process.phase_peak_bytes`` to the highest peak reported while this phase was open."""
        frame.note_peak(samples.get(PEAK, 0))
        if frame.peak_bytes:
            samples["process.phase_peak_bytes"] = frame.peak_bytes

    def _note_peak(self, samples: Mapping[str, Number]) -> None:
        seen = samples.get(PEAK, 0)
        # Iterate over copies, because the training thread changes these lists while the recorder's
        # thread runs this method.
        for frame in [*self._phase_accounts.open, *self._phase_accounts.open_elsewhere]:
            frame.note_peak(seen)

    def _read(self) -> Reading:
        return Reading(self.sampler.read_private_bytes(), self._clock())

    def _exact(self, measured: Measured, reading: Reading) -> Measured:
        """Use the phase accounts' memory reading in the snapshot, so that the accounts and the snapshot agree to the
        byte.
        """
        samples = measured.samples
        if "process.anon_bytes" in samples:
            samples["process.anon_bytes"] = reading.bytes - int(
                samples.get("process.swap_bytes", 0)
            )
        return measured

    def _charge_own_work(self) -> None:
        before = self._phase_accounts.last.bytes
        reading = self._read()
        self._phase_accounts.charge_own_work(reading)
        self._own_bytes += reading.bytes - before

    def _note_exception(self, error: BaseException, path: str | None) -> None:
        # An exception may propagate through several phases; it is reported once, for the innermost
        # phase.
        if isinstance(error, Exception) and id(error) != self._last_exception:
            self._last_exception = id(error)
            self.note(
                "exception", type(error).__name__, {"type": type(error).__name__, "phase": path}
            )


def checked_number(number: object) -> Given:
    """Return ``number`` as an int if it is a whole number, otherwise as a float.

    Raises TypeError if ``number`` is not a finite number, and OverflowError if it is beyond 2**53.
    """
    try:
        given: Given = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        if isinstance(number, (str, bytes)):
            raise
        given = float(number)  # type: ignore[arg-type]
        if not math.isfinite(given):
            raise
        if given.is_integer():
            given = int(given)
    if abs(given) > LARGEST_INTEGER:
        # Name only the bits, because Python refuses to convert very large numbers to text.
        bits = int(given).bit_length()
        raise OverflowError(f"generation number ({bits} bits) exceeds 2**53")
    return given


class GenerationNumbers:
    """Maps the program's generation numbers to the axis.

    ``axis`` is the newest generation's number on the axis, and ``given`` is the number that the
    program used for this generation.
    """

    def __init__(self) -> None:
        self.axis: int | None = None
        self.given: Given | None = None
        self.highest: Given | None = None

    def advance(self, given: Given) -> str:
        """Advance to the generation that the program calls ``given``. Return why its axis number differs, or "".

        If ``given`` is larger than the previous number, the axis moves by the difference, so that gaps stay visible.
        """
        if self.axis is None or self.given is None or self.highest is None:
            axis, why = math.floor(given), ""
        elif given <= self.given:
            axis = self.axis + 1
            why = "began again" if given == self.given else f"came after {self.given}"
        else:
            before = self.highest if given > self.highest else self.given
            axis, why = self.axis + max(1, math.floor(given - before)), ""
        if axis > LARGEST_INTEGER:
            raise OverflowError(f"generation number ({axis.bit_length()} bits) exceeds 2**53")
        self.axis, self.given = axis, given
        self.highest = given if self.highest is None else max(self.highest, given)
        if not why and not isinstance(given, int):
            why = "is not a whole number"
        return why

    def title(self, unit: str) -> str:
        """Return ``generation 12``, or ``generation 12 (called 3)`` if the program uses another number."""
        called = "" if self.axis == self.given else f" (called {self.given})"
        return f"{unit} {self.axis}{called}"


def renumbered(unit: str, numbers: GenerationNumbers, why: str) -> str:
    """Return the warning for the first generation whose number differs from the axis."""
    advice: Final = {
        "is not a whole number": f"count {unit}s in whole numbers",
    }.get(why, "for a separate training run, call leakline.init again")
    return (
        f"{unit} {numbers.given} {why}: it is recorded as {unit} {numbers.axis}, and counting continues from there, "
        f"so that no earlier measurements are lost; {advice}"
    )


def _resident(collection: Collection) -> dict[str, list[int]]:
    """Return the process's resident bytes before and after a collection, or {} if either value is unknown."""
    before, after = collection.resident_before, collection.resident_after
    return {} if before is None or after is None else {"resident_bytes": [before, after]}


# -- memory that torch's allocators return to a device, regardless of what emptied the cache -------

# Series of the device memory that an allocator holds.
KEPT: Final = (".reserved_bytes", ".driver_bytes")
# A smaller drop is not reported: it means that only a few blocks were freed, whereas emptying the
# cache returns all of its free memory.
LEAST_BYTES: Final = 32 * 2**20
LEAST_SHARE: Final = 0.05
# After this many reports, a drop is reported only if it is at least twice as large as any drop reported before.
REPORTED_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class CacheFall:
    """A drop in an allocator's memory on ``device``, for example "cuda.0", between two consecutive readings."""

    device: str
    before: Number
    after: Number

    @property
    def event(self) -> tuple[str, dict[str, object]]:
        """The name and data of the event that reports the drop."""
        text = (
            f"returned at least {format_bytes(self.before - self.after)} to the device:"
            f" {format_bytes(self.before)} held before, {format_bytes(self.after)} after"
        )
        data: dict[str, object] = {
            "device": self.device,
            "reserved_bytes": [self.before, self.after],
            "freed_bytes_at_least": self.before - self.after,
            "text": text,
        }
        return f"cache of {self.device}", data


@dataclass(slots=True)
class CacheFalls:
    """Finds drops between the consecutive readings passed to ``see``. Callers must serialize their calls."""

    _kept: dict[str, Number] = field(default_factory=dict)
    _reported: int = 0
    _most: Number = 0

    def see(self, samples: Mapping[str, Number], *, tell: bool = True) -> list[CacheFall]:
        """Return the drops worth reporting since the previous reading of each device series.

        Returns [] if ``tell`` is False, for a cleanup that itself reports the memory it freed.
        """
        found = []
        for name, now in samples.items():
            if name.endswith(KEPT):
                before, self._kept[name] = self._kept.get(name, now), now
                fall = CacheFall(name.rpartition(".")[0], before, now)
                if tell and self._is_worth_reporting(fall):
                    found.append(fall)
        return found

    def _is_worth_reporting(self, fall: CacheFall) -> bool:
        size = fall.before - fall.after
        if size < max(LEAST_BYTES, LEAST_SHARE * fall.before):
            return False
        if self._reported >= REPORTED_LIMIT and size < 2 * self._most:
            return False
        self._reported += 1
        self._most = max(self._most, size)
        return True
