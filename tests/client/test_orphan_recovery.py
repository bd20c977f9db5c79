"""After a process was killed, the next start records how it ended and sends what is left in its spool."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.client.killing import kill_and_sync
from tests.client.spools import snapshot

import leakline
from leakline.cli import main
from leakline.probes.memory.cgroup import memory_group, read_cgroup
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.transport import orphan_recovery
from leakline.transport import spool_format as spool_module
from leakline.transport.http_delivery import Delivery
from leakline.transport.spool_file import SpoolFile
from leakline.transport.spool_format import (
    END,
    encode_batch,
    encode_record,
    is_live,
    read_ack,
    read_end,
    read_records,
    write_ack,
)
from leakline.transport.spool_upload import upload

GIB: Final = 2**30
NEAR: Final = {"cgroup.used_bytes": 98 * GIB // 10, "cgroup.limit_bytes": 10 * GIB}


def recording(
    directory: Path, server: str | None, samples: dict[str, Any] | None = None, run: str = "dead",
    group: str | None = None, host: str = "",
) -> SpoolFile:  # fmt: skip
    """Return the spool of a process that has recorded five snapshots and still runs."""
    process = ProcessIdentity(f"instance-{run}", pid=1, host=host or socket.gethostname())
    header = RunHeader(run, "default", f"name-{run}", "generation", None, 100.0)
    path = directory / run / f"{process.instance}.spool"
    spool = SpoolFile(path, header, process, server=server, memory_group=group)
    for sequence in range(1, 6):
        spool.append(Batch(process, (taken(sequence, samples),)))
    return spool


def left(*arguments: Any, **options: Any) -> Path:
    """Return the spool of a process that was killed."""
    spool = recording(*arguments, **options)
    spool.close()
    return spool.path


def taken(sequence: int, samples: dict[str, Any] | None = None) -> Snapshot:
    made = snapshot(sequence, "sample", {"process.rss_bytes": GIB, **(samples or {})})
    return replace(made, time=1000.0 + sequence)


@pytest.mark.parametrize(
    ("samples", "state", "reason"),
    [
        (NEAR, "killed", "memory: 9.80 GiB of the 10.00 GiB limit was in use at the last reading"),
        ({"cgroup.used_bytes": GIB, "cgroup.limit_bytes": 10 * GIB}, "silent", ""),
        ({}, "silent", ""),
    ],
)
def test_the_end_is_inferred_from_the_last_readings(
    tmp_path: Path, samples: dict[str, Any], state: str, reason: str
) -> None:
    path = left(tmp_path, None, samples)
    orphan_recovery.settle(path)
    assert read_end(path) == {"state": state, "ended_at": 1005.0, "reason": reason}
    size = path.stat().st_size
    orphan_recovery.settle(path)
    assert path.stat().st_size == size


@pytest.mark.skipif("cgroup.kills" not in read_cgroup(), reason="the kernel counts no kills here")
def test_an_oom_kill_counted_by_the_cgroup_is_evidence(tmp_path: Path) -> None:
    kills = int(read_cgroup()["cgroup.kills"])
    for name, before, group, state in (
        ("counted", kills - 1, memory_group(), "killed"),
        ("before", kills, memory_group(), "silent"),
        ("elsewhere", kills - 1, "another", "silent"),
        ("unknown", kills - 1, None, "silent"),
    ):
        path = left(tmp_path, None, {"cgroup.kills": before}, run=name, group=group)
        orphan_recovery.settle(path)
        assert (read_end(path) or {})["state"] == state, name


def test_a_live_process_is_left_alone(tmp_path: Path) -> None:
    spool = recording(tmp_path, None, NEAR)
    orphan_recovery.settle(spool.path)
    assert read_end(spool.path) is None
    spool.close()


def test_two_later_processes_do_not_both_send(
    spool_directory: Path, server: Any, until: Any
) -> None:
    path = left(spool_directory, server.address, NEAR)
    with orphan_recovery.claimed(path) as ours:
        assert ours is not None
        with orphan_recovery.claimed(path) as too:
            assert too is None
        run = leakline.init(server=server.address, quiet=True)
        until(lambda: server.sequences)
        run.finish()
    assert {b.process.instance for b in server.batches} == {run._chain.process.instance}


def test_a_young_spool_of_another_machine_is_left_alone(
    tmp_path: Path,
) -> None:
    path = left(tmp_path, None, NEAR, host="another machine")
    orphan_recovery.settle(path)
    assert read_end(path) is None
    os.utime(path, (1000, 1000))
    orphan_recovery.settle(path)
    assert (read_end(path) or {})["state"] == "killed"


def test_a_torn_tail_does_not_hide_the_end(tmp_path: Path) -> None:
    path = left(tmp_path, None, NEAR)
    path.write_bytes(path.read_bytes()[:-10])
    orphan_recovery.settle(path)
    assert (read_end(path) or {})["ended_at"] == 1004.0
    assert sum(record.kind == 2 for record in read_records(path)) == 4


def test_a_read_only_spool_is_sent_without_an_end(
    tmp_path: Path, server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path, None, NEAR)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(orphan_recovery, "encode_record", refuse)
    assert main(["sync", str(path), "--server", server.address]) == 0
    assert "no end recorded" in capsys.readouterr().out
    assert (server.sequences, server.ends) == ([1, 2, 3, 4, 5], [])


def test_sync_sends_how_it_ended_and_prints_it(
    tmp_path: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = left(tmp_path, None, NEAR)
    assert main(["sync", str(path), "--server", server.address]) == 0
    assert "5 snapshots sent, killed (memory: 9.80 GiB" in capsys.readouterr().out
    (end,) = server.ends
    assert (end["state"], end["instance"]) == ("killed", "instance-dead")
    assert main(["sync", str(path), "--server", server.address]) == 0
    assert "nothing new to send" in capsys.readouterr().out
    assert len(server.ends) == 1


def test_the_next_start_sends_only_orphans_for_its_server(
    spool_directory: Path, server: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    left(spool_directory, server.address, NEAR, run="ours")
    left(spool_directory, "http://elsewhere:1", NEAR, run="theirs")
    left(spool_directory, None, NEAR, run="offline")
    (spool_directory / "broken").mkdir()
    (spool_directory / "broken" / "x.spool").write_bytes(b"nonsense")
    run = leakline.init(server=server.address)
    until(lambda: server.ends)
    run.finish()
    assert [end["instance"] for end in server.ends] == [
        "instance-ours", run._chain.process.instance,
    ]  # fmt: skip
    assert {header["id"] for header in server.headers} == {"ours", run.id}
    assert (
        "the earlier run name-ours left unsent data: 5 snapshots sent, killed (memory"
        in caplog.text
    )


def test_the_end_is_sent_even_if_all_snapshots_had_arrived(
    spool_directory: Path, server: Any, until: Any
) -> None:
    path = left(spool_directory, server.address, NEAR)
    write_ack(path, path.stat().st_size, server.address)
    run = leakline.init(server=server.address, quiet=True)
    until(lambda: server.ends)
    run.finish()
    assert (server.ends[0]["instance"], server.ends[0]["state"]) == ("instance-dead", "killed")
    assert read_ack(path, server.address) == path.stat().st_size
    assert is_live(path) is False, "a run that has finished keeps nothing for itself"


def test_a_wrongly_inferred_end_does_not_hide_later_snapshots(tmp_path: Path, server: Any) -> None:
    spool = recording(tmp_path, server.address, NEAR)
    batches, mark = spool.unsent()
    spool.accept(mark, server.address)
    with spool.path.open("ab") as file:
        file.write(encode_record(END, {"state": "silent", "ended_at": 1005.0, "reason": ""}))
    process = batches[0].process
    for sequence in range(6, 10):
        spool.append(Batch(process, (taken(sequence),)))
    batches, mark = spool.unsent()
    assert [s.sequence for b in batches for s in b.snapshots] == [6, 7, 8, 9]
    spool.close()
    delivery = Delivery(server.address)
    assert upload(spool.path, delivery).sent == 4
    assert (server.sequences, server.ends) == ([6, 7, 8, 9], [])
    orphan_recovery.settle(spool.path)
    assert (read_end(spool.path) or {})["ended_at"] == 1009.0
    upload(spool.path, delivery)
    assert [end["ended_at"] for end in server.ends] == [1009.0]
    assert upload(spool.path, delivery, again=True).sent == 9
    delivery.close()


def test_a_spool_that_was_just_replaced_is_not_finalized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path, None, NEAR)
    real = orphan_recovery.lock

    def replaced_before(fd: int) -> bool | None:
        other = path.with_suffix(".rewrite")
        other.write_bytes(path.read_bytes())
        other.replace(path)
        return real(fd)

    monkeypatch.setattr(orphan_recovery, "lock", replaced_before)
    with orphan_recovery.claimed(path) as ours:
        assert ours is None
    orphan_recovery.settle(path)
    assert read_end(path) is None


def test_a_child_forked_during_recovery_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = left(tmp_path, None, NEAR)
    born_read, born_write = os.pipe()
    over_read, over_write = os.pipe()
    with orphan_recovery.claimed(path) as ours:
        assert ours is not None
        child = os.fork()
        if child == 0:
            os.close(over_write)
            os.write(born_write, b"!")
            # The child lives until the parent has checked.
            os.read(over_read, 1)
            os._exit(0)
        os.read(born_read, 1)
    try:
        assert is_live(path) is False
    finally:
        os.close(over_write)
        os.waitpid(child, 0)
        for fd in (born_read, born_write, over_read):
            os.close(fd)


def found_by(
    folder: Path, server: Any, clock: Callable[[], float] = time.monotonic
) -> orphan_recovery.Leftovers:
    return orphan_recovery.Leftovers(folder, None, Delivery(server.address), print, clock=clock)


def bring_all(found: orphan_recovery.Leftovers) -> None:
    """Send everything without the rests in between."""
    found._clock = lambda: float("inf")
    while found.send():
        pass


def test_many_live_ranks_do_not_hide_an_orphan(tmp_path: Path, server: Any) -> None:
    path = left(tmp_path, server.address, NEAR)
    os.utime(path, (1000, 1000))
    ranks = [
        recording(tmp_path, server.address, run=f"rank-{n}")
        for n in range(orphan_recovery.SPOOLS_LIMIT + 1)
    ]
    bring_all(found_by(tmp_path, server))
    for rank in ranks:
        rank.close()
    assert [end["instance"] for end in server.ends] == ["instance-dead"]


def test_a_retry_later_answer_delays_recovery(tmp_path: Path, server: Any) -> None:
    left(tmp_path, server.address, NEAR, run="one")
    left(tmp_path, server.address, NEAR, run="two")
    now = 0.0
    found = found_by(tmp_path, server, lambda: now)
    server.answer(503, {"error": {"message": "restarting"}})
    server.answer(503, {"error": {"message": "restarting"}}, Retry_After="100")
    for pause in (30, 100):
        asked = len(server.requests)
        assert not found.send()
        now += pause - 1
        assert not found.send()
        assert len(server.requests) == asked + 1
        now += 1
    bring_all(found)
    assert {end["instance"] for end in server.ends} == {"instance-one", "instance-two"}


def test_recovery_rests_between_two_parts(tmp_path: Path, server: Any) -> None:
    left(tmp_path, server.address, NEAR)
    found = found_by(tmp_path, server, lambda: 0.0)
    assert found.send()
    asked = len(server.requests)
    assert found.send()
    assert (len(server.requests), server.ends) == (asked, [])


def test_spools_that_have_arrived_are_not_read_again(
    tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = recording(tmp_path, server.address)
    with spool.path.open("ab") as file:
        record = encode_batch(Batch(ProcessIdentity("instance-dead"), (taken(6),)))
        file.write(record * (4 * 2**20 // len(record)))
        file.write(encode_record(END, {"state": "finished", "ended_at": 1.0, "reason": ""}))
    spool.close()
    write_ack(spool.path, spool.path.stat().st_size, server.address)
    read = 0
    real = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = real(fd, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(spool_module.os, "pread", counted)
    bring_all(found_by(tmp_path, server))
    assert server.requests == []
    assert 0 < read < 256 * 1024


START = """
import time
import leakline
run = leakline.init(server={server!r}, quiet=True)
run.generation(0)
with run.phase("train"):
    pass
