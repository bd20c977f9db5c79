"""Forks while other threads hold every lock of ours: no child hangs, or sends or keeps anything of its parent's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leakline.spool import read_end, read_header

pytestmark = pytest.mark.flow
STORM = Path(__file__).with_name("fork_storm.py")
SMALL = 42


def storm(folder: Path, server: str, forks: int, seconds: float) -> tuple[dict[str, Any], str]:
    """What it told in the end, and what it and its children said on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(STORM), server, str(forks)],
        cwd=folder, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told, done.stderr


def check(server: Any, folder: Path, told: dict[str, Any], said: str, forks: int) -> None:
    assert told["failed"] == {}, said
    assert said == ""
    of_parent = [batch for batch in server.batches if batch.process.pid == told["pid"]]
    assert len({batch.process.instance for batch in of_parent}) == 1
    numbers = [s.sequence for batch in of_parent for s in batch.snapshots]
    assert numbers
    assert len(numbers) == len(set(numbers))
    assert not any("in the child" in s.label for b in server.batches for s in b.snapshots)
    # Every other instance is a run of a child of its own: no two of them, and none the parent's.
    headers = [read_header(path) for path in folder.rglob("*.spool")]
    assert (
        len({run.id for run, _ in headers}) == len({p.instance for _, p in headers}) == len(headers)
    )
    assert len({process.pid for _, process in headers}) == len(headers)
    parents = [run.id for run, process in headers if process.pid == told["pid"]]
    assert parents == [told["run"]]
    # Three of seven children have started a run, and each has ended it.
    assert len(headers) == 1 + sum(number % 7 in (3, 4, 5) for number in range(forks))
    ends = [read_end(path) for path in folder.rglob("*.spool")]
    assert [end and end["state"] for end in ends] == ["finished"] * len(headers)
    assert len(server.headers) == 1 + sum(number % 7 == 4 for number in range(forks))


def test_children_that_are_forked_with_locks_held_neither_hang_nor_keep_anything(
    server: Any, tmp_path: Path, spool_directory: Path
) -> None:
    told, said = storm(tmp_path, server.address, SMALL, 120)
    check(server, spool_directory, told, said, SMALL)


NETWORK = """
import sys, threading
imported = []
real = __import__

def note(name, *args, **named):
    before = set(sys.modules)
    module = real(name, *args, **named)
    thread = threading.current_thread().name
    if thread.startswith("leakline"):
        imported.extend((thread, new) for new in sys.modules if new not in before)
    return module

import builtins
import leakline
builtins.__import__ = note
run = leakline.init(server={server!r}, quiet=True)
with run.generation(0), run.phase("train"):
    pass
run.finish()
builtins.__import__ = real
print(imported)
"""


@pytest.mark.parametrize("proxy", [False, True])
def test_no_thread_of_ours_is_in_the_middle_of_an_import_when_the_program_forks(
    server: Any, start: Any, proxy: bool
) -> None:
    """A module that another thread was importing stays locked in the child for ever."""
    address = server.address.replace("127.0.0.1", "localhost")
    environ = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "localhost"} if proxy else {}
    process = start(NETWORK.format(server=address), **environ)
    out, said = process.communicate(timeout=60)
    assert (out, said) == ("[]\n", "")
    assert server.batches
