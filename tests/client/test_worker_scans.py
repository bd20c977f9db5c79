"""Scans of growing workers: what they find, and that nothing else in a child or its parent changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.sampling.worker_requests import PATIENCE_SECONDS, UNANSWERED_LIMIT, WorkerRequests

pytestmark = pytest.mark.flow
MIB = 2**20


def run(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """Run a program that prints JSON in its last line, and return this JSON."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "program.py", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# A worker that keeps 2 MiB in a cache for each order. The parent reads its growth as a run does.
REQUESTED = """
import json, multiprocessing, pathlib, sys, time
from leakline.sampling.worker_requests import WorkerRequests
import leakline.sampling.worker_requests as requests
import os


class Frames:
    def __init__(self):
        self.cache = {}

    def draw(self):
        self.cache[len(self.cache)] = bytearray(b"1") * (2 << 20)


def serve(pipe, frames):
    while (orders := pipe.recv()) is not None:
        for _ in range(orders):
            frames.draw()
        pipe.send(len(frames.cache))
    raise SystemExit(5)


def main():
    folder, now = pathlib.Path(sys.argv[2]), [0.0]
    of_worker = WorkerRequests(str(folder / "run"), lambda: now[0])
    os.register_at_fork(after_in_child=of_worker.abandon)
    context = multiprocessing.get_context(sys.argv[1])
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, Frames()))
    process.start()

    def order(count):
        here.send(count)
        return here.recv()

    found, files, until = [], set(), time.monotonic() + 60
    while not found and time.monotonic() < until:
        now[0] += 1000.0
        of_worker.note({process.pid: ("reader", order(4) * (2 << 20))})
        files.update(each.name for each in folder.iterdir())
        # The worker answers between two of its statements, the last of which may be this one.
        for _ in range(100):
            order(0)
            time.sleep(0.001)
        found = list(of_worker.take())
    of_worker.end()
    here.send(None)
    process.join()
    print(json.dumps({
        "found": [tuple(each) for each in found], "files": sorted(files), "pid": process.pid,
        "left": [each.name for each in folder.iterdir()], "exit": process.exitcode,
    }))


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_names_the_type_and_the_holder_in_a_worker(tmp_path: Path, method: str) -> None:
    (folder := tmp_path / "run").mkdir()
    told = run(tmp_path, REQUESTED, method, str(folder))
    ((text, data),) = told["found"]
    assert text == "reader keeps bytearray, held by __main__.Frames.cache"
    share = data.pop("share")
    assert data == {"worker": "reader", "types": ["bytearray"], "holder": "__main__.Frames.cache"}
    assert 0.5 <= share <= 1
    # The request was a file named after the process; it is gone, and the worker has ended as usual.
    assert told["files"] == [f"run-{told['pid']}.worker"]
    assert told["left"] == []
    assert told["exit"] == 5


# What a forked child of a run has as handler of SIGURG, and whether the parent has changed.
FORKED = """
import json, os, signal, sys
import leakline


def own(number, frame):
    pass


if sys.argv[1] == "own":
    signal.signal(signal.SIGURG, own)
elif sys.argv[1] == "ignored":
    signal.signal(signal.SIGURG, signal.SIG_IGN)


def state():
    blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    return repr(signal.getsignal(signal.SIGURG)), blocked


def forked(work):
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(here, json.dumps(work()).encode())
        os._exit(7)
    os.close(here)
    with open(there) as file:
        answer = json.load(file)
    return answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def with_own_run():
    leakline.init(project="child", mode="offline", quiet=True, scan_workers=True)
    found = repr(signal.getsignal(signal.SIGURG))
    leakline.current().finish()
    return found


before = state()
run = leakline.init(project="parent", mode="offline", quiet=True, scan_workers=True)
(child, blocked), code = forked(state)
of_own_run, _ = forked(with_own_run)
during = state()
run.finish()
(after_run, _), _ = forked(state)
print(json.dumps({
    "child": child, "code": code, "of_own_run": of_own_run, "after_run": after_run,
    "unchanged": before == during == state() and blocked == before[1],
}))
"""


def test_a_forked_child_answers_until_it_has_a_run_of_its_own(tmp_path: Path) -> None:
    told = run(tmp_path, FORKED, "free")
    assert "function handle" in told["child"]
    assert told["unchanged"]
    assert told["code"] == 7
    assert "SIG_DFL" in told["of_own_run"]
    assert "SIG_DFL" in told["after_run"]


@pytest.mark.parametrize(("how", "expected"), [("own", "function own"), ("ignored", "SIG_IGN")])
def test_a_handler_of_the_program_stays(tmp_path: Path, how: str, expected: str) -> None:
    told = run(tmp_path, FORKED, how)
    handlers = (told["child"], told["of_own_run"], told["after_run"])
    assert all(expected in handler for handler in handlers)
    assert told["unchanged"]


# The program's own handler of SIGALRM raises in the middle of a scan. Another thread may receive the signal.
INTERRUPTED = """
import json, os, pathlib, signal, sys, threading, time
from leakline.sampling import worker_scan

