"""Trainings whose server or disk fails: nothing blocks, and everything arrives exactly once.

`tests/soak/test_faults.py` measures what the faults of a server cost.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.fault_loop import train
from tests.client.faults import FaultServer

from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_upload import upload

pytestmark = pytest.mark.flow


@pytest.mark.long
@pytest.mark.parametrize("mode", ["absent", "dripping", "busy"])
def test_an_outage_does_not_block_the_loop_and_everything_arrives_once(
    tmp_path: Path, faulty: FaultServer, mode: str
) -> None:
    cost = train(tmp_path, faulty, mode, seconds=0.5, waiting=300)
    assert cost.failures > 0
    # Measured while this machine does other work; the soak test checks the promised 5 ms.
    assert cost.longest_stall_seconds < 0.05
    # A call that waited for the network would take the 0.3 s timeout that requests have here.
    assert max(cost.outage["longest_wait"], cost.after["longest_wait"]) < 0.25
    assert cost.lost == {}
    assert sorted(faulty.sequences) == list(range(1, max(faulty.sequences) + 1))
    assert len(faulty.sequences) > 300
    assert faulty.ends[0]["state"] == "finished"


# Each spawned process has its own run, as with `torch.multiprocessing.spawn`.
SPAWNED = """
import multiprocessing, os, sys
import leakline

def train(rank, status):
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_PORT="1", LEAKLINE_RUN_ID="spawned")
    run = leakline.init(project="spawn", quiet=True)
    for generation in range(20):
        with run.generation(generation), run.phase("train"):
            sum(range(1000))
    if status == 9:
        raise RuntimeError("of the program")
    sys.exit(status)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=train, args=pair) for pair in ((0, 0), (1, 7), (2, 9))]
    for each in started:
        each.start()
    for each in started:
        each.join()
    print([each.exitcode for each in started])
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["black hole", "busy"])
def test_spawned_trainings_end_normally_and_everything_arrives_once(
    start: Any, spool_directory: Path, faulty: FaultServer, mode: str
) -> None:
    faulty.set(mode)
    process = start(SPAWNED, LEAKLINE_SERVER=faulty.address)
    printed, errors = process.communicate(timeout=120)
    assert (process.returncode, printed) == (0, "[0, 7, 1]\n"), errors
    raised = [line for line in errors.splitlines() if line.startswith("RuntimeError")]
    assert raised == ["RuntimeError: of the program"]
    assert "leakline" not in errors.replace("leakline.init", "").lower(), errors
    faulty.set("healthy")
    for spool in spool_directory.rglob("*.spool"):
        assert upload(spool, Delivery(faulty.address)).complete
    found = defaultdict(set)
    for batch in faulty.batches:
        found[batch.process.instance] |= {each.sequence for each in batch.snapshots}
    assert len(found) == 3
    for numbers in found.values():
        # At least two for each generation; a number that arrived twice counts once.
        assert numbers == set(range(1, max(numbers) + 1))
        assert max(numbers) >= 40


# About 8 KB of notes in each of 40 generations. The disk fails in the middle.
TRAINING = """
import errno, json, os, random, resource, shutil, sys, time
from pathlib import Path

def sabotage():
    how, folder = os.environ["SABOTAGE"], Path(os.environ["LEAKLINE_DIR"])
    if how == "delete the folder":
        shutil.rmtree(folder)
    elif how == "delete the file":
        for path in folder.rglob("*.spool"):
            path.unlink()
    elif how == "put a file in its place":
        shutil.rmtree(folder)
        folder.write_text("not a folder")
    elif how == "move the folder":
        folder.rename(folder.with_name("moved"))
    elif how == "limit the size of files":
        (spool,) = folder.rglob("*.spool")
        size = spool.stat().st_size + 50_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    elif how == "make it read-only":
        real, spools = os.write, {path.stat().st_ino for path in folder.rglob("*.spool")}
        def refuse(*arguments):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        os.write = lambda fd, data: refuse() if os.fstat(fd).st_ino in spools else real(fd, data)
        os.ftruncate = refuse

import leakline
from leakline.runtime import error_boundary
run = leakline.init()
noise = random.Random(1)
for generation in range(40):
    run.generation(generation)
    for _ in range(8):
        run.note(noise.randbytes(1000).hex())
    with run.phase("train"):
        print(f"generation {generation}")
    if generation % 10 == 0:
        run._chain.flush()
    if generation == 20:
        sabotage()
        Path(os.environ["SABOTAGED"]).touch()
print("done")
run.generation(40)
deadline = time.monotonic() + 20
while run._chain.sender is not None and time.monotonic() < deadline:
    run._chain.flush()
    if not run._chain.outbox.pending():
        break
run.finish()
account = run._chain.account()
figures = {
    "taken": account.taken, "sent": account.sent, "pending": account.pending, "lost": dict(account.lost),
    "closes": account.closes, "swallowed": [str(each) for each in error_boundary.swallowed],
}
Path(os.environ["FIGURES"]).write_text(json.dumps(figures))
"""
PRINTED = "".join(f"generation {n}\n" for n in range(40)) + "done\n"

