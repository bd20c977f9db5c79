"""The entire machine's memory, and the headroom until the kernel kills processes.

The machine's memory is context and never decides a verdict, because other programs also change it. The headroom is the
smaller of two values: the memory group's headroom and the machine's.

A file in /dev/shm takes memory until it is deleted and no process has it open or mapped, even after its creator has
exited. The kernel does not record the creator. A file counts as the run's if its name contains the ID of a process of
the run, as the names of torch and joblib do, or if the run had the file open when it was first seen.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from leakline.probes.memory.process_memory import PROC, psutil_or_none
from leakline.snapshot import Number

from .cgroup import read_cgroup
from .kernel_file import KeptFile

MEMINFO: Final = Path("/proc/meminfo")
_LINES: Final = {b"MemTotal": "system.total_bytes", b"MemAvailable": "system.available_bytes"}
# Number of bytes read: both keys are in the first lines.
_BEGINNING: Final = 512

_own = KeptFile(str(MEMINFO), _BEGINNING)


def read_system(meminfo: Path = MEMINFO) -> dict[str, Number]:
    """Return ``system.total_bytes`` and ``system.available_bytes``."""
    text = (_own if meminfo is MEMINFO else KeptFile(str(meminfo))).read()
    if text is None:
        return _by_psutil()
    samples: dict[str, Number] = {}
    for line in text.splitlines()[:8]:
        key, _, rest = line.partition(b":")
        if key in _LINES:
            samples[_LINES[key]] = int(rest.split()[0]) * 1024
    return samples


def _by_psutil() -> dict[str, Number]:
    psutil = psutil_or_none()
    if psutil is None:
        return {}
    memory = psutil.virtual_memory()
    return {"system.total_bytes": memory.total, "system.available_bytes": memory.available}


class Headroom(NamedTuple):
    """The bytes left until the limit, and the limit in bytes."""

    left: int
    limit: int


def read_headroom() -> Headroom | None:
    """Return the memory group's or the machine's headroom, whichever is smaller, or None if both are unknown."""
    return _headroom_of({**read_cgroup(), **read_system()})


def _headroom_of(samples: Mapping[str, Number]) -> Headroom | None:
    found = []
    if "cgroup.limit_bytes" in samples:
        limit = int(samples["cgroup.limit_bytes"])
        # Active file pages do not count as used, because the kernel drops all file pages before it kills a process.
        used = samples["cgroup.used_bytes"] - samples.get("cgroup.active_file_bytes", 0)
        found.append(Headroom(max(0, int(limit - used)), limit))
    if "system.available_bytes" in samples:
        found.append(
            Headroom(int(samples["system.available_bytes"]), int(samples["system.total_bytes"]))
        )
    return min(found, default=None)


SHARED_FILES: Final = Path("/dev/shm")
# With more entries, nothing is known: part of a folder would look like a small folder.
_MOST_ENTRIES: Final = 1024
# The largest prefixes have a series each; the others are added up.
_PREFIXES: Final = 8
_MOST_CHILDREN: Final = 64
_PREFIX: Final = re.compile(r"[A-Za-z]+")
_WITH_CREATOR: Final = re.compile(r"(?:torch_|joblib_memmapping_folder_|pym-)(\d+)[_-]")
# Forked children note their IDs in memory that they share with this process, because a child that starts and exits
# between two readings leaves no other trace.
_NOTED: Final = 4096
_notes: tuple[int, mmap.mmap] | None = None


def _note_child() -> None:
    if _notes is not None:
        pid = os.getpid()
        struct.pack_into("i", _notes[1], pid % _NOTED * 4, pid)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_child)


def _is_noted(pid: int) -> bool:
    # An unused place contains 0, which is no process ID.
    return (
        pid > 0
        and _notes is not None
        and struct.unpack_from("i", _notes[1], pid % _NOTED * 4)[0] == pid
    )


class _File(NamedTuple):
    """A file or folder below /dev/shm, with its path there. ``bytes``: None for a folder that is not read."""

    name: str
    inode: int
    user: int
    bytes: int | None


class SharedFiles:
    """Reads the files in /dev/shm. Any thread may read; a forked child has a reader of its own."""

    def __init__(self, folder: Path = SHARED_FILES) -> None:
        global _notes
        if _notes is None or _notes[0] != os.getpid():
            _notes = (os.getpid(), mmap.mmap(-1, _NOTED * 4))
        self._folder = str(folder)
        # Inode -> whether the file is the run's; replaced as one object.
        self._judged: dict[int, bool] = {}
        # The prefixes that have a series; random names must not create more and more of them.
        self._prefixes: set[str] = set()

    def read(self) -> dict[str, Number]:
        """Return ``shm.*``, or {} if the folder is missing, unreadable or too large.

        ``shm.bytes`` counts the files of this user, and ``shm.run_bytes`` those that are known to be the run's.
        ``shm.deleted_bytes`` counts deleted files of all users that a process still has open or mapped.
        """
        try:
            every = list(islice(_files(self._folder), _MOST_ENTRIES + 1))
            used = _used_bytes(self._folder)
        except OSError:
            return {}
        if len(every) > _MOST_ENTRIES:
            return {}
        user = os.geteuid()
        # A file with several names counts once.
        files = {file.inode: file for file in every if file.user == user}
        judged = self._judge(files.values())
        samples: dict[str, Number] = {
            "shm.bytes": sum(file.bytes or 0 for file in files.values()),
            "shm.run_bytes": sum(file.bytes or 0 for i, file in files.items() if judged[i]),
        }
        sizes = {file.inode: file.bytes for file in every}
        known = [size for size in sizes.values() if size is not None]
        if used is not None and len(known) == len(sizes):
            samples["shm.deleted_bytes"] = max(0, used - sum(known))
        for prefix, size in self._by_prefix(files.values()).items():
            samples[f"shm.files.{prefix}.bytes"] = size
        return samples

    def _by_prefix(self, files: Iterable[_File]) -> dict[str, int]:
        """Return the bytes of files by the letters that their names begin with, which usually name the library."""
        sizes: dict[str, int] = {}
        for file in files:
            match = _PREFIX.match(file.name)
            prefix = "other" if match is None else match[0]
            sizes[prefix] = sizes.get(prefix, 0) + (file.bytes or 0)
        for prefix in sorted(sizes, key=lambda prefix: (-sizes[prefix], prefix)):
            if prefix != "other" and len(self._prefixes) < _PREFIXES:
                self._prefixes.add(prefix)
        found: dict[str, int] = {}
        for prefix, size in sizes.items():
            known = prefix if prefix in self._prefixes else "other"
            found[known] = found.get(known, 0) + size
        return found

    def _judge(self, files: Iterable[_File]) -> dict[int, bool]:
        """Return for each inode whether the file is known to be the run's; each file is examined once."""
        before = self._judged
        judged = {f.inode: before[f.inode] for f in files if f.inode in before}
        new = [f for f in files if f.inode not in before]
        if new:
            # Imported here because most programs leave this folder empty.
            from leakline.probes.child_names import given_names

            children = given_names()
            held = _held_names(self._folder, ("self", *islice(children, _MOST_CHILDREN)))
            ours = {os.getpid(), *children}
            for file in new:
                named = _WITH_CREATOR.match(file.name)
                creator = None if named is None else int(named[1])
                judged[file.inode] = file.name in held or (
                    creator is not None and (creator in ours or _is_noted(creator))
                )
        self._judged = judged
        return judged