run._chain.recorder.flush(10)
print("recorded", flush=True)
time.sleep(60)
"""


def test_unsent_snapshots_of_a_killed_process_arrive_at_the_next_start(
    start: Any, server: Any, make_server: Any, until: Any
) -> None:
    # The server is down while the process runs.
    port = int(server.address.rpartition(":")[2])
    server.stop()
    process = start(START.format(server=server.address))
    assert process.stdout.readline() == "recorded\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    back = make_server(port)
    run = leakline.init(server=back.address, quiet=True)
    until(lambda: back.ends)
    run.finish()
    assert back.ends[0]["state"] == "silent"
    killed = next(b.process.instance for b in back.batches if b.process.pid == process.pid)
    assert back.ends[0]["instance"] == killed
    sent = [s for b in back.batches if b.process.instance == killed for s in b.snapshots]
    assert [s.sequence for s in sent] == list(range(1, len(sent) + 1))
    assert "phase_end" in [s.kind for s in sent]


@pytest.mark.long
@pytest.mark.flow
@pytest.mark.alone
def test_ten_kills_lose_less_than_a_second_and_corrupt_nothing(tmp_path: Path) -> None:
    figures = kill_and_sync(tmp_path, 10)
    assert figures.wrong == [], figures
    assert figures.stored > 100
    assert max(figures.lost_seconds) <= 1.0, figures
