"""This process's memory and its peaks, as counted by the operating system, the C allocator and libraries.

Anonymous resident memory plus swap is the memory that the program itself has requested. No other process affects this
number, and a leak increases it. File-backed and shared pages are reported separately, because the kernel may drop them.

The C allocator reports the memory in use and the free memory that it keeps. If a process's resident memory grows while
``allocator.in_use_bytes`` is constant, the process does not leak: the allocator keeps free pages and does not return
them to the system. The numbers come from glibc's ``mallinfo2`` (2.33 and newer), or from psutil if glibc does not have
this function.

``mallinfo2`` adds up the arenas of all threads (although its manual page says otherwise) and individually mapped
blocks. It does not include Python's own arenas for objects up to 512 bytes, which are mapped without malloc. Blocks in
a thread's cache (at most 7 of each small size) count as in use. If another allocator, for example jemalloc or tcmalloc,
replaces glibc's allocator, the numbers are nearly zero. The call releases the interpreter lock and visits every free
block, which takes 0.2 microseconds per block, or tens of milliseconds for hundreds of thousands of blocks. If the call
is slow, callers limit it to a time budget.

The peak is the highest resident memory between two snapshots. It has two sources. The kernel keeps the process's
high-water mark (``VmHWM``), which only rises. It therefore shows even a short peak, but only if the peak is the highest
so far. Lower peaks are detected if a background reading happens during the peak. With ``exact``, the mark is reset
after each reading (by writing ``5`` to ``/proc/self/clear_refs``) and is then the exact peak since the last reading.
The reset must be requested, because the program or its other tools may use the mark.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from leakline.snapshot import Number

from .kernel_file import KeptFile

PROC: Final = Path("/proc")
_PAGE_BYTES: Final[int] = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

# Lines of /proc/self/status: prefix, length of the prefix, end of the value, metric, and factor that converts to bytes.
_STATUS: Final = tuple(
    (f"\n{key}:".encode(), len(key) + 2, b" kB" if factor > 1 else b"\n", name, factor)
    for key, name, factor in (
        ("VmSize", "process.vms_bytes", 1024),
        ("VmHWM", "process.peak_bytes", 1024),
        ("VmRSS", "process.rss_bytes", 1024),
        ("RssAnon", "process.anon_bytes", 1024),
        ("RssFile", "process.file_bytes", 1024),
        ("RssShmem", "process.shared_bytes", 1024),
        ("VmSwap", "process.swap_bytes", 1024),
        ("Threads", "process.threads", 1),
    )
)


class _OwnFiles:
    """Kernel files about a process, usually this process.

    In a forked child, even the first call returns correct results.
    """

    def __init__(self, proc: Path = PROC, who: str = "self") -> None:
        self._statm = KeptFile(f"{proc}/{who}/statm", 128)
        self._status = KeptFile(f"{proc}/{who}/status")
        self._folder = proc / who / "fd"
        # True once the size of the ``fd`` directory is known to be the number of open files (kernel 6.2 and newer).
        self._size_is_known = False
        # statm does not include swap. Reading status costs five times as much, so status is read only if the machine
        # has swap.
        self._has_swap: bool | None = None

    def read_status(self) -> bytes | None:
        """Return the content of ``status``, preceded by a newline, or None without procfs."""
        status = self._status.read()
        if status is not None and b"VmRSS:" not in status:
            status = self._status.read_anew()
        return None if status is None else b"\n" + status

    def read_private_bytes(self) -> int | None:
        """Return anonymous resident bytes plus swap, or None without procfs."""
        pages = self._pages()
        if pages is None:
            return None
        private = (pages[0] - pages[1]) * _PAGE_BYTES
        if self._has_swap is None:
            self._has_swap = _has_swap()
        if self._has_swap:
            private += _swap_bytes(self.read_status() or b"")
        return private

    def read_resident_bytes(self) -> int | None:
        pages = self._pages()
        return None if pages is None else pages[0] * _PAGE_BYTES

    def _pages(self) -> tuple[int, int] | None:
        """Return the numbers of resident pages and of file-backed or shared pages, or None without procfs."""
        statm = self._statm.read()
        if statm is None:
            return None
        try:
            return _resident_and_shared(statm)
        except ValueError:
            return _resident_and_shared(self._statm.read_anew() or b"")

    def count_open_files(self) -> int | None:
        """Return the number of open descriptors, or None without procfs."""
        try:
            size = self._folder.stat().st_size
            if self._size_is_known:
                return size
            count = _count_entries(self._folder)
        except OSError:
            return None
        self._size_is_known = size == count
        return count


_own = _OwnFiles()


def read_process(proc: Path = PROC) -> dict[str, Number]:
    """Return ``process.*`` of this process, in bytes and counts. Values that the system does not report are absent.

    ``process.peak_bytes`` is the highest resident memory since the process began. `PeakMemory` reports the peak of an
    interval.
    """
    own = _own if proc is PROC else _OwnFiles(proc)
    status = own.read_status()
    if status is None:
        return _process_by_psutil()
    return _samples(own, status, proc / "self")


class OtherProcess:
    """The memory of another process, read from outside."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._files, self._folder = _OwnFiles(proc, str(pid)), proc / str(pid)

    def read(self) -> dict[str, Number]:
        """Return ``process.*`` like `read_process`, or {} if the process has exited or has no memory of its own."""
        status = self._files.read_status()
        if status is None or b"VmRSS:" not in status:
            return {}
        return _samples(self._files, status, self._folder)


