"""A training that the kernel kills for memory: the run says so and shows its last snapshot.

Uses a real memory cgroup where we may create one; otherwise a simulated one for Leakline, with a kill at its limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.flow, pytest.mark.timeout(300), pytest.mark.long]

MIB: Final = 2**20
LIMIT: Final = 400 * MIB
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

TRAINING: Final = """
    import os, sys, time
    {enter}
    import leakline
    run = leakline.init(project="kills", name=sys.argv[1])
    kept = []
    for generation in range(1000):
        run.generation(generation)
        with run.phase("collect"):
            # 8 MiB of episodes that are never freed.
            for _ in range(8):
                kept.append(bytearray(os.urandom(1 << 10) * 1024))
                time.sleep(0.008)
        with run.phase("update"):
            time.sleep(0.02)
        print(time.time(), flush=True)
"""

ENTER_REAL: Final = "open({procs!r}, 'w').write(str(os.getpid()))"
# Simulated cgroup files with the memory of this process; at the limit it is killed as the kernel would do.
ENTER_SIMULATED: Final = """
    import pathlib, signal, threading
    import leakline.probes.memory.cgroup as cgroup
    group = pathlib.Path({folder!r})
    def follow():
        current = open(group / "memory.current", "r+b", buffering=0)
        while True:
            used = int(open("/proc/self/statm").read().split()[1]) * 4096
            if used >= {limit}:
                os.kill(os.getpid(), signal.SIGKILL)
            os.pwrite(current.fileno(), b"%020d" % used, 0)
            time.sleep(0.002)
    (group / "memory.max").write_text("{limit}" + chr(10))
    (group / "memory.stat").write_text("inactive_file 0" + chr(10))
    (group / "memory.events").write_text("oom_kill 0" + chr(10))
    (group / "memory.current").write_text("0" + chr(10))
    (group / "own").write_text("0::/" + chr(10))
    cgroup._own = cgroup.ContainerMemory(group, group / "own")
    threading.Thread(target=follow, daemon=True).start()
"""


@contextlib.contextmanager
def memory_group() -> Iterator[Path]:
    """Create a cgroup with our limit. Raises OSError if this is not allowed."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if v1 else V2) / f"leakline-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(LIMIT))
        for name in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            # Otherwise the kernel would swap instead of killing. The file is missing without swap.
            with contextlib.suppress(OSError):
                (group / name).write_text(str(LIMIT) if v1 else "0")
        yield group
    finally:
        group.rmdir()


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[str]:
    """Yield the lines with which a training enters its cgroup."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(memory_group())
        except OSError:
            folder = tmp_path / "group"
            folder.mkdir()
            yield ENTER_SIMULATED.format(folder=str(folder), limit=LIMIT)
        else:
            yield ENTER_REAL.format(procs=str(group / "cgroup.procs"))


@pytest.fixture
def train(tmp_path: Path, enter: str) -> Callable[..., list[float]]:
    """Run the training until it is killed and return the time at which each generation ended."""

    def run(server: str, name: str) -> list[float]:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(TRAINING).format(enter=textwrap.dedent(enter)))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
        done = subprocess.run(
            [sys.executable, str(script), name], cwd=tmp_path, capture_output=True, text=True,
            timeout=200, check=False, env={**kept, "LEAKLINE_SERVER": server, "LEAKLINE_RUN_ID": name},
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        return [float(line) for line in done.stdout.splitlines()]

    return run


def command(tmp_path: Path, server: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "leakline", *arguments, "--server", server],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout


def last_snapshot(server: Any, run: str) -> dict[str, Any]:
    names = "name=cgroup.used_bytes&name=cgroup.limit_bytes&name=process.rss_bytes"
    found = server.get(f"/runs/{run}/snapshots?limit=1&{names}")["items"][0]
    return dict(found)


def check(server: Any, run: str, generations: list[float]) -> None:
    found = server.get(f"/runs/{run}")
    assert found["state"] == "killed"
    assert found["reason"].startswith("memory: "), found["reason"]
    last = last_snapshot(server, run)
    samples = last["samples"]
    assert samples["cgroup.limit_bytes"] == LIMIT
    assert samples["cgroup.used_bytes"] >= 0.95 * LIMIT, samples["cgroup.used_bytes"] / LIMIT
    assert last["time"] > generations[-1] - 1.0


def test_the_next_start_reports_that_the_run_was_killed_for_memory(
    server: Any, train: Any, tmp_path: Path, eventually: Any
) -> None:
    name = "killed-for-memory"
    generations = train(server.address, name)
    script = tmp_path / "next.py"
    script.write_text(
        "import sys, leakline\nrun = leakline.init(name='next')\nsys.stdin.read()\nrun.finish()\n"
    )
    after = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "LEAKLINE_SERVER": server.address},
    )  # fmt: skip
    try:
        eventually(lambda: server.get(f"/runs/{name}")["state"] == "killed")
    finally:
        _, errors = after.communicate("", timeout=60)
    assert "killed (memory" in errors
    check(server, name, generations)


def test_sync_reports_the_kill_and_uploads_the_missing_data(
    server: Any, train: Any, tmp_path: Path
) -> None:
    name = "unheard"
    generations = train("http://127.0.0.1:9", name)
    spool = str(tmp_path / ".leakline" / name)
    assert "killed (memory" in command(tmp_path, server.address, "sync", spool)
    check(server, name, generations)
    assert "nothing new to send" in command(tmp_path, server.address, "sync", spool)
    verdict = server.verdict(name, last_snapshot(server, name)["generation"])
    assert verdict["status"] in ("suspected", "confirmed"), verdict["summary"]
    assert verdict["findings"][0]["phase"] == "collect"
