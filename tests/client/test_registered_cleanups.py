"""A cleanup that the program registered runs when it is due, between two phases, and tells what it freed."""

from __future__ import annotations

import itertools
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import leakline
from leakline.actions.cleanups import AGAIN_AFTER, REGISTERED_LIMIT
from leakline.analysis import examine, history_from_batches
from leakline.probes.references.class_names import type_name
from leakline.sampling.run_requests import WAITING_LIMIT, RequestBox
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

GIB = 2**30
Recorded = Callable[[], list[Snapshot]]
Start = Callable[..., "subprocess.Popen[str]"]


class Kept:
    pass


KEPT = f"type.{type_name(Kept)}.count"


def events(snapshots: list[Snapshot], kind: str) -> list[Event]:
    return [event for s in snapshots for event in s.events if event.kind == kind]


def train(run: leakline.Run, generations: range, gauge: Callable[[int], float]) -> None:
    for generation in generations:
        run.generation(generation)
        run.gauge("tensors", gauge(generation))
        with run.phase("train"):
            pass


def test_it_runs_above_the_limit_and_not_at_it(offline: leakline.Run, recorded: Recorded) -> None:
    seen: list[int] = []
    offline.register_cleanup("tensors", lambda: seen.append(1), when=("gauge.tensors", 500))
    train(offline, range(3), lambda generation: 499 + generation)
    assert seen == [1]
    offline.finish()
    (told,) = events(recorded(), "cleanup")
    assert (told.name, told.generation) == ("tensors", 2)
    assert told.data["because"] == "gauge.tensors is 501, above 500"
    assert told.data["before_bytes"] - told.data["after_bytes"] == told.data["freed_bytes"]


def test_what_goes_on_calls_for_it_ever_more_seldom(
    offline: leakline.Run, recorded: Recorded
) -> None:
    offline.register_cleanup("tensors", lambda: None, when=("gauge.tensors", 500))
    train(offline, range(60), lambda generation: 900)
    offline.finish()
    ran = [event.generation for event in events(recorded(), "cleanup")]
    gaps = [after - before for before, after in itertools.pairwise(ran)]  # type: ignore[operator]
    assert gaps[:2] == [AGAIN_AFTER, 2 * AGAIN_AFTER]
    assert len(ran) == 4


def test_what_was_over_calls_for_it_at_once(offline: leakline.Run, recorded: Recorded) -> None:
    offline.register_cleanup("tensors", lambda: None, when=("gauge.tensors", 500))
    train(offline, range(12), lambda generation: 900 if generation % 3 == 0 else 10)
    offline.finish()
    assert [e.generation for e in events(recorded(), "cleanup")] == [0, 3, 6, 9]


