"""Cleanups: what they free and when registered ones run. Requests of the server or program: handling and refusals."""

from __future__ import annotations

import itertools
import subprocess
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.recording import MIB, events, fresh_pages, recorded

import leakline
from leakline.actions.cleanups import AGAIN_AFTER, REGISTERED_LIMIT
from leakline.analysis import examine, history_from_batches
from leakline.probes.native_module import native, why_not_native
from leakline.probes.references.class_names import type_name
from leakline.sampling.run_requests import (
    KNOWN_LIMIT,
    PATIENCE,
    WAITING_LIMIT,
    Request,
    RequestBox,
)
from leakline.snapshot import Batch, Event, ProcessIdentity, RunHeader, Snapshot

GIB = 2**30


class Kept:
    pass


KEPT = f"type.{type_name(Kept)}.count"


def train(run: leakline.Run, generations: range, gauge: Callable[[int], float]) -> None:
    for generation in generations:
        run.generation(generation)
        run.gauge("tensors", gauge(generation))
        with run.phase("train"):
            pass


class Trainer:
    def __init__(self) -> None:
        self.cache = [fresh_pages(40_000_000)]

    @leakline.current().cleanup("cleanup_memory")
    def cleanup_memory(self) -> None:
        self.cache.clear()

    @leakline.current().cleanup("clear_local_buffer")
    def clear_local_buffer(self) -> None:
        """Free nothing, because the memory is held elsewhere."""


@pytest.mark.parametrize(("method", "freed"), [("cleanup_memory", 40_000_000), ("clear_local_buffer", 0)])  # fmt: skip
def test_the_effect_of_each_cleanup_method_is_measured(
    offline: leakline.Run, method: str, freed: int
) -> None:
    trainer = Trainer()
    offline.episode(0)
    getattr(trainer, method)()
    offline.finish()
    (cleaned,) = events("cleanup")
    assert cleaned.name == method
    assert cleaned.data["freed_bytes"] == pytest.approx(freed, rel=0.1, abs=MIB)
    before, after = cleaned.data["before_bytes"], cleaned.data["after_bytes"]
    assert before - after == cleaned.data["freed_bytes"]


def test_cleanups_are_recorded_where_they_ran_and_before_the_last_snapshot(
    offline: leakline.Run,
) -> None:
    for episode in range(4):
        offline.episode(episode)
        for name, every in (("collector", 1), ("agent", 2), ("all", 4)):
            if (episode + 1) % every == 0:
                with offline.cleanup(name):
                    pass
    with offline.cleanup("final"):
        pass
    offline.finish()
    ran: dict[str, list[int | None]] = {}
    for event in events("cleanup"):
        ran.setdefault(event.name, []).append(event.generation)
    assert ran == {"collector": [0, 1, 2, 3], "agent": [1, 3], "all": [3], "final": [3]}
    final, last = events("cleanup")[-1], recorded()[-1]
    assert (final.name, last.kind) == ("final", "finish")
    assert final.sequence <= last.sequence and final.time <= last.time


def test_a_cleanup_runs_above_its_limit_and_not_at_it(offline: leakline.Run) -> None:
    seen: list[int] = []
    offline.register_cleanup("tensors", lambda: seen.append(1), when=("gauge.tensors", 500))
    train(offline, range(3), lambda generation: 499 + generation)
    assert seen == [1]
    offline.finish()
    (cleaned,) = events("cleanup")
    assert (cleaned.name, cleaned.generation) == ("tensors", 2)
    assert cleaned.data["because"] == "gauge.tensors is 501, above 500"


def test_a_cleanup_backs_off_while_its_condition_holds(offline: leakline.Run) -> None:
    offline.register_cleanup("tensors", lambda: None, when=("gauge.tensors", 500))
    train(offline, range(30), lambda generation: 900)
    offline.finish()
    ran = [event.generation for event in events("cleanup")]
    gaps = [after - before for before, after in itertools.pairwise(ran)]  # type: ignore[operator]
    assert gaps == [AGAIN_AFTER, 2 * AGAIN_AFTER]


def test_a_cleanup_runs_immediately_when_its_condition_holds_again(offline: leakline.Run) -> None:
    offline.register_cleanup("tensors", lambda: None, when=("gauge.tensors", 500))
    train(offline, range(12), lambda generation: 900 if generation % 3 == 0 else 10)
    offline.finish()
    assert [event.generation for event in events("cleanup")] == [0, 3, 6, 9]


