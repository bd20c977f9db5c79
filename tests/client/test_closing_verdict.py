"""The exit summary: the server's verdict if it arrives in time, otherwise the client's own, and how the run ended."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import leakline
from leakline.core import pipeline
from leakline.transport.http_delivery import Delivery
from leakline.transport.oom_inference import UNWATCHED, ended_as, said_at_end

Caplog = pytest.LogCaptureFixture


def train(**named: Any) -> float:
    """Run six generations and return how many seconds the end takes."""
    run = leakline.init(**named)
    for generation in range(6):
        run.generation(generation)
    started = time.monotonic()
    run.finish()
    return time.monotonic() - started


def said_of(generations: int, summary: str = "it leaks") -> dict[str, Any]:
    return {"generations": generations, "status": "confirmed", "summary": summary}


def test_the_server_verdict_is_used_once_it_covers_all_generations(
    server: Any, caplog: Caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine has more time.
    monkeypatch.setattr(pipeline, "EXIT_SECONDS", 10.0)
    # Asked twenty times a second, so that the verdict is known after half a second.
    server.verdicts = [said_of(0, "early")] + 9 * [said_of(5, "nearly")] + [said_of(6)]
    train(server=server.address)
    assert caplog.messages[-1] == "leakline: confirmed: it leaks"
    assert server.requests[-1][1].endswith("/verdict")
    assert server.ends, "it is asked after the end was sent"


def test_the_end_does_not_wait_for_a_server_that_is_behind(server: Any, caplog: Caplog) -> None:
    server.verdicts = [said_of(2)]
    # `test_endings.py` checks how long an end may take.
    assert train(server=server.address) < 5.0
    assert "it leaks" not in caplog.messages[-1]
    assert server.address in caplog.messages[-1] or "generations" in caplog.messages[-1]


def test_the_end_does_not_wait_for_a_slow_server(server: Any, caplog: Caplog) -> None:
    handle, slow = server.handle, threading.Event()

    def wait_for_verdicts(request: Any) -> Any:
        if request.path.endswith("/verdict"):
            slow.wait(30)
        return handle(request)

    server.handle = wait_for_verdicts
    assert train(server=server.address) < 5.0
    slow.set()
    assert len(server.sequences) == 8
    assert "some data was not sent" not in caplog.text


def test_a_token_that_cannot_read_is_not_sent_to_a_command(server: Any, caplog: Caplog) -> None:
    handle = server.handle

    def refuse_verdicts(request: Any) -> Any:
        if request.path.endswith("/verdict"):
            return 403, {}, b'{"error": {"code": "scope_too_small", "message": "only adds"}}'
        return handle(request)

    server.handle = refuse_verdicts
    train(server=server.address)
    (run,) = {path.split("/")[4] for _, path in server.requests if path.endswith("/batches")}
    expected = f"the verdict is at {server.address}/runs/{run}; this token cannot read it"
    assert caplog.messages[-1] == f"leakline: {expected}"


def test_a_server_that_answers_503_is_not_called_unreachable(server: Any, caplog: Caplog) -> None:
    full = {"error": {"code": "disk_full", "message": "the disk of the server is full"}}
    server.answer(503, full)
    train(server=server.address)
    (said,) = [line for line in caplog.messages if "disk of the server" in line]
    assert said.startswith(
        f"leakline: {server.address} is temporarily refusing requests (the disk of the server is full); "
        "the snapshots are kept and sent later; recording continues in "
    )
    assert "cannot reach a Leakline server" not in caplog.text


def test_an_unreachable_server_is_reported(caplog: Caplog) -> None:
    train(server="http://127.0.0.1:9")
    (said,) = [line for line in caplog.messages if "recording continues" in line]
    assert said.startswith("leakline: cannot reach a Leakline server at http://127.0.0.1:9 (")


def test_a_quiet_run_requests_no_verdict(server: Any) -> None:
    train(server=server.address, quiet=True)
    assert not [path for _, path in server.requests if path.endswith("/verdict")]


def test_without_a_server_the_client_computes_the_verdict(caplog: Caplog) -> None:
    train(mode="offline")
    assert "6 generations" in caplog.messages[-1]


@pytest.mark.parametrize(
    "said", [{}, {"generations": "6", "summary": "x"}, {"generations": 6, "summary": None}]
)
def test_an_answer_that_is_not_a_verdict_is_ignored(server: Any, said: dict[str, Any]) -> None:
    server.verdicts = [said]
    delivery = Delivery(server.address)
    assert pipeline.verdict_of_server(delivery, "r1", 6, 0.05) is None


def test_text_from_a_server_becomes_one_printable_line(server: Any) -> None:
    server.verdicts = [said_of(6, "a\x1b[31m\nb" + 1000 * "c")]
    said = pipeline.verdict_of_server(Delivery(server.address), "r1", 6, 5.0)
    assert said is not None
    assert said.isprintable()
    assert len(said) <= pipeline.LINE_LIMIT


READING = "1.90 GiB of the 2.00 GiB limit was in use at the last reading"
KILL = f"memory: {READING}"
KILLED = f"Killed for memory after 4 generations ({READING})"
UNKNOWN = "before growth per generation could be measured"
MIB = 2**20


def verdict(status: str, summary: str, growth: float | None = None, **more: Any) -> dict[str, Any]:
    interval = None if growth is None else {"estimate": growth, "low": growth, "high": growth}
    return {
        "status": status, "summary": summary, "unit": "generation", "generations": 4,
        "growth_bytes_per_generation": interval, "findings": [], **more,
    }  # fmt: skip


LEARNING = verdict("learning", "Learning: 4 generations seen, too few to judge")
WATCH = verdict("watch", "Memory grows by +8 MiB per generation, but not long enough", 8 * MIB)
UNIDENTIFIED, NAMED = (
    {**WATCH, "findings": [{"status": "watch", "suspects": suspects}]}
    for suspects in ([], [{"name": "Env"}])
)
LEAK = verdict("confirmed", "train keeps 1 Env per generation", 8 * MIB)
OK = verdict("ok", "No leak: memory changes by +1.00 KiB per generation", 1024.0)
NOTHING = verdict("learning", "No verdict yet: no generation has ended", generations=0)


@pytest.mark.parametrize(
    ("found", "state", "reason", "said"),
    [
        (LEARNING, "killed", "SIGKILL", f"Killed by SIGKILL after 4 generations, {UNKNOWN}"),
        (LEARNING, "failed", "ValueError", f"Failed (ValueError) after 4 generations, {UNKNOWN}"),
        (LEARNING, "interrupted", "KeyboardInterrupt", f"Interrupted by Ctrl-C after 4 generations, {UNKNOWN}"),
        (NOTHING, "failed", "exit status 7", "Failed (exit status 7) before the first generation ended"),
        (WATCH, "killed", KILL, f"{KILLED}; until then memory changed by +8.00 MiB per generation"),
        (UNIDENTIFIED, "failed", "ImportError",
         "Failed (ImportError) after 4 generations; until then memory changed by +8.00 MiB per generation"),
        (NAMED, "failed", "ImportError", WATCH["summary"]),
        (LEAK, "killed", KILL, f"{KILLED}. train keeps 1 Env per generation"),
        (LEAK, "killed", "SIGTERM", LEAK["summary"]),
        (OK, "killed", KILL, f"{KILLED}. Memory changed by only +1.00 KiB per generation: "
         "look for code that fills memory within one generation, or for another process that uses memory"),
        (OK, "failed", "exit status 7", OK["summary"]),
        (LEARNING, "finished", "", LEARNING["summary"]),
    ],
)  # fmt: skip
def test_how_a_run_died_is_printed_first(
    found: dict[str, Any], state: str, reason: str, said: str
) -> None:
    assert said_at_end(found, state, reason) == said


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("running", "", "running"),
        ("finished", UNWATCHED, "watched no longer; the program was still running"),
        ("failed", "", "failed"),
        ("failed", "ValueError", "failed: ValueError"),
        ("killed", "", "killed"),
        ("killed", "memory: 9.7 GiB of 10 GiB", "killed for memory"),
        ("killed", "SIGTERM", "killed by SIGTERM"),
        ("killed", "KeyboardInterrupt", "interrupted by Ctrl-C"),
        ("terminated", "KeyboardInterrupt", "interrupted by Ctrl-C"),
        ("interrupted", "KeyboardInterrupt", "interrupted by Ctrl-C"),
    ],
)
def test_each_end_has_a_description(state: str, reason: str, text: str) -> None:
    assert ended_as(state, reason) == text