def test_it_tells_the_counts_of_watched_types_before_and_after(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    run = leakline.init(mode="offline", quiet=True, watch=[Kept])
    kept: list[Kept] = []
    run.register_cleanup("population", kept.clear, when=(KEPT, 25))
    for generation in range(4):
        with run.generation(generation), run.phase("train"):
            kept.extend(Kept() for _ in range(10))
    run.finish()
    (told,) = events(recorded(), "cleanup")
    assert told.data["counts"][type_name(Kept)] == [30, 0]
    assert told.generation == 2


def test_it_waits_for_the_outermost_phase_of_the_training_thread(offline: leakline.Run) -> None:
    order: list[str] = []
    offline.register_cleanup("late", lambda: order.append("cleanup"), when=("gauge.n", 0))
    offline.generation(0)
    with offline.phase("outer"):
        offline.gauge("n", 1)
        with offline.phase("inner"):
            pass
        order.append("inner over")

        def beside() -> None:
            with offline.phase("beside"):
                pass

        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        order.append("beside over")
    assert order == ["inner over", "beside over", "cleanup"]


def test_it_never_runs_on_another_thread(offline: leakline.Run) -> None:
    ran: list[int] = []
    offline.register_cleanup("here", lambda: ran.append(threading.get_ident()), when=("gauge.n", 0))
    offline.generation(0)
    offline.gauge("n", 1)

    def beside() -> None:
        with offline.phase("beside"):
            pass

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert ran == []
    with offline.phase("train"):
        pass
    assert ran == [threading.get_ident()]


def test_a_phase_that_fails_starts_no_cleanup(offline: leakline.Run) -> None:
    seen: list[int] = []
    offline.register_cleanup("n", lambda: seen.append(1), when=("gauge.n", 0))
    offline.generation(0)
    offline.gauge("n", 1)
    with pytest.raises(KeyError), offline.phase("train"):
        raise KeyError
    assert seen == []


def test_a_cleanup_with_phases_of_its_own_starts_no_other(offline: leakline.Run) -> None:
    order: list[str] = []

    def clean() -> None:
        with offline.phase("clean"):
            order.append("begins")
        order.append("ends")

    offline.register_cleanup("own", clean, when=("gauge.tensors", 0))
    offline.register_cleanup("other", lambda: order.append("other"), when=("gauge.tensors", 0))
    train(offline, range(1), lambda generation: 1)
    assert order == ["begins", "ends", "other"]


def test_one_that_raises_is_told_and_the_training_goes_on(
    offline: leakline.Run, recorded: Recorded, internal_exceptions: Any, caplog: Any
) -> None:
    def clean() -> None:
        raise ValueError("secret")

    offline.register_cleanup("broken", clean, when=("gauge.tensors", 500))
    train(offline, range(3), lambda generation: 900)
    offline.finish()
    (told,) = events(recorded(), "cleanup")
    assert told.data["error"] == "ValueError"
    assert "secret" not in str(told.data)
    assert "the cleanup broken failed" in caplog.text
    assert [type(internal_exceptions.pop())] == [ValueError]


def test_an_interrupt_in_a_cleanup_is_the_program_s(offline: leakline.Run) -> None:
    def clean() -> None:
        raise KeyboardInterrupt

    offline.register_cleanup("stopped", clean, when=("gauge.tensors", 500))
    with pytest.raises(KeyboardInterrupt):
        train(offline, range(1), lambda generation: 900)


def test_registering_again_takes_the_new_function_and_starts_nothing_anew(
    offline: leakline.Run, recorded: Recorded
) -> None:
    seen: list[str] = []
    for generation in range(4):
        name = f"of {generation}"
        offline.register_cleanup(
            "agent", lambda name=name: seen.append(name), when=("gauge.tensors", 500)
        )
        train(offline, range(generation, generation + 1), lambda generation: 900 * (generation > 1))
    assert seen == ["of 2"]
    offline.finish()
    (told,) = events(recorded(), "register_cleanup")
    # A quiet run is asked for nothing.
    assert told.data == {"on_request": False, "when": ["gauge.tensors", 500]}


def test_a_finished_run_holds_nothing_of_the_program(offline: leakline.Run) -> None:
    kept = Kept()
    gone = weakref.ref(kept)
    offline.register_cleanup("kept", lambda kept=kept: None)
    del kept
    offline.finish()
    assert gone() is None


async def _coroutine() -> None:
    return


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"name": ""}, "name"), ({"name": 5}, "name"), ({"function": None}, "function"),
        ({"function": "clean"}, "function"), ({"function": lambda agent: None}, "function"),
        ({"function": _coroutine}, "function"), ({"on_request": 1}, "on_request"), ({"on_request": False}, "when"),
        ({"when": "ok"}, "when"), ({"when": 500}, "when"), ({"when": ("a", "b")}, "when"), ({"when": ("a",)}, "when"),
        ({"when": ("", 5)}, "when"), ({"when": ("a", float("nan"))}, "when"), ({"when": ["a", True]}, "when"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_at_once(
    offline: leakline.Run, wrong: dict[str, Any], name: str
) -> None:
    right: dict[str, Any] = {"name": "agent", "function": lambda: None}
    with pytest.raises(leakline.BadArgument, match=f"argument {name}="):
        offline.register_cleanup(**{**right, **wrong})


def test_there_is_a_bound_on_cleanups(offline: leakline.Run) -> None:
    for number in range(REGISTERED_LIMIT):
        offline.register_cleanup(f"c{number}", list)
    offline.register_cleanup("c0", dict)
    with pytest.raises(leakline.BadArgument):
        offline.register_cleanup("one more", list)


def test_a_run_that_does_nothing_cleans_nothing() -> None:
    leakline.Run().register_cleanup("agent", lambda: pytest.fail("it ran"))


def test_requests_to_clean_up_wait_apart_from_looks_and_are_bounded() -> None:
    box = RequestBox()
    box.put([{"id": str(i), "kind": "cleanup"} for i in range(WAITING_LIMIT + 5)])
    box.put([{"id": "look", "kind": "census"}])
    assert [request.id for request, _ in box.take()] == ["look"]
    assert box.asks_for_cleanup
    assert len(box.take_cleanups()) == WAITING_LIMIT
    assert (box.take_cleanups(), box.ignored) == ([], 5)


# -- memory of devices -------------------------------------------------------------------------------

Device = dict[str, int]


def on_a_device(run: leakline.Run) -> Device:
    """Torch's allocator of a machine that has a device, as the probe tells of it. Bytes by series."""
    device = {"cuda.0.allocated_bytes": GIB, "cuda.0.reserved_bytes": 8 * GIB, "cuda.0.retries": 3}
    assert run._loop is not None
    run._loop.sampler._probes["cuda"].read = lambda: dict(device)
    return device


def judged(header: RunHeader, snapshots: list[Snapshot]) -> tuple[str, str]:
    """(outcome, evidence) of the fourth question after a fix."""
    batches = [Batch(ProcessIdentity("a"), tuple(snapshots))]
    (item,) = [
        each
        for each in examine(history_from_batches(header, batches)).checklist
        if each.check == "cleanups"
    ]
    return item.outcome, item.sentence


HEADER = RunHeader("r", "p", "r", "step", None, 0.0, ("train",))


@pytest.mark.parametrize("registered", [False, True])
def test_one_that_gives_memory_of_a_device_back_is_told_so(
    offline: leakline.Run, recorded: Recorded, registered: bool
) -> None:
    """Report 000 empties the cache of the agent every 100 training steps."""
    device = on_a_device(offline)

    def empty_cache() -> None:
        device["cuda.0.reserved_bytes"] = GIB

    if registered:
        offline.register_cleanup("agent GPU", empty_cache, when=("gauge.steps", 99))
    for step in range(12):
        with offline.generation(100 * step):
            device["cuda.0.reserved_bytes"] = 8 * GIB
            offline.gauge("steps", 100 * (step == 11))
            with offline.phase("train"):
                pass
            if not registered:
                with offline.cleanup("agent GPU"):
                    empty_cache()
    offline.finish()
    told = events(recorded(), "cleanup")
    assert [each.generation for each in told] == (
        [1100] if registered else list(range(0, 1200, 100))
    )
    for each in told:
        assert each.data["devices"] == {
            "cuda.0.allocated_bytes": [GIB, GIB], "cuda.0.reserved_bytes": [8 * GIB, GIB],
        }  # fmt: skip
    outcome, sentence = judged(HEADER, recorded())
    assert outcome == "done"
    assert f"{7 * len(told)}.00 GiB of GPU memory" in sentence


def test_one_that_frees_nothing_anywhere_is_useless(
    offline: leakline.Run, recorded: Recorded
) -> None:
    device = on_a_device(offline)
    with offline.generation(0), offline.cleanup("agent GPU"):
        # Memory is taken meanwhile, on the device and here.
        device["cuda.0.allocated_bytes"] += GIB
        taken = bytearray(b"x" * (16 << 20))
    offline.finish()
    assert len(taken) == 16 << 20
    assert judged(HEADER, recorded()) == ("failed", "agent GPU ran once and freed nothing.")


def test_of_a_device_that_was_not_read_both_times_nothing_is_known(
    offline: leakline.Run, recorded: Recorded
) -> None:
    device = on_a_device(offline)
    with offline.generation(0), offline.cleanup("driver"):
        device.clear()
        device["cuda.1.reserved_bytes"] = 5
    with offline.generation(1), offline.cleanup("nothing there"):
        device.clear()
    offline.finish()
    first, second = events(recorded(), "cleanup")
    assert first.data["devices"] == second.data["devices"] == {}


def test_without_a_device_nothing_is_said_of_one(offline: leakline.Run, recorded: Recorded) -> None:
    with offline.generation(0), offline.cleanup("agent"):
        pass
    offline.finish()
    (told,) = events(recorded(), "cleanup")
    assert "devices" not in told.data


# -- processes of their own --------------------------------------------------------------------------

HEAD = """
import os, threading, leakline

class Agent:
    def __init__(self):
        self.weights = bytearray(1 << 20)

kept = []
run = leakline.init(watch=[Agent], {mode})
"""

# Until the test has seen what it waits for: it ends the script by closing its input.
LOOP = """
kept.extend(Agent() for _ in range(30))
done, generation = threading.Event(), 0
threading.Thread(target=lambda: (os.read(0, 1), done.set()), daemon=True).start()
while not done.wait(0.02):
    with run.generation(generation), run.phase("train"):
        generation += 1
run.finish()
"""


def ends_well(process: subprocess.Popen[str]) -> str:
    """What it printed."""
    out, errors = process.communicate("x", timeout=60)
    assert process.returncode == 0, errors
    return out


def told(server: Any) -> list[Event]:
    return [event for batch in server.batches for s in batch.snapshots for event in s.events]


def sampled(server: Any) -> list[Mapping[str, Any]]:
    return [s.samples for batch in server.batches for s in batch.snapshots]


def outcome(server: Any, until: Any, number: str) -> str:
    found: list[str] = []

    def answered() -> bool:
        found[:] = [e.data["outcome"] for e in told(server) if e.data.get("request") == number]
        return bool(found)

    until(answered)
    return found[0]


CLEANUP = {"id": "c1", "kind": "cleanup", "asked_by": "person"}


def test_the_server_asks_and_the_function_runs_once(server: Any, until: Any, start: Start) -> None:
    register = 'run.register_cleanup("population", kept.clear)\n'
    process = start(HEAD.format(mode=f"server={server.address!r}") + register + LOOP)
    # What was never counted has no count before.
    until(lambda: any("type.__main__.Agent.count" in each for each in sampled(server)))
    server.wishes = [CLEANUP]
    assert outcome(server, until, "c1") == "done"
    seen = len(server.batches)
    until(lambda: len(server.batches) > seen + 2)
    ends_well(process)
    (cleaned,) = [event for event in told(server) if event.kind == "cleanup"]
    assert (cleaned.name, cleaned.data["because"]) == ("population", "it was asked for")
    assert cleaned.data["counts"]["__main__.Agent"] == [30, 0]
    assert cleaned.data["freed_bytes"] > 20 * 2**20
    marks = [event.name for event in told(server) if event.kind == "mark"]
    assert marks == ["cleanup: done"]
    (declared,) = [event for event in told(server) if event.kind == "register_cleanup"]
    assert declared.data == {"on_request": True, "when": None}


@pytest.mark.parametrize(
    ("mode", "register", "environment", "answer"),
    [
        ("", "", {}, "refused: no cleanup is registered for it"),
        ("", 'run.register_cleanup("n", kept.clear, on_request=False, when="confirmed")', {},
         "refused: no cleanup is registered for it"),
        ("quiet=True", 'run.register_cleanup("n", kept.clear)', {}, "refused: the run is quiet"),
        ("", 'run.register_cleanup("n", kept.clear)', {"LEAKLINE_QUIET": "1"}, "refused: the run is quiet"),
        ("", 'run.register_cleanup("n", kept.clear)', {"LEAKLINE_REQUESTS": "0"}, "refused"),
    ],
)  # fmt: skip
def test_what_the_program_has_not_allowed_is_refused(
    server: Any,
    until: Any,
    start: Start,
    mode: str,
    register: str,
    environment: dict[str, str],
    answer: str,
) -> None:
    server.wishes = [CLEANUP]
    head = HEAD.format(mode=f"server={server.address!r}, {mode}")
    process = start(f"{head}\n{register}\n{LOOP}", **environment)
    assert outcome(server, until, "c1") == answer
    ends_well(process)
    assert [event for event in told(server) if event.kind == "cleanup"] == []


def test_one_that_was_asked_for_and_raises_is_answered_so(
    server: Any, until: Any, start: Start
) -> None:
    server.wishes = [CLEANUP]
    register = (
        'run.register_cleanup("bad", lambda: 1 / 0)\nrun.register_cleanup("good", kept.clear)\n'
    )
    process = start(HEAD.format(mode=f"server={server.address!r}") + register + LOOP)
    assert outcome(server, until, "c1") == "failed"
    ends_well(process)
    cleaned = {e.name: e.data.get("error") for e in told(server) if e.kind == "cleanup"}
    assert cleaned == {"bad": "ZeroDivisionError", "good": None}


LEAK = """
import gc
run.register_cleanup("population", {cleanup}, when="suspected")
for generation in range(40):
    with run.generation(generation), run.phase("train"):
        kept.extend(Agent() for _ in range(4))
print(run.report())
run.finish()
"""


def test_a_suspected_run_cleans_up_by_itself(start: Start, recorded: Recorded) -> None:
    code = HEAD.format(mode="mode='offline', quiet=True") + LEAK.format(cleanup="kept.clear")
    ends_well(start(code))
    cleaned = events(recorded(), "cleanup")
    assert cleaned
    for each in cleaned:
        before, after = each.data["counts"]["__main__.Agent"]
        assert before >= 4 and after == 0
        assert each.data["because"] in ("the run is suspected", "the run is confirmed")


def test_one_that_does_not_help_raises_the_level(start: Start, recorded: Recorded) -> None:
    code = HEAD.format(mode="mode='offline', quiet=True") + LEAK.format(cleanup="gc.collect")
    report = ends_well(start(code))
    cleaned = events(recorded(), "cleanup")
    assert len(cleaned) >= 2
    assert {tuple(e.data["counts"]["__main__.Agent"]) for e in cleaned if e.data["because"]} == {
        (4 * (each.generation + 1),) * 2 for each in cleaned if each.generation is not None
    }
    assert f"The cleanup population ran {len(cleaned)} times and freed" in report
    assert "Its priority is one class higher for it." in report
