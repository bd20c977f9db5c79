"""Birth cohorts: a few instances of a class from each generation, to see how many generations' objects stay alive.

A class that is made and let go of anew each generation has one or two birth generations alive, however many instances;
a class that leaks has one more every generation. Nothing needs counting for that, and no instance is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from leakline.probes.names import hashes_plainly, type_name
from leakline.probes.referrers import native_look
from leakline.snapshot import Number

CLASSES_LIMIT: Final = 32
INSTANCES_OF_A_GENERATION: Final = 8
# Weak references of one class, at 72 bytes each beside what they need in lists.
REFERENCES_OF_A_CLASS: Final = 96
_PICK_SECONDS: Final = 0.0005

Instances = Mapping[type, Sequence[object]]


class _Reference(ref[Any]):
    """Ours by its type: a plain one would be told as a type of the program that grows with the leak."""

    __slots__ = ()


@dataclass(slots=True)
class _Cohort:
    """Instances first seen in a generation; after thinning, it stands for its neighbours as well."""

    generation: int
    references: list[ref[Any]]
    stands_for: int = 1

    def is_alive(self) -> bool:
        """Whether any instance is left."""
        if self.references and self.references[0]() is not None:
            return True
        self.references = [one for one in self.references if one() is not None]
        return bool(self.references)


@dataclass(slots=True)
class _Class:
    cohorts: list[_Cohort] = field(default_factory=list)  # oldest first
    # Those of the cohorts by address, and some that were dropped.
    known: dict[int, ref[Any]] = field(default_factory=dict)
    allows_references: bool = True

    def knows(self, one: object) -> bool:
        reference = self.known.get(id(one))
        return reference is not None and reference() is one

    def drop_dead(self) -> None:
        self.cohorts = [cohort for cohort in self.cohorts if cohort.is_alive()]

    def alive(self) -> list[ref[Any]]:
        return [one for cohort in self.cohorts for one in cohort.references if one() is not None]


class BirthCohorts:
    """Up to eight weakly referenced instances of each generation, for at most ``CLASSES_LIMIT`` classes.

    ``note`` at a generation end what the newest instances are, ``read`` any time. An instance counts as born in the
    generation in which it is first among the newest; those there when a class is first noted count as born then.
    """

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._now = 0

    def note(self, generation: int, instances: Instances) -> None:
        """The newest instances of each class, newest first, at the end of this generation.

        Only those before the first one that is known already were born since the last time. Classes beyond the
        limit are left out, and those whose instances cannot be referred to weakly.
        """
        self._now = generation
        for cls, ones in instances.items():
            name = type_name(cls)
            if self._has_room_for(name) and self._classes[name].allows_references:
                self._note(name, generation, ones)

    def read(self) -> dict[str, Number]:
        """Of each class: ``cohort.<type>.alive``, the number of birth generations of which an instance is alive, and
        ``cohort.<type>.oldest``, the age of the oldest of them in generations.

        A generation counts by the few instances that were noted of it, so ``alive`` is a lower bound; only generations
        that were noted count. Beyond ``REFERENCES_OF_A_CLASS`` of them, older ones are told by every other. The age
        is absent when none is alive.
        """
        samples: dict[str, Number] = {}
        for name, state in self._classes.items():
            if not state.allows_references:
                continue
            state.drop_dead()
            born = [cohort.generation for cohort in state.cohorts]
            samples[f"cohort.{name}.alive"] = sum(one.stands_for for one in state.cohorts)
            if born:
                samples[f"cohort.{name}.oldest"] = max(0, self._now - min(born))
        return samples

    def instances(self, cls: type) -> list[ref[Any]]:
        """Weak references to instances of a class, oldest first: a sample over their age, for a search for holders."""
        state = self._classes.get(type_name(cls))
        return [one for one in (state.alive() if state is not None else []) if type(one()) is cls]

    def forget(self, name: str) -> None:
        """Make room: the class is watched no longer."""
        self._classes.pop(name, None)

    def _has_room_for(self, name: str) -> bool:
        if name not in self._classes and len(self._classes) < CLASSES_LIMIT:
            self._classes[name] = _Class()
        return name in self._classes

    def _note(self, name: str, generation: int, ones: Sequence[object]) -> None:
        state = self._classes[name]
        try:
            new: list[ref[Any]] = [_Reference(one) for one in _until_known(ones, state)]
        except TypeError:
            # __slots__ without __weakref__.
            self._classes[name] = _Class(allows_references=False)
            return
        if not new:
            return
        last = state.cohorts[-1] if state.cohorts else None
        if last is not None and last.generation == generation:
            last.references = [*last.references, *new][:INSTANCES_OF_A_GENERATION]
        else:
            state.cohorts.append(_Cohort(generation, new))
        state.known.update(zip(map(id, ones), new, strict=False))
        if len(state.known) > REFERENCES_OF_A_CLASS:
            _thin_out(state)


def pick_newest(
    types: Sequence[type], each: int = INSTANCES_OF_A_GENERATION, seconds: float = _PICK_SECONDS
) -> dict[type, list[Any]]:
    """The newest instances of each class, newest first, from the young end of the heap. Empty without native module.

    Holds objects of the program: drop it before returning to it. Stops after ``seconds``, with what was found by then.
    """
    module = native_look()
    plain = tuple(cls for cls in types if hashes_plainly(cls))
    if module is None or not plain:
        return {}
    found = module.newest_instances(plain, each, seconds)
    return {cls: ones for cls, ones in zip(plain, found, strict=True) if ones}


def newest_of_census(instances: Instances, picked_at_most: int) -> dict[type, list[Any]]:
    """The same from what a census hands over, oldest first; a class it handed over in part is left out."""
    return {
        cls: list(ones[-INSTANCES_OF_A_GENERATION:][::-1])
        for cls, ones in instances.items()
        if len(ones) < picked_at_most
    }


def _until_known(ones: Sequence[object], state: _Class) -> Iterator[object]:
    for one in ones[:INSTANCES_OF_A_GENERATION]:
        if state.knows(one):
            return
        yield one


def _thin_out(state: _Class) -> None:
    """Fewer instances of the oldest generations; with one each, every other of the older generations."""
    state.drop_dead()
    cohorts = state.cohorts
    for cohort in cohorts:
        cohort.references = [one for one in cohort.references if one() is not None]
    # Down to three quarters, so that this is not done every time.
    left = sum(len(cohort.references) for cohort in cohorts) - REFERENCES_OF_A_CLASS * 3 // 4
    for cohort in sorted(cohorts, key=lambda cohort: -len(cohort.references)):
        if left <= 0:
            break
        half = (len(cohort.references) + 1) // 2
        left -= len(cohort.references) - half
        cohort.references = cohort.references[:half]
    if left > 0:
        older = cohorts[: len(cohorts) // 2]
        for kept, given_up in zip(older[::2], older[1::2], strict=False):
            # The older one stays, so that the age of the oldest is true.
            kept.stands_for += given_up.stands_for
        cohorts[: len(older)] = older[::2]
    state.known = {id(one): weak for weak in state.alive() if (one := weak()) is not None}