def _files(folder: str) -> Iterator[_File]:
    """Yield the entries of a folder and of this user's subfolders, such as those of joblib."""
    user, waiting = os.geteuid(), [""]
    while waiting:
        below = waiting.pop()
        # A subfolder may have been removed since it was listed.
        ignored: tuple[type[OSError], ...] = (FileNotFoundError,) if below else ()
        with suppress(*ignored), os.scandir(f"{folder}/{below}") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    # The size in memory, because a file may have holes.
                    size: int | None = status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        size = 0 if status.st_uid == user else None
                        waiting += [] if size is None else [f"{below}{entry.name}/"]
                    yield _File(f"{below}{entry.name}", status.st_ino, status.st_uid, size)


def _used_bytes(folder: str) -> int | None:
    """Return the bytes that the folder's file system uses, or None if it contains more than this folder."""
    if not os.path.ismount(folder):
        return None
    system = os.statvfs(folder)
    return (system.f_blocks - system.f_bfree) * system.f_frsize


def _held_names(folder: str, processes: Iterable[str | int]) -> set[str]:
    """Return the names of files in the folder that these processes have open."""
    found = set()
    for process in processes:
        with suppress(OSError), os.scandir(f"{PROC}/{process}/fd") as entries:
            for entry in islice(entries, 4 * _MOST_ENTRIES):
                # The link is only read and not followed, because a file on a lost network drive would block us.
                with suppress(OSError):
                    target = os.readlink(entry.path)  # noqa: PTH115
                    if target.startswith(f"{folder}/"):
                        found.add(target[len(folder) + 1 :])
    return found
