"""Declared capacities: what a bounded container may take is not a leak and is taken out before judging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ..run_history import RunHistory
from ..timeline import Lane, fill_gaps

# A container that grew more than this share of the last generations' length counts as still filling.
_STILL_GROWING: Final = 1e-3
_RECENT: Final = 3
# Memory that rose by less than this share of what a container says it holds was there before (preallocated).
_COMMITTED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Bounded:
    """One container with a declared capacity, on the generation axis of its lane.

    ``bytes`` is empty where its size is not measured; ``estimated`` then stands for a size taken from the
    growth of memory while it filled.
    """

    name: str
    length: tuple[float, ...]
    capacity: float
    bytes: tuple[float, ...]
    # As bytes, but going on over a resume, where the container starts empty again, and with what the allocator kept
    # of it when it was cleared.
    gained: tuple[float, ...] = ()
    estimated: bool = False
    # Bytes of one item, where sizes are estimated.
    each: float = 0.0

    def is_filling(self, upto: int) -> bool:
        if upto < 2 or self.length[upto - 1] >= self.capacity:
            return False
        first = max(0, upto - 1 - _RECENT)
        return self.length[upto - 1] - self.length[first] > _STILL_GROWING * self.capacity

    def is_over(self, upto: int) -> bool:
        return self.length[upto - 1] > self.capacity

    def growth(self, first: int, upto: int) -> float:
        """Bytes gained between two positions, never more than the capacity allows for."""
        return self.gained[upto - 1] - self.gained[first] if self.gained else 0.0

    def fullest(self, upto: int) -> int:
        """The newest position at which it held most; it may have been cleared since."""
        return max(range(upto), key=lambda i: (self.length[i], i))

    def overshoot(self, upto: int) -> list[float]:
        """Items beyond the capacity, in every generation."""
        return [max(0.0, length - self.capacity) for length in self.length[:upto]]

    def remaining_bytes(self, upto: int) -> float:
        if not self.bytes or self.length[upto - 1] <= 0:
            return 0.0
        each = self.bytes[upto - 1] / self.length[upto - 1]
        return max(0.0, (self.capacity - self.length[upto - 1]) * each)

    def per_generation(self, upto: int) -> float:
        """Items added per generation lately."""
        first = max(0, upto - 1 - _RECENT)
        return (self.length[upto - 1] - self.length[first]) / max(1, upto - 1 - first)

    def fill_rate(self, upto: int) -> float:
        """Bytes it takes on per generation lately; 0 when it does not fill, or nothing is known of its size."""
        if not self.is_filling(upto) or not self.bytes:
            return 0.0
        each = self.bytes[upto - 1] / max(self.length[upto - 1], 1.0)
        return each * self.per_generation(upto)


def bounded_containers(lane: Lane, capacities: Mapping[str, int | None]) -> tuple[Bounded, ...]:
    """The containers of this lane that have a capacity, by declaration or by their own series."""
    found = []
    for name in sorted(tracked_names(lane)):
        capacity = capacity_of(lane, name, capacities)
        length = fill_gaps(lane.readings(f"tracked.{name}.length")) if lane.generations else []
        if not capacity or not length:
            continue
        sizes = f"tracked.{name}.bytes"
        size = fill_gaps(lane.readings(sizes)) if lane.has(sizes) else []
        beside = f"tracked.{name}.device_bytes"
        if size and lane.has(beside):
            # What lies on devices is no memory of the process.
            size = [
                max(0.0, a - (b or 0)) for a, b in zip(size, lane.readings(beside), strict=True)
            ]
        found.append(_bounded(lane, name, length, float(capacity), size))
    return tuple(found)


def tracked_names(lane: Lane) -> set[str]:
    return {
        name[len("tracked.") : -len(".length")]
        for name in lane.series
        if name.startswith("tracked.") and name.endswith(".length")
    }


def capacity_of(lane: Lane, name: str, capacities: Mapping[str, int | None]) -> int | float | None:
    declared = capacities.get(name)
    if declared is not None:
        return declared
    column = f"tracked.{name}.capacity"
    known = [v for v in lane.series.get(column, ()) if v is not None]
    return known[-1] if known else None


def _bounded(
    lane: Lane, name: str, length: Sequence[float], capacity: float, size: Sequence[float]
) -> Bounded:
    if size:
        within = _within(length, capacity, size)
        gained = _with_kept(_going_on(lane, within), lane.private)
        return Bounded(name, tuple(length), capacity, within, gained)
    each = _bytes_per_item(lane, length)
    guess = tuple(min(n, capacity) * each for n in length) if each else ()
    gained = _with_kept(_going_on(lane, guess), lane.private)
    return Bounded(name, tuple(length), capacity, guess, gained, estimated=True, each=each)


def _going_on(lane: Lane, size: Sequence[float]) -> tuple[float, ...]:
    """Sizes with the drop at a resume taken out, as it is taken out of memory."""
    out: list[float] = []
    shift = 0.0
    for i, value in enumerate(size):
        if _is_resumed(lane, i):
            shift = out[-1] - value
        out.append(value + shift)
    return tuple(out)


def _is_resumed(lane: Lane, i: int) -> bool:
    return i > 0 and lane.segment[lane.end_rows[i]] != lane.segment[lane.end_rows[i - 1]]


def _with_kept(size: Sequence[float], private: Sequence[float]) -> tuple[float, ...]:
    """Sizes with what memory did not show of a fall: the allocator keeps it for when the container fills again."""
    if len(private) < len(size):
        return tuple(size)
    out = list(size[:1])
    for i in range(1, len(size)):
        fell = max(0.0, size[i - 1] - size[i])
        back = min(fell, max(0.0, private[i - 1] - private[i]))
        out.append(max(size[i], out[-1] - back))
    return tuple(out)


def _within(length: Sequence[float], capacity: float, size: Sequence[float]) -> tuple[float, ...]:
    """The part of its bytes that its capacity allows for; what lies over it is not excused."""
    return tuple(
        s if n <= capacity else s * capacity / n for n, s in zip(length, size, strict=True)
    )


def _bytes_per_item(lane: Lane, length: Sequence[float]) -> float:
    """What memory gained per item added, over the generations in which it was fuller than ever, less what memory gains
    without a new item in it: that is somebody else's.

    A container that was cleared may fill again from what the allocator kept of it.
    """
    private, fuller, beside, most = lane.private, [], [], -1.0
    for i in range(min(len(length), len(private))):
        if i and length[i] > max(most, length[i - 1]):
            fuller.append((private[i] - private[i - 1], length[i] - length[i - 1]))
        elif i and length[i] == length[i - 1] and not _is_resumed(lane, i):
            beside.append(private[i] - private[i - 1])
        most = length[i] if _is_resumed(lane, i) else max(most, length[i])
    others = max(0.0, median(beside)) if len(beside) >= _RECENT else 0.0
    ratios = [(gained - others) / items for gained, items in fuller]
    return max(0.0, median(ratios)) if ratios else 0.0


def without_bounded(
    private: Sequence[float], containers: Sequence[Bounded], upto: int
) -> list[float]:
    """Private bytes per generation less what bounded containers gained since the first generation.

    A container whose memory was there before it filled (preallocated and touched) is left in: taking out a
    growth that memory never showed would hide a leak of the same size.
    """
    rest = list(private[:upto])
    for container in containers:
        full = container.fullest(upto) + 1
        gained = container.growth(0, full)
        if gained <= 0 or private[full - 1] - private[0] < _COMMITTED * gained:
            continue
        for i in range(upto):
            rest[i] -= container.gained[i] - container.gained[0]
    return rest


def declared_bounds(history: RunHistory, lane: Lane) -> tuple[Bounded, ...]:
    return bounded_containers(lane, history.capacities)
