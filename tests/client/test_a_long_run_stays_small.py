"""Ten thousand snapshots: the client's memory is flat, whether somebody listens or not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.flow

SNAPSHOTS, WARM_UP = 10_000, 2_000
# A batch on its way or a look beside the loop is up to 2.5 MB of this; kept snapshots would be 40 MB and more.
PRIVATE_LIMIT_BYTES = 4 * 2**20
# Blocks of the interpreter's allocator; one kept dictionary per snapshot would be 8,000 and more.
BLOCKS_LIMIT = 1_000

PROGRAM = """
import gc, json, sys, threading
import leakline
from leakline.probes.process import read_private_bytes

run = leakline.init(quiet=True)
loop = run._loop
loop.governor._credit = 1e9
store = []
run.track("store", store, capacity=10)
run.expect("NeverMade", 2)
taken = {}

def elsewhere():
    with run.phase("load"):
        pass

def note(count):
    run._chain.recorder.flush(60)
    gc.collect()
    taken[count] = (read_private_bytes(), sys.getallocatedblocks(), loop._sequence)

def until(count, generation):
    while loop._sequence < count:
        generation += 1
        run.generation(generation)
        for step in range(24):
            with run.phase("train"), run.phase("step"):
                run.gauge("pending", step, warn_above=20)
            with run.phase("evaluate"):
                pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        run.mark("generation over")
        with run.cleanup("store"):
            store.clear()
        gc.collect()
        if generation % 8 == 0:
            # A training is slower than this; no snapshot shall be lost for a full queue.
            run._chain.recorder.flush(60)
    return generation

generation = until(int(sys.argv[1]), 0)
note("warm")
until(int(sys.argv[2]), generation)
note("end")
taken["lost"] = loop.losses.totals()
run.finish()
print(json.dumps(taken))
"""


@pytest.mark.parametrize("where", ["offline", "nobody listens"])
def test_ten_thousand_snapshots_leave_the_client_as_small_as_two_thousand(
    where: str, spool_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKLINE_MODE", "offline" if where == "offline" else "online")
    monkeypatch.setenv("LEAKLINE_SERVER", "http://127.0.0.1:9")
    # In a process of its own: its memory is the client's, and nothing of other tests.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(WARM_UP), str(SNAPSHOTS)],
        capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    taken = json.loads(done.stdout)
    warm, end = taken["warm"], taken["end"]
    assert end[2] >= SNAPSHOTS
    assert "queue_full" not in taken["lost"], taken["lost"]
    assert end[0] - warm[0] < PRIVATE_LIMIT_BYTES
    assert end[1] - warm[1] < BLOCKS_LIMIT
    assert sum(path.stat().st_size for path in spool_directory.rglob("*.spool")) > 2**18
