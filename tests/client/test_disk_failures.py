"""A disk that fills up, is read-only or is pulled away: the training does not notice, and the server misses nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flow

# About 8 KB of notes in each of 150 generations. What happens to the disk happens in the middle.
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
from leakline.runtime import error_boundary as guard
run = leakline.init()
noise = random.Random(1)
for generation in range(150):
    run.generation(generation)
    for _ in range(8):
        run.note(noise.randbytes(1000).hex())
    with run.phase("train"):
        print(f"generation {generation}")
    if generation % 10 == 0:
        run._chain.flush()
    if generation == 75:
        sabotage()
        Path(os.environ["SABOTAGED"]).touch()
print("done")
run.generation(150)
deadline = time.monotonic() + 20
while run._chain.sender is not None and time.monotonic() < deadline:
    run._chain.flush()
    if not run._chain.outbox.pending():
        break
run.finish()
account = run._chain.account()
told = {
    "taken": account.taken, "sent": account.sent, "pending": account.pending, "lost": dict(account.lost),
    "closes": account.closes, "swallowed": [str(each) for each in guard.swallowed],
}
Path(os.environ["TOLD"]).write_text(json.dumps(told))
"""
PRINTED = "".join(f"generation {n}\n" for n in range(150)) + "done\n"

WHILE_IT_RUNS = (
    "delete the folder", "delete the file", "put a file in its place", "limit the size of files",
    "make it read-only",
)  # fmt: skip
AS_ROOT = ("a full disk", "a read-only disk")


class Training:
    """One training on a disk that fails, and what came of it."""

    def __init__(self, tmp_path: Path, how: str, address: str | None) -> None:
        self.script, self.folder = tmp_path / "train.py", tmp_path / "spools" / "here"
        self.told_at, self.sabotaged = tmp_path / "told.json", tmp_path / "sabotaged"
        self.script.write_text(TRAINING)
        self.folder.mkdir(parents=True)
        self.environment = {
            **os.environ, "LEAKLINE_DIR": str(self.folder), "LEAKLINE_QUIET": "1", "SABOTAGE": how,
            "TOLD": str(self.told_at), "SABOTAGED": str(self.sabotaged),
            **({"LEAKLINE_MODE": "offline"} if address is None else {"LEAKLINE_SERVER": address}),
        }  # fmt: skip
        self.before = _before(how, self.folder)

    def run(self, *before: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.before, *before, sys.executable, str(self.script)], env=self.environment,
            capture_output=True, text=True, timeout=120, check=False, cwd=self.script.parent,
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        return dict(json.loads(self.told_at.read_text()))


def _before(how: str, folder: Path) -> list[str]:
    """The command that the training is started with, so that its disk is as it should be."""
    if how in AS_ROOT:
        _needs_mounts()
        options = "size=1m" if how == "a full disk" else "size=1m,ro"
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


@pytest.mark.parametrize("how", [*WHILE_IT_RUNS, *AS_ROOT, "no permission"])
def test_a_disk_that_fails_is_one_warning_and_everything_arrives(
    tmp_path: Path, how: str, server: Any, until: Callable[..., None]
) -> None:
    training = Training(tmp_path, how, server.address)
    # Nothing has arrived when the disk fails: all of it is in the file, or will be in memory.
    server.hold = threading.Event()
    releasing = threading.Thread(
        target=lambda: (until(training.sabotaged.exists), server.hold.set()), daemon=True
    )
    releasing.start()
    done = training.run()
    releasing.join()
    told = one_warning(training, done)
    assert (told["sent"], told["lost"]) == (told["taken"], {})
    assert sorted(server.sequences) == list(range(1, told["taken"] + 1))


@pytest.mark.parametrize("how", ["delete the folder", "a full disk", "no permission"])
def test_a_disk_that_fails_without_a_server_is_one_warning_too(tmp_path: Path, how: str) -> None:
    training = Training(tmp_path, how, None)
    one_warning(training, training.run())


def one_warning(training: Training, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Nothing else is to be seen of the disk; what the training told of its account."""
    assert (done.returncode, done.stdout) == (0, PRINTED), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("leakline: cannot record to disk (")
    told = training.told()
    assert told["swallowed"] == []
    assert told["closes"], told
    assert told["taken"] > 300
    return told


def test_a_folder_that_is_moved_away_goes_on_being_recorded_to(tmp_path: Path) -> None:
    training = Training(tmp_path, "move the folder", None)
    done = training.run()
    assert (done.returncode, done.stderr) == (0, "")
    told = training.told()
    assert (told["pending"], told["lost"]) == (told["taken"], {})


def test_a_warning_goes_to_nobody_whose_stderr_is_closed(tmp_path: Path) -> None:
    training = Training(tmp_path, "delete the folder", None)
    done = training.run("sh", "-c", 'exec "$@" 2>&-', "sh")
    assert (done.returncode, done.stdout) == (0, PRINTED)
