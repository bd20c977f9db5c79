"""How a process leaves, in real processes: exit, exception, signal, kill, and how long that may take."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leakline.snapshot import Snapshot
from leakline.spool import read_end

pytestmark = pytest.mark.flow
Recorded = Callable[[], list[Snapshot]]

START = """
import os, signal, sys, time
import leakline
run = leakline.init(mode={mode!r}, server={server!r}, quiet=True)
run.generation(0)
with run.phase("train"):
    pass
print("ready", flush=True)
"""


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a training script: the usual beginning, then ``code``."""

    def start(code: str, mode: str = "offline", server: str | None = None, **environ: str) -> Any:
        script = tmp_path / "train.py"
        script.write_text(START.format(mode=mode, server=server) + textwrap.dedent(code))
        return subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environ},
        )  # fmt: skip

    return start


def ended(directory: Path) -> dict[str, Any] | None:
    (path,) = directory.rglob("*.spool")
    return read_end(path)


@pytest.mark.parametrize(
    ("code", "status", "state", "reason"),
    [
        ("", 0, "finished", ""),
        ("run.finish()", 0, "finished", ""),
        ("sys.exit(3)", 3, "failed", "exit status 3"),
        ("raise ValueError('planned')", 1, "failed", "ValueError"),
        ("raise KeyboardInterrupt", -2, "terminated", "KeyboardInterrupt"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -15, "terminated", "SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -2, "terminated", "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_the_end_is_recorded_with_its_reason(
    train: Any, spool_directory: Path, recorded: Recorded, code: str, status: int, state: str, reason: str
) -> None:  # fmt: skip
    process = train(code)
    process.communicate(timeout=60)
    assert process.returncode == status
    end = ended(spool_directory)
    assert end is not None
    assert (end["state"], end["reason"]) == (state, reason)
    assert [s.kind for s in recorded()] == ["baseline", "phase_end", "generation_end", "finish"]


def test_a_program_with_its_own_sigterm_handler_goes_on_as_before(
    spool_directory: Path, tmp_path: Path
) -> None:
    script = tmp_path / "handled.py"
    script.write_text(
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('own', flush=True))\n"
        + START.format(mode="offline", server=None)
        + "os.kill(os.getpid(), signal.SIGTERM)\n"
        "run.generation(1)\n"
        "print('saved a checkpoint', flush=True)\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:3] == ["ready", "own", "saved a checkpoint"]
    assert done.returncode == 0
    ends = [read_end(path) for path in sorted(spool_directory.rglob("*.spool"))]
    assert {"state": "terminated", "reason": "SIGTERM"}.items() <= (ends[-1] or {}).items()


def test_a_run_finished_by_the_program_is_finished_whatever_signal_came_before(
    spool_directory: Path, tmp_path: Path
) -> None:
    script = tmp_path / "handled.py"
    script.write_text(
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *a: None)\n"
        + START.format(mode="offline", server=None)
        + "os.kill(os.getpid(), signal.SIGTERM)\n"
        "run.finish()\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    assert {"state": "finished", "reason": ""}.items() <= (ended(spool_directory) or {}).items()


def test_an_exception_that_ends_the_program_is_told_once(
    train: Any, spool_directory: Path, recorded: Recorded
) -> None:
    process = train("""
        with run.generation(1), run.phase("train"), run.phase("update"):
            raise ValueError("planned")
    """)
    process.communicate(timeout=60)
    told = [e for s in recorded() for e in s.events if e.kind == "exception"]
    assert [(e.name, e.data.get("phase")) for e in told] == [("ValueError", "train/update")]
    assert (ended(spool_directory) or {})["state"] == "failed"


def test_an_exception_is_told_also_when_another_one_left_a_phase_before(
    train: Any, recorded: Recorded
) -> None:
    process = train("""
        try:
            with run.phase("train"):
                raise ValueError("first")
        except ValueError as kept:
            first = kept
        raise KeyError("second")
    """)
    process.communicate(timeout=60)
    told = [e.name for s in recorded() for e in s.events if e.kind == "exception"]
    assert told == ["ValueError", "KeyError"]


@pytest.mark.parametrize(("end", "said"), [("", 1), ("os.kill(os.getpid(), 15)", 0)])
def test_a_program_told_to_end_says_no_verdict(tmp_path: Path, end: str, said: int) -> None:
    """The next signal is SIGKILL: the time is for what is recorded."""
    script = tmp_path / "train.py"
    script.write_text(
        START.format(mode="offline", server=None).replace("quiet=True", "quiet=False") + end
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert len(done.stderr.splitlines()) == 1 + said


def test_the_excepthook_of_the_program_still_runs(train: Any) -> None:
    process = train("""
        sys.excepthook = (lambda before: lambda *a: (print("theirs", flush=True), before(*a)))(sys.excepthook)
        raise ValueError("planned")
    """)
    out, err = process.communicate(timeout=60)
    assert "theirs" in out
    assert "ValueError: planned" in err


def test_disabled_never_touches_signals_or_hooks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys, leakline\n"
        "before = (signal.getsignal(signal.SIGTERM), sys.excepthook)\n"
        "leakline.init(mode='disabled')\n"
        "assert (signal.getsignal(signal.SIGTERM), sys.excepthook) == before\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)


def test_nothing_is_ever_written_to_stdout(train: Any) -> None:
    process = train("run.finish()", mode="online", server="http://127.0.0.1:9", LEAKLINE_QUIET="0")
    out, _ = process.communicate(timeout=60)
    assert out == "ready\n"


def test_what_was_recorded_survives_kill_9_and_has_no_end(
    train: Any, spool_directory: Path, recorded: Recorded
) -> None:
    process = train("""
        run.generation(1)
        run._chain.recorder.flush(10)
        print("recorded", flush=True)
        time.sleep(60)
    """)
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "recorded\n"]
    process.kill()
    process.communicate(timeout=60)
    assert [s.kind for s in recorded()] == ["baseline", "phase_end", "generation_end"]
    assert ended(spool_directory) is None


def test_kill_9_at_any_moment_leaves_a_readable_spool(
    train: Any, recorded: Recorded, spool_directory: Path
) -> None:
    for after_lines in (1, 3, 10, 40, 80):
        process = train("""
            for generation in range(1, 10_000):
                run.generation(generation)
                with run.phase("train"):
                    print(generation, flush=True)
        """)
        for _ in range(after_lines):
            process.stdout.readline()
        process.kill()
        process.communicate(timeout=60)
        sequences = [s.sequence for s in recorded()]
        assert sequences == list(range(1, len(sequences) + 1))
        for path in spool_directory.rglob("*.spool"):
            path.unlink()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


TIMED = """
import time
import leakline
run = leakline.init(server={server!r}, quiet=True)
for generation in range(20):
    run.generation(generation)
    with run.phase("train"):
        pass
started = time.perf_counter()
run.finish()
print(time.perf_counter() - started, flush=True)
"""


def seconds_to_finish(tmp_path: Path, server: str) -> float:
    script = tmp_path / "timed.py"
    script.write_text(TIMED.format(server=server))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    return float(done.stdout)


@pytest.mark.alone
def test_finishing_is_quick_with_the_server_up(tmp_path: Path, server: Any) -> None:
    # 0.2 s is the aim; the machine that runs the tests is shared.
    assert seconds_to_finish(tmp_path, server.address) < 0.6
    assert server.ends[0]["state"] == "finished"
    assert len(server.sequences) == 42


@pytest.mark.alone
def test_finishing_is_quick_with_nobody_there(tmp_path: Path) -> None:
    assert seconds_to_finish(tmp_path, "http://127.0.0.1:9") < 1.0


def test_finishing_into_a_black_hole_takes_at_most_two_seconds(
    tmp_path: Path, black_hole: str
) -> None:
    assert seconds_to_finish(tmp_path, black_hole) < 2.6


@pytest.mark.alone
def test_a_process_waiting_in_a_child_ends_at_sigterm_within_the_time(train: Any) -> None:
    process = train("time.sleep(60)", mode="online", server="http://127.0.0.1:9")
    process.stdout.readline()
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert time.monotonic() - started < 3.0


def test_a_sigterm_in_the_middle_of_an_end_comes_after_it(
    train: Any, server: Any, spool_directory: Path
) -> None:
    """A launcher tells its ranks to end as soon as one has failed, which that one is just saying."""
    process = train(
        """
        close = run._chain.close

        def interrupted(end):
            os.kill(os.getpid(), signal.SIGTERM)
            close(end)

        run._chain.close = interrupted
        raise ValueError("planned")
        """,
        mode="online",
        server=server.address,
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert (ended(spool_directory) or {})["reason"] == "ValueError"
    assert [(end["state"], end["reason"]) for end in server.ends] == [("failed", "ValueError")]


@pytest.mark.parametrize(
    ("chains", "status", "state"), [(True, 0, "terminated"), (False, -15, "terminated")]
)
def test_one_that_takes_over_sigterm_and_calls_who_was_there_ends_as_it_likes(
    train: Any, spool_directory: Path, chains: bool, status: int, state: str
) -> None:
    """Lightning ends a fit so: every handler that there was is called, then the loop stops by itself."""
    process = train(
        f"""
        before = signal.getsignal(signal.SIGTERM)
        came = []

        def stop(number, frame):
            came.append(number)
            if callable(before):
                before(number, frame)

        if {chains}:
            signal.signal(signal.SIGTERM, stop)
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved a checkpoint", len(came), flush=True)
        """
    )
    output, _ = process.communicate(timeout=60)
    assert output == ("ready\nsaved a checkpoint 1\n" if chains else "ready\n")
    assert process.returncode == status
    end = ended(spool_directory) or {}
    assert (end["state"], end["reason"]) == (state, "SIGTERM")


def test_a_program_beside_which_we_run_has_no_handler_of_sigterm_that_it_did_not_set(
    tmp_path: Path, spool_directory: Path
) -> None:
    """One of Python's waits for its turn: a program that is stuck in a library could not be told to end."""
    (tmp_path / "train.py").write_text(
        "import os, signal, sys\n"
        "print('leakline' in sys.modules, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "leakline", "run", "--mode", "offline", "--", sys.executable, "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "True True\n"), done.stderr
    end = ended(spool_directory) or {}
    assert (end["state"], end["reason"]) == ("terminated", "SIGTERM")
