"""A machine with GPUs replayed from a file: NVML and ``torch.cuda`` answer and refuse as they do on a real one."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePath
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pynvml as real
import pytest

from leakline.probes.gpu import nvml, nvml_library
from leakline.probes.gpu.device_mapping import Cards
from leakline.probes.gpu.nvml_library import Driver

DATA: Final = Path(__file__).parents[1] / "data"
Json = dict[str, Any]
Play = Callable[["Machine"], "Machine"]
# Stands for the reading process in the files.
OWN_PID: Final = "own"
# The kernel's id of the initial PID namespace, and an id that a container may have.
FIRST_NAMESPACE: Final = "pid:[4026531836]"
CONTAINER_NAMESPACE: Final = "pid:[4026532201]"


class Machine:
    """NVML and the torch modules for one file of ``tests/data``. ``refuse`` makes a function fail."""

    def __init__(self, name: str) -> None:
        self.told: Json = json.loads((DATA / f"gpu_{name}.json").read_text(encoding="utf-8"))
        self.asked: list[str] = []
        self.refused: dict[tuple[str, str | None], int] = {}
        self.openings = 0
        self.nvml = self._library()
        self.modules = self._torch() if "torch" in self.told else {}

    @property
    def expected(self) -> Mapping[str, int]:
        return dict(self.told["expected"])

    def card(self, index: int) -> Json:
        return dict(self.told["nvml"][index])

    def open_library(self) -> Any | None:
        """Replace `leakline.probes.gpu.nvml_library._open_library`."""
        return self.nvml if self.nvml.nvmlInit_v2() == real.NVML_SUCCESS else None

    def refuse(self, question: str, code: int, uuid: str | None = None) -> None:
        """Make the driver answer this question with an error, for one card only when ``uuid`` is given."""
        self.refused[question, uuid] = code

    def _library(self) -> SimpleNamespace:
        """Return the functions that the library exports; like the real ones they fill references."""
        functions: dict[str, Callable[..., int]] = {
            "nvmlInit_v2": self._open,
            "nvmlSystemGetDriverVersion": lambda text, size: _fill(text, "570.86.10"),
            "nvmlDeviceGetCount_v2": lambda count: _set(count, len(self.told["nvml"])),
            "nvmlDeviceGetHandleByIndex_v2": self._card_at,
            "nvmlDeviceGetHandleByUUID": self._card_named,
            "nvmlDeviceGetName": lambda card, text, size: _fill(text, self.part(card)["name"]),
            "nvmlDeviceGetUUID": lambda card, text, size: _fill(text, self.part(card)["uuid"]),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses_v3": partial(self._processes, "processes"),
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": partial(self._processes, "mps_processes"),
            "nvmlDeviceGetMigMode": self._mig_mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda card, count: _set(
                count, 7 if self.part(card).get("slices") else 0
            ),
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice_at,
            "nvmlDeviceGetGpuInstanceId": partial(self._number, "gpu_instance"),
            "nvmlDeviceGetComputeInstanceId": partial(self._number, "compute_instance"),
        }
        return SimpleNamespace(
            **{name: self._asked(name, call) for name, call in functions.items()}
        )

    def _asked(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def ask(*arguments: Any) -> int:
            self.asked.append(name)
            card = arguments[0] if arguments and isinstance(arguments[0], ctypes.c_void_p) else None
            uuid = None if card is None else self.part(card)["uuid"]
            for key in ((name, None), (name, uuid)):
                if key in self.refused:
                    return self.refused[key]
            return call(*arguments)

        return ask

    def part(self, handle: ctypes.c_void_p) -> Json:
        """Return the card or slice with this handle: its position in the list of all of them, counted from 1."""
        return self._parts()[(handle.value or 0) - 1]

    def _parts(self) -> list[Json]:
        slices = [each for card in self.told["nvml"] for each in card.get("slices", [])]
        return [*self.told["nvml"], *slices]

    def _hand_out(self, part: Json, handle: Any) -> int:
        return _set(handle, 1 + next(i for i, each in enumerate(self._parts()) if each is part))

    def _open(self) -> int:
        self.openings += 1
        return real.NVML_SUCCESS

    def _card_at(self, index: ctypes.c_uint, handle: Any) -> int:
        cards = self.told["nvml"]
        if index.value >= len(cards):
            return real.NVML_ERROR_INVALID_ARGUMENT
        return self._hand_out(cards[index.value], handle)

    def _card_named(self, uuid: ctypes.c_char_p, handle: Any) -> int:
        assert uuid.value is not None
        found = [each for each in self._parts() if each["uuid"] == uuid.value.decode()]
        return self._hand_out(found[0], handle) if found else real.NVML_ERROR_NOT_FOUND

    def _memory(self, card: ctypes.c_void_p, memory: Any) -> int:
        told = self.part(card)
        if "total" not in told:
            return real.NVML_ERROR_NOT_SUPPORTED
        memory._obj.total, memory._obj.used = told["total"], told["used"]
        memory._obj.free = told["total"] - told["used"]
        return real.NVML_SUCCESS

    def _processes(self, which: str, card: ctypes.c_void_p, count: Any, found: Any) -> int:
        listed = self.part(card).get(which, [])
        room, count._obj.value = count._obj.value, len(listed)
        if room < len(listed):
            return real.NVML_ERROR_INSUFFICIENT_SIZE
        for place, each in zip(found, listed, strict=False):
            place.pid = os.getpid() if each["pid"] == OWN_PID else each["pid"]
            place.used = 2**64 - 1 if each["used"] == "not available" else each["used"]
        return real.NVML_SUCCESS

    def _number(self, which: str, card: ctypes.c_void_p, number: Any) -> int:
        return _set(number, self.part(card)[which])

    def _mig_mode(self, card: ctypes.c_void_p, current: Any, pending: Any) -> int:
        mode = self.part(card).get("mig")
        if mode is None:
            return real.NVML_ERROR_NOT_SUPPORTED
        return _set(current, mode) or _set(pending, mode)

    def _slice_at(self, card: ctypes.c_void_p, index: ctypes.c_uint, handle: Any) -> int:
        slices = self.part(card).get("slices", [])
        if index.value >= len(slices):
            return real.NVML_ERROR_NOT_FOUND
        return self._hand_out(slices[index.value], handle)

    def _torch(self) -> dict[str, ModuleType]:
        told = self.told["torch"]
        cuda, version, core = map(ModuleType, ("torch.cuda", "torch.version", "torch._C"))
        vars(version).update(hip=told.get("hip"))
        vars(core).update(_cuda_hasPrimaryContext=lambda i: bool(told["devices"][i]["context"]))
        vars(cuda).update(
            is_initialized=lambda: bool(told["initialised"]),
            device_count=self._woken("device_count", lambda: len(told["devices"])),
            get_allocator_backend=lambda: told.get("backend", "native"),
            memory_stats_as_nested_dict=self._woken("memory_stats", self._statistics),
            get_device_properties=self._woken("properties", self._properties),
        )
        return {"torch.cuda": cuda, "torch.version": version, "torch._C": core}

    def _woken(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            # The real module would initialize CUDA here, or fail in a forked child.
            assert self.told["torch"]["initialised"], f"{name} would have woken CUDA"
            return call(*arguments)

        return ask

    def _statistics(self, index: int) -> Json:
        device = self.told["torch"]["devices"][index]
        if self.told["torch"].get("backend") == "pluggable":
            message = "CUDAPluggableAllocator does not yet support getDeviceStats."
            raise RuntimeError(message)
        assert device["context"], "statistics of a device that the program does not use"
        return _nested(device["memory_stats"])

    def _properties(self, index: int) -> Any:
        uuid = self.told["torch"]["devices"][index].get("uuid")
        # Only the text of torch's own type is used.
        return SimpleNamespace() if uuid is None else SimpleNamespace(uuid=PurePath(uuid))


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Return a function that makes the probes see a machine, freshly started and outside containers."""

    def play(machine: Machine) -> Machine:
        monkeypatch.setattr(nvml_library, "_open_library", machine.open_library)
        for name in ("torch", "torch.cuda", "torch.version", "torch._C", "torch.mps"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name, module in machine.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in machine.told.get("environment", {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(nvml, "_driver", Driver())
        monkeypatch.setattr(nvml, "_cards", Cards(nvml._driver))
        enter_namespace(FIRST_NAMESPACE, (os.getpid(),), monkeypatch, tmp_path)
        return machine

    return play


def enter_namespace(
    name: str, pids: Iterable[int], patch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Put the process into this namespace, in which it sees the processes with these numbers."""
    processes = folder / name
    processes.mkdir()
    for pid in pids:
        (processes / str(pid)).mkdir()
    (processes / "namespace").symlink_to(name)
    patch.setattr(nvml, "_NAMESPACE", processes / "namespace")
    patch.setattr(nvml, "_PROCESSES", processes)


def _nested(flat: Mapping[str, int]) -> Json:
    """Convert the result of ``memory_stats()`` to that of ``memory_stats_as_nested_dict()``."""
    found: Json = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = found
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def _set(reference: Any, value: int) -> int:
    reference._obj.value = value
    return real.NVML_SUCCESS


def _fill(text: Any, value: str) -> int:
    text.value = value.encode()
    return real.NVML_SUCCESS
