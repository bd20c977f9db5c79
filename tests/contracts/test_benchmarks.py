"""`make bench-server`, `bench-client` and `bench-pages` on next to nothing: they measure what they say, and their
checks can fail.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pages import opening
from benchmarks.server import (
    bodies,
    kills,
    latency,
    load,
    rows,
)
from benchmarks.server.__main__ import PROGRAM
from benchmarks.server.samples import NAMES, Samples, samples, stream
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from leakline.snapshot import batch_from_wire, batch_to_wire
from leakline.transport.http_delivery import encode

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
STARTED = 1_760_000_000.0


def bench(package: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("CHECK", "ROWS")}
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{package}", *arguments],
        cwd=ROOT, env={**kept, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("package", "setting"), [("server", "ROWS"), ("client", "PARTS"), ("detection", "FAMILIES")]
)
def test_what_is_unknown_is_named(package: str, setting: str) -> None:
    ended = bench(package, SHORT="1", **{setting: "reeds"})
    assert ended.returncode != 0
    assert f"bench-{package}: {setting} has 'reeds'" in ended.stderr


# -- bench-server: every server gets the same numbers ------------------------------------------------------


@pytest.fixture(scope="module")
def part() -> Samples:
    return samples(3, 20, STARTED)


def test_a_snapshot_has_65_numbers_and_a_stream_goes_on_where_its_pieces_end() -> None:
    pieces = list(stream(1, 50, STARTED, piece=20))
    assert len(NAMES) == 65
    assert [piece.first for piece in pieces] == [0, 20, 40]
    assert [piece.count for piece in pieces] == [20, 20, 10]
    steps = [int(b.columns["python.objects"][0]) - int(a.columns["python.objects"][-1])
             for a, b in itertools.pairwise(pieces)]  # fmt: skip
    assert all(abs(step) < 1_000 for step in steps)


def test_our_bodies_are_what_the_client_itself_sends(part: Samples) -> None:
    wire = bodies.leakline_wire("r1", part)
    assert batch_to_wire(batch_from_wire(wire)) == wire
    assert bodies.Written(bodies.leakline_wire("", part)).body("r1") == encode(wire)
    assert gzip.decompress(bodies.leakline("r1", part).partition(b"\r\n\r\n")[2]) == (
        json.dumps(wire, separators=(",", ":")).encode()
    )


def test_remote_write_holds_the_same_numbers_and_moments(part: Samples) -> None:
    series = [_series(each) for _, each in _fields(bodies.write_request("r1", part))]
    assert [labels for labels, _ in series] == [
        {"__name__": name.replace(".", "_"), "run": "r1"} for name in NAMES
    ]
    milliseconds = [round(time * 1e3) for time in part.times.tolist()]
    for name, (_, points) in zip(NAMES, series, strict=True):
        assert points == list(zip(part.columns[name].tolist(), milliseconds, strict=True))


def test_a_line_of_influx_holds_the_same_numbers(part: Samples) -> None:
    body = bodies.lines("r1", part).partition(b"\r\n\r\n")[2].decode().splitlines()
    assert len(body) == part.count
    key, fields, moment = body[7].split(" ")
    given = dict(field.split("=") for field in fields.split(","))
    assert (key, int(moment)) == ("snapshot,run=r1", round(float(part.times[7]) * 1e3))
    assert {name: float(text.rstrip("i")) for name, text in given.items()} == {
        name: float(values[7]) for name, values in part.columns.items()
    }


def test_a_figure_says_whether_it_holds_and_fails_when_it_was_not_measured() -> None:
    assert rows.Figure("a", 2.5, 2.6, at_least=True).verdict() == "ok"
    assert rows.Figure("a", 2.5, 2.4, at_least=True).verdict() == "SHORT"
    assert rows.Figure("a", 10.0, 10.1).verdict() == "SHORT"
    absent = rows.Figure("a", 10.0, missing="influxd is not installed")
    assert (absent.holds, absent.verdict()) == (False, "not measured: influxd is not installed")


def test_a_latency_without_sealing_is_not_measured() -> None:
    probed = latency.Probed([0.001] * 200, 0.5, sealed=0.0, sent=40_000)
    assert not latency.figure([probed], 1.0, "").holds
    assert latency.figure([replace(probed, sealed=39_000.0)], 1.0, "").holds


@pytest.mark.parametrize(
    ("status", "last", "failed"),
    [
        (0, "3 passed, 2 warnings in 61.20s (0:01:01)", 0),
        (1, "1 failed, 2 passed in 61.20s", 1),
        (0, "1 passed, 2 skipped in 61.20s", None),
        (0, "2 passed in 61.20s", None),
        (1, "2 passed, 1 error in 61.20s", None),
        (5, "no tests ran in 0.10s", None),
        (2, "3 passed in 61.20s", None),
    ],
)
def test_kills_count_only_when_every_test_of_them_ran(
    status: int, last: str, failed: int | None
) -> None:
    assert kills.failures(status, last) == failed


def test_the_check_names_what_it_says_nothing_about(capsys: pytest.CaptureFixture[str]) -> None:
    whole, good = replace(PROGRAM, shortened=False), rows.Figure("a", 10.0, 1.0)
    assert whole.check([good], ["ingest", "disk"]) == 0
    told = capsys.readouterr().err
    assert "kills" in told
    assert "disk" not in told
    assert replace(PROGRAM, shortened=True).check([good], ["ingest"]) == 1
    assert "SHORT=1" in capsys.readouterr().err
    assert whole.check([], ["loggers"]) == 1
    assert whole.check([good, rows.Figure("b", 1.0, missing="gone")], ["ingest"]) == 1


@pytest.fixture
def hasty_server() -> Iterator[load.Address]:
    """Answers one request a connection, the first of all with 429, and closes the connection after each answer."""
    listening = socket.create_server(("127.0.0.1", 0))
    answers = [b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"]

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answers.pop() if answers else b"HTTP/1.1 204 No Content\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


def test_what_is_refused_for_now_is_sent_again_and_closed_connections_are_opened_anew(
    hasty_server: load.Address,
) -> None:
    plan = load.Plan(hasty_server, load.at_once([bodies.request("POST", "/")] * 3))
    done = load.drive([plan], patient=True)
    assert done.statuses == {429: 1, 204: 3}


def test_what_is_refused_fails_where_nobody_waits(hasty_server: load.Address) -> None:
    with pytest.raises(load.Failed, match="429"):
        load.closed(hasty_server, [[bodies.request("POST", "/")]])


def test_a_part_runs_on_a_real_server_and_the_check_fails_when_a_target_cannot_be_reached(
    tmp_path: Path,
) -> None:
    written = tmp_path / "rows.json"
    short = {"SHORT": "1", "CHECK": "1", "LEAKLINE_BENCH_SCALE": "0.0001"}
    ended = bench("server", "--json", str(written), ROWS="list", **short)
    assert ended.returncode == 1, ended.stderr
    assert "bench-server: list of 300 runs: a page of 100 with sparklines: " in ended.stderr
    assert "bench-server: SHORT=1 measures less than what is held" in ended.stderr
    (part,) = json.loads(written.read_text())["parts"]
    assert [line["note"] for line in part["lines"][:2]] == ["100 runs, 100 with a sparkline"] * 2
    assert part["figures"][0]["verdict"] == "SHORT"


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """(number, payload) of a protocol buffer."""
    unknown = Empty()
    unknown.ParseFromString(message)
    return [(each.field_number, each.data) for each in UnknownFieldSet(unknown)]


def _series(message: bytes) -> tuple[dict[str, str], list[tuple[Any, int]]]:
    labels: dict[str, str] = {}
    points = []
    for number, payload in _fields(message):
        inner = dict(_fields(payload))
        if number == 1:
            labels[inner[1].decode()] = inner[2].decode()
        else:
            (value,) = struct.unpack("<d", struct.pack("<Q", inner[1]))
            points.append((value, inner[2]))
    return labels, points


# -- bench-client ------------------------------------------------------------------------------------------

SMALLEST = {"HEAPS": "100000", "PARTS": "census", "REPEATS": "3"}


def test_every_look_is_measured_and_the_pure_census_counts_as_brute_force_does(
    tmp_path: Path,
) -> None:
    ended = bench("client", "--json", str(tmp_path / "rows.json"), **SMALLEST)
    assert ended.returncode == 0, ended.stderr
    found = {row["name"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert all(name in ended.stdout for name in found)
    assert found["reference"]["figures"]["ratio"] == 1.0
    ours = {"a phase end", "a nested phase end", "full census, native", "full census, in slices"}
    assert ours < found.keys() and any(name.startswith("holders of ") for name in found)
    assert all(row["missing"] or row["figures"]["cpu_ms"] > 0 for row in found.values())
    figures = found["full census, pure Python"]["figures"]
    assert (figures["arrays_found"], figures["classes_off"]) == (15_000, 0)


def test_the_check_of_the_client_fails_when_a_target_cannot_be_reached() -> None:
    ended = bench("client", CHECK="1", LEAKLINE_BENCH_SCALE="0.001", **SMALLEST)
    assert ended.returncode == 1
    assert "a phase end: CPU ms" in ended.stderr


# -- bench-pages, in a real browser ------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1_000, 30_000])
def test_a_run_is_fed_to_its_length_and_then_generation_by_generation(length: int) -> None:
    more = 3 * opening.NEWS
    parts = opening._parts(stream(1, length + more, time.time()), length)
    fed = list(opening._until(parts, length))
    assert sum(part.count for part in fed) == length
    news = list(parts)
    assert [part.count for part in news] == [opening.NEWS] * 3
    assert news[0].first == length


@pytest.mark.soak
def test_every_row_is_measured_and_the_check_fails_when_a_target_cannot_be_reached(
    tmp_path: Path,
) -> None:
    written = tmp_path / "rows.json"
    short = {"SHORT": "1", "CHECK": "1", "LEAKLINE_BENCH_SCALE": "0.0001"}
    ended = bench("pages", "--json", str(written), **short)
    assert ended.returncode == 1, ended.stderr
    assert "bench-pages: SHORT=1 measures less than what is held" in ended.stderr
    parts = json.loads(written.read_text())["parts"]
    figures = {each["name"]: each for part in parts for each in part["figures"]}
    for name in ("first chart after the navigation", "main thread per update and chart in view",
                 "300 runs listed with a search", "page weight, compressed, in all"):  # fmt: skip
        assert figures[name]["value"] > 0, figures[name]["missing"]
        assert figures[name]["verdict"] == "SHORT"
    assert figures["charts out of view that an update draws"]["value"] == 0