def _samples(own: _OwnFiles, status: bytes, folder: Path) -> dict[str, Number]:
    samples: dict[str, Number] = {}
    for key, length, end, name, factor in _STATUS:
        at = status.find(key)
        if at >= 0:
            samples[name] = int(status[at + length : status.find(end, at + 1)]) * factor
    if "process.anon_bytes" not in samples and "process.rss_bytes" in samples:
        samples.update(_split_by_statm(folder))
    open_files = own.count_open_files()
    if open_files is not None:
        samples["process.open_files"] = open_files
    return samples


def read_peak_bytes() -> int | None:
    """Return the highest resident bytes since the process began, from the kernel. A call takes about 6 microseconds."""
    status = _own.read_status()
    if status is None:
        peak = _peak_by_resource().get("process.peak_bytes")
        return None if peak is None else int(peak)
    at = status.find(b"\nVmHWM:")
    return int(status[at + 7 : status.find(b" kB", at)]) * 1024 if at >= 0 else None


def read_private_bytes() -> int:
    """Return this process's anonymous resident bytes plus swap, or its RSS if the anonymous part is unknown.

    A call takes about 2 microseconds on Linux. In a forked child, even the first call returns a correct result.
    """
    private = _own.read_private_bytes()
    return private if private is not None else _private_by_psutil()


def _read_resident_bytes() -> int | None:
    """Return this process's resident bytes, or None without procfs. A call takes about 2 microseconds."""
    return _own.read_resident_bytes()


def _resident_and_shared(statm: bytes) -> tuple[int, int]:
    _, resident, shared, _ = statm.split(None, 3)
    return int(resident), int(shared)


def _split_by_statm(folder: Path) -> dict[str, Number]:
    # On kernels before 4.5 and in some sandboxes, status has no Rss* lines; statm counts file and shared pages
    # together.
    try:
        fields = (folder / "statm").read_bytes().split()
    except OSError:
        return {}
    shared = int(fields[2]) * _PAGE_BYTES
    return {
        "process.anon_bytes": int(fields[1]) * _PAGE_BYTES - shared,
        "process.file_bytes": shared,
    }


def _swap_bytes(status: bytes) -> int:
    at = status.find(b"VmSwap:")
    return int(status[at + 7 : status.index(b"kB", at)]) * 1024 if at >= 0 else 0


def _has_swap() -> bool:
    try:
        meminfo = (PROC / "meminfo").read_bytes()
    except OSError:
        return False
    at = meminfo.find(b"SwapTotal:")
    return at >= 0 and int(meminfo[at + 10 :].split(None, 1)[0]) > 0


def _count_entries(folder: Path) -> int:
    with os.scandir(folder) as entries:
        # One entry is our own descriptor, which reads the directory.
        return sum(1 for _ in entries) - 1


