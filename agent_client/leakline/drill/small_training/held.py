"""Leaks of objects that something holds: the usual mistakes of training code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final

import leakline

from .planting import Plant, filled, size_of

KIB: Final = 2**10
MIB: Final = 2**20


class History(Plant):
    """Every step is recorded, and nothing cuts the record."""

    STEPS: Final = 3_000

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def grow(self, generation: int) -> int:
        first = len(self.records)
        for step in range(first, first + self.STEPS):
            self.records.append(
                {"step": step, "reward": step / 7, "observation": bytes(filled(KIB))}
            )
        return sum(size_of(new, *new.values()) for new in self.records[first:])


class Environment:
    """Of which a training needs one."""

    SIZE: Final = 64 * KIB

    def __init__(self, number: int) -> None:
        self.number = number
        self.prices = filled(self.SIZE)


class Registry(Plant):
    """Every environment that was ever made, by its number."""

    EACH: ClassVar[int] = 64

    def __init__(self) -> None:
        self.environments: dict[int, Environment] = {}

    def grow(self, generation: int) -> int:
        first = len(self.environments)
        made = [Environment(number) for number in range(first, first + self.EACH)]
        self.environments.update((new.number, new) for new in made)
        return sum(size_of(new, new.prices) for new in made)


class DeclaredRegistry(Registry):
    """Its author says how many there should be; eight more each time show it."""

    EACH: ClassVar[int] = 8

    def declare(self, run: leakline.Run) -> None:
        run.expect(Environment, (0, self.EACH))


class RareRegistry(Registry):
    """Three generations' worth at once."""

    EACH: ClassVar[int] = 192


class FeatureExtractor:
    """Made anew for each fold. The cache belongs to the class, and its keys contain ``self``."""

    SIZE: Final = 4 * MIB

    def __init__(self) -> None:
        self.basis = filled(self.SIZE)

    @functools.cache  # noqa: B019 - the mistake that is planted
    def features(self, day: int) -> int:
        return self.basis[day]


class Folds(Plant):
    def grow(self, generation: int) -> int:
        extractor = FeatureExtractor()
        for day in range(4):
            extractor.features(day)
        return size_of(extractor, extractor.basis)


class Callbacks(Plant):
    """A callback for each batch that should be looked at again; none is taken out."""

    BATCHES: Final = 16
    BATCH: Final = 256 * KIB

    def __init__(self) -> None:
        self.callbacks: list[Callable[[int], int]] = []

    def grow(self, generation: int) -> int:
        for _ in range(self.BATCHES):
            self.callbacks.append(_look_again(filled(self.BATCH)))
        return self.BATCHES * self.BATCH


def _look_again(batch: bytearray) -> Callable[[int], int]:
    return lambda position: batch[position]


class EpisodeFailed(Exception):
    """One episode of many; the training goes on."""


class Errors(Plant):
    """The errors of failed episodes, kept to be reported in the end."""

    EPISODES: Final = 32
    EPISODE: Final = 128 * KIB

    def __init__(self) -> None:
        self.errors: list[EpisodeFailed] = []

    def grow(self, generation: int) -> int:
        for episode in range(self.EPISODES):
            try:
                self._play(episode)
            except EpisodeFailed as error:
                self.errors.append(error)
        return self.EPISODES * self.EPISODE

    def _play(self, episode: int) -> None:
        observations = filled(self.EPISODE)
        raise EpisodeFailed(f"episode {episode} broke off after {len(observations)} observations")


class Predictions(Plant):
    """All predictions of all evaluations."""

    SHAPE: Final = (1_024, 1_024)

    def __init__(self) -> None:
        import numpy

        self.random = numpy.random.default_rng(0)
        self.predictions: list[Any] = []

    def grow(self, generation: int) -> int:
        new = self.random.standard_normal(self.SHAPE, dtype="float32")
        self.predictions.append(new)
        return int(new.nbytes)
