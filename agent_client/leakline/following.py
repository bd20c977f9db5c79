"""Instances followed by weak references: birth cohorts of what is watched or rises, created and freed of the watched.

The newest instances of a class stand at the young end of the heap, where the native module finds them in well under
two milliseconds; without it a census hands some over, so that cohorts are noted at censuses only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

from .growth import TypeGrowth
from .probes.census import INSTANCES_OF_A_CLASS
from .probes.cohorts import BirthCohorts, newest_of_census, pick_newest
from .probes.native import native
from .probes.watched import WatchedClasses
from .snapshot import Number


class Following:
    """Noted at generation ends, on the training thread."""

    def __init__(self, types: TypeGrowth) -> None:
        self._types = types
        self._cohorts, self._watched = BirthCohorts(), WatchedClasses()
        self._generations = 0

    def watch(self, name: str) -> None:
        """Tell how many of this class were created and freed."""
        self._watched.watch(name)

    def at_generation_end(self) -> dict[str, Number]:
        """``cohort.<type>.*`` and, of watched classes, ``type.<name>.created`` and ``.freed``."""
        if native() is not None:
            self._note(pick_newest(self._types.to_follow()))
        self._generations += 1
        counts = self._types.exact_counts(self._watched.names)
        return {**self._cohorts.read(), **self._watched.read(counts)}

    def at_census(self, instances: Mapping[type, Sequence[object]]) -> None:
        """Instances of the program's classes that a census came by; nothing of them is kept but weak references."""
        if native() is None:
            wanted = {id(cls) for cls in self._types.to_follow()}
            ours = {cls: ones for cls, ones in instances.items() if id(cls) in wanted}
            self._note(newest_of_census(ours, INSTANCES_OF_A_CLASS))

    def instances(self, classes: Sequence[type]) -> dict[type, list[ref[Any]]]:
        """What is known of each class already, spread over its age: a search for holders may begin with these."""
        known = {cls: self._cohorts.instances(cls) for cls in classes}
        return {cls: ones for cls, ones in known.items() if ones}

    def _note(self, newest: Mapping[type, Sequence[object]]) -> None:
        self._cohorts.note(self._generations, newest)
        self._watched.note(newest)
