"""How much of the private memory counted objects account for, and what no source can see. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..rendering import number_formats

Json = Mapping[str, Any]
# Read at each look at the heap or beside it.
SOURCES: Final = (
    "arrays.bytes", "tensors.bytes", "tensors.device_bytes", "tensors.graph_bytes", "allocator.kept_bytes",
)  # fmt: skip
_UNSEEN: Final = (
    "No source sees into native libraries, buffers that no Python object owns, thread stacks and gaps between "
    "objects."
)
_ARRAYS: Final = ("numpy.ndarray",)
_COUNTED_APART: Final = ("numpy.", "torch.")


def accounted(private: float | None, last: Mapping[str, float | None], census: Json | None) -> str:
    """A sentence with the share; nothing where private memory is not known or no source has told. ``last``: the newest
    value of each of SOURCES. What was not measured is named and never counted as zero."""
    if not private or private <= 0:
        return ""
    found = _parts(last, census)
    parts = {name: size for name, size in found.items() if size is not None}
    missing = [name for name, size in found.items() if size is None]
    if not parts:
        return ""
    told = ", ".join(
        f"{name} {number_formats.size(size)}"
        for name, size in sorted(parts.items(), key=lambda p: -p[1])
    )
    share, whole = sum(parts.values()) / private, f"{number_formats.size(private)} private memory"
    if share > 1:
        said = f"What was counted is more than the {whole}, as some of it is shared, swapped or gone since: {told}."
    else:
        said = f"{number_formats.percent(share)} of {whole} is accounted for: {told}."
    unknown = f" Not measured: {', '.join(missing)}." if missing else ""
    return f"{said}{unknown} {_UNSEEN}"


def _parts(last: Mapping[str, float | None], census: Json | None) -> dict[str, float | None]:
    tensors = last.get("tensors.bytes")
    if tensors is not None:
        on_devices = last.get("tensors.device_bytes") or 0.0
        tensors = max(tensors - on_devices, 0.0) + (last.get("tensors.graph_bytes") or 0.0)
    arrays = last.get("arrays.bytes")
    return {
        "arrays": _own_bytes(census, _ARRAYS) if arrays is None else arrays,
        "tensors": tensors,
        "other objects": _own_bytes(census),
        "freed but kept by the C allocator": last.get("allocator.kept_bytes"),
    }


def _own_bytes(census: Json | None, begin: tuple[str, ...] = ()) -> float | None:
    """What counted objects own themselves, whose type begins so; else those that are not counted apart."""
    rows: Sequence[Sequence[Any]] = (census or {}).get("types") or ()
    among = [
        row[2]
        for row in rows
        if row[2] is not None
        and (str(row[0]).startswith(begin) if begin else not str(row[0]).startswith(_COUNTED_APART))
    ]
    return float(sum(among)) if among else None
