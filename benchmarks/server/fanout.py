"""Server CPU per event delivered to one of 500 viewers of live pages, including ingest."""

from __future__ import annotations

import re
import select
import socket
import time
from typing import Final

from .bodies import Written, leakline_batch, request
from .feeding import full_or_short, running
from .load import Failed, whole_answer
from .machine import cpu_seconds
from .rows import Figure, Line, Part
from .samples import samples
from .subjects import Leakline

VIEWERS: Final = 500
SECONDS: Final = full_or_short(15, 5)
POSTS_PER_SECOND: Final = 4
AT_MOST_US: Final = 20.0
_EVENT: Final = re.compile(rb"^event: ?\w+", re.MULTILINE)


def measure() -> list[Part]:
    lines = []
    for runs in (1, 10):
        with running(Leakline) as server:
            lines.append(_line(server, runs))
    figure = Figure(
        f"live page fan-out, {VIEWERS} viewers: server CPU per delivered event", AT_MOST_US,
        lines[0].figures["us_per_event"], unit=" µs", note="of one run",
    )  # fmt: skip
    title = (
        f"live pages: {VIEWERS} viewers, {POSTS_PER_SECOND} batches per second and run, {SECONDS} s"
    )
    return [Part(title, lines, [figure])]


def _line(server: Leakline, runs: int) -> Line:
    names = list(server.create([f"f{i}" for i in range(runs)]))
    started = time.time() - 60
    posts = SECONDS * POSTS_PER_SECOND
    bodies = {name: _bodies(name, seed, posts + 1, started) for seed, name in enumerate(names)}
    for name in names:
        server.ask(
            "POST",
            f"/api/v1/runs/{name}/batches",
            bodies[name].pop(0),
            **{"content-encoding": "gzip"},
        )
    audience = _Audience(server, names)
    audience.settle()
    server.settle()
    analysis, before, events = server.analysis_cpu(), cpu_seconds(server.pids), audience.events
    began = time.perf_counter()
    for post in range(posts):
        for name in names:
            audience.post(_request(name, bodies[name][post]))
        audience.listen_until(began + (post + 1) / POSTS_PER_SECOND)
    audience.settle()
    cpu = cpu_seconds(server.pids) - before
    analysed = server.analysis_cpu() - analysis
    delivered = audience.events - events
    audience.close()
    figures = {
        "events": delivered, "us_per_event": (cpu - analysed) / max(1, delivered) * 1e6,
        "cores": cpu / SECONDS, "analysis_cpu_seconds": analysed,
        "memory_mib": server.memory_mib(),
    }  # fmt: skip
    each = delivered / VIEWERS / posts
    return Line(
        f"{VIEWERS} viewers of {runs} run{'s' if runs > 1 else ''}", figures,
        note=f"{each:.1f} events per viewer and batch",
    )  # fmt: skip


def _bodies(name: str, seed: int, count: int, started: float) -> list[bytes]:
    """Return single snapshots; a client may send them gzipped or not, here they always are."""
    return [
        Written(leakline_batch(part)).body(name).data
        for part in samples(seed, count, started).parts(1)
    ]


def _request(name: str, body: bytes) -> bytes:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    return request("POST", f"/api/v1/runs/{name}/batches", body, headers)


class _Audience:
    """Viewers that count received events, and one connection that posts."""

    def __init__(self, server: Leakline, names: list[str]) -> None:
        self.events = 0
        self._poll = select.epoll()
        self._viewers: dict[int, socket.socket] = {}
        self._torn: dict[int, bytes] = {}
        for i in range(VIEWERS):
            viewer = socket.create_connection(server.address, 30)
            viewer.sendall(request("GET", f"/api/v1/runs/{names[i % len(names)]}/live"))
            viewer.setblocking(False)
            self._viewers[viewer.fileno()] = viewer
            self._torn[viewer.fileno()] = b""
            self._poll.register(viewer, select.EPOLLIN)
        self._address = server.address
        self._poster: socket.socket | None = None

    def post(self, whole: bytes) -> None:
        if self._poster is None:
            self._poster = socket.create_connection(self._address, 30)
        self._poster.sendall(whole)
        answer = bytearray()
        while (status := whole_answer(answer)) is None:
            answer += self._poster.recv(65536)
        if status != 200:
            raise Failed(answer[:400].decode(errors="replace"))

    def settle(self) -> None:
        """Wait until no event has arrived for a second."""
        last, moment = self.events, time.perf_counter()
        while time.perf_counter() - moment < 1.0:
            self.listen_until(time.perf_counter() + 0.1)
            if self.events != last:
                last, moment = self.events, time.perf_counter()

    def listen_until(self, moment: float) -> None:
        while (left := moment - time.perf_counter()) > 0:
            for number, _ in self._poll.poll(left):
                self._count(number)

    def _count(self, number: int) -> None:
        got = self._viewers[number].recv(1 << 18)
        if not got:
            raise Failed("a live stream ended")
        text = self._torn[number] + got
        # An incomplete line is kept until its end arrives.
        whole, _, self._torn[number] = text.rpartition(b"\n")
        self.events += len(_EVENT.findall(whole))

    def close(self) -> None:
        for viewer in self._viewers.values():
            viewer.close()
        if self._poster is not None:
            self._poster.close()
        self._poll.close()
