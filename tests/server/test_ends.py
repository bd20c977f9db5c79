"""How a run ends that could not say so: as the last readings of its processes tell, until one of them speaks again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, select, update

from leakline_server.store import schema
from leakline_server.store.engine import writing
from leakline_server.store.ingest import inbox
from leakline_server.store.runs import lifecycle, runs

GIB = 2**30
LIMIT = {"cgroup.limit_bytes": lambda sequence: 10 * GIB}
FULL = {"cgroup.used_bytes": lambda sequence: 10 * GIB, **LIMIT}


def conclude(api: Any, before: float = 4e9, soon: float = 4e9) -> lifecycle.Concluded:
    engine = api.app.state.services.engine
    found = lifecycle.suspects(engine, lifecycle.Silence(before, max(before, soon)))
    with writing(engine) as connection:
        return lifecycle.conclude(connection, found, found.runs)


def join(api: Any, run: Any, role: str = "main") -> Any:
    """The run with this process, as a training announces it."""
    who = {
        "instance": run.instance, "rank": run.rank, "pid": 100, "host": "host", "attempt": 1, "role": role,
    }  # fmt: skip
    assert api.post("/api/v1/runs", json={**run.header, "process": who}).status_code < 300
    return run


def state_of(api: Any) -> tuple[str, str]:
    found = api.get("/api/v1/runs/r1").json()
    return found["state"], found["reason"]


def end(api: Any, instance: str, state: str, reason: str = "") -> None:
    body = {"instance": instance, "state": state, "reason": reason, "ended_at": 1_760_000_300.0}
    assert api.patch("/api/v1/runs/r1", json=body).status_code == 200


def test_a_run_that_fell_silent_at_its_limit_was_killed_for_memory(api: Any, make_run: Any) -> None:
    used = {"cgroup.used_bytes": lambda sequence: int((9 + sequence / 10) * GIB), **LIMIT}
    run = join(api, make_run(extra=used))
    run.send(api, 0, 9)
    assert conclude(api).runs == ("r1",)
    assert state_of(api) == (
        "killed", "memory: 9.80 GiB of its limit of 10.00 GiB at the last reading"
    )  # fmt: skip
    found = api.get("/api/v1/runs/r1").json()
    assert found["presumed"]
    assert found["processes"][0]["end_state"] == "killed"
    assert conclude(api) == lifecycle.Concluded()


def test_evidence_of_a_kill_makes_sure_sooner_than_silence_alone(api: Any, make_run: Any) -> None:
    join(api, make_run(extra=FULL)).send(api, 0, 3)
    other = make_run(id="r2", instance="p2")
    api.post("/api/v1/runs", json={**other.header, "id": "r2"})
    other.send(api, 0, 3)
    heard_at(api, "p1", 1500.0, run="r1")
    assert conclude(api, before=1000.0, soon=2000.0).runs == ("r1",)
    assert api.get("/api/v1/runs/r2").json()["state"] == "running"


def test_no_kill_is_concluded_soon_while_nobody_at_all_is_heard_of(api: Any, make_run: Any) -> None:
    """It may be the server that cannot be reached."""
    for number in range(2):
        join(api, make_run(id=f"r{number}", instance=f"p{number}", extra=FULL)).send(api, 0, 3)
        heard_at(api, f"p{number}", 1500.0, run=f"r{number}")
    assert conclude(api, before=1000.0, soon=2000.0) == lifecycle.Concluded()
    assert not lifecycle.suspects(
        api.app.state.services.engine, lifecycle.Silence(1000.0, 2000.0)
    ).runs
    assert conclude(api, before=2000.0, soon=3000.0).runs == ("r0", "r1")


def test_a_word_takes_a_presumed_end_back(api: Any, make_run: Any) -> None:
    run = join(api, make_run(extra=FULL))
    run.send(api, 0, 3)
    conclude(api)
    run.send(api, 3, 3)
    found = api.get("/api/v1/runs/r1").json()
    assert (found["state"], found["reason"], found["ended_at"]) == ("running", "", None)
    assert found["processes"][0]["end_state"] is None


def test_an_end_that_was_told_stands_whatever_comes_late(api: Any, make_run: Any) -> None:
    run = join(api, make_run())
    end(api, "p1", "terminated", "SIGTERM")
    run.send(api, 0, 3)
    assert state_of(api) == ("killed", "SIGTERM")


@pytest.mark.parametrize("state", ["killed", "silent"])
def test_a_process_that_was_found_dead_and_speaks_was_not(
    api: Any, make_run: Any, state: str
) -> None:
    run = join(api, make_run())
    run.send(api, 0, 3)
    end(api, "p1", state, "memory: found")
    assert api.get("/api/v1/runs/r1").json()["presumed"]
    run.send(api, 0, 3)
    assert state_of(api) == (state, "memory: found")
    run.send(api, 3, 3)
    assert state_of(api) == ("running", "")
    assert api.get("/api/v1/runs/r1").json()["processes"][0]["end_state"] is None


def test_a_batch_without_snapshots_is_no_word_unless_something_more_was_lost(
    api: Any, make_run: Any
) -> None:
    run = join(api, make_run())
    run.send(api, 0, 3)
    conclude(api)
    body = run.wire(3, 0)
    for lost, state in (({}, "silent"), ({"queue_full": 2}, "running")):
        assert api.post("/api/v1/runs/r1/batches", json={**body, "lost": lost}).status_code == 200
        assert state_of(api)[0] == state


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"cgroup.used_bytes": lambda sequence: int(8.9 * GIB), **LIMIT},
        # It used all of its limit for a while, long before it fell silent.
        {
            "cgroup.used_bytes": lambda sequence: 10 * GIB if sequence < 3 else None,
            "cgroup.limit_bytes": lambda sequence: 10 * GIB if sequence < 3 else None,
        },
    ],
)
def test_silence_without_evidence_is_silence(api: Any, make_run: Any, extra: Any) -> None:
    run = join(api, make_run(extra=extra))
    run.send(api, 0, 180)
    conclude(api)
    assert state_of(api) == ("silent", "")


def test_a_machine_without_memory_is_evidence(api: Any, make_run: Any) -> None:
    extra = {
        "system.available_bytes": lambda sequence: GIB // 4,
        "system.total_bytes": lambda sequence: 16 * GIB,
    }
    join(api, make_run(extra=extra)).send(api, 0, 3)
    conclude(api)
    assert state_of(api) == (
        "killed", "memory: 256.00 MiB of 16.00 GiB were left on the machine at the last reading"
    )  # fmt: skip


def heard_at(api: Any, instance: str, at: float, run: str | None = None) -> None:
    """As if the server had heard of this process last at that time, and of the ``run``."""
    of_process = update(schema.processes).where(schema.processes.c.instance == instance)
    of_run = update(schema.runs).where(schema.runs.c.id == run)
    with writing(api.app.state.services.engine) as connection:
        for changed in (of_process, of_run):
            connection.execute(changed.values(last_seen_at=at))


def one_vanished(api: Any, make_run: Any, counted: Any, of_other: Any, count: int = 12) -> Any:
    """A rank that fell silent beside another, and the kills in the memory group that each counted."""
    dead = join(api, make_run(extra={"cgroup.kills": lambda sequence: counted}))
    alive = join(api, make_run(instance="p2", rank=1, extra={"cgroup.kills": of_other}))
    dead.send(api, 0, 6)
    alive.send(api, 0, count)
    heard_at(api, "p1", 1000.0)
    return dead


def test_a_rank_killed_beside_others_is_told_and_the_run_goes_on(api: Any, make_run: Any) -> None:
    """The group of the surviving rank counts a kill after the last reading of the other."""
    dead = one_vanished(api, make_run, 0, lambda sequence: int(sequence > 9))
    concluded = conclude(api, before=2000.0, soon=2000.0)
    assert concluded.runs == ()
    (vanished,) = concluded.processes
    assert (vanished.rank, vanished.reason) == (0, "memory: the kernel killed in its memory group")
    assert state_of(api)[0] == "running"
    assert conclude(api, before=2000.0, soon=2000.0) == lifecycle.Concluded()
    # The launcher ends the others, which say so; what became of the first is what people must know.
    end(api, "p2", "terminated", "SIGTERM")
    killed = "memory: the kernel killed in its memory group (rank 0)"
    assert state_of(api) == ("killed", killed)
    # It was only presumed.
    assert api.get("/api/v1/runs/r1").json()["presumed"]
    dead.send(api, 6, 3)
    assert state_of(api)[0] == "running"


@pytest.mark.parametrize(
    ("counted", "of_other", "count", "found"),
    [(0, lambda sequence: int(sequence > 9), 1_000, 1), (2, lambda sequence: 2, 12, 0)],
    ids=["however many snapshots it has sent since", "but not one of before"],
)
def test_a_kill_that_another_rank_saw_is_evidence(
    api: Any, make_run: Any, counted: int, of_other: Any, count: int, found: int
) -> None:
    one_vanished(api, make_run, counted, of_other, count)
    assert len(conclude(api, before=2000.0, soon=2000.0).processes) == found


def test_a_child_that_vanishes_is_ended_and_not_told(api: Any, make_run: Any) -> None:
    join(api, make_run()).send(api, 0, 3)
    join(api, make_run(instance="p2", extra=FULL), role="child").send(api, 0, 3)
    heard_at(api, "p2", 1000.0)
    assert conclude(api, before=2000.0, soon=2000.0) == lifecycle.Concluded()
    found = api.get("/api/v1/runs/r1").json()
    assert (found["state"], [p["end_state"] for p in found["processes"]]) == (
        "running", [None, "killed"]
    )  # fmt: skip


@pytest.mark.parametrize("evidence", [False, True])
def test_a_rank_that_failed_is_why_another_was_killed_by_a_signal(
    api: Any, make_run: Any, evidence: bool
) -> None:
    join(api, make_run(extra=FULL if evidence else {})).send(api, 0, 3)
    join(api, make_run(instance="p2", rank=1)).send(api, 0, 3)
    end(api, "p2", "failed", "ValueError")
    assert conclude(api).runs == ("r1",)
    reason = "memory: 10.00 GiB of its limit of 10.00 GiB at the last reading (rank 0)"
    assert state_of(api) == (("killed", reason) if evidence else ("failed", "ValueError"))


def test_a_run_whose_processes_have_all_told_their_ends_is_not_silent(
    api: Any, make_run: Any
) -> None:
    join(api, make_run()).send(api, 0, 3)
    end(api, "p1", "failed", "ValueError")
    api.patch("/api/v1/runs/r1", json={"state": "running"})
    assert conclude(api).runs == ("r1",)
    assert state_of(api) == ("failed", "ValueError")


def test_a_process_found_dead_without_evidence_leaves_its_run_silent(
    api: Any, make_run: Any
) -> None:
    join(api, make_run()).send(api, 0, 3)
    end(api, "p1", "silent")
    found = api.get("/api/v1/runs/r1").json()
    assert (found["state"], found["ended_at"]) == ("silent", "2025-10-09T08:58:20.000Z")


def test_who_said_how_it_ended_is_not_overruled_by_who_found_it(api: Any, make_run: Any) -> None:
    join(api, make_run()).send(api, 0, 3)
    end(api, "p1", "failed", "ValueError")
    end(api, "p1", "silent")
    end(api, "p1", "killed", "memory: found")
    assert state_of(api) == ("failed", "ValueError")
    assert not api.get("/api/v1/runs/r1").json()["presumed"]


@pytest.mark.parametrize(
    ("states", "ends_as"),
    [
        (["finished", "failed"], "failed"), (["failed", "finished"], "failed"),
        (["terminated", "finished"], "killed"), (["silent", "finished"], "silent"), (["silent", "failed"], "failed"),
        (["failed", "terminated"], "failed"), (["terminated", "silent"], "silent")],
)  # fmt: skip
def test_a_run_of_several_ends_with_the_last_and_as_the_worst(
    api: Any, make_run: Any, states: list[str], ends_as: str
) -> None:
    for rank in range(2):
        join(api, make_run(instance=f"p{rank}", rank=rank))
    end(api, "p0", states[0], "first")
    assert state_of(api)[0] == "running"
    end(api, "p1", states[1], "second")
    assert state_of(api)[0] == ends_as
    with api.app.state.services.engine.connect() as connection:
        told = connection.execute(select(schema.processes.c.end_reason)).scalars().all()
    assert sorted(told) == ["first", "second"]


# So long is somebody let go on who should wait for the other.
MEANWHILE_SECONDS = 0.5


def tell_finished(api: Any, instance: str, wait_seconds: float) -> threading.Thread:
    """In a thread of its own, which may have to wait."""
    engine = api.app.state.services.engine
    changes = runs.Changes(state="finished", instance=instance, ended_at=1_760_000_300.0)
    thread = threading.Thread(target=runs.change_run, args=(engine, "r1", changes, 1_760_000_300.0))
    thread.start()
    thread.join(wait_seconds)
    return thread


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, do: Callable[[], threading.Thread]
) -> list[threading.Thread]:
    """Do this once, just after the first call of a function. Returns the thread that does it, then."""
    begun: list[threading.Thread] = []
    real = getattr(room, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        if not begun:
            begun.append(threading.current_thread())
            begun[0] = do()
        return result

    monkeypatch.setattr(room, name, call)
    return begun


def test_two_ranks_that_finish_in_the_same_moment_finish_the_run(
    api: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        join(api, make_run(instance=f"p{rank}", rank=rank))
    begun = meanwhile(
        monkeypatch,
        lifecycle,
        "_of_newest_attempt",
        lambda: tell_finished(api, "p1", MEANWHILE_SECONDS),
    )
    end(api, "p0", "finished")
    begun[0].join(30)
    assert state_of(api)[0] == "finished"


def test_who_finishes_while_silence_is_concluded_has_finished(
    api: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(api, make_run()).send(api, 0, 3)
    begun = meanwhile(
        monkeypatch, lifecycle, "why_killed", lambda: tell_finished(api, "p1", MEANWHILE_SECONDS)
    )
    conclude(api)
    begun[0].join(30)
    found = api.get("/api/v1/runs/r1").json()
    assert (found["state"], found["processes"][0]["end_state"]) == ("finished", "finished")


def test_a_process_may_end_while_its_first_batch_is_written(
    api: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits for the other to go on first."""
    join(api, make_run()).send(api, 0, 3)
    # The writer knows the run by now, and not yet this process.
    run = join(api, make_run(instance="p2", rank=1))
    begun = meanwhile(
        monkeypatch, inbox, "new_process", lambda: tell_finished(api, "p2", MEANWHILE_SECONDS)
    )
    assert run.send(api, 0, 3) == 3
    begun[0].join(30)
    found = api.get("/api/v1/runs/r1").json()["processes"]
    assert [p["end_state"] for p in found] == [None, "finished"]


def test_runs_are_locked_in_the_order_of_the_database(api: Any, make_run: Any) -> None:
    """As a group of batches locks them: else each could hold what the other waits for."""
    for name in ("B", "a", "C", "b"):
        join(api, make_run(id=name))

    @event.listens_for(api.app.state.services.engine, "before_cursor_execute", retval=True)
    def _ordered(_c: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> tuple[str, Any]:
        """As one whose language does not mind capitals: not the order of Python."""
        return statement.replace("ORDER BY runs.id", "ORDER BY lower(runs.id), runs.id DESC"), given

    assert conclude(api).runs == ("a", "b", "B", "C")
