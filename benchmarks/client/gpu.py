"""The CUDA and NVML probes against known allocations, for a machine with an NVIDIA card and torch:

    python -m benchmarks.client.gpu

Each line has what was done, what a probe should read, what it read, and how far it may be off. Exits with 1 when one is
off by more, with 0 without a device. Takes about 4 GiB of device memory and a few seconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leakline.probes.cuda import read_cuda
from leakline.probes.nvml import read_nvml

MIB: Final = 2**20
GIB: Final = 2**30
# torch rounds requests up to 512 bytes and takes blocks of 2 or 20 MiB from the driver, which hands out 2 MiB pages.
ROUNDING: Final = 2 * MIB
# Kernels that are loaded at their first use take memory too, outside the allocator.
MODULES: Final = 64 * MIB
# A context on the cards and drivers of these years.
CONTEXT: Final = (64 * MIB, 4 * GIB)
# Smaller than 10 MiB and larger than 1: torch cuts five of them from one block of 20 MiB.
PIECE: Final = 4 * MIB
PIECES: Final = 250
BLOCK: Final = 20 * MIB
CALLS: Final = 200
DEVICE: Final = "cuda:0"
# Where the driver's process numbers are not ours, these are absent, and rightly so.
NOT_ALWAYS_TOLD: Final = ("gpu.0.process_bytes", "gpu.0.outside_bytes")


@dataclass(frozen=True, slots=True)
class Check:
    """``read`` may lie between ``low`` and ``high``. None: not told, which only ``may_be_absent`` allows."""

    what: str
    low: float
    high: float
    read: float | None
    may_be_absent: bool = False

    @property
    def holds(self) -> bool:
        if self.read is None:
            return self.may_be_absent
        return self.low <= self.read <= self.high

    def __str__(self) -> str:
        read = "not told" if self.read is None else f"{self.read:,.0f}"
        sign = "OFF" if not self.holds else "-" if self.read is None else "ok"
        return f"{sign:<4}{self.what:<58}{self.low:>18,.0f} {self.high:>18,.0f} {read:>18}"


class Readings:
    """What the probes read of device 0, and how that changed with the last step."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.now = self.before = self._read()

    def step(self, what: str) -> None:
        self._torch.cuda.synchronize()
        self._what = what
        self.before, self.now = self.now, self._read()

    def level(self, series: str, low: float, high: float) -> Check:
        return Check(f"awake: {series}", low, high, self.now.get(series), series in NOT_ALWAYS_TOLD)

    def grew(self, series: str, by: float, off: float = 0) -> Check:
        """By this much since the step before, in bytes or failures."""
        known = series in self.now and series in self.before
        change = self.now[series] - self.before[series] if known else None
        may_be_absent = series in NOT_ALWAYS_TOLD
        return Check(f"{self._what}: {series}", by - off, by + off, change, may_be_absent)

    def _read(self) -> dict[str, float]:
        return {**read_cuda(), **read_nvml()}


def checks(torch: Any) -> Iterator[Check]:
    yield from _asleep(torch)
    torch.zeros(1, device=DEVICE)
    readings = Readings(torch)
    yield from _awake(torch, readings)
    yield from _four_tensors(torch, readings)
    yield from _fragments(torch, readings)
    yield from _beside_the_allocator(readings)
    yield from _too_much(torch, readings)
    yield _in_a_forked_child()


def _asleep(torch: Any) -> Iterator[Check]:
    yield Check("asleep: samples of cuda", 0, 0, len(read_cuda()))
    read_nvml()
    yield Check("asleep: CUDA was woken by the probes", 0, 0, int(torch.cuda.is_initialized()))


def _awake(torch: Any, readings: Readings) -> Iterator[Check]:
    total = torch.cuda.get_device_properties(0).total_memory
    free, seen = torch.cuda.mem_get_info(0)
    # torch leaves out what the driver keeps for itself.
    yield readings.level("gpu.0.total_bytes", total, 1.05 * total)
    yield readings.level("gpu.0.used_bytes", seen - free - MODULES, seen - free + 0.05 * seen)
    yield readings.level("gpu.0.outside_bytes", *CONTEXT)
    others = [name for name in readings.now if name.split(".")[1] != "0"]
    yield Check("awake: samples of devices that are not in use", 0, 0, len(others))


