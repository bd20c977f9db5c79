"""Which of the metrics that a program logged to a tracker are memory, and in what unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..column_names import Meaning, meaning_of
from ..imported_log import ImportRefused, Wishes

NAMES_TOLD = 12


def chosen_metrics(path: Path, names: Iterable[str], wishes: Wishes) -> dict[str, Meaning]:
    """Name -> what it is, one for each series. Raises ImportRefused where a unit is missing."""
    known = list(names)
    if wishes.memory is not None and wishes.memory not in known:
        raise ImportRefused(path, f"has no metric {wishes.memory!r}; it has {_listed(known)}")
    best: dict[str, tuple[str, Meaning]] = {}
    for name in known:
        meaning = meaning_of(name, binary=wishes.binary)
        if name == wishes.memory:
            meaning = Meaning("memory", "process.rss_bytes", meaning.factor, rank=-1)
        held = best.get(meaning.series)
        if meaning.role == "memory" and (held is None or meaning.rank < held[1].rank):
            best[meaning.series] = name, meaning
    return {name: _with_unit(path, name, meaning, wishes) for name, meaning in best.values()}


def _with_unit(path: Path, name: str, meaning: Meaning, wishes: Wishes) -> Meaning:
    factor = meaning.factor if meaning.factor is not None else wishes.size_unit
    if factor is None:
        raise ImportRefused(
            path, f"metric {name!r} does not say its unit; give it with --size-unit B, KiB, MB, MiB, GB or GiB"
        )  # fmt: skip
    return Meaning("memory", meaning.series, factor)


def note_of(name: str, meaning: Meaning) -> str:
    return f"metric {name!r} is {meaning.series}, in units of {meaning.factor or 1:,.0f} bytes"


def missing(path: Path, names: Mapping[str, object] | Iterable[str]) -> ImportRefused:
    known = list(names)
    return ImportRefused(
        path, f"none of its metrics is known as memory ({_listed(known)}); name one with --memory METRIC"
    )  # fmt: skip


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:NAMES_TOLD]) or "none"
    return shown + (", …" if len(names) > NAMES_TOLD else "")
