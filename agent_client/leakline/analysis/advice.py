"""What to do about a finding. A line of advice is given only when the finding shows what it speaks of."""

from __future__ import annotations

from .attribution import holds
from .candidates import FIGURE
from .study import Assessed
from .wording import short_name


def advice_for(a: Assessed, holder: str | None) -> tuple[str, ...]:
    cause = a.cause
    owner = cause.owner
    names = [member.name for member in cause.members]
    lines: list[str] = []
    if owner is not None and FIGURE in names:
        lines.append("Close each figure once it is saved: plt.close(figure), not the current one.")
    if cause.kind == "graph":
        lines.append(
            "Detach before storing: keep loss.item() or loss.detach() instead of the loss, which holds its graph."
        )
    if cause.kind == "tensors":
        lines.append(
            "Drop batch and result tensors at the end of the phase; keep numbers, not tensors."
        )
    if a.waiting is not None and a.waiting.collector_off:
        lines.append(
            "The collector is switched off: gc.enable(), or gc.collect() once a generation."
        )
    if owner is not None and owner.family == "object" and cause.kind != "cyclic_garbage":
        lines.append(_for_objects(short_name(owner.name), owner.growth.each, holder))
    if owner is not None:
        kept = [m.name for m in cause.members if m.role == "container" and holds(m, owner)]
        lines.extend(
            f"Bound {path}: collections.deque(maxlen=…), or clear it each {_where(a)}."
            for path in kept[:1]
        )
    if owner is not None and owner.role == "container" and path_is_bounded_by_design(a):
        lines.append(
            "If it is meant to fill up to a size, declare it: run.track(name, it, capacity=…)."
        )
    lines.extend(_BY_KIND.get(cause.kind, ()))
    return tuple(dict.fromkeys(lines))


def _for_objects(name: str, each: float, holder: str | None) -> str:
    if holder:
        return f"{holder} keeps {name} alive: remove the entry once the object is no longer needed."
    if each >= 1:
        return f"Reuse one {name}, or drop the last reference to it at the end of the phase."
    return f"Drop the last reference to {name} once it is no longer needed."


def _where(a: Assessed) -> str:
    return "time " + a.cause.place.phase + " ends" if a.cause.place.phase else "generation"


def path_is_bounded_by_design(a: Assessed) -> bool:
    """A container that alone carries a growth that matters may be a buffer nobody declared."""
    return "counts" in a.witnesses and a.scale.is_material(a.cause.rate.estimate, a.window)


_BY_KIND: dict[str, tuple[str, ...]] = {
    "native": (
        "Look for memory outside Python: C extensions, open handles, data loader workers; compare library versions.",
    ),
    "allocator_retained": (
        "Freed memory stays with the C allocator: try MALLOC_ARENA_MAX=2, or malloc_trim(0) once a generation.",
    ),
    "children": ("Look at the worker processes: they grow, not this one.",),
    "gpu_fragmentation": (
        "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; allocated memory itself does not grow.",
    ),
    "shared_memory": ("Unlink shared memory segments and files in /dev/shm once they are read.",),
    "cyclic_garbage": (
        "Break reference cycles (weakref, explicit None), or collect once a generation to lower the peaks.",
    ),
}
