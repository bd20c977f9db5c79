"""A machine with GPUs, played from a file: ``pynvml`` and ``torch.cuda`` as they answer, and refuse, on a real one."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

import pynvml as real
import pytest

from leakline.probes import nvml
from leakline.probes.devices import Cards
from leakline.probes.driver import Driver

DATA: Final = Path(__file__).parents[1] / "data"
Json = dict[str, Any]
# In the files, the process that reads.
OWN_PID: Final = "own"
# The kernel's number of the namespace of its own process numbers, and of one that a container may have.
FIRST_NAMESPACE: Final = "pid:[4026531836]"
CONTAINER_NAMESPACE: Final = "pid:[4026532201]"


class Machine:
    """``pynvml`` and the modules of torch for one file of ``tests/data``. ``refuse`` makes a question fail."""

    def __init__(self, name: str) -> None:
        self.told: Json = json.loads((DATA / f"gpu_{name}.json").read_text(encoding="utf-8"))
        self.asked: list[str] = []
        self.refused: dict[tuple[str, str | None], int] = {}
        self.openings = 0
        self.pynvml = self._binding()
        self.modules = self._torch() if "torch" in self.told else {}

    @property
    def environment(self) -> Mapping[str, str]:
        return dict(self.told.get("environment", {}))

    @property
    def expected(self) -> Mapping[str, int]:
        return dict(self.told["expected"])

    def card(self, index: int) -> Json:
        return dict(self.told["nvml"][index])

    def refuse(self, question: str, code: int, uuid: str | None = None) -> None:
        """The driver answers this question with an error; of one card only, when ``uuid`` is given."""
        self.refused[question, uuid] = code

    def _binding(self) -> ModuleType:
        module = ModuleType("pynvml")
        vars(module).update(
            {name: value for name, value in vars(real).items() if name.startswith("NVML")}
        )
        for name, call in self._questions().items():
            # The binding has what the real one has, and nothing that it has not.
            assert callable(getattr(real, name)), name
            setattr(module, name, self._asked(name, call))
        return module

    def _questions(self) -> dict[str, Callable[..., Any]]:
        return {
            "nvmlInit": self._open,
            "nvmlDeviceGetCount": lambda: len(self.told["nvml"]),
            "nvmlDeviceGetHandleByIndex": self._card_at,
            "nvmlDeviceGetHandleByUUID": self._card_named,
            "nvmlDeviceGetName": lambda card: card["name"],
            "nvmlDeviceGetUUID": lambda card: card["uuid"],
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: _processes(card["processes"]),
            "nvmlDeviceGetMPSComputeRunningProcesses": lambda card: _processes(
                card.get("mps_processes", [])
            ),
            "nvmlDeviceGetMigMode": self._mig_mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7 if card.get("slices") else 0,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice_at,
            "nvmlDeviceGetGpuInstanceId": lambda card: card["gpu_instance"],
            "nvmlDeviceGetComputeInstanceId": lambda card: card["compute_instance"],
        }

    def _asked(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            self.asked.append(name)
            uuid = arguments[0]["uuid"] if arguments and isinstance(arguments[0], dict) else None
            for key in ((name, None), (name, uuid)):
                if key in self.refused:
                    raise real.NVMLError(self.refused[key])
            return call(*arguments)

        return ask

    def _open(self) -> None:
        self.openings += 1

    def _card_at(self, index: int) -> Json:
        return self.card(index) if index < len(self.told["nvml"]) else _fail("INVALID_ARGUMENT")

    def _card_named(self, uuid: str) -> Json:
        slices = [each for card in self.told["nvml"] for each in card.get("slices", [])]
        found = [each for each in [*self.told["nvml"], *slices] if each["uuid"] == uuid]
        return dict(found[0]) if found else _fail("NOT_FOUND")

    def _memory(self, card: Json) -> Any:
        if "total" not in card:
            _fail("NOT_SUPPORTED")
        return real.c_nvmlMemory_t(
            total=card["total"], used=card["used"], free=card["total"] - card["used"]
        )

    def _mig_mode(self, card: Json) -> list[int]:
        return [card["mig"]] * 2 if "mig" in card else _fail("NOT_SUPPORTED")

    def _slice_at(self, card: Json, index: int) -> Json:
        slices = card.get("slices", [])
        return dict(slices[index]) if index < len(slices) else _fail("NOT_FOUND")

    def _torch(self) -> dict[str, ModuleType]:
        told = self.told["torch"]
        cuda, version, core = (
            ModuleType("torch.cuda"),
            ModuleType("torch.version"),
            ModuleType("torch._C"),
        )
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
            # The real one wakes CUDA here, or says in a forked child that it cannot.
            assert self.told["torch"]["initialised"], f"{name} would have woken CUDA"
            return call(*arguments)

        return ask

    def _statistics(self, index: int) -> Json:
        device = self.told["torch"]["devices"][index]
        if self.told["torch"].get("backend") == "pluggable":
            message = "CUDAPluggableAllocator does not yet support getDeviceStats."
            raise RuntimeError(message)
        assert device["context"], "statistics of a device that the program does not use"
        return nested(device["memory_stats"])

    def _properties(self, index: int) -> Any:
        uuid = self.told["torch"]["devices"][index].get("uuid")
        return SimpleNamespace() if uuid is None else SimpleNamespace(uuid=_Uuid(uuid))


def play(machine: Machine, patch: pytest.MonkeyPatch, folder: Path) -> Machine:
    """The probes find this machine, freshly started, with process numbers as they are without containers."""
    patch.setitem(sys.modules, "pynvml", machine.pynvml)
    for name in ("torch", "torch.cuda", "torch.version", "torch._C", "torch.mps"):
        patch.delitem(sys.modules, name, raising=False)
    for name, module in machine.modules.items():
        patch.setitem(sys.modules, name, module)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        patch.delenv(name, raising=False)
    for name, value in machine.environment.items():
        patch.setenv(name, value)
    patch.setattr(nvml, "_driver", Driver())
    patch.setattr(nvml, "_cards", Cards(nvml._driver))
    enter_namespace(FIRST_NAMESPACE, (os.getpid(),), patch, folder)
    return machine


def enter_namespace(
    name: str, pids: Iterable[int], patch: pytest.MonkeyPatch, folder: Path
) -> None:
    """From here on the process is in this namespace and sees the processes with these numbers."""
    processes = folder / name
    processes.mkdir()
    for pid in pids:
        (processes / str(pid)).mkdir()
    (processes / "namespace").symlink_to(name)
    patch.setattr(nvml, "_NAMESPACE", processes / "namespace")
    patch.setattr(nvml, "_PROCESSES", processes)


class _Uuid:
    """As torch's own type: only its text is of use."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def nested(flat: Mapping[str, int]) -> Json:
    """``memory_stats()`` as ``memory_stats_as_nested_dict()`` has it."""
    found: Json = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = found
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def _processes(listed: list[Json]) -> list[Any]:
    """As the binding makes them of the driver's structures: memory that is not told becomes None."""
    found = []
    for each in listed:
        pid = os.getpid() if each["pid"] == OWN_PID else each["pid"]
        told = each["used"]
        size = ctypes.c_ulonglong(-1).value if told == "not available" else told
        raw = real.c_nvmlProcessInfo_t(pid=pid, usedGpuMemory=size)
        process = real.nvmlStructToFriendlyObject(raw)
        if each.get("binding") != "raw" and process.usedGpuMemory == 2**64 - 1:
            process.usedGpuMemory = None
        found.append(process)
    return found


def _fail(error: str) -> NoReturn:
    raise real.NVMLError(getattr(real, f"NVML_ERROR_{error}"))
