"""Maps names and sizes in other tools' logs (columns, tracker metrics, printed sizes) to our series and to bytes.

Assumptions are reported to the user. If a unit is missing, the user is asked to specify it; it is never guessed from
the magnitude of a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from ..text_format import count_of
from .imported_log import ImportRefused, Wishes

_POWERS: Final = {"b": 0, "byte": 0, "bytes": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_BINARY_NAME: Final = re.compile(r"[kmgt]i?b?|b|bytes?", re.IGNORECASE)
UNIT: Final = r"(?:[kKMGT]i?B|bytes|B)"
# The lookbehinds allow a match only at the first digit: trying every digit of a long number would take quadratic time.
NUMBER: Final = r"(?<![0-9])(?<![0-9][.,])[0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?"
_THOUSANDS: Final = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_DECIMAL: Final = re.compile(r"[0-9]+,[0-9]+")
_OPEN: Final = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")
_OPEN_SIZE: Final = re.compile(rf"({NUMBER})\s?{UNIT}\b")


def factor_of(unit: str, *, binary: bool = False) -> int | None:
    """Return the number of bytes in ``unit``, or None if it is not a unit of size. ``binary``: read MB as MiB."""
    name = unit.strip().lower()
    if not _BINARY_NAME.fullmatch(name):
        return None
    power = _POWERS.get(name, _POWERS.get(name[0], 0))
    return int((1024 if binary or "i" in name else 1000) ** power)


Comma = Literal["none", "thousands", "decimal", "open", "neither"]


def comma_of(number: str) -> Comma:
    """Classify the commas of a number. "open" means a decimal comma or a thousands separator, as in "1,234"."""
    digits = number.lstrip("+-")
    if "," not in digits:
        return "none"
    if _OPEN.fullmatch(digits):
        return "open"
    if _THOUSANDS.fullmatch(digits):
        return "thousands"
    return "decimal" if _DECIMAL.fullmatch(digits) else "neither"


def pointed(number: str) -> str | None:
    """Return the number with a decimal point and no other separators, or None if it is not a number.

    An ambiguous comma is read as a thousands separator.
    """
    comma = comma_of(number)
    if comma == "neither":
        return None
    return number.replace(",", "." if comma == "decimal" else "")


def pointed_number(number: str) -> float | None:
    """Return the value of a printed number, which may have an exponent, or None if it is not a number."""
    digits, exponent, power = number.lower().partition("e")
    plain = pointed(digits)
    return None if plain is None else float(f"{plain}{exponent}{power}")


def open_size(text: str) -> str | None:
    """Return the first size with an ambiguous comma, such as "1,234 MB", or None if the line has no such size."""
    if "," not in text:
        return None
    found = (size[0] for size in _OPEN_SIZE.finditer(text) if comma_of(size[1]) == "open")
    return next(found, None)


def note_of_open(line: int, size: str) -> str:
    return (
        f"the comma in {size} (line {line}) is read as a thousands separator; "
        "if it is a decimal comma, write a point instead"
    )


def size_in_bytes(number: str, unit: str, *, binary: bool = False) -> float | None:
    """Return a size such as ``9.12`` ``GB`` in bytes, or None if the number or the unit cannot be parsed."""
    factor, digits = factor_of(unit, binary=binary), pointed(number.lstrip("+"))
    return None if factor is None or digits is None else float(digits) * factor


Role = Literal[
    "memory", "time", "generation", "phase", "label", "device", "run", "metric", "value", "derived", "other",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meaning:
    """How to interpret a column or metric.

    ``series``: our series for memory, otherwise empty. ``factor``: bytes or seconds per unit, or None if unknown.
    ``unit``: the unit that a generation column counts. ``rank``: if several names have the same meaning, the lowest
    rank wins.
    """

    role: Role
    series: str = ""
    factor: float | None = None
    unit: str = ""
    rank: int = 0


_STATES_UNIT: Final = re.compile(
    r"(?:[\s_./-]*[(\[]\s*(?P<brackets>[A-Za-z]+)\s*[)\]]|[\s_./-]+(?P<suffix>[A-Za-z]+))$"
)
_GLUED_UNIT: Final = re.compile(r"(?<=[a-z])(?P<suffix>KB|MB|GB|KiB|MiB|GiB|Bytes)$")
_LONG_UNITS: Final = {
    "bytes": "B", "byte": "B", "kilobytes": "KB", "megabytes": "MB", "gigabytes": "GB", "kbytes": "KB", "mbytes": "MB",
}  # fmt: skip
_SECONDS: Final = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "second": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6,
    "ns": 1e-9, "min": 60.0, "mins": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0, "hour": 3600.0,
}  # fmt: skip
# Maps complete names, without units, to series. If several names in a log map to the same series, the earliest in this
# table wins.
_MEMORY: Final = {
    "rss": "process.rss_bytes", "process rss": "process.rss_bytes", "process memory rss": "process.rss_bytes",
    "memory rss": "process.rss_bytes", "mem rss": "process.rss_bytes", "resident": "process.rss_bytes",
    "resident memory": "process.rss_bytes", "res": "process.rss_bytes", "rss memory": "process.rss_bytes",
    "process memory usage": "process.rss_bytes", "process resident memory": "process.rss_bytes",
    "process memory": "process.rss_bytes", "proc memory rss": "process.rss_bytes", "real": "process.rss_bytes",
    "memory": "process.rss_bytes", "mem": "process.rss_bytes", "ram": "process.rss_bytes",
    "memory usage": "process.rss_bytes", "mem usage": "process.rss_bytes", "ram usage": "process.rss_bytes",
    "memory used": "process.rss_bytes", "used memory": "process.rss_bytes", "ram used": "process.rss_bytes",
    "cpu memory": "process.rss_bytes", "cpu mem": "process.rss_bytes", "cpu ram": "process.rss_bytes",
    "vms": "process.vms_bytes", "vsz": "process.vms_bytes", "virt": "process.vms_bytes",
    "virtual": "process.vms_bytes", "virtual memory": "process.vms_bytes", "process vms": "process.vms_bytes",
    "anon": "process.anon_bytes", "anonymous": "process.anon_bytes", "swap": "process.swap_bytes",
    "shared": "process.shared_bytes", "peak rss": "process.peak_bytes", "max rss": "process.peak_bytes",
    "peak memory": "process.peak_bytes", "gpu allocated": "cuda.0.allocated_bytes",
    "gpu memory allocated": "cuda.0.allocated_bytes", "cuda allocated": "cuda.0.allocated_bytes",
    "cuda memory allocated": "cuda.0.allocated_bytes", "gpu mem allocated": "cuda.0.allocated_bytes",
    "gpu reserved": "cuda.0.reserved_bytes", "gpu memory reserved": "cuda.0.reserved_bytes",
    "cuda reserved": "cuda.0.reserved_bytes", "cuda memory reserved": "cuda.0.reserved_bytes",
    "gpu mem reserved": "cuda.0.reserved_bytes", "gpu memory": "gpu.0.used_bytes", "gpu mem": "gpu.0.used_bytes",
    "gpu memory used": "gpu.0.used_bytes", "gpu memory usage": "gpu.0.used_bytes", "vram": "gpu.0.used_bytes",
}  # fmt: skip
_TIMES: Final = (
    "time", "timestamp", "ts", "datetime", "date", "wall time", "walltime", "unix time", "elapsed", "elapsed time",
    "seconds", "runtime", "relative time", "relative time process", "relative time wall", "t",
)  # fmt: skip
_GENERATIONS: Final = {
    "generation": "generation", "gen": "generation", "episode": "episode", "ep": "episode", "epoch": "epoch",
    "step": "step", "global step": "step", "iteration": "step", "iter": "step", "training step": "step",
    "trainer global step": "step", "train global step": "step", "epochs": "epoch", "train epoch": "epoch",
    "episodes": "episode", "steps": "step", "iterations": "step",
}  # fmt: skip
_OTHERS: Final[dict[str, Role]] = {
    "phase": "phase",
    "stage": "phase",
    "label": "label",
    "event": "label",
    "run": "run",
    "run id": "run",
    "run name": "run",
    "run uuid": "run",
    "key": "metric",
    "metric": "metric",
    "metric name": "metric",
    "value": "value",
    "metric value": "value",
}
# Suffixes of the columns in a W&B export that contain the minimum and maximum of the readings behind a point.
_DERIVED: Final = ("__MIN", "__MAX")
# Metrics of W&B's system monitor, whose MB are units of 2^20 bytes.
_WANDB_RESIDENT: Final = re.compile(r"(?:system[./])?proc\.memory\.rssMB$")
_WANDB_GPU: Final = re.compile(
    r"(?:system[./])?gpu\.(?P<own>process\.)?(?P<index>\d{1,3})\.memoryAllocatedBytes$"
)
# A path with one of these words, such as "gpu/rss_mb", does not name the process's resident memory.
_DEVICE: Final = re.compile(r"gpu|cuda|vram|device", re.IGNORECASE)
# Words that show that a metric is not this process's memory: "rss growth" is a difference, and "worker rss" belongs to
# another process.
_NO_LEVEL: Final = re.compile(
    r"\b(?:delta|diff|growth|change|limit|min|total|all|sum|peak|max|child|children|worker|workers|gpu|cuda|device"
    r"|rank ?\d*|node ?\d*|process ?\d+)\b"
)
_CLEARLY_RESIDENT: Final = re.compile(r"\b(?:rss|ram|resident)\b")


# Columns other than used memory in the header of `nvidia-smi --query-gpu=... --format=csv`.
_NVIDIA: Final = re.compile(
    r"(?:memory\.(?:total|free)|utilization\.|temperature\.|power\.|clocks\.|pstate|fan\.|pci\.|uuid|index$)"
)
# Series that exist once per GPU.
BY_DEVICE: Final = frozenset({"gpu.0.used_bytes"})


def run_and_metric(name: str) -> tuple[str | None, str]:
    """Return ("sunny-dust-12", "rss_mb") for "sunny-dust-12 - rss_mb" in a W&B export.

    Returns (None, name) for a name without a run.
    """
    run, _, metric = name.rpartition(" - ")
    return (run.strip() or None, metric.strip())


def meanings_of(head: Sequence[str], *, binary: bool = False) -> list[Meaning]:
    """Return the meaning of each column. Other columns may show whose memory a column contains."""
    meanings = [
        Meaning("derived")
        if name.endswith(_DERIVED) and name[: -len(_DERIVED[0])] in head
        else meaning_of(name, binary=binary)
        for name in head
    ]
    names = [name.strip().lower() for name in head]
    for at, name in enumerate(names):
        has_nvidia = any(_NVIDIA.match(other) for other in names)
        if name.startswith("memory.used") and (has_nvidia or "[" in name):
            meanings[at] = replace(meanings[at], series="gpu.0.used_bytes")
            if "index" in names:
                meanings[names.index("index")] = Meaning("device")
    return meanings


def meaning_of(name: str, *, binary: bool = False) -> Meaning:
    """Return the meaning of a column or metric name, which may begin with the name of its run."""
    found = _meaning_of(name, binary=binary)
    run, metric = run_and_metric(name)
    if found.role == "other" and run is not None:
        found = _meaning_of(metric, binary=binary)
        # A name that begins with a run can only name memory: even "run - step" is not the axis.
        return found if found.role == "memory" else Meaning("other")
    return found


def _meaning_of(name: str, *, binary: bool) -> Meaning:
    if _WANDB_RESIDENT.fullmatch(name):
        return Meaning("memory", "process.rss_bytes", 2**20)
    if gpu := _WANDB_GPU.fullmatch(name):
        kind = "process_bytes" if gpu["own"] else "used_bytes"
        return Meaning("memory", f"gpu.{int(gpu['index'])}.{kind}", 1)
    bare, unit = _split(name)
    words = _words(bare)
    whole = _words(name)
    if whole in _OTHERS:
        return Meaning(_OTHERS[whole])
    if whole in _GENERATIONS:
        order = list(_GENERATIONS).index(whole)
        return Meaning("generation", unit=_GENERATIONS[whole], rank=order)
    for candidate, said in ((words, unit), (whole, "")):
        if candidate in _MEMORY:
            size = factor_of(_LONG_UNITS.get(said.lower(), said), binary=binary) if said else None
            return Meaning("memory", _MEMORY[candidate], size, rank=list(_MEMORY).index(candidate))
        if candidate in _TIMES:
            return Meaning("time", "", _SECONDS.get(said.lower()), rank=_TIMES.index(candidate))
    run, _ = run_and_metric(name)
    if run is None and words.endswith(" rss") and not _NO_LEVEL.search(words):
        size = factor_of(_LONG_UNITS.get(unit.lower(), unit), binary=binary) if unit else None
        return Meaning("memory", "process.rss_bytes", size, rank=len(_MEMORY))
    path, _, last = name.rpartition("/")
    if path and _CLEARLY_RESIDENT.search(_words(last)) and not _DEVICE.search(path):
        return _meaning_of(last, binary=binary)
    return Meaning("other")


def _split(name: str) -> tuple[str, str]:
    """Return ("RSS", "MB") for "RSS (MB)", "rss_mb" or "rssMB"."""
    text = name.strip().lstrip("#").strip()
    found = _GLUED_UNIT.search(text) or _STATES_UNIT.search(text)
    if found is None:
        return text, ""
    unit = found.groupdict().get("brackets") or found["suffix"]
    known = unit.lower() in _SECONDS or factor_of(_LONG_UNITS.get(unit.lower(), unit)) is not None
    return (text[: found.start()], unit) if known else (text, "")


def _words(name: str) -> str:
    """Return ``process memory rss`` for ``Process_Memory/RSS``."""
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))


NAMES_SHOWN = 12


def chosen_metrics(path: Path, names: Iterable[str], wishes: Wishes) -> dict[str, Meaning]:
    """Return the best metric for each series, with its meaning. Raises ImportRefused if a unit or the requested metric
    is missing.
    """
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
            path, f"metric {name!r} has no unit; specify it with --size-unit B, KiB, MB, MiB, GB or GiB"
        )  # fmt: skip
    return Meaning("memory", meaning.series, factor)


def note_of(name: str, meaning: Meaning) -> str:
    return (
        f"metric {name!r} is {meaning.series}, in units of {count_of(meaning.factor or 1, 'byte')}"
    )


def missing(path: Path, names: Mapping[str, object] | Iterable[str]) -> ImportRefused:
    known = list(names)
    return ImportRefused(
        path, f"none of its metrics is recognized as memory ({_listed(known)}); choose one with --memory METRIC"
    )  # fmt: skip


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:NAMES_SHOWN]) or "none"
    return shown + (", …" if len(names) > NAMES_SHOWN else "")
