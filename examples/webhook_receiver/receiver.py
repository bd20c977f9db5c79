"""Print Leakline's alerts as lines, after checking signature, age and id.

    pip install standardwebhooks
    WEBHOOK_SECRET=whsec_... python receiver.py

WEBHOOK_SECRET may have several secrets separated by spaces during a rotation; PORT defaults to 9000.
"""

import os
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

MAX_BODY_BYTES = 20_000
# An undelivered message is retried for hours, always with the same id. In production, use a table.
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
    """Return the message, or None if no secret signed it within five minutes of now."""
    for secret in secrets:
        try:
            # Verified over the raw bytes: parsing and serialising the JSON again would change them.
            return secret.verify(body, headers)
        except (WebhookVerificationError, ValueError):
            continue
    return None


def lines(message: dict) -> list[str]:
    """Return the alert as plain text; names in it come from training scripts and are not trusted."""
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
    timeout = 10  # seconds; a slow sender must not block the others for longer

    def do_POST(self) -> None:
        size = self.headers.get("content-length", "")
        if not (size.isascii() and size.isdigit()):
            self.answer(411)
        elif int(size) > MAX_BODY_BYTES:
            self.answer(413)
        else:
            self.answer(self.take(self.rfile.read(int(size))))

    def take(self, body: bytes) -> int:
        """Return the status to answer. Any status from 200 to 299 ends the sender's retries."""
        message = verified(body, dict(self.headers.items()))
        if not isinstance(message, dict):
            print("refused: not signed by us, or older than five minutes", file=sys.stderr)
            return 400
        message_id = self.headers["webhook-id"]
        # A duplicate (our answer was lost, or the message is replayed) is accepted but not processed again.
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
        """Do not log requests: the alerts are the output."""


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
