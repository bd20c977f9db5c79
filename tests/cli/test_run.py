"""`leakline run` and `leakline watch`: real, unmodified programs in their own processes."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DOCS, by_the_minute, made_snapshots, serving, wait_for_verdict
from tests.cli.programs import Place
from tests.flows.conftest import eventually
from tests.json_batches import batch_to_wire

from leakline.cli import main
from leakline.launcher import program_launch, run_summary
from leakline.launcher.observer import HOLD_SECONDS
from leakline.launcher.program_launch import STARTUP, _waits_for_a_processor
from leakline.launcher.run_summary import closing_words
from leakline.launcher.startup.sitecustomize import is_launcher
from leakline.settings import Settings
from leakline.snapshot import Batch, ProcessIdentity
from leakline.transport.http_delivery import Accepted, Delivery, Outcome, request_json

START_CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--mode", "offline", "--", "no-such-program"), "no-such-program"),
        (("--mode", "offline", "--", "train.py"), "use: leakline run -- python train.py"),
        (("--mode", "offline"), "leakline run -- python train.py"),
        (("--mode", "sideways", "--", "echo", "started"), "sideways"),
        (("--per", "hour", "--", "echo", "started"), "hour"),
    ],
)
def test_a_usage_error_starts_nothing(leakline: Any, words: tuple[str, ...], why: str) -> None:
    said = leakline("run", *words)
    assert (said.status, said.output) == (2, "")
    assert why in said.errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("ending", "status", "how"),
    [
        ("sys.exit(0)", 0, ("finished", "")),
        ("raise ValueError(3)", 1, ("failed", "ValueError")),
        ("os._exit(5)", 5, ("failed", "exit status 5")),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ("terminated", "SIGKILL")),
    ],
)
def test_the_exit_status_is_that_of_the_program(
    place: Place, ending: str, status: int, how: tuple[str, str]
) -> None:
    said = place.python(f"import os, signal, sys\nprint('here')\nsys.stdout.flush()\n{ending}\n")
    assert (said.returncode, said.stdout) == (status, "here\n")
    (recorded,) = place.recorded()
    assert (recorded.how, recorded.header.unit) == (how, "second")
    # The last line says that the program was too short, and how an unexpected end happened.
    last = said.stderr.splitlines()[-1]
    if status:
        assert (f"Failed ({how[1]})" if status > 0 else f"Killed by {how[1]}") in last
        summary = "before the first second ended"
    else:
        summary = "No verdict: the run ended before its first second was complete"
    assert summary in last


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        ("try: sys.exit(4)\nexcept SystemExit as error: kept = error", ("finished", "")),
        ("raise ValueError(3)", ("failed", "ValueError")),
        ("os._exit(5)", ("failed", "exit status 5")),
        ("os.kill(os.getpid(), signal.SIGKILL)", ("terminated", "SIGKILL")),
        # The run reports its own end, perhaps long before the program fails with something else.
        ("run.finish()\nsys.exit(7)", ("finished", "")),
    ],
)
def test_the_end_of_the_run_matches_the_end_of_the_program(
    place: Place, ending: str, how: tuple[str, str]
) -> None:
    begin = "import os, signal, sys, leakline\nrun = leakline.init(unit='epoch')\nrun.epoch(0)\n"
    place.python(f"{begin}{ending}\n")
    (recorded,) = place.recorded()
    assert recorded.how == how


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_program(place: Place, number: signal.Signals) -> None:
    script = place.write(
        """
        import signal, sys
        def handler(number, frame):
            print("got", signal.Signals(number).name, flush=True)
            sys.exit(11)
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(each, handler)
        print("ready", flush=True)
        while True:
            signal.pause()
        """
    )
    process = subprocess.Popen(
        place.line([sys.executable, script], "--quiet"),
        cwd=place.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == (f"got {number.name}\n", 11)


def test_ctrl_c_of_a_terminal_is_not_forwarded(place: Place) -> None:
    # A terminal sends SIGINT to the entire process group.
    script = place.write(
        """
        import signal, sys, time
        came = []
        signal.signal(signal.SIGINT, lambda *_: came.append(1))
        print("ready", flush=True)
        while not came:
            signal.pause()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            time.sleep(0.05)
        print("came", len(came), flush=True)
        """
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execv(sys.executable, place.line([sys.executable, script], "--quiet"))
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while not seen.endswith((b"came 1\r\n", b"came 2\r\n")):
        seen += os.read(terminal, 1024)
    assert b"came 1" in seen
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)


# -- environment -------------------------------------------------------------------------------------------


def test_sitecustomize_and_pythonpath_of_the_program_are_preserved(place: Place) -> None:
    own = place.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = __file__\n")
    said = place.python(
        """
        import os, sys, sitecustomize, subprocess
        print(customized == sitecustomize.__file__, os.environ["PYTHONPATH"])
        print([p for p in sys.path if p.endswith("startup")], "_LEAKLINE_OBSERVE" in os.environ)
        code = "import sys, os; print(customized, 'leakline' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)
        """,
        PYTHONPATH=str(own),
    )
    of_child = f"{own / 'sitecustomize.py'} False"
    assert said.stdout.splitlines() == [f"True {own}", "[] False", of_child]
    assert len(list(place.recorded())) == 1


def test_a_failing_sitecustomize_is_reported_and_the_program_observed(place: Place) -> None:
    place.write("raise RuntimeError('theirs')", "sitecustomize.py")
    said = place.python(
        "import os\nprint('_LEAKLINE_OBSERVE' in os.environ)", PYTHONPATH=str(place.folder)
    )
    assert (said.stdout, "RuntimeError: theirs" in said.stderr) == ("False\n", True)
    assert len(list(place.recorded())) == 1
    # With our folder on the path but without a plan, nothing happens.
    alone = subprocess.run(
        [sys.executable, "-c", "import sys; print('leakline' in sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(STARTUP)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (alone.stdout, alone.stderr) == ("False\n", "")


NO_THREADS = """
import threading
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
"""


@pytest.mark.parametrize(
    "command", [[sys.executable, "-c", "print('here')"], ["sh", "-c", "echo here; sleep 2.5"]]
)
def test_without_threads_the_program_runs_and_its_end_is_recorded(
    place: Place, command: list[str]
) -> None:
    place.write(NO_THREADS, "sitecustomize.py")
    said = place.run(command, PYTHONPATH=str(place.folder))
    assert (said.returncode, said.stdout) == (0, "here\n")
    assert "can't start new thread" in said.stderr
    assert not re.search("Traceback|Error in sitecustomize", said.stderr)
    (recorded,) = place.recorded()
    assert recorded.how == ("finished", "")
    assert [s.kind for s in recorded.snapshots] == ["baseline", "finish"]


def test_child_programs_join_the_run_through_the_environment(
    place: Place,
) -> None:
    # Only the variable names that docs/run.md lists are set.
    place.write(
        """
        import os, leakline
        print(*sorted(name for name in os.environ if "LEAKLINE" in name))
        leakline.init()
        """,
        "child.py",
    )
    said = place.python(START_CHILD, "--quiet", "--project", "own")
    section = (DOCS / "run.md").read_text().split("through these environment variables")[1]
    names = re.findall(r"`(_?LEAKLINE_\w+)`", section.partition("\n\n")[0])
    assert said.stdout.split() == sorted(names)
    recorded = list(place.recorded())
    assert sorted(each.process.role for each in recorded) == ["child", "main"]
    assert len({each.header.id for each in recorded}) == 1


def test_a_program_that_calls_init_continues_the_same_run(place: Place) -> None:
    said = place.python(
        """
        import leakline
        from leakline.run import active
        assert active() is None, "callbacks of frameworks would not start theirs"
        run = leakline.init(project="own", unit="epoch", watch=["Thing"])
        for number in range(6):
            with run.epoch(number), run.phase("train"):
                pass
        """,
        "--name", "given",
    )  # fmt: skip
    assert said.returncode == 0
    (recorded,) = place.recorded()
    header = recorded.header
    assert (header.project, header.name, header.unit) == ("own", "given", "epoch")
    assert (recorded.process.attempt, recorded.process.role) == (1, "main")
    assert [s.generation for s in recorded.snapshots if s.kind == "generation_end"] == [*range(6)]
    # The program prints its verdict itself; `leakline run` does not repeat it.
    assert sum("No leak" in line for line in said.stderr.splitlines()) == 1


def test_a_program_with_an_id_of_its_own_has_its_own_run(place: Place) -> None:
    said = place.python("import leakline\nleakline.init(id='my-run').epoch(0)\n")
    assert said.returncode == 0
    (recorded,) = place.recorded()
    assert recorded.header.id == "my-run"
    assert "it chose another id or directory" in said.stderr.splitlines()[-1]


def test_settings_of_the_command_override_those_of_the_program(place: Place) -> None:
    said = place.python("import leakline\nleakline.init(project='own')\n", "--quiet")
    assert (said.returncode, said.stderr) == (0, "")
    assert [r.header.project for r in place.recorded()] == ["own"]
    place.python("import leakline\nprint(leakline.init(mode='disabled').id == '')")
    assert [r.header.unit for r in place.recorded()] == ["generation", "second"]
    # When the command disables recording, it becomes the program itself.
    said = place.run(["sh", "-c", "exit 4"], "--mode", "disabled")
    assert (said.returncode, said.stderr) == (4, "")
    assert len(list(place.recorded())) == 2


def test_a_script_that_execs_python_is_observed_from_inside(place: Place) -> None:
    shim = place.folder / place.write(
        f'#!/bin/sh\n: $(seq 1 20000)\nexec {sys.executable} "$@"\n', "python"
    )
    shim.chmod(0o755)
    assert place.run([str(shim), "-c", "print('here')"]).stdout == "here\n"
    (recorded,) = place.recorded()
    assert recorded.header.environment["python"]


def test_other_programs_are_watched_from_outside_and_children_join(place: Place) -> None:
    script = place.write("import time\ntime.sleep(2.5)\n")
    said = place.run(["sh", "-c", f"{sys.executable} {script}; exit 3"], "--per", "second")
    assert said.returncode == 3
    by_role = {r.process.role: r for r in place.recorded()}
    assert set(by_role) == {"main", "child"}
    outside = by_role["main"]
    assert outside.how == ("failed", "exit status 3")
    assert outside.snapshots[0].samples["process.rss_bytes"] > 0
    assert outside.header.environment["command_line"][0] == "sh"
    assert len({r.header.id for r in by_role.values()}) == 1


def test_inherited_file_descriptors_reach_the_program(place: Place) -> None:
    # As with <(...): an open file whose number is on the command line.
    reading, writing = os.pipe()
    os.write(writing, b"hi")
    code = "import os, sys; print(os.read(int(sys.argv[1]), 9))"
    said = subprocess.run(
        place.line([sys.executable, "-c", code, str(reading)]), cwd=place.folder, pass_fds=(reading,),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    os.close(reading)
    os.close(writing)
    assert (said.returncode, said.stdout) == (0, "b'hi'\n"), said.stderr


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("train.py", False),
        ("/opt/bin/torchrun train.py", True),
        ("-u /opt/bin/deepspeed train.py", True),
        ("-m torch.distributed.run train.py", True),
        ("-mtorch.distributed.run", True),
        ("-um accelerate.commands.accelerate_cli launch train.py", True),
        ("-u -m deepspeed.launcher.launch --world_info=e30= train.py", True),
        ("-W ignore -m torch.distributed.run", True),
        ("-Wignore -X dev -m torch.distributed.run", True),
        ("--check-hash-based-pycs always -m torch.distributed.run", True),
        ("-W ignore train.py -m torch.distributed.run", False),
        ("-X torchrun train.py", False),
        ("-m train torchrun", False),
        ("- torchrun", False),
        ("-c pass -m torch.distributed.run", False),
        ("-m", False),
        ("", False),
    ],
)
def test_launchers_are_recognized_by_their_command_line(line: str, is_one: bool) -> None:
    assert is_launcher(["python", *line.split()]) is is_one


# -- after the end: the upload, and the exit status ---------------------------------------------------------


def test_the_server_shows_the_run_and_its_verdict(place: Place, server: str, ask: Any) -> None:
    said = place.python("print('hello')", "--server", server, "--project", "plain", "--tag", "x")
    first, last = said.stderr.splitlines()
    url = first.split(" -> ")[1]
    assert last.endswith(f"-> {url}")
    run = request_json(server, "GET", f"/runs/{url.rpartition('/')[2]}")
    assert (run["project"], run["tags"], run["state"]) == ("plain", ["x"], "finished")
    assert (run["unit"], run["generations"]) == ("second", 0)
    # The gate of docs/fixes.md does not pass, because the run cannot be judged.
    assert ask("verdict", run["id"], "--fail-on", "leaking,learning").status == 3
    assert ask("verdict", run["id"], "--fail-on", "leaking").status == 0


class BehindDelivery(Delivery):
    """Receives a run whose newest data the server has not analyzed yet."""

    def request(self, method: str, path: str, payload: Any = None) -> Outcome:
        answer = super().request(method, path, payload)
        assert isinstance(answer, Accepted)
        return replace(answer, body={**answer.body, "verdict_is_current": False})


def test_the_last_line_does_not_repeat_the_status(
    place: Place, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a verdict computed locally, the server's sentence begins with its status.
    said = place.python("print('hello')", "--per", "minute", "--server", server)
    run = said.stderr.splitlines()[0].rpartition("/")[2]
    minutes = tuple(by_the_minute(made_snapshots(0)))[:3]
    batch = batch_to_wire(Batch(ProcessIdentity("more", rank=1), minutes))
    request_json(server, "POST", f"/runs/{run}/batches", batch)
    request_json(server, "PATCH", f"/runs/{run}", {"state": "finished"})
    wait_for_verdict(server, run, lambda found: "3 minutes" in found["summary"])
    settings = Settings(run, server=server, directory=place.folder / ".leakline")
    assert closing_words(settings).startswith("learning: Not judged: the run ended after 3 minutes")
    # The verdict computed here would know only one of the two processes.
    monkeypatch.setattr(run_summary, "Delivery", BehindDelivery)
    monkeypatch.setattr(run_summary, "PATIENCE_SECONDS", 0.5)
    said = closing_words(settings)
    assert said.startswith("learning: Not judged: the run ended after 3 minutes")
    assert f"; this does not cover all data yet -> {server}/runs/" in said


def test_a_verdict_that_lacks_the_newest_data_is_computed_here(
    place: Place, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place.python("", "--server", server).stderr.splitlines()[0].rpartition("/")[2]
    monkeypatch.setattr(run_summary, "Delivery", BehindDelivery)
    monkeypatch.setattr(run_summary, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(run_summary, "_worked_out", lambda spools: f"{len(spools)} read")
    said = closing_words(Settings(run, server=server, directory=place.folder / ".leakline"))
    assert said == f"1 read -> {server}/runs/{run}"


def test_the_server_learns_that_a_program_was_killed(place: Place, server: str) -> None:
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    said = place.python(kill, "--server", server)
    run = said.stderr.split("/runs/")[1].split()[0]
    assert request_json(server, "GET", f"/runs/{run}")["state"] == "killed"


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A socket that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening


def address_of(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_short_programs_contact_an_unresponsive_server_once(
    place: Place, mute: socket.socket
) -> None:
    said = place.python(
        """
        import subprocess, sys
        for _ in range(2):
            subprocess.run([sys.executable, "-c", "pass"], check=True)
        sys.exit(6)
        """,
        "--children", "--server", address_of(mute),
    )  # fmt: skip
    assert said.returncode == 6
    recorded = list(place.recorded())
    assert len(recorded) == 3
    mute.setblocking(False)
    connection, _ = mute.accept()
    connection.close()
    took = [each.snapshots[-1].monotonic - each.snapshots[0].monotonic for each in recorded]
    # A program that runs longer contacts the server itself, which may happen on a busy machine.
    if max(took) < HOLD_SECONDS - 1:
        with pytest.raises(BlockingIOError):
            mute.accept()
    _, last = said.stderr.splitlines()
    assert (
        f"; cannot reach a Leakline server at {address_of(mute)} (" in last
        and "leakline sync" in last
    )


@pytest.fixture(scope="module")
def that_asks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server that requires authentication, and the address of its database."""
    folder = tmp_path_factory.mktemp("asks")
    password = {"LEAKLINE_ADMIN_PASSWORD": "of nobody else"}
    with serving(folder, **password) as address:
        yield address, f"sqlite:///{folder}/.leakline-server/leakline.db"


