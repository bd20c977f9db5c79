"""A receiver of webhooks on loopback. It checks signatures itself, without the library that signs them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

HOST: Final = "127.0.0.1"
SECRET_BYTES: Final = 32
# As the Standard Webhooks specification suggests; older messages may be played back by somebody.
TOLERANCE_SECONDS: Final = 300.0
MAX_BODY_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """One message. ``arrived_at`` is Unix seconds; ``body`` is empty where it was no JSON object."""

    arrived_at: float
    signature_valid: bool
    body: Mapping[str, Any]

    @property
    def event(self) -> str:
        return str(self.body.get("type", ""))

    def data(self, *path: str) -> Any:
        """What stands at this path of ``data``, None where nothing does."""
        found: Any = self.body.get("data")
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


class Receiver:
    """A context: while it is open, what is posted to ``url`` is checked with ``secret`` and kept."""

    def __init__(self) -> None:
        self.secret = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        self._received: list[Received] = []
        self._arrived = threading.Condition()
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_port}/drill"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="leakline-drill-receiver", daemon=True
        )  # fmt: skip

    def of_run(self, run: str) -> list[Received]:
        """In the order in which they came."""
        with self._arrived:
            return [one for one in self._received if one.data("run", "id") == run]

    def wait(self, run: str, enough: Callable[[list[Received]], bool], seconds: float) -> None:
        """Until ``enough`` of the messages of ``run`` came, or the time is over."""
        with self._arrived:
            self._arrived.wait_for(
                lambda: enough([one for one in self._received if one.data("run", "id") == run]), seconds
            )  # fmt: skip

    def take(self, headers: Mapping[str, str], raw: bytes) -> bool:
        """Keep a message; gives whether its signature holds. ``headers`` in lower case."""
        now = time.time()
        valid = signature_holds(self.secret, headers, raw, now)
        with self._arrived:
            self._received.append(Received(now, valid, _json_object(raw)))
            self._arrived.notify_all()
        return valid

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        take = self.take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = min(int(self.headers.get("content-length", 0)), MAX_BODY_BYTES)
                raw = self.rfile.read(size)
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.send_response(204 if take(headers, raw) else 401)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: the drill tells what came."""

        return Handler


def signature_holds(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether one of the signatures is ours, over this body, made less than five minutes from ``now``."""
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdecimal() or abs(now - int(sent)) > TOLERANCE_SECONDS:
        return False
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        return False
    signed = b".".join((headers.get("webhook-id", "").encode(), sent.encode(), body))
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    # Several, with spaces between, while a secret is being exchanged.
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted.encode(), one.encode()) for one in given)


def _json_object(raw: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
