"""The names of all series with their meanings, from which docs/reference/series.md is generated.

Angle brackets mark the parts of a name that depend on the program: a device index, the full name of a type, a phase.
A value that was not measured is missing from a snapshot, not zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Name(NamedTuple):
    """A series, or all series whose names match ``pattern``."""

    pattern: str
    meaning: str

    @property
    def unit(self) -> str:
        if self.pattern.endswith(("_bytes", ".bytes")):
            return "bytes"
        if self.pattern.endswith("seconds"):
            return "seconds"
        return _UNITS.get(self.pattern, "count")

    def fits(self, series: str) -> bool:
        parts = re.split(r"(<\w+>)", self.pattern)
        wanted = "".join(".+" if part.startswith("<") else re.escape(part) for part in parts)
        return re.fullmatch(wanted, series) is not None


_UNITS: Final = {
    "gauge.<name>": "as given",
    "js.frames_per_second": "per second",
    "python.collector_enabled": "0 or 1",
    "python.garbage_is_whole": "0 or 1",
}

# Heading -> (when the series exist, the series).
FAMILIES: Final[dict[str, tuple[str, tuple[Name, ...]]]] = {
    "The process": (
        "Measured at the end of each phase.",
        (
            Name("process.rss_bytes", "resident memory: anonymous, file-backed and shared pages"),
            Name("process.anon_bytes", "anonymous memory, which the program allocated; most leaks are here"),
            Name("process.file_bytes", "resident pages of mapped files and libraries"),
            Name("process.shared_bytes", "shared memory, such as batches from loader workers"),
            Name("process.swap_bytes", "memory that the kernel moved to disk"),
            Name("process.vms_bytes", "virtual memory"),
            Name("process.peak_bytes", "peak resident memory since the previous snapshot"),
            Name("process.phase_peak_bytes", "peak resident memory during the phase"),
            Name("process.threads", "threads"),
            Name("process.open_files", "open file descriptors"),
        ),
    ),
    "Children": (
        "Measured if there are child processes. A role is `loader_workers`, `ranks` or `others`. The 16 largest "
        "children have series of their own, with names such as `loader_worker-0` or `rank_1`, the multiprocessing name "
        "or the script; the rest are combined as `other`.",
        (
            Name("children.count", "child processes"),
            Name("children.pss_bytes", "proportional memory: each shared page is divided among its users"),
            Name("children.uss_bytes", "memory that no other process shares"),
            Name("children.rss_bytes", "resident memory; a shared page counts for each child"),
            Name("children.<role>.count", "child processes of one role"),
            Name("children.<role>.pss_bytes", "proportional memory of one role"),
            Name("children.<role>.uss_bytes", "unshared memory of one role"),
            Name("children.process.<name>.pss_bytes", "proportional memory of one child"),
            Name("children.process.<name>.uss_bytes", "unshared memory of one child"),
            Name("children.process.other.count", "children without series of their own"),
        ),
    ),
    "The allocator of the C library": (
        "Measured with glibc 2.33 or newer, or if psutil provides the values.",
        (
            Name("allocator.in_use_bytes", "allocated and not freed"),
            Name("allocator.kept_bytes", "freed by the program, but not returned to the kernel"),
        ),
    ),
    "Native memory": (
        "Libraries are read if the program has loaded them, mappings (anonymous pages and swap) while memory rises. "
        "`leakline run --native` samples `malloc` once memory has risen.",
        (
            Name("library.pyarrow.bytes", "memory in use in the default pool"),
            Name("library.sqlite.bytes", "allocated memory"),
            Name("malloc.<library>.bytes", "sampled allocations of a library that are not freed"),
            Name("mapping.heap.bytes", "heap of the C allocator"),
            Name("mapping.anonymous.bytes", "other anonymous memory"),
            Name("mapping.stacks.bytes", "thread stacks"),
            Name("mapping.files.bytes", "modified pages of mapped files"),
        ),
    ),
    "The container and the machine": (
        "These series exist only if the container has a memory limit.",
        (
            Name("cgroup.used_bytes", "memory that counts towards the limit"),
            Name("cgroup.active_file_bytes", "active file pages, which the kernel can drop"),
            Name("cgroup.shmem_bytes", "shared memory"),
            Name("cgroup.slab_bytes", "kernel memory (cgroup v2)"),
            Name("cgroup.slab_unreclaimable_bytes", "the part that cannot be dropped"),
            Name("cgroup.limit_bytes", "memory limit of the container"),
            Name("cgroup.kills", "processes that were killed for memory"),
            Name("system.total_bytes", "memory of the machine"),
            Name("system.available_bytes", "memory that is still available"),
            Name("shm.bytes", "the user's files in /dev/shm"),
            Name("shm.run_bytes", "the part known to be the run's"),
            Name("shm.deleted_bytes", "deleted, but open or mapped"),
            Name("shm.files.<prefix>.bytes", "files by name prefix"),
        ),
    ),
    "Devices": (
        "Measured for devices that the program uses. `cuda` is PyTorch's allocator, `gpu` the driver and `mps` Metal.",
        (
            Name("cuda.<i>.allocated_bytes", "live tensors"),
            Name("cuda.<i>.active_bytes", "live tensors and blocks that a stream still uses"),
            Name("cuda.<i>.reserved_bytes", "memory reserved from the driver"),
            Name("cuda.<i>.inactive_split_bytes", "free parts of blocks that cannot be released (fragmentation)"),
            Name("cuda.<i>.retries", "allocations that were retried after the cache was emptied"),
            Name("cuda.<i>.ooms", "failed allocations"),
            Name("gpu.<i>.used_bytes", "memory in use by all processes"),
            Name("gpu.<i>.total_bytes", "total memory of the device"),
            Name("gpu.<i>.process_bytes", "memory in use by this process"),
            Name("gpu.<i>.outside_bytes", "the part that PyTorch did not reserve: contexts, NCCL, other libraries"),
            Name("pinned.allocated_bytes", "pinned host memory in use"),
            Name("pinned.reserved_bytes", "including PyTorch's cache"),
            Name("mps.allocated_bytes", "live tensors"),
            Name("mps.driver_bytes", "memory that Metal allocated for the process"),
            Name("mps.limit_bytes", "recommended maximum"),
        ),
    ),
    "Objects": (
        "Measured by heap scans. Classes that are watched or whose count rises are counted at the end of each phase.",
        (
            Name("python.objects", "live objects"),
            Name("python.blocks", "memory blocks that the interpreter has allocated; read at most once per second"),
            Name("type.<type>.count", "live instances"),
            Name("type.<type>.bytes", "memory that arrays own"),
            Name("type.<type>.created", "instances of a watched class that were created since the start, at least"),
            Name("type.<type>.freed", "instances of a watched class that were freed since the start, at least"),
            Name("arrays.count", "NumPy arrays; each buffer is counted once"),
            Name("arrays.bytes", "memory that arrays own"),
            Name("arrays.mapped_bytes", "mapped files of arrays, not included above"),
            Name("arrays.written_bytes", "memory of large arrays that were allocated first and written later"),
            Name("arrays.unwritten_bytes", "the part of such arrays that is not written yet and takes no memory"),
            Name("tensors.count", "PyTorch tensors"),
            Name("tensors.bytes", "storages of tensors on all devices; each is counted once"),
            Name("tensors.device_bytes", "the part on devices"),
            Name("tensors.graph_count", "tensors that have an autograd graph"),
            Name("tensors.graph_bytes", "storages that only autograd graphs hold"),
            Name("tensors.graph_depth", "longest chain of autograd nodes, at least"),
            Name("figures.open", "open Matplotlib figures"),
        ),
    ),
    "Containers": (
        "Containers that are declared with `run.track`, or found because they grow.",
        (
            Name("tracked.<name>.length", "items"),
            Name("tracked.<name>.capacity", "declared capacity"),
            Name("tracked.<name>.bytes", "memory of the items, estimated from a sample"),
            Name("tracked.<name>.device_bytes", "the part on devices, if any"),
            Name("container.<path>.length", "items of a growing container that was found"),
            Name("container.<path>.bytes", "memory of the items, estimated from a sample"),
            Name("container.<path>.capacity", "the bound that the program keeps for it"),
        ),
    ),
    "The collector": (
        "Leakline reads the statistics of the garbage collector and never starts a collection.",
        (
            Name("python.collector_enabled", "automatic collection is on"),
            Name("python.collector_pending", "objects created since the youngest generation was last collected"),
            Name("python.collections", "collections since the start"),
            Name("python.collections_full", "full collections since the start"),
            Name("python.collection_seconds", "time spent in collections since the start"),
            Name("python.garbage_freed", "objects freed by collections since the start"),
            Name("python.garbage_objects", "objects that a collection would free now"),
            Name("python.garbage_bytes", "memory of these objects"),
            Name("python.garbage_looked_at", "objects examined to find the garbage"),
            Name("python.garbage_is_whole", "all objects were examined"),
        ),
    ),
    "Memory by phase": (
        "Measured at the end of each generation. A phase is a path of names, `between`, `other_threads` or `leakline`.",
        (
            Name("generation.seconds", "duration of the generation"),
            Name("phase.<phase>.bytes", "private memory that the phase added, or released if negative"),
            Name("phase.<phase>.seconds", "time in the phase, without nested phases"),
            Name("phase.<phase>.executions", "executions of the phase"),
        ),
    ),
    "Your own": (
        "Recorded by the program.",
        (Name("gauge.<name>", "value passed to `run.gauge`"),),
    ),
    "Leakline itself": (
        "Measured with each snapshot.",
        (
            Name("client.seconds", "CPU time of measurements since the start"),
            Name("client.background_seconds", "CPU time of recording and sending since the start"),
            Name("client.pause_seconds", "longest pause of the program by a measurement since the previous snapshot"),
            Name("client.bytes", "memory of the client"),
        ),
    ),
    "JavaScript": (
        "Measured in [trainings with TensorFlow.js](../integrations.md#tensorflowjs). "
        "In Node there is also `process.rss_bytes`.",
        (
            Name("tfjs.tensors", "tensors"),
            Name("tfjs.buffers", "data buffers of tensors"),
            Name("tfjs.bytes", "memory of tensors"),
            Name("tfjs.gpu_bytes", "memory in WebGL textures"),
            Name("js.heap_bytes", "JavaScript heap"),
            Name("js.page_bytes", "all memory that the browser attributes to the page"),
            Name("js.external_bytes", "memory outside the heap (Node)"),
            Name("js.array_buffer_bytes", "array buffers (Node)"),
            Name("js.frames_per_second", "frame rate since the previous reading"),
        ),
    ),
}  # fmt: skip


def names() -> Iterator[Name]:
    for _, family in FAMILIES.values():
        yield from family