def test_counts_of_watched_types_are_recorded_before_and_after() -> None:
    run = leakline.init(mode="offline", quiet=True, watch=[Kept])
    kept: list[Kept] = []
    run.register_cleanup("population", kept.clear, when=(KEPT, 25))
    for generation in range(4):
        with run.generation(generation), run.phase("train"):
            kept.extend(Kept() for _ in range(10))
    run.finish()
    (cleaned,) = events("cleanup")
    assert cleaned.data["counts"][type_name(Kept)] == [30, 0]
    assert cleaned.generation == 2


def phase_on_another_thread(run: leakline.Run) -> None:
    def work() -> None:
        with run.phase("load"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_cleanup_waits_for_the_end_of_the_outermost_phase(offline: leakline.Run) -> None:
    order: list[str] = []
    offline.register_cleanup("late", lambda: order.append("cleanup"), when=("gauge.n", 0))
    offline.generation(0)
    with offline.phase("outer"):
        offline.gauge("n", 1)
        with offline.phase("inner"):
            pass
        order.append("inner over")
        phase_on_another_thread(offline)
        order.append("other over")
    assert order == ["inner over", "other over", "cleanup"]


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


def test_a_cleanup_that_raises_is_recorded_and_the_training_goes_on(
    offline: leakline.Run, internal_exceptions: Any, caplog: Any
) -> None:
    def clean() -> None:
        raise ValueError("secret")

    offline.register_cleanup("broken", clean, when=("gauge.tensors", 500))
    train(offline, range(3), lambda generation: 900)
    offline.finish()
    (cleaned,) = events("cleanup")
    assert cleaned.data["error"] == "ValueError"
    assert "secret" not in str(cleaned.data)
    assert "the cleanup broken failed" in caplog.text
    assert [type(internal_exceptions.pop())] == [ValueError]


def test_an_interrupt_in_a_cleanup_reaches_the_program(offline: leakline.Run) -> None:
    def clean() -> None:
        raise KeyboardInterrupt

    offline.register_cleanup("stopped", clean, when=("gauge.tensors", 500))
    with pytest.raises(KeyboardInterrupt):
        train(offline, range(1), lambda generation: 900)


def test_registering_again_replaces_only_the_function(offline: leakline.Run) -> None:
    seen: list[str] = []
    for generation in range(4):
        name = f"of {generation}"
        offline.register_cleanup(
            "agent", lambda name=name: seen.append(name), when=("gauge.tensors", 500)
        )
        train(offline, range(generation, generation + 1), lambda generation: 900 * (generation > 1))
    assert seen == ["of 2"]
    offline.finish()
    (declared,) = events("register_cleanup")
    # The server may not request anything of a quiet run.
    assert declared.data == {"on_request": False, "when": ["gauge.tensors", 500]}


class Meeting(list[Any]):
    """A list that two threads append to at the same moment."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__(given)
        self.both = threading.Barrier(2)

    def append(self, one: Any) -> None:
        self.both.wait(20)
        super().append(one)


def test_concurrent_first_registrations_see_each_generation_once(
    offline: leakline.Run,
) -> None:
    loop = offline._chain.loop
    loop.listeners = Meeting(loop.listeners)
    threads = [
        threading.Thread(target=offline.register_cleanup, args=(name, list)) for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(offline._chain.cleanups.registered) == ["a", "b"]
    for generation in range(3):
        with offline.generation(generation):
            pass
    assert offline._chain.cleanups._generation_ends == 3


def test_a_finished_run_keeps_no_reference_to_the_program(offline: leakline.Run) -> None:
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
def test_wrong_arguments_of_register_cleanup_are_named(
    offline: leakline.Run, wrong: dict[str, Any], name: str
) -> None:
    right: dict[str, Any] = {"name": "agent", "function": lambda: None}
    with pytest.raises(leakline.BadArgument, match=f"argument {name}="):
        offline.register_cleanup(**{**right, **wrong})


def test_the_number_of_cleanups_is_bounded(offline: leakline.Run) -> None:
    for number in range(REGISTERED_LIMIT):
        offline.register_cleanup(f"c{number}", list)
    offline.register_cleanup("c0", dict)
    with pytest.raises(leakline.BadArgument):
        offline.register_cleanup("one more", list)


# -- device memory -----------------------------------------------------------------------------------

Device = dict[str, int]


def on_a_device(run: leakline.Run) -> Device:
    """Make the run's probe read a device with torch's allocator; return its bytes by series."""
    device = {"cuda.0.allocated_bytes": GIB, "cuda.0.reserved_bytes": 8 * GIB, "cuda.0.retries": 3}
    assert run._loop is not None
    run._loop.sampler._probes["cuda"].read = lambda: dict(device)
    return device


def judged(header: RunHeader, snapshots: list[Snapshot]) -> tuple[str, str]:
    """Return (outcome, evidence) of the fourth checklist question after a fix."""
    batches = [Batch(ProcessIdentity("a"), tuple(snapshots))]
    (item,) = [
        each
        for each in examine(history_from_batches(header, batches)).checklist
        if each.check == "cleanups"
    ]
    return item.outcome, item.sentence


HEADER = RunHeader("r", "p", "r", "step", None, 0.0, ("train",))


@pytest.mark.parametrize("registered", [False, True])
def test_a_cleanup_that_frees_device_memory_has_worked(
    offline: leakline.Run, registered: bool
) -> None:
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
    cleaned = events("cleanup")
    assert [each.generation for each in cleaned] == (
        [1100] if registered else list(range(0, 1200, 100))
    )
    for each in cleaned:
        assert each.data["devices"] == {
            "cuda.0.allocated_bytes": [GIB, GIB], "cuda.0.reserved_bytes": [8 * GIB, GIB],
        }  # fmt: skip
    outcome, sentence = judged(HEADER, recorded())
    assert outcome == "done"
    assert f"{7 * len(cleaned)}.00 GiB of GPU memory" in sentence


def test_a_cleanup_that_frees_nothing_anywhere_has_failed(offline: leakline.Run) -> None:
    device = on_a_device(offline)
    with offline.generation(0), offline.cleanup("agent GPU"):
        # Memory is allocated meanwhile, on the device and on the host.
        device["cuda.0.allocated_bytes"] += GIB
        taken = bytearray(b"x" * (16 << 20))
    offline.finish()
    assert len(taken) == 16 << 20
    assert judged(HEADER, recorded()) == ("failed", "agent GPU ran once and freed nothing.")


def test_a_device_not_read_before_and_after_is_not_recorded(
    offline: leakline.Run,
) -> None:
    with offline.generation(0), offline.cleanup("without a device"):
        pass
    device = on_a_device(offline)
    with offline.generation(1), offline.cleanup("driver"):
        device.clear()
        device["cuda.1.reserved_bytes"] = 5
    with offline.generation(2), offline.cleanup("nothing there"):
        device.clear()
    offline.finish()
    without, first, second = events("cleanup")
    assert "devices" not in without.data
    assert first.data["devices"] == second.data["devices"] == {}


# -- requests ----------------------------------------------------------------------------------------


def search(number: str, name: str = "a.B", **more: Any) -> dict[str, Any]:
    return {"id": number, "kind": "find_holders", "type": name, **more}


def test_a_request_is_taken_once_however_often_it_is_sent() -> None:
    box = RequestBox()
    for _ in range(3):
        box.put([search("1"), {"id": "2", "kind": "census"}])
    assert [request for request, _ in box.take()] == [
        Request("find_holders", "a.B", "1"),
        Request("census", "", "2"),
    ]
    box.put([search("1")])
    assert box.take() == []


@pytest.mark.parametrize(
    "wish",
    [
        {"id": "1", "kind": "run", "code": "import os"}, {"kind": "cleanup"}, {"kind": "census"},
        {"id": "", "kind": "census"}, {"id": 7, "kind": "census"}, {"id": "1", "kind": "find_holders"},
        {"id": "1", "kind": "find_holders", "type": "x" * 1000}, {"id": "1", "kind": "find_holders", "type": "a\nb"},
        {"id": "1", "kind": "find_holders", "type": ["a"]}, {"id": "1", "kind": ["census"]}, "census", None, 5, [],
    ],
)  # fmt: skip
def test_invalid_requests_are_ignored_and_counted(wish: Any) -> None:
    box = RequestBox()
    box.put([wish])
    assert (box.take(), box.ignored) == ([], 1)


@pytest.mark.parametrize("answer", [None, {}, "census", 5, {"kind": "census", "id": "1"}])
def test_an_answer_without_a_list_has_no_requests(answer: Any) -> None:
    box = RequestBox()
    box.put(answer)
    assert (box.take(), box.ignored) == ([], 0)


def test_waiting_requests_are_bounded_and_cleanups_have_their_own_queue() -> None:
    box = RequestBox()
    box.put([search(str(i)) for i in range(10_000)])
    assert len(box.take()) == WAITING_LIMIT
    assert box.ignored == KNOWN_LIMIT - WAITING_LIMIT
    box = RequestBox()
    box.put([{"id": str(i), "kind": "cleanup"} for i in range(WAITING_LIMIT + 5)])
    box.put([{"id": "look", "kind": "census"}])
    assert [request.id for request, _ in box.take()] == ["look"]
    assert len(box.cleanups) == WAITING_LIMIT
    assert len(box.take_cleanups()) == WAITING_LIMIT
    assert (box.take_cleanups(), box.ignored) == ([], 5)


def test_a_request_that_never_fits_the_budget_is_refused() -> None:
    box = RequestBox()
    box.put([search("1")])
    for times in range(PATIENCE + 1):
        ((request, told),) = box.take()
        assert told == times
        box.put_back(request, told)
    assert box.take() == []
    assert [a.text for a in box.take_answers()] == [
        "find_holders a.B: refused: the remaining overhead budget is too small"
    ]
    assert box.take_answers() == ()


@pytest.mark.parametrize("wrong", [None, 5, ["a"], ""])
def test_find_holders_rejects_anything_but_a_class(offline: leakline.Run, wrong: Any) -> None:
    with pytest.raises(leakline.BadArgument):
        offline.find_holders(wrong)


def test_a_disabled_run_ignores_requests_and_cleanups() -> None:
    leakline.Run().find_holders(Kept)
    leakline.Run().census()
    leakline.Run().register_cleanup("agent", lambda: pytest.fail("it ran"))


# -- in separate processes ---------------------------------------------------------------------------

HEAD = """
import os, threading, leakline

class Agent:
    def __init__(self):
        self.weights = bytearray(1 << 20)

kept = [Agent() for _ in range({agents})]
run = leakline.init(watch=[Agent], {mode})
"""
# The script runs until the test closes its input.
LOOP = """
done, generation = threading.Event(), 0
threading.Thread(target=lambda: (os.read(0, 1), done.set()), daemon=True).start()
while not done.wait(0.02):
    with run.generation(generation), run.phase("train"):
        generation += 1
run.finish()
"""
ASKS = """
for generation in range(3):
    with run.generation(generation):
        run.find_holders(Agent)
        run.find_holders("Agent")
        run.find_holders("no.such.Class")
        run.census()
        run.census()
        with run.phase("train"):
            pass
run.finish()
"""
OFFLINE = "mode='offline', quiet=True"
REGISTER = 'run.register_cleanup("population", kept.clear)\n'
LOOKS = [search("r1", "__main__.Agent"), {"id": "r2", "kind": "census"}]
CLEANUP = {"id": "c1", "kind": "cleanup", "asked_by": "person"}
Start = Callable[..., "subprocess.Popen[str]"]


def head(mode: str, agents: int = 30) -> str:
    return HEAD.format(mode=mode, agents=agents)


def ends_well(process: subprocess.Popen[str], *, fails: bool = False) -> None:
    """Wait for the script to end without errors. ``fails``: whether the client must report a failure."""
    _, errors = process.communicate("x", timeout=60)
    assert process.returncode == 0, errors
    assert all(line.startswith("leakline: ") for line in errors.splitlines()), errors
    assert (" failed (" in errors) is fails, errors


def sent(server: Any) -> list[Snapshot]:
    return [s for batch in server.batches for s in batch.snapshots]


def sent_events(server: Any, kind: str) -> list[Event]:
    return [event for s in sent(server) for event in s.events if event.kind == kind]


def marks(snapshots: list[Snapshot]) -> list[str]:
    return [event.name for s in snapshots for event in s.events if event.kind == "mark"]


def outcomes(server: Any) -> dict[str | None, str]:
    """Return request id (None for the program's own requests) -> outcome."""
    return {e.data.get("request"): e.data["outcome"] for e in sent_events(server, "mark")}


def holders(snapshots: list[Snapshot]) -> list[tuple[str, int | None]]:
    return [(h.path, h.count) for s in snapshots for h in s.holders if h.type == "__main__.Agent"]


def test_the_program_can_request_holders_and_a_census(start: Start) -> None:
    # The pause limit is high enough that every scan runs on the training thread, however slow the machine is.
    ends_well(start(head(OFFLINE) + ASKS, LEAKLINE_MAX_PAUSE="1"))
    after = [s for s in recorded() if s.label.endswith("after train")]
    answered = [
        "find_holders __main__.Agent: done", "find_holders Agent: done",
        "find_holders no.such.Class: nothing found", "census: done",
    ]  # fmt: skip
    assert [marks([s]) for s in after] == [answered] * 3
    for snapshot in after:
        assert snapshot.census is not None
        assert set(holders([snapshot])) == {("__main__.kept[*]", 30)}
    # Requesting a class does not count as another instance of it.
    series = "type.__main__.Agent.count"
    assert {s.samples[series] for s in recorded() if series in s.samples} == {30}


@pytest.mark.skipif(native() is None, reason=f"no native module: {why_not_native()}")
def test_a_scan_over_the_pause_limit_is_taken_in_slices(start: Start, until: Any) -> None:
    asks = "run.find_holders(Agent)\nrun.census()\n"
    process = start(head(OFFLINE) + asks + LOOP, LEAKLINE_MAX_PAUSE="0.002")
    until(lambda: len(marks(recorded())) >= 2)
    ends_well(process)
    assert sorted(marks(recorded())) == ["census: done", "find_holders __main__.Agent: done"]
    assert holders(recorded()) == [("__main__.kept[*]", 30)]


def test_a_server_request_is_answered_once(server: Any, until: Any, start: Start) -> None:
    server.wishes = LOOKS
    process = start(head(f"server={server.address!r}") + REGISTER + LOOP)
    # A class that was never counted has no count before the cleanup.
    until(lambda: any("type.__main__.Agent.count" in s.samples for s in sent(server)))
    until(lambda: outcomes(server).keys() >= {"r1", "r2"})
    server.wishes = [*LOOKS, CLEANUP]
    until(lambda: "c1" in outcomes(server))
    seen = len(server.batches)
    until(lambda: len(server.batches) > seen + 2)
    ends_well(process)
    assert sorted(marks(sent(server))) == [
        "census: done", "cleanup: done", "find_holders __main__.Agent: done"
    ]  # fmt: skip
    assert holders(sent(server)) == [("__main__.kept[*]", 30)]
    (cleaned,) = sent_events(server, "cleanup")
    assert (cleaned.name, cleaned.data["because"]) == ("population", "it was requested")
    assert cleaned.data["counts"]["__main__.Agent"] == [30, 0]
    assert cleaned.data["freed_bytes"] > 20 * MIB
    (declared,) = sent_events(server, "register_cleanup")
    assert declared.data == {"on_request": True, "when": None}


NOT_REGISTERED = "refused: no registered cleanup allows requests"
QUIET = "refused: the run is quiet"


@pytest.mark.parametrize(
    ("mode", "register", "environment", "look", "cleanup"),
    [
        ("", 'run.register_cleanup("n", kept.clear, on_request=False, when="confirmed")\n', {}, "done", NOT_REGISTERED),
        ("quiet=True", REGISTER, {}, QUIET, QUIET),
        ("", REGISTER, {"LEAKLINE_REQUESTS": "0"}, "refused", "refused"),
    ],
    ids=["not on request", "quiet", "no requests"],
)  # fmt: skip
def test_requests_that_the_program_did_not_allow_are_refused(
    server: Any, until: Any, start: Start, mode: str, register: str, environment: dict[str, str],
    look: str, cleanup: str,
) -> None:  # fmt: skip
    server.wishes = [*LOOKS, CLEANUP]
    code = head(f"server={server.address!r}, {mode}") + register + "run.census()\n" + LOOP
    process = start(code, **environment)
    answers = {None: "done", "r1": look, "r2": look, "c1": cleanup}
    until(lambda: outcomes(server).keys() >= answers.keys())
    ends_well(process)
    # Requests of the program itself are never refused.
    assert outcomes(server) == answers
    assert sent_events(server, "cleanup") == []


def test_a_requested_cleanup_that_raises_fails_and_the_others_run(
    server: Any, until: Any, start: Start
) -> None:
    server.wishes = [CLEANUP]
    register = 'run.register_cleanup("bad", lambda: 1 / 0)\n' + REGISTER
    process = start(head(f"server={server.address!r}") + register + LOOP)
    until(lambda: outcomes(server) == {"c1": "failed"})
    ends_well(process, fails=True)
    ran = {event.name: event.data.get("error") for event in sent_events(server, "cleanup")}
    assert ran == {"bad": "ZeroDivisionError", "population": None}


def test_a_suspected_run_runs_its_cleanup(start: Start) -> None:
    leak = """
cleaned = []
run.register_cleanup("population", lambda: (kept.clear(), cleaned.append(1)), when="suspected")
for generation in range(40):
    if not cleaned:
        with run.generation(generation), run.phase("train"):
            kept.extend(Agent() for _ in range(4))
run.finish()
"""
    ends_well(start(head(OFFLINE, agents=0) + leak))
    (cleaned,) = events("cleanup")
    before, after = cleaned.data["counts"]["__main__.Agent"]
    assert before >= 4 and after == 0
    assert cleaned.data["because"] in ("the verdict is suspected", "the verdict is confirmed")