def token_of(scope: str, database: str) -> str:
    with redirect_stdout(StringIO()) as printed:
        main(["token", "create", "--scope", scope, "--database-url", database])
    return printed.getvalue().strip()


@pytest.mark.parametrize(("token", "status"), [("lkl_" + "0" * 43, 401), ("of a reader", 403)])
def test_the_last_line_explains_why_the_server_has_nothing(
    place: Place, that_asks: tuple[str, str], token: str, status: int
) -> None:
    address, database = that_asks
    shown = token_of("read", database) if token == "of a reader" else token
    said = place.python("print('hello')", "--server", address, LEAKLINE_TOKEN=shown)
    assert (said.returncode, said.stdout) == (0, "hello\n")
    last = said.stderr.splitlines()[-1]
    assert last.startswith("leakline: learning: ")
    assert f"; {address} does not accept this run ({status}: " in last
    assert "; upload it with: leakline sync " in last


def test_with_a_token_that_cannot_read_the_client_computes_the_verdict(
    place: Place, that_asks: tuple[str, str]
) -> None:
    address, database = that_asks
    token = token_of("ingest", database)
    last = place.python("", "--server", address, LEAKLINE_TOKEN=token).stderr.splitlines()[-1]
    assert last.startswith("leakline: learning: ")
    assert f" -> {address}/runs/" in last
    assert "leakline sync" not in last


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_upload_and_keeps_the_exit_status(
    place: Place, mute: socket.socket, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        place.line([sys.executable, "-c", "raise SystemExit(7)"], "--server", address_of(mute)),
        cwd=place.folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert select.select([mute], [], [], 30)[0]
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 7
    assert "some data was not sent; upload it with: leakline sync" in errors.splitlines()[-1]


# -- `leakline watch`: real processes observed from outside -------------------------------------------------

GROWS = """
import sys, time
kept = []
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    kept.append(bytearray(500_000))
    time.sleep(0.05)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process without Leakline and waits until it is ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *arguments],
            cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        started.append(process)
        return process

    yield begin
    for process in started:
        process.send_signal(signal.SIGINT)
        process.communicate()


def watching(place: Place, pid: int, *options: str) -> tuple[subprocess.Popen[str], str]:
    """Start `leakline watch`; return it and its first line once the first snapshot is on disk."""
    watch = subprocess.Popen(
        [sys.executable, "-m", "leakline", "watch", str(pid), "--mode", "offline", *options],
        cwd=place.folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watch.stderr is not None
    line = watch.stderr.readline()
    pause, deadline = threading.Event(), time.monotonic() + 20
    while not any(each.snapshots for each in place.recorded()):
        assert time.monotonic() < deadline
        pause.wait(0.02)
    return watch, line


@pytest.mark.parametrize(
    ("pid", "status", "why"),
    [
        ("0", 2, "PID"),
        ("-5", 2, ""),
        ("x", 2, "invalid int"),
        (str(2**22 + 7), 1, "does not exist"),
    ],
)
def test_watching_a_nonexistent_process_is_a_one_line_error(
    leakline: Any, pid: str, status: int, why: str
) -> None:
    said = leakline("watch", pid)
    assert (said.status, said.output) == (status, "")
    assert why in said.error


def test_a_process_that_has_ended_cannot_be_watched(leakline: Any) -> None:
    # The process has not been waited for, so its number is still taken.
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    said = leakline("watch", str(process.pid))
    assert (said.status, "already ended" in said.errors) == (1, True)
    process.wait()


def test_children_of_a_watched_process_are_counted(place: Place, start: Start) -> None:
    process = start(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("ready", flush=True)
        try:
            child.wait()
        finally:
            child.kill()
        """
    )
    watch, _ = watching(place, process.pid)
    process.send_signal(signal.SIGINT)
    watch.communicate(timeout=60)
    (recorded,) = place.recorded()
    first = recorded.snapshots[0].samples
    assert first["children.count"] == 1
    assert first["children.uss_bytes"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_watch_does_not_affect_the_process(
    place: Place, start: Start, server: str, ask: Any, leakline: Any, number: signal.Signals
) -> None:
    process = start(GROWS, "60")
    watch, line = watching(place, process.pid, "--mode", "online", "--server", server)
    watch.send_signal(number)
    _, errors = watch.communicate(timeout=30)
    assert (watch.returncode, "Traceback" in errors) == (0, False)
    assert process.poll() is None
    run = request_json(server, "GET", f"/runs/{line.rpartition('/')[2].strip()}")
    why = "watched no longer; the program was still running"
    assert (run["state"], run["reason"]) == ("finished", why)
    assert run["rss_bytes"] > 0
    # The watcher waits for the verdict.
    said = errors.splitlines()[-1]
    assert said.startswith("leakline: learning: ") and f" -> {server}/runs/" in said
    (listed,) = [each for each in ask("runs").output.splitlines() if run["id"] in each]
    # Runs by the second have no generation count; that is not zero.
    assert re.search(r" finished {2,}[\d.]+ [KMG]iB ", listed)
    assert f"attempt 1: {why}\n" in leakline("report", str(place.folder / ".leakline")).output


def test_a_program_waiting_for_cpu_has_more_time_to_report_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine a slow interpreter was also watched from outside, which gave two recordings of it."""
    monkeypatch.setattr(program_launch, "STARTING_CPU_SECONDS", 60)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen(["sleep", "60"])
    try:
        eventually(lambda: _waits_for_a_processor(busy.pid))
        eventually(lambda: not _waits_for_a_processor(idle.pid))
        # Its time is over, and it has not reported that it observes itself.
        monkeypatch.setattr(program_launch, "STARTING_CPU_SECONDS", 0.1)
        eventually(lambda: not _waits_for_a_processor(busy.pid))
    finally:
        for each in (busy, idle):
            each.kill()
            each.wait()
    assert not _waits_for_a_processor(busy.pid)


# -- `leakline watch --inside`: an observer that starts in a running program --------------------------------


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("sleep", "60"), "is not a Python program; leave out --inside"),
        (
            (sys.executable, "-c", "input()"),
            "--inside requires Python 3.14 or newer, but process {} runs Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}; leave out --inside",
        ),
        (("python3.14", "-c", "input()"), "runs Python 3.14, but this command runs Python"),
    ],
)
def test_a_program_of_another_kind_is_not_observed_from_inside(
    place: Place, leakline: Any, command: tuple[str, ...], why: str
) -> None:
    if sys.version_info >= (3, 14) and "python" in command[0]:
        pytest.skip("this Python version can observe the program")
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        # The name of the process changes when its program is loaded.
        name = Path(command[0]).resolve().name
        eventually(lambda: Path(f"/proc/{process.pid}/exe").readlink().name == name)
        said = leakline("watch", str(process.pid), "--inside", "--directory", str(place.folder))
        assert (said.status, said.output) == (1, "")
        assert why.format(process.pid) in said.error
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert list(place.folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
def test_a_program_of_another_user_is_not_observed_from_inside(leakline: Any) -> None:
    process = subprocess.Popen(["sleep", "60"], user=65534)
    try:
        said = leakline("watch", str(process.pid), "--inside")
        assert (said.status, "belongs to another user" in said.error) == (1, True)
    finally:
        process.kill()
        process.wait()


needs_remote_exec = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="one process can run code in another since Python 3.14"
)
EPISODES = """
import sys, time
class Episode:
    def __init__(self):
        self.steps = bytearray(400_000)
kept = []
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    kept.append(Episode())
    time.sleep(0.04)
print("done")
sys.exit(3)
"""


def watch_inside(place: Place, pid: int, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "leakline", "watch", str(pid), "--inside", "--mode", "offline", "--per", "second",
            *options,
        ],
        cwd=place.folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@needs_remote_exec
def test_an_observer_inside_a_running_program_names_the_type(place: Place, start: Start) -> None:
    process = start(EPISODES, "12")
    _, errors = watch_inside(place, process.pid).communicate(timeout=60)
    first, last = errors.splitlines()
    assert first.startswith("leakline: run ")
    assert re.match(r"leakline: (suspected|confirmed): The run keeps \d+ Episode per second", last)
    # The program does not notice it.
    assert process.stdout is not None
    assert (process.stdout.read(), process.wait()) == ("done\n", 3)
    (recorded,) = place.recorded()
    assert (recorded.process.pid, recorded.header.unit) == (process.pid, "second")


@needs_remote_exec
def test_an_observer_inside_a_program_stays_when_watch_is_stopped(
    place: Place, start: Start
) -> None:
    process = start(EPISODES, "5")
    watch = watch_inside(place, process.pid)
    assert watch.stderr is not None
    assert watch.stderr.readline().startswith("leakline: run ")
    # A second observer is refused.
    again = watch_inside(place, process.pid)
    _, errors = again.communicate(timeout=30)
    assert (again.returncode, "already belongs to a run" in errors) == (1, True)
    watch.send_signal(signal.SIGINT)
    _, errors = watch.communicate(timeout=30)
    assert watch.returncode == 0
    assert f"process {process.pid} is recorded from inside until it ends" in errors
    process.wait()
    (recorded,) = place.recorded()
    assert recorded.end is not None and len(recorded.snapshots) > 2


FORKS = """
import os, sys, time
names = "logging", "http.client", "hashlib", "decimal", "importlib.metadata", "tempfile", "subprocess", "ssl"
print("ready", flush=True)
number, children = 0, set()
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until + 10 * bool(children):
    if time.monotonic() < until and len(children) < 3:
        number += 1
        child = os.fork()
        if child == 0:
            __import__(names[number % len(names)])
            os._exit(0)
        children.add(child)
    children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
    time.sleep(0.002)
for child in children:
    os.kill(child, 9)
print(len(children), "children hang")
"""


@needs_remote_exec
def test_children_forked_while_the_observer_starts_can_import(place: Place, start: Start) -> None:
    """A child forked during an import of the observer's thread could never import that module."""
    process = start(FORKS, "5")
    assert watch_inside(place, process.pid).wait(60) == 0
    assert process.stdout is not None
    assert process.stdout.read() == "0 children hang\n"


@needs_remote_exec
def test_a_program_with_its_own_run_keeps_it(place: Place, start: Start) -> None:
    process = start(f"import leakline\nleakline.init(mode='offline', quiet=True)\n{EPISODES}", "3")
    _, errors = watch_inside(place, process.pid).communicate(timeout=30)
    (line,) = errors.splitlines()
    assert "already belongs to a run of Leakline" in line
    process.wait()
    (recorded,) = place.recorded()
    assert recorded.header.unit == "generation"


@needs_remote_exec
def test_a_program_outside_python_is_observed_once_it_returns(place: Place, start: Start) -> None:
    pauses = "import time\nprint('ready', flush=True)\ntime.sleep(13)\nwhile True: time.sleep(0.05)"
    process = start(pauses)
    watch = watch_inside(place, process.pid)
    assert watch.stderr is not None
    expected = f"leakline: recording starts when process {process.pid} returns to Python code\n"
    assert watch.stderr.readline() == expected
    assert watch.stderr.readline().startswith("leakline: run ")
    process.send_signal(signal.SIGINT)
    watch.communicate(timeout=30)
    assert len(list(place.recorded())) == 1


@needs_remote_exec
def test_a_program_that_forbids_remote_debugging_is_not_observed(
    place: Place, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    monkeypatch.setenv("PYTHON_DISABLE_REMOTE_DEBUG", "1")
    process = start(EPISODES, "60")
    watch = watch_inside(place, process.pid)
    _, errors = watch.communicate(timeout=30)
    (line,) = errors.splitlines()
    assert (watch.returncode, "PYTHON_DISABLE_REMOTE_DEBUG" in line) == (1, True)