folder = pathlib.Path(sys.argv[1])
real = worker_scan.look_near


def look(*arguments):
    blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    os.kill(os.getpid(), signal.SIGALRM)
    # The thread receives the signal, and the handler runs here.
    until = time.monotonic() + 30
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.001)
    return real(*arguments)


blocked = []
if sys.argv[2] == "thread":
    threading.Thread(target=time.sleep, args=(120,), daemon=True).start()


class TooLate(Exception):
    pass


def late(number, frame):
    raise TooLate


signal.signal(signal.SIGALRM, late)
worker_scan.look_near = look
worker_scan.install(str(folder / "run"))
request = folder / f"run-{os.getpid()}{worker_scan.SUFFIX}"
mask, raised = signal.pthread_sigmask(signal.SIG_BLOCK, []), 0
# Without a request, the signal does nothing.
os.kill(os.getpid(), signal.SIGURG)
without = request.exists()
request.touch()
try:
    os.kill(os.getpid(), signal.SIGURG)
    time.sleep(0)
except TooLate:
    raised = 1
print(json.dumps({
    "without": without, "raised": raised, "answer": request.read_text(), "blocked": [*map(int, blocked[0])],
    "unchanged": mask == signal.pthread_sigmask(signal.SIG_BLOCK, []),
}))
"""


@pytest.mark.parametrize("threads", ["alone", "thread"])
def test_exceptions_of_the_programs_handlers_reach_the_program(
    tmp_path: Path, threads: str
) -> None:
    (folder := tmp_path / "run").mkdir()
    found = run(tmp_path, INTERRUPTED, str(folder), threads)
    assert found["without"] is False
    assert found["raised"] == 1
    assert found["unchanged"]
    assert signal.SIGALRM in found["blocked"] and signal.SIGSEGV not in found["blocked"]
    # Without other threads, the handler ran after the scan.
    assert bool(found["answer"]) == (threads == "alone")


# Each worker keeps objects that refer to a list of its parent.
SHARED = """
import gc, json, sys
from leakline.sampling import worker_scan

names = [f"file number {i} of the data set" for i in range(300_000)]


class Sample:
    def __init__(self):
        self.data, self.files = bytearray(b"1") * (2 << 20), names


class Worker:
    def __init__(self):
        self.kept = []


def scan(scans):
    return scans.scan(sys._getframe(1))


def referents(*objects):
    found = real(*objects)
    visited.append(len(found))
    return found


def main():
    worker, results = Worker(), []
    for first, more in ((0, 1), (8, 8)):
        worker.kept[:] = [Sample() for _ in range(first)]
        scans = worker_scan.WorkerScans()
        scan(scans)
        worker.kept += [Sample() for _ in range(more)]
        results.append(scan(scans))
    print(json.dumps({"visited": sum(visited), "longest": max(visited), "results": results}))


real, visited = gc.get_referents, []
gc.get_referents = referents
main()
"""


def test_long_and_shared_containers_are_not_entered(tmp_path: Path) -> None:
    found = run(tmp_path, SHARED)
    assert found["longest"] <= 3_000
    assert found["visited"] <= 60_000
    # The size of a single item is unknown, because the item has a long list.
    assert found["results"][0]["explained"] == 0
    assert found["results"][1]["holder"] == "__main__.Worker.kept"
    assert found["results"][1]["types"] == ["__main__.Sample", "bytearray"]
    assert found["results"][1]["explained"] <= 17 * MIB


# A list of a local variable that grows once, and one that grows all the time.
LOCALS = """
import json, sys
from leakline.sampling import worker_scan


def scan(scans):
    return scans.scan(sys._getframe(1))


def block():
    return bytearray(b"1") * (1 << 20)


