"""Prints Leakline's alerts as lines, and believes only what is signed, fresh and new.

    pip install standardwebhooks
    WEBHOOK_SECRET=whsec_... python receiver.py

WEBHOOK_SECRET may be several secrets with spaces between while one is exchanged; PORT is 9000 unless set.
"""

import os
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

MAX_BODY_BYTES = 20_000
# A message that nobody took comes again for hours, always with the same id. In real life: a table.
MAX_REMEMBERED_IDS = 10_000
PARTS = {
    "where": "where",
    "what": "what",
    "how_much": "how much",
    "when": "since when",
    "forecast": "forecast",
}

secrets = [Webhook(secret) for secret in os.environ.get("WEBHOOK_SECRET", "").split()]
seen: OrderedDict[str, None] = OrderedDict()


def verified(body: bytes, headers: dict[str, str]) -> object:
    """The message, or None where no secret signed it within five minutes of now."""
    for secret in secrets:
        try:
            # Over the bytes as they came: parsing and printing JSON again changes them.
            return secret.verify(body, headers)
        except (WebhookVerificationError, ValueError):
            continue
    return None


def lines(message: dict) -> list[str]:
    """The alert for people. Names in it come from training scripts: plain text, whatever they look like."""
    data = message.get("data")
    data = data if isinstance(data, dict) else {}
    told = [f"[{message.get('type')}] {data.get('title')}", f"  {data.get('summary')}"]
    for key, label in PARTS.items():
        part = data.get(key)
        if isinstance(part, dict) and part.get("text"):
            told.append(f"  {label + ':':<12}{part['text']}")
    advice = data.get("advice")
    told += [f"  {'advice:':<12}{text}" for text in (advice if isinstance(advice, list) else [])]
    told.append(f"  {data.get('link')}")
    return ["".join(c if c.isprintable() else " " for c in line) for line in told]


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # seconds; whoever sends a byte a minute does not stop the others for longer

    def do_POST(self) -> None:
        size = self.headers.get("content-length", "")
        if not (size.isascii() and size.isdigit()):
            self.answer(411)
        elif int(size) > MAX_BODY_BYTES:
            self.answer(413)
        else:
            self.answer(self.take(self.rfile.read(int(size))))

    def take(self, body: bytes) -> int:
        """The status to answer. Any from 200 to 299 ends the sender's tries."""
        message = verified(body, dict(self.headers.items()))
        if not isinstance(message, dict):
            print("refused: not signed by us, or older than five minutes", file=sys.stderr)
            return 400
        message_id = self.headers["webhook-id"]
        # Sent again because our answer was lost, or played back by somebody: taken, and not acted upon.
        if message_id not in seen:
            print("\n".join(lines(message)), flush=True)
            seen[message_id] = None
            if len(seen) > MAX_REMEMBERED_IDS:
                seen.popitem(last=False)
        return 204

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the alerts are the output."""


if __name__ == "__main__":
    if not secrets:
        sys.exit(
            "set WEBHOOK_SECRET to the whsec_... that Leakline printed when the webhook was made"
        )
    server = HTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver)
    print(f"listening on http://127.0.0.1:{server.server_port}/", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
