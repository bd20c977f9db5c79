"""Weak references to a few instances of a class, spread over their age: where a search for holders may begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from leakline.probes.references.class_names import hashes_plainly, type_name
from leakline.probes.references.referrers import native_look

CLASSES_LIMIT: Final = 32
INSTANCES_OF_A_GENERATION: Final = 8
# Weak references of one class, at 72 bytes each, without the lists that hold them.
REFERENCES_OF_A_CLASS: Final = 96
_PICK_SECONDS: Final = 0.0005

Instances = Mapping[type, Sequence[object]]


class _Reference(ref[Any]):
    """Ours by its type: a plain one would count as a type of the program that grows with the leak."""

    __slots__ = ()


@dataclass(slots=True)
class _Sample:
    """References to instances of one class, grouped by when they were first among the newest."""

    cohorts: list[list[ref[Any]]] = field(default_factory=list)  # oldest first
    # Those of the cohorts by address, and some that were dropped.
    known: dict[int, ref[Any]] = field(default_factory=dict)

    def note(self, newest: Sequence[object]) -> None:
        """Add those before the first known one. Raises TypeError where the class allows no weak references."""
        new: list[ref[Any]] = [_Reference(one) for one in self._until_known(newest)]
        if not new:
            return
        self.cohorts.append(new)
        self.known.update(zip(map(id, newest), new, strict=False))
        if sum(map(len, self.cohorts)) > REFERENCES_OF_A_CLASS:
            self._thin_out()

    def alive(self) -> list[ref[Any]]:
        return [one for cohort in self.cohorts for one in cohort if one() is not None]

    def _until_known(self, newest: Sequence[object]) -> Iterator[object]:
        for one in newest[:INSTANCES_OF_A_GENERATION]:
            reference = self.known.get(id(one))
            if reference is not None and reference() is one:
                return
            yield one

    def _thin_out(self) -> None:
        """Halve the largest cohorts; where each has one instance left, drop every other of the older cohorts."""
        alive = ([one for one in cohort if one() is not None] for cohort in self.cohorts)
        cohorts = [cohort for cohort in alive if cohort]
        # Down to three quarters, so that this is not done every time.
        excess = sum(map(len, cohorts)) - REFERENCES_OF_A_CLASS * 3 // 4
        for cohort in sorted(cohorts, key=len, reverse=True):
            if excess <= 0:
                break
            excess -= len(cohort) // 2
            del cohort[(len(cohort) + 1) // 2 :]
        if excess > 0:
            older = len(cohorts) // 2
            cohorts[:older] = cohorts[:older:2]
        self.cohorts = cohorts
        self.known = {id(one): weak for weak in self.alive() if (one := weak()) is not None}


class AgeSamples:
    """Samples of at most ``CLASSES_LIMIT`` classes. No instance is kept alive."""

    def __init__(self) -> None:
        # None: the instances allow no weak references.
        self._classes: dict[str, _Sample | None] = {}

    def note(self, instances: Instances) -> None:
        """Add the newest instances of each class, newest first, at a generation end."""
        for cls, newest in instances.items():
            name = type_name(cls)
            if name not in self._classes and len(self._classes) < CLASSES_LIMIT:
                self._classes[name] = _Sample()
            sample = self._classes.get(name)
            if sample is None:
                continue
            try:
                sample.note(newest)
            except TypeError:
                # __slots__ without __weakref__.
                self._classes[name] = None

    def instances(self, cls: type) -> list[ref[Any]]:
        """Return weak references to instances of a class, oldest first."""
        sample = self._classes.get(type_name(cls))
        return [one for one in (sample.alive() if sample is not None else []) if type(one()) is cls]


def pick_newest(
    types: Sequence[type], each: int = INSTANCES_OF_A_GENERATION, seconds: float = _PICK_SECONDS
) -> dict[type, list[Any]]:
    """Return the newest instances of each class, newest first, from the young end of the heap.

    Empty without the native module. The result holds objects of the program: drop it before returning to the program.
    Stops after ``seconds``, with what was found by then.
    """
    module = native_look()
    plain = tuple(cls for cls in types if hashes_plainly(cls))
    if module is None or not plain:
        return {}
    found = module.newest_instances(plain, each, seconds)
    return {cls: ones for cls, ones in zip(plain, found, strict=True) if ones}
