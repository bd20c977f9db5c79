"""Device memory as the NVIDIA driver counts it: for all processes, for this process, and outside torch's allocator."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from leakline.snapshot import Number

from .device_mapping import Cards
from .nvml_library import Driver
from .torch_devices import reserved_bytes

# The fixed name of the initial PID namespace, to which the driver's process IDs belong.
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
_NAMESPACE: Final = Path("/proc/self/ns/pid")
_PROCESSES: Final = Path("/proc")

_driver = Driver()
_cards = Cards(_driver)


def read_nvml() -> dict[str, Number]:
    """Return ``gpu.<i>.*`` by this process's device numbers.

    ``used_bytes`` and ``total_bytes`` describe the entire device, or the slice (MIG) that the process uses.
    ``process_bytes`` is this process's part; it is absent if the driver does not report it, or reports process IDs of
    another namespace. ``outside_bytes`` is the part of ``process_bytes`` outside torch's allocator: the context, NCCL
    and other libraries.
    """
    if not _driver.open():
        return {}
    samples: dict[str, Number] = {}
    for index, card in _cards.handles().items():
        samples.update({f"gpu.{index}.{name}": value for name, value in _read_card(index, card)})
    return samples


def read_nvml_of(pid: int) -> dict[str, Number]:
    """Return ``gpu.<i>.*`` of another process for each card that it uses, by the machine's card numbers."""
    if not _driver.open():
        return {}
    samples: dict[str, Number] = {}
    for index in range(_driver.count()):
        card = _driver.card_at(index)
        listed = {} if card is None else _listed_processes(card)
        size = listed.get(pid) if _numbers_are_ours(listed) else None
        if size is None:
            continue
        samples[f"gpu.{index}.process_bytes"] = size
        memory = _driver.memory(card)
        if memory is not None:
            samples[f"gpu.{index}.used_bytes"] = memory.used
            samples[f"gpu.{index}.total_bytes"] = memory.total
    return samples


def _read_card(index: int, card: Any) -> Iterator[tuple[str, int]]:
    memory = _driver.memory(card)
    if memory is not None:
        yield "used_bytes", memory.used
        yield "total_bytes", memory.total
    reserved = reserved_bytes(index)
    ours = _process_bytes(card, reserved)
    if ours is None:
        return
    yield "process_bytes", ours
    if reserved is not None:
        # Another thread may have freed or allocated memory between the two readings.
        yield "outside_bytes", max(0, ours - reserved)


def _process_bytes(card: Any, reserved: int | None) -> int | None:
    """Return this process's bytes on the card, or None if the number is unknown.

    ``reserved`` is a lower bound for the result, or None if the process has no context on the card.
    """
    listed = _listed_processes(card)
    if os.getpid() in listed and _numbers_are_ours(listed):
        return listed[os.getpid()]
    if reserved is None or len(listed) != 1 or _in_first_namespace():
        return None
    # This process has a context there and only one process is listed, so the listed process is this process, even if
    # its process ID differs.
    (alone,) = listed.values()
    return alone if alone is not None and alone >= reserved else None


def _listed_processes(card: Any) -> dict[int, int | None]:
    """Return each process's bytes on the card by process ID; None if the driver does not report the bytes."""
    found: dict[int, int | None] = {}
    for processes in (_driver.compute_processes(card), _driver.mps_processes(card)):
        listed: dict[int, int | None] = {}
        for pid, size in processes:
            # A process is listed once per slice that it runs on. Every listed process has a context, so a size of zero
            # also means unknown.
            before = listed.get(pid, 0)
            listed[pid] = before + size if before is not None and size else None
        found = {**listed, **found}
    return found


def _numbers_are_ours(pids: Iterable[int]) -> bool:
    """Return True if these process IDs belong to our namespace.

    In another namespace, an ID may equal ours by chance.
    """
    return _in_first_namespace() or all((_PROCESSES / str(pid)).exists() for pid in pids)


def _in_first_namespace() -> bool:
    try:
        return str(_NAMESPACE.readlink()) == _FIRST_NAMESPACE
    except OSError:
        # The system has no namespaces.
        return True
