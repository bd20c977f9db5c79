"""Whatever a program gives to the public calls, the real server takes what comes of it: all of it, in whole batches."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.flows.conftest import Server

import leakline
from leakline.errors import BadArgument
from leakline.runtime import error_boundary
from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_upload import Uploaded, upload

pytestmark = pytest.mark.flow
Send = Callable[[], Uploaded]
STRANGE = (
    "x" * 10_000, "\x00\x01\x7f\x1b[31m", "\ud800 half a pair", "\u202e right to left", "", " ", "\n\n",
    "\N{GRINNING FACE}" * 300, "a/b//c/", "../../etc", "'; drop table runs; --", "<script>alert(1)</script>",
    "phase.x.rss_bytes", "\u0130\u0131\ufb03", "e\u0301" * 200, "\ufeff", "null", "gauge.gauge.gauge",
)  # fmt: skip
HUGE = (
    0, -0.0, 1e-320, 2**53, -(2**53), 2**53 + 1, 10**30, 10**400, 1e15, 1.5e15, -1e18, 1e300, -1e300,
    sys.float_info.max, math.inf, -math.inf, math.nan, True,
)  # fmt: skip


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server.address
    server.stop()


@pytest.fixture
def uploaded(real_server: str, spool_directory: Path) -> Send:
    """What came of the one run of a test, sent to the real server. Raises when the run itself is refused."""

    def send() -> Uploaded:
        leakline.current().finish()
        (path,) = spool_directory.rglob("*.spool")
        return upload(path, Delivery(real_server))

    return send


def with_patience(call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """A wrong argument may be told at once; nothing else may come of it."""
    with contextlib.suppress(BadArgument):
        call(*arguments, **named)


@pytest.fixture
def run() -> leakline.Run:
    return leakline.init(mode="offline", quiet=True)


def test_names(run: leakline.Run, uploaded: Send) -> None:
    for number, name in enumerate(STRANGE):
        run.generation(number)
        with run.phase(name), run.phase(name[::-1]):
            run.snapshot(name)
        run.mark(name)
        run.note(name * 3, link=name)
        for call in (run.gauge, run.track):
            with_patience(call, name, [] if call == run.track else 1)
        with_patience(run.expect, name, (0, 2**53), after=name)
        with_patience(run.expect, "a.B", 1, after=name)
        with_patience(run.find_holders, name)
        with_patience(run.band, name, (0, None), low=0)
        with_patience(run.budget, name, normal="1 MB")
        with_patience(run.fix, name, phase=name, location=name, promises={"peak_bytes": 1})
        with_patience(run.register_cleanup, name, lambda: None, when=("gauge.x", 1))
        with run.cleanup(name):
            pass
    done = uploaded()
    assert done.refused == 0
    assert done.sent > 3 * len(STRANGE)


def test_phases_deeper_than_anybody_nests_them(run: leakline.Run, uploaded: Send) -> None:
    for number in range(2):
        run.generation(number)
        with contextlib.ExitStack() as stack:
            for depth in range(40):
                stack.enter_context(run.phase(f"{depth}" + "x" * 300))
    for number in range(200):
        with run.phase(f"{number} " + "y" * 120):
            pass
    done = uploaded()
    assert (done.refused, done.sent > 200) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["", "_bytes", ".count", ".length"])
def test_numbers(run: leakline.Run, uploaded: Send, suffix: str) -> None:
    for number, value in enumerate(HUGE):
        run.generation(number)
        with_patience(run.gauge, f"n{number}{suffix}", value)
        with_patience(run.gauge, f"w{number}", 1, warn_above=value)
        with_patience(run.expect, "a.B", value)
        with_patience(run.expect, "a.B", (0, value))
        with_patience(run.track, f"t{number}", [], capacity=value)
        with_patience(run.track, f"f{number}{suffix}", lambda value=value: value)
        for low, high in ((value, None), (None, value)):
            with_patience(run.band, "process.rss_bytes", (0, 10), low=low, high=high)
            with_patience(run.budget, "train", normal=low, leak=high)
        with_patience(run.band, "gauge.x", (value, value), low=1)
        with_patience(run.fix, "f", promises={"peak_bytes": value})
        with_patience(run.fix, "f", promises={"generations": value, "count:a.B": value})
        for call in (run.generation, run.epoch):
            with contextlib.suppress(TypeError, OverflowError, ValueError):
                call(value)
        run.snapshot("after")
    done = uploaded()
    # Functions of the program that give no length, and generations that are no numbers.
    error_boundary.swallowed.clear()
    assert (done.refused, done.sent > len(HUGE)) == (0, True)


def test_very_many_of_everything(run: leakline.Run, uploaded: Send) -> None:
    class Agent:
        pass

    kept = []
    classes = [type(f"Class{'z' * 600}{number}", (), {}) for number in range(400)]
    for number in range(4):
        run.generation(number)
        for i in range(600):
            with_patience(run.gauge, f"{number}.{i}" + "g" * 100, i)
            with_patience(run.track, f"{number}.{i}", kept)
            run.mark("m" * 300)
            run.expect(classes[i % 400], (0, i))
        kept += [kind() for kind in classes for _ in range(20)]
        kept += [Agent() for _ in range(1000)]
        run.census()
        run.find_holders(Agent)
        with run.phase("train"):
            pass
    done = uploaded()
    assert (done.refused, done.sent > 8) == (0, True)


def test_cleanups_whose_functions_misbehave(run: leakline.Run, uploaded: Send) -> None:
    def fail() -> None:
        raise ValueError("\ud800" * 5000)

    with_patience(run.register_cleanup, "fails", fail, when=("gauge.x", 0))
    for number in range(12):
        run.generation(number)
        run.gauge("x", 1)
        with run.phase("train"):
            pass
        with contextlib.suppress(ValueError), run.phase("raises"):
            fail()
    assert uploaded().refused == 0
    error_boundary.swallowed.clear()


def test_names_of_classes_attributes_and_errors_that_no_one_would_write(
    run: leakline.Run, uploaded: Send
) -> None:
    long = "n" * 3000
    held = type(long, (), {})
    holder = type(f"Holder{long}", (), {})()
    setattr(holder, f"attribute_{long}", {f"key{long}": [held() for _ in range(5000)]})
    globals()[f"global_{long}"] = holder
    error = type(f"Error{long}", (Exception,), {})
    try:
        for number in range(6):
            run.generation(number)
            run.census()
            run.find_holders(held)
            with contextlib.suppress(error), run.phase("train"):
                holder.__dict__[f"attribute_{long}"][f"key{long}"] += [held() for _ in range(2000)]
                raise error(long)
        done = uploaded()
    finally:
        del globals()[f"global_{long}"]
    assert (done.refused, done.sent > 12) == (0, True)


def test_what_a_program_prints(uploaded: Send, capfd: pytest.CaptureFixture[str]) -> None:
    run = leakline.init(mode="offline", quiet=True, log_lines=True)
    for number, text in enumerate((*STRANGE, "x" * 10_000_000)):
        run.generation(number)
        with contextlib.suppress(UnicodeEncodeError):
            sys.stdout.write(f"{text}\n")
        logging.getLogger("program").warning("%s", text)
        with run.phase("train"):
            pass
    with capfd.disabled():
        assert uploaded().refused == 0


@pytest.mark.parametrize(
    "named",
    [
        {"config": {f"k{i}": {"a": [{"b": {"c": {"d": {"e": [i] * 900}}}}]} for i in range(900)}},
        {"config": {name: name for name in STRANGE} | {"n": math.nan, "i": 10**30, "s": {1, 2}}},
        {"config": {"text": "x" * 1_000_000, "list": list(range(100_000)), "huge": 10**4000}},
        {"config": {f"{i}" * 100: "y" * 1000 for i in range(300)}},
        {"tags": [f"tag {i} {'t' * 100}" for i in range(300)]},
        {"phases": [f"{i}" + "p" * 100 for i in range(600)]},
        {"watch": [f"package{i}.{'W' * 700}" for i in range(300)]},
        {"name": "n" * 128, "project": "p" * 128, "total": 10**30},
    ],
)
def test_what_a_run_begins_with(uploaded: Send, named: dict[str, Any]) -> None:
    try:
        run = leakline.init(mode="offline", quiet=True, **named)
    except BadArgument:
        return
    run.generation(0)
    done = uploaded()
    assert (done.refused, done.sent) == (0, 3)
