"""cgroup v2 and v1, on made-up trees."""

from __future__ import annotations

from pathlib import Path

from leakline.probes.cgroup import read_cgroup

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
