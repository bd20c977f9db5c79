"""Instances followed by weak references: samples for the search for holders, created and freed of the watched.

The newest instances of a class are at the young end of the heap, where the native module finds them in well under
two milliseconds; without it a census hands some over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import ref

from ..probes.heap.age_samples import AgeSamples, pick_newest
from ..probes.heap.census import INSTANCES_OF_A_CLASS
from ..probes.heap.watched_instances import WatchedClasses
from ..probes.native_module import native
from ..snapshot import Number
from .type_counts import TypeGrowth

# Of each class, at a census without the native module.
_NEWEST: Final = 8


class Following:
    """Noted at generation ends, on the training thread."""

    def __init__(self, types: TypeGrowth) -> None:
        self._types = types
        self._samples, self._watched = AgeSamples(), WatchedClasses()

    def watch(self, name: str) -> None:
        """Count how many of this class are created and freed."""
        self._watched.watch(name)

    def at_generation_end(self) -> dict[str, Number]:
        """Return ``type.<name>.created`` and ``.freed`` of watched classes."""
        if native() is not None:
            newest = pick_newest(self._types.to_follow())
            self._samples.note(newest)
            self._watched.note(newest)
        return self._watched.read(self._types.exact_counts(self._watched.names))

    def at_census(self, instances: Mapping[type, Sequence[object]]) -> None:
        """Note instances of the program's classes, oldest first, of which a class may be there in part."""
        if native() is None:
            whole = {c: ones for c, ones in instances.items() if len(ones) < INSTANCES_OF_A_CLASS}
            self._watched.note({cls: ones[-_NEWEST:] for cls, ones in whole.items()})

    def instances(self, classes: Sequence[type]) -> dict[type, list[ref[Any]]]:
        """Return what is known of each class, spread over its age: a search for holders may begin with these."""
        known = {cls: self._samples.instances(cls) for cls in classes}
        return {cls: ones for cls, ones in known.items() if ones}