AS_ROOT = ("a full disk", "a read-only disk")


class Training:
    """One training on a disk that fails, and its results."""

    def __init__(self, tmp_path: Path, how: str, address: str | None) -> None:
        self.script, self.folder = tmp_path / "train.py", tmp_path / "spools" / "here"
        self.figures_at, self.sabotaged = tmp_path / "figures.json", tmp_path / "sabotaged"
        self.script.write_text(TRAINING)
        self.folder.mkdir(parents=True)
        self.environment = {
            **os.environ, "LEAKLINE_DIR": str(self.folder), "LEAKLINE_QUIET": "1", "SABOTAGE": how,
            "FIGURES": str(self.figures_at), "SABOTAGED": str(self.sabotaged),
            **({"LEAKLINE_MODE": "offline"} if address is None else {"LEAKLINE_SERVER": address}),
        }  # fmt: skip
        self.before = _before(how, self.folder)

    def run(self, *before: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.before, *before, sys.executable, str(self.script)], env=self.environment,
            capture_output=True, text=True, timeout=120, check=False, cwd=self.script.parent,
        )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        return dict(json.loads(self.figures_at.read_text()))


def _before(how: str, folder: Path) -> list[str]:
    """Return the command prefix that prepares the disk for the training."""
    if how in AS_ROOT:
        _needs_mounts()
        options = "size=256k" if how == "a full disk" else "size=256k,ro"
        mount = f'mount -t tmpfs -o {options} leakline "$1" && shift && exec "$@"'
        return ["unshare", "-m", "sh", "-c", mount, "sh", str(folder)]
    if how == "no permission":
        folder.chmod(0o500)
        if os.getuid() == 0:
            if shutil.which("setpriv") is None:
                pytest.skip("root may write everywhere, and there is no setpriv to take that away")
            return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return []


def _needs_mounts() -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount a small disk")
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False
    )
    if tried.returncode != 0:
        pytest.skip(f"mounts are not permitted here: {tried.stderr.decode().strip()}")


@pytest.mark.parametrize(
    "how",
    [
        "delete the folder", "limit the size of files",
        *(pytest.param(how, marks=pytest.mark.long) for how in
          ("delete the file", "put a file in its place", "make it read-only", *AS_ROOT, "no permission")),
    ],
)  # fmt: skip
def test_a_failing_disk_is_one_warning_and_everything_arrives(
    tmp_path: Path, how: str, server: Any, until: Callable[..., None]
) -> None:
    training = Training(tmp_path, how, server.address)
    # Nothing has arrived when the disk fails: everything is in the file or will be in memory.
    server.hold = threading.Event()
    releasing = threading.Thread(
        target=lambda: (until(training.sabotaged.exists), server.hold.set()), daemon=True
    )
    releasing.start()
    done = training.run()
    releasing.join()
    figures = one_warning(training, done)
    assert (figures["sent"], figures["lost"]) == (figures["taken"], {})
    assert sorted(server.sequences) == list(range(1, figures["taken"] + 1))


@pytest.mark.parametrize("how", ["delete the folder", "a full disk"])
def test_a_failing_disk_without_a_server_is_one_warning_too(tmp_path: Path, how: str) -> None:
    training = Training(tmp_path, how, None)
    one_warning(training, training.run())


def one_warning(training: Training, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Check that one warning is all that shows of the failure, and return the account that the training wrote."""
    assert (done.returncode, done.stdout) == (0, PRINTED), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("leakline: cannot record to disk (")
    figures = training.figures()
    assert figures["swallowed"] == []
    assert figures["closes"], figures
    assert figures["taken"] > 80
    return figures


def test_recording_continues_after_the_folder_was_moved(tmp_path: Path) -> None:
    training = Training(tmp_path, "move the folder", None)
    done = training.run()
    assert (done.returncode, done.stderr) == (0, "")
    figures = training.figures()
    assert (figures["pending"], figures["lost"]) == (figures["taken"], {})


def test_a_warning_with_closed_stderr_is_dropped(tmp_path: Path) -> None:
    training = Training(tmp_path, "delete the folder", None)
    done = training.run("sh", "-c", 'exec "$@" 2>&-', "sh")
    assert (done.returncode, done.stdout) == (0, PRINTED)
