"""An application on a real socket of this process: a test crosses its bounds over HTTP, and may make them smaller."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

import uvicorn
from fastapi import FastAPI

from leakline_server.connections import Connection
from leakline_server.web.services import Services

START_SECONDS = 15.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """A connection for each request."""

    port: int
    services: Services
    # With every request.
    sends: Mapping[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(
                method, path, data, {"content-type": "application/json", **self.sends, **sent}
            )
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        answer = self.ask("POST", path, body)
        assert answer.status in (200, 201), answer.body
        return answer.json()


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, ws="none", server_header=False,
            timeout_graceful_shutdown=1, http=Connection,
        )  # fmt: skip
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        pause, deadline = threading.Event(), time.monotonic() + START_SECONDS
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "it does not start"
            pause.wait(0.01)
        try:
            yield Client(opened.getsockname()[1], app.state.services)
        finally:
            server.should_exit = True
            thread.join(START_SECONDS)