def psutil_or_none() -> Any:
    """Return psutil, or None if it is not installed."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def _process_by_psutil() -> dict[str, Number]:
    psutil = psutil_or_none()
    if psutil is None:
        return _peak_by_resource()
    process = psutil.Process()
    memory = process.memory_info()
    samples: dict[str, Number] = {
        "process.rss_bytes": memory.rss,
        "process.vms_bytes": memory.vms,
        "process.threads": process.num_threads(),
    }
    return samples | _peak_by_resource()


def _peak_by_resource() -> dict[str, Number]:
    try:
        import resource
    except ImportError:
        return {}
    # The value is in kilobytes on Linux and in bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"process.peak_bytes": peak if sys.platform == "darwin" else peak * 1024}


def _private_by_psutil() -> int:
    psutil = psutil_or_none()
    if psutil is None:
        return int(_peak_by_resource().get("process.peak_bytes", 0))
    return int(psutil.Process().memory_info().rss)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def read_allocator(find: Callable[[], Any] | None = None) -> dict[str, Number]:
    """Return ``allocator.in_use_bytes`` and ``.kept_bytes``, if the C library reports them.

    ``find`` returns the C function or None; tests replace it.
    """
    mallinfo2 = (find or _mallinfo2)()
    if mallinfo2 is None:
        return _by_psutil() if find is None else {}
    info = mallinfo2()
    # hblkhd counts large blocks, which have their own mapping and are returned to the system when they are freed.
    return {
        "allocator.in_use_bytes": info.uordblks + info.hblkhd,
        "allocator.kept_bytes": info.fordblks,
    }


@lru_cache(maxsize=1)
def _mallinfo2() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = _Mallinfo2
    return function


def _by_psutil() -> dict[str, Number]:
    heap_info = getattr(psutil_or_none(), "heap_info", None)
    if heap_info is None:
        return {}
    try:
        info = heap_info()
    except (OSError, RuntimeError):
        return {}
    return {"allocator.in_use_bytes": info.heap_used + info.mmap_used}


def read_pyarrow() -> dict[str, Number]:
    """Return ``library.pyarrow.bytes``, the bytes in use of pyarrow's default pool, or {} if pyarrow is not loaded."""
    # The name ``pyarrow`` may belong to a placeholder that imports the package on access.
    pool = getattr(sys.modules.get("pyarrow.lib"), "default_memory_pool", None)
    return {} if pool is None else {"library.pyarrow.bytes": int(pool().bytes_allocated())}


def read_sqlite() -> dict[str, Number]:
    """Return ``library.sqlite.bytes``, the bytes that SQLite has allocated, or {} if they are unknown."""
    module = sys.modules.get("_sqlite3")
    function = None if module is None else _sqlite_memory_used(getattr(module, "__file__", None))
    used = 0 if function is None else function()
    # SQLite returns 0 if it was built without statistics.
    return {"library.sqlite.bytes": used} if used > 0 else {}


@lru_cache(maxsize=1)
def _sqlite_memory_used(path: str | None) -> Any:
    """Return SQLite's function from the extension module at ``path``, or from the interpreter itself."""
    try:
        # The module is already loaded, and the search includes the libraries that it is linked with.
        function = ctypes.CDLL(path).sqlite3_memory_used
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = ctypes.c_int64
    return function


HEAP: Final = "mapping.heap.bytes"
ANONYMOUS: Final = "mapping.anonymous.bytes"
STACKS: Final = "mapping.stacks.bytes"
FILES: Final = "mapping.files.bytes"
# A thread's stack follows a guard area, which cannot be read and is at most this large. So may a heap that glibc
# creates for threads, but only a heap begins at a multiple of its maximum size.
_LARGEST_GUARD: Final = 2**16
_THREAD_HEAP: Final = 2**26


