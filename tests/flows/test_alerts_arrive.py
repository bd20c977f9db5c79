"""Alerts are delivered at least once, even if the server is killed between receipt and recording."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier
from tests.flows.conftest import Server

from leakline.transport.http_delivery import request_json
from leakline_server.alerts.sending.signing import make_secret

pytestmark = [pytest.mark.flow, pytest.mark.soak]


def rows(server: Server, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Query the database file directly, which also works without a server."""
    database = server.folder / ".leakline-server" / "leakline.db"
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        return connection.execute(query, values).fetchall()


def test_an_alert_is_sent_again_if_its_sender_dies_before_recording(
    start_server: Callable[..., Server], eventually: Callable[..., Any], tmp_path: Any
) -> None:
    secret, received = make_secret(), []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if not received:
                server.process.kill()
                server.process.wait(10)
            received.append((headers, Verifier(secret).verify(body, headers)))
            # The sender may be dead when the answer is ready.
            with contextlib.suppress(OSError):
                self.send_response(204)
                self.end_headers()

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, args=(0.02,), daemon=True).start()
        settings = {
            "LEAKLINE_WEBHOOK_URL": f"http://127.0.0.1:{receiver.server_port}/hook",
            "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8",
            "LEAKLINE_WEBHOOK_SECRET": secret,
        }
        server = start_server(tmp_path, **settings)
        request_json(server.address, "POST", "/runs", {"id": "r1", "name": "r1"})
        failed = {"state": "failed", "reason": "ValueError"}
        request_json(server.address, "PATCH", "/runs/r1", failed)
        eventually(lambda: received)
        # The claim of a dead process is left, and no attempt.
        message = received[0][0]["webhook-id"]
        state = "SELECT state, attempts FROM deliveries WHERE alert_id = ?"
        assert rows(server, state, message) == [("claimed", 1)]
        assert rows(server, "SELECT count(*) FROM delivery_attempts") == [(0,)]

        again = start_server(tmp_path, **settings)
        eventually(lambda: rows(again, state, message) == [("delivered", 2)])
        receiver.shutdown()
    (first, told), (second, told_again) = received
    assert first["webhook-id"] == second["webhook-id"] == message
    assert told["data"]["run"] == told_again["data"]["run"]
    assert first["webhook-timestamp"] < second["webhook-timestamp"]
