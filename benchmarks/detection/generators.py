"""All families with their seeds: the same word gives the same runs on every machine."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from . import healthy, leaking
from .cases import LONGEST, SHORTEST, Case

Make = Callable[[random.Random, int], Case]

# The word of the public corpus. Changing it changes the runs of all published figures.
PUBLIC: Final = "public 1"
FULL_HEALTHY: Final = 170  # runs per family
FULL_LEAKING: Final = 140


@dataclass(frozen=True, slots=True)
class Family:
    """A family of runs. ``bound_known`` is False where a bounded structure fills without a declared capacity."""

    name: str
    make: Make
    leaks: bool
    bound_known: bool = True


@dataclass(frozen=True, slots=True)
class Draw:
    """One run to draw; it depends only on these three values."""

    word: str
    family: str
    number: int


HEALTHY: Final = (
    Family("flat", healthy.flat, False),
    Family("declared fill", healthy.declared_fill, False),
    Family("undeclared fill", healthy.undeclared_fill, False, bound_known=False),
    Family("undeclared saturation", healthy.undeclared_saturation, False, bound_known=False),
    Family("undeclared sawtooth", healthy.undeclared_sawtooth, False, bound_known=False),
    Family("refill", healthy.refill, False, bound_known=False),
    Family("readable fill", healthy.readable_fill, False),
    Family("saturation", healthy.saturation, False),
    Family("logarithm", healthy.logarithm, False),
    Family("steps", healthy.steps, False),
    Family("sawtooth", healthy.sawtooth, False),
    Family("season", healthy.season, False),
    Family("wandering", healthy.wandering, False),
    Family("page cache", healthy.page_cache, False),
    Family("arenas", healthy.arenas, False),
    Family("checkpoints", healthy.checkpoints, False),
    Family("evaluations", healthy.evaluations, False),
    Family("population", healthy.population, False),
    Family("warm-up", healthy.warm_up, False),
    Family("resume", healthy.resume, False),
)
LEAKING: Final = (
    Family("linear", leaking.linear, True),
    Family("late start", leaking.late, True),
    Family("rising sawtooth", leaking.rising_sawtooth, True),
    Family("stairs", leaking.stairs, True),
    Family("accelerating", leaking.accelerating, True),
    Family("fill and leak", leaking.fill_and_leak, True),
    Family("readable fill and leak", leaking.readable_fill_and_leak, True),
    Family("intermittent", leaking.intermittent, True),
    Family("warm-up and leak", leaking.warm_up_and_leak, True),
    Family("noisy", leaking.noisy, True),
    Family("counted", leaking.counted, True),
    Family("two at once", leaking.two_at_once, True),
    Family("after full", leaking.after_full, True),
    Family("slow", leaking.slow, True),
    Family("children", leaking.children, True),
    Family("allocator", leaking.allocator, True),
)
FAMILIES: Final = {family.name: family for family in (*HEALTHY, *LEAKING)}


def fresh_word() -> str:
    return f"fresh {secrets.token_hex(8)}"


def draws(word: str, families: list[Family], runs: int | None) -> Iterator[Draw]:
    """Yield ``runs`` draws of each family; without a number, as many as in the published figures."""
    for family in families:
        count = runs or (FULL_LEAKING if family.leaks else FULL_HEALTHY)
        for number in range(count):
            yield Draw(word, family.name, number)


def drawn(draw: Draw) -> Case:
    rng = random.Random(f"{draw.word} {draw.family} {draw.number}")
    return FAMILIES[draw.family].make(rng, rng.randint(SHORTEST, LONGEST))