def main():
    scans, batch, kept, results = worker_scan.WorkerScans(), [], [], []
    for more in (2, 8, 0, 0):
        batch += [block() for _ in range(more)]
        kept += [block() for _ in range(6)]
        results.append(scan(scans).get("holder"))
    print(json.dumps({"holders": results}))


main()
"""


def test_a_local_variable_counts_if_it_grows_twice(tmp_path: Path) -> None:
    kept = "__main__.main.<locals>.kept"
    assert run(tmp_path, LOCALS)["holders"] == [None, "", kept, kept]


# A spawned child starts a run of its own, as a program does that is not a helper of multiprocessing.
OWN_RUN = """
import json, multiprocessing, os, signal


def handler():
    return repr(signal.getsignal(signal.SIGURG))


def work(queue):
    import leakline
    found = [handler()]
    del os.environ[leakline.core.process_tree.ANNOUNCED]
    leakline.init(project="child", mode="offline", quiet=True)
    found.append(handler())
    leakline.current().finish()
    queue.put(found)


if __name__ == "__main__":
    import leakline

    run = leakline.init(project="parent", mode="offline", quiet=True, scan_workers=True)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    found = queue.get()
    process.join()
    run.finish()
    print(json.dumps({"found": found, "exit": process.exitcode}))
"""


def test_a_spawned_child_with_a_run_of_its_own_does_not_answer(tmp_path: Path) -> None:
    found = run(tmp_path, OWN_RUN)
    before, after = found["found"]
    assert "function handle" in before
    assert "SIG_DFL" in after
    assert found["exit"] == 0


UNUSED = """
import json, os, signal, sys
import leakline

run = leakline.init(project="p", mode="offline", quiet=True)
with run.generation(0):
    pass
pid = os.fork()
if pid == 0:
    os._exit(signal.getsignal(signal.SIGURG) is not signal.SIG_DFL)
code = os.waitpid(pid, 0)[1]
run.finish()
loaded = [name for name in sys.modules if "worker_" in name or name == "multiprocessing"]
print(json.dumps({"loaded": loaded, "code": code}))
"""


def test_nothing_is_loaded_or_installed_without_the_setting(tmp_path: Path) -> None:
    assert run(tmp_path, UNUSED) == {"loaded": [], "code": 0}


class Requests:
    """Requests with a clock of the test, in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.requests = WorkerRequests(str(folder / "run"), lambda: self.now)

    def note(self, size: int, pid: int, seconds: float = 1000.0) -> list[str]:
        self.now += seconds
        self.requests.note({pid: ("worker", size)})
        return [each.name for each in self.folder.iterdir()]


HANDLES = "import signal; signal.signal(signal.SIGURG, lambda *_: print('urgent', flush=True)); "
WAITS = "print('ready', flush=True); input(); raise SystemExit(3)"


