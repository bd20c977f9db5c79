"""The line at the end: the server's verdict where it has it in time, else worked out here, else where to see it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import leakline
from leakline import goodbye, starting


def last_line(caplog: pytest.LogCaptureFixture) -> str:
    return caplog.messages[-1]


def train(server: str, generations: int = 6) -> float:
    """Seconds that the end takes."""
    run = leakline.init(server=server)
    for generation in range(generations):
        run.generation(generation)
    started = time.monotonic()
    run.finish()
    return time.monotonic() - started


def verdict(generations: int, summary: str = "it leaks") -> dict[str, Any]:
    return {"generations": generations, "status": "confirmed", "summary": summary}


def test_the_server_says_it_when_it_has_seen_all_generations(
    server: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "GOODBYE_SECONDS", 10.0)
    server.verdicts = [verdict(0, "early"), verdict(5, "nearly"), verdict(6)]
    train(server.address)
    assert last_line(caplog) == "leakline: confirmed: it leaks"
    assert server.requests[-1][1].endswith("/verdict")
    assert server.ends, "it is asked after the end was told"


def test_a_server_that_is_behind_is_not_waited_for(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.verdicts = [verdict(2)]
    # 0.2 s is the aim; the machine that runs the tests is shared.
    assert train(server.address) < 1.0
    assert "it leaks" not in last_line(caplog)
    assert server.address in last_line(caplog) or "generations" in last_line(caplog)


def test_a_server_that_is_slow_to_say_it_costs_a_tenth_of_a_second(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handle, slow = server.handle, threading.Event()

    def wait_for_verdicts(request: Any) -> Any:
        if request.path.endswith("/verdict"):
            slow.wait(5)
        return handle(request)

    server.handle = wait_for_verdicts
    assert train(server.address) < 1.0
    slow.set()
    assert len(server.sequences) == 8
    assert "not everything was sent" not in caplog.text


def test_a_server_that_refuses_for_now_is_not_called_absent(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    full = {"error": {"code": "disk_full", "message": "the disk of the server is full"}}
    server.answer(503, full)
    train(server.address)
    (said,) = [line for line in caplog.messages if "disk of the server" in line]
    assert said.startswith(
        f"leakline: {server.address} refuses for now (the disk of the server is full); "
        "the snapshots are kept and sent later; recording goes on to "
    )
    assert "no Leakline server answers" not in caplog.text


def test_a_server_that_is_absent_is_called_so(caplog: pytest.LogCaptureFixture) -> None:
    train("http://127.0.0.1:9")
    (said,) = [line for line in caplog.messages if "recording goes on" in line]
    assert said.startswith("leakline: no Leakline server answers at http://127.0.0.1:9 (")


def test_a_quiet_run_asks_nothing(server: Any) -> None:
    run = leakline.init(server=server.address, quiet=True)
    run.finish()
    assert not [path for _, path in server.requests if path.endswith("/verdict")]


def test_without_a_server_it_is_worked_out_here(caplog: pytest.LogCaptureFixture) -> None:
    run = leakline.init(mode="offline")
    for generation in range(6):
        run.generation(generation)
    run.finish()
    assert "6 generations" in last_line(caplog)


@pytest.mark.parametrize(
    "said", [{}, {"generations": "6", "summary": "x"}, {"generations": 6, "summary": None}]
)
def test_an_answer_that_is_no_verdict_is_none(server: Any, said: dict[str, Any]) -> None:
    from leakline.delivery import Delivery

    server.verdicts = [said]
    delivery = Delivery(server.address)
    assert goodbye.verdict_of_server(delivery, "r1", 6, 0.05) is None


def test_what_a_server_says_is_one_printable_line(server: Any) -> None:
    from leakline.delivery import Delivery

    server.verdicts = [verdict(6, "a\x1b[31m\nb" + 1000 * "c")]
    said = goodbye.verdict_of_server(Delivery(server.address), "r1", 6, 5.0)
    assert said is not None
    assert said.isprintable()
    assert len(said) <= goodbye.LINE_LIMIT
