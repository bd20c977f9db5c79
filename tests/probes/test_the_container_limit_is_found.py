"""cgroup v2 and v1, on made-up trees."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from leakline.probes.cgroup import (
    LOOK_AGAIN_SECONDS,
    LOOK_EVERY_SECONDS,
    ContainerMemory,
    read_cgroup,
)

GIB = 2**30
NO_LIMIT_V1 = 9223372036854771712


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own_groups"
    path.write_text(text)
    return path


def test_outside_of_any_group_there_is_nothing(tmp_path: Path) -> None:
    assert read_cgroup(tmp_path / "fs", tmp_path / "absent") == {}
    assert read_cgroup(tmp_path / "fs", _own(tmp_path, "0::/\n")) == {}


def test_v2_without_a_limit_has_no_limit_rather_than_zero(tmp_path: Path) -> None:
    root = _tree(tmp_path / "fs", {"job/memory.current": f"{GIB}\n", "job/memory.max": "max\n"})
    assert read_cgroup(root, _own(tmp_path, "0::/job\n")) == {"cgroup.used_bytes": GIB}


def test_v2_gives_use_without_inactive_file_pages_limit_and_kills(tmp_path: Path) -> None:
    root = _tree(
        tmp_path / "fs",
        {
            "job/memory.current": f"{3 * GIB}\n",
            "job/memory.max": f"{4 * GIB}\n",
            "job/memory.stat": f"anon {GIB}\ninactive_file {GIB}\n",
            "job/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n",
        },
    )
    assert read_cgroup(root, _own(tmp_path, "0::/job\n")) == {
        "cgroup.used_bytes": 2 * GIB,
        "cgroup.limit_bytes": 4 * GIB,
        "cgroup.kills": 1,
    }


def test_v2_the_tightest_limit_above_us_is_the_one_that_kills(tmp_path: Path) -> None:
    root = _tree(
        tmp_path / "fs",
        {
            "pod/memory.current": f"{5 * GIB}\n",
            "pod/memory.max": f"{6 * GIB}\n",
            "pod/job/memory.current": f"{GIB}\n",
            "pod/job/memory.max": f"{8 * GIB}\n",
        },
    )
    samples = read_cgroup(root, _own(tmp_path, "0::/pod/job\n"))
    assert samples == {"cgroup.used_bytes": 5 * GIB, "cgroup.limit_bytes": 6 * GIB}


def test_v2_inside_a_container_the_path_of_the_host_leads_to_the_mount(tmp_path: Path) -> None:
    root = _tree(tmp_path / "fs", {"memory.current": "100\n", "memory.max": "200\n"})
    samples = read_cgroup(root, _own(tmp_path, "0::/kubepods/pod1/abc\n"))
    assert samples == {"cgroup.used_bytes": 100, "cgroup.limit_bytes": 200}


def test_v1_gives_the_same_three(tmp_path: Path) -> None:
    root = _tree(
        tmp_path / "fs",
        {
            "memory/docker/abc/memory.usage_in_bytes": f"{3 * GIB}\n",
            "memory/docker/abc/memory.limit_in_bytes": f"{4 * GIB}\n",
            "memory/docker/abc/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
            "memory/docker/abc/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        },
    )
    own = _own(tmp_path, "9:name=systemd:/\n4:cpu,cpuacct:/x\n3:memory:/docker/abc\n0::/\n")
    assert read_cgroup(root, own) == {
        "cgroup.used_bytes": 2 * GIB,
        "cgroup.limit_bytes": 4 * GIB,
        "cgroup.kills": 3,
    }


def test_v1_has_a_number_for_no_limit(tmp_path: Path) -> None:
    root = _tree(
        tmp_path / "fs",
        {
            "memory/memory.usage_in_bytes": "77\n",
            "memory/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n",
        },
    )
    assert read_cgroup(root, _own(tmp_path, "3:memory:/\n")) == {"cgroup.used_bytes": 77}


def test_a_broken_file_is_unknown(tmp_path: Path) -> None:
    root = _tree(tmp_path / "fs", {"job/memory.current": "\n", "job/memory.max": "what\n"})
    assert read_cgroup(root, _own(tmp_path, "0::/job\n")) == {}


class Clock:
    """Seconds that only tests let pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _two_jobs(tmp_path: Path) -> Path:
    return _tree(
        tmp_path / "fs",
        {
            "job/memory.current": f"{GIB}\n",
            "job/memory.max": f"{4 * GIB}\n",
            "job/memory.events": "oom 0\noom_kill 0\n",
            "other/memory.current": f"{2 * GIB}\n",
            "other/memory.max": f"{8 * GIB}\n",
        },
    )


