"""A machine with one simulated GPU for an entire process: torch's allocator over host memory, and a driver.

`install` makes ``device="cuda:0"`` mean host memory, and counts it as torch's caching allocator does: segments of 2
and 20 MiB, best fit, splitting and merging. It cannot show what depends on hardware. The given folder holds one file
for each process on the card with the memory it uses.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

MIB: Final = 2**20
TOTAL: Final = 80 * 2**30
CONTEXT: Final = 500 * MIB
UUID: Final = "8932f937-d72c-4106-c12f-20bd9faed9f6"
DEVICE: Final = "cuda:0"
# Pauses are shorter by this factor.
SPEED_UP: Final = 5


class Block:
    def __init__(self, size: int, neighbours: list[Block]) -> None:
        self.size, self.neighbours, self.used = size, neighbours, 0

    @property
    def small(self) -> bool:
        return sum(block.size for block in self.neighbours) == 2 * MIB


class Allocator:
    """torch's caching allocator, in which a segment is a list of blocks."""

    def __init__(self) -> None:
        self.segments: list[list[Block]] = []
        self.limit, self.retries, self.ooms = TOTAL, 0, 0

    @property
    def blocks(self) -> list[Block]:
        return list(chain.from_iterable(self.segments))

    @property
    def reserved(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def allocated(self) -> int:
        return sum(block.used for block in self.blocks)

    @property
    def split(self) -> int:
        return sum(b.size for b in self.blocks if not b.used and len(b.neighbours) > 1)

    def take(self, size: int) -> Block:
        size = -(-max(size, 1) // 512) * 512
        is_small = size <= MIB
        fitting = [b for b in self.blocks if not b.used and b.size >= size and b.small == is_small]
        block = min(fitting, key=lambda b: b.size) if fitting else self._segment(size)
        rest = block.size - size
        if rest >= 512 if is_small else rest > MIB:
            place = block.neighbours.index(block)
            block.neighbours.insert(place + 1, Block(rest, block.neighbours))
            block.size = size
        block.used = size
        return block

    def give_back(self, block: Block) -> None:
        block.used = 0
        segment = block.neighbours
        for a, b in reversed(list(pairwise(segment))):
            if not a.used and not b.used:
                a.size += b.size
                segment.remove(b)

    def empty(self) -> None:
        self.segments = [s for s in self.segments if len(s) > 1 or s[0].used]

    def _segment(self, size: int) -> Block:
        whole = 2 * MIB if size <= MIB else 20 * MIB
        if size >= 10 * MIB:
            whole = -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + whole > self.limit:
            self.retries += 1
            self.empty()
        if self.reserved + whole > self.limit:
            self.ooms += 1
            raise RuntimeError("CUDA out of memory")
        segment: list[Block] = []
        segment.append(Block(whole, segment))
        self.segments.append(segment)
        return segment[0]


class Card:
    """The device of this process, and what other processes use of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pid = folder, os.getpid()
        self.allocator, self.outside = Allocator(), 0
        self.initialised = False

    def change(self) -> None:
        """Publish to the other processes how much this one uses."""
        if os.getpid() == self.pid:
            used = CONTEXT + self.allocator.reserved + self.outside
            (self.folder / str(self.pid)).write_text(str(used))

    def processes(self) -> dict[int, int]:
        alive = [f for f in self.folder.iterdir() if Path("/proc", f.name, "maps").is_file()
                 and Path("/proc", f.name, "stat").read_text().split()[2] != "Z"]  # fmt: skip
        return {int(f.name): int(f.read_text() or 0) for f in alive}

    def statistics(self) -> dict[str, Any]:
        a = self.allocator
        current = {"allocated": a.allocated, "active": a.allocated, "reserved": a.reserved}
        current["inactive_split"] = a.split
        found: dict[str, Any] = {f"{n}_bytes": {"all": {"current": v}} for n, v in current.items()}
        return {**found, "num_alloc_retries": a.retries, "num_ooms": a.ooms}

    def hold(self, tensor: Any) -> Any:
        self.initialised = True
        block = self.allocator.take(tensor.untyped_storage().nbytes())
        weakref.finalize(tensor, self._drop, block)
        self.change()
        return tensor

    def _drop(self, block: Block) -> None:
        self.allocator.give_back(block)
        self.change()


def install(folder: Path) -> None:
    """Make the card visible to this process and to torch in it."""
    import torch

    from leakline.probes.gpu import device_mapping, nvml_library

    card = Card(folder)
    memory = card.allocator
    for name in ("empty", "zeros", "randn"):
        setattr(torch, name, partial(_made, card, getattr(torch, name)))
    to = torch.nn.Module.to
    torch.nn.Module.to = lambda module, *where: (
        _moved(card, module) if where == (DEVICE,) else to(module, *where)
    )
    # A matrix product on the host is slow, and no check uses its result.
    torch.nn.Linear.forward = lambda layer, given: given * layer.weight[0] + layer.bias

    def empty_cache() -> None:
        memory.empty()
        card.change()

    cuda = torch.cuda
    fakes: dict[str, Any] = {
        "is_initialized": lambda: card.initialised and os.getpid() == card.pid,
        "device_count": lambda: 1,
        "memory_stats_as_nested_dict": lambda index: card.statistics(),
        "get_allocator_backend": lambda: "native",
        "get_device_properties": lambda index: SimpleNamespace(uuid=UUID, total_memory=TOTAL),
        "get_device_name": lambda index: "Simulated GPU",
        "mem_get_info": lambda index: (TOTAL - sum(card.processes().values()), TOTAL),
        "synchronize": lambda: None,
        "empty_cache": empty_cache,
        "set_per_process_memory_fraction": lambda share, index: setattr(
            memory, "limit", share * TOTAL
        ),
    }
    for name, fake in fakes.items():
        setattr(cuda, name, fake)
    torch.version.cuda = "0.0"
    torch._C._cuda_hasPrimaryContext = lambda index: card.initialised
    torch.Tensor.is_pinned = lambda tensor: True
    nvml_library._open_library = lambda: _library(card)
    ctypes.CDLL = partial(_loaded, card, ctypes.CDLL)
    assert device_mapping.cuda_in_use() is None


def hurry() -> None:
    """Shorten the pauses of trainings and readings: this card is never as slow as a real one."""
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(seconds / SPEED_UP)
    os.environ["LEAKLINE_SAMPLE_SECONDS"] = str(1 / SPEED_UP)


def _made(
    card: Card, make: Any, *shape: Any, device: Any = None, pin_memory: bool = False, **more: Any
) -> Any:
    made = make(*shape, **more)
    return card.hold(made) if device is not None and str(device) == DEVICE else made


def _moved(card: Card, module: Any) -> Any:
    for parameter in module.parameters():
        card.hold(parameter)
    return module


def _loaded(card: Card, load: Any, name: str, *more: Any, **options: Any) -> Any:
    return _cuda_driver(card) if name == "libcuda.so.1" else load(name, *more, **options)


def _cuda_driver(card: Card) -> SimpleNamespace:
    def take(address: Any, size: Any) -> int:
        card.outside += size.value
        address._obj.value = size.value
        card.change()
        return 0

    def give_back(address: Any) -> int:
        card.outside -= address.value
        card.change()
        return 0

    return SimpleNamespace(cuMemAlloc_v2=take, cuMemFree_v2=give_back)


def _library(card: Card) -> SimpleNamespace:
    def put(reference: Any, value: int) -> int:
        reference._obj.value = value
        return 0

    def memory(handle: Any, found: Any) -> int:
        found._obj.total, found._obj.used = TOTAL, sum(card.processes().values())
        return 0

    def processes(handle: Any, count: Any, found: Any) -> int:
        listed = card.processes()
        for place, (pid, used) in zip(found, listed.items(), strict=False):
            place.pid, place.used = pid, used
        return put(count, len(listed))

    def version(text: Any, size: Any) -> int:
        text.value = b"570.86.10"
        return 0

    return SimpleNamespace(
        nvmlSystemGetDriverVersion=version,
        nvmlDeviceGetCount_v2=lambda count: put(count, 1),
        nvmlDeviceGetHandleByIndex_v2=lambda index, handle: put(handle, 1),
        nvmlDeviceGetHandleByUUID=lambda uuid, handle: (
            put(handle, 1) if uuid.value == f"GPU-{UUID}".encode() else 6
        ),
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses_v3=processes,
    )
