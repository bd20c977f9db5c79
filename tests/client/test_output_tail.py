"""Program output and log lines are captured only if the user allows it, and capturing never disturbs the program."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.core.output_tail import (
    EVENT_BYTES,
    EVENT_SECONDS,
    LINE_LIMIT,
    LINES_KEPT,
    PIECES_KEPT,
    OutputTail,
)
from leakline.snapshot import Snapshot
from leakline.transport.spool_format import read_end

Recorded = Callable[[], list[Snapshot]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += EVENT_SECONDS
        return self.now


class Heard(OutputTail):
    """An OutputTail over two streams in memory."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.out, self.err = io.StringIO(), io.StringIO()


@pytest.fixture
def tail() -> Iterator[Heard]:
    tail = Heard()
    tail.start(tail.out, tail.err)
    yield tail
    tail.stop()


def test_lines_of_both_streams_are_sent_in_order_once_complete(tail: Heard) -> None:
    print("first", 1, file=tail.out)
    print("to stderr", file=tail.err)
    tail.out.writelines(["third\n", "and fourth\n", "half"])
    assert tail.take() == ["first 1", "to stderr", "third", "and fourth"]
    assert tail.take() == []
    print(" and half", file=tail.out)
    print("left open", end="", file=tail.out)
    assert tail.take() == ["half and half"]
    assert tail.take(last=True) == ["left open"]


def test_lines_wait_for_half_a_second_after_the_last_event() -> None:
    now = 100.0
    stream, tail = io.StringIO(), OutputTail(lambda: now)
    tail.start(stream)
    print("first", file=stream)
    assert tail.take() == ["first"]
    print("second", file=stream)
    now += EVENT_SECONDS / 2
    assert (tail.waits(), tail.take()) == (False, [])
    now += EVENT_SECONDS / 2
    assert tail.take() == ["second"]
    tail.stop()


def test_a_progress_bar_is_one_line(tail: Heard) -> None:
    for percent in range(0, 101, 5):
        print(f"\r{percent:3d}%|{'#' * (percent // 5):20}|\x1b[A", end="", file=tail.err)
    print(file=tail.err)
    print("after\r", file=tail.out)
    assert tail.take() == [f"100%|{'#' * 20}|", "after"]


def test_a_long_line_is_cut_and_a_long_text_leaves_its_last_lines(tail: Heard) -> None:
    print("x" * 10_000_000, file=tail.out)
    assert tail.take() == ["x" * LINE_LIMIT]
    print("\n".join(f"row {i}" for i in range(100_000)), file=tail.out)
    assert tail.take() == [f"row {i}" for i in range(100_000 - LINES_KEPT, 100_000)]


def test_the_size_of_one_event_is_bounded(tail: Heard) -> None:
    for _ in range(LINES_KEPT):
        print("\u4e16" * LINE_LIMIT, file=tail.out)
    lines = tail.take()
    assert lines
    assert len(json.dumps(lines)) <= EVENT_BYTES + 100


def test_our_own_and_empty_lines_are_not_captured(tail: Heard) -> None:
    for i in range(2 * LINES_KEPT):
        print(f"step {i}\n", file=tail.out)
        print(f"leakline: generation {i}: end: RSS 1.00 GiB", file=tail.err)
    assert tail.take() == [f"step {i}" for i in range(LINES_KEPT, 2 * LINES_KEPT)]


def test_waiting_lines_are_bounded(tail: Heard) -> None:
    for _ in range(20 * PIECES_KEPT):
        tail.out.write(".")
    assert len(tail._pieces) == PIECES_KEPT


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("api_key=abcd1234", "api_key=***"),
        ("{'password': 'hunter22'}", "{'password': '***'}"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUt", "AWS_SECRET_ACCESS_KEY=***"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("token: hf_abcdefghijkl", "token: ***"),
        ("postgres://me:pass@db/x", "postgres://me:***@db/x"),
        ("tokens: 1048576, loss 0.3", "tokens: 1048576, loss 0.3"),
        ("tokens_per_second=12345.67", "tokens_per_second=12345.67"),
        ("the secret of it", "the secret of it"),
        ("\x1b[1;31mred\x1b[0m\ttab\x00 bell\x07 \u2028line\ud800", "red    tab bell line"),
    ],
)
def test_secrets_are_masked_and_control_characters_removed(
    tail: Heard, said: str, kept: str
) -> None:
    print(said, file=tail.out)
    assert tail.take() == [kept]


def test_extra_arguments_of_write_are_passed_on() -> None:
    class Tee(io.StringIO):
        def write(self, text: str, color: str = "") -> int:  # type: ignore[override]
            return super().write(f"{color}{text}")

    stream, tail = Tee(), OutputTail(Clock())
    tail.start(stream)
    stream.write("plain\n")
    stream.write("colored\n", color="red ")
    stream.write(text="by name\n")
    assert tail.take() == ["plain", "colored"]
    tail.stop()
    assert stream.getvalue() == "plain\nred colored\nby name\n"


