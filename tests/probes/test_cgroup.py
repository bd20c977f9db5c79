"""Container memory limits of cgroup v2 and v1 on generated trees, and the memory of the machine."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from leakline.probes.memory.cgroup import (
    LOOK_AGAIN_SECONDS,
    LOOK_EVERY_SECONDS,
    ContainerMemory,
    read_cgroup,
)
from leakline.probes.memory.system_memory import SharedFiles, read_system

GIB = 2**30
NO_LIMIT_V1 = 9223372036854771712


def _tree(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def _own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own_groups"
    path.write_text(text)
    return path


def usage(used: int, limit: int | None = None, kills: int | None = None) -> dict[str, int]:
    samples = {"cgroup.used_bytes": used, "cgroup.limit_bytes": limit, "cgroup.kills": kills}
    return {name: value for name, value in samples.items() if value is not None}


JOB_V2 = {"job/memory.current": 3 * GIB, "job/memory.max": 4 * GIB}


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", {}),
        ({"job/memory.current": GIB, "job/memory.max": "max"}, "0::/job\n", usage(GIB)),
        (
            JOB_V2 | {"job/memory.stat": f"anon {GIB}\ninactive_file {GIB}",
                      "job/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1"},
            "0::/job\n", usage(2 * GIB, 4 * GIB, 1),
        ),
        (
            {"pod/memory.current": 5 * GIB, "pod/memory.max": 6 * GIB,
             "pod/job/memory.current": GIB, "pod/job/memory.max": 8 * GIB},
            "0::/pod/job\n", usage(5 * GIB, 6 * GIB),
        ),
        ({"memory.current": 100, "memory.max": 200}, "0::/kubepods/pod1/abc\n", usage(100, 200)),
        (
            {"memory/a/bc/memory.usage_in_bytes": 3 * GIB, "memory/a/bc/memory.limit_in_bytes": 4 * GIB,
             "memory/a/bc/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
             "memory/a/bc/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3"},
            "9:name=systemd:/\n4:cpu,cpuacct:/x\n3:memory:/a/bc\n0::/\n", usage(2 * GIB, 4 * GIB, 3),
        ),
        (
            {"memory/memory.usage_in_bytes": 77, "memory/memory.limit_in_bytes": NO_LIMIT_V1},
            "3:memory:/\n", usage(77),
        ),
        ({"job/memory.current": "", "job/memory.max": "what"}, "0::/job\n", {}),
    ],
    ids=[
        "outside of any group there is nothing",
        "v2 without a limit has no limit rather than zero",
        "v2 gives use without inactive file pages, limit and kills",
        "v2 the tightest limit above us is the one that kills",
        "v2 inside a container the path of the host leads to the mount",
        "v1 gives the same three",
        "v1 has a number for no limit",
        "a broken file is unknown",
    ],
)  # fmt: skip
def test_usage_limit_and_kills_of_a_container_are_read(
    files: dict[str, object], own: str, expected: dict[str, int], tmp_path: Path
) -> None:
    assert read_cgroup(_tree(tmp_path / "fs", files), _own(tmp_path, own)) == expected
    assert read_cgroup(tmp_path / "fs", tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        (
            {"job/memory.current": GIB, "job/memory.stat": "anon 1\nshmem 5\nslab_reclaimable 6\n"
             "slab_unreclaimable 7\nslab 13"},
            "0::/job\n", {"shmem": 5, "slab": 13, "slab_unreclaimable": 7},
        ),
        (
            {"memory/a/memory.usage_in_bytes": GIB, "memory/a/memory.stat": "shmem 2\ntotal_shmem 5"},
            "3:memory:/a\n", {"shmem": 5},
        ),
        ({"job/memory.current": GIB, "job/memory.stat": "anon 1"}, "0::/job\n", {}),
    ],
    ids=["v2", "v1 has no slab", "unknown is not zero"],
)  # fmt: skip
def test_shared_and_kernel_memory_of_a_container_are_read(
    files: dict[str, object], own: str, expected: dict[str, int], tmp_path: Path
) -> None:
    parts = {f"cgroup.{name}_bytes": size for name, size in expected.items()}
    assert read_cgroup(_tree(tmp_path / "fs", files), _own(tmp_path, own)) == usage(GIB) | parts


def fill(path: Path, size: int = 8192) -> Path:
    path.write_bytes(b"x" * size)
    return path


def test_files_are_the_runs_only_if_their_creator_is_known(tmp_path: Path) -> None:
    files = SharedFiles(tmp_path)
    assert files.read() == {"shm.bytes": 0, "shm.run_bytes": 0}
    # A name without a process ID says nothing about the creator, and neither does another process's ID.
    fill(tmp_path / "psm_unknown")
    fill(tmp_path / f"torch_{os.getppid()}_1_0")
    fill(tmp_path / "torch_0_1_0")
    samples = files.read()
    assert samples["shm.run_bytes"] == 0 < samples["shm.bytes"]
    own = fill(tmp_path / f"torch_{os.getpid()}_1_0").stat().st_blocks * 512
    assert files.read()["shm.run_bytes"] == own
    with (tmp_path / "psm_open").open("wb") as file:
        file.write(b"x" * 8192)
        file.flush()
        held = (tmp_path / "psm_open").stat().st_blocks * 512
        assert files.read()["shm.run_bytes"] == own + held
    assert files.read()["shm.run_bytes"] == own + held, "it stays the run's once it is closed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_files_of_a_forked_child_that_has_exited_are_the_runs(tmp_path: Path) -> None:
    files = SharedFiles(tmp_path)
    pid = os.fork()
    if not pid:
        fill(tmp_path / f"torch_{os.getpid()}_1_0")
        os._exit(0)
    os.waitpid(pid, 0)
    samples = files.read()
    assert samples["shm.run_bytes"] == samples["shm.bytes"] == samples["shm.files.torch.bytes"] > 0


def test_random_names_create_no_more_and_more_series(tmp_path: Path) -> None:
    files, series = SharedFiles(tmp_path), set[str]()
    for i in range(30):
        fill(tmp_path / f"{'abcdefghijklmnopqrstuvwxyz'[i % 26]}name{chr(97 + i % 7)}x")
        samples = files.read()
        series |= {name for name in samples if name.startswith("shm.files.")}
        assert sum(samples[name] for name in series & samples.keys()) == samples["shm.bytes"]
    assert len(series) == 9


def test_a_folder_with_too_many_files_or_no_folder_is_unknown(tmp_path: Path) -> None:
    for i in range(1025):
        (tmp_path / f"x_{i}").touch()
    assert SharedFiles(tmp_path).read() == {} == SharedFiles(tmp_path / "absent").read()


class Job:
    """A process in one of two containers with limits; ``now`` is a clock that only tests advance."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.now = folder, folder / "fs", 100.0
        self.make_groups()
        self.enter("job")
        self.memory = ContainerMemory(self.root, folder / "own_groups", lambda: self.now)

    def make_groups(self) -> None:
        _tree(self.root, {"job/memory.current": GIB, "job/memory.max": 4 * GIB})
        _tree(self.root, {"job/memory.events": "oom 0\noom_kill 0"})
        _tree(self.root, {"other/memory.current": 2 * GIB, "other/memory.max": 8 * GIB})

    def enter(self, group: str) -> None:
        _own(self.folder, f"0::/{group}\n")

    def read(self, after: float = 0.0) -> dict[str, int]:
        self.now += after
        return {name: int(value) for name, value in self.memory.read().items()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_usage_and_kills_are_current_at_every_reading(job: Job) -> None:
    job.read()
    _tree(job.root, {"job/memory.current": 3 * GIB, "job/memory.stat": f"inactive_file {GIB}"})
    _tree(job.root, {"job/memory.events": "oom 2\noom_kill 1"})
    assert job.read() == usage(3 * GIB, 4 * GIB, 1), "memory.stat did not exist at the check"
    assert job.read(LOOK_EVERY_SECONDS) == usage(2 * GIB, 4 * GIB, 1)


def test_a_changed_or_new_outer_limit_is_seen_at_the_next_check(job: Job) -> None:
    _tree(job.root, {"memory.current": 9 * GIB, "memory.max": "max"})
    assert job.read() == usage(GIB, 4 * GIB, 0)
    _tree(job.root, {"job/memory.max": 5 * GIB})
    assert job.read(LOOK_EVERY_SECONDS) == usage(GIB, 5 * GIB, 0)
    _tree(job.root, {"memory.max": 2 * GIB})
    assert job.read(LOOK_EVERY_SECONDS) == usage(9 * GIB, 2 * GIB)


def test_a_moved_process_is_read_in_its_new_group(job: Job) -> None:
    job.read()
    job.enter("other")
    assert job.read(LOOK_EVERY_SECONDS) == usage(2 * GIB, 8 * GIB)


def test_a_vanished_group_gives_no_samples(job: Job) -> None:
    assert job.read()
    shutil.rmtree(job.root)
    assert job.read(LOOK_EVERY_SECONDS) == {}
    assert job.read() == {}
    job.make_groups()
    assert job.read(LOOK_EVERY_SECONDS)["cgroup.used_bytes"] == GIB


def test_a_removed_group_is_replaced_by_the_new_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel answers ENODEV on a descriptor of a file whose group is gone."""
    assert job.read()
    looks: list[float] = []
    read_text, pread = Path.read_text, os.pread
    gone = {(job.root / "job" / name).stat().st_ino for name in ("memory.current", "memory.events")}

    def counted(path: Path) -> str:
        looks.append(job.now)
        return read_text(path)

    def refused(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino in gone:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(Path, "read_text", counted)
    monkeypatch.setattr(os, "pread", refused)
    assert job.read() == {}
    assert looks == [], "looked a moment ago"
    for _ in range(5):
        assert job.read(LOOK_AGAIN_SECONDS / 2) == {}
    assert len(looks) == 2
    job.enter("other")
    assert job.read(LOOK_AGAIN_SECONDS)["cgroup.used_bytes"] == 2 * GIB


def test_no_file_is_opened_between_two_checks(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job.read()
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    for _ in range(9):
        assert job.read(LOOK_EVERY_SECONDS / 10) == first
    assert opened == []


def test_no_check_leaks_a_descriptor(job: Job) -> None:
    job.read()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(20):
        job.read(LOOK_EVERY_SECONDS)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_a_forked_child_reads_its_own_group(job: Job) -> None:
    before = job.read()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        # The kernel shows this to the child once it was moved; no time has passed.
        job.enter("other")
        os.write(write_end, json.dumps(job.read()).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert json.loads(pipe.read()) == usage(2 * GIB, 8 * GIB)
    os.waitpid(pid, 0)
    assert job.read() == before


def test_the_machine_is_read_without_meminfo_by_psutil(tmp_path: Path) -> None:
    without = read_system(tmp_path / "absent")
    assert without["system.total_bytes"] > without["system.available_bytes"] > 0
    assert read_system()["system.total_bytes"] == pytest.approx(without["system.total_bytes"])
