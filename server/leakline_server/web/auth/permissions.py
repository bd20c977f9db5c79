"""What a request needs, and whether a scope has it. Pure, and by default no: a new route needs an administrator, or to
read where it only reads. A test names every route with what it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal
from urllib.parse import parse_qsl

from ...security.credentials import Scope

# nothing < read < change; to add is apart: who adds need not read.
Need = Literal["nothing", "add", "read", "change"]

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_OPEN: Final = frozenset({SIGN_IN, "/healthz", "/readyz"})
_RUNS: Final = "/api/v1/runs"
_OTLP: Final = "/v1/metrics"
_TOKENS: Final = "/api/v1/tokens"
_RUN: Final = re.compile(r"(?:/api/v1)?/runs/([^/]+)(?:/.*)?", re.DOTALL)
_CHANGED: Final = re.compile(r"/api/v1/runs/[^/]+", re.DOTALL)
_BATCHES: Final = re.compile(r"/api/v1/runs/[^/]+/batches", re.DOTALL)
# Where an address names runs after its question mark.
_NAMED: Final = frozenset({"run", "before", "after", "pick"})
_HAS: Final[dict[Scope, frozenset[Need]]] = {
    "ingest": frozenset({"add"}),
    "read": frozenset({"read"}),
    "admin": frozenset({"add", "read", "change"}),
}


def need_of(method: str, path: str) -> Need:
    if method in READS:
        return _need_to_read(path)
    if method == "POST":
        if path in (SIGN_IN, SIGN_OUT):
            return "nothing"
        if path in (_RUNS, _OTLP) or _BATCHES.fullmatch(path):
            return "add"
    if method == "PATCH" and _CHANGED.fullmatch(path):
        return "add"
    return "change"


def _need_to_read(path: str) -> Need:
    if path in _OPEN or path.startswith("/static/"):
        return "nothing"
    # How tokens begin, what they are for and when they were used last is nobody else's business.
    if path == _TOKENS or path.startswith(f"{_TOKENS}/"):
        return "change"
    return "read"


def may(scope: Scope, need: Need) -> bool:
    return need == "nothing" or need in _HAS[scope]


def runs_named(path: str, query: str) -> Iterator[str]:
    """The ids of runs that a request is about."""
    found = _RUN.fullmatch(path)
    if found is not None:
        yield found[1]
    for name, value in parse_qsl(query):
        if name in _NAMED:
            yield value