@contextlib.contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """Restore the root logger of a plain program. Not a fixture: pytest adds its handlers when a test begins."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_log_record_is_captured_once_whatever_its_handlers(tail: Heard, tmp_path: Path) -> None:
    log = logging.getLogger("train")
    with bare_root() as root:
        logging.basicConfig(level=logging.INFO, stream=tail.err)
        log.info("loss %.2f", 0.5)
        assert tail.take() == ["INFO:train:loss 0.50"]
        to_file = logging.FileHandler(tmp_path / "train.log")
        root.handlers[:] = [to_file]
        log.warning("only in the %s", "file")
        log.debug("nowhere")
        assert tail.take() == ["WARNING train: only in the file"]
        to_file.close()


def test_a_log_record_that_cannot_be_formatted_is_skipped(
    tail: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with bare_root():
        logging.basicConfig(level=logging.INFO, stream=tail.err)
        logging.getLogger("train").info("loss %d", "text")
    assert tail.take() == []


def test_logging_behaves_as_without_leakline(tail: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of ours on the root logger would disable ``basicConfig`` and the handler of last resort."""
    monkeypatch.setattr(sys, "stderr", tail.err)
    with bare_root() as root:
        logging.getLogger("train").warning("last resort")
        assert tail.err.getvalue() == "last resort\n"
        assert tail.take() == ["last resort"]
        logging.basicConfig(format="mine %(message)s")
        assert len(root.handlers) == 1


def test_streams_and_logging_are_restored() -> None:
    tail, real = Heard(), logging.Logger.callHandlers
    out, err = tail.out, tail.err
    before = (out.write, err.write)
    tail.start(out, err)
    assert out.write != before[0]
    tail.stop()
    assert (out.write, err.write, logging.Logger.callHandlers) == (*before, real)
    assert "write" not in vars(out)


def test_a_wrapper_around_ours_stays_and_still_prints(tail: Heard) -> None:
    heard: list[str] = []
    out, ours = tail.out, tail.out.write

    def theirs(text: str) -> int:
        heard.append(text)
        return ours(text)

    vars(out)["write"] = theirs
    tail.stop()
    print("still there", file=out)
    assert out.getvalue() == "".join(heard) == "still there\n"
    assert tail.take() == []


def test_a_stream_that_cannot_be_wrapped_is_left_alone() -> None:
    class Slotted:
        __slots__ = ("got",)

        def __init__(self) -> None:
            self.got: list[str] = []

        def write(self, text: str) -> int:
            self.got.append(text)
            return len(text)

    stream, tail = Slotted(), OutputTail(Clock())
    tail.start(stream, None)
    print("as before", file=stream)  # type: ignore[call-overload]
    tail.stop()
    assert stream.got == ["as before", "\n"]


def test_a_str_subclass_that_fails_raises_nothing(tail: Heard) -> None:
    class Text(str):
        __slots__ = ()

        def __len__(self) -> int:
            raise RuntimeError("planned")

        def __getitem__(self, _: object) -> str:
            raise RuntimeError("planned")

        __add__ = __radd__ = split = find = __getitem__  # type: ignore[assignment]

    tail.out.write(Text("own\n"))
    tail.out.write(Text("x" * 100_000 + "\n"))
    assert tail.take() == ["own", "x" * LINE_LIMIT]


def test_stream_errors_reach_the_program(tail: Heard) -> None:
    with pytest.raises(TypeError):
        tail.out.write(1)  # type: ignore[arg-type]
    tail.out.close()
    with pytest.raises(ValueError, match="closed"):
        print("gone", file=tail.out)


@pytest.mark.parametrize("printed", [True, False])
def test_a_traceback_is_recorded_once(tail: Heard, printed: bool) -> None:
    print("the last word", file=tail.out)
    try:
        raise ValueError("planned")
    except ValueError as error:
        tail.ends_with(error)
        if printed:
            traceback.print_exception(error, file=tail.err)
    lines = tail.take(last=True)
    assert lines[:2] == ["the last word", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: planned"
    assert lines.count("ValueError: planned") == 1


def test_the_verdict_keeps_no_lines(recorded: Recorded) -> None:
    run = leakline.init(mode="offline", quiet=True, log_lines=True)
    run.on("suspected", lambda verdict: None)
    run.generation(0)
    sys.stdout.write("printed\n")
    run.mark("kept")
    run.snapshot("now")
    kept = [e.kind for s in run._chain.verdicts._snapshots for e in s.events]
    run.finish()
    # A garbage collection may be recorded as well.
    assert "mark" in kept and "log" not in kept
    assert lines_of(recorded) == ["printed"]


START = """
import logging, os, signal, sys, threading, time
import leakline
run = leakline.init(mode="offline", quiet=True)
run.generation(0)
"""


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    def start(code: str, allowed: bool = True, **environment: str) -> Any:
        script = tmp_path / "train.py"
        script.write_text(START + textwrap.dedent(code))
        return subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "LEAKLINE_LOG_LINES": "1" if allowed else "0", **environment},
        )  # fmt: skip

    return start


