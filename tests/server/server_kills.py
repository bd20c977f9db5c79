"""Servers killed under load and restarted: compare what is stored of each run with what was acknowledged."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final


class RoundRobin:
    """A proxy on loopback. A request to a server that does not answer gets a 502, as with any proxy."""

    def __init__(self, ports: Sequence[int]) -> None:
        turns: Iterator[int] = itertools.cycle(ports)
        lock = threading.Lock()

        def next_port() -> int:
            with lock:
                return next(turns)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = forward(next_port(), self.command, self.path, body)
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_PATCH = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> RoundRobin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def forward(port: int, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 502, b"{}"


NAME: Final = "type.app.Env.count"
# Snapshots per batch, one run for each: from the smallest to the largest batch that clients send.
SIZES: Final = (1, 7, 20, 60, 200)
# This many batches after the restart show that a run goes on where it was.
BATCHES_AFTER: Final = 2


@dataclass
class Figures:
    """The totals of all kills. ``wrong`` lists what was lost, duplicated or changed."""

    kills: int = 0
    acknowledged: int = 0
    unsure: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills; {self.acknowledged} snapshots acknowledged, {self.unsure} stored without a word of "
            f"it; wrong: {self.wrong or 'nothing'}"
        )


class Sender(threading.Thread):
    """A training process: it sends batch after batch, each until it is acknowledged."""

    def __init__(self, run: Any, size: int, port: int) -> None:
        super().__init__(daemon=True)
        self.run_, self.size, self.port = run, size, port
        # All sequence numbers below this one were acknowledged.
        self.acknowledged = 0
        self.began = threading.Event()
        self.stopping = threading.Event()
        self.refusal: str | None = None
        # The number of requests without an answer.
        self.unreached = 0
        self._pause = threading.Event()

    def run(self) -> None:
        self._until("/api/v1/runs", self.run_.header)
        path = f"/api/v1/runs/{self.run_.id}/batches"
        while not self.stopping.is_set() and self.refusal is None:
            if not self._until(path, self.run_.wire(self.acknowledged, self.size)):
                return
            self.acknowledged += self.size
            self.began.set()

    def send_more(self, batches: int, port: int) -> None:
        """Send more batches after a stop, beginning with what was not acknowledged, as every client does."""
        self.port = port
        self.stopping.clear()
        path = f"/api/v1/runs/{self.run_.id}/batches"
        for _ in range(batches):
            if self._until(path, self.run_.wire(self.acknowledged, self.size)):
                self.acknowledged += self.size

    def _until(self, path: str, body: Any) -> bool:
        """Send the body until it is acknowledged; return False if the sender is stopped first."""
        data = json.dumps(body).encode()
        while not self.stopping.is_set():
            status, answer = forward(self.port, "POST", path, data)
            self.unreached += status == 502
            if status in (200, 201):
                return True
            if status not in (429, 502, 503):
                self.refusal = f"{path}: {status} {answer.decode()}"
                return False
            self._pause.wait(0.01)
        return False


def kill_and_check(
    start: Callable[[int], Any], make_run: Any, kills: int, servers: int = 1, seed: int = 1
) -> Figures:
    """Kill one of the servers ``kills`` times, at random moments. ``start(port)`` starts one; port 0 means any port.

    The senders go on with the other servers, if any; then all runs of the round are read from each server.
    """
    chance, figures = random.Random(seed), Figures()
    running = [start(0) for _ in range(servers)]
    with RoundRobin([server.port for server in running]) as proxy:
        for number in range(kills):
            senders = [
                Sender(make_run(id=f"k{number}-{size}", instance=f"i{number}-{size}"), size, proxy.port)
                for size in SIZES
            ]  # fmt: skip
            for sender in senders:
                sender.start()
            for sender in senders:
                if not sender.began.wait(60):
                    figures.wrong.append(f"{sender.run_.id} never began: {sender.refusal}")
            threading.Event().wait(chance.uniform(0.0, 1.2))
            victim = chance.randrange(servers)
            running[victim].kill()
            figures.kills += 1
            if servers > 1:
                threading.Event().wait(chance.uniform(0.0, 0.5))
            for sender in senders:
                sender.stopping.set()
            for sender in senders:
                sender.join(30)
            running[victim] = start(running[victim].port)
            for sender in senders:
                figures.acknowledged += sender.acknowledged
                check(figures, sender, running[victim], exactly=False)
                sender.send_more(BATCHES_AFTER, proxy.port)
                for server in running:
                    check(figures, sender, server, exactly=True)
    return figures


def check(figures: Figures, sender: Sender, server: Any, *, exactly: bool) -> None:
    """Check that everything acknowledged is stored once and unchanged; if ``exactly``, nothing else may be stored.

    Otherwise the batch in flight may be stored too, because its answer never arrived.
    """
    run = sender.run_
    if sender.refusal is not None:
        figures.wrong.append(sender.refusal)
        return
    (item,) = (
        server.request(
            "GET", f"/api/v1/runs/{run.id}/series?name={NAME}&x=sequence&points=20000"
        )[1]["items"]
        or [{"x": [], "last": []}]
    )  # fmt: skip
    (process,) = server.request("GET", f"/api/v1/runs/{run.id}")[1]["processes"]
    count = len(item["x"])
    beyond = count - sender.acknowledged
    if item["x"] != list(range(count)) or beyond not in ((0,) if exactly else (0, sender.size)):
        figures.wrong.append(f"{run.id}: {count} snapshots of {sender.acknowledged} acknowledged")
    elif process["stored"] != count:
        figures.wrong.append(f"{run.id}: {process['stored']} stored for {count} snapshots")
    elif item["last"] != [run.snapshot(i).samples[NAME] for i in range(count)]:
        figures.wrong.append(f"{run.id}: values other than those sent")
    elif not exactly:
        figures.unsure += beyond
