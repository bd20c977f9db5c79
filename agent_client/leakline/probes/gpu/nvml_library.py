"""NVML, the library of the NVIDIA driver, called through ctypes and opened once per process.

A call that fails returns None, never zero: a lost card, a missing permission and an unknown function all mean
"unknown". No Python binding is needed, so no version has to match the driver's.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p, create_string_buffer
from typing import Any, Final, NamedTuple

# The program may shut down NVML more often than it has initialised it. We then reopen NVML, which costs milliseconds,
# so the number of openings is limited.
_OPENINGS_LIMIT: Final = 3
_LIBRARY: Final = "libnvidia-ml.so.1"
# NVML's return codes.
_SUCCESS: Final = 0
_UNINITIALIZED: Final = 1
_INSUFFICIENT_SIZE: Final = 7
_FUNCTION_NOT_FOUND: Final = 13
_ARGUMENT_VERSION_MISMATCH: Final = 25
_TEXT_BYTES: Final = 96
# Initial capacity of the list of processes, so that usually no extra call is needed to get their number.
_ROOM: Final = 32
_ENLARGEMENTS: Final = 3
# The driver's value for "not available" on Windows and under some hypervisors.
_NOT_AVAILABLE: Final = 2**64 - 1


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _OldProcess(ctypes.Structure):
    """The layout used by drivers without support for slices (MIG)."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (*_OldProcess._fields_, ("gpu_instance", c_uint), ("compute_instance", c_uint))


# Newest first: a driver provides the newest version of a function that it knows, and most of the older versions.
_PROCESS_LISTS: Final = (("_v3", _Process), ("_v2", _Process), ("", _OldProcess))


class CardMemory(NamedTuple):
    """Bytes in use on a card by all processes, and the card's capacity in bytes."""

    used: int
    total: int


class Driver:
    """The NVML library. ``open`` returns False if it is missing, does not match the kernel module, or denies access."""

    def __init__(self) -> None:
        self._pid, self._openings = -1, 0
        self._library: Any = None

    def open(self) -> bool:
        """Open the library if necessary, and return True if it is available.

        The library is never closed: closing it in a forked child would also close it for the parent.
        """
        if self._pid != os.getpid():
            self._pid, self._openings = os.getpid(), 0
            self._reopen()
        return self._library is not None

    @property
    def opened(self) -> tuple[int, int]:
        """A value that changes when the library is reopened. All earlier handles are then invalid."""
        return self._pid, self._openings

    def version(self) -> str | None:
        """Return the driver's version."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """Return the number of cards in the machine."""
        return self._number("nvmlDeviceGetCount_v2") or 0

    def card_at(self, index: int) -> Any | None:
        return self._handle("nvmlDeviceGetHandleByIndex_v2", c_uint(index))

    def card_by_uuid(self, uuid: str) -> Any | None:
        """Return the handle of the card or slice (MIG) with this UUID."""
        return self._handle("nvmlDeviceGetHandleByUUID", c_char_p(uuid.encode()))

    def name(self, card: Any) -> str | None:
        return self._text("nvmlDeviceGetName", card)

    def uuid(self, card: Any) -> str | None:
        return self._text("nvmlDeviceGetUUID", card)

    def memory(self, card: Any) -> CardMemory | None:
        memory = _Memory()
        if not self._succeeds("nvmlDeviceGetMemoryInfo", card, byref(memory)):
            return None
        return CardMemory(memory.used, memory.total)

    def compute_processes(self, card: Any) -> list[tuple[int, int | None]]:
        """Return (process ID, bytes) for each process, once per slice that it uses. Unknown bytes are None."""
        return self._processes("nvmlDeviceGetComputeRunningProcesses", card)

    def mps_processes(self, card: Any) -> list[tuple[int, int | None]]:
        """Return the processes under the Multi-Process Service, in the form of `compute_processes`."""
        return self._processes("nvmlDeviceGetMPSComputeRunningProcesses", card)

    def is_partitioned(self, card: Any) -> bool:
        """Return True if the card is split into slices (MIG)."""
        current, pending = c_uint(), c_uint()
        is_known = self._succeeds("nvmlDeviceGetMigMode", card, byref(current), byref(pending))
        return is_known and current.value == 1

    def slices(self, card: Any) -> list[Any]:
        """Return the handles of a partitioned card's slices."""
        places = self._number("nvmlDeviceGetMaxMigDeviceCount", card) or 0
        found = (
            self._handle("nvmlDeviceGetMigDeviceHandleByIndex", card, c_uint(place))
            for place in range(places)
        )
        return [each for each in found if each is not None]

    def instances(self, part: Any) -> tuple[int | None, int | None]:
        """Return a slice's GPU instance ID and compute instance ID."""
        return (
            self._number("nvmlDeviceGetGpuInstanceId", part),
            self._number("nvmlDeviceGetComputeInstanceId", part),
        )

    def _processes(self, function: str, card: Any) -> list[tuple[int, int | None]]:
        for suffix, layout in _PROCESS_LISTS:
            code, listed = self._list(function + suffix, layout, card)
            if code not in (_FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH):
                return listed
        return []

    def _list(
        self, function: str, layout: type[Any], card: Any
    ) -> tuple[int, list[tuple[int, int | None]]]:
        room, code = _ROOM, _INSUFFICIENT_SIZE
        for _ in range(_ENLARGEMENTS):
            count, found = c_uint(room), (layout * room)()
            code = self._call(function, card, byref(count), found)
            if code != _INSUFFICIENT_SIZE:
                break
            # Leave room for processes that start before the next call.
            room = 2 * max(room, count.value)
        if code != _SUCCESS:
            return code, []
        return code, [
            (each.pid, None if each.used == _NOT_AVAILABLE else each.used)
            for each in found[: count.value]
        ]

    def _handle(self, function: str, *arguments: Any) -> Any | None:
        handle = c_void_p()
        return handle if self._succeeds(function, *arguments, byref(handle)) else None

    def _number(self, function: str, *arguments: Any) -> int | None:
        number = c_uint()
        return number.value if self._succeeds(function, *arguments, byref(number)) else None

    def _text(self, function: str, *arguments: Any) -> str | None:
        text = create_string_buffer(_TEXT_BYTES)
        found = self._succeeds(function, *arguments, text, c_uint(_TEXT_BYTES))
        return text.value.decode(errors="replace") if found else None

    def _succeeds(self, function: str, *arguments: Any) -> bool:
        return self._call(function, *arguments) == _SUCCESS

    def _call(self, function: str, *arguments: Any) -> int:
        try:
            call = getattr(self._library, function)
        except AttributeError:
            # The driver is too old for this function, or the library could not be reopened.
            return _FUNCTION_NOT_FOUND
        code = int(call(*arguments))
        if code == _UNINITIALIZED:
            self._reopen()
        return code

    def _reopen(self) -> None:
        self._openings += 1
        self._library = _open_library() if self._openings <= _OPENINGS_LIMIT else None


def _open_library() -> Any | None:
    try:
        library = ctypes.CDLL(_LIBRARY)
        code = int(library.nvmlInit_v2())
    except (OSError, AttributeError):
        return None
    return library if code == _SUCCESS else None