def _four_tensors(torch: Any, readings: Readings) -> Iterator[Check]:
    kept = [torch.empty(GIB // 4, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
    readings.step("1 GiB in 4 tensors")
    for name in ("allocated", "active", "reserved"):
        yield readings.grew(f"cuda.0.{name}_bytes", GIB, 4 * ROUNDING)
    yield readings.grew("gpu.0.process_bytes", GIB, MODULES)
    yield readings.grew("gpu.0.outside_bytes", 0, MODULES)
    kept.clear()
    readings.step("tensors dropped")
    yield readings.grew("cuda.0.allocated_bytes", -GIB, 4 * ROUNDING)
    yield readings.grew("cuda.0.reserved_bytes", 0)
    torch.cuda.empty_cache()
    readings.step("cache emptied")
    yield readings.grew("cuda.0.reserved_bytes", -GIB, 4 * ROUNDING)
    yield readings.grew("gpu.0.process_bytes", -GIB, MODULES)


def _fragments(torch: Any, readings: Readings) -> Iterator[Check]:
    pieces = [torch.empty(PIECE, dtype=torch.uint8, device=DEVICE) for _ in range(PIECES)]
    readings.step("250 pieces of 4 MiB")
    yield readings.grew("cuda.0.allocated_bytes", PIECES * PIECE, ROUNDING)
    del pieces[::2]
    readings.step("every second piece dropped")
    half = PIECES // 2 * PIECE
    yield readings.grew("cuda.0.allocated_bytes", -half, ROUNDING)
    yield readings.grew("cuda.0.inactive_split_bytes", half, BLOCK)
    yield readings.grew("cuda.0.reserved_bytes", 0)
    torch.cuda.empty_cache()
    readings.step("cache emptied, fragments stay")
    yield readings.grew("cuda.0.reserved_bytes", 0, BLOCK)
    pieces.clear()
    torch.cuda.empty_cache()
    readings.step("pieces dropped")
    yield readings.grew("cuda.0.reserved_bytes", -PIECES * PIECE, BLOCK)


def _beside_the_allocator(readings: Readings) -> Iterator[Check]:
    """512 MiB from the driver itself, as libraries take them."""
    driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(GIB // 2))
    yield Check("512 MiB from the driver: its answer", 0, 0, code)
    readings.step("512 MiB from the driver")
    yield readings.grew("cuda.0.reserved_bytes", 0)
    yield readings.grew("gpu.0.outside_bytes", GIB // 2, ROUNDING)
    yield readings.grew("gpu.0.used_bytes", GIB // 2, MODULES)
    driver.cuMemFree_v2(address)
    readings.step("given back")
    yield readings.grew("gpu.0.outside_bytes", -GIB // 2, ROUNDING)


def _too_much(torch: Any, readings: Readings) -> Iterator[Check]:
    """Under a limit of 2 GiB: a request that fits once the cache is emptied, and one that never does."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2 * GIB / total, 0)
    cached = torch.empty(GIB, dtype=torch.uint8, device=DEVICE)
    del cached
    fits = torch.empty(GIB + GIB // 2, dtype=torch.uint8, device=DEVICE)
    readings.step("fits once the cache is emptied")
    yield readings.grew("cuda.0.retries", 1)
    yield readings.grew("cuda.0.ooms", 0)
    with suppress(RuntimeError):
        torch.empty(4 * GIB, dtype=torch.uint8, device=DEVICE)
    readings.step("never fits")
    yield readings.grew("cuda.0.ooms", 1)
    del fits
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def _in_a_forked_child() -> Check:
    """The allocator is the parent's; the driver may be asked, of the child."""
    child = os.fork()
    if child == 0:
        mine = [
            name for name in (*read_cuda(), *read_nvml()) if "process" in name or "cuda" in name
        ]
        os._exit(len(mine))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Check("forked child: samples of its own on the device", 0, 0, code)


def _cost(name: str, read: Callable[[], object]) -> str:
    started, cpu = time.perf_counter(), time.thread_time()
    for _ in range(CALLS):
        read()
    wall, cpu = time.perf_counter() - started, time.thread_time() - cpu
    return f"{name}: {1e6 * wall / CALLS:,.1f} microseconds a reading, {1e6 * cpu / CALLS:,.1f} of processor time"


def main() -> int:
    torch = _torch()
    # Counted without waking CUDA: the first checks want it asleep.
    if torch is None or torch.version.hip is not None or not torch.cuda.device_count():
        print("no CUDA device: not measured")
        return 0
    print(
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.device_count()} devices"
    )
    print(f"{'':<4}{'step: series':<58}{'at least':>18} {'at most':>18} {'read':>18}")
    off = 0
    for check in checks(torch):
        print(check, flush=True)
        off += not check.holds
    print(_cost("read_cuda", read_cuda))
    print(_cost("read_nvml", read_nvml))
    namespace = Path("/proc/self/ns/pid")
    place = namespace.readlink() if namespace.is_symlink() else "none"
    print(f"{torch.cuda.get_device_name(0)}, namespace of process numbers {place}")
    print(f"{off} readings off" if off else "all as expected")
    return 1 if off else 0


def _torch() -> Any | None:
    try:
        import torch
    except ImportError:
        return None
    return torch


if __name__ == "__main__":
    sys.exit(main())
