"""A receiver of webhooks on loopback. It checks signatures itself, without the library that signs them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

# As the Standard Webhooks specification suggests; older messages may be played back by somebody.
TOLERANCE_SECONDS: Final = 300.0
MAX_BODY_BYTES: Final = 64 * 1024


class Alert(NamedTuple):
    """What a message said, and whether its signature holds."""

    event: str
    run: str
    signature_valid: bool


class Receiver(ThreadingHTTPServer):
    """Check with ``secret`` what is posted to ``url``, and keep it. A context: it listens while it is open."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/drill"
        self.secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self._alerts: list[Alert] = []
        self._arrived = threading.Condition()

    def __enter__(self) -> Receiver:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def take(self, alert: Alert) -> None:
        with self._arrived:
            self._alerts.append(alert)
            self._arrived.notify_all()

    def wait_for(self, run: str, event: str, seconds: float) -> list[Alert]:
        """Return the alerts of a run in the order in which they came, once ``event`` is among them or time is over."""

        def alerts() -> list[Alert]:
            return [alert for alert in self._alerts if alert.run == run]

        with self._arrived:
            self._arrived.wait_for(lambda: any(a.event == event for a in alerts()), seconds)
            return alerts()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), MAX_BODY_BYTES))
        headers = {name.lower(): value for name, value in self.headers.items()}
        valid = signature_holds(self.server.secret, headers, body, time.time())
        try:
            told = json.loads(body)
            self.server.take(Alert(told["type"], told["data"]["run"]["id"], valid))
        except (ValueError, KeyError, TypeError):
            valid = False
        self.send_response(204 if valid else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing: the drill says what came."""


def signature_holds(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Return True if one of the signatures is ours, over this body, made less than five minutes from ``now``.

    ``headers`` are in lower case.
    """
    sent = headers.get("webhook-timestamp", "")
    if not sent.isdecimal() or abs(now - int(sent)) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((headers.get("webhook-id", "").encode(), sent.encode(), body))
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted.encode(), one.encode()) for one in given)
