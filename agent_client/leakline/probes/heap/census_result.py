"""The result of a census, as names and numbers: series, a table, and the largest objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from leakline.probes.heap.arrays import ArrayMeasure
from leakline.probes.heap.tensors import TensorMeasure
from leakline.probes.references.class_names import type_name
from leakline.snapshot import Census, LargeObject, Number

# Number of types, largest first, that a census reports as series.
SERIES_TYPES: Final = 48

# A type's name, count and bytes.
Row = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class _Counted:
    """The results common to all kinds of census, as names and numbers."""

    mode: str
    coverage: float
    objects: int
    seconds: float
    arrays: ArrayMeasure | None
    tensors: TensorMeasure | None
    large: tuple[tuple[int, str, str], ...] = field(repr=False)

    @property
    def is_exact(self) -> bool:
        """True if the entire heap was visited and no count is scaled."""
        return self.coverage >= 1.0

    def to_census(self, sequence: int, top: int = 200) -> Census:
        """Return the census as it is sent: the ``top`` types by bytes and the ``top`` types by count."""
        return Census(sequence, self.mode, self.coverage, self.objects, tuple(self._rows(top)))

    def samples(self) -> dict[str, Number]:
        """Return ``python.objects``, ``arrays.*``, ``tensors.*``, and ``type.<name>.*`` for the largest types.

        ``arrays.*`` and ``tensors.*`` are absent until the program loads NumPy and torch. ``arrays.*`` also needs full
        coverage: most arrays are in a few containers, so a part of the heap is not representative.
        """
        samples: dict[str, Number] = {"python.objects": self.objects}
        arrays, tensors = self.arrays, self.tensors
        if arrays is not None and self.is_exact:
            samples["arrays.count"], samples["arrays.bytes"] = arrays.count, arrays.bytes
            if arrays.mapped_count:
                samples["arrays.mapped_bytes"] = arrays.mapped_bytes
        if tensors is not None:
            samples.update(tensors.samples())
        for name, count, size in self._rows(SERIES_TYPES)[:SERIES_TYPES]:
            samples[f"type.{name}.count"] = count
            if size is not None:
                samples[f"type.{name}.bytes"] = size
        return samples

    def sizes(self) -> dict[str, Number]:
        """Return only the samples in bytes."""
        return {name: size for name, size in self.samples().items() if name.endswith(".bytes")}

    def large_objects(
        self, sequence: int, limit: int = 20, floor_bytes: int = 10 << 20
    ) -> tuple[LargeObject, ...]:
        """Return the largest arrays, tensors and containers of at least ``floor_bytes``, largest first."""
        largest = sorted(self.large, reverse=True)[:limit]
        return tuple(
            LargeObject(sequence, name, size, detail)
            for size, name, detail in largest
            if size >= floor_bytes
        )

    def rows_by_type(self) -> Sequence[Row]:
        """Return the name, count and bytes of every type."""
        return self._listed()

    def _rows(self, top: int) -> list[Row]:
        listed = self._listed()
        by_bytes = sorted(listed, key=lambda row: (-(row[2] or 0), -row[1], row[0]))
        by_count = sorted(listed, key=lambda row: (-row[1], row[0]))[:top]
        return list(dict.fromkeys([*by_bytes[:top], *by_count]))

    def _listed(self) -> Sequence[Row]:
        """Return the name, count and bytes of every type; types with the same name are combined."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CensusResult(_Counted):
    """A census at one point in time. The keys of ``counts`` are the classes themselves.

    ``counts`` is the input for ``ClassCounts.calibrate``; drop the result soon after that call, because it keeps
    classes alive. ``type_bytes`` are shallow bytes in the order of ``counts``, or None if unknown.
    """

    counts: Mapping[type, int]
    type_bytes: tuple[int | None, ...]

    def _listed(self) -> Sequence[Row]:
        rows = zip(map(type_name, self.counts), self.counts.values(), self.type_bytes, strict=True)
        return by_name(rows)


@dataclass(frozen=True, slots=True)
class SlicedResult(_Counted):
    """A census taken while the program ran, as names and numbers. It keeps no class alive.

    An object that lived throughout the census is counted once; an object created or freed during the census may be
    counted or not. The counts are therefore not from one point in time. The keys of ``counts`` are class addresses
    (``id(cls)``), and the keys of ``names`` are type names. ``is_whole`` is False if full collections moved so many
    objects that some may be missing or counted twice.
    """

    counts: Mapping[int, int]
    rows: tuple[Row, ...]
    collections: int
    is_whole: bool

    @property
    def names(self) -> dict[str, int]:
        """The number of objects by type name."""
        return {name: count for name, count, _ in self.rows}

    def _listed(self) -> Sequence[Row]:
        return self.rows


def by_name(rows: Iterable[Row]) -> list[Row]:
    """Return one row per type name, with the counts and bytes of types with the same name added up."""
    known: dict[str, tuple[int, int | None]] = {}
    for name, count, size in rows:
        known_count, known_size = known.get(name, (0, 0))
        known[name] = (known_count + count, _add(known_size, size))
    return [(name, count, size) for name, (count, size) in known.items()]


def _add(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more