def lines_of(recorded: Recorded) -> list[str]:
    events = [e for s in recorded() for e in s.events if e.kind == "log"]
    assert all(len(e.data["lines"]) <= LINES_KEPT for e in events)
    return [line for e in events for line in e.data["lines"]]


def test_lines_are_captured_only_if_enabled(recorded: Recorded) -> None:
    for allowed in (False, True):
        run = leakline.init(mode="offline", quiet=True, log_lines=allowed)
        assert ("write" in vars(sys.stdout)) is allowed
        sys.stdout.write(f"allowed: {allowed}\n")
        run.finish()
        sys.stdout.write("too late\n")
    assert lines_of(recorded) == ["allowed: True"]
    with pytest.raises(leakline.BadArgument, match="log_lines"):
        leakline.init(log_lines="yes")  # type: ignore[arg-type]


WRITES = r"""
import subprocess
for i in range(3000):
    print(i, "\x1b[31m\r\t \u4e16", end="\r\n" if i % 3 else "")
    sys.stdout.write("x" * (i % 50))
    sys.stderr.write("e")
sys.stdout.flush()
sys.stdout.buffer.write(b"\xff\x00raw\n")
sys.stdout.buffer.flush()
subprocess.run([sys.executable, "-c", "print('child')"])
threads = [threading.Thread(target=print, args=("thread",)) for _ in range(5)]
for thread in threads: thread.start(); thread.join()
print(sys.stdout.isatty(), sys.stdout.fileno(), sys.stdout.encoding, sys.stdout.name, type(sys.stdout).__name__,
      sys.stdout is sys.__stdout__)
"""


def test_stdout_and_stderr_are_unchanged_to_the_byte(train: Any) -> None:
    plain = train(WRITES, allowed=False, PYTHONIOENCODING="utf-8").communicate(timeout=60)
    heard = train(WRITES, PYTHONIOENCODING="utf-8").communicate(timeout=60)
    assert heard == plain
    assert len(plain[0]) > 50_000


def test_after_kill_9_the_lines_up_to_about_a_second_before_remain(
    train: Any, recorded: Recorded, until: Any
) -> None:
    process = train("""
        number = 0
        while True:
            number += 1
            print("at", number, time.time(), flush=True)
            time.sleep(0.01)
    """)
    until(lambda: len(lines_of(recorded)) > 10, 30)
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    printed = [line.split() for line in out.decode().splitlines() if line.count(" ") == 2]
    kept = lines_of(recorded)[-1].split()
    assert kept in printed
    # Up to a second between two readings and a quarter until the write; the test machine is shared.
    assert float(printed[-1][2]) - float(kept[2]) < 3.0


def test_the_output_of_a_forked_child_is_not_captured(train: Any, recorded: Recorded) -> None:
    process = train("""
        if os.fork() == 0:
            print("child", "write" in vars(sys.stdout), flush=True)
            os._exit(0)
        os.wait()
        print("parent", "write" in vars(sys.stdout), flush=True)
    """)
    out, _ = process.communicate(timeout=60)
    assert out == b"child False\nparent True\n"
    assert lines_of(recorded) == ["parent True"]


@pytest.mark.parametrize(
    ("code", "state", "reason", "last"),
    [
        ("raise MemoryError('no more')", "failed", "MemoryError", "MemoryError: no more"),
        # torch.cuda names its error like this.
        (
            "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('no more')",
            "failed", "OutOfMemoryError", "OutOfMemoryError: no more",
        ),
        ("os.kill(os.getpid(), signal.SIGTERM)", "terminated", "SIGTERM", "almost done"),
    ],
)  # fmt: skip
def test_the_last_lines_and_the_exception_type_are_recorded(
    train: Any, recorded: Recorded, spool_directory: Path, code: str, state: str, reason: str, last: str
) -> None:  # fmt: skip
    train(f"print('almost done')\n{code}").communicate(timeout=60)
    (path,) = spool_directory.rglob("*.spool")
    end = read_end(path) or {}
    assert (end["state"], end["reason"]) == (state, reason)
    lines = lines_of(recorded)
    assert (lines[0], lines[-1]) == ("almost done", last)
    assert lines[1:2] == (["Traceback (most recent call last):"] if state == "failed" else [])


def test_out_of_memory_the_programs_own_error_is_shown(train: Any, spool_directory: Path) -> None:
    process = train("""
        import resource
        room = 64 * 2**20 + int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        kept = []
        def fill(size):
            while True:
                kept.append(bytearray(size))
        for size in (2**20, 2**14, 2**9, 64):
            try:
                fill(size)
            except MemoryError:
                pass
        fill(64)
    """)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    said = err.decode()
    assert said.count("Traceback (most recent call last)") == 1
    assert [line for line in said.splitlines() if line.startswith("MemoryError")] == ["MemoryError"]
    (path,) = spool_directory.rglob("*.spool")
    end = read_end(path)
    assert end is None or (end["state"], end["reason"]) == ("failed", "MemoryError")
