"""Errors in Leakline, or in what the program gave it, never reach the program and keep none of its objects alive."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from tests.client.recording import events, recorded

import leakline
from leakline import Run
from leakline.console import Notices, set_up
from leakline.errors import BadArgument
from leakline.runtime import error_boundary
from leakline.runtime.error_boundary import Guard


class Agent:
    """An object that belongs to the program."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("planned")


def test_a_swallowed_exception_keeps_nothing_of_the_program_alive(internal_exceptions: Any) -> None:
    error_boundary._KEEP_EXCEPTIONS = False
    agent = Agent()
    with Guard("a test"):
        raise ValueError("planned", agent)
    gone = weakref.ref(agent)
    del agent
    gc.collect()
    assert gone() is None
    assert [kind for kind, _ in internal_exceptions] == ["ValueError"]
    internal_exceptions.clear()


def test_an_exception_whose_str_fails_is_swallowed_too(internal_exceptions: Any) -> None:
    with Guard("a test"):
        raise Unspeakable
    assert len(internal_exceptions) == 1
    internal_exceptions.clear()


class Broken:
    """A stderr whose reader is gone, that is closed, or that is being written to by another thread."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "stderr",
    [None, *map(Broken, (BrokenPipeError(), ValueError("closed"), RuntimeError("reentrant")))],
)
def test_a_broken_stderr_raises_nothing_in_the_program(
    monkeypatch: pytest.MonkeyPatch, stderr: Any
) -> None:
    set_up()
    monkeypatch.setattr(sys, "stderr", stderr)
    Notices(False).say("hello")


# Every method of every class that a training uses is broken; the program has its own exit status.
BROKEN_CLIENT = """
import sys
import leakline, leakline.sampling.sampler, leakline.core.pipeline
import leakline.transport.recorder, leakline.transport.spool_file, leakline.transport.sender

def refuse(*_, **__):
    raise RuntimeError("broken")

transport = leakline.transport
classes = (leakline.sampling.sampler.Sampler, transport.recorder.Recorder,
           transport.spool_file.SpoolFile, transport.sender.Sender)
for cls in classes:
    for name in [each for each, what in vars(cls).items() if callable(what) and not each.startswith("__")]:
        setattr(cls, name, refuse)
run = leakline.init(project="broken", watch=[dict])
run.expect(dict, 2)
for generation in range(3):
    with run.generation(generation), run.phase("train"):
        print("trained", generation)
print(run.gauge("reward", 1.0), run.mark("x"), run.snapshot("here"))
run.finish()
sys.exit(7)
"""


def test_a_fully_broken_client_changes_neither_output_nor_exit_status(
    start: Any,
) -> None:
    process = start(BROKEN_CLIENT, LEAKLINE_MODE="offline")
    said, errors = process.communicate(timeout=60)
    trained = [f"trained {n}" for n in range(3)]
    assert said.splitlines() == [*trained, "None None None"], errors
    assert process.returncode == 7, errors


def test_our_lines_stay_off_stdout_when_the_program_logs_there(start: Any) -> None:
    process = start(
        "import logging, sys, leakline\n"
        "logging.basicConfig(stream=sys.stdout, level=logging.INFO)\n"
        "leakline.init(mode='offline').finish()\n"
        "logging.info('theirs')\n"
    )
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "INFO:root:theirs\n")
    assert errors.startswith("leakline: run ")


def test_a_tracked_function_that_fails_costs_only_its_own_line(
    offline: Run, internal_exceptions: Any
) -> None:
    calls = iter(range(100))

    def broken() -> int:
        raise ValueError("planned")

    def fails_twice_of_three() -> int:
        if (number := next(calls)) % 3:
            raise ValueError("planned")
        return number

    offline.track("broken", broken)
    offline.track("shaky", fails_twice_of_three)
    offline.track("huge", lambda: 2**53 + 1)
    offline.track("good", lambda: 7)
    for _ in range(8):
        with offline.phase("train"):
            pass
    offline.finish()
    internal_exceptions.clear()
    ends = [s.samples for s in recorded() if s.kind == "phase_end"]
    assert [s["tracked.good.length"] for s in ends] == [7] * 8
    assert [s.get("tracked.shaky.length") for s in ends] == [0, None, None, 3, None, None, 6, None]
    assert not any("tracked.broken.length" in s or "tracked.huge.length" in s for s in ends)


def test_numbers_beyond_2_to_the_53_are_refused(offline: Run) -> None:
    over = 2**53 + 1
    for call in (
        lambda: offline.gauge("pending", over),
        lambda: offline.gauge("pending", -over),
        lambda: offline.gauge("pending", 1, warn_above=10**5000),
        lambda: offline.track("replay", [], capacity=over),
        lambda: offline.expect(dict, over),
        lambda: offline.expect(dict, (1, over)),
    ):
        with pytest.raises(BadArgument, match=r"2\*\*53"):
            call()
    offline.gauge("pending", 2**53)


def test_lone_surrogates_in_a_note_are_replaced(offline: Run) -> None:
    offline.note("before \ud800 after", link="http://x/\udcff")
    offline.finish()
    (note,) = events("note")
    assert note.data == {"text": "before ? after", "link": "http://x/?"}


def test_a_run_keeps_no_object_alive_and_after_its_end_no_callback() -> None:
    run = leakline.init(mode="offline", quiet=True, watch=[Agent])
    agent, heard = Agent(), Agent()
    holder = [agent]
    run.track("holder", lambda: holder)
    gone = [weakref.ref(agent), weakref.ref(heard)]

    def callback(verdict: object, heard: Agent = heard) -> None: ...

    run.on("ok", callback)
    for generation in range(4):
        with run.generation(generation), run.phase("train"):
            pass
    del agent
    holder.clear()
    gc.collect()
    assert gone[0]() is None
    run.finish()
    del heard, callback
    gc.collect()
    assert gone[1]() is None
