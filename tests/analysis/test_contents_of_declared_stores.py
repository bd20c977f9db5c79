"""What lies inside a declared store is explained by it, items of varying size included; a leak next to it is not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from leakline.analysis import RunHistory, examine
from leakline.analysis.history import Value
from leakline.analysis.results import Verdict
from leakline.snapshot import Holder

from .builder import MIB
from .pieces import ends_history

GENERATIONS, FULL, EACH = 36, 20, 3
ARRAYS = "type.numpy.ndarray.count"


def episodes(
    parts: tuple[int, int] = (2, 2), *, leak: int = 0, size: float = MIB, path: str = "app.episodes[*][*]",
    counted: str = ARRAYS, census_every: int = 4, declared: bool = True,
) -> RunHistory:  # fmt: skip
    """A store of episodes, each with some parts of some size; ``leak`` more of the parts are kept elsewhere."""
    rng = random.Random(3)
    items: list[tuple[int, float]] = []
    private: list[Value] = []
    length: list[Value] = []
    inner: list[Value] = []
    tracked_bytes: list[Value] = []
    counts: list[Value] = []
    for generation in range(GENERATIONS):
        items += [(rng.randint(*parts), size * rng.uniform(0.8, 1.2)) for _ in range(EACH)]
        items = items[-FULL * EACH :]
        within = sum(count for count, _ in items)
        private.append(round(300 * MIB + sum(s for _, s in items) + leak * generation * MIB / 2))
        length.append(len(items))
        inner.append(within)
        tracked_bytes.append(round(len(items) * 0.93 * size))
        kept = within + leak * generation
        counts.append(400 + kept if generation % census_every == 0 else None)
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": private, counted: counts,
        "container.app.episodes.length": length, "container.app.episodes[*].length": inner,
    }  # fmt: skip
    if declared:
        series |= {
            "tracked.episodes.length": length, "tracked.episodes.bytes": tracked_bytes,
            "tracked.episodes.capacity": [FULL * EACH] * GENERATIONS,
        }  # fmt: skip
    name = counted.removeprefix("type.").removesuffix(".count")
    return ends_history(series, holders=(Holder(9, name, path, 60),))


def named(verdict: Verdict) -> set[str]:
    return {suspect.name for finding in verdict.findings for suspect in finding.suspects}


@pytest.mark.parametrize("parts", [(2, 2), (1, 9), (20, 60)], ids=["dicts", "lists", "long lists"])
@pytest.mark.parametrize("counted", [ARRAYS, "type.app.Frame.count", "type.torch.Tensor.count"])
def test_a_declared_store_explains_its_contents(parts: tuple[int, int], counted: str) -> None:
    verdict = examine(episodes(parts, counted=counted))
    assert verdict.status in ("ok", "filling")
    assert verdict.findings == ()


def test_advice_asks_to_declare_only_what_is_not_declared() -> None:
    verdict = examine(episodes(declared=False))
    assert "app.episodes" in " ".join(named(verdict))
    assert not any("declare it" in line for f in examine(episodes()).findings for line in f.advice)


@pytest.mark.parametrize("counted", [ARRAYS, "type.app.Frame.count"])
def test_parts_that_go_on_growing_once_the_store_is_full_are_a_leak(counted: str) -> None:
    verdict = examine(episodes(leak=2, counted=counted, census_every=1))
    assert verdict.status in ("suspected", "confirmed")
    assert counted.removeprefix("type.").removesuffix(".count") in named(verdict)


def tokens(*, full: int = 8, grows: int = 0, beside: int = 0, generations: int = 30) -> RunHistory:
    """A store of documents of any length, counted until it is full.

    ``grows``: MiB of numbers per generation that are kept elsewhere; ``beside``: MiB of what nobody counts.
    """
    rng = random.Random(4)
    length = [min(40 * (i + 1), 40 * full) for i in range(generations)]
    held = 0.0
    inside: list[float] = []
    for i in range(generations):
        held += rng.uniform(40_000, 60_000) if i < full else 0.0
        inside.append(held)
    read = (0, 3, 4, 5, 6, full)
    kept = [grows * MIB * i for i in range(generations)]
    series: dict[str, Sequence[Value]] = {
        "process.anon_bytes": [
            round(33 * MIB + 36 * n + more + (beside * i + rng.uniform(0, 4)) * MIB)
            for i, (n, more) in enumerate(zip(inside, kept, strict=True))
        ],
        "type.int.count": [
            round(9_000 + n + more / 28) if i in read else None
            for i, (n, more) in enumerate(zip(inside, kept, strict=True))
        ],
        "type.int.bytes": [
            round(28 * (9_000 + n) + more) if i in read else None
            for i, (n, more) in enumerate(zip(inside, kept, strict=True))
        ],
        "tracked.tokens.length": length,
        "tracked.tokens.bytes": [round(36 * n) for n in inside],
        "tracked.tokens.capacity": [40 * full] * generations,
    }
    return ends_history(series)


@pytest.mark.parametrize("generations", [8, 12, 16, 30])
def test_numbers_that_become_more_only_while_a_store_fills_are_its_contents(
    generations: int,
) -> None:
    assert examine(tokens(generations=generations)).findings == ()
    assert examine(tokens(grows=2, generations=30)).status in ("suspected", "confirmed")


def test_what_filled_a_store_is_no_part_of_a_leak_next_to_it() -> None:
    verdict = examine(tokens(beside=3))
    assert verdict.status in ("suspected", "confirmed")
    assert "int" not in named(verdict)
