"""Requests that are almost right, by the thousand and the same each time: a value changed in what a client would send,
a part taken out or doubled, bytes flipped, a compression that is cut off, wrong, doubled, or a bomb."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import urlencode

import zstandard

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
ODD: Final[tuple[Any, ...]] = (
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e15, 1e16, 1e308,
    float("nan"), float("inf"), "", " ", "x" * 257, "x" * 5_000, "\x00", "a\x00b", "\u202eb", "\ud800", "\ufeff",
    "é界\U0001f9ea", "../../etc/passwd", "'; DROP TABLE runs; --", "<script>x</script>", "=1+1", "__proto__",
    "process.rss_bytes", "phase_end", "NaN",
    "12", "1e5", [], [[]], [None], [1, "a", None], {}, {"": 1}, {"a": {"b": [1]}}, [[[[[[[[[[1]]]]]]]]]],
    list(range(300)), {str(i): i for i in range(100)},
)  # fmt: skip
# Answers to a body, whatever it is.
_BOMB: Final = zstandard.compress(b" " * 20_000_000)
_GZIP_BOMB: Final = gzip.compress(b"[" * 20_000_000)


@dataclass(frozen=True)
class Sent:
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


def requests(seed: int, count: int, wire: Mapping[str, Any]) -> Iterator[Sent]:
    """``wire`` is a batch that could be sent, of 10 snapshots from number 0."""
    random = Random(seed)
    for number in range(count):
        yield _one(random, number, wire)


def _one(random: Random, number: int, wire: Mapping[str, Any]) -> Sent:
    ways: tuple[tuple[int, Callable[[], tuple[str, str, Any]]], ...] = (
        (60, lambda: ("POST", f"/api/v1/runs/{_run(random)}/batches", _batch(random, wire))),
        (10, lambda: ("POST", "/api/v1/runs", _header(random))),
        (8, lambda: ("PATCH", f"/api/v1/runs/{_run(random)}", _CHANGE)),
        (5, lambda: ("POST", "/api/v1/rules", _RULE | {"above": number})),
        (3, lambda: ("POST", "/api/v1/webhooks", _WEBHOOK)),
        (3, lambda: ("POST", f"/api/v1/runs/{_run(random)}/requests", _REQUEST)),
        (3, lambda: ("POST", "/api/v1/incidents/abc/acknowledge", _ACKNOWLEDGEMENT)),
        (4, lambda: ("POST", "/v1/metrics", _OTLP)),
        (4, lambda: ("POST", random.choice(("/alerts/rules", "/alerts/webhooks", "/deletions")), None)),
    )  # fmt: skip
    weights = [weight for weight, _ in ways]
    method, path, value = random.choices([way for _, way in ways], weights)[0]()
    headers = {"content-type": JSON}
    if value is None:
        fields = [(random.choice(_FIELDS), str(random.choice(ODD))) for _ in range(5)]
        headers["content-type"] = FORM
        body = urlencode(fields, errors="replace").encode()
    else:
        body = _written(random, value)
    if random.random() < 0.25:
        body = _damaged(random, body)
    body, encoding = _packed(random, body)
    if encoding:
        headers["content-encoding"] = encoding
    return Sent(method, path, body, headers)


_CHANGE: Final = {
    "name": "n",
    "tags": ["t"],
    "notes": [{"text": "x", "link": "https://a.example"}],
    "reason": "why",
}
_RULE: Final = {
    "series": "gauge.queue",
    "above": 5,
    "hold": 2,
    "grace": 3,
    "advice": "look",
    "name": "n",
}
_WEBHOOK: Final = {"url": "http://127.0.0.1:9/x", "name": "n", "format": "slack"}
_REQUEST: Final = {"kind": "find_holders", "type": "app.Env", "rank": 0}
_ACKNOWLEDGEMENT: Final = {"project": "erl", "reason": "known", "expires_in_seconds": 60.0}
_OTLP: Final = {
    "resourceMetrics": [
        {
            "resource": {"attributes": [{"key": "service.instance.id", "value": {"stringValue": "w"}}]},
            "scopeMetrics": [{"metrics": [{"name": "process.memory.usage", "unit": "By", "gauge": {
                "dataPoints": [{"timeUnixNano": "1760000000000000000", "asInt": "1048576"}]}}]}],
        }
    ]
}  # fmt: skip
_FIELDS: Final = ("series", "above", "below", "name", "url", "format", "run", "hold", "project")


def _run(random: Random) -> str:
    return random.choice(("f1", "f2", "f3", "nobody", "%00", "a" * 300))


def _header(random: Random) -> dict[str, Any]:
    return {
        "id": random.choice(("f1", "f2", "f3")), "project": "erl", "name": "n", "unit": "epoch", "total": 25,
        "started_at": 1.7e9, "phases": ["a", "b"], "tags": ["t"], "config": {"lr": 0.1, "deep": {"a": [1]}},
        "environment": {"python": "3.11"},
        "process": {"instance": "p1", "rank": 0, "pid": 1, "host": "h", "attempt": 1},
    }  # fmt: skip


def _batch(random: Random, wire: Mapping[str, Any]) -> dict[str, Any]:
    """Its details are of numbers of this batch."""
    made = dict(copy.deepcopy(dict(wire)))
    made["first_sequence"] = first = random.randrange(0, 5_000)
    made["process"] = dict(made["process"], instance=random.choice(("p1", "p2", "p3")))
    for kind in ("events", "large_objects", "census", "holders"):
        for row in made[kind]:
            row["sequence"] += first
    return made


def _written(random: Random, value: Any) -> bytes:
    """With up to three things wrong."""
    value = copy.deepcopy(value)
    for _ in range(random.randrange(4)):
        _change(random, value)
    return json.dumps(value, ensure_ascii=random.random() < 0.7).encode("utf-8", "surrogatepass")


def _change(random: Random, value: Any) -> None:
    """At a place anywhere in it, as likely deep as shallow."""
    thing = value
    while True:
        keys = list(thing) if isinstance(thing, dict) else list(range(len(thing)))
        if not keys:
            return
        key = random.choice(keys)
        inner = thing[key]
        if not (isinstance(inner, (dict, list)) and inner) or random.random() < 0.3:
            break
        thing = inner
    how = random.random()
    if how < 0.6:
        thing[key] = copy.deepcopy(random.choice(ODD))
    elif how < 0.75:
        del thing[key]
    elif isinstance(thing, dict):
        thing[str(random.choice(ODD))[:600]] = copy.deepcopy(inner)
    else:
        thing.append(copy.deepcopy(inner))


def _damaged(random: Random, body: bytes) -> bytes:
    if not body:
        return body
    at = random.randrange(len(body))
    return (
        body[:at],
        body[:at] + bytes([body[at] ^ (1 << random.randrange(8))]) + body[at + 1 :],
        body[:at] + random.randbytes(random.randrange(20)) + body[at:],
        body[:at] + body[random.randrange(len(body)) :],
        body + body,
        random.randbytes(random.randrange(2_000)),
    )[random.randrange(6)]


def _packed(random: Random, body: bytes) -> tuple[bytes, str]:
    how = random.random()
    if how < 0.6:
        return body, ""
    if how < 0.96:
        name = random.choice(("gzip", "zstd"))
        packed = gzip.compress(body, 1) if name == "gzip" else zstandard.compress(body)
        return (packed if how < 0.85 else _damaged(random, packed)), name
    return random.choice((
        (_BOMB, "zstd"), (_GZIP_BOMB, "gzip"), (zlib.compress(body), "deflate"), (body, "gzip"), (body, "br"),
        (gzip.compress(gzip.compress(body, 1), 1), "gzip"), (body, "x" * 300),
    ))  # fmt: skip