def read_mappings(proc: Path = PROC) -> dict[str, Number]:
    """Return ``mapping.heap.bytes``, ``.anonymous.bytes``, ``.stacks.bytes`` and ``.files.bytes``.

    They contain anonymous pages and swap, so their sum is the process's private memory. The kernel visits every page
    for this, which takes about 10 ms per GiB.
    """
    try:
        text = (proc / "self" / "smaps").read_bytes()
    except OSError:
        return {}
    sizes: dict[str, Number] = dict.fromkeys((HEAP, ANONYMOUS, STACKS, FILES), 0)
    at, guard_end = 0, -1
    while (flags_at := text.find(b"\nVmFlags:", at)) >= 0:
        header, _, fields = text[at:flags_at].partition(b"\n")
        at = text.find(b"\n", flags_at + 1) + 1 or len(text)
        addresses, permissions, _, _, _, *path = header.split(None, 5)
        name = path[0] if path else b""
        start, end = (int(address, 16) for address in addresses.split(b"-"))
        # Newer kernels mark guard areas inside a mapping with this flag.
        guarded = start == guard_end or b" gu" in text[flags_at:at]
        is_stack = guarded and permissions.startswith(b"rw") and start % _THREAD_HEAP != 0
        if permissions == b"---p" and not name and end - start <= _LARGEST_GUARD:
            guard_end = end
        kind = _kind_of_mapping(name, is_stack=is_stack)
        if kind is not None:
            sizes[kind] += _bytes_of(fields, b"\nAnonymous:") + _bytes_of(fields, b"\nSwap:")
    return sizes if at else {}


def _kind_of_mapping(name: bytes, *, is_stack: bool) -> str | None:
    if name.startswith(b"/"):
        return FILES
    if name == b"[heap]":
        return HEAP
    if name.startswith((b"[stack", b"[anon: glibc: pthread stack")):
        return STACKS
    if name and not name.startswith(b"[anon"):
        return None
    return STACKS if is_stack else ANONYMOUS


def _bytes_of(fields: bytes, key: bytes) -> int:
    at = fields.find(key)
    return int(fields[at + len(key) : fields.index(b"kB", at)]) * 1024 if at >= 0 else 0


PEAK = "process.peak_bytes"
RESIDENT = "process.rss_bytes"


class PeakMemory:
    """Readings of ``process.*`` with the peak since the previous reading, for any thread."""

    def __init__(
        self,
        *,
        exact: bool = False,
        read: Callable[[], dict[str, Number]] = read_process,
        look: Callable[[], int | None] = _read_resident_bytes,
        read_mark: Callable[[], Number | None] = read_peak_bytes,
    ) -> None:
        self._read, self._look, self._read_mark = read, look, read_mark
        # Reentrant, because a signal handler that ends the run may read the peak in the middle of another reading.
        self._lock = threading.RLock()
        self._mark: Number = 0
        self._highest = 0
        self._exact = exact and _reset_mark()

    @property
    def exact(self) -> bool:
        """True if exact peaks were requested and the kernel permits resetting its mark after each reading."""
        return self._exact

    def look(self) -> None:
        """Make a background reading for the next `read`. A call takes about 2 microseconds."""
        resident = self._look()
        if resident is not None:
            with self._lock:
                self._highest = max(self._highest, resident)

    def read(self) -> dict[str, Number]:
        """Return ``process.*``, with the highest known resident memory since the last call as ``process.peak_bytes``.

        The first call reports the peak since the process began.
        """
        with self._lock:
            samples = self._read()
            mark = samples.pop(PEAK, None)
            known: list[Number] = [samples[RESIDENT]] if RESIDENT in samples else []
            if self._highest:
                known.append(self._highest)
            # The mark either has risen, or was reset by another tool and covers only the time since the reset.
            if mark is not None and mark != self._mark:
                known.append(mark)
            if known:
                samples[PEAK] = max(known)
            if not self._set_back():
                self._began_at(mark)
            return samples

    def restart(self) -> None:
        """Discard the peak so far, because our own work has caused it. A call takes about 6 microseconds."""
        with self._lock:
            if not self._set_back():
                self._began_at(self._read_mark())

    def _began_at(self, mark: Number | None) -> None:
        self._highest = 0
        if mark is not None:
            self._mark = mark

    def _set_back(self) -> bool:
        """Reset the kernel's mark in exact mode, so that the next peak may be lower. Return True if it was reset."""
        self._exact = self._exact and _reset_mark()
        if self._exact:
            self._highest = 0
            self._mark = 0
        return self._exact


def _reset_mark() -> bool:
    """Reset the kernel's mark; return False if the kernel or a sandbox does not permit it."""
    try:
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, b"5") == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)
