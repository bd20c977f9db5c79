"""`leakline sync`: what the server has not got, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.cli import main


def record(name: str, generations: int = 3) -> None:
    run = leakline.init(mode="offline", quiet=True, name=name)
    for generation in range(generations):
        run.generation(generation)
    run.finish()


def test_nobody_there_is_one_line_and_status_1(
    spool_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    assert main(["sync", str(spool_directory), "--server", "http://127.0.0.1:9"]) == 1
    assert "leakline serve" in capsys.readouterr().err


def test_a_server_with_a_full_disk_is_told_as_one_that_refuses_for_now(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    full = {"error": {"code": "disk_full", "message": "the disk of the server is full"}}
    server.answer(503, full, Retry_After="5")
    assert main(["sync", str(spool_directory), "--server", server.address]) == 1
    assert capsys.readouterr().err == (
        f"leakline: {server.address} refuses for now (the disk of the server is full); "
        "try again later, what is recorded is kept\n"
    )


def test_an_answer_of_another_program_is_told_as_that_of_no_server(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    server.answer(200, b"<html>hello</html>")
    assert main(["sync", str(spool_directory), "--server", server.address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no Leakline server answers" in line and "leakline serve" in line


def test_everything_is_uploaded_once(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    record("two")
    assert main(["sync", str(spool_directory), "--server", server.address]) == 0
    first = capsys.readouterr().out
    assert first.count("5 snapshots sent") == 2
    assert sorted(server.sequences) == sorted([1, 2, 3, 4, 5] * 2)
    assert [end["state"] for end in server.ends] == ["finished", "finished"]
    requests = len(server.requests)
    assert main(["sync", str(spool_directory), "--server", server.address]) == 0
    assert capsys.readouterr().out.count("nothing new to send") == 2
    assert len(server.requests) == requests
    assert main(["sync", str(spool_directory), "--server", server.address, "--again"]) == 0
    assert len(server.sequences) == 20


def test_another_server_gets_everything(
    spool_directory: Path, server: Any, make_server: Any
) -> None:
    record("one")
    other = make_server()
    for address in (server.address, other.address):
        assert main(["sync", str(spool_directory), "--server", address]) == 0
    assert server.sequences == other.sequences == [1, 2, 3, 4, 5]


def test_a_run_that_was_sent_while_it_ran_has_nothing_left(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = leakline.init(server=server.address, quiet=True)
    run.generation(0)
    run.finish()
    before = len(server.requests)
    assert main(["sync", str(spool_directory), "--server", server.address]) == 0
    assert "nothing new to send" in capsys.readouterr().out
    assert len(server.requests) == before


def test_an_upload_that_broke_off_goes_on_where_it_was(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = leakline.init(mode="offline", quiet=True)
    for generation in range(600):
        run.generation(generation)
    run.finish()
    server.answer(200, {})
    # Enough parts for the first 200 snapshots, and not for all.
    for _ in range(8):
        server.answer(200, {"accepted": 1, "requests": []})
    server.answer(503, {"error": {"message": "restarting"}})
    assert main(["sync", str(spool_directory), "--server", server.address]) == 1
    assert main(["sync", str(spool_directory), "--server", server.address]) == 0
    assert server.sequences[0] > 1
    first = server.sequences[0]
    assert server.sequences == list(range(first, first + len(server.sequences)))


def test_a_refused_batch_is_told_and_not_repeated(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    server.answer(200, {})
    server.answer(409, {"error": {"code": "conflict", "message": "other content"}})
    assert main(["sync", str(spool_directory), "--server", server.address]) == 1
    assert "5 refused" in capsys.readouterr().out


def test_a_run_that_the_server_refuses_is_named_and_the_others_are_sent(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    record("two")
    server.answer(403, {"error": {"code": "forbidden", "message": "not this project"}})
    assert main(["sync", str(spool_directory), "--server", server.address]) == 1
    refused, sent = capsys.readouterr().out.splitlines()
    assert f"refused by {server.address} (403: not this project)" in refused
    assert ".spool" in refused
    assert "5 snapshots sent" in sent


def test_a_broken_spool_is_skipped_and_the_others_are_sent(
    spool_directory: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record("one")
    broken = spool_directory / "broken" / "x.spool"
    broken.parent.mkdir()
    broken.write_bytes(b"nonsense")
    assert main(["sync", str(spool_directory), "--server", server.address]) == 1
    out = capsys.readouterr().out
    assert "skipped" in out
    assert "5 snapshots sent" in out
