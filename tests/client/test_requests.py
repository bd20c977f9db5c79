"""What the server or the program asks for is looked at, at a phase end, once; and nothing else can be asked."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.recording import recorded

import leakline
from leakline import Run
from leakline.probes.native_module import native, why_not_native
from leakline.sampling.run_requests import (
    KNOWN_LIMIT,
    PATIENCE,
    WAITING_LIMIT,
    Answer,
    Request,
    RequestBox,
)
from leakline.snapshot import Snapshot


class Kept:
    pass


def search(number: str, name: str = "a.B", **more: Any) -> dict[str, Any]:
    return {"id": number, "kind": "find_holders", "type": name, **more}


def marks(snapshots: list[Snapshot]) -> list[str]:
    return [event.name for s in snapshots for event in s.events if event.kind == "mark"]


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
def test_anything_else_is_ignored_and_counted(wish: Any) -> None:
    box = RequestBox()
    box.put([wish])
    assert (box.take(), box.ignored) == ([], 1)


@pytest.mark.parametrize("answer", [None, {}, "census", 5, {"kind": "census", "id": "1"}])
def test_an_answer_without_a_list_asks_for_nothing(answer: Any) -> None:
    box = RequestBox()
    box.put(answer)
    assert (box.take(), box.ignored) == ([], 0)


def test_what_waits_is_bounded() -> None:
    box = RequestBox()
    box.put([search(str(i)) for i in range(10_000)])
    assert len(box.take()) == WAITING_LIMIT
    assert box.ignored == KNOWN_LIMIT - WAITING_LIMIT


def test_what_finds_no_room_for_long_is_refused() -> None:
    box = RequestBox()
    box.put([search("1")])
    for times in range(PATIENCE + 1):
        ((request, told),) = box.take()
        assert told == times
        box.put_back(request, told)
    assert box.take() == []
    assert [a.text for a in box.answers()] == ["find_holders a.B: refused: no room in the budget"]
    assert box.answers() == []


def test_an_answer_names_the_request_of_the_server() -> None:
    asked, own = Request("census", "", "17"), Request("census", by_person=True)
    assert Answer(asked, "done").data == {"request": "17", "outcome": "done"}
    assert Answer(own, "done").data == {"outcome": "done"}


SCRIPT = """
import os, threading, leakline

class Kept:
    pass

kept = [Kept() for _ in range(30)]
run = leakline.init({mode})
run.expect(Kept, 30)
"""

OWN = """
for generation in range(3):
    with run.generation(generation):
        run.find_holders(Kept)
        run.find_holders("Kept")
        run.find_holders("no.such.Class")
        run.census()
        run.census()
        with run.phase("train"):
            pass
run.finish()
"""

# Until the test has seen what it waits for: it ends the script by closing its input.
LOOP = """
done, generation = threading.Event(), 0
threading.Thread(target=lambda: (os.read(0, 1), done.set()), daemon=True).start()
while not done.wait(0.02):
    with run.generation(generation), run.phase("train"):
        generation += 1
run.finish()
"""


def test_the_program_asks_for_holders_and_a_census(start: Any) -> None:
    # A pause so long that nothing is looked at beside the training thread, however slow the machine is.
    process = start(SCRIPT.format(mode="mode='offline', quiet=True") + OWN, LEAKLINE_MAX_PAUSE="1")
    assert process.communicate(timeout=60)[1] == ""
    after = [s for s in recorded() if s.label.endswith("after train")]
    told = [
        "find_holders __main__.Kept: done", "find_holders Kept: done",
        "find_holders no.such.Class: nothing found", "census: done",
    ]  # fmt: skip
    assert [marks([s]) for s in after] == [told] * 3
    for snapshot in after:
        assert snapshot.census is not None
        assert {(h.type, h.path, h.count) for h in snapshot.holders} == {
            ("__main__.Kept", "__main__.kept[*]", 30)
        }
    # Asking for a class is not one more instance of it.
    series = "type.__main__.Kept.count"
    counts = [(s.label, s.samples[series]) for s in recorded() if series in s.samples]
    assert {count for _, count in counts} == {30}, counts


@pytest.mark.parametrize("wrong", [None, 5, ["a"], ""])
def test_holders_of_what_is_no_class_are_a_wrong_argument(offline: Run, wrong: Any) -> None:
    with pytest.raises(leakline.BadArgument):
        offline.find_holders(wrong)


def test_a_run_that_does_nothing_finds_nothing() -> None:
    Run().find_holders(Kept)
    Run().census()


@pytest.mark.skipif(native() is None, reason=f"no native module: {why_not_native()}")
def test_what_would_pause_for_too_long_is_looked_at_in_slices(start: Any) -> None:
    own = """
for generation in range(400):
    with run.generation(generation), run.phase("train"):
        if generation == 1:
            run.find_holders(Kept)
            run.census()
        time.sleep(0.005)
run.finish()
"""
    code = "import time\n" + SCRIPT.format(mode="mode='offline', quiet=True") + own
    process = start(code, LEAKLINE_MAX_PAUSE="0.002")
    assert process.communicate(timeout=60)[1] == ""
    snapshots = recorded()
    assert sorted(marks(snapshots)) == ["census: done", "find_holders __main__.Kept: done"]
    held = [h for s in snapshots for h in s.holders if h.type == "__main__.Kept"]
    assert [(h.path, h.count) for h in held] == [("__main__.kept[*]", 30)]


def sent(server: Any) -> list[Snapshot]:
    return [s for batch in server.batches for s in batch.snapshots]


def ends_well(process: Any) -> None:
    said = process.communicate("x", timeout=60)[1]
    assert process.returncode == 0, said
    assert all(line.startswith("leakline: ") for line in said.splitlines()), said
    assert " failed (" not in said


def test_a_request_of_the_server_is_answered_once(server: Any, until: Any, start: Any) -> None:
    server.wishes = [search("r1", "__main__.Kept"), {"id": "r2", "kind": "census"}]
    process = start(SCRIPT.format(mode=f"server={server.address!r}") + LOOP)

    until(lambda: len(marks(sent(server))) >= 2)
    seen = len(server.batches)
    until(lambda: len(server.batches) > seen + 2)
    ends_well(process)
    assert sorted(marks(sent(server))) == ["census: done", "find_holders __main__.Kept: done"]
    events = [event for s in sent(server) for event in s.events if event.kind == "mark"]
    assert {event.data["request"] for event in events} == {"r1", "r2"}
    held = [h for s in sent(server) for h in s.holders if h.type == "__main__.Kept"]
    assert [(h.path, h.count) for h in held] == [("__main__.kept[*]", 30)]


@pytest.mark.parametrize(
    ("mode", "environment", "answer"),
    [
        ("", {"LEAKLINE_REQUESTS": "0"}, "refused"),
        ("quiet=True", {}, "refused: the run is quiet"),
        ("", {"LEAKLINE_QUIET": "1"}, "refused: the run is quiet"),
    ],
)
def test_a_run_may_refuse_what_the_server_asks(
    server: Any, until: Any, start: Any, mode: str, environment: dict[str, str], answer: str
) -> None:
    server.wishes = [search("r1", "__main__.Kept"), {"id": "r2", "kind": "census"}]
    code = SCRIPT.format(mode=f"server={server.address!r}, {mode}") + "run.census()" + LOOP
    process = start(code, **environment)

    until(lambda: len(marks(sent(server))) >= 3)
    ends_well(process)
    # What the program asks itself is not the server's.
    assert sorted(marks(sent(server))) == [
        "census: done", f"census: {answer}", f"find_holders __main__.Kept: {answer}",
    ]  # fmt: skip