def test_use_and_kills_are_new_at_every_reading(tmp_path: Path, clock: Clock) -> None:
    root = _two_jobs(tmp_path)
    memory = ContainerMemory(root, _own(tmp_path, "0::/job\n"), clock)
    memory.read()
    (root / "job/memory.current").write_text(f"{3 * GIB}\n")
    (root / "job/memory.stat").write_text(f"inactive_file {GIB}\n")
    (root / "job/memory.events").write_text("oom 2\noom_kill 1\n")
    samples = memory.read()
    assert samples["cgroup.used_bytes"] == 3 * GIB, "memory.stat was not there at the look"
    assert samples["cgroup.kills"] == 1
    clock.now += LOOK_EVERY_SECONDS
    assert memory.read()["cgroup.used_bytes"] == 2 * GIB


def test_a_limit_that_changes_is_seen_at_the_next_look(tmp_path: Path, clock: Clock) -> None:
    root = _two_jobs(tmp_path)
    memory = ContainerMemory(root, _own(tmp_path, "0::/job\n"), clock)
    assert memory.read()["cgroup.limit_bytes"] == 4 * GIB
    (root / "job/memory.max").write_text(f"{5 * GIB}\n")
    clock.now += LOOK_EVERY_SECONDS
    assert memory.read()["cgroup.limit_bytes"] == 5 * GIB


def test_a_limit_set_above_us_takes_over(tmp_path: Path, clock: Clock) -> None:
    root = _two_jobs(tmp_path)
    _tree(root, {"memory.current": f"{9 * GIB}\n", "memory.max": "max\n"})
    memory = ContainerMemory(root, _own(tmp_path, "0::/job\n"), clock)
    assert memory.read()["cgroup.used_bytes"] == GIB
    (root / "memory.max").write_text(f"{2 * GIB}\n")
    clock.now += LOOK_EVERY_SECONDS
    assert memory.read() == {"cgroup.used_bytes": 9 * GIB, "cgroup.limit_bytes": 2 * GIB}


def test_a_process_that_is_moved_is_seen_in_its_new_group(tmp_path: Path, clock: Clock) -> None:
    root = _two_jobs(tmp_path)
    own = _own(tmp_path, "0::/job\n")
    memory = ContainerMemory(root, own, clock)
    memory.read()
    own.write_text("0::/other\n")
    clock.now += LOOK_EVERY_SECONDS
    assert memory.read() == {"cgroup.used_bytes": 2 * GIB, "cgroup.limit_bytes": 8 * GIB}


def test_a_group_that_vanishes_gives_nothing(tmp_path: Path, clock: Clock) -> None:
    root = _two_jobs(tmp_path)
    memory = ContainerMemory(root, _own(tmp_path, "0::/job\n"), clock)
    assert memory.read()
    shutil.rmtree(root)
    clock.now += LOOK_EVERY_SECONDS
    assert memory.read() == {}
    assert memory.read() == {}
    _two_jobs(tmp_path)
    clock.now += LOOK_EVERY_SECONDS
    assert memory.read()["cgroup.used_bytes"] == GIB


def test_a_group_whose_files_answer_no_more_is_left_for_the_new_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel answers ENODEV through a descriptor on a file of a group that is gone."""
    root = _two_jobs(tmp_path)
    own = _own(tmp_path, "0::/job\n")
    memory = ContainerMemory(root, own, clock)
    assert memory.read()
    looks: list[float] = []
    read_text, pread = Path.read_text, os.pread
    gone = {(root / "job" / name).stat().st_ino for name in ("memory.current", "memory.events")}

    def counted(path: Path) -> str:
        looks.append(clock.now)
        return read_text(path)

    def refused(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino in gone:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(Path, "read_text", counted)
    monkeypatch.setattr(os, "pread", refused)
    assert memory.read() == {}
    assert looks == [], "looked a moment ago"
    for _ in range(5):
        clock.now += LOOK_AGAIN_SECONDS / 2
        assert memory.read() == {}
    assert len(looks) == 2
    own.write_text("0::/other\n")
    clock.now += LOOK_AGAIN_SECONDS
    assert memory.read()["cgroup.used_bytes"] == 2 * GIB


def test_between_two_looks_nothing_is_opened(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ContainerMemory(_two_jobs(tmp_path), _own(tmp_path, "0::/job\n"), clock)
    first = memory.read()
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    for _ in range(9):
        clock.now += LOOK_EVERY_SECONDS / 10
        assert memory.read() == first
    assert opened == []


def test_no_look_leaves_a_descriptor_behind(tmp_path: Path, clock: Clock) -> None:
    memory = ContainerMemory(_two_jobs(tmp_path), _own(tmp_path, "0::/job\n"), clock)
    memory.read()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(20):
        clock.now += LOOK_EVERY_SECONDS
        memory.read()
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_a_forked_child_reads_its_own_group(tmp_path: Path, clock: Clock) -> None:
    own = _own(tmp_path, "0::/job\n")
    memory = ContainerMemory(_two_jobs(tmp_path), own, clock)
    before = memory.read()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        # As the kernel shows it to the child once somebody has moved it; no time has passed.
        own.write_text("0::/other\n")
        os.write(write_end, json.dumps(memory.read()).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = json.loads(pipe.read())
    os.waitpid(pid, 0)
    assert told == {"cgroup.used_bytes": 2 * GIB, "cgroup.limit_bytes": 8 * GIB}
    assert memory.read() == before