@pytest.fixture(name="started")
def _started() -> Any:
    children = []

    def start(*command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


Worker = subprocess.Popen[str]


@pytest.fixture
def worker(started: Callable[..., Worker]) -> Worker:
    """Return a process that answers each signal with a line instead of a scan."""
    child = started(sys.executable, "-c", HANDLES + WAITS, "multiprocessing")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_a_started_program_gets_no_signal_and_would_survive_it(
    tmp_path: Path, started: Callable[..., Any]
) -> None:
    child = started(sys.executable, "-c", WAITS)
    assert child.stdout.readline() == "ready\n"
    requests = Requests(tmp_path)
    assert [requests.note(size * MIB, child.pid) for size in (0, 64, 128)] == [[], [], []]
    os.kill(child.pid, signal.SIGURG)
    assert child.communicate("go\n")[0] == ""
    assert child.returncode == 3


def test_another_program_that_handles_the_signal_gets_none(
    tmp_path: Path, started: Callable[..., Any]
) -> None:
    child = started("/bin/bash", "-c", "trap 'echo urgent' URG; echo ready; read; exit 4")
    assert child.stdout.readline() == "ready\n"
    requests = Requests(tmp_path)
    assert [requests.note(size * MIB, child.pid) for size in (0, 64, 128)] == [[], [], []]
    assert child.communicate("go\n")[0] == ""
    assert child.returncode == 4


def test_a_process_that_never_answers_is_asked_twice(tmp_path: Path, worker: Worker) -> None:
    """A Python program may replace our handler by its own."""
    requests, name = Requests(tmp_path), f"run-{worker.pid}.worker"
    assert requests.note(0, worker.pid) == []
    for number in range(1, UNANSWERED_LIMIT + 1):
        assert requests.note(64 * MIB * number, worker.pid, PATIENCE_SECONDS + 1) == [name]
        # Two pending signals would be delivered as one.
        assert worker.stdout.readline() == "urgent\n"
        assert requests.note(64 * MIB * number, worker.pid, PATIENCE_SECONDS / 2) == [name]
    for number in range(8, 16):
        assert requests.note(64 * MIB * number, worker.pid) == []
    assert worker.communicate("go\n")[0] == ""


def test_the_end_of_the_run_and_the_end_of_a_worker_delete_the_request(
    tmp_path: Path, worker: Worker
) -> None:
    requests = Requests(tmp_path)
    requests.note(0, worker.pid)
    assert requests.note(64 * MIB, worker.pid)
    requests.requests.note({})
    assert not list(tmp_path.iterdir())
    requests.note(0, worker.pid)
    assert requests.note(64 * MIB, worker.pid)
    requests.requests.end()
    assert not list(tmp_path.iterdir())
    assert requests.note(512 * MIB, worker.pid) == []


def test_a_program_with_a_handler_makes_no_requests(tmp_path: Path, worker: Worker) -> None:
    before = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        requests = Requests(tmp_path)
        assert [requests.note(size * MIB, worker.pid) for size in (0, 64, 128)] == [[], [], []]
    finally:
        signal.signal(signal.SIGURG, before)


SLEEPS = {
    "in a call that is not restarted": "signal.pause()",
    "in native code": "import ctypes; ctypes.CDLL(None).sleep(60)",
    "with the signal blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG]); input()",
}


@pytest.mark.parametrize("sleeps", SLEEPS.values(), ids=SLEEPS)
def test_a_process_at_an_unsafe_point_gets_no_signal(
    tmp_path: Path, started: Callable[..., Any], sleeps: str
) -> None:
    code = f"{HANDLES}import os; print('ready', flush=True); {sleeps}"
    child = started(sys.executable, "-c", code, "multiprocessing")
    assert child.stdout.readline() == "ready\n"
    until = time.monotonic() + 60
    while (
        Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "S" and time.monotonic() < until
    ):
        time.sleep(0.01)
    requests = Requests(tmp_path)
    assert [requests.note(size * MIB, child.pid) for size in (0, 64, 128)] == [[], [], []]
    assert child.poll() is None


def test_a_missing_request_file_is_an_unanswered_request(tmp_path: Path, worker: Worker) -> None:
    requests = Requests(tmp_path)
    requests.note(0, worker.pid)
    for number in range(1, UNANSWERED_LIMIT + 1):
        (request,) = requests.note(64 * MIB * number, worker.pid, 1.0)
        assert worker.stdout.readline() == "urgent\n"
        (tmp_path / request).unlink()
    assert requests.note(512 * MIB, worker.pid) == []


@pytest.mark.parametrize(
    ("explained", "types"), [(40 * MIB, ["numpy.ndarray"]), (20 * MIB, [])], ids=["most", "less"]
)
def test_scans_keep_to_their_budget_and_explain_at_least_half(
    tmp_path: Path, worker: Worker, explained: int, types: list[str]
) -> None:
    requests, name = Requests(tmp_path), f"run-{worker.pid}.worker"
    answer = {"seconds": 0.5, "private": 10 * MIB, "explained": explained, "holder": "app.kept"}

    def complete(**answer: Any) -> None:
        (tmp_path / name).write_text(json.dumps(answer) + "\n")

    assert requests.note(MIB, worker.pid) == []
    assert requests.note(65 * MIB, worker.pid) == [name]
    complete(seconds=0.5)
    assert requests.note(65 * MIB, worker.pid, 1.0) == []
    # The next scan may follow 150 seconds after one that took half a second.
    assert requests.note(129 * MIB, worker.pid, 100.0) == []
    # Too little has been added since the scan.
    assert requests.note(70 * MIB, worker.pid, 100.0) == []
    assert requests.note(129 * MIB, worker.pid, 1.0) == [name]
    assert requests.requests.take() == ()
    complete(**answer, types=["numpy.ndarray"])
    assert requests.note(129 * MIB, worker.pid, 1.0) == []
    ((text, data),) = requests.requests.take()
    assert data["types"] == types
    assert data["holder"] == ("app.kept" if types else "")
    assert data["share"] == round(explained / (64 * MIB), 3)
    assert text.startswith("worker keeps ndarray, held by" if types else "worker: no container")
