"""The names of series, what each counts and when it is there: docs/reference/series.md is written from this.

A part in angle brackets stands for what the program brings with it: a device's number, a type's full name, a phase.
What is not known is absent from a snapshot, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Name(NamedTuple):
    """``pattern`` is the name itself where nothing in it varies."""

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

# Heading -> when they are there, and which.
FAMILIES: Final[dict[str, tuple[str, tuple[Name, ...]]]] = {
    "The process": (
        "At every phase end, from the kernel.",
        (
            Name("process.rss_bytes", "resident memory: anonymous, file-backed and shared pages together"),
            Name("process.anon_bytes", "anonymous memory: what the program allocated. Leaks live here"),
            Name("process.file_bytes", "pages of mapped files and libraries"),
            Name("process.shared_bytes", "shared memory, as handed over between loader workers"),
            Name("process.swap_bytes", "what the kernel has moved to disk"),
            Name("process.vms_bytes", "addresses asked for, touched or not"),
            Name("process.peak_bytes", "the highest resident memory since the snapshot before"),
            Name("process.phase_peak_bytes", "the highest while the phase was open"),
            Name("process.threads", "threads"),
            Name("process.open_files", "open descriptors"),
        ),
    ),
    "Children": (
        "Where the process has started others. A role is `loader_workers`, `ranks` or `others`; one that nobody has is "
        "absent. The 16 largest children are listed one by one, as `loader_worker-0`, `rank_1`, by the name that the "
        "program gave it with multiprocessing or by its script; the rest together as `other`.",
        (
            Name("children.count", "child processes"),
            Name("children.pss_bytes", "their memory, shared pages split among those that share them"),
            Name("children.uss_bytes", "their memory that nobody else has"),
            Name("children.<role>.count", "child processes of a role"),
            Name("children.<role>.pss_bytes", "proportional memory of a role"),
            Name("children.<role>.uss_bytes", "unique memory of a role"),
            Name("children.process.<name>.pss_bytes", "proportional memory of one child"),
            Name("children.process.<name>.uss_bytes", "unique memory of one child"),
            Name("children.process.other.count", "children that have no series of their own"),
        ),
    ),
    "The allocator of the C library": (
        "With glibc 2.33 and newer, or what psutil tells.",
        (
            Name("allocator.in_use_bytes", "handed out and not freed"),
            Name("allocator.kept_bytes", "freed, and not given back to the kernel"),
        ),
    ),
    "The container and the machine": (
        "The container's where it has a memory limit.",
        (
            Name("cgroup.used_bytes", "memory that counts against the limit"),
            Name("cgroup.active_file_bytes", "of it active file pages, which the kernel may still drop"),
            Name("cgroup.limit_bytes", "the limit by which the kernel kills"),
            Name("cgroup.kills", "processes of the group killed for memory"),
            Name("system.total_bytes", "memory of the machine"),
            Name("system.available_bytes", "what the kernel could still give"),
        ),
    ),
    "Devices": (
        "Of devices that the program uses. `cuda` is what PyTorch's allocator says, `gpu` the driver, `mps` Metal.",
        (
            Name("cuda.<i>.allocated_bytes", "live tensors"),
            Name("cuda.<i>.active_bytes", "live tensors, and what a stream has not finished with"),
            Name("cuda.<i>.reserved_bytes", "taken from the driver"),
            Name("cuda.<i>.inactive_split_bytes", "free pieces that cannot be given back: fragmentation"),
            Name("cuda.<i>.retries", "allocations tried again after the cache was emptied"),
            Name("cuda.<i>.ooms", "allocations that failed"),
            Name("gpu.<i>.used_bytes", "in use on the device, by everybody"),
            Name("gpu.<i>.total_bytes", "memory of the device"),
            Name("gpu.<i>.process_bytes", "this process's part"),
            Name("gpu.<i>.outside_bytes", "what of it torch did not take: contexts, NCCL, other libraries"),
            Name("mps.allocated_bytes", "live tensors"),
            Name("mps.driver_bytes", "what Metal holds for the process"),
            Name("mps.limit_bytes", "what Metal recommends as the most"),
        ),
    ),
    "Objects": (
        "Counts of classes at every phase end once they rise or are watched; what a look at the heap counts, when "
        "there was one.",
        (
            Name("python.objects", "live objects, at a census"),
            Name("python.blocks", "blocks that the interpreter has handed out; told at most once a second"),
            Name("type.<type>.count", "live instances of a type"),
            Name("type.<type>.bytes", "what they own, at a census"),
            Name("type.<type>.created", "instances made, of a watched class: at least so many, running total"),
            Name("type.<type>.freed", "instances gone, of a watched class: at least so many, running total"),
            Name("arrays.count", "NumPy arrays, each buffer once"),
            Name("arrays.bytes", "memory that they own"),
            Name("arrays.mapped_bytes", "mapped files behind arrays, in no other count"),
            Name("tensors.count", "torch tensors"),
            Name("tensors.bytes", "their storages, each once, on any device"),
            Name("tensors.device_bytes", "the part outside host memory"),
            Name("tensors.graph_count", "tensors that carry an autograd graph"),
            Name("tensors.graph_bytes", "storages that only graphs hold"),
            Name("figures.open", "open figures of matplotlib"),
        ),
    ),
    "Containers": (
        "Those declared with `track`, and those found growing by themselves.",
        (
            Name("tracked.<name>.length", "items"),
            Name("tracked.<name>.capacity", "the declared bound"),
            Name("tracked.<name>.bytes", "what they hold, estimated from samples"),
            Name("tracked.<name>.device_bytes", "the part of it that lies on devices, where any does"),
            Name("container.<path>.length", "items of a container that was found by its path"),
            Name("container.<path>.bytes", "what they hold, estimated from samples"),
        ),
    ),
    "The collector": (
        "What it did is read; it is never asked to run.",
        (
            Name("python.collector_enabled", "whether it runs by itself"),
            Name("python.collector_pending", "objects made since its last look at the youngest"),
            Name("python.collections", "collections, running total"),
            Name("python.collections_full", "those of everything, running total"),
            Name("python.collection_seconds", "time that they took, running total"),
            Name("python.garbage_freed", "objects that they freed, running total"),
            Name("python.garbage_objects", "objects that a collection would free now"),
            Name("python.garbage_bytes", "their own size"),
            Name("python.garbage_looked_at", "of how many objects that was found out"),
            Name("python.garbage_is_whole", "whether those were all"),
        ),
    ),
    "Memory by phase": (
        "At the end of a generation. A phase is the path of its names, or `between`, `other_threads`, `leakline`.",
        (
            Name("generation.seconds", "how long it took"),
            Name("phase.<phase>.bytes", "private memory that it kept, or gave back where negative"),
            Name("phase.<phase>.seconds", "time in it, without what is nested in it"),
            Name("phase.<phase>.executions", "how often it was opened"),
        ),
    ),
    "Your own": (
        "",
        (Name("gauge.<name>", "what `run.gauge` was given"),),
    ),
    "Leakline itself": (
        "What it costs, at every snapshot.",
        (
            Name("client.seconds", "CPU time of measuring, running total"),
            Name("client.background_seconds", "CPU time of recording and sending, running total"),
            Name("client.pause_seconds", "the longest that measuring held the program up, since the snapshot before"),
            Name("client.bytes", "memory that the client takes"),
        ),
    ),
    "JavaScript": (
        "From [trainings with TensorFlow.js](../browser.md), with `process.rss_bytes` in Node.",
        (
            Name("tfjs.tensors", "tensors"),
            Name("tfjs.buffers", "data buffers behind them"),
            Name("tfjs.bytes", "their bytes"),
            Name("tfjs.gpu_bytes", "bytes in textures of WebGL"),
            Name("js.heap_bytes", "the heap of JavaScript"),
            Name("js.page_bytes", "all that the browser counts to the page"),
            Name("js.external_bytes", "outside the heap, in Node"),
            Name("js.array_buffer_bytes", "array buffers, in Node"),
            Name("js.frames_per_second", "frames drawn since the reading before"),
        ),
    ),
}  # fmt: skip


def names() -> Iterator[Name]:
    for _, family in FAMILIES.values():
        yield from family
